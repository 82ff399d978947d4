/* SPDX-License-Identifier: Apache-2.0 */
/* pickle-conform: does the library do what its headers say? Through the public API alone; ranks are threads or processes. */
#include "conform.h"

#include <dirent.h>
#include <execinfo.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cuda_dl.h"

#define CASES_MAX 3000
#define OPERATION_TIMEOUT_MS 60000
#define IDLE_TIMEOUT_MS 3600000 /* of the communicator where ranks wait that are not in a batch */

static const char usage[] =
    "usage: pickle-conform [options]\n"
    "  --ranks N        ranks as threads of this process (default 4); cases have from 1 to so many\n"
    "  --env            this process is one rank: PK_RANK or a launcher says which (assumed when they are set)\n"
    "  --threads        ranks are threads even so\n"
    "  --cases N        of the pairwise list, at most 3000 (default 1000)\n"
    "  --stride N       every N-th of them (default 1)\n"
    "  --seed S         another list and other data (default 1)\n"
    "  --memory M       host or cuda: device memory and CUDA streams as well (default host)\n"
    "  --max-bytes B    of one message (default 4194304)\n"
    "  --filter WORDS   only cases whose description contains WORDS\n"
    "  --no-errors      only the pairwise list\n"
    "  --watchdog S     seconds a case may take (default 100)\n";

/* Everything the threads of this process share. */
struct program {
    struct config config;
    struct item *items;
    unsigned items_count;
    pk_unique_id_t id;
    struct watch watches[RANKS_MAX];
    struct rank ranks[RANKS_MAX];
};

void fail(struct rank *rank, const char *format, ...)
{
    va_list args;

    if (!rank->ok)
        return;
    rank->ok = false;
    va_start(args, format);
    vsnprintf(rank->failure, sizeof rank->failure, format, args);
    va_end(args);
}

bool expect(struct rank *rank, pk_result_t got, pk_result_t wanted, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (got == wanted)
        return true;
    pk_last_error(&info);
    fail(rank, "%s: result %d instead of %d; last error: %.200s", what, (int)got, (int)wanted, info.text);
    return false;
}

_Noreturn void give_up(const struct rank *rank, const char *what, const char *why)
{
    printf("FAIL %s: rank %d: %s; the rest was not run\n", what, rank->rank, why);
    fflush(stdout);
    _exit(1);
}

void share(struct rank *rank, const void *own, void *all, size_t bytes)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (pk_allgather(own, all, bytes, PK_UINT8, rank->comm, PK_BLOCKING) == PK_OK)
        return;
    pk_last_error(&info);
    give_up(rank, rank->watch->what, rank->failure[0] != '\0' ? rank->failure : info.text);
}

bool selected(const struct rank *rank, const char *what)
{
    return rank->config->filter == NULL || strstr(what, rank->config->filter) != NULL;
}

void end_watch(struct rank *rank)
{
    pthread_mutex_lock(&rank->watch->lock);
    rank->watch->since_ns = 0;
    pthread_mutex_unlock(&rank->watch->lock);
}

void begin_case(struct rank *rank, const char *what)
{
    rank->ok = true;
    rank->failure[0] = '\0';
    pthread_mutex_lock(&rank->watch->lock);
    snprintf(rank->watch->what, sizeof rank->watch->what, "%s", what);
    rank->watch->since_ns = monotonic_ns();
    pthread_mutex_unlock(&rank->watch->lock);
}

void end_case(struct rank *rank, const char *what, bool compare, uint64_t digest)
{
    uint64_t own[2] = { rank->ok, digest };
    uint64_t all[RANKS_MAX][2];
    bool passed = true;

    if (!rank->ok)
        printf("FAIL %s: rank %d: %s\n", what, rank->rank, rank->failure);
    rank->failure[0] = '\0';
    share(rank, own, all, sizeof own);
    for (int r = 0; r < rank->size; r++) {
        passed = passed && all[r][0] != 0;
        if (compare && all[r][1] != all[0][1]) {
            passed = false;
            if (rank->rank == 0)
                printf("FAIL %s: ranks 0 and %d ended with different bits\n", what, r);
        }
    }
    rank->passed += passed;
    rank->failed += !passed;
    end_watch(rank);
}

void run_special(struct rank *rank, const struct special *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!selected(rank, cases[i].what))
            continue;
        begin_case(rank, cases[i].what);
        cases[i].run(rank);
        end_case(rank, cases[i].what, false, 0);
    }
}

/* Errors are provoked by the hundred here; PICKLE_TEST_VERBOSE shows what the library says about them. */
static void take_line(void *arg, int level, const char *line)
{
    (void)arg;
    if (getenv("PICKLE_TEST_VERBOSE") != NULL)
        fprintf(stderr, "%d %s\n", level, line);
}

