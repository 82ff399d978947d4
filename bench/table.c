/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include "output.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTES_BYTES 16384

struct table {
    const struct table_column *columns;
    const char *csv_path, *json_path;
    FILE *csv, *json;
    bool first_row;
    char notes[NOTES_BYTES]; /* lines */
};

/* Lines as an array of strings. */
static void json_lines(FILE *out, const char *text)
{
    const char *comma = "";

    fputc('[', out);
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");

        fputs(comma, out);
        output_json_text(out, text, length);
        comma = ", ";
        text += length + (text[length] == '\n');
    }
    fputc(']', out);
}

static void print_heads(const struct table_column *columns)
{
    fputs("#\n#", stdout);
    for (const struct table_column *c = columns; c->name != NULL; c++)
        printf(c->decimals < 0 ? " %-*s" : " %*s", c->width, c->head);
    fputs("\n#", stdout);
    for (const struct table_column *c = columns; c->name != NULL; c++)
        printf(c->decimals < 0 ? " %-*s" : " %*s", c->width, c->unit);
    putchar('\n');
}

struct table *table_open(const char *tool, const char *about, const struct table_column *columns, const char *csv_path,
                         const char *json_path)
{
    struct table *table = calloc(1, sizeof *table);

    if (table == NULL)
        abort();
    *table = (struct table){ .columns = columns, .csv_path = csv_path, .json_path = json_path, .first_row = true };
    table->csv = output_open(csv_path);
    table->json = output_open(json_path);
    for (const char *line = about; *line != '\0'; line += strcspn(line, "\n") + (strchr(line, '\n') != NULL))
        printf("# %.*s\n", (int)strcspn(line, "\n"), line);
    print_heads(columns);
    fflush(stdout);
    for (const struct table_column *c = columns; table->csv != NULL && c->name != NULL; c++)
        fprintf(table->csv, "%s,", c->name);
    if (table->csv != NULL)
        fputs("reason\n", table->csv);
    if (table->json != NULL) {
        fputs("{\"tool\": ", table->json);
        output_json_string(table->json, tool);
        fputs(", \"about\": ", table->json);
        json_lines(table->json, about);
        fputs(",\n \"rows\": [", table->json);
    }
    return table;
}

static void print_cell(const struct table_column *column, const struct table_cell *cell)
{
    if (column->decimals < 0)
        printf(" %-*s", column->width, cell->text != NULL ? cell->text : "");
    else if (isnan(cell->number))
        printf(" %*s", column->width, "-");
    else
        printf(" %*.*f", column->width, column->decimals, cell->number);
}

static void csv_cell(FILE *out, const struct table_column *column, const struct table_cell *cell)
{
    if (column->decimals < 0) {
        fputc('"', out);
        for (const char *c = cell->text != NULL ? cell->text : ""; *c != '\0'; c++)
            fprintf(out, *c == '"' ? "\"\"" : "%c", *c);
        fputs("\",", out);
    } else if (isnan(cell->number)) {
        fputc(',', out);
    } else {
        fprintf(out, "%.*f,", column->decimals, cell->number);
    }
}

static void json_cell(FILE *out, const struct table_column *column, const struct table_cell *cell)
{
    fprintf(out, "\"%s\": ", column->name);
    if (column->decimals < 0)
        output_json_string(out, cell->text != NULL ? cell->text : "");
    else if (isnan(cell->number))
        fputs("null", out);
    else
        fprintf(out, "%.*f", column->decimals, cell->number);
    fputs(", ", out);
}

void table_row(struct table *table, const struct table_cell *cells, const char *reason)
{
    const char *why = reason != NULL ? reason : "";

    putchar(' ');
    for (int i = 0; table->columns[i].name != NULL; i++)
        print_cell(&table->columns[i], &cells[i]);
    printf("%s%s\n", reason != NULL ? "  " : "", why);
    fflush(stdout);
    for (int i = 0; table->csv != NULL && table->columns[i].name != NULL; i++)
        csv_cell(table->csv, &table->columns[i], &cells[i]);
    if (table->csv != NULL)
        fprintf(table->csv, "\"%s\"\n", why);
    output_flush(table->csv, NULL);
    if (table->json == NULL)
        return;
    fputs(table->first_row ? "\n  {" : ",\n  {", table->json);
    for (int i = 0; table->columns[i].name != NULL; i++)
        json_cell(table->json, &table->columns[i], &cells[i]);
    fputs("\"reason\": ", table->json);
    output_json_string(table->json, why);
    fputc('}', table->json);
    output_flush(table->json, "\n ],\n \"notes\": []}\n");
    table->first_row = false;
}

void table_note(struct table *table, const char *text)
{
    size_t used = strlen(table->notes);

    printf("# %s\n", text);
    fflush(stdout);
    if (used < NOTES_BYTES)
        snprintf(table->notes + used, NOTES_BYTES - used, "%s\n", text);
}

void table_close(struct table *table)
{
    if (table->json != NULL) {
        fputs("\n ],\n \"notes\": ", table->json);
        json_lines(table->json, table->notes);
        fputs("}\n", table->json);
    }
    output_close(table->csv, table->csv_path);
    output_close(table->json, table->json_path);
    free(table);
}
