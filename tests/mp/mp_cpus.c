/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are bound to CPUs: who has no CPU of its own yields when it waits, and pk_topology_dump says so; and the library's threads run where
 * the program may, or where PK_THREAD_CPUS says. Two CPUs are needed (77 without).
 */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "engine/life.h"
#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE_MAX_HERE 3
#define ROUNDS 20
#define LONG (4 << 20) /* bytes: threads of a transport take part */

static int cpus[2]; /* two that this process may use */

static bool find_cpus(void)
{
    cpu_set_t mine;
    int n = 0;

    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        return false;
    for (int cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
        if (CPU_ISSET(cpu, &mine))
            cpus[n++] = cpu;
    return n == 2;
}

/* "0", "1" or "01": of those two. */
static cpu_set_t set_of(const char *which)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (; *which != '\0'; which++)
        CPU_SET(cpus[*which - '0'], &set);
    return set;
}

static void bind_to(const char *which)
{
    cpu_set_t set = set_of(which);

    if (sched_setaffinity(0, sizeof set, &set) != 0)
        perror("sched_setaffinity");
}

static pk_comm_t *init(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    report(pk_comm_init(&comm, &config) == PK_OK, "%s: rank %d: init", ranks_role(), ranks_rank());
    return comm;
}

/* ---- Who shares ---- */

/* Where each rank may run, and whether it shares then. */
static const struct binding {
    const char *name;
    int size;
    const char *where[SIZE_MAX_HERE];
    bool shares[SIZE_MAX_HERE];
} bindings[] = {
    { "two on one CPU", 2, { "0", "0" }, { true, true } },
    { "one on each CPU", 2, { "0", "1" }, { false, false } },
    { "two as they like", 2, { "01", "01" }, { false, false } },
    { "one as it likes", 2, { "01", "0" }, { false, false } },
    { "three on two CPUs", 3, { "01", "01", "01" }, { true, true, true } },
    { "two on one CPU, one on the other", 3, { "0", "1", "0" }, { true, false, true } },
};

/* The line of each rank, this host's or another's. */
static void check_dump(const pk_comm_t *comm, const struct binding *b)
{
    char text[16384], start[32];

    report(pk_topology_dump(comm, text, sizeof text, NULL) == PK_OK, "%s: topology", b->name);
    for (int i = 0; i < b->size; i++) {
        const char *line, *end, *found;

        snprintf(start, sizeof start, "\nrank %d", i);
        line = strstr(text, start);
        end = line != NULL ? strchr(line + 1, '\n') : NULL;
        found = line != NULL ? strstr(line, "shares its CPU") : NULL;
        report(end != NULL && (found != NULL && found < end) == b->shares[i], "%s: rank %d: the dump says what rank %d has",
               b->name, ranks_rank(), i);
    }
}

static int share_rank(void)
{
    const struct binding *b = &bindings[atomic_load(&ranks_shared()->words[0])];
    pk_comm_t *comm = init();
    int own = ranks_rank(), sum = 0, right = 0;

    if (comm == NULL)
        return report_end();
    report(comm->engine->config.shares_cpu == b->shares[own], "%s: rank %d %s", b->name, own,
           comm->engine->config.shares_cpu ? "yields" : "spins");
    check_dump(comm, b);
    for (int i = 0; i < ROUNDS; i++) {
        bool good = pk_allreduce(&own, &sum, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING) == PK_OK;

        right += good && sum == b->size * (b->size - 1) / 2;
    }
    report(right == ROUNDS, "%s: rank %d: %d of %d sums", b->name, own, right, ROUNDS);
    report(pk_comm_destroy(comm) == PK_OK, "%s: rank %d: destroy", b->name, own);
    return report_end();
}

/* ---- Threads of the library ---- */

/* Threads of this process that may not run exactly there, but `except`. */
static int threads_elsewhere(const cpu_set_t *there, const pid_t *except, int *threads)
{
    DIR *folder = opendir("/proc/self/task");
    struct dirent *entry;
    int wrong = 0;

    *threads = 0;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        pid_t id = (pid_t)atoi(entry->d_name);
        cpu_set_t set;

        if (id <= 0 || id == except[0] || id == except[1] || sched_getaffinity(id, sizeof set, &set) != 0)
            continue;
        ++*threads;
        wrong += !CPU_EQUAL(&set, there);
    }
    if (folder != NULL)
        closedir(folder);
    return wrong;
}

/* So that the service thread runs, and between hosts those of the transport. */
static void work(pk_comm_t *comm)
{
    unsigned char *in = calloc(1, LONG), *out = calloc(1, LONG);
    pk_stream_t stream;
    bool good = in != NULL && out != NULL && pk_stream_create(&stream) == PK_OK;

    for (int i = 0; i < 2 && good; i++) {
        good = pk_allreduce(in, out, LONG, PK_UINT8, PK_SUM, comm, PK_BLOCKING) == PK_OK &&
               pk_allreduce(in, out, LONG, PK_UINT8, PK_SUM, comm, stream) == PK_OK;
        usleep(20000);
        good = good && pk_stream_synchronize(stream) == PK_OK;
    }
    report(good && pk_stream_destroy(stream) == PK_OK, "%s: rank %d: operations", ranks_role(), ranks_rank());
    free(in);
    free(out);
}

