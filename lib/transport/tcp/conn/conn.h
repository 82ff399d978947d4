/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn/: connections. Where this rank listens and its peers do, how a connection is made, proved, broken, made again and given
 * up. What goes over them is the affair of chan/ and data/. reach.h has what concerns addresses.
 */
#ifndef PKI_TCP_CONN_H
#define PKI_TCP_CONN_H

#include <sys/socket.h>

#include "transport/tcp/wire.h"
#include "transport/transport.h"
#include "util/log.h"

#define PKI_TCP_UNPROVEN_MAX 64 /* connections that have not proved themselves */
#define PKI_TCP_REPORT_BYTES 400
#define PKI_TCP_TARGETS 16                    /* addresses of a peer that are tried, link-local ones by each interface */
#define PKI_TCP_PROBE_NS (50 * PKI_NS_PER_MS) /* between looks whether the peer's process still listens */

struct pki_tcp_ctrl;
struct pki_tcp_ep;
struct pki_tcp_iface;
struct pki_tcp_in;
struct pki_tcp_link;
struct pki_tcp_out;

/* The user of a connection: the control channel (chan/) or chunks (data/). conn/ and progress know of users what stands here. */
struct pki_tcp_user {
    /* It stands, and there is something to read. */
    void (*readable)(struct pki_tcp_link *link);
    /* It stands, and has been looked at: what is to be written, and has room, is written. */
    void (*writable)(struct pki_tcp_link *link);
    /* The peer has had `frames` of all frames that were ever queued. False: that cannot be. */
    bool (*acked)(struct pki_tcp_link *link, uint64_t frames);
    /* It goes, for now or for ever, if it stands at all: nobody uses its descriptor from here on, and the part of a chunk that
     * has come is forgotten. */
    void (*broken)(struct pki_tcp_link *link);
    /* A new connection stands in its place. The peer has had `received` frames of what was queued: on from there. */
    void (*reset)(struct pki_tcp_link *link, uint64_t received);
    /* No connection with this peer will ever stand again, and no thread uses one: what waits for the peer ends with an error. */
    void (*lost)(struct pki_tcp_link *link);
    /* Is there a message that the engine has not taken, and that may say that the peer leaves? */
    bool (*has_news)(const struct pki_tcp_link *link);
};

enum pki_tcp_how {
    PKI_TCP_LOOPBACK, /* one address, for this machine */
    PKI_TCP_NAMED,    /* a listener at each interface that PK_IFNAME names, from which connections are made, too */
    PKI_TCP_ALL       /* all addresses of this process; the kernel chooses from which one connections are made */
};

struct pki_tcp_target { /* an address of the peer's, with the scope of this host */
    struct sockaddr_storage address;
    /* NO_ANSWER: it accepts, and does not answer */
    enum { PKI_TCP_UNTRIED, PKI_TCP_TRYING, PKI_TCP_NO_ANSWER, PKI_TCP_FAILED } state;
    int error; /* FAILED: errno; 0: closed by who listens there, or it is somebody else */
};

struct pki_tcp_targets {  /* where a peer listens (targets.c), */
    uint32_t count, near; /* of them those to be used first */
    struct pki_tcp_target target[PKI_TCP_TARGETS];
    int reached;                       /* the one that has led to it; -1: none yet */
    uint64_t connecting_ns;            /* since when it is being connected, as far as this rank has looked */
    bool said;                         /* the log knows that this takes long */
    char report[PKI_TCP_REPORT_BYTES]; /* base.report */
};

