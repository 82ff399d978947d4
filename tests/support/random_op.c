/* SPDX-License-Identifier: Apache-2.0 */
#include "random_op.h"

#include <string.h>

static const char *const names[] = { "message",   "exchange", "broadcast",  "sum of f32", "sum of u8",
                                     "allgather", "alltoall", "allgatherv", "alltoallv" };

const char *random_op_name(const struct random_op *op)
{
    return names[op->kind];
}

static unsigned char given_byte(int rank, uint32_t key, size_t at)
{
    return (unsigned char)(at * 7 + (at >> 8) * 3 + (size_t)rank * 37 + key * 11);
}

/* Small whole numbers, exact in any order of additions. */
static float given_float(int rank, uint32_t key, size_t i)
{
    return (float)((i * 7 + (i >> 6) + (size_t)rank * 13 + key) % 64);
}

void random_op_give(const struct random_op *op, int rank, size_t at, char *to, size_t bytes)
{
    if (op->kind != SUM_F32) {
        for (size_t i = 0; i < bytes; i++)
            to[i] = (char)given_byte(rank, op->key, at + i);
        return;
    }
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        float value = given_float(rank, op->key, i);

        memcpy(to + i * sizeof value, &value, sizeof value);
    }
}

static void add_up(const struct random_op *op, int size, char *to)
{
    for (size_t i = 0; op->kind == SUM_U8 && i < op->block; i++) {
        unsigned sum = 0;

        for (int r = 0; r < size; r++)
            sum += given_byte(r, op->key, i);
        to[i] = (char)sum;
    }
    for (size_t i = 0; op->kind == SUM_F32 && i < op->block / sizeof(float); i++) {
        float sum = 0;

        for (int r = 0; r < size; r++)
            sum += given_float(r, op->key, i);
        memcpy(to + i * sizeof sum, &sum, sizeof sum);
    }
}

bool random_op_has_blocks(const struct random_op *op)
{
    return op->kind >= ALLGATHER;
}

size_t random_op_bytes(const struct random_op *op, int size)
{
    return random_op_has_blocks(op) ? op->block * (size_t)size : op->block;
}

/* In the v-forms each block lies at the place of a whole one, and is lengths[...] long: as long both ways between two ranks. */
static size_t length_of(const struct random_op *op, int size, int from, int to)
{
    return op->kind == ALLGATHERV ? op->lengths[from] : op->lengths[(from + to) % size];
}

void random_op_results(const struct random_op *op, const struct gpu_rank *self, char *to)
{
    int rank = self->rank, size = self->size;

    switch (op->kind) {
    case MESSAGE:
        if (rank == op->to)
            random_op_give(op, op->from, 0, to, op->block);
        return;
    case EXCHANGE:
        random_op_give(op, (rank + size - 1) % size, 0, to, op->block);
        return;
    case BROADCAST:
        random_op_give(op, op->from, 0, to, op->block);
        return;
    case SUM_F32:
    case SUM_U8:
        add_up(op, size, to);
        return;
    default:
        break;
    }
    for (int r = 0; r < size; r++) {
        size_t place = (size_t)r * op->block, bytes = op->kind < ALLGATHERV ? op->block : length_of(op, size, r, rank);
        size_t at = op->kind == ALLTOALL || op->kind == ALLTOALLV ? (size_t)rank * op->block : 0;

        random_op_give(op, r, at, to + place, bytes);
    }
}

static pk_result_t messages(const struct random_op *op, const struct gpu_rank *self, const char *in, char *out,
                            pk_stream_t stream)
{
    int rank = self->rank, size = self->size;
    pk_comm_t *comm = self->comm;

    if (op->kind == MESSAGE && rank == op->from)
        return pk_send(in, op->block, PK_UINT8, op->to, comm, stream);
    if (op->kind == MESSAGE)
        return rank == op->to ? pk_recv(out, op->block, PK_UINT8, op->from, comm, stream) : PK_OK;
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(in, op->block, PK_UINT8, (rank + 1) % size, comm, stream), "pk_send");
    must_be_ok(pk_recv(out, op->block, PK_UINT8, (rank + size - 1) % size, comm, stream), "pk_recv");
    return pk_group_end();
}

static pk_result_t v_form(const struct random_op *op, const struct gpu_rank *self, const char *in, char *out, pk_stream_t stream)
{
    size_t sent[RANKS_MAX], got[RANKS_MAX], places[RANKS_MAX];
    int rank = self->rank, size = self->size;

    for (int r = 0; r < size; r++) {
        places[r] = (size_t)r * op->block;
        sent[r] = length_of(op, size, rank, r);
        got[r] = length_of(op, size, r, rank);
    }
    if (op->kind == ALLGATHERV)
        return pk_allgatherv(in, sent[0], out, got, places, PK_UINT8, self->comm, stream);
    return pk_alltoallv(in, sent, places, out, got, places, PK_UINT8, self->comm, stream);
}

pk_result_t random_op_call(const struct random_op *op, const struct gpu_rank *self, pk_stream_t stream)
{
    const char *in = op->in->at + op->in_at;
    char *out = op->out->at + op->out_at;
    pk_comm_t *comm = self->comm;

    switch (op->kind) {
    case BROADCAST:
        return pk_broadcast(in, out, op->block, PK_UINT8, op->from, comm, stream);
    case SUM_F32:
        return pk_allreduce(in, out, op->block / sizeof(float), PK_F32, PK_SUM, comm, stream);
    case SUM_U8:
        return pk_allreduce(in, out, op->block, PK_UINT8, PK_SUM, comm, stream);
    case ALLGATHER:
        return pk_allgather(in, out, op->block, PK_UINT8, comm, stream);
    case ALLTOALL:
        return pk_alltoall(in, out, op->block, PK_UINT8, comm, stream);
    case MESSAGE:
    case EXCHANGE:
        return messages(op, self, in, out, stream);
    default:
        return v_form(op, self, in, out, stream);
    }
}
