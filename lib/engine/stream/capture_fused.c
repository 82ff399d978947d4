/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short collectives in graphs as one kernel: it counts its replays itself (kernels/kernels.h, pki_replay_*). All such
 * kernels of a communicator have one inbox on each rank, made with the first of them, and kept until the communicator is closed:
 * the counts of all ranks lie in them, and have to agree. At capture the ranks meet as for transfers of the whole inbox, so that
 * each has those of all other ranks mapped, and knows that they capture the same.
 */
#include <string.h>

#include "engine/stream/capture.h"
#include "engine/stream/stream.h"

/* Behind the inbox: struct pki_fused_state, struct pki_fused_replays, and there the words, which no CPU looks at. */
#define WORDS_AT 256u

static size_t halves_bytes(const struct pki_engine *e)
{
    return ((size_t)e->config.size - 1) * 2 * PKI_FUSED_HALF;
}

static size_t inbox_bytes(const struct pki_engine *e)
{
    return halves_bytes(e) + WORDS_AT + sizeof(struct pki_fused_words);
}

static pk_result_t make_inbox(struct pki_engine *e)
{
    void *ptr;
    pk_result_t result = pki_retained_alloc_mappable(e->limits.ordinal, inbox_bytes(e), &ptr);

    if (result != PK_OK)
        return result;
    result = e->gpu->ops->zero(e->gpu, ptr, inbox_bytes(e));
    if (result != PK_OK) {
        pki_retained_give(ptr);
        return result;
    }
    e->fused.replay_inbox = ptr;
    e->fused.replay_places = pki_waiting_reserve(e->limits.ordinal, e->fused.share, e->config.fused_ctas);
    return PK_OK;
}

size_t pki_capture_fused_bytes(const struct pki_engine *e)
{
    return e->fused.replay_inbox != NULL ? inbox_bytes(e) : 0;
}

pk_result_t pki_capture_fused_check(struct pki_engine *e)
{
    pk_result_t result = e->fused.replay_inbox == NULL ? make_inbox(e) : PK_OK;

    for (int p = 0; p < e->config.size && result == PK_OK; p++)
        if (p != e->config.rank)
            result = pki_capture_target(e, &e->peers[p], e->fused.replay_inbox, inbox_bytes(e));
    return result;
}

static struct captured *new_meeting(struct pki_engine *e, const struct capture_part *part, int peer, bool is_send)
{
    struct captured *c = pki_captured_new(e, part->graph, peer, is_send, pki_task_name(part->task));

    if (c == NULL)
        return NULL;
    c->flags |= PKI_MSG_FLAG_COLL;
    c->sig = part->task->sig;
    c->op = part->task->number;
    c->addr = e->fused.replay_inbox;
    c->bytes = inbox_bytes(e);
    return c;
}

/* Of each peer two: rank p's inbox is where xfers[p] leads to, and xfers[size + p] lets it write into this one's. */
pk_result_t pki_capture_fused_enroll(struct pki_engine *e, struct capture_part *part)
{
    uint32_t size = (uint32_t)e->config.size;

    part->nxfers = 2 * size;
    for (uint32_t i = 0; i < part->nxfers; i++) {
        int peer = (int)(i % size);

        if (peer == e->config.rank)
            continue;
        part->xfers[i] = new_meeting(e, part, peer, i < size);
        if (part->xfers[i] == NULL)
            return PK_ERR_MEMORY;
    }
    return PK_OK;
}

void pki_capture_fused_record(struct pki_engine *e, struct capture_part *part, struct capture_recorder *r)
{
    const struct pki_request *request = &part->task->request;
    uint64_t inbox = (uint64_t)(uintptr_t)e->fused.replay_inbox;
    struct pki_fused_args args = { .inbox = inbox,
                                   .state = inbox + halves_bytes(e),
                                   .words = inbox + halves_bytes(e) + WORDS_AT,
                                   .abort_flag = (uint64_t)(uintptr_t)e->signals.abort_word,
                                   .rank = (uint32_t)e->config.rank,
                                   .size = (uint32_t)e->config.size,
                                   .sig = part->task->sig,
                                   .epochs = 1,
                                   .replayed = 1 };
    int ctas = pki_fused_ctas(e, request), most = e->fused.replay_places > 0 ? e->fused.replay_places : 1;

    pki_fused_fill(part->task, &args);
    for (int p = 0; p < e->config.size; p++)
        if (p != e->config.rank)
            args.peers[p] = part->xfers[p]->remote +
                            2ull * (unsigned)(e->config.rank > p ? e->config.rank - 1 : e->config.rank) * PKI_FUSED_HALF;
    pki_record_flush(r);
    if (r->result == PK_OK)
        r->result =
            e->gpu->ops->fused(&part->queue, pki_fused_kernel(e, request), request->dtype, ctas < most ? ctas : most, &args);
    r->stats->captured_kernels++;
}
