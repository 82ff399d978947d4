/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ports.h"

#define ROLE "PICKLE_TEST_ROLE"
#define MEMORY "PICKLE_TEST_MEMORY"
#define BUSY 2 /* what hangs is to be found, not what is slow because the machine does other things */
#define MEET_NS (60 * (int64_t)1000000000 * BUSY)

extern char **environ;

static unsigned passes, failures;

bool report(bool passed, const char *format, ...)
{
    char line[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    printf("%s %s\n", passed ? "PASS" : "FAIL", line);
    fflush(stdout);
    passes += passed;
    failures += !passed;
    return passed;
}

int report_end(void)
{
    if (ranks_role() == NULL)
        printf("%u passed, %u failed\n", passes, failures);
    return failures == 0 ? 0 : 1;
}

static _Noreturn void broken(const char *what)
{
    perror(what);
    exit(2);
}

const char *ranks_role(void)
{
    return getenv(ROLE);
}

static int number_from(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : -1;
}

int ranks_rank(void)
{
    return number_from("PK_RANK");
}

int ranks_size(void)
{
    return number_from("PK_SIZE");
}

struct ranks_shared *ranks_shared(void)
{
    static struct ranks_shared *shared;
    int fd = number_from(MEMORY);

    if (shared == NULL) {
        void *memory = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        if (memory == MAP_FAILED)
            broken("mmap of the test's memory");
        shared = memory;
    }
    return shared;
}

void ranks_meet(void)
{
    struct ranks_shared *s = ranks_shared();
    uint32_t generation = atomic_load(&s->generation);
    int64_t deadline = monotonic_ns() + MEET_NS;

    if (atomic_fetch_add(&s->arrived, 1) + 1 == (uint32_t)ranks_size()) {
        atomic_store(&s->arrived, 0);
        atomic_fetch_add(&s->generation, 1);
        return;
    }
    while (atomic_load(&s->generation) == generation) {
        if (monotonic_ns() > deadline) {
            fprintf(stderr, "rank %d: the other ranks did not come to a meeting of the test\n", ranks_rank());
            exit(3);
        }
        usleep(200);
    }
}

pk_result_t ranks_idle(pk_comm_t *comm, double ms)
{
    double until = monotonic_ms() + ms;
    pk_result_t result = PK_OK;

    while (monotonic_ms() < until && result == PK_OK) {
        result = pk_comm_async_error(comm);
        usleep(1000);
    }
    return result;
}

void ranks_open(struct ranks *ranks, int size)
{
    void *memory;

    memset(ranks, 0, sizeof *ranks);
    ranks->size = size;
    for (int r = 0; r < RANKS_MAX; r++)
        ranks->statuses[r] = -2;
    snprintf(ranks->root, sizeof ranks->root, "127.0.0.1:%d", free_port(NULL, 0));
    ranks->memory = memfd_create("pickle-test", 0); /* the ranks inherit it */
    if (ranks->memory < 0 || ftruncate(ranks->memory, sizeof *ranks->shared) != 0)
        broken("memfd_create");
    memory = mmap(NULL, sizeof *ranks->shared, PROT_READ | PROT_WRITE, MAP_SHARED, ranks->memory, 0);
    if (memory == MAP_FAILED)
        broken("mmap");
    ranks->shared = memory;
}

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* PICKLE_TEST_HOSTS: the ranks take themselves to be on so many hosts, in equal parts. */
static void pretend_host(const struct ranks *ranks, int rank)
{
    const char *hosts = getenv("PICKLE_TEST_HOSTS");
    char name[32];

    if (hosts == NULL)
        return;
    snprintf(name, sizeof name, "test-host-%d", rank * atoi(hosts) / ranks->size);
    setenv("PK_HOST_ID", name, 1);
}

void ranks_start(struct ranks *ranks, int rank, const char *role, char *const *argv, const struct ranks_hooks *hooks)
{
    static char self[4096];
    char *own_argv[] = { self, NULL };
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    int code;

    if (length < 0)
        broken("readlink of /proc/self/exe");
    self[length] = '\0';
    if (argv == NULL)
        argv = own_argv;
    set_number("PK_RANK", rank);
    set_number("PK_SIZE", ranks->size);
    set_number(MEMORY, ranks->memory);
    setenv("PK_ROOT", ranks->root, 1);
    pretend_host(ranks, rank);
    if (role != NULL)
        setenv(ROLE, role, 1);
    if (hooks != NULL && hooks->before != NULL)
        hooks->before(rank, hooks->arg);
    code = posix_spawn(&ranks->pids[rank], argv[0], NULL, NULL, argv, environ);
    if (hooks != NULL && hooks->after != NULL)
        hooks->after(rank, hooks->arg);
    unsetenv(ROLE);
    unsetenv("PK_RANK");
    unsetenv("PK_SIZE");
    unsetenv("PK_ROOT");
    if (code != 0) {
        errno = code;
        broken(argv[0]);
    }
}

void ranks_start_all(struct ranks *ranks, const char *role, char *const *argv, const struct ranks_hooks *hooks)
{
    for (int r = 0; r < ranks->size; r++)
        ranks_start(ranks, r, role, argv, hooks);
}

/* Collect what has ended; returns how many are left. */
static int collect(struct ranks *ranks)
{
    int left = 0;

    for (int r = 0; r < ranks->size; r++) {
        if (ranks->pids[r] == 0)
            continue;
        if (waitpid(ranks->pids[r], &ranks->statuses[r], WNOHANG) == ranks->pids[r])
            ranks->pids[r] = 0;
        else
            left++;
    }
    return left;
}

/* Until one of them may have ended, at most a while: by its descriptor, for each look costs an emulated processor a thousandth of a second. */
static void await_one(const struct ranks *ranks)
{
    struct pollfd one = { .fd = -1, .events = POLLIN };

    for (int r = 0; r < ranks->size && one.fd < 0; r++)
        if (ranks->pids[r] != 0)
            one.fd = (int)syscall(SYS_pidfd_open, ranks->pids[r], 0);
    (void)poll(&one, 1, one.fd >= 0 ? 50 : 2);
    if (one.fd >= 0)
        close(one.fd);
}

int ranks_wait(struct ranks *ranks, int timeout_ms, int victim)
{
    int64_t deadline = monotonic_ns() + (int64_t)timeout_ms * BUSY * 1000000;
    int wrong = 0;

    while (collect(ranks) > 0 && monotonic_ns() < deadline)
        await_one(ranks);
    for (int r = 0; r < ranks->size; r++) {
        if (ranks->pids[r] == 0)
            continue;
        printf("rank %d did not end within %d ms and was killed\n", r, timeout_ms * BUSY);
        kill(ranks->pids[r], SIGKILL);
        waitpid(ranks->pids[r], &ranks->statuses[r], 0);
        ranks->pids[r] = 0;
        ranks->statuses[r] = -1;
    }
    for (int r = 0; r < ranks->size; r++)
        wrong += r != victim && ranks->statuses[r] != 0 && ranks->statuses[r] != -2;
    return wrong;
}

void ranks_close(struct ranks *ranks)
{
    munmap(ranks->shared, sizeof *ranks->shared);
    close(ranks->memory);
}

void ranks_drive(const struct ranks_turn *turn, const char *format, ...)
{
    const double began_ms = monotonic_ms();
    struct ranks ranks;
    char what[512];
    va_list args;
    int wrong;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    ranks_open(&ranks, turn->size);
    atomic_store(&ranks.shared->words[0], turn->word);
    ranks_start_all(&ranks, turn->role, turn->argv, turn->hooks);
    wrong = ranks_wait(&ranks, turn->timeout_ms != 0 ? turn->timeout_ms : 60000, -1);
    report(wrong == 0, "%s: %d of %d ranks failed, %.0f ms", what, wrong, turn->size, monotonic_ms() - began_ms);
    ranks_close(&ranks);
}

bool ranks_under_way(struct ranks *ranks, int word, int64_t enough)
{
    const int64_t deadline = monotonic_ns() + MEET_NS;
    int ready = 0;

    while (ready < ranks->size && monotonic_ns() < deadline) {
        ready = 0;
        for (int r = 0; r < ranks->size; r++)
            ready += atomic_load(&ranks->shared->rank_words[r][word]) > enough;
        usleep(1000);
    }
    return ready == ranks->size;
}

void ranks_forget(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    unsetenv("PK_RANK");
    unsetenv("PK_SIZE");
    unsetenv("PK_ROOT");
}
