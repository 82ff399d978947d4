/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data-parallel training that loses a rank, goes on, and takes a new one in: a rank kills itself in the middle, and the others
 * make a communicator of those that live, share out the data again, and go on from the weights of its rank 0 (without something
 * that one rank has for all, pk_comm_agree says which operations are complete). They work until another process has joined
 * them. The fit of a line has the same result as without the death. Started by itself, for mpirun ends all ranks when one is
 * killed; the id comes to the process that joins through a pipe:
 *     cc survive.c $(pkg-config --cflags --libs pickle) -lm -pthread -o survive; dir=$(mktemp -d); mkfifo $dir/id
 *     for r in 0 1 2 3; do PK_RANK=$r PK_SIZE=4 PK_ROOT=127.0.0.1:29700 ./survive $dir/id & done; ./survive $dir/id join; wait
 */
#include "example.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define WIDTH 16384
#define SHARDS 12 /* of the data; a rank has those whose number is its own modulo the number of ranks */
#define STEPS 60
#define DEATH 25 /* the step at which the last rank dies, if there are others */
#define RATE 0.02f

struct training {
    pk_comm_t *comm, *larger; /* larger: being made, or NULL */
    const char *id_file;      /* NULL: nobody joins */
    int rank, size, step, end;
    float weights[WIDTH + 1];   /* the last one: the step */
    float gradients[WIDTH + 1]; /* the last one: how many ranks have `larger` */
};

static float target(int i)
{
    return (float)(i % 17) - 8;
}

static void compute_gradients(struct training *t)
{
    const pk_result_t state = t->larger != NULL ? pk_comm_async_error(t->larger) : PK_IN_PROGRESS;

    memset(t->gradients, 0, sizeof t->gradients);
    for (int shard = t->rank; shard < SHARDS; shard += t->size)
        for (int i = 0; i < WIDTH; i++) {
            float x = 0.5f + (float)((i * 7 + shard * 13 + t->step * 3) % 11) / 11;

            t->gradients[i] += (t->weights[i] - target(i)) * x * x;
        }
    must(state == PK_IN_PROGRESS ? PK_OK : state, "pk_comm_grow");
    t->gradients[WIDTH] = state == PK_OK;
}

static double loss(const struct training *t)
{
    double sum = 0;

    for (int i = 0; i < WIDTH; i++)
        sum += pow(t->weights[i] - target(i), 2) / WIDTH;
    return sum;
}

/* All have the weights and the step of its rank 0, also one that has joined, and one that has had a sum that another has not. */
static void change_to(struct training *t, pk_comm_t *comm)
{
    if (t->comm != NULL)
        pk_comm_destroy(t->comm);
    t->comm = comm;
    must(pk_comm_rank(comm, &t->rank), "pk_comm_rank");
    must(pk_comm_size(comm, &t->size), "pk_comm_size");
    must(pk_broadcast(t->weights, t->weights, WIDTH + 1, PK_F32, 0, comm, PK_BLOCKING), "pk_broadcast");
    t->step = (int)t->weights[WIDTH];
    t->end = t->step + 20 > STEPS ? t->step + 20 : STEPS; /* there is work for one that has joined */
    t->larger = NULL;
}

static void update_weights(struct training *t)
{
    for (int i = 0; i < WIDTH; i++)
        t->weights[i] -= RATE * t->gradients[i];
    t->weights[WIDTH] = (float)++t->step;
    if (t->larger != NULL && t->gradients[WIDTH] == (float)t->size)
        change_to(t, t->larger);
}

/* A thread of each rank makes the larger communicator while the ranks work in this one. */
static void begin_to_grow(struct training *t)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_unique_id_t id = { { 0 } };
    pk_result_t result;
    int fd;

    config.nonblocking = 1;
    if (t->rank == 0) {
        must(pk_comm_get_unique_id(t->comm, &id), "pk_comm_get_unique_id");
        fd = open(t->id_file, O_WRONLY); /* the process that joins reads there */
        must(fd >= 0 && write(fd, &id, sizeof id) == (ssize_t)sizeof id && close(fd) == 0 ? PK_OK : PK_ERR_SYSTEM, t->id_file);
    }
    result = pk_comm_grow(t->comm, 1, &id, &t->larger, &config);
    must(result == PK_IN_PROGRESS ? PK_OK : result, "pk_comm_grow");
}

/* All ranks that live come here, each from the operation that failed for it. */
static void go_on(struct training *t)
{
    pk_comm_t *smaller;

    must(pk_comm_shrink(t->comm, PK_SHRINK_REVOKE, NULL, 0, &smaller, NULL), "pk_comm_shrink"); /* some may still wait in it */
    change_to(t, smaller);
    if (t->rank == 0)
        printf("survive: %d ranks go on with step %d\n", t->size, t->step);
    if (t->id_file != NULL)
        begin_to_grow(t);
}

static pk_comm_t *join_later(const char *id_file)
{
    const int fd = open(id_file, O_RDONLY);
    pk_unique_id_t id;
    pk_comm_t *comm;

    must(fd >= 0 && read(fd, &id, sizeof id) == (ssize_t)sizeof id && close(fd) == 0 ? PK_OK : PK_ERR_SYSTEM, id_file);
    must(pk_comm_join(&comm, -1, &id, NULL), "pk_comm_join");
    return comm;
}

int main(int argc, char **argv)
{
    static struct training t;
    const double before = loss(&t);
    bool dies, right;

    t.id_file = argc > 1 ? argv[1] : NULL;
    change_to(&t, argc > 2 ? join_later(t.id_file) : join(&t.rank, &t.size));
    dies = argc < 3 && t.size > 1 && t.rank == t.size - 1;
    while (t.step < t.end || t.larger != NULL) {
        compute_gradients(&t);
        if (dies && t.step == DEATH)
            raise(SIGKILL);
        if (pk_allreduce(t.gradients, t.gradients, WIDTH + 1, PK_F32, PK_SUM, t.comm, PK_BLOCKING) != PK_OK)
            go_on(&t);
        else
            update_weights(&t);
    }
    right = pk_comm_destroy(t.comm) == PK_OK && loss(&t) < before / 1000;
    if (t.rank == 0 || !right)
        printf("survive: %d ranks: %s, loss %.3g to %.3g\n", t.size, right ? "right" : "wrong", before, loss(&t));
    return right ? 0 : 1;
}
