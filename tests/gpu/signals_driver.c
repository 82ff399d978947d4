/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operation in a CUDA stream ends right whatever the program asks of the driver meanwhile, though the driver keeps the library's threads out
 * for as long as a stream waits. Two ranks; rank 1 comes late; each rank, or one of them, calls the driver right after its call of the operation.
 *
 *   default     every operation, length, rank that calls the driver, and call
 *   no_kernels  the same with PK_SM_NONE; operations that need a kernel are named and left out
 *   stopped     the library's threads stand still from before the call until the stream has ended; every operation and length
 *   stopped_no_kernels  the same with PK_SM_NONE
 *   stopped_behind      the same from right behind the call on
 *   engaged     the library's thread is in the driver with another message of the communicator, while rank 0 loads a module: every operation
 *
 * Argument: `full` for all of the product; else a third, in which each operation and length meets each call by one of the ranks (on the
 * software driver half of that: each operation meets each call at some length). A second one:
 * milliseconds after which an operation has failed. More: the parts of the list above that are to run, all without any.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_ops.h"
#include "own_threads.h"

#define LENGTHS 4
#define LONG_SUM 3 /* the length that only sums have: more than one kernel makes */
#define OPS 64     /* at most */
#define STREAMS 100
#define SPARE_BYTES ((size_t)4 << 20)
#define DEADLINE_MS 60000
#define MORE_MS 5000 /* for the communicator to say why */
#define LATE_MS 60
#define LATE_SOFTWARE_MS 30
#define LATER_MS 500
#define ENGAGED_US 10000 /* until the thread has something to do: the driver is busy by then */
#define GIVE_UP 2        /* failed cells; `full` tries all */

/* Who calls the driver, and what. */
enum { BY_RANK_0, BY_RANK_1, BY_BOTH, WHOS };
enum { LOAD, FREE, ALLOCATE, LAUNCH, MAKE_STREAMS, SYNCHRONISE, WHATS };

static const char *const who_names[] = { "rank 0", "rank 1", "each rank" };
static const char *const what_names[] = { "loads a module",    "frees memory",
                                          "allocates memory",  "launches a kernel for the first time",
                                          "makes 100 streams", "synchronises the context" };

/* When the library's threads are stopped. */
enum stops { NEVER, BEFORE, BEHIND };

/* Words of the shared memory; and of each rank. */
enum { FIRST, FULL, PART, LIMIT_MS, NOW, DONE, LEFT_OUT };
enum { CALLED, REFUSED, RIGHT, LONGEST_US, CALL_US, STOPPED, STAYS };

/* The product twice: the second time rank 1 is later, where times mean anything, and rank 0 calls the driver. */
struct cell {
    int number, op, length, who, what;
    bool later;
};

enum answer { UNKNOWN, POSSIBLE, REFUSED_HERE };

struct bed {
    struct gpu_rank rank;
    struct gpu_ops ops;
    size_t lengths[LENGTHS];
    enum stops stops;
    double late_ms, limit_ms;
    uint32_t *flag; /* open: kernels end at once */
    gpu_stream_t side;
    gpu_kernel_t kernel;
    void *spare, *message; /* the latter NULL: none is on its way */
    pk_stream_t own_stream;
    gpu_stream_t streams[STREAMS];
    enum answer answers[OPS * LENGTHS];
};

static int64_t word(int index)
{
    return atomic_load(&ranks_shared()->words[index]);
}

/* ---- cells ---- */

static int cells_once(void)
{
    return gpu_ops_count() * LENGTHS * WHOS * WHATS;
}

static struct cell cell_of(int number)
{
    int at = number % cells_once();
    struct cell cell = { .number = number, .later = number >= cells_once() };

    cell.what = at % WHATS;
    cell.who = at / WHATS % WHOS;
    cell.length = at / WHATS / WHOS % LENGTHS;
    cell.op = at / WHATS / WHOS / LENGTHS;
    return cell;
}

