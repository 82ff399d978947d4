/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers: how they begin, go on and end. Locked. */
#ifndef PKI_ENGINE_PROTO_H
#define PKI_ENGINE_PROTO_H

#include "engine/mem/mem.h"

/* What the choice of a protocol depends on. */
struct pki_protocol_query {
    const struct pki_engine *engine;
    const struct pki_peer *peer;
    enum pki_mem_kind kind; /* of this rank's memory */
    size_t bytes, eager_max;
    bool captured;
};

/* How a transfer begins: protocols.c has the table, of which the first line that applies is taken. */
struct pki_protocol {
    const char *name;
    bool (*applies)(const struct pki_protocol_query *query);
    int (*ctas)(const struct pki_protocol_query *query, bool is_send); /* of the kernel at this end; NULL: none */
    void (*send)(struct pki_xfer *xfer);                               /* no grant has come yet */
    void (*recv)(struct pki_xfer *xfer);                               /* nothing of it has come yet */
    void (*advance[2])(struct pki_xfer *xfer);                         /* [is_send]: it goes on, however far it has come */
};

const struct pki_protocol *pki_protocol_choose(const struct pki_protocol_query *query);

/* xfer.c, send.c, recv.c */
struct pki_xfer *pki_xfer_new(struct pki_engine *engine, int peer, bool is_send);
void pki_xfer_free(struct pki_xfer *xfer);
void pki_xfers_release(struct pki_engine *engine); /* the memory of all of them, free or not */
void pki_xfer_activate(struct pki_xfer *xfer);
static inline void pki_xfer_enter(struct pki_xfer *xfer, enum pki_xfer_state state)
{
    xfer->state = state;
}

/* Posted: it goes on as far as it can now. */
static inline void pki_xfer_advance(struct pki_xfer *xfer)
{
    if (atomic_load_explicit(&xfer->engine->failed, memory_order_relaxed) == PK_OK)
        xfer->protocol->advance[xfer->is_send](xfer);
}

/* Send: may its bytes leave? */
static inline bool pki_xfer_is_granted(const struct pki_xfer *xfer)
{
    return xfer->state >= PKI_XFER_MOVE && xfer->state < PKI_XFER_DONE;
}

static inline size_t pki_xfer_eager_max(const struct pki_xfer *xfer)
{
    return (xfer->id.flags & PKI_MSG_FLAG_COLL) != 0 ? xfer->peer->eager.coll : xfer->peer->eager.max;
}

/* Neither eager nor too long: a sender that has the credit goes ahead, and a receiver grants it to its transport alone. */
static inline bool pki_may_eager_put(const struct pki_protocol_query *query)
{
    return query->bytes <= query->peer->eager_put.max && query->bytes > query->eager_max && !query->captured &&
           query->peer->path[PKI_MEM_HOST][PKI_MEM_HOST] == query->peer->ctrl;
}

static inline struct pki_protocol_query pki_xfer_query(const struct pki_xfer *xfer)
{
    return (struct pki_protocol_query){ .engine = xfer->engine,
                                        .peer = xfer->peer,
                                        .kind = xfer->kind,
                                        .bytes = xfer->bytes,
                                        .eager_max = pki_xfer_eager_max(xfer),
                                        .captured = (xfer->id.flags & PKI_MSG_FLAG_CAPTURED) != 0 };
}

/* How many chunks `bytes` of it are. */
static inline size_t pki_xfer_chunks(const struct pki_xfer *xfer, size_t bytes)
{
    return bytes == 0 ? 0 : (bytes - 1) / xfer->chunk + 1;
}

/* A message that speaks of it. */
static inline struct pki_msg pki_xfer_message(const struct pki_xfer *xfer, enum pki_msg_kind kind)
{
    return (struct pki_msg){ .kind = (uint8_t)kind,
                             .flags = xfer->id.flags,
                             .index = xfer->id.index,
                             .sig = xfer->id.sig,
                             .op = xfer->id.op,
                             .bytes = xfer->bytes };
}

