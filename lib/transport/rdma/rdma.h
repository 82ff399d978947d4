/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA between hosts, over InfiniBand or RoCE.
 *
 * A rail is one port of one device. A pair of ranks has one RC queue pair for the control channel and PK_QPS for data, spread
 * over the rails of both: number i joins rail i (modulo their number) of the one rank to rail i of the other. So a message
 * does not wait behind bulk.
 *
 * Lane: SENDs into a ring of receives that are always posted. The receiver counts what it has posted again and says that
 * number (the sender's credit) in passing with its own messages, or writes it into the sender's memory; a sender without
 * credit sends nothing, so no receive is ever missing.
 *
 * Data: a CTS that goes out names memory; it is registered, and the keys travel behind the message. A put is cut into chunks,
 * each an RDMA WRITE on the queue pair with fewest bytes in flight; when all have been acknowledged the put is done.
 *
 * The receiver hears of the bytes in one of two ways. A grant that bears a number may be filled by up to PKI_RDMA_PARTS writes
 * that carry it (WRITE_WITH_IMM): their bytes are summed up, and at the last one the transfer is complete. As each of them
 * takes a receive that was posted before, only PKI_RDMA_NUMBERS grants at a time have one. Else a FIN follows the
 * acknowledgements on the control channel.
 *
 * Completion events are for who wants to sleep (iface->sleepers); nothing is armed before.
 *
 * When a queue pair fails, all of the pair are made again and what has not come goes again (recover.c). Where that cannot be,
 * the endpoint is dead.
 */
#ifndef PKI_RDMA_H
#define PKI_RDMA_H

#include <stdatomic.h>

#include "transport/rdma/verbs.h"
#include "transport/transport.h"
#include "tuning/tuning.h"
#include "util/log.h"

#define PKI_RDMA_RAILS_MAX 4
#define PKI_RDMA_QPS_MAX 16
#define PKI_RDMA_TELLING (PKI_RDMA_NUMBERS * PKI_RDMA_PARTS + PKI_RDMA_TELLING_BATCH) /* receives posted there */
#define PKI_RDMA_KEYS_MAX (PKI_RDMA_PAYLOAD_MAX / (uint32_t)sizeof(uint32_t))         /* behind one CTS */
#define PKI_RDMA_SLOT_BYTES (sizeof(struct pki_msg) + PKI_RDMA_PAYLOAD_MAX)

#define PKI_RDMA_REPORT_BYTES 1000u

#define PKI_RDMA_MAGIC 0x52444d41u
#define PKI_RDMA_VERSION 4u
/* Memory is registered in pieces of 2^shift bytes at most, whose borders are multiples of that: keys of a range follow from
 * its address. */
#define PKI_RDMA_PIECE_SHIFT 30u
#define PKI_RDMA_PIECE_SHIFT_MIN 12u
#define PKI_RDMA_RECEIVE ((uint64_t)1 << 63) /* in a work request's id: it is a receive */
#define PKI_RDMA_LAST 1u                     /* a receive's sequence number: nothing follows on this queue pair */

struct pki_rdma_ep;
struct pki_rdma_iface;

struct pki_rdma_rail {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
    bool usable;        /* its port was active when last looked at */
    bool armed;         /* the next completion is told on the channel */
    char name[32];      /* "mlx5_0" */
    char interface[16]; /* "eth0", or empty */
    uint8_t port;
    bool ethernet;
    int gid_index;
    union ibv_gid gid;
    uint16_t lid;
    enum ibv_mtu mtu;
    double gbps;
};

/* A range of memory whose mapping is monitored. */
struct pki_rdma_monitored {
    struct pki_list node;
    uintptr_t begin, end;
    bool is_monitored; /* else nobody would say so if it changed */
    atomic_bool stale; /* these addresses mean other pages now, or none */
};

/* Memory that devices may reach, on all rails, in pieces. */
struct pki_rdma_mr {
    struct pki_list node; /* iface->cached or iface->used */
    unsigned users;
    struct pki_rdma_monitored monitored;
    struct pki_mem gpu; /* the allocation; of kind HOST: it is host memory */
    uint32_t npieces;
    struct ibv_mr *mrs[]; /* [piece * nrails + rail] */
};

/* Of a range at the peer. Few, and then they lie here, unless it is huge. */
struct pki_rdma_keys {
    uint64_t begin;                          /* of the range */
    uint32_t few[PKI_RDMA_RAILS_MAX], *many; /* [piece * rails there + rail]; many: NULL, or the target's */
};

struct pki_rdma_move { /* a put in flight */
    struct pki_put *put;
    struct pki_rdma_mr *mr;
    struct pki_rdma_keys keys;
    size_t chunk, issued;
    uint32_t number;    /* its writes carry it; 0: it has none */
    struct pki_msg fin; /* to follow the last acknowledgement, if its kind is not 0 */
    unsigned flying;    /* chunks given to a queue pair, or waiting for another one, and not acknowledged */
};

/* Of one endpoint, the oldest first. Those of [head, next) are issued as a whole, of [next, end) some may be. */
struct pki_rdma_moves {
    struct pki_rdma_move at[PKI_RDMA_MOVES];
    uint32_t head, next, end;
};

struct pki_rdma_chunk {
    struct pki_rdma_move *move;
    size_t offset;
    uint32_t bytes;
};

struct pki_rdma_qp {
    struct ibv_qp *qp;
    struct pki_rdma_ep *ep;
    struct pki_rdma_rail *rail;
    uint32_t slot; /* in iface->qps */
    uint32_t rail_here, rail_there;
    uint32_t inline_bytes;      /* that a request may carry itself */
    bool dead;                  /* nothing more is posted */
    bool ended;                 /* in error, and its last receive has been flushed */
    uint32_t posted, completed; /* work requests ever; sequence numbers */
    uint32_t signalled;         /* control channel: as `posted`, behind the last one of which the device tells */
    uint32_t heard;             /* `completed` when it was last looked at, */
    uint64_t stalled_ns;        /* and how long it has been that, while there were requests */
    uint32_t over;              /* data: as `completed`, and those that were flushed */
    size_t bytes;               /* in flight */
    uint32_t reported;          /* receives taken by writes that told of themselves, not posted again */
    /* Data: what is in flight, and the requests being gathered for one doorbell. */
    struct pki_rdma_chunk chunks[PKI_RDMA_DEPTH];
    struct ibv_send_wr requests[PKI_RDMA_DEPTH];
    struct ibv_sge pieces[PKI_RDMA_DEPTH];
    unsigned gathered;
};

/* What both ends of a control channel keep in one registered allocation. */
struct pki_rdma_block {
    _Atomic uint32_t credit; /* written by the peer: receives that it has posted again */
    uint32_t reported;       /* source of what is written there */
    uint8_t pad[56];
    uint8_t in[PKI_RDMA_RING][PKI_RDMA_SLOT_BYTES];
    uint8_t out[PKI_RDMA_RING][PKI_RDMA_SLOT_BYTES];
};

struct pki_rdma_ctrl {
    struct pki_rdma_block *block;
    struct ibv_mr *mr;
    uint32_t bytes[PKI_RDMA_RING];     /* of each message that has come */
    uint32_t out_bytes[PKI_RDMA_RING]; /* of each that was sent, which is kept until a receive has been posted again */
    uint32_t arrived, popped, reposted;
    uint32_t reported; /* value of `reposted` that the peer knows or will know */
    uint32_t sent, credit;
    uint64_t their_credit; /* where the peer's word is */
    uint32_t their_rkey;
};

/* A transfer whose bytes may be written: to the peer (targets), or by it (grants). */
struct pki_rdma_grant {
    uint8_t flags;
    uint16_t index;
    uint64_t op;
    uint64_t begin, bytes;     /* address in the receiver's process */
    struct pki_rdma_mr *mr;    /* grants, like `recv`: */
    struct pki_recv *recv;     /* what is to be told; NULL: nobody */
    struct pki_rdma_keys keys; /* targets */
    uint32_t number;           /* 0: none */
    uint64_t written;          /* grants with a number: bytes that have come */
    bool is_slot;              /* for one piece of a transfer, of which the sender tells itself */
};

struct pki_rdma_grants {
    struct pki_rdma_grant *at;
    size_t n, room;
};

struct pki_rdma_hello {
    uint32_t magic;
    uint32_t version;
    uint32_t nqps; /* of data, that this rank would like */
    uint32_t nrails;
    uint32_t psn;
    uint32_t piece_shift;
    uint32_t credit_rkey;
    uint32_t immediate; /* 1: all its devices can write with immediate data */
    uint64_t credit;
    uint32_t qpns[1 + PKI_RDMA_QPS_MAX];    /* the control channel's first */
    uint8_t qp_rails[1 + PKI_RDMA_QPS_MAX]; /* where they are, by number of `rails` */
    struct {
        uint8_t gid[16];
        uint16_t lid;
        uint8_t mtu, ethernet;
    } rails[PKI_RDMA_RAILS_MAX];
};

/* What two ranks tell each other, over another transport, when queue pairs have to be made again. */
struct pki_rdma_note {
    uint32_t kind, epoch;
    struct pki_rdma_hello hello;
    uint32_t arrived, reposted; /* messages that have come; receives of messages that have been posted again */
    uint32_t ngrants;           /* that have numbers and are not filled */
    uint32_t grants[PKI_RDMA_NUMBERS];
};

enum pki_rdma_state {
    PKI_RDMA_UP,        /* queue pairs stand */
    PKI_RDMA_DRAINING,  /* they are in error; what completed before is taken in */
    PKI_RDMA_WAITING,   /* for a port to be active */
    PKI_RDMA_GREETING,  /* new ones are made; the peer's are not known, or this rank's have not been told */
    PKI_RDMA_CONNECTED, /* the peer's may not be yet */
    PKI_RDMA_GIVING_UP  /* says so, and is dead then */
};

/* Since the trouble began, from the peer. */
enum pki_rdma_heard {
    PKI_RDMA_HEARD_NOTHING,
    PKI_RDMA_HEARD_HELLO, /* which its new queue pairs are: `theirs` */
    PKI_RDMA_HEARD_READY  /* they are connected */
};

struct pki_rdma_recover {
    enum pki_rdma_state state;
    enum pki_rdma_heard heard;
    uint32_t epoch;    /* how many times queue pairs have been made again */
    uint32_t drained;  /* DRAINING: queue pairs whose last receive has been flushed */
    bool said;         /* the note that this state asks for has gone out */
    bool again;        /* CONNECTED: the new ones have failed already */
    bool shutdown_due; /* the peer recovers what it has left: tell it that its shutdown message has come */
    uint64_t entered_ns, looked_ns, advanced_ns;
    uint64_t since_ns;    /* when the trouble began; 0: something has completed since */
    uint32_t failures;    /* of all queue pairs since then */
    uint64_t listened_ns; /* when what is silent was last looked at */
    const char *why;      /* GIVING_UP */
    struct pki_rdma_note theirs;
};

/* What is known of the peer's end; it only goes on (pki_rdma_peer_left). */
enum pki_rdma_peer {
    PKI_RDMA_PEER_STAYS,
    PKI_RDMA_PEER_LEFT,  /* it has closed its end: nothing more comes */
    PKI_RDMA_PEER_SERVED /* and had all that it waited for */
};

struct pki_rdma_ep {
    struct pki_ep base;
    struct pki_rdma_iface *iface;
    struct pki_list node;    /* iface->eps */
    struct pki_rdma_qp *qps; /* [1 + nqps], the control channel's first */
    uint32_t nqps, nqps_made, nrails_there, psn;
    uint32_t shift_there; /* the peer's piece_shift */
    enum pki_rdma_peer peer;
    bool shutdown_sent; /* this rank is closing its own end */
    bool immediate;     /* both ends can write with immediate data */
    struct pki_rdma_recover recover;
    struct pki_notes notes;
    char report[PKI_RDMA_REPORT_BYTES]; /* base.report */
    struct pki_rdma_ctrl ctrl;
    struct pki_rdma_grants grants, targets;
    uint32_t number, numbers_out; /* the last one given to a grant; how many grants have one */
    struct pki_rdma_moves moves;
    struct pki_rdma_chunk *redo; /* chunks of failed queue pairs */
    unsigned nredo;
};

struct pki_rdma_iface {
    struct pki_iface base;
    struct pki_device *device;
    int rank, size;
    uint32_t nqps, piece_shift;
    int epoll_fd; /* of the rails' channels */
    struct pki_rdma_rail rails[PKI_RDMA_RAILS_MAX];
    int nrails;
    bool refused;      /* no rail could be opened: tried once */
    bool revoked;      /* the communicator has failed: nothing is written, or may be, to where grants said */
    uint64_t retry_ns; /* PK_RETRY_MS */
    uint64_t leave_ns; /* closing: no longer for what has not gone out to any peer; 0: not closing */
    struct pki_list eps;
    struct pki_rdma_qp **qps; /* by slot; NULL where one has been closed */
    uint32_t nslots, slots_room;
    struct pki_list used, cached; /* struct pki_rdma_mr; cached: the one used longest ago first */
    unsigned ncached;
    unsigned gpu_failures; /* registrations of GPU memory that failed, since one was possible */
    bool gpu_reported;     /* the log says that it was possible */
};

static inline struct pki_rdma_ep *pki_rdma_ep_of(struct pki_ep *ep)
{
    return pki_container_of(ep, struct pki_rdma_ep, base);
}

static inline struct pki_rdma_iface *pki_rdma_iface_of(struct pki_iface *iface)
{
    return pki_container_of(iface, struct pki_rdma_iface, base);
}

static inline bool pki_rdma_has_left(const struct pki_rdma_ep *ep)
{
    return ep->peer != PKI_RDMA_PEER_STAYS;
}

static inline struct pki_where pki_rdma_where(const struct pki_rdma_ep *ep)
{
    return (struct pki_where){ .rank = ep->base.rank, .peer = ep->base.peer };
}

/* device.c: what is there, without opening it; and the rails of an interface, nearest first. */
/* Is the device, or this port of it (0: any), in a list as "mlx5_0,mlx5_1:2"? */
bool pki_rdma_is_listed(const char *list, const char *device, int port);
void pki_rdma_look(struct pki_probe *probe);
pk_result_t pki_rdma_rails_open(struct pki_rdma_iface *iface);
void pki_rdma_rails_close(struct pki_rdma_iface *iface);
/* Look at its port again. True: it is active, and what describes it is up to date. */
bool pki_rdma_rail_look(struct pki_rdma_rail *rail);

/* gid.c: the entry of a port's table that is used; PK_GID_INDEX, or on Ethernet a RoCE v2 one, IPv4 before global IPv6 before
 * link-local. */
pk_result_t pki_rdma_choose_gid(struct pki_rdma_rail *rail, int entries);
/* Which of two RoCE addresses goes before: the lower one; -1: cannot be used at all. */
int pki_rdma_gid_order(const struct ibv_gid_entry *entry);

/*
 * monitor.c: the kernel tells (by userfaultfd) when monitored memory is unmapped, moved or given back. One monitor for the
 * process, from the first open to the last close. Where there is none (an old kernel, a container that forbids it) nothing is
 * `is_monitored`.
 */
void pki_rdma_monitor_open(void);
void pki_rdma_monitor_close(void);
void pki_rdma_monitor_add(struct pki_rdma_monitored *monitored); /* begin and end are set: whole pages */
void pki_rdma_monitor_remove(struct pki_rdma_monitored *monitored);
/* What this thread has unmapped before is marked stale when this returns. */
void pki_rdma_monitor_sync(void);

/* Pieces that a range of memory touches, and the number of the one that holds `at`. */
static inline uint64_t pki_rdma_piece(uint64_t begin, uint64_t at, uint32_t shift)
{
    return (at >> shift) - (begin >> shift);
}

static inline uint64_t pki_rdma_pieces(uint64_t begin, uint64_t bytes, uint32_t shift)
{
    return pki_rdma_piece(begin, begin + (bytes > 0 ? bytes - 1 : 0), shift) + 1;
}

/* mr.c: host memory, and GPU memory that the devices reach. */
pk_result_t pki_rdma_mr_get(struct pki_rdma_iface *iface, const void *addr, size_t bytes, struct pki_rdma_mr **mr);
void pki_rdma_mr_put(struct pki_rdma_iface *iface, struct pki_rdma_mr *mr);
void pki_rdma_mr_close_all(struct pki_rdma_iface *iface);
/* Of the table: only whether the devices reach GPU memory. */
pk_result_t pki_rdma_reg(struct pki_iface *iface, const struct pki_mem *mem, struct pki_export *out);

/* qp.c. Open: on the rails that are usable. */
pk_result_t pki_rdma_qps_open(struct pki_rdma_ep *ep);
pk_result_t pki_rdma_qps_connect(struct pki_rdma_ep *ep, const struct pki_rdma_hello *theirs);
void pki_rdma_qps_close(struct pki_rdma_ep *ep);
void pki_rdma_qp_close(struct pki_rdma_qp *qp);
/* Nothing more is moved by it. Completions come of what was; the last one has the id PKI_RDMA_LAST. False: none will come. */
bool pki_rdma_qp_end(struct pki_rdma_qp *qp);
/* The queue pair and sequence number of a work request, and back. */
static inline uint64_t pki_rdma_wr_id(const struct pki_rdma_qp *qp, uint32_t sequence)
{
    return (uint64_t)qp->slot << 32 | sequence;
}
/* Hand over a chain of `n` requests with one doorbell. On failure the queue pair is dead. */
bool pki_rdma_post(struct pki_rdma_qp *qp, struct ibv_send_wr *first, unsigned n);

/* hello.c: how an endpoint describes itself; and can this build talk to a rank that says so? A text why not, or NULL and
 * *hello. Pure. */
void pki_rdma_hello_fill(const struct pki_rdma_ep *ep, struct pki_rdma_hello *hello);
const char *pki_rdma_hello_check(const struct pki_rdma_hello *hello);
const char *pki_rdma_hello_parse(const struct pki_blob *blob, struct pki_rdma_hello *hello);

/* ctrl.c */
pk_result_t pki_rdma_ctrl_open(struct pki_rdma_ep *ep);
void pki_rdma_ctrl_close(struct pki_rdma_ep *ep);
pk_result_t pki_rdma_send(struct pki_ep *ep, const struct pki_msg *msg, const void *payload);
pk_result_t pki_rdma_recv_post(struct pki_recv *recv, const struct pki_msg *tell);
bool pki_rdma_peek(struct pki_ep *ep, struct pki_msg *msg, const void **payload);
void pki_rdma_pop(struct pki_ep *ep);
void pki_rdma_ctrl_received(struct pki_rdma_ep *ep, uint32_t bytes);
/* Post `n` receives on a data queue pair, for writes that tell of themselves. */
pk_result_t pki_rdma_post_telling(struct pki_rdma_qp *qp, uint32_t n);
/* Give the peer credit for receives that have been posted again, if it is worth a message. */
void pki_rdma_ctrl_credit(struct pki_rdma_ep *ep);
/* Give it in a request of which the device tells, so that one hears whether those before it have arrived. */
void pki_rdma_ctrl_ask(struct pki_rdma_ep *ep);
/* Receives for what has been popped, once they are worth it. */
void pki_rdma_ctrl_repost(struct pki_rdma_ep *ep);
/* Post receives on all queue pairs, which are new, before they are ready to receive: the first ones, or after those that had
 * been. */
pk_result_t pki_rdma_ctrl_again(struct pki_rdma_ep *ep);
/* Send what the peer has not got, of which `arrived` messages in all have come. False: this failed too. */
bool pki_rdma_ctrl_resend(struct pki_rdma_ep *ep, uint32_t arrived, uint32_t credit);
/* This rank leaves, again and again: true when all has arrived, nobody would read it, or it was long enough. */
bool pki_rdma_shutdown(struct pki_rdma_ep *ep);
/* Nothing that was sent is still on its way to somebody who might read it. */
bool pki_rdma_ctrl_is_settled(const struct pki_rdma_ep *ep);

/* A message that has come: false when it is none; `nrails` and piece `shift` of the peer. Pure. */
bool pki_rdma_message_parse(const uint8_t *bytes, uint32_t count, uint32_t nrails, uint32_t shift, struct pki_msg *msg);

/* grant.c. Does this message name host memory that the other end will write to? Then keys follow it. */
bool pki_rdma_names_memory(const struct pki_msg *msg);
uint32_t pki_rdma_grant_keys(const struct pki_msg *msg, uint32_t nrails, uint32_t shift); /* how many; 0: none, or no range */
/* *number: what the grant bears, or 0. */
pk_result_t pki_rdma_grant_out(struct pki_rdma_ep *ep, struct pki_recv *recv, const struct pki_msg *msg,
                               uint32_t rkeys[PKI_RDMA_KEYS_MAX], uint32_t *number);
pk_result_t pki_rdma_grant_in(struct pki_rdma_ep *ep, const struct pki_msg *msg, const uint32_t *rkeys);
/* The FIN of the whole transfer has come, or gone: its grant, or target, is of no further use. */
void pki_rdma_grant_end(struct pki_rdma_ep *ep, const struct pki_msg *fin, bool ours);
/* Of this transfer: several may have been granted the same memory. */
const struct pki_rdma_grant *pki_rdma_target(const struct pki_rdma_ep *ep, const struct pki_msg *about, uint64_t begin,
                                             uint64_t bytes);
/* A target is of no further use: its keys have been noted elsewhere. */
void pki_rdma_target_used(struct pki_rdma_ep *ep, const struct pki_rdma_grant *target);
/* A write with this number has come. False: nothing with this number was granted. */
bool pki_rdma_grant_written(struct pki_rdma_ep *ep, uint32_t number, uint32_t bytes);
/* Numbers of grants that are not filled; what has come of them counts no more. How many. */
uint32_t pki_rdma_grants_unfilled(struct pki_rdma_ep *ep, uint32_t numbers[PKI_RDMA_NUMBERS]);
/* The peer's transport says how much of a grant has come. False: that is not this transport's to hear, but an engine's. */
bool pki_rdma_grant_told(struct pki_rdma_ep *ep, const struct pki_msg *fin);
void pki_rdma_grants_close(struct pki_rdma_ep *ep);

/* put.c */
pk_result_t pki_rdma_put(struct pki_put *put);
/* Give chunks that wait to queue pairs that have room. */
void pki_rdma_stripe(struct pki_rdma_ep *ep);
void pki_rdma_data_completed(struct pki_rdma_qp *qp, uint32_t sequence);

/* completions.c: take those that there are. False: there were none. */
bool pki_rdma_poll(struct pki_rdma_iface *iface);

/* fail.c */
void pki_rdma_peer_left(struct pki_rdma_ep *ep, enum pki_rdma_peer how); /* it has been heard of the peer */
/* A queue pair has failed: recover what can be recovered. */
void pki_rdma_broken(struct pki_rdma_ep *ep, const char *what);
void pki_rdma_moves_fail(struct pki_rdma_ep *ep);
void pki_rdma_ep_failed(struct pki_rdma_ep *ep, const char *what);
/* Of a recovery: to the next state; to the end of it, for which the peer hears first. */
void pki_rdma_recover_enter(struct pki_rdma_ep *ep, enum pki_rdma_state state);
void pki_rdma_give_up(struct pki_rdma_ep *ep, const char *why);

/* recover.c */
void pki_rdma_recover_advance(struct pki_rdma_ep *ep);
/* Read what the other end has said, and say what the state asks for; the watchdog looks, too. */
void pki_rdma_exchange_notes(struct pki_rdma_ep *ep);
const char *pki_rdma_note_parse(const void *bytes, size_t n, struct pki_rdma_note *note); /* pure; NULL: it can be one */

/* watchdog.c. Is there a queue pair of which nothing has been heard for too long? Then it has failed. */
void pki_rdma_watchdog(struct pki_rdma_ep *ep);

/* describe.c */
void pki_rdma_report(struct pki_rdma_ep *ep); /* written down for people */

/* revoke.c */
void pki_rdma_recv_cancel(struct pki_iface *base);

#endif
