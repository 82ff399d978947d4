/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations with memory of seven kinds, which is freed and made again between them: often at the same address, for the
 * driver gives that out again, with other memory behind it; an expandable one has its last piece replaced, or grows. The ranks
 * draw the same program, and each its own memory. Every byte is right, nothing is written beside the results, and at the end the
 * library holds what it held early on.
 *
 * ROUNDS and SEED in the environment: a longer program, another one. RANKS: 2 by default.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random_op.h"

static const char *const ending_names[] = { "blocking", "host stream", "cuda stream" };

#define PIECES 12 /* the second half of them long */
#define SHORT_PIECE ((size_t)256 << 10)
#define LONG_PIECE ((size_t)2600 << 10)
#define SHORT_PART ((size_t)96 << 10) /* of a piece, at the most: for all blocks of an operation */
#define LONG_PART ((size_t)2 << 20)
#define GUARD ((size_t)64)
#define WINDOW (LONG_PART + 2 * GUARD)
#define AT_A_TIME 2                         /* operations */
#define SETTLE 80                           /* exchanges that make the library look at all that it knows */
#define SCRATCH (AT_A_TIME * 2 * LONG_PART) /* bytes that a rare pair of operations may add to what all needed before */
#define SETTLE_BYTES ((size_t)48 << 10)

struct bed {
    struct gpu_rank self;
    pk_stream_t streams[ENDINGS];
    uint32_t program, own; /* random numbers: of all ranks, of this one */
    bool gpu_alone;        /* collectives have memory of the GPU on every rank, for the library to choose how they are done */
    struct gpu_piece shelf[PIECES];
    unsigned taken;                          /* bit i: an operation under way has shelf[i] */
    char *host, *want;                       /* WINDOW */
    unsigned turn, wrong, operations, again; /* again: memory made at the address of what was freed */
};

static int number(const char *name, int usual)
{
    return getenv(name) != NULL ? atoi(getenv(name)) : usual;
}

static uint32_t roll(uint32_t *state, size_t n)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)((*state >> 8) % n);
}

/* ---- memory ---- */

static bool is_long(int piece)
{
    return piece >= PIECES / 2;
}

/* Where collectives have memory of the GPU alone, two of three pieces are of it. */
static enum gpu_kind any_kind(struct bed *b, int piece)
{
    return (enum gpu_kind)roll(&b->own, b->gpu_alone && piece % 3 < 2 ? GPU_KINDS_ON_GPU : GPU_KINDS);
}

/* In steps of 64 KiB, so that what is made next often lies in the place of what was freed. */
static size_t any_length(struct bed *b, int piece)
{
    return (is_long(piece) ? LONG_PIECE : SHORT_PIECE) + ((size_t)roll(&b->own, 4) << 16);
}

static void remake(struct bed *b, int piece)
{
    struct gpu_piece *p = &b->shelf[piece];
    const char *before = p->at;
    bool same = roll(&b->own, 2) == 0;
    size_t bytes = p->bytes;

    if (p->kind == GPU_EXPANDABLE && roll(&b->own, 3) > 0) {
        gpu_piece_change(p, roll(&b->own, 2) == 0);
        b->again++;
        return;
    }
    gpu_piece_unmake(p, &b->self);
    if (same && p->kind != GPU_EXPANDABLE)
        gpu_piece_make(p, &b->self, p->kind, bytes);
    else
        gpu_piece_make(p, &b->self, same ? GPU_EXPANDABLE : any_kind(b, piece), any_length(b, piece));
    b->again += p->at == before;
}

/* ---- operations ---- */

static void draw(struct bed *b, struct random_op *op)
{
    static const size_t blocks[] = { 4, 1000, 8192, 16388, 40000, SHORT_PART };
    size_t size = (size_t)b->self.size;

    *op = (struct random_op){ .kind = (enum operation)roll(&b->program, OPERATIONS),
                              .ending = (enum ending)roll(&b->program, ENDINGS),
                              .from = (int)roll(&b->program, size),
                              .is_long = roll(&b->program, 4) == 0,
                              .in_place = roll(&b->program, 4) == 0,
                              .key = b->operations++ };
    op->to = (op->from + 1 + (int)roll(&b->program, size - 1)) % (int)size;
    op->block = op->is_long ? SHORT_PART + roll(&b->program, LONG_PART - SHORT_PART) : blocks[roll(&b->program, 6)];
    if (random_op_has_blocks(op))
        op->block /= size;
    op->block &= ~(size_t)3;
    for (size_t r = 0; r < size; r++)
        op->lengths[r] = roll(&b->program, 4) == 0 ? 0 : op->block / (1 + roll(&b->program, 4));
    op->in_place = op->in_place && (op->kind == SUM_F32 || op->kind == SUM_U8 || op->kind == BROADCAST);
    if (roll(&b->own, 4) == 0) /* what the peer does is no business of this rank's */
        op->ending = (enum ending)roll(&b->own, ENDINGS);
}

