/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: what one rank does in a collective, as an array of steps on blocks. Pure functions of (rank, size, root, hosts); no
 * memory addresses, no bytes, no I/O. How long blocks are is in a layout, which comes with the operation: so v-forms have the
 * plans of the others. The engine runs plans on any kind of memory and cuts what a step works on into chunks. What plans rely on:
 *
 * - Chunks have one length for all steps of an operation: chunk c covers the same offsets of whatever a step works on.
 * - A step may do chunk c when the steps it depends on have done chunk c (or are complete) and it has itself done c - 1; a
 *   `whole` step may do nothing before they are all complete.
 * - A step, even an empty one, is complete only after all steps it depends on are complete.
 * - Between two ranks the k-th SEND of a plan meets the k-th RECV or RECV_REDUCE of the other's plan, in the order of the arrays.
 *   Both are as long. An empty transfer happens too: the receive does not end before the send has started (barriers are made of
 *   it).
 * - In-place is each rank's own affair: it changes neither the transfers nor their order.
 */
#ifndef PKI_PLAN_H
#define PKI_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pickle/base.h"
#include "tuning/tuning.h"

enum pki_step_kind {
    PKI_STEP_SEND,        /* src to peer */
    PKI_STEP_RECV,        /* dst from peer */
    PKI_STEP_RECV_REDUCE, /* dst = src (+) what comes from peer; `landing` is a scratch block the bytes may land in first */
    PKI_STEP_COPY,        /* dst = src */
    PKI_STEP_REDUCE,      /* dst = operands in their order, one pass, one rounding */
    PKI_STEP_FUSED,       /* a kernel that talks to its peers itself */
    PKI_STEP_SWITCH       /* an aggregator in the network, which all ranks send to, makes the sums */
};

enum pki_buffer { PKI_BUF_IN, PKI_BUF_OUT, PKI_BUF_SCRATCH };

/*
 * A block, or a stretch of blocks that lie side by side. IN and OUT are cut as plan->in_blocks and out_blocks say, also on ranks
 * that have no such buffer: there scratch alone is like it. Scratch block `index` mirrors IN or OUT from block `base` on: what is
 * like block `base` begins at its first byte.
 */
struct pki_ref {
    uint8_t buffer;      /* enum pki_buffer */
    uint8_t like_buffer; /* scratch: PKI_BUF_IN or PKI_BUF_OUT */
    uint16_t index;
    uint16_t like; /* scratch: index of the first block it is as long as */
    uint16_t more; /* blocks behind the first; 0: one block */
    uint16_t base; /* scratch: <= like */
};

