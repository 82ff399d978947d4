/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What plans across hosts share. A host's ranks sum up or gather among themselves; between hosts each block goes once, carried by
 * one rank of either host: by several of a host at the same time (`hier`), or, where hops cost more than bytes, by one for all
 * (`leader`).
 */
#ifndef PKI_HIER_H
#define PKI_HIER_H

#include "coll/hosts.h"
#include "coll/sum.h"

/*
 * Begin a sum of every rank's `part` on this host, in the order of places, and of `others` operands that the caller names from
 * position site->ranks on. What comes from this host's ranks lands in scratch blocks `scratch` to scratch + site->ranks - 2.
 */
void pki_hier_sum_begin(struct pki_sum *sum, struct pki_plan *plan, const struct pki_site *site, struct pki_ref part,
                        uint32_t scratch, int others);

/* The step appended last waits for `step`, unless that is PKI_NO_STEP. */
void pki_hier_after(struct pki_plan *plan, uint32_t step);

/* Send `block` to all other ranks of this host, when `ready` has ended. */
void pki_hier_send_around(struct pki_plan *plan, const struct pki_site *site, struct pki_ref block, uint32_t ready);

#endif
