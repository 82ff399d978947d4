/* SPDX-License-Identifier: Apache-2.0 */
/*
 * More elements than 32 bits count, moved and checked whole: point to point, broadcast, allgather, alltoallv and allreduce of int8 between two
X */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define RANKS 2
#define LONG (((size_t)1 << 32) + 12345) /* elements, which are bytes */
#define HALF (((size_t)1 << 31) + 6173)  /* a rank's block where both together are LONG or more */
#define SMALL 1003
#define MEMORY_KIB ((long)14 << 20)
#define ROOM (2 * HALF)
#define TIMEOUT_MS 240000

/* What stands at each place depends on all 64 bits of where that is; bytes are below 64, so that two add up without a carry. */
struct pattern {
    uint64_t seeds[RANKS];
    int summands;
};

struct job {
    pk_comm_t *comm;
    int rank;
    bool shared; /* memory of pk_mem_alloc */
    uint8_t *bytes;
    pk_unique_id_t id; /* of thread ranks */
    bool ok;
};

static uint64_t word_of(const struct pattern *pattern, size_t index)
{
    uint64_t word = 0;

    for (int s = 0; s < pattern->summands; s++)
        word += ((((index + 1) * 0x9e3779b97f4a7c15u) ^ pattern->seeds[s]) >> 2) & 0x3f3f3f3f3f3f3f3fu;
    return word;
}

static void fill(uint8_t *at, size_t count, uint64_t seed)
{
    const struct pattern pattern = { { seed, 0 }, 1 };

    for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
        uint64_t word = word_of(&pattern, i / sizeof word);

        memcpy(at + i, &word, count - i < sizeof word ? count - i : sizeof word);
    }
}

/* A rank's own data: other bytes in every operation, so that what the last one left is never right. */
static uint64_t seed_of(int rank, int operation)
{
    return (uint64_t)(rank + 1) * 0x2545f4914f6cdd1du + (uint64_t)operation * 0x123456789abcdefu;
}

static void must(struct job *job, pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK || !job->ok)
        return;
    pk_last_error(&info);
    job->ok = report(false, "rank %d: %s: %d %.300s", job->rank, what, (int)result, info.text);
}

static void check(struct job *job, const uint8_t *at, size_t count, const struct pattern *pattern, const char *what)
{
    for (size_t i = 0; i < count && job->ok; i += sizeof(uint64_t)) {
        uint64_t word = word_of(pattern, i / sizeof word);

        if (memcmp(at + i, &word, count - i < sizeof word ? count - i : sizeof word) != 0)
            job->ok = report(false, "rank %d: %s: wrong from element %zu of %zu on", job->rank, what, i, count);
    }
}

static void check_one(struct job *job, const uint8_t *at, size_t count, uint64_t seed, const char *what)
{
    const struct pattern pattern = { { seed, 0 }, 1 };

    check(job, at, count, &pattern, what);
}

static void transfer(struct job *job)
{
    if (job->rank == 0) {
        fill(job->bytes, LONG, seed_of(0, 1));
        must(job, pk_send(job->bytes, LONG, PK_INT8, 1, job->comm, PK_BLOCKING), "pk_send");
    } else {
        must(job, pk_recv(job->bytes, LONG, PK_INT8, 0, job->comm, PK_BLOCKING), "pk_recv");
        check_one(job, job->bytes, LONG, seed_of(0, 1), "a transfer");
    }
}

static void broadcast(struct job *job)
{
    if (job->rank == 1)
        fill(job->bytes, LONG, seed_of(1, 2));
    must(job, pk_broadcast(job->bytes, job->bytes, LONG, PK_INT8, 1, job->comm, PK_BLOCKING), "pk_broadcast");
    if (job->rank == 0)
        check_one(job, job->bytes, LONG, seed_of(1, 2), "broadcast");
}

