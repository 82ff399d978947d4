/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pki_push and pki_push_sum, from the text of kernels.h: blocks that go through rings. One CPU thread looks at all rings in turn and does what
 * can be done.
 */
#include "fc_fused.h"

#include <stdlib.h>
#include <string.h>

enum { THERE = 0, TAKEN = 1 };

/* How far a ring is, in chunks. */
struct ring {
    uint32_t sent, taken;
};

struct rings {
    struct fc_fused *f;
    const struct pki_fused_args *args;
    uint32_t n, bytes, chunk;
    uint64_t block;
    struct ring *all;
    char *in, *out; /* NULL: this rank has none, or an address is wrong */
    bool sums;
};

static void rings_open(struct rings *s, struct fc_fused *f, uint64_t block)
{
    uint64_t round;

    *s = (struct rings){ .f = f, .args = f->args, .n = f->l->grid.x * PKI_PUSH_RINGS, .block = block };
    s->bytes = PKI_FUSED_PUSH_BYTES / s->n & ~1023u;
    s->chunk = s->bytes / 2 < PKI_FUSED_CHUNK ? s->bytes / 2 : PKI_FUSED_CHUNK;
    round = ((block + s->n - 1) / s->n + PKI_FUSED_GRAIN - 1) / PKI_FUSED_GRAIN * PKI_FUSED_GRAIN;
    if (round < s->chunk)
        s->chunk = (uint32_t)round;
    s->all = calloc(s->n, sizeof *s->all);
    if (s->all == NULL)
        abort();
}

/* Chunk `turn` of ring r in the block; false: there is none. */
static bool chunk_range(const struct rings *s, uint32_t r, uint32_t turn, uint64_t *at, uint64_t *bytes)
{
    *at = ((uint64_t)turn * s->n + r) * s->chunk;
    if (*at >= s->block)
        return false;
    *bytes = s->block - *at < s->chunk ? s->block - *at : s->chunk;
    return true;
}

static char *slot(const struct rings *s, char *half, uint32_t r, uint32_t turn)
{
    return half + PKI_FUSED_PARTS + (size_t)r * s->bytes + turn % (s->bytes / s->chunk) * s->chunk;
}

static char *mine(const struct rings *s, uint32_t rank)
{
    return s->f->mine[rank][s->args->epoch & 1];
}

static char *theirs(const struct rings *s, uint32_t rank)
{
    return s->f->theirs[rank][s->args->epoch & 1];
}

static _Atomic uint64_t *mark_in(char *half, uint32_t r, uint32_t which)
{
    return (_Atomic uint64_t *)(void *)(half + PKI_FUSED_MARKS +
                                        (size_t)(PKI_FUSED_RING_MARKS * r + which) * PKI_FUSED_MARK_BYTES);
}

static void mark(const struct rings *s, uint32_t ranks, uint32_t r, uint32_t which, uint32_t count)
{
    for (uint32_t p = 0; p < s->args->size; p++)
        if ((ranks >> p & 1) != 0 && fc_is_other(s->f, p))
            atomic_store_explicit(mark_in(theirs(s, p), r, which), (uint64_t)count << 32 | s->args->epoch, memory_order_release);
}

static bool is_marked(const struct rings *s, uint32_t ranks, uint32_t r, uint32_t which, uint32_t count)
{
    for (uint32_t p = 0; p < s->args->size; p++) {
        uint64_t value;

        if ((ranks >> p & 1) == 0 || !fc_is_other(s->f, p))
            continue;
        value = atomic_load_explicit(mark_in(mine(s, p), r, which), memory_order_acquire);
        if ((uint32_t)value != s->args->epoch || value >> 32 < count)
            return false;
    }
    return true;
}

static bool has_room(const struct rings *s, uint32_t ranks, uint32_t r, uint32_t which, uint32_t turn)
{
    uint32_t slots = s->bytes / s->chunk;

    return turn < slots || is_marked(s, ranks, r, which, turn - slots + 1);
}

/* Marks that nobody waits for are not made. */
static void mark_taken(const struct rings *s, uint32_t ranks, uint32_t r, uint32_t which, uint32_t turn)
{
    uint64_t at, bytes;

    if (chunk_range(s, r, turn + s->bytes / s->chunk, &at, &bytes))
        mark(s, ranks, r, which, turn + 1);
}

static bool push_chunk(struct rings *s, uint32_t r)
{
    const struct pki_fused_args *a = s->args;
    uint32_t turn = s->all[r].sent;
    uint64_t at, bytes;

    if (!chunk_range(s, r, turn, &at, &bytes) || !has_room(s, a->send, r, TAKEN, turn))
        return false;
    for (uint32_t p = 0; p < a->size; p++)
        if ((a->send >> p & 1) != 0 && fc_is_other(s->f, p))
            fc_bytes_copy(slot(s, theirs(s, p), r, turn), s->in + p * a->in_stride + at, bytes);
    mark(s, a->send, r, THERE, ++s->all[r].sent);
    return true;
}

