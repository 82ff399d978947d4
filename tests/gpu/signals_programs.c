/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's random programs (tests/model), on GPUs: messages in groups and alone on three communicators, two collectives on communicators of
 * their own, up to three streams, events between them, waits of the rank, the program's own copies to another GPU; each rank in an order of its
 * own. Whatever ends in the ideal ends, with the right bytes.
 * usage: gpu.signals_programs [PROGRAMS [SEED]]     so many for 2, 3 and 4 ranks each
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../model/program.h"
#include "gpu_rank.h"

#define USUAL_PROGRAMS 40
#define LIMIT_MS 30000
#define MOST 300000
#define BLOCK 40000 /* of a collective, to each rank */
#define GUARD 0xee

static const size_t lengths[] = { 8, 1000, 4096, 16384, 65536, MOST };

#define LENGTHS (sizeof lengths / sizeof lengths[0])

struct bed {
    struct gpu_rank self;
    pk_comm_t *comms[COMMS_MAX];
    gpu_stream_t streams[STREAMS_MAX];
    gpu_event_t events[CALLS_MAX];
    char *from[TRANSFERS_MAX], *to[TRANSFERS_MAX]; /* MOST bytes each */
    char *block_from, *block_to[COMMS_MAX];        /* of the collectives */
    char *own[2];                                  /* of the program's copies: here, and on another GPU */
    uint64_t key;                                  /* of the program that runs */
    struct program program;
};

static size_t length_of(const struct bed *bed, int transfer)
{
    return lengths[(bed->key + (uint64_t)transfer * 7) % LENGTHS];
}

static uint64_t key_of(const struct bed *bed, int transfer)
{
    return bed->key * TRANSFERS_MAX + (uint64_t)transfer;
}

/* ---- The calls ---- */

static void call_message(struct bed *bed, const struct program_part *part)
{
    const struct transfer *transfer = &bed->program.transfer[part->transfer];
    pk_comm_t *comm = bed->comms[transfer->comm];
    pk_stream_t stream = PK_CUDA_STREAM(bed->streams[part->stream]);
    size_t bytes = length_of(bed, part->transfer);

    if (part->sends)
        must_be_ok(pk_send(bed->from[part->transfer], bytes, PK_UINT8, transfer->rank[0], comm, stream), "pk_send");
    else
        must_be_ok(pk_recv(bed->to[part->transfer], bytes, PK_UINT8, transfer->rank[1], comm, stream), "pk_recv");
}

static int comm_of(const struct bed *bed, const struct call *call)
{
    return bed->program.transfer[call->parts[0].transfer].comm;
}

static void call_collective(struct bed *bed, const struct call *call)
{
    int comm = comm_of(bed, call);
    pk_stream_t stream = PK_CUDA_STREAM(bed->streams[call->parts[0].stream]);

    if (comm == COMMS_PAIRS)
        must_be_ok(pk_alltoall(bed->block_from, bed->block_to[comm], BLOCK, PK_UINT8, bed->comms[comm], stream), "pk_alltoall");
    else
        must_be_ok(pk_allreduce(bed->block_from, bed->block_to[comm], BLOCK, PK_UINT8, PK_SUM, bed->comms[comm], stream),
                   "pk_allreduce");
}

static void call_group(struct bed *bed, const struct call *call)
{
    if (call->collective) {
        call_collective(bed, call);
        return;
    }
    if (call->count > 1)
        must_be_ok(pk_group_start(), "pk_group_start");
    for (int i = 0; i < call->count; i++)
        call_message(bed, &call->parts[i]);
    if (call->count > 1)
        must_be_ok(pk_group_end(), "pk_group_end");
}

static bool stands_still(struct bed *bed, int stream)
{
    if (stream_idle_within(bed->streams[stream], LIMIT_MS, NULL))
        return false;
    report(false, "rank %d: stream %d stands still: %s", bed->self.rank, stream,
           pk_strerror(pk_comm_async_error(bed->self.comm)));
    for (int i = 0; i < COMMS_MAX; i++)
        gpu_show_pending(bed->comms[i]);
    return true;
}

