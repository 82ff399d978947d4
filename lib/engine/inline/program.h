/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan comes to for one count and type: offsets instead of blocks (inline/program.c), for inline/coll.c to run. */
#ifndef PKI_PROGRAM_H
#define PKI_PROGRAM_H

#include "engine/inline/inline.h"
#include "util/dtype.h"

#define PKI_PROGRAM_STEPS 64u /* bits of a word */

struct pki_place {
    uint32_t buffer, offset; /* enum pki_buffer, bytes */
};

struct pki_program_step {
    uint8_t kind;
    bool by_ctrl; /* RECV: its one reader is a REDUCE, which may take it from the control channel */
    uint16_t index;
    uint16_t first_operand, operands;
    int32_t peer;
    uint32_t bytes, count;
    pk_op_t op;
    struct pki_place dst, src, landing;
    uint64_t deps;
};

struct pki_program {
    struct pki_request made_for;
    bool fits;
    uint32_t sig, n;
    uint32_t stride;      /* of a block of scratch memory; */
    size_t scratch_bytes; /* all of them */
    uint64_t deferred;    /* a bit a step: copies that nothing waits for, done when peers have been spoken to */
    bool reduces;         /* some step does, or combines what it receives */
    struct pki_program_step steps[PKI_PROGRAM_STEPS];
    struct pki_place operands[PKI_PROGRAM_OPERANDS];
    uint8_t received_by[PKI_PROGRAM_OPERANDS]; /* 1 + the RECV with by_ctrl that brings it; 0: it is in memory */
};

/* One that runs (inline/coll.c). */
struct pki_inline_run {
    struct pki_engine *e;
    const struct pki_program *program;
    const struct pki_request *request;
    uintptr_t base[3];     /* by enum pki_buffer */
    uint64_t held;         /* RECVs whose message is still in its control channel, the oldest there; a bit a step */
    const void **payloads; /* [step]: where */
    struct pki_begun begun;
    pki_float_env before; /* what the thread gets back after reductions */
    pk_result_t result;
};

/* Of the longer of its buffers. */
static inline size_t pki_request_bytes(const struct pki_request *r)
{
    return (r->in_count > r->out_count ? r->in_count : r->out_count) * pki_dtype_bytes(r->dtype);
}

static inline char *pki_inline_at(const struct pki_inline_run *run, struct pki_place place)
{
    return (char *)(run->base[place.buffer] + place.offset);
}

/* The program of a plan for this request, kept beside it. NULL: it cannot be done in this way. */
const struct pki_program *pki_program_of(struct pki_engine *engine, struct pki_plan_entry *entry,
                                         const struct pki_request *request);

#endif
