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

#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "transport/tcp/wire.h"
#include "transport/transport.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/netif.h"
#include "util/log.h"

#define PKI_TCP_UNPROVEN_MAX 64       /* connections that have not proved themselves */

struct pki_tcp_ep;
struct pki_tcp_iface;

#define PKI_TCP_REPORT_BYTES 400
#define PKI_TCP_TARGETS 16 /* addresses of a peer that are tried, link-local ones by each interface */

enum pki_tcp_how {
    PKI_TCP_LOOPBACK, /* one address, for this machine */
    PKI_TCP_NAMED,    /* a listener at each interface that PK_IFNAME names, from which connections are made, too */
    PKI_TCP_ALL       /* all addresses of this process; the kernel chooses from which one connections are made */
};

struct pki_tcp_target { /* an address of the peer's, with the scope of this host */
    struct sockaddr_storage address;
    /* SILENT: it accepts, and does not answer */
    enum { PKI_TCP_UNTRIED, PKI_TCP_TRYING, PKI_TCP_NO_ANSWER, PKI_TCP_FAILED } state;
    int error; /* FAILED: errno; 0: closed by who listens there, or it is somebody else */
};

struct pki_tcp_params { /* of this rank; a pair uses the lower of both */
    uint32_t sockets, window, chunk_bytes;
    uint64_t retry_ns; /* PK_RETRY_MS */
};

/* What an epoll event points at. */
struct pki_tcp_source {
    enum { PKI_TCP_LISTENER, PKI_TCP_LINK, PKI_TCP_UNPROVEN } kind;
    int fd; /* -1: none */
};

enum pki_tcp_state {
    PKI_TCP_IDLE,       /* ep_connect has not been called */
    PKI_TCP_WAITING,    /* not standing: the connecting end tries again at retry_ns, the other waits */
    PKI_TCP_PROBING,    /* accepting end of a broken control channel: looks whether the peer's process still listens */
    PKI_TCP_CONNECTING, /* the kernel connects */
    PKI_TCP_CHALLENGED, /* hello sent, the challenge has not come */
    PKI_TCP_UP,
    PKI_TCP_OVER        /* the endpoint is dead, or the peer has left in good order */
};

struct pki_tcp_move { /* a put in flight */
    struct pki_list node; /* ep->puts, or free_moves */
    struct pki_put *put;
    size_t issued, acked;
};

struct pki_tcp_slot { /* a chunk that the peer has not acknowledged */
    struct pki_tcp_move *move; /* NULL: its put has ended: `src` is a copy of it */
    const char *src;
    uint32_t bytes;
    uint64_t copy_end; /* where in ep->retransmit's ring a copy ends, so that its put need not wait; 0: there is none */
    unsigned char head[PKI_TCP_DATA_HEAD_BYTES];
};

/* Half a link that may be lent to a thread for the rest of one chunk (threads.c). */
struct pki_tcp_job {
    struct pki_list node; /* iface->offloaded */
    struct pki_tcp_link *link;
    bool out, offloaded;
    size_t bytes, moved;    /* to be moved, and moved */
    bool blocked;           /* the kernel has nothing more, or no room */
    bool failed;            /* with `error`; 0: closed by the other end */
    int error;
    atomic_bool recalled, ended;
};

struct pki_tcp_thread {
    pthread_t id;
    struct pki_tcp_threads *all;
    _Atomic(struct pki_tcp_job *) job;
    _Atomic uint32_t asleep; /* a futex */
};

struct pki_tcp_threads {
    int n, max; /* started, when there is something for them to do, and to be started */
    unsigned stamp;
    atomic_bool over;
    struct pki_tcp_thread thread[PKI_TCP_THREADS_MAX];
};

