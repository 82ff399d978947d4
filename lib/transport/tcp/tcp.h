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

struct pki_tcp_link {
    struct pki_tcp_source source;
    struct pki_list ready; /* iface->ready while there is something to read, or to write and room for it */
    struct pki_tcp_ep *ep;
    uint32_t index;
    const struct pki_tcp_user *user;
    struct pki_tcp_ctrl *ctrl; /* NULL: it carries chunks */
    enum pki_tcp_state state;
    bool readable, writable; /* as far as the kernel's edges tell */
    bool hangup;             /* the end of the stream is somewhere behind what can be read */
    uint64_t received, reported; /* the peer's frames that have come, and how many of them it knows */
    uint64_t acked, end;     /* own frames that the peer has, and that were ever queued */

    /* while it does not stand */
    unsigned attempts, target; /* ep->targets' that is tried */
    int error; /* with which it broke; 0: closed by the other end */
    uint64_t broken_ns, refused_ns, retry_ns, attempt_ends_ns;
    /* what has been connected shows that the peer lives, if it still stands by then; 0: nothing is connected */
    uint64_t shows_ns;
    unsigned char hello[PKI_TCP_HELLO_BYTES], challenge[PKI_TCP_CHALLENGE_BYTES];
    size_t have;

    /* chunks out: slots [acked, end), of which `next` is being written */
    struct pki_tcp_slot *slots;
    uint64_t next, sent; /* `sent` of them have ever gone whole, over this connection or one before it */
    size_t written;     /* bytes of `next`, head and payload */
    size_t outstanding; /* payload bytes in slots whose puts wait */
    struct pki_tcp_job out; /* while it is lent, `next` and `written` are a thread's */

    /* chunk in */
    unsigned char head[PKI_TCP_DATA_HEAD_BYTES];
    size_t head_have;
    struct pki_recv *grant; /* being filled, or NULL */
    struct pki_tcp_unexpected *unexpected; /* the same, before there is a grant */
    struct pki_tcp_chunk chunk;
    size_t left;
    unsigned polls; /* rounds for which its payload has waited for a grant */
    struct pki_tcp_job in; /* while it is lent, the head and what is left of the chunk are a thread's */
};

struct pki_tcp_ep {
    struct pki_ep base;

    /* what every message needs */
    struct pki_tcp_iface *iface;
    bool connects;                /* this rank does; the peer accepts */
    bool left;                    /* the peer has left in good order */
    /* its shutdown message and the end of the control channel have come, though not what it sent before */
    bool gone;
    struct pki_list unexpected_queue;
    struct pki_tcp_ctrl ctrl;

    uint32_t nlinks;
    struct pki_tcp_link *links;   /* [nlinks] */
    struct pki_tcp_params params; /* agreed */
    struct pki_tcp_peer_info theirs;
    struct pki_tcp_move *moves; /* [PKI_TCP_MOVES] */
    struct pki_list puts, free_moves; /* those in flight as they were given, and the others */
    struct pki_list *unstriped; /* of puts the first that is not all in slots, or its head */
    struct pki_tcp_retransmit retransmit;
    uint64_t places;            /* granted outside a transfer so far: names of those to come */
    struct pki_list grants; /* struct pki_recv that the peer may fill */
    struct pki_tcp_out_of_order *out_of_order;
    uint32_t nout_of_order, out_of_order_max;
    size_t unexpected_bytes; /* of `unexpected_queue` */

    uint32_t ntargets, near_targets; /* of them those to be used first */
    struct pki_tcp_target targets[PKI_TCP_TARGETS]; /* where the peer listens, */
    int reached; /* and the one that has led to it; -1: none yet */
    uint64_t connecting_ns; /* since when it is being connected, as far as this rank has looked */
    bool said; /* the log knows that this takes long */
    char report[PKI_TCP_REPORT_BYTES]; /* base.report */
};

struct pki_tcp_iface {
    struct pki_iface base;
    int rank, size, epoll_fd;
    bool one_machine; /* there is no wire */
    bool revoked;     /* no chunk goes or comes any more */
    int neps;
    unsigned round, quiet;   /* rounds of progress; those since something happened */
    unsigned char key[PKI_NET_KEY_BYTES];
    struct pki_tcp_params params;
    const struct pki_net *net;
    enum pki_tcp_how how;
    uint32_t addresses, near; /* that the others are told, and of them those to be used first */
    int prefix[PKI_TCP_ADDRESSES];
    struct sockaddr_storage address[PKI_TCP_ADDRESSES];
    uint32_t nscopes; /* own interfaces with link-local addresses, by which such ones of peers are tried */
    uint32_t scopes[PKI_TCP_TARGETS];
    uint32_t listeners;
    struct pki_tcp_source listener[PKI_TCP_ADDRESSES];
    bool said_full; /* the log knows that there were no descriptors */
    unsigned said;  /* peers of which the log knows that connecting takes long */
    struct pki_tcp_ep **eps; /* [size] */
    struct pki_list ready;
    unsigned busy;           /* moves and grants in flight */
    bool trouble;            /* some link does not stand, or unproven connections are here */
    uint64_t timers_ns;      /* when they are looked at next */
    uint64_t looked_ns;      /* when they were looked at last */
    uint64_t shutdown_ns;    /* closing: no longer for what has not gone out; 0: not closing */
    uint64_t health_ns;      /* when connections that stand are */
    unsigned dropped;        /* connections that never proved the key */
    uint64_t pause_until_ns; /* out of descriptors: no accepting until then */
    struct pki_tcp_unproven unproven_list[PKI_TCP_UNPROVEN_MAX];
    struct pki_tcp_threads threads;
    struct pki_list offloaded; /* jobs that threads have */
};

static inline struct pki_tcp_ep *pki_tcp_ep_of(struct pki_ep *ep)
{
    return (struct pki_tcp_ep *)(void *)ep;
}

static inline struct pki_tcp_iface *pki_tcp_iface_of(struct pki_iface *iface)
{
    return (struct pki_tcp_iface *)(void *)iface;
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
