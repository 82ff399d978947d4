/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators begin and end in other ways than one call after another: non-blocking, aborted from another thread, by an id
 * that a third process made, without a destroy, used too long. */
#include <pthread.h>
#include <signal.h>

#include "bed.h"
#include "measure.h"

#define COUNT ((size_t)100)

static pkn_config_t undefined_config(void)
{
    pkn_config_t config;

    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.magic = PKN_CONFIG_MAGIC;
    config.version = PKN_VERSION;
    config.blocking = config.cga_cluster_size = config.min_ctas = config.max_ctas = PKN_UNDEFINED;
    config.split_share = config.traffic_class = config.collnet_enable = config.cta_policy = PKN_UNDEFINED;
    config.shrink_share = config.nvls_ctas = config.channels_per_net_peer = config.nvlink_centric_sched = PKN_UNDEFINED;
    return config;
}

/* ---- a rank that adds one number of each ---- */

struct rank {
    pkn_comm_t comm;
    gpu_stream_t stream;
    float *buffer;
};

static void prepare(struct rank *r, int gpu)
{
    float host[COUNT];

    for (size_t i = 0; i < COUNT; i++)
        host[i] = (float)(gpu + 1);
    gpu_use(gpu);
    r->stream = gpu_stream_new();
    r->buffer = bed_upload(host, COUNT);
}

