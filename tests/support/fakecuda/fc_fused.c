/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused collectives, from the text of kernels.h: the same inboxes, headers, cells and flags, one CPU thread for the whole grid.
 */
#include "fc_fused.h"

#include <stdlib.h>
#include <string.h>

static bool reach_halves(struct fc_fused *f, uint32_t rank)
{
    uint32_t other = rank > f->args->rank ? rank - 1 : rank;

    for (int h = 0; h < 2; h++) {
        f->mine[rank][h] = fc_ptr(f->l, f->args->inbox + (2ull * other + (unsigned)h) * PKI_FUSED_HALF, PKI_FUSED_HALF);
        f->theirs[rank][h] = fc_ptr(f->l, f->args->peers[rank] + (uint64_t)h * PKI_FUSED_HALF, PKI_FUSED_HALF);
        if (f->mine[rank][h] == NULL || f->theirs[rank][h] == NULL)
            return false;
    }
    return true;
}

bool fc_is_other(const struct fc_fused *f, uint32_t rank)
{
    return rank < f->args->size && rank != f->args->rank;
}

static void say_who_is_missing(struct fc_fused *f)
{
    const struct pki_fused_args *a = f->args;
    uint64_t data;

    for (uint32_t p = 0; p < a->size && f->begun; p++)
        if (fc_is_other(f, p))
            fc_store32(&f->words->missing[p], fc_cells_read(f->mine[p][a->epoch & 1], 0, a->epoch, &data) ? 0 : a->epoch);
}

/* False: the kernel was told to leave, or that others do it. */
bool fc_fused_look(struct fc_fused *f)
{
    say_who_is_missing(f);
    if (fc_load32(f->abort_word) != 0)
        return false;
    f->fell = fc_load32(&f->words->fall[f->args->entry]) == f->args->epoch;
    if (f->fell)
        return false;
    fc_relax(&f->round);
    return true;
}

/* ---- cells ---- */

void fc_cells_write(void *cells, uint64_t pair, uint64_t data, uint32_t flag)
{
    _Atomic uint64_t *at = (_Atomic uint64_t *)cells + 2 * pair;

    atomic_store_explicit(&at[0], (data & UINT32_MAX) | (uint64_t)flag << 32, memory_order_release);
    atomic_store_explicit(&at[1], data >> 32 | (uint64_t)flag << 32, memory_order_release);
}

bool fc_cells_read(void *cells, uint64_t pair, uint32_t flag, uint64_t *data)
{
    _Atomic uint64_t *at = (_Atomic uint64_t *)cells + 2 * pair;
    uint64_t low = atomic_load_explicit(&at[0], memory_order_acquire), high = atomic_load_explicit(&at[1], memory_order_acquire);

    *data = (low & UINT32_MAX) | high << 32;
    return low >> 32 == flag && high >> 32 == flag;
}

/* ---- headers ---- */

static void send_header(const struct pki_fused_args *a, char *half, uint32_t p)
{
    fc_cells_write(half, 1, a->in_there[p], a->epoch);
    fc_cells_write(half, 2, a->out_there[p], a->epoch);
    fc_cells_write(half, 0, (uint64_t)a->reach << 32 | a->sig, a->epoch);
}

bool fc_fused_begin(struct fc_fused *f)
{
    f->begun = true;
    for (uint32_t p = 0; p < f->args->size; p++)
        if (fc_is_other(f, p))
            send_header(f->args, f->theirs[p][f->args->epoch & 1], p);
    return true;
}

static bool await_header(struct fc_fused *f, uint32_t p)
{
    const struct pki_fused_args *a = f->args;
    uint64_t data = 0;

    while (!fc_cells_read(f->mine[p][a->epoch & 1], 0, a->epoch, &data)) {
        if (!fc_fused_look(f))
            return false;
    }
    if ((uint32_t)data == a->sig)
        return true;
    atomic_store_explicit((_Atomic uint64_t *)&f->words->differs[p], (uint64_t)a->epoch << 32 | (uint32_t)data,
                          memory_order_release);
    while (fc_fused_look(f))
        ;
    return false;
}

