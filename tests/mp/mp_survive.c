/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight ranks add up 1 MiB of floats again and again, and split their communicator occasionally. Ranks are killed: at any moment, inside
 * split, agree and shrink, two at once, rank 0 too. The others revoke, agree, shrink, and go on with the operation that they have agreed on,
 * until one is left. Each sum that came with PK_OK is that of the communicator's ranks, and nobody waits for ever. A rank that is stopped
 * (SIGSTOP) before an operation is left behind at the deadline of that, and is told so when it goes on. The others have all come there by then, and
 * have another deadline, far off, for all that follows.
 *
 * usage: mp.survive [KILLS [SEED]]     prints how long it takes from a kill to the first right sum on all that live
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 8
#define COUNT (256 << 10)
#define KILLS 21
#define KILLS_MAX 10000
#define SPLIT_EVERY 8
#define RECOVER_MS 60000
#define STOP_MS 5000 /* the deadline of the operation before which a rank is stopped, from when all others are there */
#define STOPS 100    /* says the rank that will stop before the next operation */

/* Words of the shared memory, of all and of each rank. */
enum { STOP, LEFT, VICTIM, THERE }; /* VICTIM: 0, or the rank that is to stop itself, and 1 */
enum { PHASE, GENERATION, RIGHT_GENERATION, RIGHT_NS, LIVING, STEPS_NS };

enum phase { WORKS, SPLITS, REVOKES, AGREES, SHRINKS, PHASES };

/* From a kill to the first right sum, with each step's last rank; of the last time where a rank goes through them several times. */
enum step { NOTICED, REVOKED, AGREED, SHRUNK, DESTROYED, MET, RIGHT, STEPS };

struct life {
    pk_comm_t *comm;
    int rank, size;    /* in comm */
    int members[SIZE]; /* [size]: as they were numbered at first */
    long first_op;     /* the first operation in comm */
    long op;           /* the next one */
    float *in, *out;
    bool stops; /* a rank is stopped: it finds itself left behind */
    bool waits; /* in the next operation for the one that is stopped */
};

static void set_phase(enum phase phase)
{
    atomic_store(&ranks_shared()->rank_words[ranks_rank()][PHASE], phase);
}

static void note(enum step step)
{
    atomic_store(&ranks_shared()->rank_words[ranks_rank()][STEPS_NS + step], monotonic_ns());
}

static void die(const char *what, pk_result_t result)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    report(false, "rank %d: %s: %d, %.300s", ranks_rank(), what, (int)result, info.text);
    exit(1);
}

static float value(int member, long op, size_t i)
{
    return i == 0 ? 0 : (float)((member + 1) * (op % 7 + 1) + (long)(i % 13));
}

static bool is_right(const struct life *l, const float *sum)
{
    for (size_t i = 1; i < COUNT; i++) {
        float expected = 0;

        if (i > 64 && i + 64 < COUNT && i % 101 != 0)
            continue;
        for (int r = 0; r < l->size; r++)
            expected += value(l->members[r], l->op, i);
        if (sum[i] != expected)
            return false;
    }
    return true;
}

/* The ranks of a new communicator tell each other who they were: its first collective. */
static pk_result_t meet(struct life *l)
{
    const int32_t mine = ranks_rank();
    int32_t all[SIZE];
    pk_result_t result;

    pk_comm_rank(l->comm, &l->rank);
    pk_comm_size(l->comm, &l->size);
    result = pk_allgather(&mine, all, 1, PK_INT32, l->comm, PK_BLOCKING);
    for (int r = 0; r < l->size && result == PK_OK; r++)
        l->members[r] = all[r];
    return result;
}

/* A split goes before some operations. */
static int collectives(long op)
{
    return op % SPLIT_EVERY == 0 ? 2 : 1;
}

/* The first one that is not complete when collective `last` is: the first collective was meet's. */
static long op_behind(const struct life *l, long last)
{
    long op = l->first_op;

    for (long n = 1; n + collectives(op) <= last; op++)
        n += collectives(op);
    return op;
}

/* This rank was stopped, and the others have gone on. */
static void leave_behind(struct life *l)
{
    atomic_fetch_add(&ranks_shared()->words[LEFT], 1);
    (void)pk_comm_destroy(l->comm);
    exit(report_end());
}

