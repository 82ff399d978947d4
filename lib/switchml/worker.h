/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One worker's side of the in-network allreduce: which packets it may send, which replies are new, what has to be sent again.
 * Pure: time is an argument, packets are numbers. A job is one allreduce; its packets are numbered from 0. At most `ahead` of
 * them are on their way, and the reply to packet p lets packet p + ahead go. Packet p takes place (p + shift) mod 2W of 2W
 * places; two places W apart are the two sets of one slot. An aggregator clears a set when the worker uses the slot's other one.
 * So the shift goes on from job to job and never back, and a packet goes only when the one before it in its slot has been
 * answered: with fewer than W ahead it may have to wait for that.
 */
#ifndef PKI_SWITCHML_WORKER_H
#define PKI_SWITCHML_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pickle/base.h"
#include "switchml/packet.h"

struct pki_switchml_timing {
    uint64_t timeout_ns; /* a packet without a reply is sent again after so long at most; */
    uint64_t least_ns;   /* and not before, however short round trips are; */
    uint32_t threshold;  /* after this number of resends the timeout doubles; */
    uint32_t increment;  /* and each time it takes this many more until the next doubling: 100, then 200 more, then 300 more */
};

#define PKI_SWITCHML_TIMEOUT_MAX_NS 1000000000ull /* who was late for long is heard of within a second */
#define PKI_SWITCHML_NONE UINT32_MAX

struct pki_switchml_flight { /* a packet on its way; one a slot */
    uint32_t id;             /* NONE: there is none */
    uint32_t waits;          /* the packet that goes when this one has been answered, or NONE */
    uint32_t before, behind; /* slots whose packets were sent before and after it */
    uint32_t turn;           /* its place in the order of sending, when it was sent last */
    bool again;              /* sent more than once: one cannot tell which of them a reply answers */
    uint64_t sent_ns;
};

/* Round trips, as RFC 6298 has them. One packet of a window is timed, and only one that another reply has let go: the first ones
 * of a job wait for ranks that have not called. */
struct pki_switchml_trip {
    uint64_t smoothed_ns, deviation_ns; /* 0: not known */
    uint32_t timed;                     /* the slot whose packet is timed, or NONE */
};

struct pki_switchml_worker {
    struct pki_switchml_timing timing;
    uint32_t window;  /* W: packets on their way at most, slots of the aggregator that are this worker's */
    uint32_t base;    /* the first of these slots */
    uint32_t shift;   /* place of the job's packet 0 */
    uint8_t job;      /* number of the job, low 8 bits */
    uint32_t packets; /* of the job; */
    uint32_t ahead;   /* of them on their way at a time; */
    uint32_t replies; /* that have come; */
    struct pki_switchml_trip trip;
    uint32_t sends;                      /* packets sent so far, and again; */
    uint32_t answered;                   /* and the last of them that is known to have been answered */
    uint32_t resends;                    /* that a timer has sent, since the job began; */
    uint32_t threshold;                  /* as it has grown; */
    uint32_t doubled_at;                 /* at this count of resends the timeout doubles next; */
    uint32_t doublings;                  /* as often as it has, */
    uint32_t in_a_row;                   /* and replies since the last one */
    uint32_t oldest, newest;             /* slots: by when their packets were sent last; NONE: no packet is on its way */
    struct pki_switchml_flight *flights; /* [window] */
};

/* A worker of `window` slots from slot `base` on. PK_ERR_MEMORY. */
pk_result_t pki_switchml_worker_init(struct pki_switchml_worker *worker, uint32_t base, uint32_t window,
                                     const struct pki_switchml_timing *timing);
void pki_switchml_worker_close(struct pki_switchml_worker *worker);

/* Begin a job of `packets`, `ahead` of them at a time: as many as the window, or fewer than that and at least half of them all.
 * Packets 0 to ahead - 1 are to be sent now. Without packets only the job's number goes on. */
void pki_switchml_worker_begin(struct pki_switchml_worker *worker, uint32_t packets, uint32_t ahead, uint64_t now);

/* A reply has come. False: it is none of this job that is still waited for. */
bool pki_switchml_worker_awaits(const struct pki_switchml_worker *worker, const struct pki_switchml_packet *reply);
/* The same; true: its values are taken, and `next` are the packets that are to be sent now, or NONE. */
bool pki_switchml_worker_reply(struct pki_switchml_worker *worker, const struct pki_switchml_packet *reply, uint64_t now,
                               uint32_t next[2]);

/* A packet that is to be sent again at `now`, or NONE, since some that were sent later have been answered. To be called until it
 * says NONE. */
uint32_t pki_switchml_worker_overtaken(struct pki_switchml_worker *worker, uint64_t now);
/* The same, or since its timer has run out. */
uint32_t pki_switchml_worker_late(struct pki_switchml_worker *worker, uint64_t now);
/* When a timer runs out; UINT64_MAX: no packet is on its way. */
uint64_t pki_switchml_worker_due(const struct pki_switchml_worker *worker);

/* All replies have come. The next job may begin, in which the job's number is one higher. */
static inline bool pki_switchml_worker_done(const struct pki_switchml_worker *worker)
{
    return worker->replies == worker->packets;
}

/* The pool index of packet `id`. */
uint16_t pki_switchml_worker_index(const struct pki_switchml_worker *worker, uint32_t id);

/*
 * The share of thread `t` in a job of `count` elements: `n` of them, from number `first` on. Threads have slots of their own, and
 * what an aggregator knows of a worker's packets it knows slot by slot. So each thread is a worker as above, with packets, shift
 * and timers of its own; no rule of the two machines has to know of several, nor has a model of them. They share the number of
 * the job: none begins before all threads have ended the one before it, and a thread without elements counts it too.
 */
static inline void pki_switchml_share(size_t count, uint32_t threads, uint32_t t, size_t *first, size_t *n)
{
    const size_t each = count / threads, rest = count % threads;

    *n = each + (t < rest);
    *first = each * t + (t < rest ? t : rest);
}

#endif
