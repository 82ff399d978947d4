/* SPDX-License-Identifier: Apache-2.0 */
/* EAGER messages, of transfers and of short calls alike: their credit, and how one is sent. Locked. */
#ifndef PKI_ENGINE_EAGER_H
#define PKI_ENGINE_EAGER_H

#include "engine/channel/channel.h"

/* An EAGER message to this peer returns credit to it, and one from it returns credit to this rank. */
static inline uint64_t pki_credit_to_return(const struct pki_peer *peer)
{
    return peer->ctrl->iface->caps.eager_credits ? peer->eager.in : 0;
}

static inline void pki_credit_arrived(struct pki_peer *peer, const struct pki_msg *msg)
{
    if (peer->ctrl->iface->caps.eager_credits)
        peer->eager.out -= msg->bytes < peer->eager.out ? msg->bytes : peer->eager.out;
}

/* May the peer be sent `bytes` more that it has not asked for? */
static inline bool pki_eager_has_credit(const struct pki_peer *peer, size_t bytes)
{
    return peer->eager.out + bytes + sizeof(struct pki_msg) <= PKI_EAGER_CREDIT;
}

/* There is credit. `msg` has flags, index, sig and op. Unless it is PK_OK nothing has happened: PK_IN_PROGRESS, there is no room
 * now; an error is to be told (pki_ctrl_failed), or shows when the ordinary way is tried. */
static inline pk_result_t pki_eager_send(struct pki_engine *e, struct pki_peer *peer, struct pki_msg *msg, const void *payload,
                                         size_t bytes)
{
    pk_result_t result;

    msg->kind = PKI_MSG_EAGER;
    msg->payload = (uint32_t)bytes;
    msg->bytes = pki_credit_to_return(peer); /* EAGER carries no more of it */
    result = peer->ctrl->iface->transport->send(peer->ctrl, msg, payload);
    if (result != PK_OK)
        return result;
    peer->eager.out += bytes + sizeof *msg;
    peer->eager.in -= msg->bytes;
    e->stats.messages++;
    return PK_OK;
}

#endif
