/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ring attention: a sequence too long for one rank is cut, each rank keeps its queries, and keys with values go round the ring. While a
 * rank works on one part, the next is on its way in a stream. Softmax is computed as parts come: a running maximum, sum and output.
 *     cc ring_attention.c $(pkg-config --cflags --libs pickle) -lm -pthread -o ring_attention && mpirun --oversubscribe -n 4 ./ring_attention
 */
#include "example.h"

#include <math.h>
#include <string.h>

#define ROWS 96 /* tokens of one rank */
#define WIDTH 32

struct part {
    float keys[ROWS][WIDTH], values[ROWS][WIDTH];
};

static float queries[ROWS][WIDTH], output[ROWS][WIDTH], highest[ROWS], total[ROWS];
static struct part parts[2];

static float number(int seed, int row, int column)
{
    return sinf((float)(seed * 7919 + row * 131 + column * 17));
}

static void fill(struct part *part, int rank)
{
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < WIDTH; c++) {
            part->keys[r][c] = number(1, rank * ROWS + r, c);
            part->values[r][c] = number(2, rank * ROWS + r, c);
        }
}

static void attend(const struct part *part)
{
    for (int q = 0; q < ROWS; q++)
        for (int k = 0; k < ROWS; k++) {
            float score = 0, before = highest[q], weight, scale;

            for (int c = 0; c < WIDTH; c++)
                score += queries[q][c] * part->keys[k][c];
            highest[q] = fmaxf(before, score);
            scale = expf(before - highest[q]);
            weight = expf(score - highest[q]);
            total[q] = total[q] * scale + weight;
            for (int c = 0; c < WIDTH; c++)
                output[q][c] = output[q][c] * scale + weight * part->values[k][c];
        }
}

static void begin(int rank)
{
    for (int q = 0; q < ROWS; q++) {
        highest[q] = -INFINITY;
        for (int c = 0; c < WIDTH; c++)
            queries[q][c] = number(3, rank * ROWS + q, c);
    }
    memset(total, 0, sizeof total);
    memset(output, 0, sizeof output);
}

int main(void)
{
    int rank, size;
    pk_comm_t *comm = join(&rank, &size);
    static float ringed[ROWS][WIDTH];
    pk_stream_t stream;

    must(pk_stream_create(&stream), "pk_stream_create");
    begin(rank);
    fill(&parts[0], rank);
    for (int hop = 0; hop < size; hop++) {
        struct part *here = &parts[hop % 2], *coming = &parts[(hop + 1) % 2];

        must(pk_group_start(), "pk_group_start");
        must(pk_send(here, sizeof *here / sizeof(float), PK_F32, (rank + 1) % size, comm, stream), "pk_send");
        must(pk_recv(coming, sizeof *coming / sizeof(float), PK_F32, (rank + size - 1) % size, comm, stream), "pk_recv");
        must(pk_group_end(), "pk_group_end");
        attend(here); /* both read it */
        must(pk_stream_synchronize(stream), "pk_stream_synchronize");
    }
    memcpy(ringed, output, sizeof ringed); /* output / total is the attention */

    begin(rank); /* the same on one rank, in the same order of parts */
    for (int hop = 0; hop < size; hop++) {
        fill(&parts[0], (rank + size - hop) % size);
        attend(&parts[0]);
    }
    if (memcmp(ringed, output, sizeof ringed) != 0) {
        fprintf(stderr, "ring_attention: rank %d: the ring's result differs\n", rank);
        return 1;
    }
    must(pk_stream_destroy(stream), "pk_stream_destroy");
    must(pk_comm_destroy(comm), "pk_comm_destroy");
    printf("ring_attention: rank %d of %d: right, %d tokens attended\n", rank, size, size * ROWS);
    return 0;
}