static void allgather(struct job *job)
{
    uint8_t *own = job->bytes + (size_t)job->rank * HALF;

    fill(own, HALF, seed_of(job->rank, 3));
    must(job, pk_allgather(own, job->bytes, HALF, PK_INT8, job->comm, PK_BLOCKING), "pk_allgather");
    check_one(job, job->bytes + (size_t)(1 - job->rank) * HALF, HALF, seed_of(1 - job->rank, 3), "allgather");
}

/* Rank 0 has LONG elements for rank 1, and nothing else goes over. */
static void alltoallv(struct job *job)
{
    const size_t none[RANKS] = { 0, 0 }, many_to[RANKS] = { 0, LONG }, many_from[RANKS] = { LONG, 0 };
    const size_t start[RANKS] = { 0, 0 };
    const size_t *send_counts = job->rank == 0 ? many_to : none, *recv_counts = job->rank == 1 ? many_from : none;
    uint8_t *other = job->bytes + LONG; /* nothing of it is touched */

    if (job->rank == 0)
        fill(job->bytes, LONG, seed_of(0, 4));
    must(job,
         pk_alltoallv(job->rank == 0 ? job->bytes : other, send_counts, start, job->rank == 0 ? other : job->bytes, recv_counts,
                      start, PK_INT8, job->comm, PK_BLOCKING),
         "pk_alltoallv");
    if (job->rank == 1)
        check_one(job, job->bytes, LONG, seed_of(0, 4), "alltoallv");
}

static void allreduce(struct job *job)
{
    const struct pattern sum = { { seed_of(0, 5), seed_of(1, 5) }, RANKS };

    fill(job->bytes, LONG, seed_of(job->rank, 5));
    must(job, pk_allreduce(job->bytes, job->bytes, LONG, PK_INT8, PK_SUM, job->comm, PK_BLOCKING), "pk_allreduce");
    check(job, job->bytes, LONG, &sum, "allreduce");
}

/* Numbers and places are as before for what follows. */
static void short_one(struct job *job)
{
    const struct pattern sum = { { seed_of(0, 6), seed_of(1, 6) }, RANKS };

    fill(job->bytes, SMALL, seed_of(job->rank, 6));
    must(job, pk_allreduce(job->bytes, job->bytes, SMALL, PK_INT8, PK_SUM, job->comm, PK_BLOCKING), "a short pk_allreduce");
    check(job, job->bytes, SMALL, &sum, "a short allreduce");
}

static bool get_memory(struct job *job)
{
    void *memory = NULL;

    if (job->shared) {
        must(job, pk_mem_alloc(job->comm, ROOM, &memory), "pk_mem_alloc");
    } else {
        memory = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            job->ok = report(false, "rank %d: no memory", job->rank);
    }
    job->bytes = memory;
    return job->ok;
}

static void drop_memory(struct job *job)
{
    if (job->shared)
        must(job, pk_mem_free(job->comm, job->bytes), "pk_mem_free");
    else
        munmap(job->bytes, ROOM);
}

static void work(struct job *job)
{
    static void (*const operations[])(struct job *) = { transfer, broadcast, allgather, alltoallv, allreduce, short_one };
    const char *const names[] = { "send and receive", "broadcast", "allgather", "alltoallv", "allreduce", "a short allreduce" };

    if (!get_memory(job))
        return;
    for (size_t i = 0; i < sizeof operations / sizeof *operations && job->ok; i++) {
        double began_ms = monotonic_ms();

        operations[i](job);
        if (job->ok && job->rank == 1)
            report(true, "%s, whole, %.0f ms", names[i], monotonic_ms() - began_ms);
    }
    drop_memory(job);
}

static void *thread_main(void *arg)
{
    struct job *job = arg;
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = TIMEOUT_MS;
    must(job, pk_comm_init_rank(&job->comm, RANKS, job->rank, &job->id, &config), "pk_comm_init_rank");
    if (job->ok)
        work(job);
    if (job->comm != NULL)
        must(job, pk_comm_destroy(job->comm), "pk_comm_destroy");
    return NULL;
}

