/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In-network allreduce: a rank's connection to an aggregator, and the allreduces that go through it, one after the other and in
 * the same order on all ranks. Nothing here waits but open, and stop for what threads do. The engine polls with its lock held.
 */
#ifndef PKI_SWITCHML_SWITCHML_H
#define PKI_SWITCHML_SWITCHML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pickle/base.h"
#include "switchml/session.h"
#include "util/socket.h"

struct pki_switchml;

/* Does it sum such elements? */
bool pki_switchml_sums(pk_dtype_t dtype, pk_op_t op);

struct pki_switchml_join {
    const char *where; /* PK_SWITCHML */
    int rank, size;
    unsigned char id[PKI_SWITCHML_ID_BYTES]; /* of the communicator */
    unsigned char key[PKI_SWITCHML_KEY_BYTES];
    struct pki_wait wait;
};

/* Find the aggregator, prove the secret, get a place in its memory. Errors are recorded and name it. */
pk_result_t pki_switchml_open(const struct pki_switchml_join *join, struct pki_switchml **out);
void pki_switchml_close(struct pki_switchml *s); /* NULL is legal */
/* Give up the place at the aggregator, and what is at work: begin only takes notes from then on. */
void pki_switchml_leave(struct pki_switchml *s);

/* The sum of `count` elements of all ranks, PK_F32 or PK_INT32, into `out` (which may be `in`). None is at work. `number` and
 * `sig`: the same on ranks that call the same, in the same order; of no elements nothing is sent, so nothing else tells whether
 * the others have called that too. PK_ERR_MEMORY, PK_ERR_UNSUPPORTED, recorded. */
pk_result_t pki_switchml_begin(struct pki_switchml *s, const void *in, void *out, size_t count, pk_dtype_t dtype, uint64_t number,
                               uint32_t sig);
/* Go on. *moved: a packet has come. *done: all have come, and the units that do not fit are as they were in `out` where that is
 * `in`, else not written. PK_ERR_MISMATCH: a rank calls something else. Errors are recorded. */
pk_result_t pki_switchml_poll(struct pki_switchml *s, bool *moved, bool *done);

/* From now on no thread reads or writes the buffers of an allreduce that has not ended. It cannot go on. */
void pki_switchml_stop(struct pki_switchml *s);

/* Of the allreduce that has ended: units for which no scale exists, the same on all ranks, and copies of these, one behind the
 * other. A unit has pki_switchml_unit elements, and the last one is filled up with zeros. */
size_t pki_switchml_unit(const struct pki_switchml *s);
size_t pki_switchml_unfit(const struct pki_switchml *s);
void pki_switchml_gather(const struct pki_switchml *s, float *units);
void pki_switchml_scatter(const struct pki_switchml *s, const float *units);

/* Of the allreduce that was begun last, ended or not: how many units it has; for each `rank` where its sums are here, else
 * PKI_SWITCHML_NOBODY. Then, where `owners` has the least of all ranks, `out` becomes what this rank contributes to a sum
 * of `out` over all ranks: the owner has the sums, the others zeros, and where nobody has them each what it has in `in`. */
#define PKI_SWITCHML_NOBODY INT32_MAX
size_t pki_switchml_units(const struct pki_switchml *s);
void pki_switchml_owners(const struct pki_switchml *s, int rank, int32_t *owners);
void pki_switchml_contribute(const struct pki_switchml *s, int rank, const int32_t *owners);

/* How long no packet has come, in ns. */
uint64_t pki_switchml_idle_ns(const struct pki_switchml *s, uint64_t now);
/* What to sleep at, beside a timer of a millisecond; negative: this rank has left. */
int pki_switchml_fd(const struct pki_switchml *s);
/* "aggregator 10.0.0.1:48864", and which error of its packets has passed last. */
const char *pki_switchml_name(const struct pki_switchml *s);

#endif
