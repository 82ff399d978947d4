/* SPDX-License-Identifier: Apache-2.0 */
#include "own_threads.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "measure.h"

#define THREADS 64
#define LIMIT_MS 40000

enum state { ASKED, STOPPED, AWAKE };

/* A generation is over when its threads may go on. */
static _Atomic uint32_t generation;
static struct stopped {
    _Atomic pid_t tid; /* 0: none */
    _Atomic int state;
} threads[THREADS];

static long futex(_Atomic uint32_t *word, int operation, uint32_t value)
{
    return syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static bool was_asleep(const ucontext_t *context)
{
#if defined(__x86_64__)
    return context->uc_mcontext.gregs[REG_RAX] == -EINTR;
#elif defined(__aarch64__)
    return (int64_t)context->uc_mcontext.regs[0] == -EINTR;
#else
#error "where does a system call that a signal ended leave its result?"
#endif
}

/* In the thread. A system call that the signal has ended slept: no lock is held by a thread that sleeps until there is work. */
static void stay(int number, siginfo_t *info, void *context)
{
    const int error = errno;
    const pid_t self = (pid_t)syscall(SYS_gettid);
    const uint32_t now = atomic_load(&generation);

    (void)number;
    (void)info;
    for (int i = 0; i < THREADS; i++) {
        if (atomic_load(&threads[i].tid) != self)
            continue;
        if (!was_asleep(context)) {
            atomic_store(&threads[i].state, AWAKE);
            break;
        }
        atomic_store(&threads[i].state, STOPPED);
        while (atomic_load(&generation) == now)
            futex(&generation, FUTEX_WAIT_PRIVATE, now);
        break;
    }
    errno = error;
}

/* A line of /proc/self/task/<tid>/status that begins so; false: the thread has ended. */
static bool status_line(pid_t tid, const char *name, char *line, size_t bytes)
{
    char path[64];
    bool found = false;
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)tid);
    file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, (int)bytes, file) != NULL)
        found = strncmp(line, name, strlen(name)) == 0;
    if (file != NULL)
        fclose(file);
    return found;
}

/* The signals of faults, and those that nobody can block, are left; a driver's thread blocks all, or none. */
static bool is_the_librarys(pid_t tid)
{
    static const int left[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGKILL, SIGSTOP, 32, 33 };
    uint64_t wanted = ~(uint64_t)0;
    char line[256];

    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++)
        wanted &= ~((uint64_t)1 << (left[i] - 1));
    return status_line(tid, "SigBlk:", line, sizeof line) && strtoull(line + 7, NULL, 16) == wanted;
}

static bool sleeps(pid_t tid)
{
    char line[256];

    return status_line(tid, "State:", line, sizeof line) && strchr(line, 'S') != NULL && strstr(line, "sleeping") != NULL;
}

/* True: it stays. False: it was awake, or is no more. */
static bool stop_now(struct stopped *thread, pid_t tid)
{
    const double begin = monotonic_ms();

    if (!sleeps(tid))
        return false;
    atomic_store(&thread->state, ASKED);
    atomic_store(&thread->tid, tid);
    if (syscall(SYS_tgkill, getpid(), tid, SIGSYS) != 0)
        atomic_store(&thread->state, AWAKE);
    while (atomic_load(&thread->state) == ASKED && monotonic_ms() - begin < LIMIT_MS)
        usleep(50);
    if (atomic_load(&thread->state) != STOPPED)
        atomic_store(&thread->tid, 0);
    return atomic_load(&thread->state) == STOPPED;
}

static bool is_stopped(pid_t tid)
{
    bool found = false;

    for (int i = 0; i < THREADS; i++)
        found |= atomic_load(&threads[i].tid) == tid;
    return found;
}

static struct stopped *free_place(void)
{
    for (int i = 0; i < THREADS; i++)
        if (atomic_load(&threads[i].tid) == 0)
            return &threads[i];
    return NULL;
}

/* Every thread of the library's that is not stopped, once. Returns how many are left. */
static int stop_some(void)
{
    DIR *folder = opendir("/proc/self/task");
    int left = 0;

    if (folder == NULL)
        return 1;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        pid_t tid = (pid_t)atoi(entry->d_name);
        struct stopped *place = free_place();

        if (tid <= 0 || is_stopped(tid) || !is_the_librarys(tid))
            continue;
        left += place == NULL || !stop_now(place, tid);
    }
    closedir(folder);
    return left;
}

static int count_stopped(void)
{
    int count = 0;

    for (int i = 0; i < THREADS; i++)
        count += atomic_load(&threads[i].tid) != 0;
    return count;
}

int own_threads_stop(void)
{
    const struct sigaction action = { .sa_sigaction = stay, .sa_flags = SA_SIGINFO };
    const double begin = monotonic_ms();
    int left, before, count = 0;

    sigaction(SIGSYS, &action, NULL);
    do {
        before = count;
        left = stop_some();
        count = count_stopped();
        if (left > 0 || count != before)
            usleep(1000); /* a thread that has just been made cannot be told yet */
    } while ((left > 0 || count != before) && monotonic_ms() - begin < LIMIT_MS);
    return left > 0 ? -1 : count;
}

void own_threads_go(void)
{
    for (int i = 0; i < THREADS; i++)
        atomic_store(&threads[i].tid, 0);
    atomic_fetch_add(&generation, 1);
    futex(&generation, FUTEX_WAKE_PRIVATE, INT_MAX);
}
