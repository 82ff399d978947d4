/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency messages: each peer has a ring in the memory of this rank's GPU that it writes them into, a flag beside every word.
 * The receiver says where. Behind the rings, in the same allocation, are the inboxes of fused collectives (fused/memory.c).
 */
#include "engine/proto/proto.h"

/* The ring, a word for each message of each direction, and one for each slot of the pair that the moving kernel may be at. */
static size_t bytes_a_peer(void)
{
    return PKI_LL_RING_BYTES + (2 * PKI_LL_MESSAGES + PKI_PAIR_SLOTS) * sizeof(uint32_t);
}

size_t pki_ll_ring_at(int owner, int peer)
{
    return (size_t)(peer > owner ? peer - 1 : peer) * bytes_a_peer();
}

void pki_ll_close(struct pki_engine *e)
{
    if (e->proto.ll_memory != NULL)
        pki_retained_give(e->proto.ll_memory);
    for (int i = 0; i < e->config.size; i++)
        if (e->peers[i].ll.held != NULL)
            pki_retained_give(e->peers[i].ll.held);
}

void pki_ll_unimport(struct pki_peer *peer)
{
    struct pki_ep *path = peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE];

    while (peer->ll.ring.live > 0)
        pki_ll_give(&peer->ll.ring, peer->ll.ring.oldest);
    if (peer->ll.remote != NULL)
        path->iface->transport->unmap(path, &peer->ll.exported, peer->ll.mapping);
    peer->ll.remote = NULL;
}

/* ---- places ---- */

static uint32_t units_of(size_t bytes)
{
    return (uint32_t)((2 * bytes + PKI_LL_UNIT - 1) / PKI_LL_UNIT);
}

/* Used is what lies from the tail to the head; a place that would not fit before the end of the ring begins at its start. */
static bool find_room(const struct pki_ll_ring *ring, uint32_t units, uint32_t *at)
{
    const uint32_t all = PKI_LL_RING_BYTES / PKI_LL_UNIT;
    bool wrapped = ring->head <= ring->tail;

    *at = ring->live == 0 || (!wrapped && units > all - ring->head) ? 0 : ring->head;
    if (ring->live == 0)
        return units <= all;
    if (wrapped || *at == 0)
        return units < ring->tail - *at; /* never quite full: head and tail would be equal */
    return true;
}

bool pki_ll_take(struct pki_ll_ring *ring, size_t bytes, int *place, uint32_t *flag)
{
    uint32_t next = ring->flag + 1 != 0 ? ring->flag + 1 : 1, at; /* 0 is what an empty cell holds */

    if (ring->live > 0 && next - ring->oldest >= PKI_LL_MESSAGES)
        return false;
    if (!find_room(ring, units_of(bytes), &at))
        return false;
    if (ring->live++ == 0) {
        ring->oldest = next;
        ring->tail = at;
    }
    ring->flag = next;
    ring->head = at + units_of(bytes);
    ring->entries[next % PKI_LL_MESSAGES].flag = next;
    ring->entries[next % PKI_LL_MESSAGES].end = ring->head;
    ring->entries[next % PKI_LL_MESSAGES].over = false;
    *place = (int)at;
    *flag = next;
    return true;
}

void pki_ll_give(struct pki_ll_ring *ring, uint32_t flag)
{
    if (ring->entries[flag % PKI_LL_MESSAGES].flag != flag)
        return;
    ring->entries[flag % PKI_LL_MESSAGES].over = true;
    while (ring->live > 0 && ring->entries[ring->oldest % PKI_LL_MESSAGES].over) {
        ring->tail = ring->entries[ring->oldest % PKI_LL_MESSAGES].end;
        ring->oldest = ring->oldest + 1 != 0 ? ring->oldest + 1 : 1;
        ring->live--;
    }
}

/* The oldest one's kernel has ended: nobody needs to have looked. */
static bool oldest_ended(struct pki_engine *e, const struct pki_peer *peer)
{
    const _Atomic uint32_t *done = pki_signals_ll(e, peer->rank, false, peer->ll.ring.oldest);

    return atomic_load_explicit(done, memory_order_acquire) == peer->ll.ring.oldest;
}

bool pki_ll_take_soon(struct pki_engine *e, struct pki_peer *peer, size_t bytes, int *place, uint32_t *flag)
{
    uint64_t until = 0;

    if (peer->ll.room_ns == 0)
        peer->ll.room_ns = pki_tuning.gpu.ll_room_ns;
    for (;;) {
        while (peer->ll.ring.live > 0 && oldest_ended(e, peer))
            pki_ll_give(&peer->ll.ring, peer->ll.ring.oldest);
        if (pki_ll_take(&peer->ll.ring, bytes, place, flag))
            break;
        if (peer->ll.call == e->proto.ll_call && peer->ll.ring.live > 0 && (int32_t)(peer->ll.ring.oldest - peer->ll.first) >= 0)
            return false; /* what has the room is of this very call, and not launched yet */
        if (until == 0)
            until = pki_now_ns() + peer->ll.room_ns;
        if (pki_now_ns() > until) {
            peer->ll.room_ns = peer->ll.room_ns / 2 + 1; /* those that do not end are waited for ever more briefly */
            return false;
        }
        pki_cpu_pause();
    }
    peer->ll.room_ns = pki_tuning.gpu.ll_room_ns;
    if (peer->ll.call != e->proto.ll_call) {
        peer->ll.call = e->proto.ll_call;
        peer->ll.first = *flag;
    }
    return true;
}

uint32_t pki_ll_most_ctas(const struct pki_engine *e)
{
    uint32_t most = (uint32_t)e->gpu->max_ctas;

    return most > 0 && most < pki_tuning.gpu.ll_ctas ? most : pki_tuning.gpu.ll_ctas;
}

uint32_t pki_ll_ctas(const struct pki_engine *e, size_t bytes)
{
    uint32_t limit = pki_ll_most_ctas(e), ctas = (uint32_t)(bytes / PKI_LL_BYTES_A_CTA);

    return ctas == 0 ? 1 : ctas < limit ? ctas : limit;
}

uint64_t *pki_ll_slot(struct pki_engine *e, int peer, int place)
{
    return (uint64_t *)(void *)(e->proto.ll_memory + pki_ll_ring_at(e->config.rank, peer) + (size_t)place * PKI_LL_UNIT);
}

uint32_t *pki_ll_arrived(struct pki_engine *e, int peer, bool send, uint32_t flag)
{
    char *words = e->proto.ll_memory + pki_ll_ring_at(e->config.rank, peer) + PKI_LL_RING_BYTES;

    return (uint32_t *)(void *)words + (send ? PKI_LL_MESSAGES : 0) + flag % PKI_LL_MESSAGES;
}

/* Of a pair's slots those that the peer hands out are for what is sent, and cells for what is received. */
uint32_t *pki_ll_moved(struct pki_engine *e, const struct pki_xfer *xfer)
{
    const struct pki_peer *peer = xfer->peer;
    char *words = e->proto.ll_memory + pki_ll_ring_at(e->config.rank, peer->rank) + PKI_LL_RING_BYTES;
    ptrdiff_t slot = xfer->is_send ? xfer->signals.slot : xfer->signals.cell - peer->ctrl->signals_mine;

    return (uint32_t *)(void *)words + 2 * PKI_LL_MESSAGES + slot;
}
