/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts: each rank is one expert and has tokens that a gate sends to experts, some to many and some to none. Ranks tell one
 * another how many tokens will come (alltoall), send them (alltoallv), the experts work, and the results go back the same way.
 *     cc experts.c $(pkg-config --cflags --libs pickle) -lm -pthread -o experts && mpirun --oversubscribe -n 4 ./experts
 */
#include "example.h"

#include <string.h>

#define TOKENS 1000
#define WIDTH 64

static float tokens[TOKENS][WIDTH], sorted[TOKENS][WIDTH], results[TOKENS][WIDTH];
static int place[TOKENS]; /* of a token in `sorted` */

/* Lower experts are more popular. */
static int gate(int rank, int token, int experts)
{
    unsigned hash = (unsigned)(rank * TOKENS + token) * 2654435761u >> 16;

    return (int)(hash % 97 * (hash % 101) * (unsigned)experts / (97 * 101));
}

static void packed(const size_t *counts, size_t *offsets, int n)
{
    offsets[0] = 0;
    for (int i = 1; i < n; i++)
        offsets[i] = offsets[i - 1] + counts[i - 1];
}

int main(void)
{
    int rank, size;
    pk_comm_t *comm = join(&rank, &size);
    size_t *numbers = calloc(5 * (size_t)size, sizeof *numbers); /* in elements: to whom, from whom, and where */
    size_t *to = numbers, *from = to + size, *to_offset = from + size, *from_offset = to_offset + size,
           *next = from_offset + size;
    size_t coming;
    float *work;

    if (numbers == NULL)
        return 1;
    for (int t = 0; t < TOKENS; t++)
        to[gate(rank, t, size)] += WIDTH;
    packed(to, to_offset, size);
    memcpy(next, to_offset, (size_t)size * sizeof *next);
    for (int t = 0; t < TOKENS; t++) {
        int expert = gate(rank, t, size);

        for (int i = 0; i < WIDTH; i++)
            tokens[t][i] = (float)(rank + t + i);
        place[t] = (int)(next[expert] / WIDTH);
        memcpy(sorted[place[t]], tokens[t], sizeof tokens[t]);
        next[expert] += WIDTH;
    }
    must(pk_alltoall(to, from, 1, PK_UINT64, comm, PK_BLOCKING), "pk_alltoall");
    packed(from, from_offset, size);
    coming = from_offset[size - 1] + from[size - 1];
    work = malloc((coming + 1) * sizeof *work);
    if (work == NULL)
        return 1;

    must(pk_alltoallv(sorted, to, to_offset, work, from, from_offset, PK_F32, comm, PK_BLOCKING), "pk_alltoallv there");
    for (size_t i = 0; i < coming; i++)
        work[i] *= (float)(rank + 1); /* the expert */
    must(pk_alltoallv(work, from, from_offset, results, to, to_offset, PK_F32, comm, PK_BLOCKING), "pk_alltoallv back");

    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < WIDTH; i++)
            if (results[place[t]][i] != tokens[t][i] * (float)(gate(rank, t, size) + 1)) {
                fprintf(stderr, "experts: rank %d: token %d is wrong\n", rank, t);
                return 1;
            }
    must(pk_comm_destroy(comm), "pk_comm_destroy");
    printf("experts: rank %d of %d: right, %zu tokens came to this expert\n", rank, size, coming / WIDTH);
    free(work);
    free(numbers);
    return 0;
}
