/* SPDX-License-Identifier: Apache-2.0 */
/* Measured sweeps, and the machine whose simulated times come nearest to them. */
#ifndef SIM_FIT_H
#define SIM_FIT_H

#include <stdint.h>

#include "machine.h"

struct sim_row { /* one line of pickle-perf's --csv */
    char operation[24], algorithm[24];
    int ranks;
    double bytes; /* as sim_run takes them */
    double us;
    double predicted_us;
    bool held_out;
};

struct sim_rows {
    struct sim_row *rows;
    int count;
};

/* Append the rows of a file. Says on stderr what it cannot use. */
bool sim_rows_read(struct sim_rows *rows, const char *path);
void sim_rows_free(struct sim_rows *rows);
/* Hold out every third size of each sweep, neither the first nor the last of it, and all rows of n ranks where bit n of `ranks` is set. */
void sim_rows_hold_out(struct sim_rows *rows, uint64_t ranks);

/* Fill predicted_us of all rows. */
bool sim_predict(const struct sim_machine *machine, struct sim_rows *rows);
/* Change the machine's fitted numbers until the rows that are not held out are met best. */
bool sim_fit(struct sim_machine *machine, struct sim_rows *rows);
/* Median and largest |predicted / measured - 1| of the rows of `ranks` ranks (0: any) that are held out, or of those that are not. */
void sim_error(const struct sim_rows *rows, bool held_out, int ranks, double *median, double *largest, int *count);

#endif