static const struct gpu_piece *take(struct bed *b, const struct random_op *op)
{
    bool gpu_alone = b->gpu_alone && op->kind >= BROADCAST;

    for (;;) {
        int i = (int)roll(&b->own, PIECES);

        if ((b->taken & 1u << i) != 0 || (op->is_long && !is_long(i)) || (gpu_alone && b->shelf[i].kind >= GPU_KINDS_ON_GPU))
            continue;
        b->taken |= 1u << i;
        return &b->shelf[i];
    }
}

/* Near the beginning, anywhere, or up to the very end; aligned to 256 bytes, to an element, or not at all. */
static size_t place(struct bed *b, const struct random_op *op, const struct gpu_piece *p)
{
    size_t room = p->bytes - random_op_bytes(op, b->self.size) - 2 * GUARD;
    size_t at = GUARD + (roll(&b->own, 3) == 0 ? room : roll(&b->own, room + 1));

    if (op->kind == SUM_F32)
        return at & ~(size_t)3;
    return roll(&b->own, 2) == 0 && at > 256 ? at & ~(size_t)255 : at;
}

static void prepare(struct bed *b, struct random_op *op)
{
    size_t bytes = random_op_bytes(op, b->self.size);

    op->in = take(b, op);
    op->in_at = place(b, op, op->in);
    op->out = op->in_place ? op->in : take(b, op);
    op->out_at = op->in_place ? op->in_at : place(b, op, op->out);
    memset(b->host, 0xa5, bytes + 2 * GUARD);
    gpu_piece_copy(op->out, op->out->at + op->out_at - GUARD, b->host, bytes + 2 * GUARD);
    random_op_give(op, b->self.rank, 0, b->host + GUARD, bytes);
    gpu_piece_copy(op->in, op->in->at + op->in_at - GUARD, b->host, bytes + 2 * GUARD);
}

static void show(const struct bed *b, const struct random_op *op, const char *what)
{
    report(false, "%s: rank %d: turn %u, %s of %zu bytes (%d to %d), %s, from %s memory at %p + %zu to %s at %p + %zu: %s",
           ranks_role(), b->self.rank, b->turn, random_op_name(op), op->block, op->from, op->to, ending_names[op->ending],
           gpu_kind_name(op->in->kind), (void *)op->in->at, op->in_at, gpu_kind_name(op->out->kind), (void *)op->out->at,
           op->out_at, what);
}

static bool window_is(struct bed *b, const struct gpu_piece *p, size_t at, size_t bytes)
{
    gpu_piece_copy(p, b->host, p->at + at - GUARD, bytes);
    return memcmp(b->host, b->want, bytes) == 0;
}

static void check(struct bed *b, const struct random_op *op)
{
    size_t bytes = random_op_bytes(op, b->self.size);
    bool right;

    memset(b->want, 0xa5, bytes + 2 * GUARD);
    if (!op->in_place) {
        random_op_give(op, b->self.rank, 0, b->want + GUARD, bytes);
        right = window_is(b, op->in, op->in_at, bytes + 2 * GUARD);
        if (!right && b->wrong++ < 5)
            show(b, op, "what was sent has changed");
        memset(b->want, 0xa5, bytes + 2 * GUARD);
    }
    random_op_results(op, &b->self, b->want + GUARD);
    right = window_is(b, op->out, op->out_at, bytes + 2 * GUARD);
    if (!right && b->wrong++ < 5)
        show(b, op, "wrong bytes, or bytes beside the result");
}

static void must_be_taken(const struct bed *b, const struct random_op *op, pk_result_t result)
{
    if (result != PK_OK)
        show(b, op, "refused");
    must_be_ok(result, random_op_name(op));
}

static void finish(struct bed *b)
{
    must_be_ok(pk_stream_synchronize(b->streams[HOST_STREAM]), "pk_stream_synchronize");
    if (!stream_idle_within(b->self.stream, 25000, NULL)) {
        (void)pk_comm_async_error(b->self.comm);
        must_be_ok(pk_comm_async_error(b->self.comm), "the stream does not end, and the communicator");
        gpu_show_pending(b->self.comm);
        exit(1);
    }
    must_be_ok(pk_comm_async_error(b->self.comm), "pk_comm_async_error");
}

