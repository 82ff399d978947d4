/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclCommShrink and ncclCommRevoke: one thread that drives all ranks shrinks their communicators in a group; and of three processes one is
 * killed, the other two revoke and go on.
 */
#include <signal.h>

#include "bed.h"

#define RANKS 3
#define LEAST 2 /* GPUs */

enum { LIVING };

static int devices;

/* Ranks 1 and 2 go on without rank 0. */
static void one_thread(void)
{
    pkn_comm_t comms[RANKS], smaller[RANKS] = { NULL };
    int leaves = 0, size = 0, rank = -1;
    pkn_id_t id;

    MUST(ncclGetUniqueId(&id));
    MUST(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        gpu_use(r % devices);
        MUST(ncclCommInitRank(&comms[r], RANKS, id, r));
    }
    MUST(ncclGroupEnd());
    check(ncclCommShrink(comms[1], &leaves, 1, NULL, NULL, 0) == PKN_INVALID_ARGUMENT, "no place for the communicator");
    check(ncclCommShrink(comms[1], &leaves, 1, &smaller[1], NULL, 2) == PKN_INVALID_ARGUMENT, "flags that there are not");
    check(ncclCommRevoke(comms[1], 1) == PKN_INVALID_ARGUMENT, "flags of ncclCommRevoke that there are not");
    MUST(ncclGroupStart());
    for (int r = 1; r < RANKS; r++)
        MUST(ncclCommShrink(comms[r], &leaves, 1, &smaller[r], NULL, 0));
    MUST(ncclGroupEnd());
    for (int r = 1; r < RANKS; r++) {
        MUST(ncclCommCount(smaller[r], &size));
        MUST(ncclCommUserRank(smaller[r], &rank));
        check(size == RANKS - 1 && rank == r - 1, "rank %d is rank %d of %d without rank 0", r, rank, size);
    }
    for (int r = 1; r < RANKS; r++)
        MUST(ncclCommDestroy(smaller[r]));
    for (int r = 0; r < RANKS; r++)
        MUST(ncclCommDestroy(comms[r]));
}

static int rank_main(int rank)
{
    struct bed_shared *shared = bed_shared();
    pkn_comm_t comm, smaller = NULL;
    pkn_result_t state = PKN_SUCCESS;
    gpu_stream_t stream;
    float *in, *out;
    int size = 0;

    gpu_use(rank % devices);
    stream = gpu_stream_new();
    in = bed_ones();
    out = bed_ones();
    bed_await(&shared->has_id, 1);
    MUST(ncclCommInitRank(&comm, RANKS, shared->id, rank));
    check(bed_adds_up(comm, stream, in, out, RANKS), "rank %d: the sum of all", rank);
    atomic_fetch_add(&shared->words[LIVING], 1);
    bed_await(&shared->words[LIVING], RANKS);
    if (rank == 1)
        raise(SIGKILL);
    (void)ncclAllReduce(in, out, BED_ONES, PKN_FLOAT32, PKN_SUM, comm, stream);
    (void)bed_idle(stream);
    state = bed_settled(comm);
    check(state == PKN_REMOTE_ERROR, "rank %d: the state is %d", rank, (int)state);
    MUST(ncclCommRevoke(comm, 0));
    MUST(ncclCommShrink(comm, NULL, 0, &smaller, NULL, PKN_SHRINK_ABORT));
    MUST(ncclCommCount(smaller, &size));
    check(size == RANKS - 1 && bed_adds_up(smaller, stream, in, out, RANKS - 1), "rank %d: the sum of the %d that live", rank,
          size);
    MUST(ncclCommDestroy(smaller));
    MUST(ncclCommAbort(comm));
    return bed_end();
}

static void processes(void)
{
    pid_t pids[RANKS];

    for (int r = 0; r < RANKS; r++)
        pids[r] = bed_start("rank", r);
    MUST(ncclGetUniqueId(&bed_shared()->id));
    atomic_store(&bed_shared()->has_id, 1);
    for (int r = 0; r < RANKS; r++)
        check((bed_wait(pids[r]) == 0) == (r != 1), "rank %d ended as it should", r);
}

int main(void)
{
    int number;

    if (!bed_has_gpus(LEAST))
        return BED_SKIPPED;
    devices = gpu_count();
    if (bed_role(&number) != NULL)
        return rank_main(number);
    one_thread();
    processes();
    return bed_end();
}