/* Chunk `turn` of ring r, `at` in the block. */
static void sum_up(const struct rings *s, uint32_t r, uint32_t turn, uint64_t at, uint64_t bytes)
{
    const struct pki_fused_args *a = s->args;
    const pk_dtype_t type = (pk_dtype_t)a->type;

    for (uint64_t i = 0; i < bytes / fc_element_bytes(type); i++) {
        union fc_wide value = { .u = 0 };

        for (uint32_t p = 0; p < a->size; p++) {
            const char *from = p == a->rank ? s->in + p * a->in_stride + at : slot(s, mine(s, p), r, turn);
            union fc_wide x = fc_element_load(from, i, type);

            value = p == 0 ? x : fc_element_combine(value, x, type, a->op);
        }
        fc_element_store(s->out + at, i, type, value, a->divisor);
    }
}

static void exchange(const struct rings *s, uint32_t r, uint32_t turn, uint64_t at, uint64_t bytes)
{
    const struct pki_fused_args *a = s->args;

    for (uint32_t p = 0; p < a->size; p++) {
        char *out = s->out + p * a->out_stride + at;

        if ((a->recv >> p & 1) != 0)
            fc_bytes_copy(out, p == a->rank ? s->in + p * a->in_stride + at : slot(s, mine(s, p), r, turn), bytes);
    }
}

static bool take_chunk(struct rings *s, uint32_t r)
{
    const struct pki_fused_args *a = s->args;
    uint32_t turn = s->all[r].taken;
    uint64_t at, bytes;

    if (!chunk_range(s, r, turn, &at, &bytes) || s->all[r].sent <= turn || !is_marked(s, a->recv, r, THERE, turn + 1))
        return false;
    if (s->sums && a->recv != 0)
        sum_up(s, r, turn, at, bytes);
    else if (!s->sums)
        exchange(s, r, turn, at, bytes);
    mark_taken(s, a->recv, r, TAKEN, turn);
    s->all[r].taken++;
    return true;
}

/* One chunk of ring r each way, if it can move; true when one has. */
static bool exchange_step(struct rings *s, uint32_t r, bool *over)
{
    bool pushed = push_chunk(s, r), taken = take_chunk(s, r);
    uint64_t at, bytes;

    *over = !chunk_range(s, r, s->all[r].taken, &at, &bytes);
    return pushed || taken;
}

static bool run_rings(struct rings *s)
{
    for (;;) {
        bool any = false, all_over = true;

        for (uint32_t r = 0; r < s->n; r++) {
            bool over;

            while (exchange_step(s, r, &over))
                any = true;
            all_over = all_over && over;
        }
        if (all_over)
            return true;
        if (!any && !fc_fused_look(s->f))
            return false;
    }
}

/* All of a buffer of `blocks` blocks; false: it is not there. A rank without it is given no address. */
static bool reach(const struct fc_fused *f, bool used, uint64_t address, uint64_t bytes, char **at)
{
    *at = used ? fc_ptr(f->l, address, bytes) : NULL;
    return !used || *at != NULL;
}

static bool push_straight(struct fc_fused *f, const struct rings *s)
{
    const struct pki_fused_args *a = f->args;

    for (uint32_t p = 0; p < a->size; p++) {
        char *to;

        if (p == a->rank && (a->recv >> p & 1) != 0)
            fc_bytes_copy(s->out + p * a->out_stride, s->in + p * a->in_stride, a->bytes);
        if ((a->send >> p & 1) == 0 || !fc_is_other(f, p))
            continue;
        to = fc_fused_place(f, p, 2, 0, 0, a->bytes);
        if (to == NULL)
            return false;
        fc_bytes_copy(to, s->in + p * a->in_stride, a->bytes);
    }
    fc_fused_raise(f, a->epoch, 1);
    return fc_fused_await(f, a->epoch, 1);
}

static void run(const struct fc_launch *l, bool sums)
{
    const struct pki_fused_args *a = l->params[0];
    bool own = sums ? a->recv != 0 : (a->recv >> a->rank & 1) != 0;
    struct fc_fused f;
    struct rings s;
    bool done;

    if (!fc_fused_open(l, &f))
        return;
    rings_open(&s, &f, a->bytes);
    s.sums = sums;
    done = !f.fell &&
           reach(&f, a->send != 0 || own, a->in, a->in_stride > 0 ? a->in_stride * (a->size - 1) + a->bytes : a->bytes, &s.in) &&
           reach(&f, a->recv != 0, a->out, a->out_stride > 0 ? a->out_stride * (a->size - 1) + a->bytes : a->bytes, &s.out) &&
           fc_fused_begin(&f) && fc_fused_headers(&f);
    if (done)
        done = !sums && fc_fused_all_reach(&f) ? push_straight(&f, &s) : run_rings(&s);
    free(s.all);
    fc_fused_end(&f, done, a->epoch);
}

void fc_run_push(const struct fc_launch *l)
{
    run(l, false);
}

void fc_run_push_sum(const struct fc_launch *l)
{
    run(l, true);
}
