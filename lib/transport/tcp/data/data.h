/* SPDX-License-Identifier: Apache-2.0 */
/* data/: chunks of transfers. They go out of puts, and come into buffers that were granted; threads move long ones. */
#ifndef PKI_TCP_DATA_H
#define PKI_TCP_DATA_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "transport/tcp/wire.h"
#include "transport/transport.h"
#include "tuning/tuning.h"

struct pki_tcp_ep;
struct pki_tcp_iface;
struct pki_tcp_link;

struct pki_tcp_move {     /* a put in flight */
    struct pki_list node; /* ep->puts.list, or .free */
    struct pki_put *put;
    size_t issued, acked;
};

struct pki_tcp_slot {          /* a chunk that the peer has not acknowledged */
    struct pki_tcp_move *move; /* NULL: its put has ended: `src` is a copy of it */
    const char *src;
    uint32_t bytes;
    uint64_t copy_end; /* where in ep->retransmit's ring a copy ends, so that its put need not wait; 0: there is none */
    unsigned char head[PKI_TCP_DATA_HEAD_BYTES];
};

struct pki_tcp_puts {              /* of an endpoint (put.c) */
    struct pki_tcp_move *moves;    /* [PKI_TCP_MOVES] */
    struct pki_list list, free;    /* those in flight as they were given, and the others */
    struct pki_list *unstriped;    /* of `list` the first that is not all in slots, or its head */
    struct pki_tcp_slot *slots;    /* [sockets * window], of all its links */
    struct pki_tcp_halves *halves; /* [sockets] */
};

enum pki_tcp_job_state {
    PKI_TCP_JOB_NONE,      /* the half is with who makes progress */
    PKI_TCP_JOB_OFFLOADED, /* a thread has it */
    PKI_TCP_JOB_ENDED      /* the thread is through with it, and it has not been taken back */
};

/* Half a link that may be given to a thread for the rest of one chunk (threads.c). */
struct pki_tcp_job {
    struct pki_list node; /* iface->threads.jobs */
    struct pki_tcp_link *link;
    bool out;
    atomic_bool recalled;
    _Atomic(enum pki_tcp_job_state) state;
    size_t bytes, moved; /* to be moved, and moved */
    /* how it ended: all moved, or recalled; the kernel has nothing more, or no room; with `error`, 0: closed by the other end */
    enum { PKI_TCP_JOB_STOPPED, PKI_TCP_JOB_BLOCKED, PKI_TCP_JOB_FAILED } how;
    int error;
};

struct pki_tcp_out {            /* chunks out: slots [link->acked, link->end), of which `next` is being written (put.c) */
    struct pki_tcp_slot *slots; /* [window] */
    uint64_t next, sent;        /* `sent` of them have ever gone whole, over this connection or one before it */
    size_t written;             /* bytes of `next`, head and payload */
    size_t outstanding;         /* payload bytes in slots whose puts wait */
    struct pki_tcp_job job;     /* while it is offloaded, `next` and `written` are a thread's */
};

struct pki_tcp_in { /* the chunk that comes in (incoming.c) */
    unsigned char head[PKI_TCP_DATA_HEAD_BYTES];
    size_t head_have;
    struct pki_recv *grant;                /* being filled, or NULL */
    struct pki_tcp_unexpected *unexpected; /* the same, before there is a grant */
    struct pki_tcp_chunk chunk;
    size_t left;
    unsigned polls;         /* rounds for which its payload has waited for a grant */
    struct pki_tcp_job job; /* while it is offloaded, the head and what is left of the chunk are a thread's */
};

struct pki_tcp_halves { /* of a link */
    struct pki_tcp_out out;
    struct pki_tcp_in in;
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
    struct pki_list jobs; /* that they have */
};

struct pki_tcp_unexpected {        /* a chunk that has come before its receive was posted */
    struct pki_list node;          /* ep->unexpected.list */
    struct pki_unexpected_put put; /* of the first chunk of a transfer: told until a receive takes it */
    struct pki_tcp_chunk chunk;
    bool whole; /* all of it is here, and acknowledged */
    char payload[];
};

struct pki_tcp_unexpecteds { /* of an endpoint (unexpected.c) */
    struct pki_list list;
    size_t bytes;
};

struct pki_tcp_out_of_order { /* bytes of a grant that came before others in front of them */
    struct pki_recv *grant;
    size_t begin, end;
};

struct pki_tcp_grants {   /* of an endpoint (grant.c) */
    struct pki_list list; /* struct pki_recv that the peer may fill */
    uint64_t places;      /* granted outside a transfer so far: names of those to come */
    struct pki_tcp_out_of_order *out_of_order;
    uint32_t nout_of_order, out_of_order_max;
};

/* ---- put.c: chunks, out ---- */

pk_result_t pki_tcp_put(struct pki_put *put);
void pki_tcp_data_write(struct pki_tcp_link *link);
/* Memory for puts, and for what connections have of them. False: there is none; what there is, pki_tcp_puts_close takes away. */
bool pki_tcp_puts_open(struct pki_tcp_ep *ep);
void pki_tcp_puts_close(struct pki_tcp_ep *ep);
/* This connection carries chunks. */
void pki_tcp_data_use(struct pki_tcp_link *link);

void pki_tcp_data_acked(struct pki_tcp_link *link, uint64_t frames);

/* For whoever has the half of the link; the result is the system call's. What is left of the chunk being written, of which
 * `written` is what has gone. */
ssize_t pki_tcp_chunk_send(struct pki_tcp_link *link);
/* Whatever of that chunk a thread has written. */
void pki_tcp_chunk_sent(struct pki_tcp_link *link);
/* Only the control channel is left of it: chunks under way, puts and grants are given up. */
void pki_tcp_data_give_up(struct pki_tcp_ep *ep);

/* ---- incoming.c: chunks, in ---- */

void pki_tcp_data_read(struct pki_tcp_link *link);
/* The part of a chunk that has come: the peer will send all of it again, or nothing. */
void pki_tcp_data_forget(struct pki_tcp_link *link);
/* For whoever has the half of the link; the result is the system call's. What is left of the chunk being received after
 * `done` bytes more, and the head of the next one. */
ssize_t pki_tcp_chunk_receive(struct pki_tcp_link *link, size_t done);
/* `bytes` of these have come. False: the link is broken, or the endpoint lost. */
bool pki_tcp_advance_in(struct pki_tcp_link *link, size_t bytes);
/* A thread has ended its job: go on from there. False: as above. */
bool pki_tcp_data_returned(struct pki_tcp_job *job);

/* ---- threads.c: other threads for long chunks ---- */

/* The half is not the caller's now. */
static inline bool pki_tcp_job_is_offloaded(const struct pki_tcp_job *job)
{
    return atomic_load_explicit(&job->state, memory_order_relaxed) != PKI_TCP_JOB_NONE;
}

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

bool pki_tcp_grants_open(struct pki_tcp_ep *ep); /* false: no memory */
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
