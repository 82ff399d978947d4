/* SPDX-License-Identifier: Apache-2.0 */
/* pki_twoshot, from the text of kernels.h. */
#include "fc_fused.h"

#include <string.h>

static uint64_t part_bytes(const struct pki_fused_args *a)
{
    uint64_t vectors = (a->bytes + 15) / 16;

    return (a->in_stride != 0 ? vectors : (vectors + a->size - 1) / a->size) * 16;
}

struct range {
    uint64_t in, out, bytes; /* from the beginning of a buffer */
};

/* What is folded by a rank. */
static struct range part_range(const struct pki_fused_args *a, uint32_t rank)
{
    struct range r = { .in = rank * a->in_stride, .bytes = a->bytes };

    if (a->in_stride != 0)
        return r;
    r.in = rank * part_bytes(a);
    if (r.in > a->bytes)
        r.in = a->bytes;
    r.bytes = a->bytes - r.in < part_bytes(a) ? a->bytes - r.in : part_bytes(a);
    r.out = r.in;
    return r;
}

static struct range piece_range(const struct pki_fused_args *a, uint32_t rank, uint32_t piece)
{
    struct range r = part_range(a, rank);
    uint64_t from = (uint64_t)piece * PKI_FUSED_PIECE;

    if (from > r.bytes)
        from = r.bytes;
    r.in += from;
    r.out += from;
    r.bytes -= from;
    if (r.bytes > PKI_FUSED_PIECE)
        r.bytes = PKI_FUSED_PIECE;
    return r;
}

static bool gets_results(const struct pki_fused_args *a, uint32_t rank)
{
    return (a->results >> rank & 1) != 0;
}

/* NULL for nothing, or where it cannot be reached, which fc_ptr has said. */
static char *user_at(struct fc_fused *f, uint64_t base, uint64_t at, uint64_t bytes)
{
    return bytes > 0 ? fc_ptr(f->l, base + at, bytes) : NULL;
}

static bool fold_piece(struct fc_fused *f, pk_dtype_t type, uint32_t piece, char *result)
{
    const struct pki_fused_args *a = f->args;
    const struct range r = piece_range(a, a->rank, piece);
    const char *in = user_at(f, a->in, r.in, r.bytes);
    char *out = gets_results(a, a->rank) ? user_at(f, a->out, r.out, r.bytes) : NULL;
    uint32_t half = (a->epoch + piece) & 1;

    if (r.bytes > 0 && (in == NULL || (gets_results(a, a->rank) && out == NULL)))
        return false;
    for (uint64_t i = 0; i < r.bytes / fc_element_bytes(type); i++) {
        union fc_wide value = { .u = 0 };

        for (uint32_t p = 0; p < a->size; p++) {
            union fc_wide x = fc_element_load(p == a->rank ? in : f->mine[p][half] + PKI_FUSED_PARTS, i, type);

            value = p == 0 ? x : fc_element_combine(value, x, type, a->op);
        }
        fc_element_store(result, i, type, value, a->divisor);
    }
    if (out != NULL)
        fc_bytes_copy(out, result, r.bytes);
    for (uint32_t p = 0; p < a->size; p++)
        if (fc_is_other(f, p) && gets_results(a, p))
            fc_bytes_copy(f->theirs[p][half] + PKI_FUSED_RESULTS, result, r.bytes);
    return true;
}

static bool send_parts(struct fc_fused *f, uint32_t piece)
{
    const struct pki_fused_args *a = f->args;

    for (uint32_t p = 0; p < a->size; p++) {
        const struct range r = piece_range(a, p, piece);
        const char *in = user_at(f, a->in, r.in, r.bytes);

        if (!fc_is_other(f, p) || r.bytes == 0)
            continue;
        if (in == NULL)
            return false;
        fc_bytes_copy(f->theirs[p][(a->epoch + piece) & 1] + PKI_FUSED_PARTS, in, r.bytes);
    }
    return true;
}

static bool take_results(struct fc_fused *f, uint32_t piece)
{
    const struct pki_fused_args *a = f->args;

    for (uint32_t p = 0; p < a->size; p++) {
        const struct range r = piece_range(a, p, piece);
        char *out = user_at(f, a->out, r.out, r.bytes);

        if (!fc_is_other(f, p) || r.bytes == 0)
            continue;
        if (out == NULL)
            return false;
        fc_bytes_copy(out, f->mine[p][(a->epoch + piece) & 1] + PKI_FUSED_RESULTS, r.bytes);
    }
    return true;
}

static bool do_piece(struct fc_fused *f, pk_dtype_t type, uint32_t piece)
{
    static _Thread_local char result[PKI_FUSED_PIECE];
    const struct pki_fused_args *a = f->args;
    uint32_t epoch = a->epoch + piece;

    if (!send_parts(f, piece))
        return false;
    fc_fused_raise(f, epoch, 0);
    if (!fc_fused_await(f, epoch, 0) || !fold_piece(f, type, piece, result))
        return false;
    fc_fused_raise(f, epoch, 1);
    if (!fc_fused_await(f, epoch, 1))
        return false;
    return !gets_results(a, a->rank) || a->in_stride != 0 || take_results(f, piece);
}

static bool reach_and_fold(struct fc_fused *f, pk_dtype_t type, const struct range *r)
{
    const struct pki_fused_args *a = f->args;
    char *in[PKI_FUSED_RANKS], *out[PKI_FUSED_RANKS];

    for (uint32_t p = 0; p < a->size; p++) {
        in[p] = fc_fused_place(f, p, 1, a->in, r->in, r->bytes);
        out[p] = gets_results(a, p) ? fc_fused_place(f, p, 2, a->out, r->out, r->bytes) : NULL;
        if (in[p] == NULL || (gets_results(a, p) && out[p] == NULL))
            return false;
    }
    for (uint64_t i = 0; i < r->bytes / fc_element_bytes(type); i++) {
        union fc_wide value = fc_element_load(in[0], i, type);

        for (uint32_t p = 1; p < a->size; p++)
            value = fc_element_combine(value, fc_element_load(in[p], i, type), type, a->op);
        for (uint32_t p = 0; p < a->size; p++)
            if (out[p] != NULL)
                fc_element_store(out[p], i, type, value, a->divisor);
    }
    return true;
}

static bool do_straight(struct fc_fused *f, pk_dtype_t type)
{
    const struct range r = part_range(f->args, f->args->rank);

    if (r.bytes > 0 && !reach_and_fold(f, type, &r))
        return false;
    fc_fused_raise(f, f->args->epoch, 1);
    return fc_fused_await(f, f->args->epoch, 1);
}

void fc_run_twoshot(const struct fc_launch *l)
{
    const pk_dtype_t type = (pk_dtype_t)((const struct pki_fused_args *)l->params[0])->type;
    struct fc_fused f;
    bool done;

    if (!fc_fused_open(l, &f))
        return;
    done = !f.fell && fc_fused_begin(&f) && fc_fused_headers(&f); /* which a mismatch of lengths must not outrun */
    if (done && fc_fused_all_reach(&f))
        done = do_straight(&f, type);
    else
        for (uint32_t piece = 0; piece < f.args->epochs && done; piece++)
            done = do_piece(&f, type, piece);
    fc_fused_end(&f, done, f.args->epoch + f.args->epochs - 1);
}
