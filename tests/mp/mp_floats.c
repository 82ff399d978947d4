/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that set flush-to-zero or another rounding mode, on one rank alone or after the library has made its threads: every rank gets the same
 * bits as without, in calls that block and in host streams, on one host and between two, and finds what it has set as it was.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "float_modes.h"
#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 3
#define WITH_MODE 1 /* the rank */
#define COUNT_MAX 40000
#define STREAMS 2 /* blocking, and a host stream */

static const pk_dtype_t types[] = { PK_F16, PK_BF16, PK_F32, PK_F64, PK_F8E4M3, PK_F8E5M2 };
static const pk_op_t ops[] = { PK_SUM, PK_PROD, PK_MAX, PK_AVG };
static const size_t counts[] = { 1, 100, 3000, COUNT_MAX };
static unsigned char in[COUNT_MAX * 8], out[COUNT_MAX * 8], wanted[COUNT_MAX * 8];

static uint64_t random_bits(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Numbers of any size, many of them subnormal, and no NaN or infinity: neither of the two highest bits of the exponent is set. */
static void fill(pk_dtype_t dtype, size_t count)
{
    const size_t size = pk_dtype_size(dtype);
    uint64_t state = 88172645463325252u + (uint64_t)ranks_rank() * 977;

    for (size_t i = 0; i < count; i++) {
        uint64_t bits = random_bits(&state), top = (uint64_t)1 << (8 * size - 1);

        bits &= ~(top >> 1 | (i % 3 != 0 ? top >> 2 : 0));
        if (i % 2 == 0)
            bits &= top | (top >> (dtype == PK_F32 || dtype == PK_BF16 ? 8 : dtype == PK_F64 ? 11 : 3)) >> 1;
        memcpy(in + i * size, &bits, size);
    }
}

/* Nothing after a failure says anything. */
static void must(pk_result_t result, const char *what)
{
    if (result == PK_OK)
        return;
    report(false, "rank %d: %s: result %d", ranks_rank(), what, (int)result);
    exit(1);
}

static void sum_up(pk_comm_t *comm, pk_stream_t stream, pk_dtype_t dtype, pk_op_t op, size_t count, void *to)
{
    must(pk_allreduce(in, to, count, dtype, op, comm, stream), "allreduce");
    if (stream.kind == PK_STREAM_KIND_HOST)
        must(pk_stream_synchronize(stream), "synchronize");
}

static uint64_t hash(const unsigned char *bytes, size_t n)
{
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * 1099511628211u;
    return h;
}

/* All ranks have the same. */
static void compare_ranks(pk_comm_t *comm, const char *mode, pk_dtype_t dtype, pk_op_t op, size_t count)
{
    uint64_t mine = hash(out, count * pk_dtype_size(dtype)), all[SIZE];

    must(pk_allgather(&mine, all, 1, PK_UINT64, comm, PK_BLOCKING), "allgather");
    for (int r = 1; r < SIZE; r++)
        if (all[r] != all[0])
            report(false, "%s: %s op %d of %zu: rank %d has other bits than rank 0", mode, pk_dtype_name(dtype), (int)op, count,
                   r);
}

/* The mode is set around the operation alone: nothing of the test runs in it. */
static void try_mode(pk_comm_t *comm, const pk_stream_t *stream, size_t mode, pk_dtype_t dtype, pk_op_t op, size_t count)
{
    const bool sets = ranks_rank() == WITH_MODE;
    bool kept;

    memset(out, 0, sizeof out);
    if (sets && !float_mode_set(mode))
        mode = 0;
    sum_up(comm, *stream, dtype, op, count, out);
    kept = !sets || float_mode_is(mode);
    (void)float_mode_set(0);
    if (!kept)
        report(false, "%s: %s op %d of %zu: the mode has changed", float_modes[mode], pk_dtype_name(dtype), (int)op, count);
    if (memcmp(out, wanted, count * pk_dtype_size(dtype)) != 0)
        report(false, "%s on rank %d, %s: rank %d: %s op %d of %zu: other bits than without", float_modes[mode], WITH_MODE,
               stream->kind == PK_STREAM_KIND_HOST ? "in a stream" : "blocking", ranks_rank(), pk_dtype_name(dtype), (int)op,
               count);
    compare_ranks(comm, float_modes[mode], dtype, op, count);
}

static void try_all(pk_comm_t *comm, const pk_stream_t streams[STREAMS], pk_dtype_t dtype, pk_op_t op, size_t count)
{
    fill(dtype, count);
    sum_up(comm, streams[0], dtype, op, count, wanted);
    for (size_t mode = 1; mode < float_modes_count; mode++)
        for (int s = 0; s < STREAMS; s++)
            try_mode(comm, &streams[s], mode, dtype, op, count);
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_stream_t streams[STREAMS] = { PK_BLOCKING };
    pk_comm_t *comm = NULL;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    if (!report(pk_comm_init(&comm, &config) == PK_OK && pk_stream_create(&streams[1]) == PK_OK, "rank %d: init", ranks_rank()))
        return report_end();
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                try_all(comm, streams, types[t], ops[o], counts[c]);
    report(pk_stream_destroy(streams[1]) == PK_OK && pk_comm_destroy(comm) == PK_OK, "rank %d: destroy", ranks_rank());
    return report_end();
}

/* Rank 2 is alone on its host. */
static void set_host(int rank, void *arg)
{
    setenv("PK_HOST_ID", *(bool *)arg && rank == SIZE - 1 ? "there" : "here", 1);
}

int main(void)
{
    bool apart = false;
    const struct ranks_hooks hooks = { .before = set_host, .arg = &apart };

    if (ranks_role() != NULL)
        return rank_main();
    ranks_drive(&(struct ranks_turn){ .role = "modes", .size = SIZE, .hooks = &hooks },
                "floating-point modes of one rank, one host");
    apart = true;
    ranks_drive(&(struct ranks_turn){ .role = "modes", .size = SIZE, .hooks = &hooks },
                "floating-point modes of one rank, two hosts");
    return report_end();
}