static bool is_chosen(const struct bed *bed, const struct cell *cell)
{
    if ((cell->length > 0 && !gpu_ops_has_lengths(cell->op)) ||
        (cell->length == LONG_SUM && (!gpu_ops_sums(cell->op) || gpu_is_software())))
        return false;
    if (bed->stops != NEVER || bed->message != NULL)
        return !cell->later && cell->who == 0 && cell->what == 0;
    if (cell->later && (cell->who != BY_RANK_0 || gpu_is_software()))
        return false;
    return word(FULL) != 0 || (cell->op + cell->length + cell->who + cell->what) % (gpu_is_software() ? 13 : 3) == word(PART);
}

/* ---- what the program asks of the driver ---- */

static void prepare_call(struct bed *bed, int what)
{
    if (what == FREE)
        bed->spare = gpu_alloc(SPARE_BYTES);
    if (what == LAUNCH)
        bed->kernel = spin_kernel();
}

static void call_driver(struct bed *bed, int what)
{
    switch (what) {
    case LOAD:
        bed->kernel = spin_kernel();
        break;
    case FREE:
        gpu_free(bed->spare);
        bed->spare = NULL;
        break;
    case ALLOCATE:
        bed->spare = gpu_alloc(SPARE_BYTES);
        break;
    case LAUNCH:
        spin_launch(bed->kernel, 1, 32, bed->flag, bed->side);
        break;
    case MAKE_STREAMS:
        for (int i = 0; i < STREAMS; i++)
            bed->streams[i] = gpu_stream_new();
        break;
    default:
        if (gpu_context_sync() != 0)
            report(false, "rank %d: the context has failed", bed->rank.rank);
    }
}

static void clear_up(struct bed *bed)
{
    for (int i = 0; i < STREAMS; i++) {
        if (bed->streams[i] != NULL)
            gpu_stream_free(bed->streams[i]);
        bed->streams[i] = NULL;
    }
    if (bed->spare != NULL)
        gpu_free(bed->spare);
    bed->spare = NULL;
}

/* ---- one operation ---- */

static void note_longest(struct bed *bed, int index, double ms)
{
    _Atomic int64_t *longest = &ranks_shared()->rank_words[bed->rank.rank][index];

    if ((int64_t)(ms * 1000) > atomic_load(longest))
        atomic_store(longest, (int64_t)(ms * 1000));
}

/* One that the library's thread gives the driver. */
static void begin_message(struct bed *bed)
{
    if (bed->message == NULL)
        return;
    if (bed->rank.rank == 1)
        usleep(ENGAGED_US);
    if (bed->rank.rank == 0)
        must_be_ok(pk_send(bed->message, SPARE_BYTES, PK_UINT8, 1, bed->rank.comm, bed->own_stream), "pk_send of the message");
    else
        must_be_ok(pk_recv(bed->message, SPARE_BYTES, PK_UINT8, 0, bed->rank.comm, bed->own_stream), "pk_recv of the message");
}

static bool message_is_right(struct bed *bed)
{
    if (bed->message == NULL)
        return true;
    if (pk_stream_synchronize(bed->own_stream) == PK_OK && pattern_wrong_on_gpu(bed->message, SPARE_BYTES, 0) == SPARE_BYTES)
        return true;
    return report(false, "rank %d: the message beside the operation is wrong", bed->rank.rank);
}

/* Says what is wrong. */
static bool judge(struct bed *bed, const struct cell *cell, pk_result_t called, bool idle, bool came)
{
    const pk_result_t result = pk_comm_async_error(bed->rank.comm);
    pk_error_info_t info = { .struct_size = sizeof info };
    const char *wrong = NULL;

    pk_last_error(&info);
    if (called != PK_OK || result != PK_OK)
        wrong = pk_strerror(called != PK_OK ? called : result);
    else if (!idle)
        wrong = "the stream stands still";
    else if (bed->rank.rank == 0 && !gpu_ops_has_lengths(cell->op) && !came)
        wrong = "it ended before rank 1 came";
    else if (!gpu_ops_right(&bed->ops, cell->op, bed->lengths[cell->length]))
        wrong = "wrong bytes";
    if (wrong == NULL)
        return true;
    report(false, "rank %d: %s, blocks of %zu bytes, %s %s: %s; the call returned %d; %.300s", bed->rank.rank,
           gpu_ops_name(cell->op), bed->lengths[cell->length] * sizeof(float), bed->stops != NEVER ? "all" : who_names[cell->who],
           bed->stops != NEVER ? "threads of the library stand still" : what_names[cell->what], wrong, (int)called, info.text);
    return false;
}

