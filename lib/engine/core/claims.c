/* SPDX-License-Identifier: Apache-2.0 */
/* What one operation counts for among the streams of the process (waiting.c), until it ends. */
#include "engine/core/internal.h"

bool pki_waiting_has_few_queues(const struct pki_engine *e)
{
    return e->limits.connections <= PKI_FEW_QUEUES;
}

static bool is_listed(const struct pki_task *task)
{
    return task->cuda.claims.counted == PKI_COUNTED_LISTED;
}

void pki_claims_count(struct pki_task *task)
{
    struct pki_claims *claims = &task->cuda.claims;

    if (claims->counted == PKI_COUNTED_NOT)
        claims->counted =
            pki_waiting_enter(task->engine->limits.ordinal, task->cuda.queue.handle) ? PKI_COUNTED_LISTED : PKI_COUNTED_UNLISTED;
}

bool pki_claims_wait(struct pki_task *task, int limit)
{
    task->cuda.claims.holds_wait =
        is_listed(task) && pki_waiting_hold(task->engine->limits.ordinal, task->cuda.queue.handle, limit);
    return task->cuda.claims.holds_wait;
}

bool pki_claims_kernel(const struct pki_task *task, int ctas)
{
    const struct pki_engine *e = task->engine;

    return is_listed(task) && pki_waiting_occupy(e->limits.ordinal, task->cuda.queue.handle, ctas, e->limits.places);
}

bool pki_claims_channel(struct pki_task *task, int limit)
{
    struct pki_claims *claims = &task->cuda.claims;

    if (!claims->has_channel)
        claims->has_channel =
            is_listed(task) && pki_waiting_take_channel(task->engine->limits.ordinal, task->cuda.queue.handle, limit);
    return claims->has_channel;
}

void pki_claims_copies(struct pki_task *task)
{
    if (!task->cuda.claims.copies)
        pki_waiting_copies(task->engine->limits.ordinal, 1);
    task->cuda.claims.copies = true;
}

void pki_claims_give_up(struct pki_task *task)
{
    const struct pki_claims had = task->cuda.claims;
    const int device = task->engine->limits.ordinal;
    void *stream = task->cuda.queue.handle;

    task->cuda.claims = (struct pki_claims){ .counted = PKI_COUNTED_NOT };
    if (had.holds_wait)
        pki_waiting_drop(device, stream);
    if (had.has_channel)
        pki_waiting_give_channel(device, stream);
    if (had.counted != PKI_COUNTED_NOT)
        pki_waiting_leave(device, stream, had.counted == PKI_COUNTED_LISTED);
    if (had.copies)
        pki_waiting_copies(device, -1);
}
