/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle-crowded: ranks that share CPUs, and groups over several communicators. Each row is two kinds of turns, taken in pairs in one run, whose
 * medians are compared: allreduce of 8 bytes among two and among three ranks that are all bound to one CPU; and two allreduces of 8 bytes in a
 * group, both in one communicator or one in each of two, among ranks that have two CPUs or one.
 */
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pickle/pickle.h>

#include "arguments.h"
#include "timing.h"

#define PAIRS_MAX 1000
#define TURN_US 30000.0
#define TRIED 4 /* calls before a turn, by which its length is found */
#define FIRST_PORT 23800

struct times {
    double us[2][PAIRS_MAX]; /* of a call */
};

static struct times *times;
static int pairs = 15;

static void must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    (void)pk_last_error(&info);
    fprintf(stderr, "pickle-crowded: %s: %s: %s\n", what, pk_strerror(result), info.text);
    exit(1);
}

static void allreduce(pk_comm_t *comm)
{
    double one = 1, sum;

    must(pk_allreduce(&one, &sum, 1, PK_F64, PK_SUM, comm, PK_BLOCKING), "allreduce");
}

/* The calls of a turn: alone in comms[0], or two in a group, in comms[0] and in `second`. */
static void call(pk_comm_t *const comms[2], pk_comm_t *second, int n)
{
    double ones[2] = { 1, 1 }, sums[2];

    for (int i = 0; i < n; i++) {
        if (second == NULL) {
            allreduce(comms[0]);
            continue;
        }
        must(pk_group_start(), "group_start");
        must(pk_allreduce(&ones[0], &sums[0], 1, PK_F64, PK_SUM, comms[0], PK_BLOCKING), "allreduce");
        must(pk_allreduce(&ones[1], &sums[1], 1, PK_F64, PK_SUM, second, PK_BLOCKING), "allreduce");
        must(pk_group_end(), "group_end");
    }
}

/* As many calls on all ranks. Returns microseconds a call. */
static double turn(pk_comm_t *const comms[2], pk_comm_t *second)
{
    double begin = now_us(), us, n;

    call(comms, second, TRIED);
    us = (now_us() - begin) / TRIED;
    n = us > 0 && TURN_US / us > TRIED ? TURN_US / us : TRIED;
    must(pk_broadcast(&n, &n, 1, PK_F64, 0, comms[0], PK_BLOCKING), "broadcast");
    begin = now_us();
    call(comms, second, (int)n);
    return (now_us() - begin) / (int)n;
}

static void bind_to(const int *cpus, int n)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < n; i++)
        CPU_SET(cpus[i], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("pickle-crowded: sched_setaffinity");
        exit(1);
    }
}

struct job {
    int ranks, cpus;
    bool groups;    /* both kinds of turns in each pair; else one turn, of single calls, */
    int kind, pair; /* which is this one */
};

static _Noreturn void rank_main(const struct job *job, int rank, const int *cpus, int port)
{
    pk_comm_t *comms[2] = { NULL, NULL };
    char text[32];

    bind_to(cpus, job->cpus);
    (void)snprintf(text, sizeof text, "%d", rank);
    setenv("PK_RANK", text, 1);
    (void)snprintf(text, sizeof text, "%d", job->ranks);
    setenv("PK_SIZE", text, 1);
    (void)snprintf(text, sizeof text, "127.0.0.1:%d", port);
    setenv("PK_ROOT", text, 1);
    must(pk_comm_init(&comms[0], NULL), "init");
    must(pk_comm_split(comms[0], 0, rank, &comms[1], NULL), "split");
    for (int pair = job->groups ? 0 : job->pair; pair < (job->groups ? pairs : job->pair + 1); pair++)
        for (int kind = 0; kind < 2; kind++) {
            double us = kind == job->kind || job->groups ? turn(comms, job->groups ? comms[kind] : NULL) : 0;

            if (rank == 0 && us > 0)
                times->us[kind][pair] = us;
        }
    must(pk_comm_destroy(comms[1]), "destroy");
    must(pk_comm_destroy(comms[0]), "destroy");
    exit(0);
}

static void run(const struct job *job, const int *cpus)
{
    static int port = FIRST_PORT;
    int status, failed = 0;

    port = port < FIRST_PORT + 1000 ? port + 1 : FIRST_PORT;
    (void)fflush(NULL);
    for (int rank = 0; rank < job->ranks; rank++) {
        pid_t pid = fork();

        if (pid < 0) {
            perror("pickle-crowded: fork");
            exit(1);
        }
        if (pid == 0)
            rank_main(job, rank, cpus, port);
    }
    for (int rank = 0; rank < job->ranks; rank++)
        failed += wait(&status) < 0 || status != 0;
    if (failed > 0)
        exit(1);
}

static void row(const char *what, const char *first, const char *second)
{
    double one = median(times->us[0], (size_t)pairs), other = median(times->us[1], (size_t)pairs);

    printf("%-26s %10.1f us %-18s %10.1f us %-18s ratio %8.2f\n", what, one, first, other, second, other / one);
}

static void two_or_three(const int *cpus)
{
    for (int pair = 0; pair < pairs; pair++)
        for (int kind = 0; kind < 2; kind++)
            run(&(struct job){ .ranks = kind == 0 ? 3 : 2, .cpus = 1, .kind = kind, .pair = pair }, cpus);
    row("allreduce on one CPU", "3 ranks", "2 ranks");
}

static void groups(int ranks, int ncpus, const int *cpus)
{
    char what[64];

    run(&(struct job){ .ranks = ranks, .cpus = ncpus, .groups = true }, cpus);
    (void)snprintf(what, sizeof what, "group, %d ranks on %d CPU%s", ranks, ncpus, ncpus > 1 ? "s" : "");
    row(what, "1 communicator", "2 communicators");
}

int main(int argc, char **argv)
{
    cpu_set_t mine;
    int cpus[2], n = 0;

    if (arguments_parse("pickle-crowded", "usage: pickle-crowded [PAIRS]   (default 15)\n", &(struct argument){ 0 }, 0, 1, argc,
                        argv) < argc)
        pairs = (int)argument_size("PAIRS", argv[argc - 1], 1, PAIRS_MAX);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) {
        perror("pickle-crowded: sched_getaffinity");
        return 1;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
        if (CPU_ISSET(cpu, &mine))
            cpus[n++] = cpu;
    times = mmap(NULL, sizeof *times, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (times == MAP_FAILED) {
        perror("pickle-crowded: mmap");
        return 1;
    }
    printf("# medians of %d pairs, turn by turn\n", pairs);
    two_or_three(cpus);
    groups(2, 1, cpus);
    if (n == 2)
        groups(4, 2, cpus);
    if (n == 2)
        groups(8, 2, cpus);
    return 0;
}
