/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The aggregator's side of the in-network allreduce, of one job's workers: what a packet changes and who gets a reply. Pure: no
 * socket, no clock. A slot has two sets of values. A worker's packet for one set tells that it has the sums of the other, whose
 * turn with this worker is over.
 */
#ifndef PKI_SWITCHML_AGGREGATOR_H
#define PKI_SWITCHML_AGGREGATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "pickle/base.h"
#include "switchml/packet.h"

enum pki_switchml_verdict {
    PKI_SWITCHML_WAIT,      /* taken; others have to come first */
    PKI_SWITCHML_TO_ALL,    /* taken, and it was the last one: the sums go to all workers */
    PKI_SWITCHML_TO_ONE,    /* it was there before, and the sums are complete: they go to this worker again */
    PKI_SWITCHML_AGAIN,     /* it was there before, and the sums are not complete */
    PKI_SWITCHML_STALE,     /* older than what this worker has sent for the slot: the network kept it too long */
    PKI_SWITCHML_DISAGREES, /* another packet than the other workers' of this set: they do not call the same operations */
    PKI_SWITCHML_OUTSIDE,   /* no slot of this job */
    PKI_SWITCHML_VERDICTS
};

struct pki_switchml_set {
    uint32_t has;    /* bit w: worker w's values are in */
    uint8_t missing; /* workers; 0: none, or nobody has come */
    uint8_t job;
    int8_t exponents[2];
    uint32_t id;
};

struct pki_switchml_newest { /* what a worker has sent for a slot */
    uint64_t job;            /* counted on */
    uint32_t id;
    bool any;
};

struct pki_switchml_aggregator {
    uint32_t workers, slots, elements;
    struct pki_switchml_set *sets;      /* [2 * slot + set] */
    struct pki_switchml_newest *newest; /* [worker * slots + slot] */
    uint64_t *jobs;                     /* [worker] its newest job, counted on: 0 before the first */
    uint32_t *values;                   /* [(set * slots + slot) * elements] */
};

/* PK_ERR_MEMORY. Any number of elements: what packets carry is packet.h's affair. */
pk_result_t pki_switchml_aggregator_init(struct pki_switchml_aggregator *aggregator, uint32_t workers, uint32_t slots,
                                         uint32_t elements);
void pki_switchml_aggregator_close(struct pki_switchml_aggregator *aggregator);

/* A packet of `worker` with `values`, in network byte order. With TO_ALL and TO_ONE *packet becomes the reply's header and *sums
 * points to its values, in the host's order, which stay until the workers' next packets for the slot; its job and id are those of
 * the packet that has come. */
enum pki_switchml_verdict pki_switchml_aggregate(struct pki_switchml_aggregator *aggregator, uint32_t worker,
                                                 struct pki_switchml_packet *packet, const void *values, const uint32_t **sums);

#endif