bool fc_fused_headers(struct fc_fused *f)
{
    for (uint32_t p = 0; p < f->args->size; p++)
        if (fc_is_other(f, p) && !await_header(f, p))
            return false;
    return true;
}

/* ---- begin and end ---- */

static bool all_have_come(struct fc_fused *f)
{
    for (uint32_t p = 0; p < f->args->size; p++)
        while (fc_is_other(f, p) && (int32_t)(fc_load32(f->mine[p][0] + PKI_FUSED_BEGUN) - (f->args->epoch - 1)) < 0)
            if (!fc_fused_look(f))
                return false;
    return true;
}

/* False: it has nothing to do, and leaves no word. */
bool fc_fused_open(const struct fc_launch *l, struct fc_fused *f)
{
    const struct pki_fused_args *a = l->params[0];
    struct pki_fused_state *state;

    *f = (struct fc_fused){ .l = l, .args = a };
    f->abort_word = fc_ptr(l, a->abort_flag, 4);
    f->words = fc_ptr(l, a->words, sizeof *f->words);
    state = fc_ptr(l, a->state, sizeof *state);
    if (f->abort_word == NULL || f->words == NULL || state == NULL)
        return false;
    f->quiet = a->quiet != 0 && (int32_t)(fc_load32(&f->words->followed) - a->epoch) >= 0;
    for (uint32_t p = 0; p < a->size; p++)
        if (fc_is_other(f, p) && !reach_halves(f, p))
            return false;
    while ((int32_t)(fc_load32(&state->ended) - a->ended_before) < 0)
        if (!fc_fused_look(f))
            return f->fell;
    for (uint32_t p = 0; p < a->size; p++)
        if (fc_is_other(f, p))
            fc_store32(f->theirs[p][0] + PKI_FUSED_BEGUN, a->epoch);
    if (a->careful || fc_load32(&state->unproven) == a->epoch - 1)
        return all_have_come(f) || f->fell;
    return true;
}

static void wait_for_release(struct fc_fused *f)
{
    uint32_t entry = f->args->entry;

    fc_store32(&f->words->came[entry], f->args->epoch);
    while (fc_load32(&f->words->release[entry]) != f->args->epoch && fc_load32(f->abort_word) == 0)
        fc_relax(&f->round);
}

/* `done`: by this kernel. */
void fc_fused_end(struct fc_fused *f, bool done, uint32_t last_epoch)
{
    struct pki_fused_state *state = fc_ptr(f->l, f->args->state, sizeof *state);

    if (!done && !f->fell)
        return;
    if (f->fell)
        wait_for_release(f);
    f->quiet = f->quiet && !f->fell;
    if (f->fell && state != NULL)
        fc_store32(&state->unproven, last_epoch);
    for (uint32_t c = 0; c < f->l->grid.x && !f->quiet; c++)
        fc_store32(&f->words->done[c], last_epoch);
    if (state != NULL)
        atomic_fetch_add((_Atomic uint32_t *)&state->ended, f->l->grid.x);
}

void fc_run_turn(const struct fc_launch *l)
{
    const struct pki_fused_args *a = l->params[0];
    const struct pki_fused_state *state = fc_ptr(l, a->state, sizeof *state);
    const void *abort_word = fc_ptr(l, a->abort_flag, 4);
    unsigned round = 0;

    if (state == NULL || abort_word == NULL)
        return;
    while ((int32_t)(fc_load32(&state->ended) - a->ended_before) < 0 && fc_load32(abort_word) == 0)
        fc_relax(&round);
}

/* ---- one shot ---- */

static bool send_block(struct fc_fused *f, uint32_t to)
{
    const struct pki_fused_args *a = f->args;
    const char *block = a->bytes > 0 ? fc_ptr(f->l, a->in + to * a->in_stride, a->bytes) : NULL;
    char *cells = f->theirs[to][a->epoch & 1] + PKI_FUSED_CELLS;

    if (a->bytes > 0 && block == NULL)
        return false;
    for (uint64_t at = 0; at < a->bytes; at += 8) {
        uint64_t data = 0;

        memcpy(&data, block + at, a->bytes - at < 8 ? a->bytes - at : 8);
        fc_cells_write(cells, at / 8, data, a->epoch);
    }
    return true;
}