struct pki_tcp_own { /* addresses of this rank (nics.c, accept.c), */
    enum pki_tcp_how how;
    uint32_t count, near; /* that the others are told, and of them those to be used first */
    int prefix[PKI_TCP_ADDRESSES];
    struct sockaddr_storage address[PKI_TCP_ADDRESSES];
    uint32_t nscopes; /* own interfaces with link-local addresses, by which such ones of peers are tried (targets.c) */
    uint32_t scopes[PKI_TCP_TARGETS];
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
    PKI_TCP_OVER /* the endpoint is dead, or the peer has left in good order */
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

struct pki_tcp_accepting { /* who connects to this rank (accept.c) */
    uint32_t listeners;
    struct pki_tcp_source listener[PKI_TCP_ADDRESSES];
    unsigned dropped;        /* connections that never proved the key */
    uint64_t pause_until_ns; /* out of descriptors: no accepting until then */
    bool said_full;          /* the log knows that there were none */
    struct pki_tcp_unproven unproven[PKI_TCP_UNPROVEN_MAX];
};

struct pki_tcp_attempt {    /* what a connection has while it does not stand (connect.c, recover.c) */
    unsigned count, target; /* how many there were, and which of ep->targets is tried */
    int error;              /* with which the connection broke; 0: closed by the other end */
    uint64_t broken_ns, refused_ns, retry_ns, ends_ns;
    /* what has been connected shows that the peer lives, if it still stands by then; 0: nothing is connected */
    uint64_t shows_ns;
    unsigned char hello[PKI_TCP_HELLO_BYTES], challenge[PKI_TCP_CHALLENGE_BYTES];
    size_t have; /* of the challenge */
};

struct pki_tcp_link {
    struct pki_tcp_source source;
    struct pki_list ready; /* iface->ready while there is something to read, or to write and room for it */
    struct pki_tcp_ep *ep;
    uint32_t index;
    enum pki_tcp_state state;
    bool readable, writable;     /* as far as the kernel's edges tell */
    bool hangup;                 /* the end of the stream is somewhere behind what can be read */
    uint64_t received, reported; /* the peer's frames that have come, and how many of them it knows */
    uint64_t acked, end;         /* own frames that the peer has, and that were ever queued */
    const struct pki_tcp_user *user;
    struct pki_tcp_ctrl *ctrl; /* the user's: of link 0; */
    struct pki_tcp_out *out;   /* of the others */
    struct pki_tcp_in *in;
    struct pki_tcp_attempt attempt;
};

struct pki_tcp_timers { /* of all connections of a rank (recover.c, accept.c) */
    uint64_t next_ns;   /* when they are looked at next */
    uint64_t looked_ns; /* when they were looked at last */
    uint64_t health_ns; /* when connections that stand are */
};

/* ---- link.c: a connection: watched, standing, broken, to be made again ---- */

/* Watch `fd` for the sake of `source`, which has it from then on. */
bool pki_tcp_source(struct pki_tcp_iface *iface, struct pki_tcp_source *source, int fd, bool both_ways);
/* Its descriptor goes, if there is one. */
void pki_tcp_source_remove(struct pki_tcp_source *source);
/* Put the link where progress finds it. */
void pki_tcp_link_ready(struct pki_tcp_link *link);
/* And have it read. */
void pki_tcp_look_again(struct pki_tcp_link *link);
void pki_tcp_socket_options(const struct pki_tcp_iface *iface, int fd);
/* There is something that the timers have to look at, from now on. */
void pki_tcp_trouble(struct pki_tcp_iface *iface);
/* The connection failed, with `error` (an errno; 0: closed by the other end): it will be made again. */
void pki_tcp_link_broken(struct pki_tcp_link *link, int error);
/* It stands, on `fd`; the peer has had `received` frames. False: that cannot be, `fd` stays the caller's. */
bool pki_tcp_link_up(struct pki_tcp_link *link, int fd, uint64_t received);
/* It does not stand, and is to be made after this pause. */
void pki_tcp_wait_again(struct pki_tcp_link *link, uint64_t pause);
/* A connection that is being made is started again. */
void pki_tcp_try_again(struct pki_tcp_link *link);
/* The endpoint is connected when no connection is still to be made for the first time. */
void pki_tcp_look_connected(struct pki_tcp_ep *ep);
/* An errno, or 0, in words; `text` is room for them. */
const char *pki_tcp_reason(int error, char *text, size_t bytes);

/* ---- connect.c: attempts to connect ---- */

void pki_tcp_attempt_begin(struct pki_tcp_link *link, enum pki_tcp_state state);
/* It has come to nothing, with `error` (an errno, or 0). */
void pki_tcp_attempt_failed(struct pki_tcp_link *link, int error);
/* When what is connected from `now` on will have shown that the peer lives. */
uint64_t pki_tcp_shows_after(const struct pki_tcp_link *link, uint64_t now);
/* An event on a connection that does not stand yet. */
void pki_tcp_link_step(struct pki_tcp_link *link);
/* HMAC over a label, the hello and the challenge's nonce and count. */
pk_result_t pki_tcp_prove(const struct pki_tcp_iface *iface, const char *label, const unsigned char hello[PKI_TCP_HELLO_BYTES],
                          const struct pki_tcp_challenge *challenge, unsigned char mac[PKI_TCP_MAC_BYTES]);
#define PKI_TCP_LABEL_ACCEPT "pickle tcp accept"
#define PKI_TCP_LABEL_CONNECT "pickle tcp connect"

/* ---- recover.c: how long a peer is waited for ---- */

/* `away_ns`: for so long nobody has looked, and what came meanwhile has not been read. */
void pki_tcp_link_timers(struct pki_tcp_link *link, uint64_t now, uint64_t away_ns);
/* A time limit, put off by `away_ns`, but not beyond `at_most`. */
static inline uint64_t pki_tcp_put_off(uint64_t until, uint64_t away_ns, uint64_t at_most)
{
    return until + away_ns < at_most ? until + away_ns : at_most;
}
/* Does the peer's kernel answer? */
void pki_tcp_link_health(struct pki_tcp_link *link);
/* Nobody listens where the peer is looked for (ECONNREFUSED), or who does hangs up. */
void pki_tcp_refused(struct pki_tcp_link *link, int error);

/* ---- end.c: the end of all connections with a peer ---- */

/* Those from `first` on will never stand again. */
void pki_tcp_links_over(struct pki_tcp_ep *ep, uint32_t first);
/* Nothing more can be done with this peer: the error is recorded with this text, and `error` (an errno, or 0), everything in
 * flight ends. */
void pki_tcp_lost(struct pki_tcp_ep *ep, int error, const char *fmt, ...) PKI_PRINTF(3, 4);
/* The peer leaves in good order: the control channel is read to its end. */
void pki_tcp_is_shutting_down(struct pki_tcp_ep *ep);
/* And that was it. */
void pki_tcp_left(struct pki_tcp_ep *ep);

#endif
