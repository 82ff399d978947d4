/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that are kept: found again, let go when there are many, the one used last latest, and never while somebody uses them. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/life.h"

#define RANKS 64 /* enough roots for more plans than are kept */

static struct pki_engine *engine_of(int rank)
{
    const struct pki_engine_config config = { .rank = rank, .size = RANKS, .local_ranks = 1 };
    struct pki_engine *engine = NULL;

    cr_assert_eq(pki_engine_open(&config, &engine), PK_OK);
    pki_engine_start(engine);
    return engine;
}

/* The number-th of many plans: tree and ring broadcasts and reductions, each from all roots. */
static struct pki_plan_entry *take(struct pki_engine *engine, int number)
{
    static const struct {
        enum pki_coll coll;
        const char *name;
    } kinds[] = {
        { PKI_COLL_BROADCAST, "tree" }, { PKI_COLL_BROADCAST, "ring" }, { PKI_COLL_REDUCE, "tree" }, { PKI_COLL_REDUCE, "ring" }
    };
    struct pki_request request = { .what = PKI_DO_COLL, .root = number % RANKS };
    struct pki_plan_entry *entry = NULL;

    request.algorithm = pki_algorithm_find(kinds[number / RANKS].coll, kinds[number / RANKS].name);
    cr_assert_eq(pki_plan_take(engine, &request, &entry), PK_OK);
    cr_assert(entry->algorithm == request.algorithm && entry->root == request.root && entry->plan != NULL);
    return entry;
}

static void touch(struct pki_engine *engine, int number)
{
    pki_plan_give(engine, take(engine, number));
}

static bool kept(const struct pki_engine *engine, const struct pki_plan_entry *entry)
{
    for (const struct pki_list *n = engine->plans.all.next; n != &engine->plans.all; n = n->next)
        if (pki_container_of(n, struct pki_plan_entry, node) == entry)
            return true;
    return false;
}

Test(plan_cache, finds_again)
{
    struct pki_engine *engine = engine_of(5);
    struct pki_plan_entry *first = take(engine, 3), *other = take(engine, 4);

    cr_expect(first != other);
    cr_expect(take(engine, 3) == first && first->users == 2);
    cr_expect_eq(engine->plans.n, 2);
    pki_plan_give(engine, first);
    pki_plan_give(engine, first);
    cr_expect(take(engine, 3) == first && first->users == 1, "kept though nobody used it");
    pki_plan_give(engine, first);
    pki_plan_give(engine, other);
    cr_expect_eq(pki_engine_close(engine), PK_OK);
}

/* Where the buffers of another rank are in place is nothing to this one. */
Test(plan_cache, in_place_counts_at_the_root)
{
    struct pki_engine *engine = engine_of(5);
    struct pki_request request = { .what = PKI_DO_COLL, .algorithm = pki_algorithm_find(PKI_COLL_REDUCE, "tree"), .root = 5 };
    struct pki_plan_entry *entries[4];

    for (int i = 0; i < 4; i++) {
        request.root = i < 2 ? 5 : 6;
        request.in_place = i % 2 != 0;
        cr_assert_eq(pki_plan_take(engine, &request, &entries[i]), PK_OK);
    }
    cr_expect(entries[0] != entries[1] && entries[1]->in_place);
    cr_expect(entries[2] == entries[3]);
    for (int i = 0; i < 4; i++)
        pki_plan_give(engine, entries[i]);
    cr_expect_eq(pki_engine_close(engine), PK_OK);
}

Test(plan_cache, lets_the_oldest_go)
{
    struct pki_engine *engine = engine_of(7);

    for (int i = 0; i < PKI_PLANS_MAX; i++)
        touch(engine, i);
    cr_expect_eq(engine->plans.n, PKI_PLANS_MAX);
    touch(engine, 0); /* used last: the oldest is 1 now */
    for (int i = 0; i < 10; i++) {
        const struct pki_plan_entry *oldest = pki_container_of(engine->plans.all.prev, struct pki_plan_entry, node);

        cr_expect_eq(oldest->root, 1 + i);
        touch(engine, PKI_PLANS_MAX + i);
        cr_expect_eq(engine->plans.n, PKI_PLANS_MAX);
        cr_expect_eq(pki_container_of(engine->plans.all.next, struct pki_plan_entry, node)->algorithm->coll, PKI_COLL_REDUCE);
    }
    cr_expect_eq(pki_engine_close(engine), PK_OK);
}

Test(plan_cache, keeps_what_is_in_use)
{
    struct pki_engine *engine = engine_of(7);
    struct pki_plan_entry *used[2] = { take(engine, 0), take(engine, 1) };
    struct pki_plan_entry *many[2 * PKI_PLANS_MAX];

    for (int i = 2; i < 2 * PKI_PLANS_MAX; i++)
        touch(engine, i);
    cr_expect(kept(engine, used[0]) && kept(engine, used[1]));
    cr_expect_eq(engine->plans.n, PKI_PLANS_MAX);
    cr_expect(take(engine, 0) == used[0]);
    pki_plan_give(engine, used[0]);
    pki_plan_give(engine, used[0]);
    pki_plan_give(engine, used[1]);
    /* More in use than are kept, and then none: the next one that is made sweeps. */
    for (int i = 0; i < 2 * PKI_PLANS_MAX - 1; i++)
        many[i] = take(engine, i);
    cr_expect_eq(engine->plans.n, 2 * PKI_PLANS_MAX - 1);
    for (int i = 0; i < 2 * PKI_PLANS_MAX - 1; i++)
        pki_plan_give(engine, many[i]);
    touch(engine, 2 * PKI_PLANS_MAX - 1);
    cr_expect_eq(engine->plans.n, PKI_PLANS_MAX);
    cr_expect_eq(pki_engine_close(engine), PK_OK);
}