static bool send_blocks(struct fc_fused *f)
{
    for (uint32_t p = 0; p < f->args->size; p++)
        if ((f->args->send >> p & 1) != 0 && fc_is_other(f, p) && !send_block(f, p))
            return false;
    return true;
}

static bool receive_block(struct fc_fused *f, uint32_t from, char *block)
{
    const struct pki_fused_args *a = f->args;

    for (uint64_t at = 0; at < a->bytes; at += 8) {
        uint64_t data;

        while (!fc_cells_read(f->mine[from][a->epoch & 1] + PKI_FUSED_CELLS, at / 8, a->epoch, &data))
            if (!fc_fused_look(f))
                return false;
        memcpy(block + at, &data, a->bytes - at < 8 ? a->bytes - at : 8);
    }
    return true;
}

static void clear_cells(struct fc_fused *f)
{
    for (uint32_t p = 0; p < f->args->size; p++)
        if (fc_is_other(f, p)) {
            memset(f->mine[p][f->args->epoch & 1], 0, 48);
            fc_bytes_set(f->mine[p][f->args->epoch & 1] + PKI_FUSED_CELLS, 0, PKI_FUSED_PARTS - PKI_FUSED_CELLS);
            fc_bytes_set(f->mine[p][f->args->epoch & 1] + PKI_FUSED_MARKS, 0, PKI_FUSED_MARKS_BYTES);
        }
}

static bool exchange_in(struct fc_fused *f)
{
    const struct pki_fused_args *a = f->args;

    for (uint32_t p = 0; p < a->size && a->bytes > 0; p++) {
        char *out;

        if ((a->recv >> p & 1) == 0)
            continue;
        out = fc_ptr(f->l, a->out + p * a->out_stride, a->bytes);
        if (out == NULL)
            return false;
        if (p != a->rank && !receive_block(f, p, out))
            return false;
        if (p == a->rank) {
            const char *own = fc_ptr(f->l, a->in + p * a->in_stride, a->bytes);

            if (own == NULL)
                return false;
            fc_bytes_copy(out, own, a->bytes);
        }
    }
    return true;
}

void fc_run_exchange(const struct fc_launch *l)
{
    struct fc_fused f;
    bool done;

    if (!fc_fused_open(l, &f))
        return;
    /* Headers first: nothing is written before all take part, for OUT may be IN. */
    done = !f.fell && fc_fused_begin(&f) && send_blocks(&f) && fc_fused_headers(&f) && exchange_in(&f);
    if (done && f.args->clear)
        clear_cells(&f);
    fc_fused_end(&f, done, f.args->epoch);
}

/* All blocks first: OUT may be one of them. */
static bool fold_in(struct fc_fused *f, pk_dtype_t type, char *blocks)
{
    const struct pki_fused_args *a = f->args;
    const char *own = fc_ptr(f->l, a->in + a->rank * a->in_stride, a->bytes);
    char *out = fc_ptr(f->l, a->out, a->bytes);

    if (own == NULL || out == NULL)
        return false;
    for (uint32_t p = 0; p < a->size; p++)
        if (p == a->rank)
            fc_bytes_copy(blocks + p * a->bytes, own, a->bytes);
        else if (!receive_block(f, p, blocks + p * a->bytes))
            return false;
    for (uint64_t i = 0; i < a->bytes / fc_element_bytes(type); i++) {
        union fc_wide value = fc_element_load(blocks, i, type);

        for (uint32_t p = 1; p < a->size; p++)
            value = fc_element_combine(value, fc_element_load(blocks + p * a->bytes, i, type), type, a->op);
        fc_element_store(out, i, type, value, a->divisor);
    }
    return true;
}

