/* SPDX-License-Identifier: Apache-2.0 */
#include "grow.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 4
#define COUNT (16 << 10)
#define ROUNDS 12
#define ROUNDS_MAX 1000
#define RECOVER_MS 60000
#define FAILED (2 * SIZE) /* says more than all that have the new communicator together */
#define WITNESS 1         /* is never killed */

/* Words of the shared memory, of all and of each process. */
enum { STOP, ROUND, BLOCKING, ID_ROUND };
enum { DONE_ROUND, PAUSE_NS, JOIN_NS, RIGHT_NS, FILES, MAPPINGS, THREADS, DEVICE_BYTES, BYTES, PLACE };
#define ID_WORDS (RANKS_MAX - 1) /* of no process: the id */

struct life {
    pk_comm_t *comm, *next; /* next: being made, or NULL */
    int rank, size, members[SIZE];
    int64_t op;
    int64_t last_ns, pause_ns; /* when an operation has last ended; the longest time without, since the others began to grow */
    float in[COUNT], out[COUNT];
};

static struct life life;
static const struct grow_memory *memory;

static _Atomic int64_t *own(int word)
{
    return &ranks_shared()->rank_words[ranks_rank()][word];
}

static void die(const char *what, pk_result_t result)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    report(false, "process %d: %s: %d, %.300s", ranks_rank(), what, (int)result, info.text);
    exit(1);
}

static pk_comm_config_t config_of(bool nonblocking)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = memory->device();
    config.timeout_ms = RECOVER_MS;
    config.nonblocking = nonblocking;
    return config;
}

/* The ranks of a new communicator tell each other who they are and how far they have come. */
static pk_result_t meet(struct life *l)
{
    const int64_t mine[2] = { ranks_rank(), l->op };
    int64_t all[2 * SIZE];
    pk_result_t result;

    pk_comm_rank(l->comm, &l->rank);
    pk_comm_size(l->comm, &l->size);
    result = pk_allgather(mine, all, 2, PK_INT64, l->comm, PK_BLOCKING);
    for (int r = 0; r < l->size && result == PK_OK; r++) {
        l->members[r] = (int)all[2 * r];
        l->op = all[2 * r + 1] > l->op ? all[2 * r + 1] : l->op;
    }
    return result;
}

static float value(int member, int64_t op, size_t i)
{
    return (float)((member + 1) * (op % 7 + 1) + (int64_t)(i % 13));
}

static bool is_right(const struct life *l)
{
    for (size_t i = 2; i < COUNT; i += i < 64 ? 1 : 97) {
        float expected = 0;

        for (int r = 0; r < l->size; r++)
            expected += value(l->members[r], l->op, i);
        if (l->out[i] != expected)
            return false;
    }
    return true;
}

static void note_pause(struct life *l)
{
    const int64_t now = monotonic_ns();

    if (now - l->last_ns > l->pause_ns)
        l->pause_ns = now - l->last_ns;
    l->last_ns = now;
}

/* Where all have the new communicator. */
static pk_result_t change_over(struct life *l)
{
    (void)pk_comm_destroy(l->comm);
    l->comm = l->next;
    l->next = NULL;
    return meet(l);
}

static const pk_unique_id_t *offer_id(const struct life *l, pk_unique_id_t *id)
{
    struct ranks_shared *shared = ranks_shared();
    const pk_result_t result = l->rank == 0 ? pk_comm_get_unique_id(l->comm, id) : PK_OK;

    if (result != PK_OK)
        die("pk_comm_get_unique_id", result);
    if (l->rank != 0)
        return NULL;
    memcpy((void *)shared->rank_words[ID_WORDS], id, sizeof *id);
    atomic_store(&shared->words[ID_ROUND], atomic_load(&shared->words[ROUND]));
    return id;
}

/* The process that joins may have died, until the new communicator is there; then all know that it will not be. */
static pk_result_t begin_to_grow(struct life *l)
{
    const bool blocking = atomic_load(&ranks_shared()->words[BLOCKING]) != 0;
    const pk_comm_config_t config = config_of(!blocking);
    pk_unique_id_t id = { { 0 } };
    pk_result_t result;

    l->last_ns = monotonic_ns();
    l->pause_ns = 0;
    do
        result = pk_comm_grow(l->comm, SIZE - l->size, offer_id(l, &id), &l->next, &config);
    while (blocking && result == PK_ERR_PEER);
    if (result != (blocking ? PK_OK : PK_IN_PROGRESS))
        die("pk_comm_grow", result);
    note_pause(l);
    return blocking ? change_over(l) : PK_OK;
}

static pk_result_t recover(struct life *l)
{
    pk_comm_t *smaller = NULL;
    pk_result_t result;

    result = pk_comm_shrink(l->comm, PK_SHRINK_REVOKE, NULL, 0, &smaller, NULL);
    if (result != PK_OK)
        die("pk_comm_shrink", result);
    (void)pk_comm_destroy(l->comm);
    l->comm = smaller;
    result = meet(l);
    if (result != PK_OK)
        die("the first operation of a communicator that has shrunk", result);
    return begin_to_grow(l);
}

