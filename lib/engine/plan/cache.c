/* SPDX-License-Identifier: Apache-2.0 */
/* Plans are made once for each (algorithm, root, in place) and kept; of those that nobody uses the oldest go when there are
 * many. */
#include <limits.h>
#include <stdlib.h>

#include "engine/plan/plan.h"

static bool reverse_deps(struct pki_plan_entry *entry)
{
    const struct pki_plan *plan = entry->plan;
    uint32_t *first = calloc((size_t)plan->nsteps + 2, sizeof *first);
    uint32_t *list = malloc(((size_t)plan->ndeps + 1) * sizeof *list);

    if (first == NULL || list == NULL) {
        free(first);
        free(list);
        return false;
    }
    for (uint32_t i = 0; i < plan->nsteps; i++)
        for (uint32_t d = 0; d < plan->steps[i].deps; d++)
            first[plan->deps[plan->steps[i].first_dep + d] + 2]++;
    for (uint32_t i = 2; i < plan->nsteps + 2; i++)
        first[i] += first[i - 1];
    for (uint32_t i = 0; i < plan->nsteps; i++)
        for (uint32_t d = 0; d < plan->steps[i].deps; d++)
            list[first[plan->deps[plan->steps[i].first_dep + d] + 1]++] = i;
    entry->dependents = list;
    entry->dependents_first = first;
    return true;
}

static void entry_free(struct pki_plan_entry *entry)
{
    pki_plan_free(entry->plan);
    free(entry->dependents);
    free(entry->dependents_first);
    free(entry->program);
    free(entry->moments);
    free(entry);
}

struct plan_key {
    const struct pki_algorithm *algorithm;
    int root;
    bool in_place;
};

/* Whether the buffers of a rank are in place counts at the root alone, and a root only where there is one. */
static struct plan_key key_of(const struct pki_engine *e, const struct pki_request *r)
{
    bool rooted = r->algorithm->build_rooted != NULL;

    return (struct plan_key){ .algorithm = r->algorithm,
                              .root = rooted ? r->root : 0,
                              .in_place = r->in_place && (!rooted || r->root == e->config.rank) };
}

static pk_result_t make(struct pki_engine *e, const struct plan_key *key, struct pki_plan_entry **out)
{
    struct pki_plan_entry *entry = malloc(sizeof *entry);
    pk_result_t result;

    if (entry == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a plan");
    *entry = (struct pki_plan_entry){
        .algorithm = key->algorithm, .root = key->root, .in_place = key->in_place, .stride_in = SIZE_MAX
    };
    result =
        pki_plan_make(key->algorithm, e->config.hosts, e->config.rank, e->config.size, key->root, key->in_place, &entry->plan);
    if (result == PK_OK && !reverse_deps(entry))
        result = pki_fail(PK_ERR_MEMORY, NULL, "no memory for a plan of %u steps", entry->plan->nsteps);
    if (result != PK_OK) {
        entry_free(entry);
        return result;
    }
    pki_list_init(&entry->node);
    e->plans.n++;
    *out = entry;
    return PK_OK;
}

static void forget_the_oldest(struct pki_engine *e)
{
    for (struct pki_list *n = e->plans.all.prev; n != &e->plans.all && e->plans.n > PKI_PLANS_MAX;) {
        struct pki_plan_entry *entry = pki_container_of(n, struct pki_plan_entry, node);

        n = n->prev;
        if (entry->users > 0)
            continue;
        pki_list_remove(&entry->node);
        entry_free(entry);
        e->plans.n--;
        for (int i = 0; i < PKI_PLANS_RECENT; i++)
            if (e->plans.recent[i] == entry)
                e->plans.recent[i] = NULL;
    }
}

static bool is_of(const struct pki_plan_entry *entry, const struct plan_key *key)
{
    return entry->algorithm == key->algorithm && entry->root == key->root && entry->in_place == key->in_place;
}

pk_result_t pki_plan_take(struct pki_engine *e, const struct pki_request *r, struct pki_plan_entry **out)
{
    struct plan_key key = key_of(e, r);
    struct pki_plan_entry **recent = &e->plans.recent[(unsigned)key.root % PKI_PLANS_RECENT];
    struct pki_plan_entry *found = NULL;
    unsigned polls = 0;
    pk_result_t result;

    if (*recent != NULL && is_of(*recent, &key)) {
        (*recent)->users++;
        *out = *recent;
        return PK_OK;
    }
    for (struct pki_list *n = e->plans.all.next; n != &e->plans.all && found == NULL; n = n->next) {
        struct pki_plan_entry *entry = pki_container_of(n, struct pki_plan_entry, node);

        polls++;
        if (is_of(entry, &key))
            found = entry;
    }
    if (found == NULL) {
        result = make(e, &key, &found);
        if (result != PK_OK)
            return result;
        polls = UINT_MAX;
    }
    found->users++;
    if (polls > PKI_PLANS_NEAR_FRONT) {
        pki_list_remove(&found->node);
        pki_list_push(e->plans.all.next, &found->node); /* before the first: in front */
    }
    if (e->plans.n > PKI_PLANS_MAX)
        forget_the_oldest(e);
    *recent = found;
    *out = found;
    return PK_OK;
}

void pki_plan_give(struct pki_engine *e, struct pki_plan_entry *entry)
{
    (void)e;
    entry->users--;
}

void pki_plans_close(struct pki_engine *e)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&e->plans.all)) != NULL)
        entry_free(pki_container_of(node, struct pki_plan_entry, node));
    e->plans.n = 0;
}
