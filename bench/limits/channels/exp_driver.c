/* SPDX-License-Identifier: Apache-2.0 */
/* Calls and chains beside a thread that is inside the driver: worker_driver.c has them. */
#include "parent.h"

/* Every call or chain that the workers know, beside every holder, until they say that there are no more. */
static void try_all(int command, void (*row)(int how, const struct reply *r))
{
    for (int how = 0; how < HOLDERS; how++)
        for (int c = 0; !late(); c++) {
            struct reply *r;

            parent.epoch++;
            r = ASK(0, command, how, c, (long)parent.epoch);
            if (!r && start_pair())
                return;
            if (!r) {
                printf("%s, number %d: pair lost\n", holder_name[how], c);
                continue;
            }
            if (r->rc)
                break;
            row(how, r);
        }
}

static void row_driver(int how, const struct reply *r)
{
    fprintf(parent.csv, "%s,%s,%s,%ld,%ld,%ld,%ld,%ld,%.2f,%.2f,%d\n", parent.o.mode, holder_name[how], r->msg, r->r[0], r->r[1],
            r->r[2], r->r[3], r->r[4], r->d[0], r->d[1], parent.blocked);
}

static void row_queued(int how, const struct reply *r)
{
    fprintf(parent.csv, "%s,%s,%s,%ld,%ld,%ld,%ld,%.3f\n", parent.o.mode, holder_name[how], r->msg, r->r[0], r->r[1], r->r[2],
            r->r[3], r->d[0]);
}

void experiment_driver(void)
{
    try_all(C_LOCK, row_driver);
}

void experiment_queued(void)
{
    try_all(C_QUEUED, row_queued);
}
