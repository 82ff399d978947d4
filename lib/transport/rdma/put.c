/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: cut into chunks, dealt to the queue pairs, finished in order. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "tuning/tuning.h"

#define SIGNAL_EVERY (PKI_RDMA_DEPTH / PKI_RDMA_TELL_SHARE)

static struct pki_rdma_move *move_at(struct pki_rdma_ep *ep, uint32_t number)
{
    return &ep->moves.at[number % PKI_RDMA_MOVES];
}

static bool has_ended(struct pki_rdma_ep *ep, uint32_t number)
{
    const struct pki_rdma_move *move = move_at(ep, number);

    return number != ep->moves.end && move->flying == 0 && move->issued == move->put->bytes;
}

static bool is_same_transfer(const struct pki_msg *a, const struct pki_msg *b)
{
    return a->kind == b->kind && a->op == b->op && a->index == b->index && a->flags == b->flags;
}

/* Tell the receiver of a put that has ended, unless one can be told of that goes on where it stops. False: not now. */
static bool tell(struct pki_rdma_ep *ep, struct pki_rdma_move *move)
{
    uint32_t next = ep->moves.head + 1;

    if (move->fin.kind == 0 || (has_ended(ep, next) && is_same_transfer(&move->fin, &move_at(ep, next)->fin)))
        return true;
    return pki_rdma_send(&ep->base, &move->fin, NULL) == PK_OK;
}

/* The engine wants the puts of one transfer to end in order, so a later put waits for an earlier one. */
static void finish_ended(struct pki_rdma_ep *ep)
{
    while (has_ended(ep, ep->moves.head)) {
        struct pki_rdma_move *move = move_at(ep, ep->moves.head);

        if (!tell(ep, move))
            return;
        if (ep->moves.next == ep->moves.head++)
            ep->moves.next = ep->moves.head;
        pki_rdma_mr_put(ep->iface, move->mr);
        move->put->result = PK_OK;
        pki_event_push(&ep->iface->base, &move->put->event, PKI_EVENT_PUT);
    }
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
    uint64_t here = pki_rdma_piece(move->mr->monitored.begin, source, ep->iface->piece_shift);
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
    if (move->number != 0) {
        wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr->imm_data = htonl(move->number);
    }
    wr->wr.rdma.remote_addr = remote;
    wr->wr.rdma.rkey = rkeys[there * ep->nrails_there + qp->rail_there];
    if ((qp->gathered + 1) % SIGNAL_EVERY == 0)
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
        if (!qp->dead && !pki_rdma_post(qp, qp->requests, n))
            pki_rdma_broken(ep, "a write could not be posted");
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
    while (ep->moves.next != ep->moves.end && move_at(ep, ep->moves.next)->issued == move_at(ep, ep->moves.next)->put->bytes)
        ep->moves.next++; /* after recovery: it came before */
    if (ep->moves.next == ep->moves.end)
        return false;
    move = move_at(ep, ep->moves.next);
    *chunk = (struct pki_rdma_chunk){ .move = move, .offset = move->issued, .bytes = (uint32_t)chunk_here(ep, move) };
    move->issued += chunk->bytes;
    move->flying++;
    if (move->issued == move->put->bytes)
        ep->moves.next++;
    return true;
}

void pki_rdma_stripe(struct pki_rdma_ep *ep)
{
    struct pki_rdma_chunk chunk;
    struct pki_rdma_qp *qp;

    finish_ended(ep); /* what could not be told of before */
    if (ep->recover.state != PKI_RDMA_UP)
        return;
    while ((qp = least_loaded(ep)) != NULL && next_chunk(ep, &chunk))
        gather(qp, &chunk);
    ring_doorbells(ep);
}

/* A request moves as much as it can, for each has its cost and one queue pair fills a port. Several rails get a share each,
 * none of it too small for the device to be busy with. */
static size_t chunk_size(const struct pki_rdma_ep *ep, size_t bytes)
{
    uint32_t here = (uint32_t)ep->iface->nrails, rails = here > ep->nrails_there ? here : ep->nrails_there;
    size_t share;

    rails = rails < ep->nqps ? rails : ep->nqps;
    share = (bytes + rails - 1) / rails;

    share = (share + 4095) / 4096 * 4096;
    if (share < pki_tuning.rdma.chunk_min_bytes)
        return pki_tuning.rdma.chunk_min_bytes;
    return share > pki_tuning.rdma.chunk_max_bytes ? pki_tuning.rdma.chunk_max_bytes : share;
}

/* It is the whole transfer, in few enough writes. */
static bool tells_itself(const struct pki_rdma_ep *ep, const struct pki_rdma_move *move, const struct pki_rdma_grant *target)
{
    const struct pki_put *put = move->put;

    return target->number != 0 && put->remote == target->begin && put->bytes == target->bytes &&
           (put->bytes + move->chunk - 1) / move->chunk <= PKI_RDMA_PARTS &&
           pki_rdma_pieces((uintptr_t)put->src, put->bytes, ep->iface->piece_shift) == 1 &&
           pki_rdma_pieces(put->remote, put->bytes, ep->shift_there) == 1;
}

pk_result_t pki_rdma_put(struct pki_put *put)
{
    struct pki_rdma_ep *ep = pki_rdma_ep_of(put->ep);
    const struct pki_rdma_grant *target;
    struct pki_rdma_move *move = move_at(ep, ep->moves.end);
    pk_result_t result;

    if (ep->base.state == PKI_EP_DEAD || pki_rdma_has_left(ep) || ep->iface->revoked)
        return PK_ERR_PEER;
    if (ep->moves.end - ep->moves.head == PKI_RDMA_MOVES)
        return PK_IN_PROGRESS;
    target = pki_rdma_target(ep, &put->about, put->remote, put->bytes);
    if (target == NULL || put->bytes == 0 || put->done_remote.word != NULL)
        return pki_ep_fail(&ep->base, PK_ERR_INTERNAL, 0, "rdma: a put of %zu bytes to memory that was not granted", put->bytes);
    *move = (struct pki_rdma_move){ .put = put, .chunk = chunk_size(ep, put->bytes), .keys = target->keys };
    result = pki_rdma_mr_get(ep->iface, put->src, put->bytes, &move->mr);
    if (result != PK_OK)
        return result;
    if (tells_itself(ep, move, target)) {
        move->number = target->number;
        pki_rdma_target_used(ep, target);
    } else if (!target->is_slot) {
        move->fin = put->about;
        move->fin.offset = put->remote + put->bytes - target->begin;
    }
    ep->moves.end++;
    pki_rdma_stripe(ep);
    return PK_OK;
}

/* ---- Completions ---- */

/* `sequence` and all before it have been acknowledged. */
void pki_rdma_data_completed(struct pki_rdma_qp *qp, uint32_t sequence)
{
    qp->over = sequence + 1;
    for (; (int32_t)(sequence - qp->completed) >= 0; qp->completed++) {
        const struct pki_rdma_chunk *chunk = &qp->chunks[qp->completed % PKI_RDMA_DEPTH];

        qp->bytes -= chunk->bytes;
        chunk->move->flying--;
    }
    finish_ended(qp->ep);
}