void fc_run_fold(const struct fc_launch *l)
{
    const pk_dtype_t type = (pk_dtype_t)((const struct pki_fused_args *)l->params[0])->type;
    struct fc_fused f;
    char *blocks;
    bool done;

    if (!fc_fused_open(l, &f))
        return;
    blocks = malloc(f.args->size * f.args->bytes + 1);
    if (blocks == NULL)
        abort();
    done = !f.fell && fc_fused_begin(&f) && send_blocks(&f) && (f.args->recv == 0 || fold_in(&f, type, blocks)) &&
           fc_fused_headers(&f);
    free(blocks);
    fc_fused_end(&f, done, f.args->epoch);
}

/* ---- in graphs ---- */

static void empty_cells(const struct fc_launch *l, const struct pki_fused_args *a)
{
    const uint64_t pair = (a->epoch >> 1) % (2 * PKI_FUSED_PAIR_BYTES / 16);
    struct fc_fused f = { .l = l, .args = a };

    for (uint32_t p = 0; p < a->size && pair >= (a->bytes + 7) / 8; p++)
        if (fc_is_other(&f, p) && reach_halves(&f, p))
            fc_cells_write(f.mine[p][a->epoch & 1] + PKI_FUSED_CELLS, pair, 0, 0);
}

static void replay(const struct fc_launch *l, void (*run)(const struct fc_launch *l))
{
    struct pki_fused_args args = *(const struct pki_fused_args *)l->params[0];
    struct pki_fused_state *state = fc_ptr(l, args.state, PKI_FUSED_REPLAYS + sizeof(struct pki_fused_replays));
    struct pki_fused_replays *replays = (struct pki_fused_replays *)(void *)((char *)state + PKI_FUSED_REPLAYS);
    void *params[] = { &args };
    struct fc_launch made = *l;

    if (state == NULL)
        return;
    args.epoch = replays->epoch + 1 < PKI_FUSED_EPOCHS_BEGIN ? PKI_FUSED_EPOCHS_BEGIN : replays->epoch + 1;
    args.ended_before = fc_load32(&state->ended);
    made.params = params;
    run(&made);
    empty_cells(l, &args);
    replays->epoch = args.epoch;
}

void fc_run_replay_exchange(const struct fc_launch *l)
{
    replay(l, fc_run_exchange);
}

void fc_run_replay_fold(const struct fc_launch *l)
{
    replay(l, fc_run_fold);
}

/* ---- from memory to memory, and the flags with which it ends ---- */

bool fc_fused_all_reach(struct fc_fused *f)
{
    const struct pki_fused_args *a = f->args;
    uint64_t data = 0;

    for (uint32_t p = 0; p < a->size; p++)
        if (fc_is_other(f, p) && (!fc_cells_read(f->mine[p][a->epoch & 1], 0, a->epoch, &data) || data >> 32 == 0))
            return false;
    return a->reach != 0;
}

char *fc_fused_place(struct fc_fused *f, uint32_t p, unsigned pair, uint64_t own, uint64_t at, uint64_t bytes)
{
    uint64_t address = own;

    while (fc_is_other(f, p) && !fc_cells_read(f->mine[p][f->args->epoch & 1], pair, f->args->epoch, &address))
        if (!fc_fused_look(f))
            return NULL;
    return fc_ptr(f->l, address + at, bytes);
}

void fc_fused_raise(struct fc_fused *f, uint32_t epoch, uint32_t which)
{
    for (uint32_t p = 0; p < f->args->size; p++)
        for (uint32_t c = 0; c < f->l->grid.x && fc_is_other(f, p); c++)
            fc_store32(f->theirs[p][epoch & 1] + PKI_FUSED_FLAGS + (2 * c + which) * PKI_FUSED_FLAG_BYTES, epoch);
}

bool fc_fused_await(struct fc_fused *f, uint32_t epoch, uint32_t which)
{
    for (uint32_t p = 0; p < f->args->size; p++)
        for (uint32_t c = 0; c < f->l->grid.x && fc_is_other(f, p); c++)
            while (fc_load32(f->mine[p][epoch & 1] + PKI_FUSED_FLAGS + (2 * c + which) * PKI_FUSED_FLAG_BYTES) != epoch)
                if (!fc_fused_look(f))
                    return false;
    return true;
}