/* Once through revoke, agree and shrink. */
static void go_on(struct life *l)
{
    pk_comm_t *next = NULL;
    uint64_t last = 0;
    pk_result_t result;

    note(NOTICED);
    set_phase(REVOKES);
    (void)pk_comm_revoke(l->comm);
    note(REVOKED);
    set_phase(AGREES);
    result = pk_comm_agree(l->comm, 1, NULL, NULL, NULL, &last);
    if (result == PK_ERR_PEER && l->stops)
        leave_behind(l);
    if (result != PK_OK)
        die("agree", result);
    l->first_op = op_behind(l, (long)last);
    if (l->first_op > l->op)
        die("the others have an operation that this rank has not", PK_OK);
    l->op = l->first_op;
    note(AGREED);
    set_phase(SHRINKS);
    result = pk_comm_shrink(l->comm, 0, NULL, 0, &next, NULL);
    if (result != PK_OK)
        die("shrink", result);
    note(SHRUNK);
    (void)pk_comm_destroy(l->comm);
    note(DESTROYED);
    l->comm = next;
}

static void recover(struct life *l)
{
    do
        go_on(l);
    while (meet(l) != PK_OK);
    note(MET);
    set_phase(WORKS);
    atomic_fetch_add(&ranks_shared()->rank_words[ranks_rank()][GENERATION], 1);
}

static pk_result_t split_and_merge(const struct life *l)
{
    pk_comm_t *part = NULL;
    pk_result_t result;

    set_phase(SPLITS);
    result = pk_comm_split(l->comm, l->rank % 2, l->rank, &part, NULL);
    if (result == PK_OK)
        (void)pk_comm_destroy(part);
    set_phase(WORKS);
    return result;
}

static void note_right(const struct life *l)
{
    _Atomic int64_t *words = ranks_shared()->rank_words[ranks_rank()];

    if (atomic_load(&words[RIGHT_GENERATION]) == atomic_load(&words[GENERATION]))
        return;
    atomic_store(&words[RIGHT_NS], monotonic_ns());
    note(RIGHT);
    atomic_store(&words[LIVING], l->size);
    atomic_store(&words[RIGHT_GENERATION], atomic_load(&words[GENERATION]));
}

static float flag_of(const struct life *l)
{
    const struct ranks_shared *shared = ranks_shared();

    if (atomic_load(&shared->words[VICTIM]) == ranks_rank() + 1 && collectives(l->op + 1) == 1)
        return STOPS;
    return atomic_load(&shared->words[STOP]) != 0;
}

/* Before the next operation. */
static void stop_one(struct life *l)
{
    _Atomic int64_t *words = ranks_shared()->words;

    if (atomic_load(&words[VICTIM]) == ranks_rank() + 1) {
        raise(SIGSTOP);
        return;
    }
    l->waits = true;
    atomic_fetch_add(&words[THERE], 1);
    for (int ms = 0; ms < RECOVER_MS && atomic_load(&words[THERE]) < SIZE - 1; ms++)
        usleep(1000);
}

/* *ended: all have been asked to stop. */
static pk_result_t work(struct life *l, bool *ended)
{
    pk_result_t result = collectives(l->op) == 2 ? split_and_merge(l) : PK_OK;
    const int member = ranks_rank(); /* it asks the environment */

    if (result != PK_OK)
        return result;
    for (size_t i = 0; i < COUNT; i++)
        l->in[i] = value(member, l->op, i);
    l->in[0] = flag_of(l);
    result = pk_allreduce(l->in, l->out, COUNT, PK_F32, PK_SUM, l->comm, PK_WITHIN(PK_BLOCKING, l->waits ? STOP_MS : 0));
    l->waits = false;
    if (result != PK_OK)
        return result;
    if (!is_right(l, l->out))
        die("a wrong sum with PK_OK", result);
    note_right(l);
    *ended = l->out[0] > 0 && l->out[0] < STOPS;
    l->op++;
    if (l->out[0] >= STOPS)
        stop_one(l);
    return PK_OK;
}

