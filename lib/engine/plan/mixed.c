/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives whose send buffer is memory of the host and whose receive buffer is GPU memory, or the other way round. The plan
 * runs in one kind of memory: the other buffer has a staging copy there, filled before the first step or copied out after the
 * last one. If an aggregator makes the sums, the plan runs in host memory, and both buffers may have a staging copy.
 */
#include "engine/plan/plan.h"
#include "util/dtype.h"

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* GPU memory, unless that would need a kernel that may not run or does not exist. */
void pki_mixed_choose(struct pki_task *task, const enum pki_mem_kind kinds[2], const size_t bytes[2])
{
    struct pki_engine *e = task->engine;
    const struct pki_request *r = &task->request;
    bool reduces = pki_coll_shape(r->algorithm->coll)->reduces;

    task->kind = PKI_MEM_DEVICE;
    if (pki_task_is_switched(task) || (e->config.sm_policy == PK_SM_NONE && pki_task_needs_kernel(task)) ||
        (reduces && !e->gpu->ops->reduces(e->gpu, r->dtype, r->op)))
        task->kind = PKI_MEM_HOST;
    task->mixed.staging_in = kinds[0] != task->kind;
    task->mixed.staging_out = kinds[1] != task->kind;
    task->mixed.in_bytes = bytes[0];
    task->mixed.out_bytes = bytes[1];
    task->mixed.user_in = r->in;
    task->mixed.user_out = r->out;
    task->mixed.word = -1;
}

size_t pki_mixed_bytes(const struct pki_task *task)
{
    const struct pki_mixed *m = &task->mixed;

    return (m->staging_in ? rounded(m->in_bytes) : 0) + (m->staging_out ? rounded(m->out_bytes) : 0);
}

/* One more piece of a copy when the last one has ended. True: all of it has. */
static bool copy_all(struct pki_task *task, char *dst, const char *src, size_t bytes, bool in)
{
    struct pki_engine *e = task->engine;
    struct pki_mixed *m = &task->mixed;
    struct pki_queue *queue = pki_bounce_queue(e, (task->kind == PKI_MEM_DEVICE) == in);
    struct pki_signal_op ended = { .kind = PKI_SIGNAL_WRITE };
    size_t len = bytes - m->issued < pki_tuning.p2p.host_put_bytes ? bytes - m->issued : pki_tuning.p2p.host_put_bytes;
    pk_result_t result;

    if (m->word >= 0 && !pki_signal_is_open(&m->ended))
        return false;
    pki_signals_give(e, m->word);
    m->word = -1;
    if (len == 0 || queue == NULL)
        return len == 0;
    if (!pki_may_copy(queue, len))
        return false;
    m->word = pki_signals_take(e, &m->ended);
    if (m->word < 0)
        return false;
    ended.signal = m->ended;
    result = e->gpu->ops->copy(queue, dst + m->issued, src + m->issued, len);
    if (result == PK_OK)
        result = e->gpu->ops->signals(queue, &ended, 1, PKI_WAIT_VALUE);
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    e->stats.copies++;
    m->issued += len;
    return false;
}

bool pki_mixed_before(struct pki_task *task, size_t scratch_at)
{
    struct pki_mixed *m = &task->mixed;
    char *staging_copy;

    if (!pki_task_is_mixed(task))
        return true;
    staging_copy = task->run.scratch + scratch_at;
    if (m->staging_out)
        task->request.out = staging_copy + (m->staging_in ? rounded(m->in_bytes) : 0);
    if (!m->staging_in)
        return true;
    task->request.in = staging_copy;
    if (!copy_all(task, staging_copy, m->user_in, m->in_bytes, true))
        return false;
    m->issued = 0;
    return true;
}

/* Where block `index` of the receive buffer lies. What lies between the blocks of a v-form is none of ours. False: no such
 * block. */
static bool out_block(const struct pki_task *task, uint32_t index, size_t *first, size_t *bytes)
{
    const struct pki_layout *layout = &task->request.layout;
    size_t size = pki_dtype_bytes(task->request.dtype);

    *first = 0;
    *bytes = task->mixed.out_bytes;
    if (layout->out_counts == NULL)
        return index == 0;
    if (index >= task->plan->out_blocks)
        return false;
    *first = layout->out_offsets[index] * size;
    *bytes = layout->out_counts[index] * size;
    return true;
}

bool pki_mixed_after(struct pki_task *task)
{
    struct pki_mixed *m = &task->mixed;
    size_t first, bytes;

    if (!m->staging_out)
        return true;
    while (out_block(task, m->block, &first, &bytes)) {
        if (!copy_all(task, (char *)m->user_out + first, (const char *)task->request.out + first, bytes, false))
            return false;
        m->issued = 0;
        m->block++;
    }
    m->over = true;
    return true;
}
