/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transports carry messages of control channels (send, peek, pop), or move ranges that the engine has matched (put), or both.
 * They never match, never call up, send nothing by themselves over another transport, and show no message that the peer has not
 * sent: what they know of puts and posted receives they say by events.
 *
 * All slots of one interface are called by one thread at a time (the communicator's lock); the memory between processes is the
 * transport's own business. Lifetime: open, then for each peer ep_init, exchange of blobs by the caller, ep_connect, traffic,
 * ep_close, and close. An empty slot is filled with a "not supported" one at registration; callers never test for NULL.
 */
#ifndef PKI_TRANSPORT_H
#define PKI_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "device/device.h"
#include "pickle/base.h"
#include "tuning/tuning.h"
#include "util/list.h"
#include "util/log.h"

/* ---- Messages on the ordered control channel of a pair ---- */

enum pki_msg_kind {
    PKI_MSG_EAGER = 1,  /* payload is the whole transfer; iface->caps.eager_credits: and a CREDIT of `bytes` */
    PKI_MSG_RTS,        /* sender: my transfer is ready and not eager; grant it (offset unused, bytes = its length) */
    PKI_MSG_CTS,        /* receiver: put it at region + offset; `signal_slot`, `signal_value` when the pair has signals */
    PKI_MSG_DATA,       /* payload is bytes [offset, offset + payload) of a granted transfer */
    PKI_MSG_FIN,        /* sender: bytes up to `offset` of a granted transfer are in place */
    PKI_MSG_CREDIT,     /* receiver: `bytes` of eager payload have been consumed, and `offset` that went before a CTS */
    PKI_MSG_BOUNCE_REQ, /* sender, granted BOUNCE: a place for the `signal_value` bytes at `offset`, please */
    /* receiver: the oldest BOUNCE_REQ without an answer goes to `offset`, an address here with room for `signal_value` bytes */
    PKI_MSG_BOUNCE_CREDIT,
    PKI_MSG_OFFER, /* sender, after a COOP grant: all bytes lie at address `offset`; take pieces too */
    PKI_MSG_ATS,   /* receiver: all bytes of an offered transfer are in place */
    PKI_MSG_WHO,   /* I have waited long: question `offset`, how far are you? */
    /* the answer to question `offset`: `op` is my last collective, `bytes` 1 + the rank that I wait for, or 0 */
    PKI_MSG_HERE,
    PKI_MSG_MAP,       /* map my `region`, and say where it is then */
    PKI_MSG_MAPPED,    /* `region` of yours is at `offset` here, or cannot be (PKI_REGION_NOWHERE) */
    PKI_MSG_PLAN,      /* collective `op` is no kernel here, but an ordinary plan (rooted ones, where all ranks have GPUs) */
    PKI_MSG_NOTE,      /* between hosts: payload is what an endpoint of another transport tells its other end */
    PKI_MSG_SIDE,      /* between hosts: payload is what goes over the socket beside the control channel on one host */
    PKI_MSG_UNSWITCHED /* collective `op` goes without the aggregator that was to make its sums, and so do later ones */
};

#define PKI_CTS_JOINED 1u /* the start signal opens no later than that of the pair's CTS before it */
#define PKI_CTS_DATA 32u  /* of what was OFFERed and cannot be fetched: send it as DATA, from `offset` on */
/* SIDE, to the transport alone: a shutdown message in good order, which nothing that this rank has sent may come after */
#define PKI_SIDE_SHUTDOWN 1u
#define PKI_MSG_FLAG_COLL 1u     /* `op` is a collective's number, else the pair's send number */
#define PKI_MSG_FLAG_CAPTURED 2u /* of a captured operation: matches only those */
#define PKI_MSG_FLAG_DEVICE 4u   /* CTS: the target is GPU memory, with a signal slot */
#define PKI_MSG_FLAG_LL 8u       /* CTS: signal_slot and signal_value name a low-latency slot and its flag */
#define PKI_MSG_FLAG_BOUNCE 16u  /* CTS: the bytes go by BOUNCE_REQ and BOUNCE_CREDIT, a piece at a time */
/* CTS of host memory: both ends may move pieces, claimed in slot signal_slot under signal_value */
#define PKI_MSG_FLAG_COOP 32u
#define PKI_MSG_FLAG_CTRL 64u /* CTS of host memory: send it as DATA, for it is worked on as it comes */
#define PKI_MSG_FLAG_GET 128u /* CTS with CTRL: or OFFER all of it; the receiver gets and works on a piece at a time */

/* Which transfer a message speaks of: op and index, within flags' COLL and CAPTURED and the direction (LL, DEVICE, BOUNCE,
 * COOP, CTRL and GET are no part of it). EAGER carries only the first 16 bytes, and `bytes` where iface->caps.eager_credits. */
struct pki_msg {
    uint8_t kind;
    uint8_t flags;
    uint16_t index; /* pair_index of the step; 0 for send and recv */
    uint32_t sig;   /* collectives: fingerprint of operation, type, count */
    uint64_t op;
    uint64_t offset;
    uint64_t bytes;
    uint32_t region; /* id of an exported region (owner's numbering); 0: `offset` is an address in the owner's process */
    uint16_t signal_slot;
    uint16_t extra;        /* CTS: PKI_CTS_*; SIDE: PKI_SIDE_*. Else the transport's own, and 0 where the engine sees it */
    uint32_t signal_value; /* start signal opens at signal_value; done signal at signal_value too */
    /* set by the transport on receipt and by the caller of send: bytes that follow, <= iface->caps.msg_payload_max */
    uint32_t payload;
};

/* Of the collective `op`. Captured ones have numbers of their own. */
static inline bool pki_msg_of_collective(const struct pki_msg *msg)
{
    return (msg->flags & (PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED)) == PKI_MSG_FLAG_COLL;
}

#define PKI_NOTE_MAX 1024u /* bytes of a NOTE */

/* What the two ends of an endpoint tell each other though its own connection does not work: another endpoint of the pair
 * carries it. */
struct pki_note {
    uint32_t bytes; /* 0: there is none */
    uint8_t data[PKI_NOTE_MAX];
};

struct pki_notes {
    struct pki_note out; /* filled by progress where it is empty, emptied by the engine when it has gone */
    struct pki_note in;  /* filled by the engine, the next one when progress has emptied it */
    bool due;            /* set by the engine occasionally: it is time to look whether something is to be said */
    bool carried;        /* set by the engine: there is an endpoint that carries them */
    bool carrier_left;   /* set by the engine: the other end of that one has closed in good order */
};

#define PKI_REVOKE_NS 30000000ull /* pk_comm_abort is back within 100 ms */

/* ---- Signals of a pair ---- */

/* One matched transfer into GPU memory: start is written by the receiver ("my buffer is free"), done by the sender's copy
 * queue. Or one of host memory that both ends move: the next piece to take, under the grant's signal_value in the upper half,
 * and how many are in place. Or a cell, behind those slots, in which sender and receiver of GPU memory agree who was first
 * (engine/proto/offer.h): then claim is its state, start is written by the sender ("my bytes are ready"), done by the
 * receiver's copy, and the rest says where the bytes are. */
struct pki_signal_slot {
    _Atomic uint32_t start, done;
    _Atomic uint64_t claim;
    _Atomic uint32_t moved;
    uint32_t value; /* cells: that opens start and done */
    uint64_t offset, bytes;
    uint32_t region, sig;
    uint8_t pad[16]; /* a slot a cache line: the CPU polls one word while a GPU writes the neighbour's */
};

_Static_assert(sizeof(struct pki_signal_slot) == 64, "a cache line");

#define PKI_PAIR_SLOTS (PKI_SIGNAL_SLOTS + 2 * PKI_CELLS)
#define PKI_EP_SHARED_BYTES (PKI_PAIR_SLOTS * sizeof(struct pki_signal_slot))

/* ---- Objects: allocated by the engine, sizes in the table; the transport's own struct begins with these ---- */

struct pki_blob {
    uint8_t bytes[256];
    uint32_t len;
    /* -1 or a descriptor that travels with it; the sender's is the transport's, which may close it in ep_connect: by then it
     * has been sent. The receiver's is ep_connect's. */
    int fd;
};

/* What a transport counts, where it counts; fields of pk_stats_t. */
struct pki_counts {
    uint64_t work_requests, doorbells, completions, registrations;
};

/* What a transport can do here. Set by open, and never changed. */
struct pki_caps {
    size_t msg_payload_max;  /* bytes, and of EAGER an endpoint's eager_coll where that is more; 0: it carries no messages */
    size_t eager_max;        /* longest transfer that goes whole in one message; 0: the engine's choice */
    size_t eager_put_max;    /* longest transfer that may be put before its grant has come, the same on all ranks; 0: none */
    size_t eager_put_credit; /* bytes of such transfers to one peer, all together, that it has not asked for yet */
    bool eager_credits;      /* an EAGER message gives credit, too: `bytes` */
    bool deep;               /* of a long transfer from host memory more puts than two pay, for they end late */
};

struct pki_iface {
    const struct pki_transport *transport;
    struct pki_caps caps;
    /* set by the engine: a control channel or a way is of this transport; else it is only looked after occasionally */
    bool carries;
    /* struct pki_event by `node`, the oldest first: what put, peek and progress have seen. The engine pops them */
    struct pki_list events;
    _Atomic bool in_kernel; /* what comes from peers the kernel carries: who waits leaves it, and the peer, the core soon */
    /* Set by the engine: threads that sleep at `fd`, or are about to; from before the last progress until they are awake. */
    atomic_int sleepers;
    /* set by progress, at first -1: readable when progress has something to do; -1: nothing tells, so poll */
    int fd;
    struct pki_counts counts;
    bool in_threads; /* threads of the kernel move every byte: who waits long sleeps soon, or they have no core */
};

/* Why an endpoint has failed, for the error record of the operation that finds out, perhaps later and in another thread. */
struct pki_cause {
    int sys_errno;   /* of the system call that failed, or 0; while CONNECTING, of the last attempt */
    bool peer_ended; /* the peer's process has */
    char text[252];  /* empty: nothing has failed */
};

/* How an endpoint ends in good order. */
struct pki_farewell {
    bool theirs; /* set by the engine: the peer has said that it leaves, and that it cannot be reached any more is no failure */
    bool mine;   /* set by the engine: nothing more is sent. Progress sends the shutdown message behind all that was sent */
    /* set to true by ep_connect where there is such a message, and to false by progress when all has arrived, nobody would
     * read it, or it was long enough */
    bool lingers;
};

/* How far the connection of an endpoint has come. The later ones are final: LEFT is left for DEAD alone, and DEAD never. */
enum pki_ep_state {
    PKI_EP_UP,         /* it works, or ep_connect has not been called */
    PKI_EP_CONNECTING, /* set by ep_connect: the connection is being made, in progress; messages may be sent already */
    PKI_EP_RECOVERING, /* what carries its messages is being made again, and both ends exchange notes */
    PKI_EP_LEFT,       /* the other end has closed in good order; no more comes, nor any word of what was put */
    PKI_EP_DEAD        /* pki_ep_fail has said why, and every put in flight has ended with PK_ERR_PEER; or it is closed */
};

/* Which takes less time, from a few pages on: two copies, by send, or one by put or get. */
enum pki_ep_copies {
    PKI_COPIES_VARY,     /* that depends on the length */
    PKI_COPIES_TWO_FAST, /* two, for the peer's core is near */
    PKI_COPIES_ONE_FAST  /* one, wherever the peer's core is: set by ep_connect, alike at both ends */
};

struct pki_ep {
    struct pki_iface *iface;
    int rank, peer;
    int64_t peer_pid;
    bool same_process;
    enum pki_ep_state state;   /* set by the transport alone: pki_ep_enter */
    enum pki_ep_copies copies; /* the transport's: VARY and TWO_FAST may change with every message, ONE_FAST stays */
    bool can_put; /* set by ep_connect: put works to this peer; no longer once a put or get has returned PK_ERR_UNSUPPORTED */
    struct pki_farewell farewell;
    /* set by ep_init: the transport's; NULL: it has none to exchange. Where they are carried, the endpoint is recovered though
     * no operation waits: the service thread calls progress occasionally, and carries them */
    struct pki_notes *notes;
    /* set by ep_connect, alike at both ends: longest step of a collective without GPUs that goes whole in one message; 0: the
     * engine's choice */
    size_t eager_coll;
    /* Set by the engine: payload bytes of the message that is waited for, and nothing else, a hint. Peek may have them fetched,
     * and may forget it. */
    uint32_t expected;
    bool can_get; /* set by ep_connect: get works from any memory of this peer, by its address there; ends with can_put */
    /* Memory that both ends see, PKI_EP_SHARED_BYTES each: signals of transfers to this rank, and of transfers to the peer. NULL
     * where the transport cannot share memory. Page-aligned, zeroed at first. */
    struct pki_signal_slot *signals_mine;
    struct pki_signal_slot *signals_theirs;
    /* Set to 1 by this rank when it goes to sleep (util/futex.h): the peer's next message sets it to 0 and wakes it. NULL:
     * the control channel cannot wake anybody. */
    _Atomic uint32_t *wake_word;
    /* Not 0 when the peer has taken its memory back: what is read of its mapped memory from then on may be anything. NULL:
     * the peer cannot tell. */
    const _Atomic uint32_t *revoked;
    struct pki_cause cause; /* set by pki_ep_fail: of the first failure */
    const char *report;     /* the transport's, for people: what keeps it, as of lately. NULL or empty: nothing does */
};

/* What has happened. It lies in whatever it is about. */
enum pki_event_kind {
    PKI_EVENT_PUT, /* A put has ended, with put->result: struct pki_put, which is the engine's again. */
    /* More of a posted receive has come: struct pki_recv, which is the engine's again if `have` is all of it. */
    PKI_EVENT_RECEIVED,
    PKI_EVENT_UNEXPECTED /* Bytes of an eager put that no posted receive takes: struct pki_unexpected_put, the transport's. */
};

struct pki_event {
    struct pki_list node;
    enum pki_event_kind kind;
};

/* A move of matched bytes. Owned by the engine; the transport's from put's PK_OK until its event. */
struct pki_put {
    struct pki_event event;
    struct pki_ep *ep;
    const void *src;
    uint64_t remote; /* what map returned, plus the offset */
    bool mapped;     /* remote is memory of this process: map's of PKI_EXPORT_MEMFD */
    bool is_get;     /* the other way: into `src` from `remote`. Only where ep->can_get, or `mapped` */
    bool eager_put;  /* the grant has not come: iface->caps.eager_put_max; `remote` counts from the transfer's first byte */
    size_t bytes;
    size_t whole;                  /* of the transfer that it is a part of. 0: it is all */
    struct pki_msg about;          /* transports with `posts`: names the transfer; BOUNCE: there is none, `remote` is all */
    struct pki_signal done_remote; /* opened behind the last byte, if its word is not NULL */
    /* Orders for kernels to give it to, where the transport copies between GPUs (device.h), or NULL */
    const struct pki_queue *lane;
    struct pki_queue *queue; /* a queue to put it in, with no completion wanted (never on the done queue), or NULL */
    pk_result_t result;
    void *owner;                      /* the engine's; puts of one owner end in the order in which they were given */
    struct pki_signal private_signal; /* the transport's */
};

/* A buffer that a peer may put into. Owned by the engine; the transport's from recv_post's PK_OK until all of it has come,
 * recv_cancel, or the end of the endpoint. */
struct pki_recv {
    struct pki_event event;
    struct pki_ep *ep;
    char *addr;
    size_t bytes;
    size_t have;   /* bytes that have come, from the first on */
    uint8_t flags; /* these four name the transfer, as in struct pki_msg */
    uint16_t index;
    uint32_t sig;
    uint64_t op;
    void *owner;          /* the engine's. NULL: of a bounce buffer, of which the sender's engine tells, and no event comes */
    struct pki_list node; /* this and what follows are the transport's */
    unsigned fillers;
};

/* An eager put of the peer that nobody waits for yet. */
struct pki_unexpected_put {
    struct pki_event event;
    struct pki_ep *ep;
    struct pki_msg about; /* flags, index, sig and op name the transfer; `bytes` is its length */
};

static inline void pki_event_push(struct pki_iface *iface, struct pki_event *event, enum pki_event_kind kind)
{
    event->kind = kind;
    pki_list_push(&iface->events, &event->node);
}

/* What transports between hosts need to know; made by the communicator. */
#define PKI_NET_KEY_BYTES 32
struct pki_net {
    unsigned char key[PKI_NET_KEY_BYTES]; /* known to the ranks of this communicator alone */
    /* an address of this rank by which it has met another, not of loopback if there is one */
    struct sockaddr_storage local;
    /* [nmet], by rank: the one by which it has met that rank; family 0: it has not. NULL: not known */
    const struct sockaddr_storage *met;
    int nmet;
    bool outside;     /* some ranks have met over a network: loopback alone does not join them */
    bool one_machine; /* all ranks share one, though their networks may be apart */
};

struct pki_iface_config {
    int rank, size;
    int local_ranks;           /* on this machine; 0: not known */
    bool shares_cpu;           /* this rank has no CPU of its own */
    int cpus;                  /* that are this rank's; 0: not known, or none is */
    struct pki_device *device; /* the communicator's GPU, or NULL */
    const struct pki_net *net; /* NULL: not known */
};

/* What a rank's machine offers; gathered from all ranks before paths are chosen. */
struct pki_probe {
    bool usable;
    double gbps;     /* expected, 1e9 bytes/s one way */
    char reason[96]; /* why not, or what it rests on */
};

/*
 * What a transport is, and its 16 slots. Unless a slot says otherwise it is called by the engine with the communicator's lock
 * held, from any thread, never blocks, and allocates nothing once an endpoint is connected. Whatever else a slot needs is a
 * field of an interface or endpoint.
 */
struct pki_transport {
    const char *name; /* "shm" */
    const char *link; /* between hosts: what joins two ranks, for people: "socket" */
    size_t iface_bytes, ep_bytes;
    bool between_hosts; /* joins ranks of different hosts, and only those; else only ranks of one host */
    /* It puts host memory only where the receiver has posted a receive, and tells the receiver itself what has come: the
     * engine sends FIN only for bounce buffers. */
    bool posts;
    bool reaches[2][2]; /* put works from [source kind] to [target kind], enum pki_mem_kind */

    /* Can it work on this machine, as far as one rank can tell? Called by init and by whoever prints what there is, unlocked,
     * before any open; it may take milliseconds. Never fails: *probe says why not, or what its expectation rests on. */
    void (*probe)(const struct pki_iface_config *config, struct pki_probe *probe);
    /* Make the interface of one communicator, iface_bytes of zeros but for `transport`; caps are set here. Called by init,
     * and may block. PK_OK: close follows. Else: nothing is left to be undone, and the error has been recorded. */
    pk_result_t (*open)(const struct pki_iface_config *config, struct pki_iface *iface);
    /* The end of it, when all its endpoints are closed. Called while the communicator is destroyed or init fails. May block
     * for a moment. */
    void (*close)(struct pki_iface *iface);

    /* Begin an endpoint, and describe it for the peer's ep_connect. Called by init; rank, peer, same_process, peer_pid and
     * iface are set, all else is zero. Whatever it returns, the caller calls ep_close and owns *mine, but mine->fd stays the
     * transport's. */
    pk_result_t (*ep_init)(struct pki_ep *ep, struct pki_blob *mine);
    /* What the peer's ep_init has described. PK_OK: messages may be sent, though the state may be CONNECTING: progress
     * still connects. Else: the error has been recorded, and the caller calls ep_close; theirs->fd is the transport's in any
     * case. */
    pk_result_t (*ep_connect)(struct pki_ep *ep, struct pki_blob *theirs);
    /* The end of it; nothing that it knows is touched afterwards. Called once, after `farewell` where there was time for
     * that. It may wait, within PK_RETRY_MS for all endpoints together, until what was sent has left this process, unless
     * `can_put` is false. */
    void (*ep_close)(struct pki_ep *ep);

    /* Make local memory reachable: describe it, for the peer's map. PK_OK: descriptors in *out are the caller's to close and
     * free; nothing else is to be undone. out NULL: only the answer, whether the transport's own devices read and write this
     * memory of this rank's GPU (PK_ERR_UNSUPPORTED: not now). May call the device. */
    pk_result_t (*reg)(struct pki_iface *iface, const struct pki_mem *mem, struct pki_export *out);
    /* A peer's memory, reachable from here: *remote + offset is what put takes, until unmap. May call the device.
     * PK_IN_PROGRESS: not before that has made way (device.h). */
    pk_result_t (*map)(struct pki_ep *ep, const struct pki_export *in, uint64_t *remote);
    /* The end of a mapping that no put uses any more. May call the device. */
    void (*unmap)(struct pki_ep *ep, const struct pki_export *in, uint64_t remote);

    /* Send one message, msg->payload bytes of payload behind it; messages of an endpoint come in order. PK_OK: both are the
     * caller's again. PK_IN_PROGRESS: no room, nothing was taken, offer it again after progress. PK_ERR_PEER: the endpoint is
     * dead. */
    pk_result_t (*send)(struct pki_ep *ep, const struct pki_msg *msg, const void *payload);
    /* The oldest message that has come, without taking it; it looks itself for new ones, so that short calls need no
     * progress. True: *payload is the transport's and stays as it is until pop. False: there is none. */
    bool (*peek)(struct pki_ep *ep, struct pki_msg *msg, const void **payload);
    /* Take the message that peek has shown. */
    void (*pop)(struct pki_ep *ep);

    /* Let the peer put into recv->addr, and tell it so by `tell`, a CTS or BOUNCE_CREDIT, as send does; NULL: it does not
     * wait for that (caps.eager_put_max). PK_OK: *recv is the transport's until all of it has come. PK_IN_PROGRESS: no room,
     * nothing was posted. Else: it cannot be (no memory to register it, peer dead). */
    pk_result_t (*recv_post)(struct pki_recv *recv, const struct pki_msg *tell);
    /* The communicator has failed, and the callers of its operations have their buffers back: from its return on nothing
     * touches memory that puts, gets or receives of this rank named, in so far as comm.h promises it, and all of them but
     * puts without an event are the engine's. It drops those events of receives that it has not popped; control channels
     * carry messages as before. Called once; may wait for PKI_REVOKE_NS. */
    void (*recv_cancel)(struct pki_iface *iface);
    /* Start moving. PK_OK: *put is the transport's until its event, which may be there already. PK_IN_PROGRESS: no room,
     * nothing was taken. PK_ERR_UNSUPPORTED: it cannot be done any more, can_put and can_get are false now; part of the bytes
     * may be there, and all of them go by send. Else: the move cannot be done (memory gone, peer dead). */
    pk_result_t (*put)(struct pki_put *put);

    /* Advance what is in flight; cheap when there is nothing. Fills iface->events, notes->out and what else is its to set.
     * True: something has come or ended, to be looked at before anybody sleeps. False: what comes from now on shows at
     * iface->fd, if `sleepers` was not 0. */
    bool (*progress)(struct pki_iface *iface);
};

/* All transports of this build in order of preference, stubs filled in; NULL at the end. */
const struct pki_transport *const *pki_transports(void);
const struct pki_transport *pki_transport_find(const char *name);

/* ep.c. How long an endpoint tries again before it has failed: PK_RETRY_MS. */
pk_result_t pki_transport_retry_ns(uint64_t *ns);

/* The one way to another state: nothing changes where the present one is final. */
void pki_ep_enter(struct pki_ep *ep, enum pki_ep_state state);

/* A transport has seen an error of this endpoint: record and log it, keep it in ep->cause unless there is one, return
 * `code`. `error`: errno of the system call that failed, or 0. The text begins with the transport's name ("over shm: ").
 * Whatever a put, get or message fails with, and why an endpoint is dead, is said here, once: the engine adds which operation
 * it was. */
pk_result_t pki_ep_fail(struct pki_ep *ep, pk_result_t code, int error, const char *fmt, ...) PKI_PRINTF(4, 5);

#endif
