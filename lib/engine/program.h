/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan comes to for one count and type: offsets instead of blocks (inline_program.c), for inline_coll.c to run. */
#ifndef PKI_PROGRAM_H
#define PKI_PROGRAM_H

#include "engine/internal.h"
#include "util/dtype.h"

#define PKI_PROGRAM_STEPS 64u /* bits of a word */
#define PKI_PROGRAM_OPERANDS 128u

struct pki_place {
    uint32_t buffer, offset; /* enum pki_buffer, bytes */
};

struct pki_program_step {
    uint8_t kind;
    bool by_ctrl; /* RECV: its one reader is a REDUCE, which may take it from the control channel */
    bool eager_put; /* a transfer that is put before its CTS, */
    bool either;  /* or may be; all others are one EAGER message each */
    bool answers;  /* RECV_REDUCE: the step behind it sends the peer what it makes. And so does the peer, */
    bool answered; /* SEND: with this */
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
    uint64_t deferred; /* a bit a step: copies that nothing waits for, done when peers have been spoken to */
    bool eager_put;  /* some step is */
    bool reduces;    /* and some step does, or combines what it receives */
    uint32_t either_bytes; /* of the longest one of these steps; 0: none */
    struct pki_program_step steps[PKI_PROGRAM_STEPS];
    struct pki_place operands[PKI_PROGRAM_OPERANDS];
    uint8_t received_by[PKI_PROGRAM_OPERANDS]; /* 1 + the RECV with by_ctrl that brings it; 0: it is in memory */
};

/* How far a RECV_REDUCE is, one at a time, whose sum goes back to where its part came from (inline_reply.c). */
struct pki_inline_reply {
    const struct pki_program_step *step; /* NULL: none has begun */
    size_t summed; /* bytes */
    char *place; /* of the transport, where the sum is written as well, or NULL; */
    bool there;  /* or only there, until it has been sent */
};

/* One that runs (inline_coll.c). */
struct pki_inline_run {
    struct pki_engine *e;
    const struct pki_program *program;
    const struct pki_request *request;
    uintptr_t base[3];     /* by enum pki_buffer */
    uint64_t held;         /* RECVs whose message is still in its control channel, the oldest there; a bit a step */
    const void **payloads; /* [step]: where */
    struct pki_begun begun;
    struct pki_inline_reply answer;
    bool leaves;           /* the rest has to go the ordinary way */
    uint64_t in_chunks;    /* RECVs that come in chunks, as their peer has been heard to say; a bit a step */
    unsigned polls;
    size_t came;           /* of the part that was heard of last */
    pki_float_env before;  /* what the thread gets back after reductions */
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

enum pki_inline_found { PKI_INLINE_NOTHING, PKI_INLINE_PART, PKI_INLINE_IN_PLACE, PKI_INLINE_MESSAGE };

/* inline_eager_put.c: steps that are put before their CTS. False: not yet. */
bool pki_inline_send_eager_put(struct pki_inline_run *run, const struct pki_program_step *step);
/* IN_PLACE: it is where it belongs, and not combined yet. MESSAGE: it has come whole, and is the next in the control channel or has been kept. */
enum pki_inline_found pki_inline_recv_eager_put(struct pki_inline_run *run, const struct pki_program_step *step);
/* inline_reply.c. So many bytes of this step's landing place have come: perhaps they are summed up now. Not all of them. */
void pki_inline_sum_part(struct pki_inline_run *run, const struct pki_program_step *step, size_t came);
/* All of it has come. False: it is to be summed up as any other step is. */
bool pki_inline_sum_rest(struct pki_inline_run *run, const struct pki_program_step *step);
/* Where this SEND finds what it sends; and behind it, sent or not. */
char *pki_inline_reply_at(struct pki_inline_run *run, const struct pki_program_step *step);
void pki_inline_reply_ends(struct pki_inline_run *run, const struct pki_program_step *step);
bool pki_inline_has_to_poll(struct pki_inline_run *run); /* is it time for what connections have brought and taken? */
void pki_inline_give_up(struct pki_inline_run *run); /* the engine has failed */

/* The program of a plan for this request, kept beside it. NULL: it cannot be done in this way. */
const struct pki_program *pki_program_of(struct pki_engine *engine, struct pki_plan_entry *entry, const struct pki_request *request);

#endif