struct pki_tcp_link {
    struct pki_tcp_source source;
    struct pki_list ready; /* iface->ready while there is something to read, or to write and room for it */
    struct pki_tcp_ep *ep;
    uint32_t index;
    struct pki_tcp_ctrl *ctrl; /* NULL: it carries chunks */
    enum pki_tcp_state state;
    bool readable, writable; /* as far as the kernel's edges tell */
    bool heard;              /* a control channel: something has come by this connection: the peer has let it in */
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

struct pki_tcp_retransmit { /* copies of chunks whose puts did not wait (retransmit.c), in a ring: bytes [head, end) */
    char *ring; /* NULL until there is one */
    uint64_t head, end;
    uint64_t frames; /* of link 1 up to the last of them */
    bool never;      /* the connection has been made anew: who leaves could not tell whether the last ones have come */
};

struct pki_tcp_unexpected { /* a chunk that has come before its receive was posted */
    struct pki_list node; /* ep->unexpected_queue */
    struct pki_arrival arrival; /* of the first chunk of a transfer: told until a receive takes it */
    struct pki_tcp_chunk chunk;
    bool whole; /* all of it is here, and acknowledged */
    char payload[];
};

struct pki_tcp_out_of_order { /* bytes of a grant that came before others in front of them */
    struct pki_recv *grant;
    size_t begin, end;
};

struct pki_tcp_ctrl {
    struct pki_tcp_link *link;

    /* out: a ring, bytes [head, end) kept, [sent, end) not yet written; acknowledgements go between frames */
    unsigned char *tx;
    uint64_t tx_head, tx_sent, tx_end;
    size_t acks_bytes, acks_sent;
    bool acks_due;

    /* in: [head, scan) whole frames, [scan, tail) part of one */
    unsigned char *rx;
    size_t rx_head, rx_scan, rx_tail;
    size_t rx_unreported; /* bytes of frames that have not been acknowledged */