/* False: its stream stands still. */
static bool run_call(struct bed *bed, const struct call *call, gpu_event_t event)
{
    switch (call->kind) {
    case CALL_GROUP:
        call_group(bed, call);
        break;
    case CALL_SYNC:
        return !stands_still(bed, call->stream);
    case CALL_EVENT:
        gpu_event_record(event, bed->streams[call->from]);
        gpu_stream_wait(bed->streams[call->stream], event);
        break;
    case CALL_COPY:
        gpu_copy_async(bed->own[1], bed->own[0], MOST, bed->streams[call->stream]);
        break;
    }
    return true;
}

/* ---- Data ---- */

static void prepare(struct bed *bed)
{
    for (int t = 0; t < bed->program.transfers; t++) {
        if (bed->program.transfer[t].rank[1] == bed->self.rank)
            pattern_to_gpu(bed->from[t], length_of(bed, t), key_of(bed, t));
        else
            gpu_fill(bed->to[t], GUARD, MOST);
    }
    gpu_fill(bed->block_from, (unsigned char)(bed->key * 8 + (uint64_t)bed->self.rank), (size_t)BLOCK * MODEL_RANKS);
    for (int i = COMMS_PAIRS; i < COMMS_MAX; i++)
        gpu_fill(bed->block_to[i], GUARD, (size_t)BLOCK * MODEL_RANKS);
}

static bool is_filled(const char *gpu, unsigned char value, size_t bytes)
{
    char *host = malloc(bytes);
    bool filled;

    if (host == NULL)
        exit(2);
    gpu_copy(host, gpu, bytes);
    filled = (unsigned char)host[0] == value && memcmp(host, host + 1, bytes - 1) == 0;
    free(host);
    return filled;
}

static bool block_is_right(const struct bed *bed, int comm)
{
    const int size = bed->self.size;
    unsigned char sum = 0;
    bool right = true;

    for (int r = 0; r < size; r++) {
        unsigned char value = (unsigned char)(bed->key * 8 + (uint64_t)r);

        sum = (unsigned char)(sum + value);
        if (comm == COMMS_PAIRS)
            right &= is_filled(bed->block_to[comm] + (size_t)r * BLOCK, value, BLOCK);
    }
    return right && (comm == COMMS_PAIRS || is_filled(bed->block_to[comm], sum, BLOCK));
}

static bool message_is_right(const struct bed *bed, int t)
{
    size_t bytes = length_of(bed, t);

    return pattern_wrong_on_gpu(bed->to[t], bytes, key_of(bed, t)) == bytes &&
           (bytes == MOST || is_filled(bed->to[t] + bytes, GUARD, MOST - bytes));
}

static bool all_is_right(const struct bed *bed)
{
    const struct program *p = &bed->program;

    for (int t = 0; t < p->transfers; t++)
        if (p->transfer[t].rank[0] == bed->self.rank && p->transfer[t].comm < COMMS_PAIRS && !message_is_right(bed, t))
            return report(false, "rank %d: transfer %d is wrong", bed->self.rank, t);
    for (int i = 0; i < p->calls[bed->self.rank]; i++) {
        const struct call *call = &p->call[bed->self.rank][i];

        if (call->kind == CALL_GROUP && call->collective && !block_is_right(bed, comm_of(bed, call)))
            return report(false, "rank %d: the collective of communicator %d is wrong", bed->self.rank, comm_of(bed, call));
    }
    return true;
}

/* ---- Programs ---- */

/* Each rank by itself; some calls late. */
static bool run_program(struct bed *bed)
{
    uint64_t random = bed->key * MODEL_RANKS + (uint64_t)bed->self.rank;
    const int calls = bed->program.calls[bed->self.rank];

    for (int i = 0; i < calls; i++) {
        if (model_below(&random, 6) == 0)
            usleep(model_below(&random, 3000));
        if (!run_call(bed, &bed->program.call[bed->self.rank][i], bed->events[i]))
            return false;
    }
    for (int i = 0; i < STREAMS_MAX; i++)
        if (stands_still(bed, i))
            return false;
    return all_is_right(bed);
}