static int rank_main(void)
{
    struct life l = { .in = malloc(COUNT * sizeof(float)), .out = malloc(COUNT * sizeof(float)) };
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_result_t result;
    bool ended = false;

    config.device = PK_DEVICE_HOST;
    l.stops = strcmp(ranks_role(), "stop") == 0;
    config.timeout_ms = RECOVER_MS;
    result = l.in == NULL || l.out == NULL ? PK_ERR_MEMORY : pk_comm_init(&l.comm, &config);
    if (result == PK_OK)
        result = meet(&l);
    if (result != PK_OK)
        die("init", result);
    atomic_store(&ranks_shared()->rank_words[ranks_rank()][GENERATION], 1);
    while (!ended)
        if (work(&l, &ended) != PK_OK)
            recover(&l);
    result = pk_comm_destroy(l.comm);
    if (result != PK_OK && result != PK_ERR_PEER) /* another rank may be through sooner */
        die("destroy", result);
    free(l.in);
    free(l.out);
    return report_end();
}

/* ---- The driver ---- */

static uint64_t random_state;

static unsigned pick(unsigned n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((random_state >> 33) % n);
}

struct job {
    struct ranks ranks;
    bool alive[SIZE];
    int living;
    int64_t killed_ns; /* when the last one was */
};

static int pick_victim(const struct job *job)
{
    int r = (int)pick(SIZE);

    while (!job->alive[r])
        r = (r + 1) % SIZE;
    return r;
}

static void kill_rank(struct job *job, int r)
{
    job->killed_ns = monotonic_ns();
    kill(job->ranks.pids[r], SIGKILL);
    job->alive[r] = false;
    job->living--;
}

/* All that live have had a right sum without those that are dead. */
static bool has_recovered(const struct job *job)
{
    for (int r = 0; r < SIZE; r++)
        if (job->alive[r] && (atomic_load(&job->ranks.shared->rank_words[r][LIVING]) != job->living ||
                              atomic_load(&job->ranks.shared->rank_words[r][RIGHT_NS]) < job->killed_ns))
            return false;
    return true;
}

static bool await_recovery(const struct job *job)
{
    const double until = monotonic_ms() + RECOVER_MS;

    while (!has_recovered(job) && monotonic_ms() < until)
        usleep(200);
    return has_recovered(job);
}

/* Until the rank is in that phase; it may not come there. */
static void await_phase(const struct job *job, int r, enum phase phase)
{
    const double until = monotonic_ms() + 100;

    while (atomic_load(&job->ranks.shared->rank_words[r][PHASE]) != phase && monotonic_ms() < until)
        ;
}

/* The second of two is killed at once, soon, or while it agrees or shrinks; the first while it works or splits. */
static int kill_some(struct job *job)
{
    int victim = pick_victim(job), killed = 1;
    const unsigned how = pick(6);

    usleep(pick(20000));
    if (pick(3) == 0)
        await_phase(job, victim, SPLITS);
    usleep(pick(500));
    kill_rank(job, victim);
    if (how > 3 || job->living < 2)
        return killed;
    victim = pick_victim(job);
    if (how == 1)
        usleep(pick(20000));
    else if (how > 1)
        await_phase(job, victim, how == 2 ? AGREES : SHRINKS);
    usleep(pick(how == 3 ? 20000 : 300));
    kill_rank(job, victim);
    return killed + 1;
}

static double times_ms[STEPS][KILLS_MAX]; /* until the last rank has come so far */
static int ntimes;

static void note_time(const struct job *job)
{
    if (ntimes == KILLS_MAX)
        return;
    for (int step = 0; step < STEPS; step++) {
        int64_t latest = job->killed_ns;

        for (int r = 0; r < SIZE; r++)
            if (job->alive[r] && atomic_load(&job->ranks.shared->rank_words[r][STEPS_NS + step]) > latest)
                latest = atomic_load(&job->ranks.shared->rank_words[r][STEPS_NS + step]);
        times_ms[step][ntimes] = (double)(latest - job->killed_ns) * 1e-6;
    }
    ntimes++;
}

