/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclCommGetUniqueId and ncclCommGrow: one thread that drives all ranks takes some in, in a group; and a process joins two
 * others.
 */
#include "bed.h"

#define OLD 2
#define RANKS 4
#define LEAST 2 /* GPUs */

enum { READY };

static int devices;

static bool is(pkn_comm_t comm, int rank, int size)
{
    int n = -1, me = -1;

    MUST(ncclCommCount(comm, &n));
    MUST(ncclCommUserRank(comm, &me));
    return n == size && me == rank;
}

static void refuse(pkn_comm_t *comms)
{
    pkn_comm_t made = NULL;
    pkn_id_t id;

    check(ncclCommGetUniqueId(comms[0], NULL) == PKN_INVALID_ARGUMENT, "no place for an id");
    check(ncclCommGetUniqueId(comms[1], &id) == PKN_INVALID_ARGUMENT, "an id of rank 1");
    check(ncclCommGrow(comms[0], 3, NULL, -1, &made, NULL) == PKN_INVALID_ARGUMENT, "rank 0 without an id");
    MUST(ncclCommGetUniqueId(comms[0], &id));
    check(ncclCommGrow(comms[0], 3, &id, -1, NULL, NULL) == PKN_INVALID_ARGUMENT, "no place for the communicator");
    check(ncclCommGrow(comms[0], 3, &id, 2, &made, NULL) == PKN_INVALID_ARGUMENT, "an old rank with a number");
    check(ncclCommGrow(comms[0], OLD, &id, -1, &made, NULL) == PKN_INVALID_ARGUMENT, "no more ranks than before");
    check(ncclCommGrow(NULL, 3, NULL, 2, &made, NULL) == PKN_INVALID_ARGUMENT, "a new rank without an id");
    check(ncclCommGrow(NULL, 3, &id, 3, &made, NULL) == PKN_INVALID_ARGUMENT, "a new rank beyond the last");
    check(made == NULL, "no communicator came of it");
}

/* `ids`: old ranks pass the id too. The new ones come in the wrong order. */
static void grow_once(pkn_comm_t *comms, bool ids)
{
    pkn_comm_t grown[RANKS] = { NULL };
    pkn_id_t id;

    MUST(ncclCommGetUniqueId(comms[0], &id));
    MUST(ncclGroupStart());
    for (int r = RANKS - 1; r >= 0; r--) {
        gpu_use(r % devices);
        if (r < OLD)
            MUST(ncclCommGrow(comms[r], RANKS, ids ? &id : NULL, -1, &grown[r], NULL));
        else
            MUST(ncclCommGrow(NULL, RANKS, &id, r, &grown[r], NULL));
    }
    MUST(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++)
        check(is(grown[r], r, RANKS), "rank %d of %d, %s", r, RANKS, ids ? "with ids" : "without ids of old ranks");
    for (int r = 0; r < RANKS; r++)
        MUST(ncclCommDestroy(grown[r]));
}

static void one_thread(void)
{
    pkn_comm_t comms[OLD];
    pkn_id_t id;

    MUST(ncclGetUniqueId(&id));
    MUST(ncclGroupStart());
    for (int r = 0; r < OLD; r++) {
        gpu_use(r % devices);
        MUST(ncclCommInitRank(&comms[r], OLD, id, r));
    }
    MUST(ncclGroupEnd());
    refuse(comms);
    grow_once(comms, true);
    grow_once(comms, false);
    MUST(ncclCommGetUniqueId(comms[0], &id)); /* nobody uses it */
    for (int r = 0; r < OLD; r++)
        MUST(ncclCommDestroy(comms[r]));
}

static int old_main(int rank)
{
    struct bed_shared *shared = bed_shared();
    pkn_comm_t comm, grown = NULL;
    gpu_stream_t stream;
    float *in, *out;
    pkn_id_t id;

    gpu_use(rank % devices);
    stream = gpu_stream_new();
    in = bed_ones();
    out = bed_ones();
    bed_await(&shared->has_id, 1);
    MUST(ncclCommInitRank(&comm, OLD, shared->id, rank));
    check(bed_adds_up(comm, stream, in, out, OLD), "rank %d: the sum of the old", rank);
    if (rank == 0) {
        MUST(ncclCommGetUniqueId(comm, &id));
        shared->id = id;
        atomic_store(&shared->words[READY], 1);
    }
    MUST(ncclCommGrow(comm, OLD + 1, NULL, -1, &grown, NULL));
    check(is(grown, rank, OLD + 1) && bed_adds_up(grown, stream, in, out, OLD + 1), "rank %d: the sum of all", rank);
    MUST(ncclCommDestroy(grown));
    MUST(ncclCommDestroy(comm));
    return bed_end();
}

static int new_main(void)
{
    struct bed_shared *shared = bed_shared();
    pkn_comm_t grown = NULL;
    gpu_stream_t stream;
    float *in, *out;

    gpu_use(0);
    stream = gpu_stream_new();
    in = bed_ones();
    out = bed_ones();
    bed_await(&shared->words[READY], 1);
    MUST(ncclCommGrow(NULL, OLD + 1, &shared->id, OLD, &grown, NULL));
    check(is(grown, OLD, OLD + 1) && bed_adds_up(grown, stream, in, out, OLD + 1), "the new rank: the sum of all");
    MUST(ncclCommDestroy(grown));
    return bed_end();
}

static void processes(void)
{
    pid_t pids[OLD + 1];

    for (int r = 0; r < OLD; r++)
        pids[r] = bed_start("old", r);
    pids[OLD] = bed_start("new", OLD);
    MUST(ncclGetUniqueId(&bed_shared()->id));
    atomic_store(&bed_shared()->has_id, 1);
    for (int r = 0; r <= OLD; r++)
        check(bed_wait(pids[r]) == 0, "rank %d ended well", r);
}

int main(void)
{
    const char *role;
    int number;

    if (!bed_has_gpus(LEAST))
        return BED_SKIPPED;
    devices = gpu_count();
    role = bed_role(&number);
    if (role != NULL)
        return strcmp(role, "old") == 0 ? old_main(number) : new_main();
    one_thread();
    processes();
    return bed_end();
}