static void one_turn(struct bed *b)
{
    struct random_op ops[AT_A_TIME];
    unsigned n = 1 + roll(&b->program, AT_A_TIME);

    b->turn++;
    b->taken = 0;
    for (int k = (int)roll(&b->own, 4); k > 0; k--)
        remake(b, (int)roll(&b->own, PIECES));
    for (unsigned i = 0; i < n; i++) {
        draw(b, &ops[i]);
        prepare(b, &ops[i]);
    }
    for (unsigned i = 0; i < n; i++)
        must_be_taken(b, &ops[i], random_op_call(&ops[i], &b->self, b->streams[ops[i].ending]));
    finish(b);
    for (unsigned i = 0; i < n; i++)
        check(b, &ops[i]);
}

/* A receiver that moves the bytes itself describes its buffer for another time. If it is freed before the sender comes to it, that
 * is no error. */
static void free_described(struct bed *b)
{
    struct gpu_piece p;
    struct random_op op = {
        .kind = MESSAGE, .ending = CUDA_STREAM, .from = 0, .to = 1, .block = SHORT_PART, .in = &p, .out = &p
    };

    gpu_piece_make(&p, &b->self, GPU_DEVICE, SHORT_PIECE);
    if (b->self.rank == 1)
        ranks_meet();
    must_be_taken(b, &op, random_op_call(&op, &b->self, b->streams[op.ending]));
    if (b->self.rank != 1)
        ranks_meet();
    finish(b);
    gpu_piece_unmake(&p, &b->self);
    ranks_meet();
    must_be_ok(pk_barrier(b->self.comm, PK_BLOCKING), "pk_barrier");
}

/* ---- what the library says ---- */

/* No error, and of each kind of memory that others cannot map one warning, not one for each call. */
static struct said {
    atomic_uint errors, pool, hidden, blocked;
} said;

static void hear(void *arg, int level, const char *line)
{
    (void)arg;
    said.errors += level == 1;
    if (strstr(line, "cannot map") != NULL)
        *(strstr(line, "memory pool") != NULL ? &said.pool : &said.hidden) += 1;
    said.blocked += strstr(line, "still mapped here") != NULL;
    puts(line);
}

/* ---- what the library holds ---- */

struct counts {
    unsigned long long device_bytes;
    int descriptors;
    unsigned long mappings;
};

/* As much at a time as ever in a turn, in memory of both kinds, with as long blocks: so much scratch memory the library needs, or
 * nearly. */
static void use_most(struct bed *b)
{
    struct gpu_piece gpu[2], host[2];

    for (int i = 0; i < 2; i++) {
        gpu_piece_make(&gpu[i], &b->self, GPU_DEVICE, LONG_PIECE);
        gpu_piece_make(&host[i], &b->self, GPU_PAGEABLE, LONG_PIECE);
        memset(host[i].at, 0, LONG_PIECE);
    }
    for (int kind = BROADCAST; kind < OPERATIONS; kind++)
        for (int turned = 0; turned < 2; turned++) {
            for (int i = 0; i < AT_A_TIME; i++) {
                struct random_op op = { .kind = (enum operation)kind,
                                        .ending = i == 0 ? HOST_STREAM : CUDA_STREAM,
                                        .block = LONG_PART };

                if (random_op_has_blocks(&op))
                    op.block = LONG_PART / (size_t)b->self.size & ~(size_t)3;
                for (int r = 0; r < b->self.size; r++)
                    op.lengths[r] = op.block;
                op.in = i == turned ? &gpu[i] : &host[i];
                op.out = i == turned ? &host[i] : &gpu[i];
                must_be_taken(b, &op, random_op_call(&op, &b->self, b->streams[op.ending]));
            }
            finish(b);
        }
    for (int i = 0; i < 2; i++) {
        gpu_piece_unmake(&gpu[i], &b->self);
        gpu_piece_unmake(&host[i], &b->self);
    }
}

/* The library looks at a few allocations that it knows with each new one, and a peer closes in a call what it hears is gone. */
static void settle(struct bed *b)
{
    for (int i = 0; i < SETTLE; i++) {
        struct random_op op = { .kind = EXCHANGE, .block = SETTLE_BYTES };
        struct gpu_piece in, out;

        gpu_piece_make(&in, &b->self, GPU_DEVICE, SETTLE_BYTES);
        gpu_piece_make(&out, &b->self, GPU_DEVICE, SETTLE_BYTES);
        op.in = &in;
        op.out = &out;
        must_be_taken(b, &op, random_op_call(&op, &b->self, b->streams[op.ending]));
        gpu_piece_unmake(&in, &b->self);
        gpu_piece_unmake(&out, &b->self);
    }
    ranks_meet();
}

