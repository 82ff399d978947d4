/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan comes to for one count and type: offsets instead of blocks (quick_program.c), for quick_coll.c to run. */
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
    bool in_lane; /* RECV: its one reader is a REDUCE, which may take it from the lane */
    bool ahead;   /* a transfer that is put ahead of its grant; all others are one EAGER message each */
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
    uint64_t late;   /* a bit a step: copies that nothing waits for, done when peers have been spoken to */
    bool ahead;      /* some step is */
    bool reduces;    /* and some step does, or combines what it receives */
    struct pki_program_step steps[PKI_PROGRAM_STEPS];
    struct pki_place operands[PKI_PROGRAM_OPERANDS];
    uint8_t received_by[PKI_PROGRAM_OPERANDS]; /* 1 + the RECV with in_lane that brings it; 0: it is in memory */
};

/* How far a RECV_REDUCE is, one at a time, whose sum goes back to where its part came from (quick_answer.c). */
struct pki_quick_answer {
    const struct pki_program_step *step; /* NULL: none has begun */
    size_t summed; /* bytes */
    char *place; /* of the transport, where the sum is written as well, or NULL; */
    bool there;  /* or only there, until it has been sent */
};

/* One that runs (quick_coll.c). */
struct pki_quick_run {
    struct pki_engine *e;
    const struct pki_program *program;
    const struct pki_request *request;
    uintptr_t base[3];     /* by enum pki_buffer */
    uint64_t held;         /* RECVs whose message is still in its lane, the oldest there; a bit a step */
    const void **payloads; /* [step]: where */
    struct pki_begun begun;
    struct pki_quick_answer answer;
    bool leaves;           /* the rest has to go the ordinary way */
    unsigned looks;
    size_t came;           /* of the part that was heard of last */
    pki_float_env before;  /* what the thread gets back after reductions */
    pk_result_t result;
};

/* Of the longer of its buffers. */
static inline size_t pki_request_bytes(const struct pki_request *r)
{
    return (r->in_count > r->out_count ? r->in_count : r->out_count) * pki_dtype_bytes(r->dtype);
}

static inline char *pki_quick_at(const struct pki_quick_run *run, struct pki_place place)
{
    return (char *)(run->base[place.buffer] + place.offset);
}

enum pki_quick_found { PKI_QUICK_NOTHING, PKI_QUICK_PART, PKI_QUICK_IN_PLACE };

/* quick_ahead.c: steps that are put ahead of their grant. False: not yet. */
bool pki_quick_send_ahead(struct pki_quick_run *run, const struct pki_program_step *step);
/* IN_PLACE: it is where it belongs, and not combined yet. */
enum pki_quick_found pki_quick_recv_ahead(struct pki_quick_run *run, const struct pki_program_step *step);
/* quick_answer.c. So many bytes of this step's landing place have come: perhaps they are summed up now. Not all of them. */
void pki_quick_sum_part(struct pki_quick_run *run, const struct pki_program_step *step, size_t came);
/* All of it has come. False: it is to be summed up as any other step is. */
bool pki_quick_sum_rest(struct pki_quick_run *run, const struct pki_program_step *step);
/* Where this SEND finds what it sends; and behind it, sent or not. */
char *pki_quick_answer_at(struct pki_quick_run *run, const struct pki_program_step *step);
void pki_quick_answer_ends(struct pki_quick_run *run, const struct pki_program_step *step);
bool pki_quick_has_to_look(struct pki_quick_run *run); /* is it time for what connections have brought and taken? */
void pki_quick_give_up(struct pki_quick_run *run); /* the engine has failed */

/* The program of a plan for this request, kept beside it. NULL: it cannot be done in this way. */
const struct pki_program *pki_program_of(struct pki_engine *engine, struct pki_plan_entry *entry, const struct pki_request *request);

#endif