static void print_stack(int signal_number)
{
    void *frames[48];
    int n = backtrace(frames, 48);

    (void)signal_number;
    backtrace_symbols_fd(frames, n, STDOUT_FILENO);
    (void)!write(STDOUT_FILENO, "\n", 1);
}

/* Where every thread is: one may be inside the driver, or hold a lock. */
static void print_stacks(void)
{
    struct sigaction action = { .sa_handler = print_stack, .sa_flags = SA_RESTART };
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;

    sigaction(SIGUSR2, &action, NULL);
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        long tid = strtol(entry->d_name, NULL, 10);

        if (tid <= 0 || tid == syscall(SYS_gettid))
            continue;
        printf("thread %ld:\n", tid);
        fflush(stdout);
        syscall(SYS_tgkill, getpid(), tid, SIGUSR2);
        usleep(50000); /* one after the other */
    }
    if (tasks != NULL)
        closedir(tasks);
}

/* What this rank waits for, and the others of the process. */
static void print_hang(const struct program *program, const struct rank *rank)
{
    static char text[64 << 10];

    printf("HUNG rank %d for %u s in %s\n", rank->rank, rank->config->watchdog_s, rank->watch->what);
    for (int r = 0; r < program->config.ranks; r++)
        if (program->ranks[r].comm != NULL && pk_pending_dump(program->ranks[r].comm, text, sizeof text, NULL) == PK_OK)
            printf("%s", text);
    print_stacks();
    fflush(stdout);
}

/* Ends the process, with a core file where those are wanted, when a rank of it takes too long over a case. */
static void *watch(void *arg)
{
    struct program *program = arg;
    int64_t limit_ns = (int64_t)program->config.watchdog_s * 1000000000;

    for (;;) {
        usleep(200000);
        for (int r = 0; r < program->config.ranks; r++) {
            struct watch *w = &program->watches[r];

            pthread_mutex_lock(&w->lock);
            if (w->since_ns != 0 && monotonic_ns() - w->since_ns > limit_ns) {
                print_hang(program, &program->ranks[r]);
                sleep(2); /* the other ranks, if processes, say what they wait for too */
                abort();
            }
            pthread_mutex_unlock(&w->lock);
        }
    }
    return NULL;
}

static void open_rank(struct program *program, struct rank *rank)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_result_t result;

    begin_case(rank, "start");
    config.device = PK_DEVICE_HOST;
    if (program->config.cuda) {
        const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
        const char *global = getenv("PK_RANK");
        int index = !program->config.processes ? rank->rank : local != NULL ? atoi(local) : global != NULL ? atoi(global) : 0;

        gpu_use(index % gpu_count());
        config.device = PK_DEVICE_CUDA(index % gpu_count());
        rank->streams[END_CUDA] = PK_CUDA_STREAM(gpu_stream_new());
    }
    config.timeout_ms = OPERATION_TIMEOUT_MS;
    rank->comm_config = config;
    config.timeout_ms = IDLE_TIMEOUT_MS;
    result = program->config.processes ? pk_comm_init(&rank->comm, &config)
                                       : pk_comm_init_rank(&rank->comm, program->config.ranks, rank->rank, &program->id, &config);
    rank->streams[END_BLOCKING] = PK_BLOCKING;
    expect(rank, result, PK_OK, "init");
    if (rank->ok) {
        expect(rank, pk_comm_rank(rank->comm, &rank->rank), PK_OK, "pk_comm_rank");
        expect(rank, pk_comm_size(rank->comm, &rank->size), PK_OK, "pk_comm_size");
        expect(rank, pk_stream_create(&rank->streams[END_HOST]), PK_OK, "pk_stream_create");
    }
    if (!rank->ok)
        give_up(rank, "start", rank->failure);
    end_case(rank, "start", false, 0);
    rank->passed = 0; /* no case of its own */
}

static void close_rank(struct rank *rank)
{
    begin_case(rank, "end");
    end_case(rank, "end", false, 0);
    rank->passed--;
    if (pk_stream_destroy(rank->streams[END_HOST]) != PK_OK)
        give_up(rank, "end", "pk_stream_destroy failed");
    if (pk_comm_destroy(rank->comm) != PK_OK)
        give_up(rank, "end", "pk_comm_destroy failed");
    gpu_stream_free(rank->streams[END_CUDA].handle);
}

static struct program program;

/* Every stride-th case of the list. */
static void make_list(int ranks)
{
    unsigned n = list_cases(&program.config, ranks, program.items), kept = 0;

    for (unsigned i = 0; i < n; i++)
        if (program.items[i].number % program.config.stride == 0)
            program.items[kept++] = program.items[i];
    program.items_count = kept;
}

