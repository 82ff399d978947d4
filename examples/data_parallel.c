/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data-parallel training step, as frameworks do it: each rank works on data of its own, gradients come in buckets, last layer first,
 * and as soon as a bucket is there its average over all ranks is begun in a stream while the next bucket is computed. The model is
 * LAYERS independent fits of y = w x, element by element, so that the right answer is known.
 *     cc data_parallel.c $(pkg-config --cflags --libs pickle) -lm -pthread -o data_parallel && mpirun --oversubscribe -n 4 ./data_parallel
 */
#include "example.h"

#include <math.h>

#define LAYERS 8
#define WIDTH 16384
#define STEPS 40
#define RATE 0.5f

static float weights[LAYERS][WIDTH], gradients[LAYERS][WIDTH], inputs[LAYERS][WIDTH];

static float target(int layer, int i)
{
    return (float)((layer * 31 + i) % 17) - 8;
}

/* Inputs differ from rank to rank and from step to step; all ranks' average is what makes the step. */
static void backward(int layer, int rank, int step)
{
    for (int i = 0; i < WIDTH; i++) {
        float x = inputs[layer][i] = 0.5f + (float)((i * 7 + rank * 13 + step * 3) % 11) / 11;

        gradients[layer][i] = (weights[layer][i] * x - target(layer, i) * x) * x;
    }
}

static double loss(void)
{
    double sum = 0;

    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < WIDTH; i++)
            sum += pow(weights[layer][i] - target(layer, i), 2);
    return sum / (LAYERS * WIDTH);
}

int main(void)
{
    int rank, size;
    pk_comm_t *comm = join(&rank, &size);
    pk_stream_t stream;
    double before = loss(), after, least, most;

    must(pk_stream_create(&stream), "pk_stream_create");
    for (int step = 0; step < STEPS; step++) {
        for (int layer = LAYERS - 1; layer >= 0; layer--) {
            backward(layer, rank, step);
            /* Returns at once; the library moves this bucket while the loop computes the next. */
            must(pk_allreduce(gradients[layer], gradients[layer], WIDTH, PK_F32, PK_AVG, comm, stream), "pk_allreduce");
        }
        must(pk_stream_synchronize(stream), "pk_stream_synchronize");
        for (int layer = 0; layer < LAYERS; layer++)
            for (int i = 0; i < WIDTH; i++)
                weights[layer][i] -= RATE * gradients[layer][i];
    }
    after = loss();
    /* Every rank got the same bits, so all models are the same. */
    must(pk_allreduce(&after, &least, 1, PK_F64, PK_MIN, comm, PK_BLOCKING), "pk_allreduce");
    must(pk_allreduce(&after, &most, 1, PK_F64, PK_MAX, comm, PK_BLOCKING), "pk_allreduce");
    must(pk_stream_destroy(stream), "pk_stream_destroy");
    must(pk_comm_destroy(comm), "pk_comm_destroy");
    if (!(after < before / 1000) || least != most) {
        fprintf(stderr, "data_parallel: loss %g to %g, over the ranks %g to %g\n", before, after, least, most);
        return 1;
    }
    if (rank == 0)
        printf("data_parallel: %d ranks: right, loss %.3g to %.3g, the same bits on all\n", size, before, after);
    return 0;
}
