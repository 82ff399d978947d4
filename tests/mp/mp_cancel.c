/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watchdog cancels a thread (pthread_cancel) that is inside a call: the call goes on until it is done, aborted or past its deadline, and then
 * the thread ends. Nothing is left locked: abort and destroy by another thread return. Calls of each kind, on one host and between two.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 2
#define LARGE (1 << 20)
#define INIT_MS 500
#define LIMIT_S 30

/* from the thread's start to its cancellation: before it waits, and asleep */
static const useconds_t delays_us[] = { 0, 3000, 60000 };
#define ROUNDS (sizeof delays_us / sizeof *delays_us)

static float in[LARGE], out[LARGE];

struct worker {
    pk_comm_t *comm;
    pk_result_t (*call)(pk_comm_t *comm);
    pk_result_t result;
    _Atomic bool returned;
};

static pk_comm_t *make(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    if (pk_comm_init(&comm, &config) != PK_OK) {
        report(false, "rank %d: init", ranks_rank());
        exit(1);
    }
    return comm;
}

static pk_result_t receive(pk_comm_t *comm)
{
    return pk_recv(out, 10, PK_F32, 1, comm, PK_BLOCKING);
}

static pk_result_t receive_much(pk_comm_t *comm)
{
    return pk_recv(out, LARGE, PK_F32, 1, comm, PK_BLOCKING);
}

static pk_result_t send_much(pk_comm_t *comm)
{
    return pk_send(in, LARGE, PK_F32, 1, comm, PK_BLOCKING);
}

static pk_result_t sum(pk_comm_t *comm)
{
    return pk_allreduce(in, out, 2, PK_F32, PK_SUM, comm, PK_BLOCKING);
}

static pk_result_t sum_much(pk_comm_t *comm)
{
    return pk_allreduce(in, out, LARGE, PK_F32, PK_SUM, comm, PK_BLOCKING);
}

static pk_result_t wait_for_stream(pk_comm_t *comm)
{
    pk_stream_t stream;
    pk_result_t result = pk_stream_create(&stream);

    if (result == PK_OK)
        result = pk_recv(out, 10, PK_F32, 1, comm, stream);
    if (result == PK_OK)
        result = pk_stream_synchronize(stream);
    (void)pk_stream_destroy(stream);
    return result;
}

static pk_result_t run_group(pk_comm_t *comm)
{
    (void)pk_group_start();
    (void)pk_recv(out, 10, PK_F32, 1, comm, PK_BLOCKING);
    (void)pk_send(in, LARGE, PK_F32, 1, comm, PK_BLOCKING);
    return pk_group_end();
}

static pk_result_t split(pk_comm_t *comm)
{
    pk_comm_t *half = NULL;

    return pk_comm_split(comm, 0, 0, &half, NULL);
}

/* Nobody else comes. */
static pk_result_t init(pk_comm_t *comm)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = INIT_MS;
    return pk_comm_init(&comm, &config);
}

static const struct kind {
    const char *name;
    pk_result_t (*call)(pk_comm_t *comm);
    bool served; /* the peer does its part, later; else the call is aborted */
} kinds[] = {
    { "pk_recv", receive, false },
    { "pk_recv of 4 MiB", receive_much, false },
    { "pk_send of 4 MiB", send_much, false },
    { "pk_allreduce", sum, false },
    { "pk_allreduce of 4 MiB", sum_much, false },
    { "pk_stream_synchronize", wait_for_stream, false },
    { "pk_group_end", run_group, false },
    { "pk_comm_split", split, false },
    { "pk_recv that is served", receive, true },
    { "pk_recv of 4 MiB that is served", receive_much, true },
};

static void *work(void *arg)
{
    struct worker *w = arg;

    w->result = w->call(w->comm);
    atomic_store(&w->returned, true);
    pthread_testcancel();
    return NULL;
}

/* What the thread ended with; the process ends where it does not. */
static void *join(const char *name, pthread_t thread)
{
    struct timespec until;
    void *ended = NULL;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LIMIT_S;
    if (pthread_timedjoin_np(thread, &ended, &until) == 0)
        return ended;
    report(false, "%s: the thread has not ended after %d s", name, LIMIT_S);
    _exit(1);
}

static void check(const char *name, const struct worker *w, const void *ended, bool right)
{
    report(atomic_load(&w->returned) && right && ended == PTHREAD_CANCELED, "%s: it %s, result %d; the thread was %scancelled",
           name, atomic_load(&w->returned) ? "returned" : "DID NOT RETURN", (int)w->result,
           ended == PTHREAD_CANCELED ? "" : "NOT ");
}

static void cancel_one(const struct kind *kind, useconds_t delay_us)
{
    struct worker w = { .comm = make(), .call = kind->call };
    const double began_ms = monotonic_ms();
    pthread_t thread;
    void *ended;

    memset(out, 0, sizeof out);
    if (pthread_create(&thread, NULL, work, &w) != 0)
        exit(4);
    usleep(delay_us);
    pthread_cancel(thread);
    usleep(20000);
    if (!kind->served)
        report(pk_comm_abort(w.comm) == PK_OK, "%s: abort", kind->name);
    ranks_meet();
    ended = join(kind->name, thread);
    check(kind->name, &w, ended, kind->served ? w.result == PK_OK && out[0] == 1 : w.result == PK_ERR_ABORTED);
    (void)pk_comm_destroy(w.comm);
    report(monotonic_ms() - began_ms < 1000.0 * LIMIT_S, "%s: destroyed after %.0f ms", kind->name, monotonic_ms() - began_ms);
}

static void cancel_init(void)
{
    const int files = open_files();
    struct worker w = { .call = init };
    pthread_t thread;
    void *ended;

    if (pthread_create(&thread, NULL, work, &w) != 0)
        exit(4);
    usleep(INIT_MS * 500);
    pthread_cancel(thread);
    ended = join("pk_comm_init", thread);
    check("pk_comm_init", &w, ended, w.result == PK_ERR_TIMEOUT);
    report(open_files() == files, "pk_comm_init: %d descriptors before, %d after", files, open_files());
}

static void be_the_peer(const struct kind *kind)
{
    pk_comm_t *comm = make();

    ranks_meet();
    if (kind->served)
        report(pk_send(in, kind->call == receive ? 10 : LARGE, PK_F32, 0, comm, PK_BLOCKING) == PK_OK, "%s: sent", kind->name);
    (void)pk_comm_destroy(comm);
}

static int rank_main(void)
{
    for (size_t i = 0; i < LARGE; i++)
        in[i] = 1;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t round = 0; round < ROUNDS; round++)
            if (ranks_rank() == 0)
                cancel_one(&kinds[k], delays_us[round]);
            else
                be_the_peer(&kinds[k]);
    if (ranks_rank() == 0)
        cancel_init();
    return report_end();
}

static void set_host(int rank, void *arg)
{
    setenv("PK_HOST_ID", *(bool *)arg && rank == 1 ? "there" : "here", 1);
}

int main(void)
{
    bool apart = false;
    const struct ranks_hooks hooks = { .before = set_host, .arg = &apart };

    if (ranks_role() != NULL)
        return rank_main();
    ranks_drive(&(struct ranks_turn){ .role = "cancel", .size = SIZE, .hooks = &hooks },
                "a thread is cancelled inside a call, one host");
    apart = true;
    ranks_drive(&(struct ranks_turn){ .role = "cancel", .size = SIZE, .hooks = &hooks },
                "a thread is cancelled inside a call, two hosts");
    return report_end();
}
