/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of captured operations share. */
#ifndef PKI_ENGINE_CAPTURE_H
#define PKI_ENGINE_CAPTURE_H

#include "coll/order.h"
#include "engine/internal.h"

/* One transfer of a captured operation. Lives until the communicator is closed: nobody tells when a graph is destroyed. */
struct captured {
    struct pki_list node; /* engine->captured */
    struct pki_peer *peer;
    struct pki_gate_slot *slot;
    int own_slot; /* receive: index in peer->gates */
    bool is_send;
    uint8_t flags;
    uint16_t index;
    uint32_t sig;
    uint64_t op;
    char *addr;
    size_t bytes;
    uint64_t remote;
    const char *name;
    struct pki_put put;
};

/* One operation while it is being captured. */
struct capture_part {
    struct pki_request request;
    struct pki_queue queue;
    struct pki_task *task;      /* collectives: its plan and its blocks; never started */
    struct pki_moment *moments; /* collectives */
    uint32_t nmoments;
    struct captured **xfers;    /* [steps of the plan], NULL where a step is none; send, receive: one */
    uint32_t nxfers;
    bool kept; /* the scratch memory belongs to the communicator now */
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
    struct pki_word_op ops[64];
};

void pki_record_flush(struct capture_recorder *r);
void pki_record_open(struct capture_recorder *r, struct captured *c);
void pki_record_send(struct capture_recorder *r, struct captured *c);
void pki_record_done(struct capture_recorder *r, struct captured *c);

/* The transfer that it is about to be. NULL: out of memory, recorded. */
struct captured *pki_captured_new(struct pki_engine *e, int peer, bool is_send, const char *name);

/* capture_plan.c: collectives */
pk_result_t pki_capture_plan_check(struct pki_engine *e, struct capture_part *part);
pk_result_t pki_capture_plan_enroll(struct pki_engine *e, struct capture_part *part);
void pki_capture_plan_record(struct pki_engine *e, struct capture_part *part, struct capture_recorder *r);

/* Both refuse before anything has happened. [ptr, ptr + bytes) is memory of this rank's GPU; */
pk_result_t pki_capture_buffer(struct pki_engine *e, const void *ptr, size_t bytes);
/* and the peer, which will write there, has been told how to map it. */
pk_result_t pki_capture_target(struct pki_engine *e, struct pki_peer *peer, const void *ptr, size_t bytes);

#endif