/* Those that run yet; the service thread at least, once it has been needed. One that has just been made is not known as the library's before
 * it runs. */
static bool stop_threads(const struct bed *bed)
{
    const double begin = monotonic_ms();
    int stopped = own_threads_stop();

    while (stopped == 0 && monotonic_ms() - begin < bed->limit_ms) {
        usleep(1000);
        stopped = own_threads_stop();
    }

    atomic_store(&ranks_shared()->rank_words[bed->rank.rank][STOPPED], stopped);
    return stopped >= 1 || report(false, "rank %d: %d threads of the library stopped", bed->rank.rank, stopped);
}

/* Those, too, that the call has begun. */
static bool stop_behind(const struct bed *bed, const struct cell *cell)
{
    bool stopped = stop_threads(bed);

    atomic_store(&ranks_shared()->rank_words[bed->rank.rank][STAYS], cell->number + 1);
    return stopped;
}

/* Rank 1: and not before rank 0's threads stand still, which takes a while where they look for work. */
static void be_late(const struct bed *bed, const struct cell *cell, double late_ms)
{
    usleep((useconds_t)(late_ms * 1000));
    while (bed->stops != NEVER && atomic_load(&ranks_shared()->rank_words[0][STAYS]) != cell->number + 1)
        usleep(100);
}

/* From the meeting of both ranks on. */
static bool call_and_wait(struct bed *bed, const struct cell *cell)
{
    const int me = bed->rank.rank;
    struct ranks_shared *shared = ranks_shared();
    const double late_ms = cell->later ? LATER_MS : bed->late_ms;
    bool stopped = true, idle, came;
    pk_result_t called;
    double begin;

    begin_message(bed);
    if (me == 1)
        be_late(bed, cell, late_ms);
    atomic_store(&shared->rank_words[me][CALLED], cell->number + 1);
    begin = monotonic_ms();
    called = gpu_ops_call(&bed->ops, cell->op, bed->lengths[cell->length]);
    note_longest(bed, CALL_US, monotonic_ms() - begin);
    if (bed->stops != NEVER)
        stopped = stop_behind(bed, cell);
    else if (cell->who == BY_BOTH || cell->who == me)
        call_driver(bed, cell->what);
    idle = stream_idle_within(bed->rank.stream, bed->limit_ms + MORE_MS, NULL);
    came = atomic_load(&shared->rank_words[1 - me][CALLED]) == cell->number + 1;
    note_longest(bed, LONGEST_US, monotonic_ms() - begin - (me == 0 ? late_ms : 0));
    if (bed->stops != NEVER)
        own_threads_go();
    return judge(bed, cell, called, idle, came) && message_is_right(bed) && stopped;
}

/* Asked once for each operation and length: the library logs what it refuses. */
static bool refused_by_either(struct bed *bed, const struct cell *cell)
{
    struct ranks_shared *shared = ranks_shared();
    enum answer *answer = &bed->answers[cell->op * LENGTHS + cell->length];

    if (*answer != UNKNOWN)
        return *answer == REFUSED_HERE;
    atomic_store(&shared->rank_words[bed->rank.rank][REFUSED],
                 gpu_ops_explain(&bed->ops, cell->op, bed->lengths[cell->length]) == PK_ERR_NEEDS_SM);
    ranks_meet();
    *answer =
        atomic_load(&shared->rank_words[0][REFUSED]) + atomic_load(&shared->rank_words[1][REFUSED]) > 0 ? REFUSED_HERE : POSSIBLE;
    ranks_meet();
    return *answer == REFUSED_HERE;
}

