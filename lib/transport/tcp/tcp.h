/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP between hosts.
 *
 * A pair of ranks has 1 + sockets connections, "links". Link 0 is the control channel: messages, and acknowledgements. Links 1
 * to sockets carry chunks of granted transfers, each whole on one link, so that a small message never waits behind a long one.
 * The higher rank connects, the lower one accepts; both prove the communicator's key first.
 *
 * Every link counts its frames. What the peer has not acknowledged is kept (the control channel's frames in a ring, chunks in
 * their slots, which point into the user's buffer, or into a copy of it), so that a link that breaks goes on where it was once
 * it stands again, without losing or repeating a frame. A slot is also the window: no chunk leaves without one, and the peer's
 * acknowledgement gives it back.
 *
 * A chunk says which transfer it belongs to and where in it it begins; the transport remembers the grants that it carried out,
 * reads the payload straight into the granted buffer, in whatever order chunks come, and tells the engine how far the transfer
 * is.
 *
 * conn/ makes connections and watches them. It knows what uses one by a table alone, struct pki_tcp_user: chan/, the control
 * channel, or data/, chunks. ack/ counts what has come and keeps copies. rounds.c makes progress with all of them, tcp.c opens
 * and closes.
 *
 * The peer may be broken: what it sends is checked before it is used, and never makes this process write outside a granted
 * buffer.
 */
#ifndef PKI_TCP_H
#define PKI_TCP_H

#include "transport/tcp/ack/ack.h"
#include "transport/tcp/chan/chan.h"
#include "transport/tcp/conn/conn.h"
#include "transport/tcp/data/data.h"
#include "transport/tcp/wire.h"
#include "transport/transport.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/netif.h"

struct pki_tcp_params { /* of this rank; a pair uses the lower of both */
    uint32_t sockets, window, chunk_bytes;
    uint64_t retry_ns; /* PK_RETRY_MS */
};

struct pki_tcp_ep {
    struct pki_ep base;

    /* what every message needs */
    struct pki_tcp_iface *iface;
    bool connects; /* this rank does; the peer accepts */
    bool left;     /* the peer has left in good order */
    bool gone;     /* its shutdown message and the end of the control channel have come, though not what it sent before */
    struct pki_tcp_ctrl ctrl;

    uint32_t nlinks;
    struct pki_tcp_link *links;   /* [nlinks] */
    struct pki_tcp_params params; /* agreed */
    struct pki_tcp_peer_info theirs;
    struct pki_tcp_targets targets;
    struct pki_tcp_puts puts;
    struct pki_tcp_retransmit retransmit;
    struct pki_tcp_grants grants;
    struct pki_tcp_unexpecteds unexpected;
};

struct pki_tcp_iface {
    struct pki_iface base;
    int rank, size, epoll_fd;
    bool one_machine; /* there is no wire */
    bool revoked;     /* no chunk goes or comes any more */
    unsigned said;    /* peers of which the log knows that connecting takes long */
    int neps;
    unsigned round, quiet; /* rounds of progress; those since something happened */
    unsigned char key[PKI_NET_KEY_BYTES];
    struct pki_tcp_params params;
    const struct pki_net *net;
    struct pki_tcp_own own;
    struct pki_tcp_accepting accepting;
    struct pki_tcp_ep **eps; /* [size] */
    struct pki_list ready;
    unsigned busy;        /* moves and grants in flight */
    bool trouble;         /* some link does not stand, or unproven connections are here: the timers are to be looked at */
    uint64_t shutdown_ns; /* closing: no longer for what has not gone out; 0: not closing */
    struct pki_tcp_timers timers;
    struct pki_tcp_threads threads;
};

static inline struct pki_tcp_ep *pki_tcp_ep_of(struct pki_ep *ep)
{
    return (struct pki_tcp_ep *)(void *)ep;
}

static inline struct pki_tcp_iface *pki_tcp_iface_of(struct pki_iface *iface)
{
    return (struct pki_tcp_iface *)(void *)iface;
}

/* This rank leaves a communicator that has failed. */
static inline bool pki_tcp_leaves_failed(const struct pki_tcp_iface *iface)
{
    return iface->shutdown_ns > 0 && iface->revoked;
}

/* The peer has closed its connections in good order, behind its shutdown message, which waits for what it sent before and is
 * still in one of them. */
static inline bool pki_tcp_has_gone(const struct pki_tcp_ep *ep)
{
    return ep->gone && ep->links[0].state == PKI_TCP_UP && ep->links[1].state == PKI_TCP_UP;
}

static inline struct pki_where pki_tcp_where(const struct pki_tcp_ep *ep)
{
    return (struct pki_where){ .rank = ep->base.rank, .peer = ep->base.peer };
}

/* Of one link in one round of progress, so that none starves the others, and where threads wait for the next one. */
static inline size_t pki_tcp_round_bytes(const struct pki_tcp_link *link)
{
    return link->ep->iface->threads.n > 0 ? pki_tuning.tcp.offload_bytes : pki_tuning.tcp.round_bytes;
}

/* ---- rounds.c: progress ---- */

bool pki_tcp_progress(struct pki_iface *iface);

static inline bool pki_tcp_ctrls_are_polled(const struct pki_tcp_iface *iface)
{
    return iface->neps <= pki_tuning.tcp.direct_peers && iface->quiet <= pki_tuning.tcp.direct_rounds;
}

#endif
