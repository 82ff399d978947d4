/* SPDX-License-Identifier: Apache-2.0 */
/* The work through libpickle. */
#include "compare.h"

#include <pickle/pickle.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pk_comm_t *comm;

static void must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    fprintf(stderr, "%s: %s: %s\n", what, pk_strerror(result), info.text);
    exit(1);
}

static void open_world(struct compare_rank *self, int argc, char **argv)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_path_t path = { .struct_size = sizeof path };
    int version = pk_version();

    (void)argc;
    (void)argv;
    config.device = PK_DEVICE_HOST;
    must(pk_comm_init(&comm, &config), "pk_comm_init");
    must(pk_comm_rank(comm, &self->rank), "pk_comm_rank");
    must(pk_comm_size(comm, &self->size), "pk_comm_size");
    must(pk_comm_path(comm, (self->rank + 1) % self->size, PK_MEM_HOST, PK_MEM_HOST, &path), "pk_comm_path");
    snprintf(self->settings, sizeof self->settings, "libpickle %d.%d.%d, %s (%s)", version / 10000, version / 100 % 100,
             version % 100, path.transport, path.device);
}

/* Ordinary memory, or the library's own. */
static void *alloc(struct compare_rank *self, size_t bytes)
{
    void *memory = NULL;

    if (strcmp(self->variant, "alloc") == 0)
        must(pk_mem_alloc(comm, bytes, &memory), "pk_mem_alloc");
    else if (posix_memalign(&memory, 4096, bytes) != 0)
        exit(1);
    return memory;
}

static void close_world(struct compare_rank *self)
{
    (void)self;
    must(pk_comm_destroy(comm), "pk_comm_destroy");
}

static void pingpong(struct compare_rank *self, size_t count)
{
    int peer = 1 - self->rank;

    if (self->rank == 0)
        must(pk_send(self->send, count, PK_F32, peer, comm, PK_BLOCKING), "pk_send");
    must(pk_recv(self->recv, count, PK_F32, peer, comm, PK_BLOCKING), "pk_recv");
    if (self->rank == 1)
        must(pk_send(self->send, count, PK_F32, peer, comm, PK_BLOCKING), "pk_send");
}

static void one_way(struct compare_rank *self, size_t count)
{
    if (self->rank == 0)
        must(pk_send(self->send, count, PK_F32, 1, comm, PK_BLOCKING), "pk_send");
    else
        must(pk_recv(self->recv, count, PK_F32, 0, comm, PK_BLOCKING), "pk_recv");
}

static void run(struct compare_rank *self, const struct compare_work *work)
{
    size_t count = work->count, block = work->block;
    void *send = self->send, *recv = self->recv;

    switch (work->op) {
    case COMPARE_PINGPONG:
        pingpong(self, count);
        break;
    case COMPARE_ALLREDUCE:
        must(pk_allreduce(send, recv, count, PK_F32, PK_SUM, comm, PK_BLOCKING), "pk_allreduce");
        break;
    case COMPARE_ALLGATHER:
        must(pk_allgather(send, recv, block, PK_F32, comm, PK_BLOCKING), "pk_allgather");
        break;
    case COMPARE_ALLTOALL:
        must(pk_alltoall(send, recv, block, PK_F32, comm, PK_BLOCKING), "pk_alltoall");
        break;
    case COMPARE_REDUCE_SCATTER:
        must(pk_reduce_scatter(send, recv, block, PK_F32, PK_SUM, comm, PK_BLOCKING), "pk_reduce_scatter");
        break;
    case COMPARE_BROADCAST:
        must(pk_broadcast(recv, recv, count, PK_F32, work->root, comm, PK_BLOCKING), "pk_broadcast");
        break;
    case COMPARE_REDUCE:
        must(pk_reduce(send, recv, count, PK_F32, PK_SUM, work->root, comm, PK_BLOCKING), "pk_reduce");
        break;
    case COMPARE_BARRIER:
        must(pk_barrier(comm, PK_BLOCKING), "pk_barrier");
        break;
    case COMPARE_WAKE:
        one_way(self, count);
        break;
    case COMPARE_OPS:
        break;
    }
}

static void explain(struct compare_rank *self, const struct compare_work *work, char note[COMPARE_NOTE_BYTES])
{
    static const pk_op_kind_t kinds[COMPARE_OPS] = { PK_OP_SEND,     PK_OP_ALLREDUCE,      PK_OP_ALLGATHER,
                                                     PK_OP_ALLTOALL, PK_OP_REDUCE_SCATTER, PK_OP_BROADCAST,
                                                     PK_OP_REDUCE,   PK_OP_BARRIER,        PK_OP_SEND };
    pk_explanation_t how = { .struct_size = sizeof how };
    int parts = work->op == COMPARE_ALLGATHER || work->op == COMPARE_ALLTOALL || work->op == COMPARE_REDUCE_SCATTER;
    size_t count = work->op == COMPARE_BARRIER ? 0 : parts ? work->block : work->count;

    if (pk_explain(comm, kinds[work->op], count, PK_F32, PK_MEM_HOST, work->op == COMPARE_BROADCAST,
                   (self->rank + 1) % self->size, &how) == PK_OK)
        snprintf(note, COMPARE_NOTE_BYTES, "%.31s over %.24s", how.algorithm, how.transports);
}

int main(int argc, char **argv)
{
    static const struct compare_library library = {
        .operations = (1u << COMPARE_OPS) - 1,
        .open = open_world,
        .close = close_world,
        .alloc = alloc,
        .run = run,
        .explain = explain,
    };

    return compare_main(argc, argv, &library);
}