/* False: it was wrong on one of the ranks, and the communicator may have failed. */
static bool run_cell(struct bed *bed, const struct cell *cell)
{
    struct ranks_shared *shared = ranks_shared();
    bool right;

    alarm((unsigned)((bed->limit_ms + 6 * MORE_MS) / 1000)); /* a rank that the driver never lets go ends here */
    if (bed->rank.rank == 0)
        atomic_store(&shared->words[NOW], cell->number);
    if (refused_by_either(bed, cell)) {
        atomic_fetch_or(&shared->words[LEFT_OUT], (int64_t)1 << cell->op);
        return true;
    }
    gpu_ops_prepare(&bed->ops, cell->op, bed->lengths[cell->length], cell->number);
    if (bed->message != NULL && bed->rank.rank == 1)
        gpu_fill(bed->message, 0x5a, SPARE_BYTES);
    prepare_call(bed, bed->stops != NEVER ? WHATS : cell->what);
    right = bed->stops != BEFORE || stop_threads(bed);
    ranks_meet();
    right = call_and_wait(bed, cell) && right;
    atomic_store(&shared->rank_words[bed->rank.rank][RIGHT], right);
    ranks_meet();
    right = atomic_load(&shared->rank_words[0][RIGHT]) + atomic_load(&shared->rank_words[1][RIGHT]) == 2;
    ranks_meet();
    if (right && bed->rank.rank == 0)
        atomic_fetch_add(&shared->words[DONE], 1);
    if (right)
        clear_up(bed);
    return right;
}

static void open_bed(struct bed *bed)
{
    memset(bed, 0, sizeof *bed);
    gpu_rank_open(&bed->rank, strstr(ranks_role(), "no_kernels") != NULL ? PK_SM_NONE : PK_SM_DEFAULT, (uint64_t)word(LIMIT_MS));
    bed->limit_ms = (double)word(LIMIT_MS);
    bed->late_ms = gpu_is_software() ? LATE_SOFTWARE_MS : LATE_MS;
    if (strncmp(ranks_role(), "stopped", 7) == 0)
        bed->stops = strstr(ranks_role(), "behind") != NULL ? BEHIND : BEFORE;
    bed->lengths[0] = 4096 / sizeof(float);
    bed->lengths[1] = (1 << 20) / sizeof(float);
    bed->lengths[2] = (gpu_is_software() ? (size_t)20 << 20 : (size_t)64 << 20) / sizeof(float);
    bed->lengths[LONG_SUM] = ((size_t)260 << 20) / sizeof(float);
    gpu_ops_open(&bed->ops, &bed->rank, bed->lengths[gpu_is_software() ? 2 : LONG_SUM]);
    must_be_ok(pk_stream_create(&bed->own_stream), "pk_stream_create");
    if (strcmp(ranks_role(), "engaged") == 0)
        bed->message = gpu_alloc(SPARE_BYTES);
    if (bed->message != NULL)
        pattern_to_gpu(bed->message, SPARE_BYTES, (uint64_t)bed->rank.rank);
    bed->side = gpu_stream_new();
    bed->flag = gpu_host_alloc(sizeof *bed->flag);
    *bed->flag = 1;
}

static int rank_main(void)
{
    static struct bed bed;

    open_bed(&bed);
    for (int i = (int)word(FIRST); i < 2 * cells_once(); i++) {
        const struct cell cell = cell_of(i);

        if (is_chosen(&bed, &cell) && !run_cell(&bed, &cell))
            exit(1);
    }
    gpu_stream_sync(bed.side);
    gpu_stream_free(bed.side);
    gpu_host_free(bed.flag);
    pk_stream_destroy(bed.own_stream);
    if (bed.message != NULL)
        gpu_free(bed.message);
    gpu_ops_close(&bed.ops);
    gpu_rank_close(&bed.rank);
    return report_end();
}

/* ---- the driver of the ranks ---- */

struct totals {
    int64_t done, failed, left_out, words[8];
};

static void count(struct totals *totals, const struct ranks *ranks)
{
    totals->done += atomic_load(&ranks->shared->words[DONE]);
    totals->left_out |= atomic_load(&ranks->shared->words[LEFT_OUT]);
    for (int r = 0; r < 2; r++)
        for (int i = LONGEST_US; i <= STOPPED; i++)
            if (atomic_load(&ranks->shared->rank_words[r][i]) > totals->words[i])
                totals->words[i] = atomic_load(&ranks->shared->rank_words[r][i]);
}

