/* SPDX-License-Identifier: Apache-2.0 */
/* pki_relay, from the text of kernels.h. */
#include "fc_fused.h"

#include <string.h>

/* Where a piece of a rank's part lies in the user's buffers, and how long it is there; `pairs`: how many cells it takes. */
struct piece {
    uint64_t begin, bytes;
    uint32_t pairs;
};

static struct piece piece_of(const struct pki_fused_args *a, uint32_t rank, uint32_t number)
{
    uint64_t part = ((a->bytes + 7) / 8 + a->size - 1) / a->size, from = (uint64_t)number * PKI_FUSED_RELAY_PAIRS;
    struct piece p = { .begin = (rank * part + from) * 8 };

    p.pairs = part - from < PKI_FUSED_RELAY_PAIRS ? (uint32_t)(part - from) : PKI_FUSED_RELAY_PAIRS;
    if (p.begin > a->bytes)
        p.begin = a->bytes;
    p.bytes = a->bytes - p.begin < p.pairs * 8ull ? a->bytes - p.begin : p.pairs * 8ull;
    return p;
}

static void write_piece(char *cells, const struct piece *p, const char *data, uint32_t epoch)
{
    for (uint32_t i = 0; i < p->pairs; i++) {
        uint64_t at = i * 8ull, word = 0;

        if (at < p->bytes)
            memcpy(&word, data + at, p->bytes - at < 8 ? p->bytes - at : 8);
        fc_cells_write(cells, i, word, epoch);
    }
}

static bool read_piece(struct fc_fused *f, char *cells, const struct piece *p, char *data, uint32_t epoch)
{
    for (uint32_t i = 0; i < p->pairs; i++) {
        uint64_t at = i * 8ull, word;

        while (!fc_cells_read(cells, i, epoch, &word))
            if (!fc_fused_look(f))
                return false;
        if (at < p->bytes)
            memcpy(data + at, &word, p->bytes - at < 8 ? p->bytes - at : 8);
    }
    return true;
}

static bool fold_piece(struct fc_fused *f, pk_dtype_t type, const struct piece *p, const char *in, char *out, uint32_t epoch)
{
    static _Thread_local char parts[PKI_FUSED_RANKS][PKI_FUSED_RELAY_PAIRS * 8];
    const struct pki_fused_args *a = f->args;

    for (uint32_t r = 0; r < a->size; r++)
        if (fc_is_other(f, r) && !read_piece(f, f->mine[r][epoch & 1] + PKI_FUSED_RELAY_PARTS, p, parts[r], epoch))
            return false;
    for (uint64_t i = 0; i < p->bytes / fc_element_bytes(type); i++) {
        union fc_wide value = { .u = 0 };

        for (uint32_t r = 0; r < a->size; r++) {
            union fc_wide x = fc_element_load(r == a->rank ? in + p->begin : parts[r], i, type);

            value = r == 0 ? x : fc_element_combine(value, x, type, a->op);
        }
        fc_element_store(out + p->begin, i, type, value, a->divisor);
    }
    return true;
}

static bool do_piece(struct fc_fused *f, pk_dtype_t type, const char *in, char *out, uint32_t number)
{
    const struct pki_fused_args *a = f->args;
    uint32_t epoch = a->epoch + number;
    struct piece own = piece_of(a, a->rank, number);

    for (uint32_t r = 0; r < a->size; r++) {
        struct piece p = piece_of(a, r, number);

        if (fc_is_other(f, r))
            write_piece(f->theirs[r][epoch & 1] + PKI_FUSED_RELAY_PARTS, &p, in + p.begin, epoch);
    }
    if (!fold_piece(f, type, &own, in, out, epoch))
        return false;
    for (uint32_t r = 0; r < a->size; r++)
        if (fc_is_other(f, r))
            write_piece(f->theirs[r][epoch & 1] + PKI_FUSED_RELAY_RESULTS, &own, out + own.begin, epoch);
    for (uint32_t r = 0; r < a->size; r++) {
        struct piece p = piece_of(a, r, number);

        if (fc_is_other(f, r) && !read_piece(f, f->mine[r][epoch & 1] + PKI_FUSED_RELAY_RESULTS, &p, out + p.begin, epoch))
            return false;
    }
    return true;
}

void fc_run_relay(const struct fc_launch *l)
{
    const pk_dtype_t type = (pk_dtype_t)((const struct pki_fused_args *)l->params[0])->type;
    struct fc_fused f;
    uint64_t part;
    uint32_t pieces;
    const char *in;
    char *out;
    bool done;

    if (!fc_fused_open(l, &f))
        return;
    part = ((f.args->bytes + 7) / 8 + f.args->size - 1) / f.args->size;
    pieces = (uint32_t)((part + PKI_FUSED_RELAY_PAIRS - 1) / PKI_FUSED_RELAY_PAIRS);
    in = fc_ptr(l, f.args->in, f.args->bytes);
    out = fc_ptr(l, f.args->out, f.args->bytes);
    if (in == NULL || out == NULL)
        return;
    done = !f.fell && fc_fused_begin(&f) && fc_fused_headers(&f);
    for (uint32_t piece = 0; piece < pieces && done; piece++)
        done = do_piece(&f, type, in, out, piece);
    fc_fused_end(&f, done, f.args->epoch + pieces - 1);
}