/* Eight ranks, until one is left or so many have been killed. Returns how many; -1: they do not go on. */
static int run_job(int most)
{
    struct job job = { .living = SIZE };
    int killed = 0;
    bool well = true;

    ranks_open(&job.ranks, SIZE);
    ranks_start_all(&job.ranks, "life", NULL, NULL);
    for (int r = 0; r < SIZE; r++)
        job.alive[r] = true;
    well = await_recovery(&job);
    while (well && job.living > 1 && killed < most) {
        killed += kill_some(&job);
        well = await_recovery(&job);
        if (well)
            note_time(&job);
    }
    for (int r = 0; r < SIZE && !well; r++)
        if (job.alive[r])
            report(false, "rank %d is in phase %lld, among %lld ranks, %d are alive", r,
                   (long long)atomic_load(&job.ranks.shared->rank_words[r][PHASE]),
                   (long long)atomic_load(&job.ranks.shared->rank_words[r][LIVING]), job.living);
    atomic_store(&job.ranks.shared->words[STOP], 1);
    for (int r = 0; r < SIZE; r++)
        if (!job.alive[r])
            job.ranks.statuses[r] = 0;
    well = ranks_wait(&job.ranks, well ? RECOVER_MS : 1000, -2) == SIZE - job.living && well;
    ranks_close(&job.ranks);
    return well ? killed : -1;
}

static bool await_stop(const struct job *job, int victim)
{
    int status = 0;

    for (int ms = 0; ms < RECOVER_MS && waitpid(job->ranks.pids[victim], &status, WUNTRACED | WNOHANG) == 0; ms++)
        usleep(1000);
    return WIFSTOPPED(status);
}

/* One of eight is stopped, and goes on when the others have a sum without it. */
static void run_stop(int victim)
{
    struct job job = { .living = SIZE };
    bool well;

    ranks_open(&job.ranks, SIZE);
    ranks_start_all(&job.ranks, "stop", NULL, NULL);
    for (int r = 0; r < SIZE; r++)
        job.alive[r] = true;
    well = await_recovery(&job);
    atomic_store(&job.ranks.shared->words[VICTIM], victim + 1);
    well = well && await_stop(&job, victim);
    job.killed_ns = monotonic_ns();
    job.alive[victim] = false;
    job.living--;
    well = well && await_recovery(&job);
    note_time(&job);
    kill(job.ranks.pids[victim], SIGCONT);
    for (int ms = 0; ms < RECOVER_MS && atomic_load(&job.ranks.shared->words[LEFT]) == 0; ms++)
        usleep(1000);
    well = well && atomic_load(&job.ranks.shared->words[LEFT]) == 1;
    atomic_store(&job.ranks.shared->words[STOP], 1);
    well = ranks_wait(&job.ranks, RECOVER_MS, -1) == 0 && well;
    report(well,
           "rank %d of %d is stopped, deadline %d ms: a right sum of the others after %.1f ms, and it finds itself left behind",
           victim, SIZE, STOP_MS, times_ms[RIGHT][--ntimes]);
    ranks_close(&job.ranks);
}

static int compare(const void *a, const void *b)
{
    return *(const double *)a > *(const double *)b ? 1 : -1;
}

static void print_steps(void)
{
    static const char *const names[STEPS] = { "noticed", "revoked", "agreed", "shrunk", "destroyed", "met", "right sum" };

    printf("until the last rank has     median ms   99th percentile   most\n");
    for (int step = 0; step < STEPS && ntimes > 0; step++) {
        const double *times = times_ms[step];

        qsort(times_ms[step], (size_t)ntimes, sizeof times[0], compare);
        printf("%-27s %9.1f %17.1f %6.1f\n", names[step], times[ntimes / 2], times[(ntimes * 99 - 1) / 100], times[ntimes - 1]);
    }
}

static int drive(int kills)
{
    int killed = 0, jobs = 0, n = 0;

    while (killed < kills && n >= 0) {
        n = run_job(kills - killed);
        killed += n;
        jobs++;
    }
    print_steps();
    report(n >= 0, "%d kills in %d jobs of %d ranks", killed, jobs, SIZE);
    return report_end();
}

int main(int argc, char **argv)
{
    if (ranks_role() != NULL)
        return rank_main();
    run_stop(0);
    run_stop(5);
    random_state = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    return drive(argc > 1 ? atoi(argv[1]) : KILLS);
}
