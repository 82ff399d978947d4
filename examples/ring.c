/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every rank's numbers go round a ring of all ranks, and each rank adds up what passes. Everybody sends and receives at the same time:
 * that is what a group is for; one after the other, two large sends would wait for each other forever.
 *     cc ring.c $(pkg-config --cflags --libs pickle) -lm -pthread -o ring && mpirun --oversubscribe -n 4 ./ring
 */
#include "example.h"

#include <string.h>

#define COUNT 100000

static float passing[COUNT], coming[COUNT];
static double sum[COUNT];

int main(void)
{
    int rank, size;
    pk_comm_t *comm = join(&rank, &size);
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;

    for (int i = 0; i < COUNT; i++)
        passing[i] = (float)(rank * 1000 + i % 1000);
    for (int hop = 0; hop < size; hop++) {
        for (int i = 0; i < COUNT; i++)
            sum[i] += passing[i];
        must(pk_group_start(), "pk_group_start");
        must(pk_send(passing, COUNT, PK_F32, next, comm, PK_BLOCKING), "pk_send");
        must(pk_recv(coming, COUNT, PK_F32, previous, comm, PK_BLOCKING), "pk_recv");
        must(pk_group_end(), "pk_group_end");
        memcpy(passing, coming, sizeof passing);
    }
    for (int i = 0; i < COUNT; i++)
        if (sum[i] != 1000.0 * size * (size - 1) / 2 + (double)size * (i % 1000)) {
            fprintf(stderr, "ring: rank %d: element %d is %g\n", rank, i, sum[i]);
            return 1;
        }
    must(pk_comm_destroy(comm), "pk_comm_destroy");
    printf("ring: rank %d of %d: right\n", rank, size);
    return 0;
}
