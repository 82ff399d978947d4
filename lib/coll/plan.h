/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: what one rank does in a collective, as an array of steps on blocks. Pure functions of (rank, size); no memory addresses, no
 * bytes, no I/O. The engine runs them on any kind of memory and cuts blocks into chunks: a step may do chunk c when the steps it
 * depends on have done c and it has itself done c - 1.
 *
 * Between two ranks the k-th SEND of a plan meets the k-th RECV or RECV_REDUCE of the other's plan, in the order of the arrays.
 */
#ifndef PKI_PLAN_H
#define PKI_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pickle/base.h"

enum pki_step_kind {
    PKI_STEP_SEND,        /* src to peer */
    PKI_STEP_RECV,        /* dst from peer */
    PKI_STEP_RECV_REDUCE, /* dst = src (+) what comes from peer; `landing` is a scratch block the bytes may land in first */
    PKI_STEP_COPY,        /* dst = src */
    PKI_STEP_REDUCE,      /* dst = operands in their order, one pass, one rounding */
    PKI_STEP_FUSED        /* a kernel that talks to its peers itself */
};

enum pki_buffer { PKI_BUF_IN, PKI_BUF_OUT, PKI_BUF_SCRATCH };

/* A block. IN and OUT are cut as plan->in_blocks and out_blocks say. A scratch block is as long as the IN or OUT block named by
 * `like`. */
struct pki_ref {
    uint8_t buffer;      /* enum pki_buffer */
    uint8_t like_buffer; /* scratch: PKI_BUF_IN or PKI_BUF_OUT */
    uint16_t index;
    uint16_t like; /* scratch: index of the block it is as long as */
};

struct pki_step {
    uint8_t kind;
    int32_t peer;        /* SEND, RECV, RECV_REDUCE */
    uint32_t pair_index; /* how many transfers to (or from) this peer come before it in the plan */
    struct pki_ref dst;
    struct pki_ref src;
    struct pki_ref landing; /* RECV_REDUCE */
    uint32_t first_operand; /* REDUCE: plan->operands[first_operand .. + operands - 1] */
    uint32_t operands;
    uint32_t first_dep; /* plan->deps[first_dep .. + deps - 1]: indices of earlier steps */
    uint32_t deps;
};

struct pki_plan {
    struct pki_step *steps;
    uint32_t nsteps, steps_cap;
    uint32_t *deps;
    uint32_t ndeps, deps_cap;
    struct pki_ref *operands;
    uint32_t noperands, operands_cap;
    uint32_t in_blocks, out_blocks; /* 1: the whole buffer; size: one a rank */
    uint32_t scratch_blocks;        /* each as long as the longest block */
    int rank, size;
    bool failed; /* out of memory while building */
    const char *algorithm;
};

/* What collectives there are. The values of pk_op_kind_t where both have one. */
enum pki_coll { PKI_COLL_ALLGATHER = 2, PKI_COLL_ALLREDUCE = 3, PKI_COLL_END };

/* An algorithm: one file, one line in list.c. */
struct pki_algorithm {
    const char *name; /* "direct", "ring" */
    enum pki_coll coll;
    /* Append this rank's steps to an empty plan. `in_place`: IN is the part of OUT that the operation says. */
    void (*build)(struct pki_plan *plan, int rank, int size, bool in_place);
};

/* All of them, NULL at the end; and one by name, NULL if there is none. */
extern const struct pki_algorithm *const pki_algorithms[];
const struct pki_algorithm *pki_algorithm_find(enum pki_coll coll, const char *name);

/* Make and free a whole plan. PK_ERR_MEMORY. */
pk_result_t pki_plan_make(const struct pki_algorithm *algorithm, int rank, int size, bool in_place, struct pki_plan **plan);
void pki_plan_free(struct pki_plan *plan);

/* Builders, for algorithms. Each appends a step and returns its index; memory errors set plan->failed. */
struct pki_ref pki_in(uint32_t index);
struct pki_ref pki_out(uint32_t index);
struct pki_ref pki_scratch(uint32_t index, struct pki_ref like);
uint32_t pki_plan_send(struct pki_plan *plan, int peer, struct pki_ref src);
uint32_t pki_plan_recv(struct pki_plan *plan, int peer, struct pki_ref dst);
uint32_t pki_plan_recv_reduce(struct pki_plan *plan, int peer, struct pki_ref dst, struct pki_ref src, struct pki_ref landing);
uint32_t pki_plan_copy(struct pki_plan *plan, struct pki_ref dst, struct pki_ref src);
uint32_t pki_plan_reduce(struct pki_plan *plan, struct pki_ref dst, const struct pki_ref *operands, uint32_t n);
/* The step appended last waits for step `dep` too. */
void pki_plan_after(struct pki_plan *plan, uint32_t dep);

/* How `total` elements are cut into `blocks`: the first total % blocks are one longer. */
void pki_block_range(size_t total, uint32_t blocks, uint32_t index, size_t *first, size_t *count);

#endif