/* From a cell on, until one fails. Returns its number, or -1. */
static int drive_from(const char *role, int first, const int64_t *settings, struct totals *totals)
{
    struct ranks ranks;
    int wrong, now;

    ranks_open(&ranks, 2);
    for (int i = FULL; i <= LIMIT_MS; i++)
        atomic_store(&ranks.shared->words[i], settings[i]);
    atomic_store(&ranks.shared->words[FIRST], first);
    ranks_start_all(&ranks, role, NULL, NULL);
    wrong = ranks_wait(&ranks, settings[FULL] != 0 ? 1200000 : 200000, -1);
    now = (int)atomic_load(&ranks.shared->words[NOW]);
    count(totals, &ranks);
    ranks_close(&ranks);
    return wrong != 0 ? now : -1;
}

static void say_left_out(int64_t left_out)
{
    for (int op = 0; op < gpu_ops_count(); op++)
        if ((left_out >> op & 1) != 0)
            printf("INFO left out, for it needs a kernel: %s\n", gpu_ops_name(op));
}

static void say_failed(const char *role, int number)
{
    const struct cell cell = cell_of(number);

    report(false, "%s: the ranks ended at %s, length %d, %s %s", role, gpu_ops_name(cell.op), cell.length, who_names[cell.who],
           what_names[cell.what]);
}

static char **wanted; /* the parts, NULL behind them */

static bool is_wanted(const char *role)
{
    for (char **part = wanted; *part != NULL; part++)
        if (strcmp(*part, role) == 0)
            return true;
    return *wanted == NULL;
}

static void drive(const char *role, const char *hold, const int64_t *settings)
{
    const double began_ms = monotonic_ms();
    struct totals totals = { 0 };
    int failed;

    if (!is_wanted(role))
        return;
    if (hold != NULL)
        setenv("FAKECUDA_HOLD", hold, 1);
    for (int first = 0; (failed = drive_from(role, first, settings, &totals)) >= 0; first = failed + 1) {
        totals.failed++;
        say_failed(role, failed);
        if (totals.failed == GIVE_UP && settings[FULL] == 0)
            break;
    }
    unsetenv("FAKECUDA_HOLD");
    say_left_out(totals.left_out);
    if (totals.words[STOPPED] > 0)
        printf("INFO %s: %lld threads of a rank stood still\n", role, (long long)totals.words[STOPPED]);
    report(totals.failed == 0 && totals.done > 0,
           "%s%s: %lld right, %lld wrong%s; %.1f ms the longest from rank 1's call on, %.1f ms the longest call; %.0f ms", role,
           hold != NULL ? ", the driver keeps other threads out" : "", (long long)totals.done, (long long)totals.failed,
           failed >= 0 ? ", not all tried" : "", (double)totals.words[LONGEST_US] / 1000, (double)totals.words[CALL_US] / 1000,
           monotonic_ms() - began_ms);
}

int main(int argc, char **argv)
{
    const bool full = argc > 1 && strcmp(argv[1], "full") == 0;
    int64_t settings[] = { [FULL] = full, [PART] = 0, [LIMIT_MS] = argc > 2 ? atoi(argv[2]) : DEADLINE_MS };
    const char *hold;

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    wanted = argv + (argc < 3 ? argc : 3);
    /* own_threads.h stops a thread that sleeps: beside others a yield is long */
    setenv("PICKLE_TEST_TUNING", "wait.service_yields=0", 0);
    hold = gpu_is_software() ? "cuModuleLoadData,cuMemFree_v2" : NULL;
    drive("stopped", NULL, settings);
    drive("stopped_no_kernels", NULL, settings);
    drive("stopped_behind", NULL, settings);
    drive("engaged", hold, settings);
    drive("default", hold, settings);
    settings[PART] = 1;
    drive("no_kernels", hold, settings);
    if (full && hold != NULL) {
        drive("default", NULL, settings);
        drive("no_kernels", NULL, settings);
    }
    return report_end();
}
