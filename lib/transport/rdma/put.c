/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: cut into chunks, dealt to the queue pairs, finished in order. */
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"

#define CHUNK_MIN ((size_t)64 << 10)
#define CHUNK_MAX ((size_t)1 << 20)
#define SIGNAL_EVERY (PKI_RDMA_DEPTH / 4)

static struct pki_rdma_move *move_at(struct pki_rdma_ep *ep, uint32_t number)
{
    return &ep->moves[number % PKI_RDMA_MOVES];
}

/* The engine wants the puts of one transfer to end in order, so a later put waits for an earlier one. */
static void finish_ended(struct pki_rdma_ep *ep)
{
    while (ep->move_head != ep->move_next) {
        struct pki_rdma_move *move = move_at(ep, ep->move_head);

        if (move->flying > 0)
            return;
        ep->move_head++;
        pki_rdma_mr_put(ep->iface, move->mr);
        move->put->result = PK_OK;
        pki_list_push(&ep->iface->base.done, &move->put->node);
    }
}

void pki_rdma_moves_fail(struct pki_rdma_ep *ep)
{
    for (; ep->move_head != ep->move_end; ep->move_head++) {
        struct pki_rdma_move *move = move_at(ep, ep->move_head);

        pki_rdma_mr_put(ep->iface, move->mr);
        move->put->result = PK_ERR_PEER;
        pki_list_push(&ep->iface->base.done, &move->put->node);
    }
    ep->move_next = ep->move_end;
    ep->nredo = 0;
}

/* ---- Out ---- */

/* The queue pair with room that has fewest bytes in flight. */
static struct pki_rdma_qp *least_loaded(struct pki_rdma_ep *ep)
{
    struct pki_rdma_qp *best = NULL;

    for (uint32_t i = 1; i <= ep->nqps; i++) {
        struct pki_rdma_qp *qp = &ep->qps[i];

        if (!qp->dead && qp->posted - qp->completed < PKI_RDMA_DEPTH && (best == NULL || qp->bytes < best->bytes))
            best = qp;
    }
    return best;
}

static void gather(struct pki_rdma_qp *qp, const struct pki_rdma_chunk *chunk)
{
    const struct pki_rdma_move *move = chunk->move;
    const struct pki_rdma_ep *ep = qp->ep;
    uintptr_t source = (uintptr_t)move->put->src + chunk->offset;
    uint64_t remote = move->put->remote + chunk->offset;
    uint64_t here = pki_rdma_piece(move->mr->watch.begin, source, ep->iface->piece_shift);
    uint64_t there = pki_rdma_piece(move->keys.begin, remote, ep->shift_there);
    const uint32_t *rkeys = move->keys.many != NULL ? move->keys.many : move->keys.few;
    struct ibv_send_wr *wr = &qp->requests[qp->gathered];
    struct ibv_sge *piece = &qp->pieces[qp->gathered];

    *piece = (struct ibv_sge){ .addr = source,
                               .length = chunk->bytes,
                               .lkey = move->mr->mrs[here * (uint64_t)ep->iface->nrails + qp->rail_here]->lkey };
    *wr = (struct ibv_send_wr){
        .wr_id = pki_rdma_wr_id(qp, qp->posted), .sg_list = piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE
    };
    wr->wr.rdma.remote_addr = remote;
    wr->wr.rdma.rkey = rkeys[there * ep->nrails_there + qp->rail_there];
    if ((qp->posted + 1) % SIGNAL_EVERY == 0)
        wr->send_flags = IBV_SEND_SIGNALED;
    if (qp->gathered > 0)
        qp->requests[qp->gathered - 1].next = wr;
    qp->gathered++;
    qp->chunks[qp->posted++ % PKI_RDMA_DEPTH] = *chunk;
    qp->bytes += chunk->bytes;
}

/* The last of a chain is always signalled: nothing may follow it that would tell of it. */
static void ring_doorbells(struct pki_rdma_ep *ep)
{
    for (uint32_t i = 1; i <= ep->nqps; i++) {
        struct pki_rdma_qp *qp = &ep->qps[i];
        unsigned n = qp->gathered;

        if (n == 0)
            continue;
        qp->gathered = 0;
        qp->requests[n - 1].send_flags = IBV_SEND_SIGNALED;
        if (!pki_rdma_post(qp, qp->requests, n))
            pki_rdma_data_failed(qp);
    }
}

