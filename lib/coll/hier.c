/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/hier.h"

#include "coll/ring.h"

void pki_hier_sum_begin(struct pki_sum *sum, struct pki_plan *plan, const struct pki_site *site, struct pki_ref part,
                        uint32_t scratch, int others)
{
    pki_sum_begin(sum, plan, site->ranks + others);
    pki_sum_add(sum, site->place, part, PKI_NO_STEP);
    for (int hop = 1; hop < site->ranks; hop++) {
        int from = pki_before(site->place, hop, site->ranks);
        struct pki_ref theirs = pki_scratch(scratch + (uint32_t)(from < site->place ? from : from - 1), part);

        pki_sum_add(sum, from, theirs, pki_plan_recv(plan, pki_site_rank(site, site->host, from), theirs));
    }
}

void pki_hier_after(struct pki_plan *plan, uint32_t step)
{
    if (step != PKI_NO_STEP)
        pki_plan_after(plan, step);
}

void pki_hier_send_around(struct pki_plan *plan, const struct pki_site *site, struct pki_ref block, uint32_t ready)
{
    for (int hop = 1; hop < site->ranks; hop++) {
        pki_plan_send(plan, pki_site_rank(site, site->host, pki_after(site->place, hop, site->ranks)), block);
        pki_hier_after(plan, ready);
    }
}
