/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is killed (SIGKILL) amid operations: every other rank gets PK_ERR_PEER that names it, within a second, and nothing is left in
 * /dev/shm.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 4
#define ENOUGH_TURNS 50
#define COUNT 20000
#define NOTICE_MS 1000

/* Words of the shared memory. */
enum { KILLED_AT_NS, VICTIM };
enum { TURNS };

/* Where ranks stop: when one of them dies. */
struct loop {
    pk_comm_t *comm;
    pk_stream_t stream;
    int rank;
    float *source, *result;
};

static pk_result_t turn_p2p(struct loop *l)
{
    pk_result_t result = pk_group_start();

    if (result == PK_OK)
        result = pk_send(l->source, COUNT, PK_F32, (l->rank + 1) % SIZE, l->comm, l->stream);
    if (result == PK_OK)
        result = pk_recv(l->result, COUNT, PK_F32, (l->rank + SIZE - 1) % SIZE, l->comm, l->stream);
    return result != PK_OK ? (pk_group_end(), result) : pk_group_end();
}

static pk_result_t turn_allgather(struct loop *l)
{
    return pk_allgather(l->source, l->result, COUNT, PK_F32, l->comm, l->stream);
}

static pk_result_t turn_allreduce(struct loop *l)
{
    return pk_allreduce(l->source, l->result, COUNT, PK_F32, PK_SUM, l->comm, l->stream);
}

/* A rank that only waits, for someone who is not the victim: it must hear of the death all the same. */
static pk_result_t turn_wait(struct loop *l)
{
    int victim = (int)atomic_load(&ranks_shared()->words[VICTIM]);
    int peer = (l->rank + 1) % SIZE == victim ? (l->rank + 2) % SIZE : (l->rank + 1) % SIZE;

    atomic_store(&ranks_shared()->rank_words[l->rank][TURNS], ENOUGH_TURNS + 1);
    return pk_recv(l->result, 4, PK_F32, peer, l->comm, l->stream);
}

static const struct role {
    const char *name;
    pk_result_t (*turn)(struct loop *loop);
    bool stream;
} roles[] = {
    { "p2p", turn_p2p, false },          { "allgather", turn_allgather, false },
    { "allreduce", turn_allreduce, false }, { "wait", turn_wait, false },
    { "p2p in a host stream", turn_p2p, true }, { "allreduce in a host stream", turn_allreduce, true },
};

#define ROLES (sizeof roles / sizeof roles[0])

static const struct role *own_role(void)
{
    for (size_t i = 0; i < ROLES; i++)
        if (strcmp(ranks_role(), roles[i].name) == 0)
            return &roles[i];
    exit(2);
}

static pk_result_t one_turn(const struct role *role, struct loop *loop)
{
    pk_result_t result = role->turn(loop);

    if (role->stream && result == PK_OK)
        result = pk_stream_synchronize(loop->stream);
    return result;
}

/* Is this the death that the driver caused, noticed in time and named rightly? */
static int judge(const struct role *role, const struct loop *loop, pk_result_t result)
{
    struct ranks_shared *shared = ranks_shared();
    pk_error_info_t info = { .struct_size = sizeof info };
    int64_t took_ns = monotonic_ns() - atomic_load(&shared->words[KILLED_AT_NS]);
    int victim = (int)atomic_load(&shared->words[VICTIM]);
    bool right;

    pk_last_error(&info);
    right = atomic_load(&shared->words[KILLED_AT_NS]) != 0 && result == PK_ERR_PEER && info.peer == victim
            && took_ns < NOTICE_MS * 1e6 * test_slack();
    report(right, "%s: rank %d got %d naming rank %d (killed: %d) after %.1f ms: %.200s", role->name, loop->rank, (int)result, info.peer,
           victim, (double)took_ns * 1e-6, info.text);
    if (pk_comm_async_error(loop->comm) != PK_ERR_PEER)
        report(false, "%s: rank %d: pk_comm_async_error is %d", role->name, loop->rank, (int)pk_comm_async_error(loop->comm));
    if (one_turn(role, &(struct loop){ loop->comm, loop->stream, loop->rank, loop->source, loop->result }) != PK_ERR_PEER)
        report(false, "%s: rank %d: the next operation does not return PK_ERR_PEER", role->name, loop->rank);
    return right ? 0 : 1;
}

static int rank_main(void)
{
    const struct role *role = own_role();
    struct loop loop = { .rank = ranks_rank(), .stream = PK_BLOCKING };
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_result_t result;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 20000;
    loop.source = calloc(COUNT, sizeof(float));
    loop.result = calloc(COUNT * SIZE, sizeof(float));
    if (loop.source == NULL || loop.result == NULL || pk_comm_init(&loop.comm, &config) != PK_OK)
        return report(false, "%s: rank %d: init", role->name, loop.rank), 1;
    if (role->stream && pk_stream_create(&loop.stream) != PK_OK)
        return report(false, "%s: rank %d: pk_stream_create", role->name, loop.rank), 1;
    do {
        result = one_turn(role, &loop);
        atomic_fetch_add(&ranks_shared()->rank_words[loop.rank][TURNS], 1);
    } while (result == PK_OK);
    judge(role, &loop, result);
    if (role->stream)
        pk_stream_destroy(loop.stream);
    if (pk_comm_destroy(loop.comm) != PK_ERR_PEER)
        report(false, "%s: rank %d: pk_comm_destroy does not return PK_ERR_PEER", role->name, loop.rank);
    free(loop.source);
    free(loop.result);
    return report_end();
}

static int shm_files(void)
{
    DIR *dir = opendir("/dev/shm");
    int n = 0;

    while (dir != NULL && readdir(dir) != NULL)
        n++;
    if (dir != NULL)
        closedir(dir);
    return n;
}

/* All ranks are well under way, or a minute has passed. */
static bool wait_for_turns(struct ranks *ranks)
{
    int64_t deadline = monotonic_ns() + 60 * (int64_t)1000000000;
    int ready = 0;

    while (ready < SIZE && monotonic_ns() < deadline) {
        ready = 0;
        for (int r = 0; r < SIZE; r++)
            ready += atomic_load(&ranks->shared->rank_words[r][TURNS]) > ENOUGH_TURNS;
        usleep(1000);
    }
    usleep(20000); /* those that only wait are waiting by now */
    return ready == SIZE;
}

static void kill_one(const struct role *role, int victim)
{
    struct ranks ranks;
    int before = shm_files();
    bool under_way;
    int wrong;

    ranks_open(&ranks, SIZE);
    atomic_store(&ranks.shared->words[VICTIM], victim);
    ranks_start_all(&ranks, role->name, NULL, NULL);
    under_way = wait_for_turns(&ranks);
    atomic_store(&ranks.shared->words[KILLED_AT_NS], monotonic_ns());
    kill(ranks.pids[victim], SIGKILL);
    wrong = ranks_wait(&ranks, 40000, victim);
    report(under_way && wrong == 0, "%s: rank %d killed, %s%d others failed", role->name, victim,
           under_way ? "" : "the ranks had not come to work, ", wrong);
    report(shm_files() == before, "%s: %d files in /dev/shm, %d before", role->name, shm_files(), before);
    ranks_close(&ranks);
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    for (size_t i = 0; i < ROLES; i++)
        kill_one(&roles[i], 2);
    kill_one(&roles[0], 0);
    kill_one(&roles[2], 0);
    return report_end();
}