/* A request has one key at each end, so a chunk ends where a piece of registered memory does. */
static size_t chunk_here(const struct pki_rdma_ep *ep, const struct pki_rdma_move *move)
{
    const struct pki_put *put = move->put;
    uint64_t here = (uint64_t)1 << ep->iface->piece_shift, there = (uint64_t)1 << ep->shift_there;
    size_t bytes = put->bytes - move->issued;

    bytes = bytes < move->chunk ? bytes : move->chunk;
    here -= ((uintptr_t)put->src + move->issued) % here;
    there -= (put->remote + move->issued) % there;
    bytes = bytes < here ? bytes : here;
    return bytes < there ? bytes : there;
}

/* The next chunk that has to go: of a failed queue pair first. */
static bool next_chunk(struct pki_rdma_ep *ep, struct pki_rdma_chunk *chunk)
{
    struct pki_rdma_move *move;

    if (ep->nredo > 0) {
        *chunk = ep->redo[--ep->nredo];
        return true;
    }
    if (ep->move_next == ep->move_end)
        return false;
    move = move_at(ep, ep->move_next);
    *chunk = (struct pki_rdma_chunk){ .move = move, .offset = move->issued, .bytes = (uint32_t)chunk_here(ep, move) };
    move->issued += chunk->bytes;
    move->flying++;
    if (move->issued == move->put->bytes)
        ep->move_next++;
    return true;
}

void pki_rdma_deal(struct pki_rdma_ep *ep)
{
    struct pki_rdma_chunk chunk;
    struct pki_rdma_qp *qp;

    while ((qp = least_loaded(ep)) != NULL && next_chunk(ep, &chunk))
        gather(qp, &chunk);
    ring_doorbells(ep);
}

/* Every queue pair gets a share, none of it too small for the device to be busy with or too large to be moved elsewhere. */
static size_t chunk_size(const struct pki_rdma_ep *ep, size_t bytes)
{
    size_t share = (bytes + ep->nqps - 1) / ep->nqps;

    share = (share + 4095) / 4096 * 4096;
    if (share < CHUNK_MIN)
        return CHUNK_MIN;
    return share > CHUNK_MAX ? CHUNK_MAX : share;
}

pk_result_t pki_rdma_put(struct pki_put *put)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(put->ep);
    const struct pki_rdma_grant *target;
    struct pki_rdma_move *move = move_at(ep, ep->move_end);
    struct pki_where where = pki_rdma_where(ep);
    pk_result_t result;

    if (ep->base.dead || ep->left)
        return PK_ERR_PEER;
    if (ep->move_end - ep->move_head == PKI_RDMA_MOVES)
        return PK_IN_PROGRESS;
    target = pki_rdma_target(ep, put->remote, put->bytes);
    if (target == NULL || put->bytes == 0 || put->done_remote.word != NULL)
        return pki_fail(PK_ERR_INTERNAL, &where, "rdma: a put of %zu bytes to where nothing was granted", put->bytes);
    *move = (struct pki_rdma_move){ .put = put, .chunk = chunk_size(ep, put->bytes) };
    move->keys = target->keys;
    result = pki_rdma_mr_get(ep->iface, put->src, put->bytes, &move->mr);
    if (result != PK_OK)
        return result;
    ep->move_end++;
    pki_rdma_deal(ep);
    return PK_OK;
}

/* ---- Completions ---- */

/* `sequence` and all before it have been acknowledged. */
void pki_rdma_data_completed(struct pki_rdma_qp *qp, uint32_t sequence)
{
    for (; (int32_t)(sequence - qp->completed) >= 0; qp->completed++) {
        const struct pki_rdma_chunk *chunk = &qp->chunks[qp->completed % PKI_RDMA_DEPTH];

        qp->bytes -= chunk->bytes;
        chunk->move->flying--;
    }
    finish_ended(qp->ep);
}

/* What it had in flight goes again on the others. Writing the same bytes twice does no harm: the receiver has not been told of them. */
void pki_rdma_data_failed(struct pki_rdma_qp *qp)
{
    struct pki_rdma_ep *ep = qp->ep;
    struct pki_where where = pki_rdma_where(ep);
    unsigned alive = 0;

    qp->dead = true;
    for (; qp->completed != qp->posted; qp->completed++)
        ep->redo[ep->nredo++] = qp->chunks[qp->completed % PKI_RDMA_DEPTH];
    qp->bytes = 0;
    for (uint32_t i = 1; i <= ep->nqps; i++)
        alive += !ep->qps[i].dead;
    if (alive == 0) {
        if (!ep->left || ep->move_head != ep->move_end)
            pki_rdma_ep_failed(ep, "the last queue pair for data has failed");
        return;
    }
    pki_log(PKI_LOG_WARN, &where, "rdma: a queue pair on %s has failed, %u are left; %u chunks go again", qp->rail->name, alive,
            ep->nredo);
}
