/* SPDX-License-Identifier: Apache-2.0 */
/* Joining the job, and the little that its ranks tell one another. */
#include "jobs.h"

#include <stdio.h>
#include <stdlib.h>

static double *everybodys(struct jobs_run *run, double value)
{
    double *values = calloc((size_t)run->world.size, sizeof *values);

    if (values == NULL)
        abort();
    library_share(run, &value, values, sizeof value);
    return values;
}

double jobs_worst(struct jobs_run *run, double value)
{
    double *values = everybodys(run, value);

    for (int r = 0; r < run->world.size; r++)
        value = values[r] > value ? values[r] : value;
    free(values);
    return value;
}

double jobs_total(struct jobs_run *run, double value)
{
    double *values = everybodys(run, value);

    value = 0;
    for (int r = 0; r < run->world.size; r++)
        value += values[r];
    free(values);
    return value;
}

void jobs_barrier(struct jobs_run *run)
{
    jobs_worst(run, 0);
}

static void know_members(struct jobs_group *world)
{
    world->members = calloc((size_t)world->size, sizeof *world->members);
    if (world->members == NULL)
        abort();
    for (int r = 0; r < world->size; r++)
        world->members[r] = r;
}

int main(int argc, char **argv)
{
    struct jobs_run run = { .parts = JOBS_COMPUTE | JOBS_COMMUNICATE };

    jobs_parse(argc, argv, &run.options);
    if (run.options.cuda && (!library_has_gpu || gpu_absent() != NULL)) {
        fprintf(stderr, "%s: %s\n", library_program, library_has_gpu ? gpu_absent() : "host memory only");
        return 2;
    }
    library_open(&run, &argc, &argv);
    jobs_compute_open(&run);
    know_members(&run.world);
    run.options.mode->run(&run);
    if (run.world.rank == 0 && run.wrong > 0)
        printf("# wrong elements: %llu FAILED\n", (unsigned long long)run.wrong);
    if (run.table != NULL)
        table_close(run.table);
    jobs_barrier(&run);
    free(run.transfers);
    library_close(&run);
    free(run.world.members);
    return run.wrong > 0;
}
