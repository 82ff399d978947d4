/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks that each sum up one half for both: what comes is summed up part by part while the rest is still on its way, and the sum is written twice, to where
 * it belongs and to where the transport sends it from, which then keeps no copy of its own and lets the sender wait for no answer. What has been summed up in part
 * may be done again from the beginning, the ordinary way, when the peer is late; so in place it is in the transport's memory alone until it has been sent.
 */
#include <string.h>

#include "engine/program.h"
#include "util/dtype.h"

#define BLOCK ((size_t)4 << 10) /* is in the first-level cache when it is written for the second time */

static bool is_in_place(const struct pki_inline_run *run, const struct pki_program_step *step)
{
    return pki_inline_at(run, step->src) == pki_inline_at(run, step->dst);
}

/* False: it has no answer, or another step's is being made. */
static bool begin(struct pki_inline_run *run, const struct pki_program_step *step)
{
    struct pki_inline_reply *a = &run->answer;
    struct pki_ep *ctrl = run->e->peers[step->peer].ctrl;

    if (step->answers && a->step == NULL) {
        *a = (struct pki_inline_reply){ .step = step, .place = ctrl->iface->transport->place(ctrl, step->bytes) };
        a->there = a->place != NULL && is_in_place(run, step);
    }
    return a->step == step;
}

static void sum(struct pki_inline_run *run, const struct pki_program_step *step, size_t until)
{
    struct pki_inline_reply *a = &run->answer;
    const char *own = pki_inline_at(run, step->src), *with = pki_inline_at(run, step->landing);
    char *dst = a->there ? a->place : pki_inline_at(run, step->dst);
    pk_dtype_t dtype = run->request->dtype;

    for (size_t bytes; a->summed < until && run->result == PK_OK; a->summed += bytes) {
        const void *const srcs[2] = { own + a->summed, with + a->summed };

        bytes = until - a->summed < BLOCK ? until - a->summed : BLOCK;
        run->result = pki_reduce_host(dst + a->summed, srcs, 2, bytes / pki_dtype_bytes(dtype), dtype, step->op);
        if (a->place != NULL && !a->there)
            memcpy(a->place + a->summed, dst + a->summed, bytes);
    }
}

void pki_inline_sum_part(struct pki_inline_run *run, const struct pki_program_step *step, size_t came)
{
    if (begin(run, step) && (run->answer.there || !is_in_place(run, step)))
        sum(run, step, came);
}

bool pki_inline_sum_rest(struct pki_inline_run *run, const struct pki_program_step *step)
{
    if (!begin(run, step))
        return false;
    sum(run, step, step->bytes);
    return true;
}

static bool is_answer(const struct pki_inline_run *run, const struct pki_program_step *step)
{
    return run->answer.step != NULL && step == run->answer.step + 1;
}

char *pki_inline_reply_at(struct pki_inline_run *run, const struct pki_program_step *step)
{
    return is_answer(run, step) && run->answer.place != NULL ? run->answer.place : pki_inline_at(run, step->src);
}

void pki_inline_reply_ends(struct pki_inline_run *run, const struct pki_program_step *step)
{
    if (!is_answer(run, step))
        return;
    if (run->answer.there)
        memcpy(pki_inline_at(run, step->src), run->answer.place, step->bytes);
    run->answer.step = NULL;
}