static struct counts count(struct bed *b)
{
    pk_stats_t stats = { .struct_size = sizeof stats };
    struct counts now;

    for (int i = 0; i < PIECES; i++)
        gpu_piece_unmake(&b->shelf[i], &b->self);
    settle(b);
    must_be_ok(pk_comm_stats(b->self.comm, &stats), "pk_comm_stats");
    now = (struct counts){ stats.device_bytes, open_files(), mappings_here() };
    for (int i = 0; i < PIECES; i++)
        gpu_piece_make(&b->shelf[i], &b->self, any_kind(b, i), any_length(b, i));
    return now;
}

static void compare(const struct bed *b, const struct counts *first, const struct counts *last)
{
    printf("rank %d: early on and at the end: device_bytes %llu %llu, descriptors %d %d, mappings %lu %lu\n", b->self.rank,
           first->device_bytes, last->device_bytes, first->descriptors, last->descriptors, first->mappings, last->mappings);
    report(last->device_bytes <= first->device_bytes + SCRATCH, "%s: rank %d: device_bytes stay", ranks_role(), b->self.rank);
    /* The software driver has a descriptor for each allocation: of scratch, and of memory that a peer has freed last. */
    report(last->descriptors <= first->descriptors + 5, "%s: rank %d: descriptors stay", ranks_role(), b->self.rank);
    report(last->mappings <= first->mappings + 40, "%s: rank %d: mappings stay", ranks_role(), b->self.rank);
}

/* ---- the ranks ---- */

static void bed_open(struct bed *b)
{
    gpu_rank_open(&b->self, PK_SM_DEFAULT, 30000);
    b->program = (uint32_t)number("SEED", 1) * 7919u;
    b->own = b->program * 31u + (uint32_t)b->self.rank + 1;
    b->gpu_alone = strcmp(ranks_role(), "as the library chooses") == 0;
    b->streams[BLOCKING] = PK_BLOCKING;
    must_be_ok(pk_stream_create(&b->streams[HOST_STREAM]), "pk_stream_create");
    b->streams[CUDA_STREAM] = b->self.in_stream;
    b->host = malloc(WINDOW);
    b->want = malloc(WINDOW);
    if (b->host == NULL || b->want == NULL)
        exit(2);
    for (int i = 0; i < PIECES; i++)
        gpu_piece_make(&b->shelf[i], &b->self, any_kind(b, i), any_length(b, i));
}

static void bed_close(struct bed *b)
{
    must_be_ok(pk_stream_destroy(b->streams[HOST_STREAM]), "pk_stream_destroy");
    for (int i = 0; i < PIECES; i++)
        gpu_piece_unmake(&b->shelf[i], &b->self);
    gpu_rank_close(&b->self);
    free(b->host);
    free(b->want);
}

static int rank_main(void)
{
    static struct bed b;
    int rounds = number("ROUNDS", 30);
    struct counts first = { 0 }, last;

    setvbuf(stdout, NULL, _IOLBF, 0);
    pk_log_set_callback(hear, NULL);
    bed_open(&b);
    free_described(&b);
    for (int i = 0; i < rounds && b.wrong == 0; i++) {
        one_turn(&b);
        if (i + 1 != rounds / 2)
            continue;
        use_most(&b);
        first = count(&b);
    }
    report(b.wrong == 0, "%s: rank %d: %u operations in %u turns, %u wrong; %u pieces of memory where other memory had been",
           ranks_role(), b.self.rank, b.operations, b.turn, b.wrong, b.again);
    last = count(&b);
    compare(&b, &first, &last);
    bed_close(&b);
    report(said.errors == 0 && said.pool <= 1 && said.hidden <= 1 && said.blocked <= 1,
           "%s: rank %d: %u errors in the log; warnings of memory that cannot be mapped: %u %u, or not now: %u", ranks_role(),
           b.self.rank, said.errors, said.pool, said.hidden, said.blocked);
    return report_end();
}

static void drive(const char *role)
{
    struct ranks_turn turn = { .role = role, .size = number("RANKS", 2), .timeout_ms = 60000 + 1000 * number("ROUNDS", 0) };

    ranks_drive(&turn, "%s, seed %d", role, number("SEED", 1));
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    drive("as the library chooses");
    setenv("PK_ALGORITHM", "direct", 0); /* ranks whose memory is of different kinds must not choose by it */
    drive("all kinds");
    return report_end();
}