static void in_threads(const char *how)
{
    struct job jobs[RANKS];
    pthread_t threads[RANKS];
    pk_unique_id_t id;
    bool ok = pk_get_unique_id(&id) == PK_OK;

    for (int r = 0; r < RANKS && ok; r++) {
        jobs[r] = (struct job){ .rank = r, .id = id, .ok = true };
        if (pthread_create(&threads[r], NULL, thread_main, &jobs[r]) != 0)
            abort();
    }
    for (int r = 0; r < RANKS && ok; r++) {
        pthread_join(threads[r], NULL);
        ok = ok && jobs[r].ok;
    }
    report(ok, "%s", how);
}

static int rank_main(const char *role)
{
    struct job job = { .rank = ranks_rank(), .ok = true, .shared = strcmp(role, "shared") == 0 };
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = TIMEOUT_MS;
    must(&job, pk_comm_init(&job.comm, &config), "pk_comm_init");
    if (job.ok)
        work(&job);
    if (job.comm != NULL)
        must(&job, pk_comm_destroy(job.comm), "pk_comm_destroy");
    return report_end();
}

static long free_kib(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    long kib = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %ld kB", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib;
}

/* A way to run it, by the argument that asks for it alone. */
struct part {
    const char *name, *role, *variable, *value, *how;
};

static const struct part parts[] = {
    { "processes", "plain", NULL, NULL, "ranks as processes" },
    { "shared", "shared", NULL, NULL, "ranks as processes, memory of pk_mem_alloc" },
    { "lane", "plain", "PICKLE_TEST_TUNING", "shm.cma=0", "ranks as processes without the kernel's copy" },
    { "hosts", "plain", "PICKLE_TEST_HOSTS", "2", "ranks as processes that take themselves to be on two hosts" },
    { "threads", NULL, NULL, NULL, "ranks as threads" },
};

#define PARTS (sizeof parts / sizeof *parts)

static void in_processes(const struct part *part)
{
    const struct ranks_turn turn = { .role = part->role, .size = RANKS, .timeout_ms = TIMEOUT_MS };

    if (part->variable != NULL)
        setenv(part->variable, part->value, 1);
    ranks_drive(&turn, "%s", part->how);
    if (part->variable != NULL)
        unsetenv(part->variable);
    unsetenv("PK_HOST_ID");
}

static bool is_part(const char *name)
{
    for (size_t i = 0; i < PARTS; i++)
        if (strcmp(parts[i].name, name) == 0)
            return true;
    return false;
}

static void refuse(int argc, char **argv)
{
    if (argc > 2)
        fprintf(stderr, "%s: %d arguments, at most one is taken:", argv[0], argc - 1);
    else
        fprintf(stderr, "%s: there is no part '%s', only:", argv[0], argv[1]);
    for (size_t i = 0; i < PARTS; i++)
        fprintf(stderr, " %s", parts[i].name);
    fprintf(stderr, "\n");
}

static void run_part(const struct part *part)
{
    if (part->role == NULL)
        in_threads(part->how);
    else
        in_processes(part);
}

int main(int argc, char **argv)
{
    const char *asked = getenv("PICKLE_TEST_LONG");

    if (ranks_role() != NULL)
        return rank_main(ranks_role());
    if (argc > 2 || (argc == 2 && !is_part(argv[1]))) {
        refuse(argc, argv);
        return 2;
    }
    if (asked == NULL || strcmp(asked, "1") != 0) {
        printf(
            "SKIP: transfers of more than 2^32 elements take 13 GiB of memory and minutes: PICKLE_TEST_LONG=1 asks for them\n");
        return 77;
    }
    if (free_kib() < MEMORY_KIB) {
        printf("SKIP: %ld MiB of memory are free, and %ld are needed\n", free_kib() >> 10, MEMORY_KIB >> 10);
        return 77;
    }
    for (size_t i = 0; i < PARTS; i++)
        if (argc < 2 || strcmp(parts[i].name, argv[1]) == 0)
            run_part(&parts[i]);
    return report_end();
}
