/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle-info --startup N: how long N processes need to make a communicator by a unique id, and what it costs each of them in memory. The
 * processes exist before the clock starts, and no launcher takes part.
 */
#include "info_startup.h"
#include "timing.h"

#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pickle/pickle.h>

#define ROUNDS 21 /* the first one opens libraries and fills caches: it is shown apart */
#define TIMEOUT_MS 30000

extern char **environ;

struct board { /* shared by the processes */
    atomic_uint arrived, generation;
    atomic_int failed;
    pk_unique_id_t id;
    double ms[ROUNDS][STARTUP_RANKS_MAX];
    double init_kib[STARTUP_RANKS_MAX], used_kib[STARTUP_RANKS_MAX];
};

static void meet(struct board *b, unsigned size)
{
    unsigned generation = atomic_load(&b->generation);

    if (atomic_fetch_add(&b->arrived, 1) + 1 == size) {
        atomic_store(&b->arrived, 0);
        atomic_fetch_add(&b->generation, 1);
        return;
    }
    while (atomic_load(&b->generation) == generation && !atomic_load(&b->failed))
        usleep(50);
}

/* This process's share of the memory that it maps. */
static double own_kib(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    double kib = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "Pss:", 4) == 0)
            kib = atof(line + 4);
    if (file != NULL)
        fclose(file);
    return kib;
}

/* Something of every pair's, so that pages are counted that only come with use. */
static pk_result_t use(pk_comm_t *comm, int size)
{
    size_t count = 16384;
    char *in = malloc(count * (size_t)size), *out = malloc(count * (size_t)size);
    pk_result_t result = in == NULL || out == NULL ? PK_ERR_MEMORY : PK_OK;

    if (result == PK_OK) {
        memset(in, 1, count * (size_t)size);
        result = pk_alltoall(in, out, count, PK_UINT8, comm, PK_BLOCKING);
    }
    free(in);
    free(out);
    return result;
}

static pk_result_t one_round(struct board *b, int round, int rank, int size)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;
    pk_result_t result = PK_OK;
    double begun;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = TIMEOUT_MS;
    if (rank == 0)
        result = pk_get_unique_id(&b->id);
    meet(b, (unsigned)size);
    id = b->id;
    if (round == 1)
        b->init_kib[rank] = own_kib();
    meet(b, (unsigned)size);
    begun = now_us();
    if (result == PK_OK)
        result = pk_comm_init_rank(&comm, size, rank, &id, &config);
    b->ms[round][rank] = (now_us() - begun) * 1e-3;
    meet(b, (unsigned)size);
    if (result == PK_OK && round == 1) {
        b->init_kib[rank] = own_kib() - b->init_kib[rank];
        result = use(comm, size);
        meet(b, (unsigned)size);
        b->used_kib[rank] = own_kib();
        meet(b, (unsigned)size);
    }
    if (result == PK_OK)
        result = pk_comm_destroy(comm);
    meet(b, (unsigned)size);
    return result;
}

static struct board *map_board(int fd)
{
    void *memory = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

int startup_rank(const char *fd, const char *rank_text, const char *size_text)
{
    struct board *b = map_board(atoi(fd));
    int rank = atoi(rank_text), size = atoi(size_text);
    pk_result_t result = b != NULL && size >= 1 && size <= STARTUP_RANKS_MAX && rank >= 0 && rank < size ? PK_OK : PK_ERR_ARG;

    for (int round = 0; round < ROUNDS && result == PK_OK; round++)
        result = one_round(b, round, rank, size);
    if (result != PK_OK && b != NULL)
        atomic_store(&b->failed, 1);
    return result == PK_OK ? 0 : 1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double slowest(const struct board *b, int round, int size)
{
    double most = 0;

    for (int r = 0; r < size; r++)
        most = b->ms[round][r] > most ? b->ms[round][r] : most;
    return most;
}

static void print(const struct board *b, int size)
{
    double later[ROUNDS - 1], init = 0, used = 0;

    for (int round = 1; round < ROUNDS; round++)
        later[round - 1] = slowest(b, round, size);
    qsort(later, ROUNDS - 1, sizeof later[0], by_value);
    for (int r = 0; r < size; r++) {
        init = b->init_kib[r] > init ? b->init_kib[r] : init;
        used = b->used_kib[r] > used ? b->used_kib[r] : used;
    }
    printf(
        "pk_comm_init_rank, %d processes, the slowest of them: the first %.1f ms, then median %.1f, best %.1f, worst %.1f ms of %d\n",
        size, slowest(b, 0, size), later[(ROUNDS - 1) / 2], later[0], later[ROUNDS - 2], ROUNDS - 1);
    printf(
        "memory of a process (its share, the largest of them): a communicator %.0f KiB; after an alltoall of 16 KiB, all that the "
        "process has %.0f KiB\n",
        init, used);
}

static pid_t start(const char *self, int fd, int rank, int size)
{
    char texts[3][16], path[4096], option[] = "--startup-rank";
    char *argv[] = { path, option, texts[0], texts[1], texts[2], NULL };
    pid_t pid = -1;

    snprintf(path, sizeof path, "%s", self);
    snprintf(texts[0], sizeof texts[0], "%d", fd);
    snprintf(texts[1], sizeof texts[1], "%d", rank);
    snprintf(texts[2], sizeof texts[2], "%d", size);
    return posix_spawn(&pid, path, NULL, NULL, argv, environ) == 0 ? pid : -1;
}

int startup_print(int size)
{
    int fd = memfd_create("pickle-startup", 0), failed = 0, status;
    pid_t pids[STARTUP_RANKS_MAX];
    struct board *b;

    if (fd < 0 || ftruncate(fd, sizeof *b) != 0 || (b = map_board(fd)) == NULL) {
        perror("--startup: shared memory");
        return 2;
    }
    for (int r = 0; r < size; r++) {
        pids[r] = start("/proc/self/exe", fd, r, size);
        if (pids[r] < 0)
            atomic_store(&b->failed, 1);
    }
    for (int r = 0; r < size; r++)
        failed |= pids[r] < 0 || waitpid(pids[r], &status, 0) != pids[r] || status != 0;
    if (failed)
        fprintf(stderr, "--startup: a rank failed\n");
    else
        print(b, size);
    munmap(b, sizeof *b);
    close(fd);
    return failed;
}