/* The process is bound to one CPU; or it is not, and the thread that calls the library is. The role says where the library's threads are then. */
static void *use(void *arg)
{
    const char *calling = arg, *there = strchr(ranks_role(), '>') + 1;
    const pid_t program[] = { getpid(), gettid() };
    cpu_set_t set = set_of(there);
    int threads = 0, wrong;
    pk_comm_t *comm;

    if (calling != NULL)
        bind_to(calling);
    comm = init();
    if (comm == NULL)
        return NULL;
    work(comm);
    wrong = threads_elsewhere(&set, program, &threads);
    /* service, and one at least of TCP's */
    report(threads >= 2, "%s: rank %d: %d threads of the library", ranks_role(), ranks_rank(), threads);
    report(wrong == 0, "%s: rank %d: %d of them elsewhere", ranks_role(), ranks_rank(), wrong);
    ranks_meet();
    report(pk_comm_destroy(comm) == PK_OK, "%s: rank %d: destroy", ranks_role(), ranks_rank());
    return NULL;
}

static int thread_rank(void)
{
    static char one[] = "1";
    pthread_t thread;

    if (strncmp(ranks_role(), "calling", 7) != 0) {
        (void)use(NULL);
        return report_end();
    }
    if (pthread_create(&thread, NULL, use, one) == 0)
        pthread_join(thread, NULL);
    return report_end();
}

/* ---- Settings that make no sense ---- */

static int refused_rank(void)
{
    static const char *const bad[] = { "everywhere", "0-", "2-1", "0,,1", "8191" };
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pk_error_info_t info = { .struct_size = sizeof info };
        pk_comm_t *comm = NULL;
        pk_result_t result;

        setenv("PK_THREAD_CPUS", bad[i], 1);
        result = pk_comm_init(&comm, &config);
        (void)pk_last_error(&info);
        report(result == PK_ERR_ARG && comm == NULL && strstr(info.text, "PK_THREAD_CPUS") != NULL, "'%s': %s: %s", bad[i],
               pk_strerror(result), info.text);
    }
    return report_end();
}

/* ---- The driver ---- */

static void bind_rank(int rank, void *arg)
{
    bind_to(((const struct binding *)arg)->where[rank]);
}

static void unbind(int rank, void *arg)
{
    (void)rank;
    (void)arg;
    bind_to("01");
}

/* Each rank is a host of its own, with two threads for TCP. */
struct threads_turn {
    const char *role, *where, *setting; /* setting: "%": the first of the two CPUs, by number */
};

static void prepare(int rank, void *arg)
{
    const struct threads_turn *turn = arg;
    char text[32];

    setenv("PK_HOST_ID", rank == 0 ? "here" : "there", 1);
    setenv("PK_SOCKETS", "2/2", 1);
    snprintf(text, sizeof text, "%d", cpus[0]);
    if (turn->setting != NULL)
        setenv("PK_THREAD_CPUS", strcmp(turn->setting, "%") == 0 ? text : turn->setting, 1);
    bind_to(turn->where);
}

static void clean(int rank, void *arg)
{
    unbind(rank, arg);
    unsetenv("PK_HOST_ID");
    unsetenv("PK_SOCKETS");
    unsetenv("PK_THREAD_CPUS");
}

static const struct threads_turn thread_turns[] = {
    { "bound>1", "1", NULL },
    { "bound, inherit>1", "1", "inherit" },
    { "bound, a CPU listed>0", "1", "%" },
    { "calling thread bound>01", "01", NULL },
};

int main(void)
{
    if (!find_cpus() && ranks_role() == NULL) {
        printf("SKIPPED: this process may use one CPU alone\n");
        return 77;
    }
    if (ranks_role() != NULL) { /* bound: the two are the driver's */
        sscanf(getenv("PICKLE_TEST_TWO_CPUS"), "%d %d", &cpus[0], &cpus[1]);
        return strcmp(ranks_role(), "shares") == 0    ? share_rank()
               : strcmp(ranks_role(), "refused") == 0 ? refused_rank()
                                                      : thread_rank();
    }
    {
        char text[32];

        snprintf(text, sizeof text, "%d %d", cpus[0], cpus[1]);
        setenv("PICKLE_TEST_TWO_CPUS", text, 1);
    }
    for (size_t i = 0; i < sizeof bindings / sizeof *bindings; i++) {
        const struct ranks_hooks hooks = { .before = bind_rank, .after = unbind, .arg = (void *)(uintptr_t)&bindings[i] };

        ranks_drive(&(struct ranks_turn){ .role = "shares", .size = bindings[i].size, .hooks = &hooks, .word = (int64_t)i }, "%s",
                    bindings[i].name);
    }
    for (size_t i = 0; i < sizeof thread_turns / sizeof *thread_turns; i++) {
        const struct ranks_hooks hooks = { .before = prepare, .after = clean, .arg = (void *)(uintptr_t)&thread_turns[i] };

        ranks_drive(&(struct ranks_turn){ .role = thread_turns[i].role, .size = 2, .hooks = &hooks }, "%s", thread_turns[i].role);
    }
    ranks_drive(&(struct ranks_turn){ .role = "refused", .size = 1 }, "PK_THREAD_CPUS refused");
    return report_end();
}
