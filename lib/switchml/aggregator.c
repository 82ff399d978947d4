/* SPDX-License-Identifier: Apache-2.0 */
#include "switchml/aggregator.h"

#include <stdlib.h>
#include <string.h>

#include "switchml/sums.h"

pk_result_t pki_switchml_aggregator_init(struct pki_switchml_aggregator *a, uint32_t workers, uint32_t slots, uint32_t elements)
{
    *a = (struct pki_switchml_aggregator){ .workers = workers, .slots = slots, .elements = elements };
    a->sets = calloc(2 * (size_t)slots, sizeof *a->sets);
    a->newest = calloc((size_t)workers * slots, sizeof *a->newest);
    a->jobs = calloc(workers, sizeof *a->jobs);
    a->values = calloc(2 * (size_t)slots * elements, sizeof *a->values);
    if (a->sets != NULL && a->newest != NULL && a->jobs != NULL && a->values != NULL)
        return PK_OK;
    pki_switchml_aggregator_close(a);
    return PK_ERR_MEMORY;
}

void pki_switchml_aggregator_close(struct pki_switchml_aggregator *a)
{
    free(a->sets);
    free(a->newest);
    free(a->jobs);
    free(a->values);
    a->sets = NULL;
    a->newest = NULL;
    a->jobs = NULL;
    a->values = NULL;
}

/* Packets count jobs modulo 256. A worker's jobs follow one another, so that its packets are of jobs near its newest one; a
 * slot may be used again only many jobs later. */
static uint64_t job_of(const struct pki_switchml_aggregator *a, uint32_t worker, const struct pki_switchml_packet *p)
{
    const uint64_t newest = a->jobs[worker];

    return newest == 0 ? 256 + (uint64_t)p->job : newest + (uint64_t)(int64_t)(int8_t)(uint8_t)(p->job - newest);
}

static bool is_older(uint64_t job, uint32_t id, const struct pki_switchml_newest *newest)
{
    return newest->any && (job < newest->job || (job == newest->job && id < newest->id));
}

static void take(const struct pki_switchml_aggregator *a, struct pki_switchml_set *set, uint32_t *sums,
                 const struct pki_switchml_packet *p, const void *values)
{
    if (set->has == 0) {
        set->job = p->job;
        set->id = p->id;
        set->missing = (uint8_t)a->workers;
        memcpy(set->exponents, p->exponents, sizeof set->exponents);
        pki_switchml_swap(sums, values, a->elements);
        return;
    }
    if (p->exponents[0] > set->exponents[0])
        set->exponents[0] = p->exponents[0];
    if (p->exponents[1] != set->exponents[1])
        set->exponents[1] = PKI_SWITCHML_MARKS_DIFFER;
    pki_switchml_add(sums, values, a->elements);
}

enum pki_switchml_verdict pki_switchml_aggregate(struct pki_switchml_aggregator *a, uint32_t worker,
                                                 struct pki_switchml_packet *p, const void *values, const uint32_t **sums)
{
    const uint32_t slot = p->index & ~PKI_SWITCHML_SET, which = (p->index & PKI_SWITCHML_SET) != 0, bit = 1u << worker;
    struct pki_switchml_set *set, *other;
    struct pki_switchml_newest *newest;
    uint32_t *own;
    uint64_t job;
    bool seen;

    if (slot >= a->slots || worker >= a->workers)
        return PKI_SWITCHML_OUTSIDE;
    set = &a->sets[2 * slot + which];
    other = &a->sets[2 * slot + !which];
    newest = &a->newest[(size_t)worker * a->slots + slot];
    seen = (set->has & bit) != 0;
    job = job_of(a, worker, p);
    if (is_older(job, p->id, newest))
        return PKI_SWITCHML_STALE;
    if (set->has != 0 && (set->job != p->job || set->id != p->id))
        return PKI_SWITCHML_DISAGREES;
    if (!seen && set->has != 0 && set->missing == 0) /* it was counted before it went to the other set */
        return PKI_SWITCHML_STALE;
    *newest = (struct pki_switchml_newest){ .id = p->id, .job = job, .any = true };
    if (job > a->jobs[worker])
        a->jobs[worker] = job;
    other->has &= ~bit;
    *sums = own = a->values + ((size_t)which * a->slots + slot) * a->elements;
    if (!seen) {
        take(a, set, own, p, values);
        set->has |= bit;
        set->missing--;
    }
    memcpy(p->exponents, set->exponents, sizeof p->exponents);
    if (set->missing > 0)
        return seen ? PKI_SWITCHML_AGAIN : PKI_SWITCHML_WAIT;
    return seen ? PKI_SWITCHML_TO_ONE : PKI_SWITCHML_TO_ALL;
}
