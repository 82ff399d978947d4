/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between two ranks, news of failures, and agreement on what is called. Locked, unless it says otherwise. */
#ifndef PKI_ENGINE_CHANNEL_H
#define PKI_ENGINE_CHANNEL_H

#include "coll/agree.h"
#include "engine/core/internal.h"

#define PKI_AGREE_RANKS_MAX 8192 /* of a communicator whose ranks can agree */
#define PKI_AGREE_HEAD_BYTES (32 + PKI_AGREE_ID_BYTES)
#define PKI_AGREE_WIRE_MAX (PKI_AGREE_HEAD_BYTES + PKI_AGREE_RANKS_MAX / 8)

/* ctrl.c: messages of a peer */
pk_result_t pki_ctrl_send(struct pki_peer *peer, const struct pki_msg *msg, const void *payload, struct pki_engine *engine);
/* Post a receive, and tell the peer by a CTS or BOUNCE_CREDIT; NULL: it needs none. */
pk_result_t pki_ctrl_post(struct pki_peer *peer, struct pki_recv *recv, const struct pki_msg *tell, struct pki_engine *engine);
/* An eager put has come that no receive takes: kept and checked as the RTS that its sender did not send. */
#define PKI_RTS_EAGER_PUT 1u /* in `extra` of that */
void pki_ctrl_unexpected_put(struct pki_engine *engine, const struct pki_unexpected_put *put);
/* What sending it came to; nothing happens when that is PK_IN_PROGRESS. */
void pki_ctrl_failed(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg, pk_result_t result);
bool pki_ctrl_poll(struct pki_engine *engine, struct pki_peer *peer);
/* Take an unexpected message that speaks of `xfer`; NULL when there is none. The caller frees it. */
struct pki_unexpected *pki_ctrl_take(struct pki_xfer *xfer);
void pki_ctrl_consumed(struct pki_engine *engine, struct pki_peer *peer, size_t payload);
/* The same of bytes that went before a CTS. */
void pki_ctrl_eager_put_consumed(struct pki_engine *engine, struct pki_peer *peer, size_t bytes);

/* side.c: frames on the socket beside the control channel */
void pki_side_send_forget(struct pki_engine *engine, struct pki_peer *peer, uint32_t id); /* a hint: it may get lost */
pk_result_t pki_side_send_export(struct pki_engine *engine, struct pki_peer *peer, uint32_t id,
                                 const struct pki_export *exported);
void pki_side_poll(struct pki_engine *engine, struct pki_peer *peer);
/* Unlocked, nothing is taken: has the peer failed, or died, as far as can be seen? */
pk_result_t pki_side_peek(const struct pki_engine *engine, const struct pki_peer *peer);
void pki_side_tell_all(struct pki_engine *engine);                             /* that it has failed */
void pki_side_send_shutdown(struct pki_engine *engine, enum pki_shutdown why); /* once */
/* Those that had no room for the news of this engine's failure. */
void pki_side_tell_again(struct pki_engine *engine);
void pki_side_message(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg, const void *payload);
/* Of an agreement. PK_IN_PROGRESS: there is no room now. */
pk_result_t pki_side_send_agree(struct pki_peer *peer, const unsigned char *bytes, size_t n);
/* All that has come from this peer, also after a failure. */
void pki_side_drain(struct pki_engine *engine, struct pki_peer *peer);
/* What has come between hosts: news and agreements are taken, all else is dropped, for no operation asks for it any more. */
void pki_side_take_messages(struct pki_engine *engine, struct pki_peer *peer);
/* Of those that join the pair, one that is dead; NULL: none. */
const struct pki_ep *pki_side_dead_ep(const struct pki_peer *peer);
/* It is dead or has left, and all that it had sent has been taken: between hosts that may lie in the control channel still. That
 * its process has ended any connection may say, also where a control channel over RDMA has not heard of it. */
bool pki_side_is_lost(const struct pki_peer *peer);

/* mismatch.c */
uint32_t pki_task_fingerprint(const struct pki_request *request, int size);
void pki_task_mismatch(struct pki_task *task, int peer, uint32_t their_sig);
/* Is what a peer says of collective `number` another one than the one that began here? Then the engine has failed. */
bool pki_task_contradicts(struct pki_engine *engine, int peer, uint64_t number, uint32_t their_sig);
/* Give a collective its number; peers may have spoken of it already, and disagree. */
void pki_task_number(struct pki_task *task);

/* note.c: notes of one endpoint of a pair, carried by another. */
void pki_note_open(struct pki_engine *engine);
void pki_note_carry(const struct pki_peer *peer);
/* Background progress, unlocked: control channels of which notes are carried recover even while this rank waits elsewhere. How
 * often they are to be looked at (0: there are none), is it time, and look, unless somebody has the lock, who looks himself. */
uint64_t pki_note_every_ns(const struct pki_engine *engine);
bool pki_note_is_due(const struct pki_engine *engine);
void pki_note_background(struct pki_engine *engine);

/* failure.c */
/* Make the engine unusable; the calling thread's error record becomes the engine's. `tell`: the peers do not know yet. */
void pki_engine_poison(struct pki_engine *engine, pk_result_t code, bool tell);
/* Unlocked, where the lock is not free: the peers are told by whoever has it next. */
void pki_engine_poison_unlocked(struct pki_engine *engine, pk_result_t code);
void pki_failure_tell_rest(struct pki_engine *engine); /* the peers that have not heard of it */
/* Something with a peer has failed: poison with the endpoint's cause, unless the peers' sockets tell of an earlier and better
 * reason. Without an endpoint, or a cause there, with what this thread has just recorded. */
void pki_engine_attribute_failure(struct pki_engine *engine, pk_result_t code, const struct pki_where *where,
                                  const struct pki_ep *ep, size_t done, size_t bytes);

#endif
