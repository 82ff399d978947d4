/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pki_move on one CPU thread: of the ops that have not moved, what is open moves. `arrived` is checked, which on a GPU counts the CTAs off: it is 1 here
 * while the op moves, so one that is used twice at a time, or was left by an abort, is a fault.
 */
#include "fc_kernels.h"

struct transfer {
    const struct pki_move_args_op *op;
    const void *src, *start;
    void *dst, *done;
    _Atomic uint32_t *arrived;
    bool moved;
};

/* Of an address that may be 0. False: it is not, and is no word of this GPU's. */
static bool word_at(const struct fc_launch *l, uint64_t address, void **word)
{
    *word = address != 0 ? fc_ptr(l, address, 4) : NULL;
    return address == 0 || *word != NULL;
}

static bool transfer_open(const struct fc_launch *l, const struct pki_move_args_op *op, struct transfer *t)
{
    bool waits_only = op->bytes == 0 && op->done == 0;
    void *start;

    *t = (struct transfer){ .op = op, .arrived = waits_only ? NULL : fc_ptr(l, op->arrived, 4) };
    if ((t->arrived == NULL && !waits_only) || !word_at(l, op->start, &start) || !word_at(l, op->done, &t->done))
        return false;
    t->start = start;
    if (op->bytes > 0) {
        t->src = fc_ptr(l, op->src, op->bytes);
        t->dst = fc_ptr(l, op->dst, op->bytes);
        if (t->src == NULL || t->dst == NULL)
            return false;
    }
    if (t->arrived == NULL || atomic_exchange(t->arrived, 1) == 0)
        return true;
    fc_fault("pki_move: a word to count CTAs that is not 0", op->arrived, 4);
    return false;
}

static bool may_start(const struct transfer *t)
{
    return t->start == NULL || (int32_t)(fc_load32(t->start) - t->op->start_value) >= 0;
}

/* What the word tells of ended under the lock. (The two sides see the word at two addresses, of which thread sanitizer knows nothing.) */
static void transfer_move(struct transfer *t)
{
    fc_lock();
    fc_unlock();
    if (t->op->bytes > 0)
        fc_bytes_copy(t->dst, t->src, t->op->bytes);
    t->moved = true;
    if (t->arrived != NULL)
        atomic_store(t->arrived, 0);
    if (t->done != NULL)
        fc_store32(t->done, t->op->done_value);
}

void fc_run_move(const struct fc_launch *l)
{
    const struct pki_move_args *args = l->params[0];
    const void *abort_word = args->abort_flag != 0 ? fc_ptr(l, args->abort_flag, 4) : NULL;
    struct transfer transfers[PKI_MOVE_OPS];
    uint32_t n = args->n < PKI_MOVE_OPS ? args->n : PKI_MOVE_OPS, left = n;
    unsigned round = 0;

    for (uint32_t i = 0; i < n; i++)
        if (!transfer_open(l, &args->ops[i], &transfers[i]))
            return;
    while (left > 0) {
        uint32_t before = left;

        for (uint32_t i = 0; i < n; i++) {
            if (abort_word != NULL && fc_load32(abort_word) != 0)
                return;
            if (!transfers[i].moved && may_start(&transfers[i])) {
                transfer_move(&transfers[i]);
                left--;
            }
        }
        if (left == before)
            fc_relax(&round);
        else
            round = 0;
    }
}
