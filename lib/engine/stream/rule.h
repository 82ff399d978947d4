/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the copies of a call's messages go, of those that this side moves: as a pure function of what the call knows. In the
 * stream they are put so: first this side's words for what the peers move, then the copies as decided here, then the waits for
 * what the peers move.
 *
 * A copy whose peer is not ready stands in its stream until it is, and whatever is behind it. So only one may, or a row that
 * belongs to one wait; several would stand behind one another's peers, who may stand behind one another too, in another order.
 * (In a collective that ends on no rank before all ranks have come to it, they may: collective.c.) What may not goes beside the
 * stream's copies, where each is moved when its own peer is ready: by a kernel. tests/model has the proof, docs/design/0035 the
 * measurements.
 */
#ifndef PKI_ENGINE_STREAM_RULE_H
#define PKI_ENGINE_STREAM_RULE_H

#include <stdbool.h>

struct pki_rule_part {
    bool seen;      /* the peer is ready */
    bool follows;   /* it is ready when the part before this one is */
    bool by_kernel; /* rather than by a copy engine, where kernels may be used: it is short, say */
};

/* Copy channels of the process on this GPU: a stream holds one while any of its copies has not ended. */
struct pki_rule_channels {
    int left;  /* that the library may take for other streams */
    bool held; /* this stream has one */
};

enum pki_rule_place {
    PKI_RULE_COPY_FIRST, /* in the stream, in front of those that wait */
    PKI_RULE_BESIDE,
    PKI_RULE_COPY /* in the stream, behind its wait; not where anything that waits is BESIDE */
};

/* kernels: what is BESIDE is moved by one. */
void pki_rule(const struct pki_rule_part *parts, int n, bool kernels, struct pki_rule_channels *channels,
              enum pki_rule_place *places);

#endif