    unsigned char acks[PKI_TCP_LINKS_MAX * (PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES)];
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

struct pki_tcp_unproven {
    struct pki_tcp_source source;
    unsigned char in[PKI_TCP_HELLO_BYTES];
    size_t have;
    bool challenged;
    struct pki_tcp_hello hello;
    unsigned char hello_bytes[PKI_TCP_HELLO_BYTES];
    struct pki_tcp_challenge challenge;
    uint64_t until_ns;
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

/* ---- rounds.c: progress ---- */

bool pki_tcp_progress(struct pki_iface *iface);

static inline bool pki_tcp_ctrls_are_polled(const struct pki_tcp_iface *iface)
{
    return iface->neps <= pki_tuning.tcp.direct_peers && iface->quiet <= pki_tuning.tcp.direct_rounds;
}
/* Put the link where progress finds it. */
void pki_tcp_link_ready(struct pki_tcp_link *link);
/* And have it read. */
static inline void pki_tcp_look_again(struct pki_tcp_link *link)
{
    link->readable = true;
    pki_tcp_link_ready(link);
}

/* ---- link.c: the life of a connection ---- */

/* Watch `fd` for the sake of `source`, which has it from then on. */
bool pki_tcp_source(struct pki_tcp_iface *iface, struct pki_tcp_source *source, int fd, bool both_ways);
void pki_tcp_source_remove(struct pki_tcp_source *source);
/* The connection goes, if there is one. */
void pki_tcp_link_drop(struct pki_tcp_link *link);
void pki_tcp_socket_options(const struct pki_tcp_iface *iface, int fd);

/* The connection failed, with `error` (an errno; 0: closed by the other end): it will be made again. */
void pki_tcp_link_broken(struct pki_tcp_link *link, int error);
/* It stands, on `fd`; the peer has had `received` frames. False: that cannot be, `fd` stays the caller's. */
bool pki_tcp_link_up(struct pki_tcp_link *link, int fd, uint64_t received);
/* An event on a connection that does not stand yet. */
void pki_tcp_link_step(struct pki_tcp_link *link);
/* `away_ns`: for so long nobody has looked, and what came meanwhile has not been read. */
void pki_tcp_link_timers(struct pki_tcp_link *link, uint64_t now, uint64_t away_ns);
/* A time limit, put off by `away_ns`, but not beyond `at_most`. */
static inline uint64_t pki_tcp_put_off(uint64_t until, uint64_t away_ns, uint64_t at_most)
{
    return until + away_ns < at_most ? until + away_ns : at_most;
}
void pki_tcp_link_health(struct pki_tcp_link *link);
/* There is something that the timers have to look at, from now on. */
void pki_tcp_trouble(struct pki_tcp_iface *iface);
/* A connection that is being made is begun anew. */
void pki_tcp_try_again(struct pki_tcp_link *link);
/* Nothing more can be done with this peer: the error is recorded with this text, and `error` (an errno, or 0), everything in
 * flight ends. */
void pki_tcp_lost(struct pki_tcp_ep *ep, int error, const char *fmt, ...) PKI_PRINTF(3, 4);
/* The peer leaves in good order: the control channel is read to its end. */
void pki_tcp_is_shutting_down(struct pki_tcp_ep *ep);
/* And that was it. */
void pki_tcp_left(struct pki_tcp_ep *ep);
/* Only the control channel is left of it: chunks under way, puts and grants are given up. */
void pki_tcp_data_give_up(struct pki_tcp_ep *ep);
/* HMAC over a label, the hello and the challenge's nonce and count. */
pk_result_t pki_tcp_prove(const struct pki_tcp_iface *iface, const char *label, const unsigned char hello[PKI_TCP_HELLO_BYTES],
                          const struct pki_tcp_challenge *challenge, unsigned char mac[PKI_TCP_MAC_BYTES]);
#define PKI_TCP_LABEL_ACCEPT "pickle tcp accept"
#define PKI_TCP_LABEL_CONNECT "pickle tcp connect"

/* ---- ctrl.c: messages ---- */

/* For this message on the control channel. */
bool pki_tcp_has_room(const struct pki_tcp_ep *ep, const struct pki_msg *msg);
pk_result_t pki_tcp_send(struct pki_ep *ep, const struct pki_msg *msg, const void *payload);
bool pki_tcp_peek(struct pki_ep *ep, struct pki_msg *msg, const void **payload);
void pki_tcp_pop(struct pki_ep *ep);
/* Read what has come; true when something has. */
bool pki_tcp_ctrl_read(struct pki_tcp_ctrl *ctrl);
/* Write what waits, acknowledgements that are due among it. */
void pki_tcp_ctrl_flush(struct pki_tcp_ctrl *ctrl);
/* A shutdown message there may have waited for what has come by another connection. */
void pki_tcp_ctrl_look(struct pki_tcp_ep *ep);
/* Is there a message of kind SIDE that has not been popped? */
bool pki_tcp_ctrl_has_news(const struct pki_tcp_ctrl *ctrl);
/* Before and after a new connection. */
void pki_tcp_ctrl_rewind(struct pki_tcp_ctrl *ctrl);
void pki_tcp_ctrl_acked(struct pki_tcp_ctrl *ctrl, uint64_t frames);
/* Behind what is kept there already; there is room. */
void pki_tcp_ctrl_write(struct pki_tcp_ctrl *ctrl, const void *data, size_t bytes);

/* ---- shutdown.c ---- */

void pki_tcp_ctrl_close(struct pki_tcp_ep *ep); /* say that this rank leaves, and see it out, waiting a moment at most */
/* So many chunks on link 1 the peer has to have had before it hears how this rank fares. `leaves`: in good order, else the
 * chunks are about to be given up. */
uint64_t pki_tcp_sent_before(const struct pki_tcp_ep *ep, bool leaves);

/* ---- put.c: chunks, out ---- */

pk_result_t pki_tcp_put(struct pki_put *put);
void pki_tcp_data_write(struct pki_tcp_link *link);
void pki_tcp_moves_open(struct pki_tcp_ep *ep);

/* Of one link in one round of progress, so that none starves the others, and where threads wait for the next one. */
static inline size_t pki_tcp_round_bytes(const struct pki_tcp_link *link)
{
    return link->ep->iface->threads.n > 0 ? pki_tuning.tcp.offload_bytes : pki_tuning.tcp.round_bytes;
}

/* Hand chunks of the puts that wait to links with free slots. */
void pki_tcp_data_stripe(struct pki_tcp_ep *ep);
void pki_tcp_data_acked(struct pki_tcp_link *link, uint64_t frames);
void pki_tcp_data_lost(struct pki_tcp_ep *ep); /* every put ends with PK_ERR_PEER */

/* For whoever has the half of the link; the result is the system call's. What is left of the chunk being written, of which
 * `written` is what has gone. */
ssize_t pki_tcp_chunk_send(struct pki_tcp_link *link);
/* Whatever of that chunk a thread has written. */
void pki_tcp_chunk_sent(struct pki_tcp_link *link);
/* The peer says that it has had so many chunks. False: that cannot be. */
bool pki_tcp_data_was_sent(struct pki_tcp_link *link, uint64_t frames);

/* ---- retransmit.c: copies of short chunks, so that a put need not wait ---- */

/* The slot's chunk, all of its move's put and the link's next, is to be kept where that can be. */
void pki_tcp_copy_keep(struct pki_tcp_link *link, struct pki_tcp_slot *slot);
/* The peer has it. */
void pki_tcp_copy_ends(struct pki_tcp_ep *ep, const struct pki_tcp_slot *slot);
/* The chunk has been written: it is copied, and counts as acknowledged for its put. */
void pki_tcp_copy_released(struct pki_tcp_ep *ep, struct pki_tcp_slot *slot);
/* The peer has all of them, or its kernel has. */
bool pki_tcp_copies_are_out(const struct pki_tcp_ep *ep);

/* ---- incoming.c: chunks, in ---- */

void pki_tcp_data_read(struct pki_tcp_link *link);
/* Both ways: a new connection begins with what the peer has not had. */
void pki_tcp_data_rewind(struct pki_tcp_link *link);
/* For whoever has the half of the link; the result is the system call's. What is left of the chunk being received after
 * `done` bytes more, and the head of the next one. */
ssize_t pki_tcp_chunk_receive(struct pki_tcp_link *link, size_t done);
/* So many bytes of these have come. False: the link is broken, or the endpoint lost. */
bool pki_tcp_advance_in(struct pki_tcp_link *link, size_t bytes);
/* A thread has ended its job: go on from there. False: as above. */
bool pki_tcp_data_returned(struct pki_tcp_job *job);

/* ---- threads.c: other threads for long chunks ---- */

/* Let a thread do the rest of the chunk, `bytes` of a transfer of `whole`, if that pays and one is free; false: the caller
 * does it. */
bool pki_tcp_offload(struct pki_tcp_link *link, bool out, size_t bytes, size_t whole);
/* Go on with what threads have ended; true when there was some. */
bool pki_tcp_take_back(struct pki_tcp_iface *iface);
/* Both halves are the caller's again, wherever in their chunks the threads are; to be called before anything but that is done
 * with them. */
void pki_tcp_recall(struct pki_tcp_link *link);
/* The same with what goes out, which goes on from there. */
void pki_tcp_settle_out(struct pki_tcp_link *link);
void pki_tcp_threads_close(struct pki_tcp_threads *all);

/* ---- grant.c: what the peer may write ---- */

pk_result_t pki_tcp_grants_open(struct pki_tcp_ep *ep);
void pki_tcp_grants_close(struct pki_tcp_ep *ep);
void pki_tcp_grants_forget(struct pki_tcp_ep *ep); /* no link fills one */
/* The table's. The peer is told no address. */
pk_result_t pki_tcp_recv_post(struct pki_recv *recv, const struct pki_msg *tell);
/* The grant that a chunk may be written to, at ->addr + chunk->offset; NULL: there is none.. */
struct pki_recv *pki_tcp_grant_find(struct pki_tcp_ep *ep, const struct pki_tcp_chunk *chunk);
/* The chunk has come. False: some of it had come before. */
bool pki_tcp_grant_filled(struct pki_tcp_ep *ep, struct pki_recv *grant, const struct pki_tcp_chunk *chunk);
/* The same transfer, whatever part of it. */
static inline bool pki_tcp_is_of(const struct pki_recv *grant, const struct pki_tcp_chunk *chunk)
{
    const unsigned key_flags = PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED | PKI_MSG_FLAG_BOUNCE;

    return grant->op == chunk->op && grant->index == chunk->index && ((grant->flags ^ chunk->flags) & key_flags) == 0;
}

/* ---- unexpected.c: chunks that are before their CTS ---- */

/* May the chunk that begins here be without a grant? */
bool pki_tcp_unexpected_may(struct pki_tcp_ep *ep, const struct pki_tcp_chunk *chunk);
/* Where the chunk's payload goes: its grant has come, or it has waited for it long enough. False: not yet. */
bool pki_tcp_unexpected_place(struct pki_tcp_link *link);
void pki_tcp_unexpected_ended(struct pki_tcp_link *link);
void pki_tcp_unexpected_drop(struct pki_tcp_link *link); /* the connection breaks in the middle of it */
/* What has come of it goes to its place. False: not as the peer may. */
bool pki_tcp_unexpected_adopt(struct pki_tcp_ep *ep, struct pki_recv *grant);
void pki_tcp_unexpected_close(struct pki_tcp_ep *ep);

#endif