static bool adds_up(struct rank *r, float expected)
{
    float host[COUNT];
    size_t wrong = 0;

    MUST(ncclAllReduce(r->buffer, r->buffer, COUNT, PKN_FLOAT32, PKN_SUM, r->comm, r->stream));
    if (!bed_idle(r->stream))
        return false;
    bed_download(host, r->buffer, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        wrong += host[i] != expected;
    return wrong == 0;
}

/* ---- non-blocking ---- */

static void *second_rank(void *arg)
{
    const pkn_id_t *id = arg;
    struct rank r = { 0 };

    prepare(&r, 1);
    usleep(200000);
    MUST(ncclCommInitRank(&r.comm, 2, *id, 1));
    check(adds_up(&r, 3), "a blocking rank beside a non-blocking one");
    MUST(ncclCommSplit(r.comm, 0, 0, &(pkn_comm_t){ NULL }, NULL));
    MUST(ncclCommFinalize(r.comm));
    MUST(ncclCommDestroy(r.comm));
    return NULL;
}

static void non_blocking(void)
{
    pkn_config_t config = undefined_config();
    struct rank r = { 0 };
    pkn_comm_t none = (pkn_comm_t)&config;
    pkn_result_t result;
    pthread_t other;
    pkn_id_t id;
    int count;

    config.blocking = 0;
    prepare(&r, 0);
    MUST(ncclGetUniqueId(&id));
    if (pthread_create(&other, NULL, second_rank, &id) != 0)
        exit(2);
    result = ncclCommInitRankConfig(&r.comm, 2, id, 0, &config);
    check(result == PKN_IN_PROGRESS && r.comm != NULL, "a non-blocking init says that it goes on (%d)", (int)result);
    check(ncclCommCount(r.comm, &count) == PKN_INVALID_ARGUMENT, "its size is not known yet");
    check(ncclAllReduce(r.buffer, r.buffer, 1, PKN_FLOAT32, PKN_SUM, r.comm, r.stream) == PKN_INVALID_ARGUMENT,
          "it cannot be used yet");
    check(bed_settled(r.comm) == PKN_SUCCESS && ncclCommCount(r.comm, &count) == PKN_SUCCESS && count == 2, "it is made");
    check(adds_up(&r, 3), "the sum of a non-blocking communicator");
    result = ncclCommSplit(r.comm, PKN_NOCOLOR, 0, &none, NULL);
    check(result == PKN_IN_PROGRESS && none == NULL, "a split without a color goes on (%d)", (int)result);
    check(bed_settled(r.comm) == PKN_SUCCESS, "and ends");
    result = ncclCommFinalize(r.comm);
    check(result == PKN_IN_PROGRESS && bed_settled(r.comm) == PKN_SUCCESS, "finalize goes on and ends (%d)", (int)result);
    check(ncclAllReduce(r.buffer, r.buffer, 1, PKN_FLOAT32, PKN_SUM, r.comm, r.stream) == PKN_INVALID_ARGUMENT,
          "nothing is begun afterwards");
    MUST(ncclCommDestroy(r.comm));
    pthread_join(other, NULL);
}

/* As frameworks of several devices begin: all in one group, and each is polled. */
static void non_blocking_group(void)
{
    pkn_config_t config = undefined_config();
    struct rank ranks[2] = { { 0 } };
    pkn_result_t result;
    pkn_id_t id;

    config.blocking = 0;
    MUST(ncclGetUniqueId(&id));
    MUST(ncclGroupStart());
    for (int g = 0; g < 2; g++) {
        prepare(&ranks[g], g);
        MUST(ncclCommInitRankConfig(&ranks[g].comm, 2, id, g, &config));
    }
    result = ncclGroupEnd();
    check(result == PKN_IN_PROGRESS, "a group of non-blocking inits goes on (%d)", (int)result);
    for (int g = 0; g < 2; g++)
        check(bed_settled(ranks[g].comm) == PKN_SUCCESS, "number %d is made", g);
    MUST(ncclGroupStart());
    for (int g = 0; g < 2; g++)
        MUST(ncclAllReduce(ranks[g].buffer, ranks[g].buffer, COUNT, PKN_FLOAT32, PKN_SUM, ranks[g].comm, ranks[g].stream));
    MUST(ncclGroupEnd());
    for (int g = 0; g < 2; g++) {
        float host[COUNT];

        gpu_use(g);
        check(bed_idle(ranks[g].stream), "its operation has ended");
        bed_download(host, ranks[g].buffer, COUNT);
        check(host[0] == 3 && host[COUNT - 1] == 3, "the sum of number %d", g);
    }
    MUST(ncclGroupStart());
    for (int g = 0; g < 2; g++)
        MUST(ncclCommFinalize(ranks[g].comm));
    result = ncclGroupEnd();
    check(result == PKN_IN_PROGRESS, "finalize in a group goes on (%d)", (int)result);
    for (int g = 0; g < 2; g++) {
        check(bed_settled(ranks[g].comm) == PKN_SUCCESS, "number %d is finalized", g);
        MUST(ncclCommDestroy(ranks[g].comm));
    }
}

/* ---- abort ---- */

struct waiter {
    pkn_id_t id;
    pkn_comm_t comm;
    pkn_result_t result;
    atomic_int begun, ended;
};

static void *waits_in_init(void *arg)
{
    struct waiter *w = arg;

    gpu_use(0);
    MUST(ncclGroupStart());
    MUST(ncclCommInitRank(&w->comm, 2, w->id, 0));
    atomic_store(&w->begun, 1);
    w->result = ncclGroupEnd();
    atomic_store(&w->ended, 1);
    return NULL;
}

/* The other rank never comes. */
static void abort_of_init(void)
{
    struct waiter w = { .comm = NULL };
    pthread_t thread;

    MUST(ncclGetUniqueId(&w.id));
    if (pthread_create(&thread, NULL, waits_in_init, &w) != 0)
        exit(2);
    while (!atomic_load(&w.begun))
        usleep(1000);
    usleep(100000);
    check(atomic_load(&w.ended) == 0, "an init waits for a rank that does not come");
    MUST(ncclCommAbort(w.comm));
    pthread_join(thread, NULL);
    check(w.result == PKN_REMOTE_ERROR && w.comm == NULL, "an abort from another thread ends it: %d, %s", (int)w.result,
          ncclGetLastError(NULL));
}

/* Nor does it for a communicator that is given up before it is made. */
static void destroy_of_init(void)
{
    pkn_config_t config = undefined_config();
    pkn_comm_t comm = NULL;
    pkn_id_t id;

    config.blocking = 0;
    gpu_use(0);
    MUST(ncclGetUniqueId(&id));
    check(ncclCommInitRankConfig(&comm, 2, id, 1, &config) == PKN_IN_PROGRESS, "an init goes on");
    MUST(ncclCommDestroy(comm));
    check(true, "and ends when the communicator is destroyed");
}

static void abort_of_operation(void)
{
    pkn_comm_t comms[2];
    pkn_result_t state;
    struct rank r = { 0 };

    prepare(&r, 0);
    MUST(ncclCommInitAll(comms, 2, NULL));
    MUST(ncclAllReduce(r.buffer, r.buffer, COUNT, PKN_FLOAT32, PKN_SUM, comms[0], r.stream));
    usleep(50000);
    check(gpu_stream_query(r.stream) == GPU_NOT_READY, "an operation waits for a rank that does not call it");
    MUST(ncclCommAbort(comms[0]));
    check(bed_idle(r.stream), "an abort releases the stream");
    state = bed_settled(comms[1]);
    for (double until = bed_now_ms() + 10000; state == PKN_SUCCESS && bed_now_ms() < until; usleep(1000))
        state = bed_settled(comms[1]);
    check(state == PKN_REMOTE_ERROR, "the other rank hears of it: %d, %s", (int)state, ncclGetLastError(NULL));
    check(ncclCommGetAsyncError(comms[0], &state) == PKN_INVALID_ARGUMENT, "the handle is gone: %s", ncclGetLastError(NULL));
    check(ncclCommDestroy(comms[0]) == PKN_INVALID_ARGUMENT, "nor can it be destroyed");
    MUST(ncclCommAbort(comms[1]));
}

static void *destroys(void *arg)
{
    MUST(ncclCommDestroy(((struct waiter *)arg)->comm));
    atomic_store(&((struct waiter *)arg)->ended, 1);
    return NULL;
}

/* A destroy waits for the operations; an abort from another thread ends that. */
static void abort_of_destroy(void)
{
    struct waiter w = { .comm = NULL };
    pkn_comm_t comms[2];
    struct rank r = { 0 };
    pthread_t thread;

    prepare(&r, 0);
    MUST(ncclCommInitAll(comms, 2, NULL));
    MUST(ncclAllReduce(r.buffer, r.buffer, COUNT, PKN_FLOAT32, PKN_SUM, comms[0], r.stream));
    w.comm = comms[0];
    if (pthread_create(&thread, NULL, destroys, &w) != 0)
        exit(2);
    usleep(100000);
    check(atomic_load(&w.ended) == 0, "a destroy waits for an operation");
    MUST(ncclCommAbort(comms[0]));
    pthread_join(thread, NULL);
    check(bed_idle(r.stream), "an abort ends both");
    MUST(ncclCommAbort(comms[1]));
}

static void handles_are_kept_apart(void)
{
    pkn_comm_t first[2], second[2];
    int count = 0;

    MUST(ncclCommInitAll(first, 2, NULL));
    MUST(ncclCommDestroy(first[0]));
    MUST(ncclCommDestroy(first[1]));
    check(ncclCommCount(first[1], &count) == PKN_INVALID_ARGUMENT, "a destroyed communicator has no size");
    MUST(ncclCommInitAll(second, 2, NULL));
    MUST(ncclCommCount(second[0], &count));
    check(count == 2, "the next one has");
    check(ncclCommDestroy(first[0]) == PKN_INVALID_ARGUMENT && ncclCommCount(second[0], &count) == PKN_SUCCESS,
          "an old handle does not meet a new communicator");
    MUST(ncclCommDestroy(second[0]));
    MUST(ncclCommDestroy(second[1]));
}

/* Ids listen, until they are used or given back. */
static void unused_ids(void)
{
    pkn_comm_t comms[2];
    pkn_id_t ids[2] = { 0 };
    int before = open_files();

    for (int i = 0; i < 10; i++) {
        MUST(ncclGroupStart());
        MUST(ncclCommInitAll(comms, 2, NULL));
        check(ncclCommInitRank(comms, 0, ids[0], 0) == PKN_INVALID_ARGUMENT && ncclGroupEnd() == PKN_INVALID_ARGUMENT,
              "a group with a call that is refused");
        MUST(ncclGetUniqueId(&ids[0]));
        MUST(ncclGetUniqueId(&ids[1])); /* which nobody needs */
        MUST(ncclGroupStart());
        for (int r = 0; r < 2; r++) {
            gpu_use(r);
            MUST(ncclCommInitRankScalable(&comms[r], 2, r, 2, ids, NULL));
        }
        MUST(ncclGroupEnd());
        MUST(ncclCommDestroy(comms[0]));
        MUST(ncclCommDestroy(comms[1]));
    }
    check(open_files() < before + 10, "unused ids leave %d descriptors, %d before", open_files(), before);
    gpu_use(0);
}

/* ---- registrations ---- */

static void registrations(void)
{
    pkn_comm_t comms[2];
    pkn_window_t window = NULL, symmetric = (pkn_window_t)&window;
    void *handle = NULL, *memory = NULL, *nothing = &handle;

    gpu_use(0);
    MUST(ncclCommInitAll(comms, 2, NULL));
    MUST(ncclMemAlloc(&memory, 4 << 20));
    MUST(ncclMemAlloc(&nothing, 0));
    check(memory != NULL && nothing == NULL, "memory, and none of nothing");
    MUST(ncclCommRegister(comms[0], memory, 1 << 20, &handle));
    MUST(ncclCommWindowRegister(comms[0], memory, 1 << 20, &window, 0));
    check(ncclCommWindowRegister(comms[0], memory, 1 << 20, &symmetric, PKN_WINDOW_SYMMETRIC) == PKN_SUCCESS &&
              symmetric == NULL && strstr(ncclGetLastError(NULL), "symmetric") != NULL,
          "there is no symmetric window: %s", ncclGetLastError(NULL));
    MUST(ncclCommFinalize(comms[0]));
    MUST(ncclCommDeregister(comms[0], window)); /* a window's handle, behind finalize */
    MUST(ncclCommDeregister(comms[0], handle));
    MUST(ncclCommDeregister(comms[0], NULL));
    MUST(ncclCommWindowDeregister(comms[0], NULL));
    if (handle != NULL)
        check(ncclCommDeregister(comms[0], handle) == PKN_INVALID_ARGUMENT, "a registration ends once");
    MUST(ncclCommDestroy(comms[0]));
    MUST(ncclCommDestroy(comms[1]));
    MUST(ncclMemFree(memory));
    MUST(ncclMemFree(NULL));
}

/* As where one rank of a model finds an error: it ends its communicator, and what the other has for it is not wanted any more. */
static void given_up(void)
{
    pkn_comm_t comms[2];
    pkn_result_t state;
    struct rank r = { 0 };

    prepare(&r, 0);
    MUST(ncclCommInitAll(comms, 2, NULL));
    MUST(ncclBroadcast(r.buffer, r.buffer, COUNT, PKN_FLOAT32, 0, comms[0], r.stream));
    MUST(ncclCommFinalize(comms[1]));
    check(ncclCommFinalize(comms[0]) == PKN_SUCCESS, "finalize with what a rank that has left does not take: %s",
          ncclGetLastError(NULL));
    MUST(ncclCommGetAsyncError(comms[0], &state));
    check(state == PKN_SUCCESS && bed_idle(r.stream), "is no error, and the stream is released (%d)", (int)state);
    for (int g = 0; g < 2; g++)
        MUST(ncclCommDestroy(comms[g]));
}

/* A rank that waits in vain aborts its communicator. The other is told, and ends its own in good order. Its state then tells whether an operation of
 * its own was lost with that. */
static void after_an_abort(bool has_lost)
{
    pkn_result_t state = PKN_SUCCESS;
    pkn_comm_t comms[2];
    struct rank ranks[2];

    for (int g = 0; g < 2; g++)
        prepare(&ranks[g], g);
    MUST(ncclCommInitAll(comms, 2, NULL));
    for (int g = has_lost ? 0 : 1; g < 2; g++)
        MUST(ncclRecv(ranks[g].buffer, COUNT, PKN_FLOAT32, 1 - g, comms[g], ranks[g].stream));
    MUST(ncclCommAbort(comms[1]));
    for (double until = bed_now_ms() + 30000; state == PKN_SUCCESS && bed_now_ms() < until; usleep(1000))
        MUST(ncclCommGetAsyncError(comms[0], &state));
    check(state == PKN_REMOTE_ERROR, "the other rank hears of an abort (%d)", (int)state);
    check(ncclCommFinalize(comms[0]) == PKN_SUCCESS, "and ends its communicator: %s", ncclGetLastError(NULL));
    MUST(ncclCommGetAsyncError(comms[0], &state));
    check(state == (has_lost ? PKN_REMOTE_ERROR : PKN_SUCCESS), "%s (%d)",
          has_lost ? "whose state says that an operation was lost" : "which is in no error, as PyTorch asks for after finalize",
          (int)state);
    MUST(ncclCommDestroy(comms[0]));
}

/* ---- processes ---- */

/* `maker`: of the id; 2: it is no rank. */
static int by_another(int own)
{
    struct bed_shared *shared = bed_shared();
    const int maker = atomic_load(&shared->words[0]);
    struct rank r = { 0 };

    if (own == maker) {
        MUST(ncclGetUniqueId(&shared->id));
        atomic_store(&shared->has_id, 1);
    }
    bed_await(&shared->has_id, 1);
    if (own < 2) {
        if (!bed_has_gpus(2))
            return BED_SKIPPED;
        prepare(&r, own);
        MUST(ncclCommInitRank(&r.comm, 2, shared->id, own));
        check(adds_up(&r, 3), "rank %d, the id made by %d", own, maker);
    }
    atomic_fetch_add(&shared->words[1], 1);
    bed_await(&shared->words[1], 3);
    if (own < 2)
        MUST(ncclCommDestroy(r.comm));
    return own < 2 ? bed_end() : 0;
}

static int wait_all(const pid_t *pids, int n)
{
    int worst = 0;

    for (int i = 0; i < n; i++) {
        int code = bed_wait(pids[i]);

        worst = code != 0 ? code : worst;
    }
    return worst;
}

static int ids_by_others(void)
{
    struct bed_shared *shared = bed_shared();
    int worst = 0;

    for (int maker = 0; maker < 3; maker++) {
        pid_t pids[3];

        memset(shared, 0, sizeof *shared);
        atomic_store(&shared->words[0], maker);
        for (int i = 0; i < 3; i++)
            pids[i] = bed_start("by_another", i);
        worst |= wait_all(pids, 3);
    }
    return worst;
}

/* Two ranks, the id made by rank 0. */
static void meet(struct rank *r, int own)
{
    struct bed_shared *shared = bed_shared();

    prepare(r, own);
    if (own == 0) {
        MUST(ncclGetUniqueId(&shared->id));
        atomic_store(&shared->has_id, 1);
    }
    bed_await(&shared->has_id, 1);
    MUST(ncclCommInitRank(&r->comm, 2, shared->id, own));
}

/* Ends without a destroy while its communicator is idle, and with work that is over. */
static int just_ends(int own)
{
    struct bed_shared *shared = bed_shared();
    struct rank r = { 0 };

    if (!bed_has_gpus(2))
        return BED_SKIPPED;
    meet(&r, own);
    check(adds_up(&r, 3), "rank %d that ends without a destroy", own);
    atomic_fetch_add(&shared->words[1], 1);
    bed_await(&shared->words[1], 2);
    return bed_end();
}

/* Rank 1 is killed while rank 0 waits for it: an error in a moment, and the stream is released by an abort. */
static int one_is_killed(int own)
{
    pkn_result_t state = PKN_SUCCESS;
    struct rank r = { 0 };

    if (!bed_has_gpus(2))
        return BED_SKIPPED;
    meet(&r, own);
    check(adds_up(&r, 3), "rank %d before one is killed", own);
    if (own == 1)
        kill(getpid(), SIGKILL);
    MUST(ncclAllReduce(r.buffer, r.buffer, COUNT, PKN_FLOAT32, PKN_SUM, r.comm, r.stream));
    for (double until = bed_now_ms() + 30000; state == PKN_SUCCESS && bed_now_ms() < until; usleep(1000))
        MUST(ncclCommGetAsyncError(r.comm, &state));
    check(state == PKN_REMOTE_ERROR && strstr(ncclGetLastError(NULL), " 1") != NULL, "it is named: %s", ncclGetLastError(NULL));
    MUST(ncclCommAbort(r.comm));
    check(bed_idle(r.stream), "the stream is released");
    return bed_end();
}

/* NCCL_COMM_ID: no id is sent, all know the place. */
static int by_place(int own)
{
    struct rank r = { 0 };
    pkn_id_t id;

    if (!bed_has_gpus(2))
        return BED_SKIPPED;
    prepare(&r, own);
    MUST(ncclGetUniqueId(&id));
    MUST(ncclCommInitRank(&r.comm, 2, id, own));
    check(adds_up(&r, 3), "rank %d met by NCCL_COMM_ID", own);
    check(getenv("PK_RANK") == NULL && getenv("PK_ROOT") == NULL, "the environment is as before");
    MUST(ncclCommDestroy(r.comm));
    return bed_end();
}

static int two(const char *role)
{
    pid_t pids[2];

    memset(bed_shared(), 0, sizeof *bed_shared());
    for (int i = 0; i < 2; i++)
        pids[i] = bed_start(role, i);
    return wait_all(pids, 2);
}

static int survivor(void)
{
    pid_t pids[2];
    int code;

    memset(bed_shared(), 0, sizeof *bed_shared());
    for (int i = 0; i < 2; i++)
        pids[i] = bed_start("one_is_killed", i);
    code = bed_wait(pids[0]);
    (void)bed_wait(pids[1]);
    return code;
}

static int run_role(const char *role, int number)
{
    if (strcmp(role, "one_is_killed") == 0)
        return one_is_killed(number);
    if (strcmp(role, "by_another") == 0)
        return by_another(number);
    return strcmp(role, "by_place") == 0 ? by_place(number) : just_ends(number);
}

int main(void)
{
    char place[64];
    int number, others, ends, placed, survives;
    const char *role = bed_role(&number);

    if (role != NULL)
        return run_role(role, number);
    if (!bed_has_gpus(2))
        return BED_SKIPPED;
    others = ids_by_others();
    ends = two("just_ends");
    survives = survivor();
    snprintf(place, sizeof place, "127.0.0.1:%d", bed_free_port());
    setenv("NCCL_COMM_ID", place, 1);
    placed = two("by_place");
    unsetenv("NCCL_COMM_ID");
    check(others == 0, "ids made by rank 0, rank 1 and a process that is no rank: %d", others);
    check(ends == 0, "ranks that end without a destroy: %d", ends);
    check(survives == 0, "a rank whose peer was killed: %d", survives);
    check(placed == 0, "ranks that meet by NCCL_COMM_ID: %d", placed);
    non_blocking();
    non_blocking_group();
    abort_of_init();
    destroy_of_init();
    abort_of_operation();
    abort_of_destroy();
    given_up();
    after_an_abort(false);
    after_an_abort(true);
    handles_are_kept_apart();
    unused_ids();
    registrations();
    return bed_end();
}
