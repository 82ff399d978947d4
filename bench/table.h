/* SPDX-License-Identifier: Apache-2.0 */
/* A table of results: the same rows as text for people, as CSV and as JSON. */
#ifndef TABLE_H
#define TABLE_H

#include <stddef.h>

struct table_column {
    const char *name;        /* in the files: lower case, with its unit at the end */
    const char *head, *unit; /* for people */
    int width;
    int decimals; /* of numbers; -1: a text */
};

struct table;

/* A cell: a number, or a text. A number that is not one (NAN) stands for a cell that could not be filled. */
struct table_cell {
    double number;
    const char *text;
};

#define TABLE_NUMBER(value) ((struct table_cell){ .number = (double)(value) })
#define TABLE_TEXT(value) ((struct table_cell){ .text = (value) })

/*
 * Begin: prints `about` (lines, each gets "# "), then the heads. `columns` ends with a NULL name and must outlive the table. Paths may be
 * NULL. Ends the program where a file cannot be written.
 */
struct table *table_open(const char *tool, const char *about, const struct table_column *columns, const char *csv_path,
                         const char *json_path);
/* One cell a column. `reason` NULL, or why cells of the row are empty. */
void table_row(struct table *table, const struct table_cell *cells, const char *reason);
/* A line that is no row: "# text". In JSON among the notes. */
void table_note(struct table *table, const char *text);
void table_close(struct table *table);

#endif
