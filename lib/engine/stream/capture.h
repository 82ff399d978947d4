/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of captured operations share. */
#ifndef PKI_ENGINE_CAPTURE_H
#define PKI_ENGINE_CAPTURE_H

#include "coll/order.h"
#include "engine/stream/stream.h"
#include "engine/mem/graphs.h"

/* One operation while it is being captured. */
struct capture_part {
    struct pki_request request;
    struct pki_queue queue;
    struct pki_graph *graph;
    struct pki_task *task;      /* collectives: its plan and its blocks; never started */
    struct pki_moment *moments; /* collectives */
    uint32_t nmoments;
    struct captured **xfers; /* [steps of the plan], NULL where a step is none; of a message one; NULL: to this rank itself */
    uint32_t nxfers;
    int scratch;     /* of engine->mem.graph_scratch; -1: none */
    const void *own; /* receive from this rank itself: what its send has */
};

struct pki_capture {
    enum pki_wait_how how;
    int n;
    struct capture_part parts[];
};

/* Operations on words and copies in a queue, the words in batches. */
struct capture_recorder {
    struct pki_queue *queue;
    enum pki_wait_how how;
    pk_result_t result;
    pk_stats_t *stats;
    int n;
    struct pki_signal_op ops[64];
};

void pki_record_flush(struct capture_recorder *r);
void pki_record_open(struct capture_recorder *r, struct captured *c);
void pki_record_send(struct capture_recorder *r, struct captured *c);
void pki_record_done(struct capture_recorder *r, struct captured *c);

/* The transfer that it is about to be. NULL: out of memory, recorded. */
struct captured *pki_captured_new(struct pki_engine *e, struct pki_graph *graph, int peer, bool is_send, const char *name);

/* capture_plan.c: collectives */
pk_result_t pki_capture_plan_check(struct pki_engine *e, struct capture_part *part);
pk_result_t pki_capture_plan_enroll(struct pki_engine *e, struct capture_part *part);
void pki_capture_plan_record(struct pki_engine *e, struct capture_part *part, struct capture_recorder *r);

/* capture_fused.c: of those that are one kernel */
pk_result_t pki_capture_fused_check(struct pki_engine *e);
pk_result_t pki_capture_fused_enroll(struct pki_engine *e, struct capture_part *part);
void pki_capture_fused_record(struct pki_engine *e, struct capture_part *part, struct capture_recorder *r);

/* Both refuse before anything has happened. [ptr, ptr + bytes) is memory of this rank's GPU; */
pk_result_t pki_capture_buffer(struct pki_engine *e, const void *ptr, size_t bytes);
/* and the peer, which will write there, has been told how to map it. */
pk_result_t pki_capture_target(struct pki_engine *e, struct pki_peer *peer, const void *ptr, size_t bytes);

#endif
