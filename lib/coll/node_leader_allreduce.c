/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "coll/doubling.h"
#include "coll/hier.h"
#include "coll/ring.h"
#include "tuning/tuning.h"

static void leave_it_to_the_leader(struct pki_plan *plan, int leader, bool in_place)
{
    uint32_t sent = pki_plan_send(plan, leader, pki_in(0));

    pki_plan_recv(plan, leader, pki_out(0));
    if (in_place)
        pki_plan_after(plan, sent);
}

/* All hosts' sums, in the order of hosts, so that all leaders have the same bits. */
static uint32_t sum_one_shot(struct pki_plan *plan, const struct pki_site *s, const struct pki_doubling *d, uint32_t *sent)
{
    struct pki_sum sum;
    uint32_t summed;

    pki_sum_begin(&sum, plan, s->hosts);
    pki_sum_add(&sum, s->host, d->mine, d->ready);
    for (int hop = 1; hop < s->hosts; hop++) {
        int from = pki_before(s->host, hop, s->hosts);
        struct pki_ref theirs = pki_scratch(d->scratch + (uint32_t)(from < s->host ? from : from - 1), pki_in(0));

        sent[hop] = pki_plan_send(plan, d->ranks[pki_after(s->host, hop, s->hosts)], d->mine);
        pki_hier_after(plan, d->ready);
        pki_sum_add(&sum, from, theirs, pki_plan_recv(plan, d->ranks[from], theirs));
    }
    summed = pki_sum_into(&sum, pki_out(0), pki_scratch(d->scratch + (uint32_t)s->hosts - 1, pki_in(0)));
    pki_plan_final(plan, summed);
    for (int hop = 1; d->in_place && s->ranks == 1 && hop < s->hosts; hop++) /* the sends read what the sum replaces */
        pki_plan_after(plan, sent[hop]);
    return summed;
}

/* The sum of this host's ranks, and then that of all hosts. Returns the step that brings it. */
static uint32_t lead(struct pki_plan *plan, const struct pki_site *s, struct pki_doubling *d, uint32_t *sent)
{
    if (s->ranks > 1) {
        struct pki_ref total = s->hosts > 1 ? pki_scratch(0, pki_in(0)) : pki_out(0);
        struct pki_sum sum;

        pki_hier_sum_begin(&sum, plan, s, pki_in(0), 1, 0);
        d->ready = pki_sum_into(&sum, total, pki_scratch(0, pki_in(0)));
        d->mine = total;
        d->scratch = (uint32_t)s->ranks;
    }
    if (s->hosts > PKI_HOSTS_ONE_SHOT)
        return pki_doubling_sum(plan, d);
    if (s->hosts > 1)
        return sum_one_shot(plan, s, d, sent);
    pki_plan_final(plan, d->ready);
    return d->ready;
}

/* For short messages: to one rank of the host, from host to host, and back: few messages between hosts, all the data in each. */
static void build(struct pki_plan *plan, int rank, int size, bool in_place)
{
    struct pki_site s = pki_site(plan);
    struct pki_doubling d = { .n = s.hosts, .me = s.host, .mine = pki_in(0), .ready = PKI_NO_STEP, .in_place = in_place };
    int *leaders = malloc((size_t)s.hosts * sizeof *leaders);
    uint32_t *sent = malloc((size_t)s.hosts * sizeof *sent);

    pki_plan_cut(plan, 1, 1);
    for (int host = 0; leaders != NULL && host < s.hosts; host++)
        leaders[host] = pki_site_rank(&s, host, 0);
    d.ranks = leaders;
    if (leaders == NULL || sent == NULL)
        plan->failed = true;
    else if (size == 1 && !in_place)
        pki_plan_copy(plan, pki_out(0), pki_in(0));
    else if (rank != leaders[s.host])
        leave_it_to_the_leader(plan, leaders[s.host], in_place);
    else if (size > 1)
        pki_hier_send_around(plan, &s, pki_out(0), lead(plan, &s, &d, sent));
    free(leaders);
    free(sent);
}

const struct pki_algorithm pki_node_leader_allreduce = { .name = "leader", .coll = PKI_COLL_ALLREDUCE, .build = build };