void pki_xfer_post(struct pki_xfer *xfer);
/* All of it by one copy in this queue, into or out of the peer's memory, whichever side moves it. */
pk_result_t pki_xfer_put(struct pki_xfer *xfer, struct pki_queue *queue);
void pki_xfer_progressed(struct pki_xfer *xfer);
void pki_send_advance(struct pki_xfer *xfer);
void pki_send_eager(struct pki_xfer *xfer); /* these three begin a send; */
void pki_send_eager_put(struct pki_xfer *xfer);
void pki_send_rendezvous(struct pki_xfer *xfer);
void pki_recv_eager(struct pki_xfer *xfer); /* and these a receive */
void pki_recv_eager_put(struct pki_xfer *xfer);
void pki_recv_bounce(struct pki_xfer *xfer);
void pki_recv_rendezvous(struct pki_xfer *xfer);
bool pki_send_rts(struct pki_xfer *xfer); /* says RTS. False: there was no room */
void pki_send_cts_arrived(struct pki_xfer *xfer, const struct pki_msg *grant);
/* Sends to this peer that have waited long for a grant, and were silent so far, say what they are: the peer may expect another
 * transfer. */
void pki_send_overdue_rts(struct pki_peer *peer, uint64_t now);
void pki_send_put_done(struct pki_put *put);
void pki_recv_advance(struct pki_xfer *xfer);
void pki_recv_received(struct pki_recv *recv); /* more of it has come */
void pki_recv_message(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload);
/* The buffer is free: the receive may be matched, or its signal opened. */
void pki_recv_open(struct pki_xfer *xfer);
/* The peer's message disagrees; `bytes` is what it says of the length. */
void pki_xfer_mismatch(struct pki_xfer *xfer, const struct pki_msg *msg, size_t bytes);
struct pki_ll_op pki_ll_send_op(struct pki_xfer *xfer);
void pki_send_ats_arrived(struct pki_xfer *xfer, const struct pki_msg *msg);
void pki_put_failed(struct pki_xfer *xfer, pk_result_t result);
/* Is it that the transport cannot put any more? The bytes go otherwise then. */
bool pki_put_refused(const struct pki_xfer *xfer, pk_result_t result);

/* coop.c: long transfers of host memory that both ends move */
/* receive: take a slot for the grant, if it may be shared */
void pki_coop_reserve(struct pki_xfer *xfer);
pk_result_t pki_coop_offer(struct pki_xfer *xfer);  /* send */
void pki_coop_get(struct pki_xfer *xfer);           /* receive */
bool pki_coop_get_ended(struct pki_put *get);       /* receive: what it has pulled has landed, or not; true: it has progressed */
bool pki_coop_may_get(const struct pki_xfer *xfer); /* receive that combines */
/* send, granted; else it goes through the control channel */
bool pki_coop_pays(const struct pki_xfer *xfer);
/* Two copies through the control channel take less time than one by the kernel, as of now. */
bool pki_coop_is_near(const struct pki_xfer *xfer);
/* All ranks move as much as any other at the same time: nobody has time to help. */
bool pki_coop_is_even(const struct pki_xfer *xfer);
void pki_coop_offered(struct pki_xfer *xfer, const struct pki_msg *offer); /* receive */
void pki_coop_advance(struct pki_xfer *xfer);
void pki_coop_piece_done(struct pki_xfer *xfer);
/* The kernel does not copy for the receiver any more: it asks for DATA, and the sender hears of it. */
void pki_coop_ask_for_data(struct pki_xfer *xfer);
void pki_coop_left(struct pki_xfer *xfer); /* receive: the sender has gone over to DATA */
void pki_coop_data_asked(struct pki_xfer *xfer, const struct pki_msg *grant);
void pki_coop_ended(struct pki_xfer *xfer); /* all is in place and both know */

/* bounce.c: through slots of pinned host memory */
void pki_bounce_send(struct pki_xfer *xfer); /* advances xfer->done */
void pki_bounce_placed(struct pki_xfer *xfer, const struct pki_msg *msg);
void pki_bounce_put_done(struct pki_xfer *xfer, struct pki_put *put);
bool pki_bounce_low_latency(struct pki_xfer *xfer);
char *pki_bounce_low_latency_source(const struct pki_xfer *xfer);
void pki_bounce_give(struct pki_xfer *xfer);
void pki_bounce_requested(struct pki_xfer *xfer, const struct pki_msg *msg);
void pki_bounce_landed(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload);
void pki_bounce_recv(struct pki_xfer *xfer);
void pki_bounce_eager(struct pki_xfer *xfer, const void *payload);
void pki_bounce_unexpected(struct pki_xfer *xfer);
void pki_bounce_poll(struct pki_xfer *xfer);
void pki_bounce_leave(struct pki_xfer *xfer);
bool pki_bounce_idle(struct pki_engine *engine);
/* May a copy from or to the host be put into this queue now? */
static inline bool pki_may_copy(struct pki_queue *queue, size_t bytes)
{
    return queue->device->ops->clear(queue, bytes < pki_tuning.gpu.engine_copy_bytes);
}