static void *run_rank(void *arg)
{
    struct rank *rank = arg;

    open_rank(&program, rank);
    if (program.config.processes)
        make_list(rank->size);
    run_list(rank, program.items, program.items_count);
    if (program.config.errors) {
        run_argument_errors(rank);
        run_collective_errors(rank);
        run_promises(rank);
        run_inspection(rank);
        run_lifecycle(rank);
        run_survival(rank);
        run_seats(rank);
        run_within(rank);
        run_peer_errors(rank);
    }
    close_rank(rank);
    return NULL;
}

static _Noreturn void bad_usage(void)
{
    fputs(usage, stderr);
    exit(2);
}

static bool launched(void)
{
    return getenv("PK_RANK") != NULL || getenv("PMIX_RANK") != NULL;
}

static unsigned long number(const char *text, unsigned long min, unsigned long max)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    if (end == text || *end != '\0' || value < min || value > max)
        bad_usage();
    return value;
}

static void parse(int argc, char **argv, struct config *c)
{
    static const struct option options[] = {
        { "ranks", required_argument, NULL, 'r' },    { "cases", required_argument, NULL, 'c' },
        { "stride", required_argument, NULL, 'k' },   { "seed", required_argument, NULL, 's' },
        { "threads", no_argument, NULL, 't' },        { "env", no_argument, NULL, 'e' },
        { "memory", required_argument, NULL, 'm' },   { "max-bytes", required_argument, NULL, 'b' },
        { "filter", required_argument, NULL, 'f' },   { "no-errors", no_argument, NULL, 'n' },
        { "watchdog", required_argument, NULL, 'w' }, { NULL, 0, NULL, 0 },
    };
    int letter;

    *c = (struct config){ .ranks = 4,
                          .cases = 1000,
                          .stride = 1,
                          .seed = 1,
                          .processes = launched(),
                          .errors = true,
                          .max_bytes = 4 << 20,
                          .watchdog_s = 100 };
    while ((letter = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (letter) {
        case 'r':
            c->ranks = (int)number(optarg, 1, RANKS_MAX);
            break;
        case 'c':
            c->cases = (unsigned)number(optarg, 0, CASES_MAX);
            break;
        case 'k':
            c->stride = (unsigned)number(optarg, 1, CASES_MAX);
            break;
        case 's':
            c->seed = number(optarg, 0, 1ul << 40);
            break;
        case 't':
            c->processes = false;
            break;
        case 'e':
            c->processes = true;
            break;
        case 'm':
            c->cuda = strcmp(optarg, "cuda") == 0;
            break;
        case 'b':
            c->max_bytes = number(optarg, 64, 1ul << 34);
            break;
        case 'f':
            c->filter = optarg;
            break;
        case 'n':
            c->errors = false;
            break;
        case 'w':
            c->watchdog_s = (unsigned)number(optarg, 1, 3600);
            break;
        default:
            bad_usage();
        }
    }
    if (c->processes)
        c->ranks = 1; /* in this process */
}

static void run_threads(void)
{
    pthread_t threads[RANKS_MAX];

    if (pk_get_unique_id(&program.id) != PK_OK) {
        fputs("pickle-conform: pk_get_unique_id failed\n", stderr);
        exit(1);
    }
    for (int r = 0; r < program.config.ranks; r++) {
        program.ranks[r].rank = r;
        if (pthread_create(&threads[r], NULL, run_rank, &program.ranks[r]) != 0)
            abort();
    }
    for (int r = 0; r < program.config.ranks; r++)
        pthread_join(threads[r], NULL);
}

int main(int argc, char **argv)
{
    pthread_t watcher;
    const struct rank *first = &program.ranks[0];

    parse(argc, argv, &program.config);
    if (program.config.cuda && gpu_absent() != NULL) {
        printf("SKIPPED: %s\n", gpu_absent());
        return 77;
    }
    pk_log_set_callback(take_line, NULL);
    program.items = calloc(CASES_MAX, sizeof *program.items);
    if (program.items == NULL)
        return 2;
    if (!program.config.processes)
        make_list(program.config.ranks);
    for (int r = 0; r < program.config.ranks; r++) {
        pthread_mutex_init(&program.watches[r].lock, NULL);
        program.ranks[r].config = &program.config;
        program.ranks[r].watch = &program.watches[r];
    }
    if (pthread_create(&watcher, NULL, watch, &program) != 0)
        return 2;
    pthread_detach(watcher);
    if (program.config.processes)
        run_rank(&program.ranks[0]);
    else
        run_threads();
    if (first->rank == 0)
        printf("%u passed, %u failed (%d ranks as %s, seed %llu)\n", first->passed, first->failed, first->size,
               program.config.processes ? "processes" : "threads", (unsigned long long)program.config.seed);
    free(program.items);
    return first->failed == 0 ? 0 : 1;
}