static int64_t lines_of(const char *path)
{
    FILE *file = fopen(path, "r");
    int64_t n = 0;

    for (int c = 0; file != NULL && (c = fgetc(file)) != EOF;)
        n += c == '\n';
    if (file != NULL)
        fclose(file);
    return n;
}

static int64_t status_of(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long n = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            n = strtol(line + strlen(name), NULL, 10);
    if (file != NULL)
        fclose(file);
    return n;
}

/* The first right sum of all ranks in this round. */
static void note_round(const struct life *l)
{
    const int64_t round = atomic_load(&ranks_shared()->words[ROUND]);
    pk_stats_t stats = { .struct_size = sizeof stats };

    if (l->size < SIZE || l->next != NULL || round == atomic_load(own(DONE_ROUND)) ||
        round != atomic_load(&ranks_shared()->words[ID_ROUND]))
        return;
    atomic_store(own(RIGHT_NS), monotonic_ns());
    atomic_store(own(PAUSE_NS), l->pause_ns);
    atomic_store(own(FILES), open_files());
    atomic_store(own(MAPPINGS), lines_of("/proc/self/maps"));
    atomic_store(own(THREADS), status_of("Threads:"));
    atomic_store(own(DEVICE_BYTES), pk_comm_stats(l->comm, &stats) == PK_OK ? (int64_t)stats.device_bytes : -1);
    atomic_store(own(BYTES), status_of("VmRSS:") * 1024);
    atomic_store(own(PLACE), l->rank);
    atomic_store(own(DONE_ROUND), round);
}

static float state_of(pk_comm_t *next)
{
    const pk_result_t result = pk_comm_async_error(next);

    return result == PK_OK ? 1 : result == PK_IN_PROGRESS ? 0 : FAILED;
}

/* *ended: all have been asked to stop. */
static pk_result_t work(struct life *l, bool *ended)
{
    pk_result_t result;

    l->in[0] = atomic_load(&ranks_shared()->words[STOP]) != 0;
    l->in[1] = l->next == NULL ? 0 : state_of(l->next);
    for (size_t i = 2; i < COUNT; i++)
        l->in[i] = value(ranks_rank(), l->op, i);
    result = memory->sum(l->comm, l->in, l->out, COUNT);
    if (result != PK_OK)
        return result;
    note_pause(l);
    if (!is_right(l))
        die("a wrong sum with PK_OK", result);
    note_round(l);
    l->op++;
    *ended = l->out[0] > 0;
    if (l->next == NULL || l->out[1] < (float)l->size)
        return PK_OK;
    if (l->out[1] == (float)l->size)
        return change_over(l);
    (void)pk_comm_abort(l->next);
    (void)pk_comm_destroy(l->next);
    l->next = NULL;
    return begin_to_grow(l);
}

static pk_result_t join(struct life *l)
{
    struct ranks_shared *shared = ranks_shared();
    const pk_comm_config_t config = config_of(false);
    const double until = monotonic_ms() + RECOVER_MS;
    pk_unique_id_t id;
    pk_result_t result;

    while (atomic_load(&shared->words[ID_ROUND]) != atomic_load(&shared->words[ROUND]) && monotonic_ms() < until)
        usleep(200);
    do { /* the id may be that of the process that was killed */
        memcpy(&id, (const void *)shared->rank_words[ID_WORDS], sizeof id);
        atomic_store(own(JOIN_NS), monotonic_ns());
        result = pk_comm_join(&l->comm, -1, &id, &config);
    } while (result == PK_ERR_PEER && monotonic_ms() < until);
    return result;
}

static int live(struct life *l)
{
    const pk_comm_config_t config = config_of(false);
    bool ended = false;
    pk_result_t result = strcmp(ranks_role(), "join") == 0 ? join(l) : pk_comm_init(&l->comm, &config);

    if (result == PK_OK)
        result = meet(l);
    if (result != PK_OK)
        die(ranks_role(), result);
    while (!ended)
        for (pk_result_t step = work(l, &ended); step != PK_OK;)
            step = recover(l);
    (void)pk_comm_destroy(l->comm);
    return report_end();
}

/* ---- The driver ---- */

static uint64_t random_state;
static double pauses_ms[2][ROUNDS_MAX], joins_ms[2][ROUNDS_MAX];
static int counts[2];

static unsigned pick(unsigned n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((random_state >> 33) % n);
}

/* Rank 0 every third time, else any; never the witness. */
static int pick_victim(const struct ranks *ranks)
{
    int victim = (int)pick(SIZE);

    for (int p = 0; p < SIZE && pick(3) == 0; p++)
        if (atomic_load(&ranks->shared->rank_words[p][PLACE]) == 0)
            victim = p;
    return victim == WITNESS ? (victim + 1) % SIZE : victim;
}

static bool await_round(const struct ranks *ranks, int64_t round)
{
    const double until = monotonic_ms() + RECOVER_MS;
    int done = 0;

    while (done < SIZE && monotonic_ms() < until) {
        usleep(500);
        done = 0;
        for (int p = 0; p < SIZE; p++)
            done += atomic_load(&ranks->shared->rank_words[p][DONE_ROUND]) == round;
    }
    return done == SIZE;
}

