/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data-parallel training that loses a rank and goes on: a rank kills itself in the middle, and the others agree on the last step that all of
 * them have completed, make a communicator of those that live, share out the data anew, and repeat what is lacking. The fit of a line has
 * the same result as without the death. Started by itself, for mpirun ends all ranks when one is killed:
 *     cc survive.c $(pkg-config --cflags --libs pickle) -lm -pthread -o survive
 *     for r in 0 1 2 3; do PK_RANK=$r PK_SIZE=4 PK_ROOT=127.0.0.1:29700 ./survive & done; wait
 */
#include "example.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

#define WIDTH 16384
#define SHARDS 12 /* of the data; a rank has those whose number is its own modulo the number of ranks */
#define STEPS 60
#define DEATH 25  /* the step at which the last rank dies, if there are others */
#define RATE 0.02f

struct training {
    pk_comm_t *comm;
    int rank, size;
    int first_step, step; /* the step that is the first collective of comm; the next one */
    float weights[WIDTH], before[WIDTH]; /* before: as they were one step ago */
    float gradients[WIDTH];
};

static float target(int i)
{
    return (float)(i % 17) - 8;
}

static void compute_gradients(struct training *t)
{
    memset(t->gradients, 0, sizeof t->gradients);
    for (int shard = t->rank; shard < SHARDS; shard += t->size)
        for (int i = 0; i < WIDTH; i++) {
            float x = 0.5f + (float)((i * 7 + shard * 13 + t->step * 3) % 11) / 11;

            t->gradients[i] += (t->weights[i] - target(i)) * x * x;
        }
}

static void update_weights(struct training *t)
{
    memcpy(t->before, t->weights, sizeof t->before);
    for (int i = 0; i < WIDTH; i++)
        t->weights[i] -= RATE * t->gradients[i];
    t->step++;
}

static double loss(const struct training *t)
{
    double sum = 0;

    for (int i = 0; i < WIDTH; i++)
        sum += pow(t->weights[i] - target(i), 2);
    return sum / WIDTH;
}

/* All ranks that live come here, each from the operation that failed for it. */
static void go_on(struct training *t)
{
    pk_comm_t *smaller;
    uint64_t last;
    int dead, was = t->size;

    pk_comm_revoke(t->comm); /* some may still wait in the operation */
    must(pk_comm_agree(t->comm, 0, NULL, NULL, &dead, &last), "pk_comm_agree");
    must(pk_comm_shrink(t->comm, PK_SHRINK_DEFAULT, NULL, 0, &smaller, NULL), "pk_comm_shrink");
    pk_comm_destroy(t->comm);
    t->comm = smaller;
    must(pk_comm_rank(t->comm, &t->rank), "pk_comm_rank");
    must(pk_comm_size(t->comm, &t->size), "pk_comm_size");
    if (t->step > t->first_step + (int)last) { /* this rank has had a sum that another one has not */
        memcpy(t->weights, t->before, sizeof t->weights);
        t->step--;
    }
    t->first_step = t->step;
    if (t->rank == 0)
        printf("survive: %d of %d ranks go on with step %d\n", t->size, was, t->step);
}

int main(void)
{
    static struct training t;
    double before, after;
    bool alone;

    t.comm = join(&t.rank, &t.size);
    alone = t.size == 1;
    before = loss(&t);
    while (t.step < STEPS) {
        compute_gradients(&t);
        if (!alone && t.step == DEATH && t.first_step == 0 && t.rank == t.size - 1)
            raise(SIGKILL);
        if (pk_allreduce(t.gradients, t.gradients, WIDTH, PK_F32, PK_SUM, t.comm, PK_BLOCKING) == PK_OK)
            update_weights(&t);
        else
            go_on(&t);
    }
    after = loss(&t);
    if (pk_comm_destroy(t.comm) != PK_OK || !(after < before / 1000) || (!alone && t.first_step == 0)) {
        fprintf(stderr, "survive: rank %d: loss %g to %g, in step %d last made anew\n", t.rank, before, after, t.first_step);
        return 1;
    }
    if (t.rank == 0)
        printf("survive: %d ranks: right, loss %.3g to %.3g\n", t.size, before, after);
    return 0;
}
