/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation in CUDA streams fails while it is under way, and the buffer is used for something else as soon as the library says that it may be
 * (comm.h): nothing is written into it any more. One of two ranks aborts, or never comes; both have called, or one; a stream is held by a kernel
 * of the program meanwhile. A new communicator works each time, and descriptors and mappings do not become more.
 * usage: gpu.signals_failures [ROUNDS [HOLD_MS]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define USUAL_ROUNDS 24
#define USUAL_HOLD_MS 100
#define DEADLINE_MS 5000 /* of init, too, on a busy machine */
#define LIMIT_MS 30000
#define SETTLED 12 /* rounds after which nothing is to grow */
#define CANARY 0x5c

static const size_t lengths[] = { 4096, 1 << 20, 16 << 20 };

#define LENGTHS (int)(sizeof lengths / sizeof lengths[0])
#define MOST ((size_t)16 << 20)

enum operation { MESSAGE, ALLGATHER, OPERATIONS };
/* rank 0 or 1 aborts; rank 0 does when both have called; rank 1 never calls */
enum end { ABORT_HERE, ABORT_THERE, BOTH_CALL, ENDS, NEVER = ENDS };
enum held { NOBODY, RANK_0, RANK_1, HELD };

static const char *const operation_names[] = { "message", "allgather" };
static const char *const end_names[] = { "rank 0 aborts", "rank 1 aborts", "both call, and rank 0 aborts", "rank 1 never calls" };
static const char *const held_names[] = { "no stream is held", "rank 0's stream is held", "rank 1's stream is held" };

struct bed {
    struct gpu_rank self; /* of a communicator that nothing happens to */
    gpu_kernel_t spin;
    uint32_t *go; /* of the kernel that holds the stream */
    char *from, *to;
    int files, maps;
};

struct turn {
    enum operation operation;
    enum end end;
    enum held held;
    size_t bytes;
    int sender;
};

/* Each round another; all of them in ENDS * HELD * OPERATIONS * 2 rounds. A deadline takes its time, so few wait for one. */
static struct turn turn_of(int round)
{
    return (struct turn){ .end = round % 12 == 11 ? NEVER : (enum end)(round % ENDS),
                          .held = (enum held)(round / ENDS % HELD),
                          .sender = round / (ENDS * HELD) % 2,
                          .operation = (enum operation)(round / (ENDS * HELD * 2) % OPERATIONS),
                          .bytes = lengths[round % LENGTHS] };
}

static pk_result_t call(const struct bed *bed, const struct turn *turn, pk_comm_t *comm)
{
    if (turn->operation == ALLGATHER)
        return pk_allgather(bed->from, bed->to, turn->bytes / 2, PK_UINT8, comm, bed->self.in_stream);
    if (turn->sender == bed->self.rank)
        return pk_send(bed->from, turn->bytes, PK_UINT8, 1 - bed->self.rank, comm, bed->self.in_stream);
    return pk_recv(bed->to, turn->bytes, PK_UINT8, 1 - bed->self.rank, comm, bed->self.in_stream);
}

/* What each does; whether the error came that must come. */
static bool fail(const struct bed *bed, const struct turn *turn, pk_comm_t *comm)
{
    const int me = bed->self.rank;
    const double begin = monotonic_ms();
    pk_result_t result = PK_OK;

    if (me == 0 || turn->end == BOTH_CALL)
        result = call(bed, turn, comm);
    ranks_meet();
    if ((me == 0 && turn->end != ABORT_THERE && turn->end != NEVER) || (me == 1 && turn->end == ABORT_THERE))
        must_be_ok(pk_comm_abort(comm), "pk_comm_abort");
    while (me == 0 && result == PK_OK && turn->end != BOTH_CALL && monotonic_ms() - begin < LIMIT_MS) {
        result = pk_comm_async_error(comm);
        usleep(200);
    }
    ranks_meet(); /* where both have called, all may be over before the abort */
    if (me == 0 && turn->end == NEVER && result != PK_ERR_TIMEOUT)
        return report(false, "nobody came, and the error is: %s", pk_strerror(result));
    if (me == 0 && (turn->end == ABORT_HERE || turn->end == ABORT_THERE) && result != PK_ERR_ABORTED)
        return report(false, "one rank aborted, and the error is: %s", pk_strerror(result));
    return true;
}

static bool is_canary(const char *gpu, size_t bytes)
{
    unsigned char *host = malloc(bytes);
    size_t other;

    if (host == NULL)
        exit(2);
    gpu_copy(host, gpu, bytes);
    other = bytes_other_than(CANARY, host, bytes);
    free(host);
    return other == 0;
}

static int count_maps(void)
{
    FILE *file = fopen("/proc/self/maps", "re");
    int lines = 0;

    for (int c = file != NULL ? fgetc(file) : EOF; c != EOF; c = fgetc(file))
        lines += c == '\n';
    if (file != NULL)
        fclose(file);
    return lines;
}

/* A copy is in one of the streams, and runs when that comes to it. */
static bool copy_may_run(const struct turn *turn)
{
    return turn->end == BOTH_CALL;
}

static void let_go(const struct bed *bed, int hold_ms)
{
    usleep((useconds_t)hold_ms * 1000);
    *bed->go = 1;
}

static bool run_round(struct bed *bed, int round, int hold_ms)
{
    const struct turn turn = turn_of(round);
    pk_comm_t *comm = gpu_rank_another(&bed->self, turn.end == NEVER ? DEADLINE_MS : LIMIT_MS);
    bool right, idle;

    pattern_to_gpu(bed->from, turn.bytes, (uint64_t)round);
    *bed->go = 0;
    if ((int)turn.held - (int)RANK_0 == bed->self.rank)
        spin_launch(bed->spin, 1, 32, bed->go, bed->self.stream);
    ranks_meet();
    right = fail(bed, &turn, comm);
    if (!copy_may_run(&turn))
        gpu_fill(bed->to, CANARY, MOST);
    ranks_meet();
    let_go(bed, hold_ms);
    idle = stream_idle_within(bed->self.stream, LIMIT_MS, NULL);
    ranks_meet(); /* both streams have come past it */
    if (copy_may_run(&turn)) {
        gpu_fill(bed->to, CANARY, MOST);
        ranks_meet();
        usleep(1000);
    }
    /* with the error that it has failed with; not before: it waits for what the program has in streams */
    (void)pk_comm_destroy(comm);
    if (!idle)
        right = report(false, "rank %d: its stream stands still", bed->self.rank);
    if (!is_canary(bed->to, MOST))
        right = report(false, "rank %d: something came into a buffer that was the program's again", bed->self.rank);
    if (!right)
        printf("rank %d: round %d: %s of %zu bytes, rank %d sends; %s; %s\n", bed->self.rank, round,
               operation_names[turn.operation], turn.bytes, turn.sender, end_names[turn.end], held_names[turn.held]);
    return right;
}

/* Not more than a few, which come and go. */
static bool nothing_grows(struct bed *bed, int round)
{
    if (round == SETTLED) {
        bed->files = open_files();
        bed->maps = count_maps();
    }
    if (round <= SETTLED || (open_files() <= bed->files + 4 && count_maps() <= bed->maps + 40))
        return true;
    return report(false, "rank %d: %d descriptors and %d mappings after %d rounds, %d and %d after %d", bed->self.rank,
                  open_files(), count_maps(), round, bed->files, bed->maps, SETTLED);
}

static int rank_main(void)
{
    static struct bed bed;
    const int64_t word = atomic_load(&ranks_shared()->words[0]);
    const int rounds = (int)(word & INT32_MAX), hold_ms = (int)(word >> 32);
    int wrong = 0;

    gpu_rank_open(&bed.self, PK_SM_DEFAULT, LIMIT_MS);
    bed.spin = spin_kernel();
    bed.go = gpu_host_alloc(sizeof *bed.go);
    bed.from = gpu_alloc(MOST);
    bed.to = gpu_alloc(MOST);
    for (int round = 0; round < rounds && wrong < 5; round++)
        wrong += !run_round(&bed, round, hold_ms) || !nothing_grows(&bed, round);
    report(wrong == 0, "rank %d: %d rounds, %d wrong", bed.self.rank, rounds, wrong);
    gpu_rank_close(&bed.self);
    return report_end();
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : USUAL_ROUNDS, hold_ms = argc > 2 ? atol(argv[2]) : USUAL_HOLD_MS;

    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "rank",
                                      .size = 2,
                                      .word = (int64_t)hold_ms << 32 | rounds,
                                      .timeout_ms = 100000 + (int)(rounds * (2000 + hold_ms)) },
                "%ld failures", rounds);
    return report_end();
}
