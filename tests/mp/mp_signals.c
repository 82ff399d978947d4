/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that handle faults: garbage collectors, write barriers, memory that is filled when it is touched, crash reporters. The library
 * touches their buffers in threads of its own too, and a fault there is handled like any other; signals that have nothing to do with what a
 * thread does are left to the program's own threads.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 2
#define COUNT 2000 /* of 4 bytes: short enough to be copied by the processor on every way */
#define WAIT_MS 20000

static const int kinds[] = { SIGSEGV, SIGBUS }; /* that a buffer here raises */
static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };

static struct {
    void *buffer;
    size_t bytes;
    _Atomic int handled;
    _Atomic pid_t thread; /* that met the last one */
} guarded;

static int32_t ones[COUNT];

/* Both kinds of buffer become plain memory when they are touched: what pages of a mapping had no file behind them too. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;

    (void)context;
    if (at < (char *)guarded.buffer || at >= (char *)guarded.buffer + guarded.bytes)
        _exit(100 + number);
    if (number == SIGSEGV && mprotect(guarded.buffer, guarded.bytes, PROT_READ | PROT_WRITE) != 0)
        _exit(4);
    if (number == SIGBUS &&
        mmap(guarded.buffer, guarded.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        _exit(5);
    atomic_store(&guarded.thread, gettid());
    atomic_fetch_add(&guarded.handled, 1);
}

/* SIGSEGV: pages that may not be touched. SIGBUS: pages of a file that has none. */
static int32_t *guard(int number)
{
    int fd = number == SIGBUS ? memfd_create("test", MFD_CLOEXEC) : -1;

    guarded.bytes = (COUNT * sizeof(int32_t) / (size_t)getpagesize() + 1) * (size_t)getpagesize();
    guarded.buffer = mmap(NULL, guarded.bytes, number == SIGBUS ? PROT_READ | PROT_WRITE : PROT_NONE,
                          MAP_PRIVATE | (number == SIGBUS ? 0 : MAP_ANONYMOUS), fd, 0);
    atomic_store(&guarded.handled, 0);
    if (fd >= 0)
        close(fd);
    if (guarded.buffer == MAP_FAILED)
        exit(6);
    return guarded.buffer;
}

static void release(void)
{
    munmap(guarded.buffer, guarded.bytes);
}

static bool all_are(const int32_t *values, int32_t value)
{
    for (size_t i = 0; i < COUNT; i++)
        if (values[i] != value)
            return false;
    return true;
}

static void say(const char *what, int number, pk_result_t result, const int32_t *values, int32_t wanted, bool own)
{
    report(result == PK_OK && all_are(values, wanted), "%s, signal %d: rank %d: result %d, data %s", what, number, ranks_rank(),
           (int)result, all_are(values, wanted) ? "right" : "WRONG");
    report(atomic_load(&guarded.handled) > 0 && own == (atomic_load(&guarded.thread) == getpid()),
           "%s, signal %d: rank %d: %d faults handled, by thread %d of process %d", what, number, ranks_rank(),
           atomic_load(&guarded.handled), (int)atomic_load(&guarded.thread), (int)getpid());
}

static void fault_in_the_call(int number, pk_comm_t *comm)
{
    int32_t *sum = guard(number);

    say("blocking", number, pk_allreduce(ones, sum, COUNT, PK_INT32, PK_SUM, comm, PK_BLOCKING), sum, SIZE, true);
    release();
}

/* The sender begins when the receive is in its stream, and nobody waits for that until the fault has been handled: in the library's thread. */
static void fault_in_a_stream(int number, int receiver, pk_comm_t *comm, pk_stream_t stream)
{
    const double until = monotonic_ms() + WAIT_MS;
    int32_t *got;
    pk_result_t result;

    if (ranks_rank() != receiver) {
        ranks_meet();
        result = pk_send(ones, COUNT, PK_INT32, receiver, comm, PK_BLOCKING);
        report(result == PK_OK, "in a stream, signal %d: rank %d: sent, result %d", number, ranks_rank(), (int)result);
        return;
    }
    got = guard(number);
    result = pk_recv(got, COUNT, PK_INT32, 1 - receiver, comm, stream);
    ranks_meet();
    while (atomic_load(&guarded.handled) == 0 && monotonic_ms() < until)
        usleep(1000);
    if (result == PK_OK)
        result = pk_stream_synchronize(stream);
    say("in a stream", number, result, got, 1, false);
    release();
}

static bool is_fault(int number)
{
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        if (faults[i] == number)
            return true;
    return false;
}

/* Signals that the thread has blocked, a bit each, from the lowest. */
static unsigned long long blocked_by(const char *thread)
{
    char path[300], line[256];
    unsigned long long set = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "SigBlk: %llx", &set) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return set;
}

/* Every thread of the library has blocked all signals but those of faults, and this one none. */
static void look_at_masks(void)
{
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry;
    int threads = 0;

    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        const bool own = atoi(entry->d_name) == getpid();
        unsigned long long set;

        if (entry->d_name[0] == '.')
            continue;
        set = blocked_by(entry->d_name);
        threads += !own;
        for (int number = 1; number < SIGSYS + 1; number++) {
            const bool blocked = set >> (number - 1) & 1,
                       wanted = !own && !is_fault(number) && number != SIGKILL && number != SIGSTOP;

            if (blocked != wanted)
                report(false, "rank %d: signal %d is%s blocked in a thread of the %s", ranks_rank(), number,
                       blocked ? "" : " not", own ? "program" : "library");
        }
    }
    if (tasks != NULL)
        closedir(tasks);
    report(threads > 0, "rank %d: %d threads of the library", ranks_rank(), threads);
}

static int rank_main(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_stream_t stream = PK_BLOCKING;
    pk_comm_t *comm = NULL;

    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    if (!report(pk_comm_init(&comm, &config) == PK_OK && pk_stream_create(&stream) == PK_OK, "rank %d: init", ranks_rank()))
        return report_end();
    for (size_t i = 0; i < COUNT; i++)
        ones[i] = 1;
    for (int i = 0; i < 2; i++)
        fault_in_the_call(kinds[i], comm);
    for (int i = 0; i < 4; i++)
        fault_in_a_stream(kinds[i / 2], i % 2, comm, stream);
    look_at_masks();
    report(pk_stream_destroy(stream) == PK_OK && pk_comm_destroy(comm) == PK_OK, "rank %d: destroy", ranks_rank());
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
    ranks_drive(&(struct ranks_turn){ .role = "faults", .size = SIZE, .hooks = &hooks },
                "faults that the program handles, one host");
    apart = true;
    ranks_drive(&(struct ranks_turn){ .role = "faults", .size = SIZE, .hooks = &hooks },
                "faults that the program handles, two hosts");
    return report_end();
}