/* Does this rank's GPU write into the slots of that peer's receives? They are made ready for it when that is asked first. */
bool pki_bounce_fills_slots_of(struct pki_engine *engine, const struct pki_peer *peer);
/* As mapped here; NULL: it is none */
char *pki_bounce_slot_of(const struct pki_engine *engine, const struct pki_peer *peer, uint64_t remote);
/* Who does a task's work on the GPU: the kernel with which its stream waits, where that serves; else a queue of the library's
 * own. */
struct pki_queue *pki_queue_for(const struct pki_task *task, enum pki_lane lane);
/* CTAs of the kernel that fetches what a receive from this peer finds in slots; 0: there is none. */
int pki_bounce_unpack_ctas(const struct pki_engine *engine, const struct pki_peer *peer);
/* The queue for copies from host memory (up) or to it; NULL: the engine has failed. */
struct pki_queue *pki_bounce_queue(struct pki_engine *engine, bool up);
void pki_bounce_close(struct pki_engine *engine);
/* Under sm_policy NONE the one copy inside the GPU that an exchange out of place has to make, of a rank's own block, goes through
 * the host: by copy engines, where any other copy would be a kernel. */
bool pki_bounce_copies(const struct pki_engine *engine, enum pki_coll coll, const struct pki_plan *plan);
/* Through one slot of those of sends, which the queue's order alone guards: nothing else uses it. */
pk_result_t pki_bounce_copy(struct pki_engine *engine, const struct pki_queue *queue, int slot, char *dst, const char *src,
                            size_t bytes);

/* self.c: a transfer from this rank to itself */
void pki_self_advance(struct pki_xfer *xfer);

/* ll.c */
/* The ring of messages from `peer` in the memory of `owner`, which has none of its own; `size`: behind all rings. */
size_t pki_ll_ring_at(int owner, int peer);
void pki_ll_unimport(struct pki_peer *peer);
/* Gives up its memory, and that of peers in the same process: the last that has it frees it. */
void pki_ll_close(struct pki_engine *engine);
bool pki_ll_take(struct pki_ll_ring *ring, size_t bytes, int *place, uint32_t *flag); /* false: no room now */
void pki_ll_give(struct pki_ll_ring *ring, uint32_t flag);                            /* again: nothing happens */
/* As pki_ll_take; waits for a moment for messages of this peer that are about to end. */
bool pki_ll_take_soon(struct pki_engine *engine, struct pki_peer *peer, size_t bytes, int *place, uint32_t *flag);
uint32_t pki_ll_ctas(const struct pki_engine *engine, size_t bytes);
uint32_t pki_ll_most_ctas(const struct pki_engine *engine); /* of one launch */
uint64_t *pki_ll_slot(struct pki_engine *engine, int peer, int place);
uint32_t *pki_ll_arrived(struct pki_engine *engine, int peer, bool send, uint32_t flag);
/* the word of the moving kernel's for this transfer */
uint32_t *pki_ll_moved(struct pki_engine *engine, const struct pki_xfer *xfer);

/* What comes into GPU memory from this peer goes through bounce buffers: no transport reaches it. */
static inline bool pki_bounce_receives(const struct pki_engine *engine, const struct pki_peer *peer)
{
    return peer->path[PKI_MEM_DEVICE][PKI_MEM_DEVICE] == NULL && peer->rank != engine->config.rank;
}

/* And a kernel fetches it from the slots. */
static inline bool pki_bounce_unpacks(const struct pki_engine *engine)
{
    return engine->config.unpack_kernel && engine->config.sm_policy != PK_SM_NONE;
}

#endif