struct pki_step {
    uint8_t kind;
    bool whole;          /* wait for the end of every step in deps, not only for its chunk */
    bool final;          /* REDUCE, RECV_REDUCE: dst then has the parts of all ranks; an average is divided here, once */
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

struct pki_hosts; /* hosts.h */

struct pki_plan {
    struct pki_step *steps;
    uint32_t nsteps, steps_cap;
    uint32_t *deps;
    uint32_t ndeps, deps_cap;
    struct pki_ref *operands;
    uint32_t noperands, operands_cap;
    uint32_t in_blocks, out_blocks; /* 1: the whole buffer; size: one a rank; and each of these is `pieces` */
    uint32_t pieces;
    uint32_t scratch_blocks;       /* each as long as pki_layout_scratch says */
    int rank, size, root;          /* root: 0 where the collective has none */
    bool failed;                   /* out of memory while building */
    const struct pki_hosts *hosts; /* where the ranks sit, of those who made the plan; NULL: all on one host */
    /* In a CUDA stream transfers go in rounds (order.h): a rank's n-th send meets the n-th receive of its peer, and neither
     * depends on a transfer of round n or later. A rank's link carries one at a time either way, and local work goes on beside
     * those of later rounds. */
    bool ordered;
    const char *algorithm;
};

/* What collectives there are. The values of pk_op_kind_t where both have one. */
enum pki_coll {
    PKI_COLL_ALLGATHER = 2,      /* in place: IN is block `rank` of OUT */
    PKI_COLL_ALLREDUCE = 3,      /* in place: IN is OUT */
    PKI_COLL_REDUCE_SCATTER = 4, /* in place: OUT is block `rank` of IN */
    PKI_COLL_BROADCAST = 5,      /* in place: IN is OUT, at the root; others have no IN */
    PKI_COLL_REDUCE = 6,         /* in place: IN is OUT, at the root; others have no OUT */
    PKI_COLL_ALLTOALL = 7,       /* in place: IN is OUT */
    PKI_COLL_GATHER = 8,         /* in place: IN is block `rank` of OUT, at the root; others have no OUT */
    PKI_COLL_SCATTER = 9,        /* in place: OUT is block `rank` of IN, at the root; others have no IN */
    PKI_COLL_BARRIER = 10,       /* IN and OUT are empty */
    PKI_COLL_ALLGATHERV = 11,
    PKI_COLL_ALLTOALLV = 12,
    PKI_COLL_GATHERV = 13,
    PKI_COLL_SCATTERV = 14,
    PKI_COLL_END
};

/* What each collective is, apart from how it is done: who has which buffer, how long it is, what "in place" means. */
enum pki_in_place {
    PKI_PLACE_SAME,    /* IN is OUT */
    PKI_PLACE_IN_PART, /* IN is block `rank` of OUT */
    PKI_PLACE_OUT_PART /* OUT is block `rank` of IN */
};

struct pki_shape {
    const char *name;
    bool in_many, out_many; /* a block a rank; else one, of `count` elements */
    bool rooted;
    bool in_at_root, out_at_root; /* the root alone has this buffer */
    bool reduces;
    bool counts; /* a v-form: the lengths of the blocks are given one by one */
    enum pki_in_place place;
};

/* NULL: there is no such collective. */
const struct pki_shape *pki_coll_shape(unsigned coll);

static inline bool pki_shape_has_in(const struct pki_shape *shape, int rank, int root)
{
    return !shape->in_at_root || rank == root;
}

static inline bool pki_shape_has_out(const struct pki_shape *shape, int rank, int root)
{
    return !shape->out_at_root || rank == root;
}

/* An algorithm: one file; a line in list.c for each collective. */
struct pki_algorithm {
    const char *name; /* "direct", "ring" */
    enum pki_coll coll;
    /* One of the two. Append this rank's steps to an empty plan. `in_place` as enum pki_coll says; for a collective with a
     * root it counts there alone. */
    void (*build)(struct pki_plan *plan, int rank, int size, bool in_place);
    void (*build_rooted)(struct pki_plan *plan, int rank, int size, int root, bool in_place);
};

/* All of them, NULL at the end; and one by name, NULL if there is none. */
extern const struct pki_algorithm *const pki_algorithms[];
const struct pki_algorithm *pki_algorithm_find(enum pki_coll coll, const char *name);

/* The collective as one FUSED step (fused.c), NULL where there is none: for GPUs alone. */
const struct pki_algorithm *pki_fused_algorithm(enum pki_coll coll);
/* The allreduce as one SWITCH step (switchml.c): for communicators with an aggregator alone. */
extern const struct pki_algorithm pki_switchml_algorithm;

/* Make and free a whole plan. `root` is of no account without build_rooted. `hosts` has to outlive the plan;
 * NULL, and those without: all ranks are on one host. PK_ERR_MEMORY, PK_ERR_UNSUPPORTED (too many ranks). */
pk_result_t pki_plan_make(const struct pki_algorithm *algorithm, const struct pki_hosts *hosts, int rank, int size, int root,
                          bool in_place, struct pki_plan **plan);
void pki_plan_free(struct pki_plan *plan);

/*
 * How long the blocks of one operation are on one rank, in elements. A buffer without counts is cut by pki_block_range: all of IN
 * is count elements for allreduce, reduce, broadcast, gather and allgather, size * count for reduce_scatter, alltoall and
 * scatter; all of OUT is count for allreduce, reduce, broadcast, reduce_scatter and scatter, size * count for allgather, alltoall
 * and gather: on every rank, whether it has the buffer or not. V-forms have counts and offsets where the buffer has more than one
 * block and the rank has it. Their plans name no stretches.
 */
struct pki_layout {
    size_t in_total, out_total;             /* without counts */
    const size_t *in_counts, *in_offsets;   /* [in_blocks], or both NULL */
    const size_t *out_counts, *out_offsets; /* [out_blocks], or both NULL */
};

/* Where what `ref` names begins, counted from the start of IN, of OUT or of its scratch block, and how long it is. */
void pki_layout_block(const struct pki_layout *layout, const struct pki_plan *plan, struct pki_ref ref, size_t *first,
                      size_t *count);
/* Let `layout` have counts and offsets of its own, of `blocks` blocks each. *memory: to be freed when it is no longer used; NULL
 * if it has none. PK_ERR_MEMORY: nothing has changed. */
pk_result_t pki_layout_own(struct pki_layout *layout, size_t blocks, size_t **memory);
/* The length that every scratch block has to have. Looks at all steps. */
size_t pki_layout_scratch(const struct pki_layout *layout, const struct pki_plan *plan);

/* Builders, for algorithms. Each appends a step and returns its index; memory errors set plan->failed. */
struct pki_ref pki_in(uint32_t index);
struct pki_ref pki_out(uint32_t index);
struct pki_ref pki_stretch(struct pki_ref first, uint32_t blocks); /* of IN or OUT */
struct pki_ref pki_scratch(uint32_t index, struct pki_ref like);   /* begins where the scratch block does */
struct pki_ref pki_scratch_at(uint32_t index, uint32_t base, struct pki_ref like);
/* How IN and OUT are cut, where it is not as the collective's name says. Before the first step. */
void pki_plan_cut(struct pki_plan *plan, uint32_t in_blocks, uint32_t out_blocks);
/* The same, and each of these blocks in `pieces`, which steps then name: piece p of block b is block b * pieces + p. */
void pki_plan_cut_finely(struct pki_plan *plan, uint32_t in_blocks, uint32_t out_blocks, uint32_t pieces);
uint32_t pki_plan_send(struct pki_plan *plan, int peer, struct pki_ref src);
uint32_t pki_plan_recv(struct pki_plan *plan, int peer, struct pki_ref dst);
uint32_t pki_plan_recv_reduce(struct pki_plan *plan, int peer, struct pki_ref dst, struct pki_ref src, struct pki_ref landing);
uint32_t pki_plan_copy(struct pki_plan *plan, struct pki_ref dst, struct pki_ref src);
uint32_t pki_plan_fused(struct pki_plan *plan);  /* all of IN to all of OUT */
uint32_t pki_plan_switch(struct pki_plan *plan); /* likewise */
uint32_t pki_plan_reduce(struct pki_plan *plan, struct pki_ref dst, const struct pki_ref *operands, uint32_t n);
/* The step appended last waits for step `dep` too: chunk for chunk, or (and then for all others in the same way) for the whole of
 * it. The first is right where what it works on begins no later than what `dep` works on; the second where it begins within. */
void pki_plan_after(struct pki_plan *plan, uint32_t dep);
void pki_plan_after_whole(struct pki_plan *plan, uint32_t dep);
/* What step `step` makes has the parts of all ranks. */
void pki_plan_final(struct pki_plan *plan, uint32_t step);

/* How `total` elements are cut into `blocks`: the first total % blocks are one longer. */
void pki_block_range(size_t total, uint32_t blocks, uint32_t index, size_t *first, size_t *count);
/* And a long block into pieces: they begin at multiples of PKI_PIECE_GRAIN elements, so that GPUs may work on whole vectors;
 * the last one has what is left over. A short block is cut as above. */
void pki_piece_range(size_t total, uint32_t pieces, uint32_t index, size_t *first, size_t *count);

#endif