/* Parts of a group that lie in one stream, but on several communicators, take their places in it one after another. */
static bool in_one_place(const struct program *p, const struct call *call)
{
    for (int i = 0; i < call->count; i++)
        for (int j = 0; j < i; j++)
            if (call->parts[i].stream == call->parts[j].stream &&
                p->transfer[call->parts[i].transfer].comm != p->transfer[call->parts[j].transfer].comm)
                return false;
    return true;
}

/* The library's collectives end on no rank before all have called them. */
static bool may_run(const struct program *p, int ranks)
{
    bool may = p->ranks == ranks && program_ends(p);

    for (int rank = 0; may && rank < ranks; rank++)
        for (int i = 0; i < p->calls[rank]; i++)
            may &= in_one_place(p, &p->call[rank][i]) && (!p->call[rank][i].collective || p->call[rank][i].joins_all);
    return may;
}

static void open_bed(struct bed *bed)
{
    gpu_rank_open(&bed->self, PK_SM_DEFAULT, 2 * LIMIT_MS);
    bed->comms[0] = bed->self.comm;
    for (int i = 1; i < COMMS_MAX; i++)
        bed->comms[i] = gpu_rank_another(&bed->self, 2 * LIMIT_MS);
    for (int i = 0; i < STREAMS_MAX; i++)
        bed->streams[i] = gpu_stream_new();
    for (int i = 0; i < CALLS_MAX; i++)
        bed->events[i] = gpu_event_new();
    for (int i = 0; i < TRANSFERS_MAX; i++) {
        bed->from[i] = gpu_alloc(MOST);
        bed->to[i] = gpu_alloc(MOST);
    }
    bed->block_from = gpu_alloc((size_t)BLOCK * MODEL_RANKS);
    for (int i = COMMS_PAIRS; i < COMMS_MAX; i++)
        bed->block_to[i] = gpu_alloc((size_t)BLOCK * MODEL_RANKS);
    bed->own[0] = gpu_alloc(MOST);
    gpu_use((bed->self.rank + 1) % gpu_count());
    bed->own[1] = gpu_alloc(MOST);
    gpu_use(bed->self.rank % gpu_count());
}

static int rank_main(void)
{
    static struct bed bed;
    struct ranks_shared *shared = ranks_shared();
    uint64_t random = (uint64_t)atomic_load(&shared->words[0]) >> 32;
    const uint32_t programs = (uint32_t)atomic_load(&shared->words[0]);
    uint32_t done = 0;

    open_bed(&bed);
    while (done < programs && atomic_load(&shared->words[1]) == 0) {
        uint64_t seed = random;

        program_make(&bed.program, &random);
        if (!may_run(&bed.program, bed.self.size))
            continue;
        bed.key = done++;
        prepare(&bed);
        ranks_meet();
        if (!run_program(&bed) && atomic_exchange(&shared->words[1], 1) == 0) {
            printf("program %u of seed %llu, as rank %d sees it first:\n", done, (unsigned long long)seed, bed.self.rank);
            program_print(&bed.program);
        }
        ranks_meet();
    }
    report(atomic_load(&shared->words[1]) == 0, "rank %d of %d: %u programs", bed.self.rank, bed.self.size, done);
    if (atomic_load(&shared->words[1]) == 0) /* else a stream may wait for ever */
        gpu_rank_close(&bed.self);
    fflush(stdout);
    _exit(report_end());
}

int main(int argc, char **argv)
{
    long programs = argc > 1 ? atol(argv[1]) : USUAL_PROGRAMS, seed = argc > 2 ? atol(argv[2]) : 1;

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (int size = 2; size <= MODEL_RANKS; size++)
        ranks_drive(&(struct ranks_turn){ .role = "rank",
                                          .size = size,
                                          .timeout_ms = 100000 + (int)programs * 100,
                                          .word = (int64_t)((uint64_t)(seed + size) << 32 | (uint32_t)programs) },
                    "%ld programs of %d ranks", programs, size);
    return report_end();
}