static void note_times(const struct ranks *ranks, int joined, bool blocking)
{
    const int n = counts[blocking]++;
    const _Atomic int64_t *words = ranks->shared->rank_words[joined];

    joins_ms[blocking][n] = (double)(atomic_load(&words[RIGHT_NS]) - atomic_load(&words[JOIN_NS])) * 1e-6;
    for (int p = 0; p < SIZE; p++) {
        const double pause = (double)atomic_load(&ranks->shared->rank_words[p][PAUSE_NS]) * 1e-6;

        if (p != joined && pause > pauses_ms[blocking][n])
            pauses_ms[blocking][n] = pause;
    }
}

static void restart(struct ranks *ranks, int victim)
{
    kill(ranks->pids[victim], SIGKILL);
    waitpid(ranks->pids[victim], NULL, 0);
    memset((void *)ranks->shared->rank_words[victim], 0, sizeof ranks->shared->rank_words[victim]);
    ranks_start(ranks, victim, "join", NULL, NULL);
}

static bool replace_one(struct ranks *ranks, int64_t round)
{
    const int victim = pick_victim(ranks);
    const bool blocking = round % 2 == 0, twice = round % 4 > 1;
    const double until = monotonic_ms() + RECOVER_MS;

    atomic_store(&ranks->shared->words[BLOCKING], blocking);
    atomic_store(&ranks->shared->words[ROUND], round);
    usleep(pick(20000));
    restart(ranks, victim);
    if (twice) {
        while (atomic_load(&ranks->shared->rank_words[victim][JOIN_NS]) == 0 && monotonic_ms() < until)
            ;
        usleep(pick(20000));
        restart(ranks, victim);
    }
    if (!report(await_round(ranks, round), "round %d: process %d is killed and replaced%s, the others %s", (int)round, victim,
                twice ? " twice" : "", blocking ? "wait" : "work"))
        return false;
    if (!twice)
        note_times(ranks, victim, blocking);
    return true;
}

static void compare_witness(const int64_t *before, const _Atomic int64_t *after, int rounds)
{
    static const char *const names[GROW_COUNTED] = { "descriptors", "mappings", "threads", "bytes of a GPU", "bytes of memory" };

    for (int i = 0; i < GROW_COUNTED; i++) {
        const struct grow_limit *limit = &memory->limits[i];
        const long long now = atomic_load(&after[i]);

        if (rounds > limit->from)
            report(now >= 0 && now <= before[i] + limit->more, "%s: %lld, and %lld after round %d", names[i], now,
                   (long long)before[i], limit->from);
        else
            printf("%s: %lld; to be compared after more than %d rounds\n", names[i], now, limit->from);
    }
}

static int compare(const void *a, const void *b)
{
    return *(const double *)a > *(const double *)b ? 1 : -1;
}

static void print_times(void)
{
    for (int blocking = 0; blocking < 2; blocking++) {
        const int n = counts[blocking];

        qsort(pauses_ms[blocking], (size_t)n, sizeof pauses_ms[0][0], compare);
        qsort(joins_ms[blocking], (size_t)n, sizeof joins_ms[0][0], compare);
        if (n > 0)
            printf(
                "the others %s: longest time without an operation median %.1f ms, most %.1f ms; join to first right sum median %.1f ms, most %.1f ms\n",
                blocking ? "wait" : "work", pauses_ms[blocking][n / 2], pauses_ms[blocking][n - 1], joins_ms[blocking][n / 2],
                joins_ms[blocking][n - 1]);
    }
}

static void drive_rounds(int rounds)
{
    int64_t before[GROW_COUNTED] = { 0 };
    struct ranks ranks;
    bool well = true;

    ranks_open(&ranks, SIZE);
    atomic_store(&ranks.shared->words[ROUND], 1);
    atomic_store(&ranks.shared->words[ID_ROUND], 1);
    ranks_start_all(&ranks, "life", NULL, NULL);
    well = report(await_round(&ranks, 1), "all have started");
    for (int round = 2; round <= rounds + 1 && well; round++) {
        well = replace_one(&ranks, round);
        for (int i = 0; i < GROW_COUNTED; i++)
            if (round == memory->limits[i].from)
                before[i] = atomic_load(&ranks.shared->rank_words[WITNESS][FILES + i]);
    }
    if (well)
        compare_witness(before, &ranks.shared->rank_words[WITNESS][FILES], rounds);
    atomic_store(&ranks.shared->words[STOP], 1);
    report(ranks_wait(&ranks, well ? RECOVER_MS : 1000, -1) == 0, "all end");
    print_times();
    ranks_close(&ranks);
}

int grow_main(int argc, char **argv, const struct grow_memory *its)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;

    memory = its;
    if (ranks_role() != NULL)
        return live(&life);
    random_state = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    drive_rounds(rounds < ROUNDS_MAX ? rounds : ROUNDS_MAX);
    return report_end();
}
