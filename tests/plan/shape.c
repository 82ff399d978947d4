/* SPDX-License-Identifier: Apache-2.0 */
/* What plans look like from outside: numbers of steps, bytes on the wire, order of operands, and how fast they are made. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "plan_model.h"
#include "util/clock.h"

static uint32_t count_steps(const struct pki_plan *plan, enum pki_step_kind kind)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < plan->nsteps; i++)
        n += plan->steps[i].kind == kind;
    return n;
}

static size_t elements_sent(const struct plan_world *world, int rank)
{
    const struct pki_plan *plan = world->plans[rank];
    size_t total = 0;

    for (uint32_t i = 0; i < plan->nsteps; i++)
        if (plan->steps[i].kind == PKI_STEP_SEND)
            total += plan_block(world, rank, plan->steps[i].src).count;
    return total;
}

Test(shape, ring_allreduce_of_8_ranks_is_28_steps)
{
    const struct pki_algorithm *ring = pki_algorithm_find(PKI_COLL_ALLREDUCE, "ring");

    for (int rank = 0; rank < 8; rank++) {
        struct pki_plan *plan;

        cr_assert_eq(pki_plan_make(ring, NULL, rank, 8, 0, true, &plan), PK_OK);
        cr_expect_eq(plan->nsteps, 28);
        cr_expect_eq(count_steps(plan, PKI_STEP_SEND), 14);
        cr_expect_eq(count_steps(plan, PKI_STEP_RECV), 7);
        cr_expect_eq(count_steps(plan, PKI_STEP_RECV_REDUCE), 7);
        cr_expect_eq(plan->scratch_blocks, 2);
        cr_expect_eq(plan->in_blocks, 8);
        cr_expect_eq(plan->out_blocks, 8);
        pki_plan_free(plan);
    }
}

Test(shape, one_rank_copies_or_does_nothing)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        struct pki_plan *plan;

        cr_assert_eq(pki_plan_make(*a, NULL, 0, 1, 0, true, &plan), PK_OK);
        cr_expect_eq(plan->nsteps, 0);
        pki_plan_free(plan);
        cr_assert_eq(pki_plan_make(*a, NULL, 0, 1, 0, false, &plan), PK_OK);
        cr_expect_eq(plan->nsteps, (*a)->coll == PKI_COLL_BARRIER ? 0 : 1);
        cr_expect(plan->nsteps == 0 || plan->steps[0].kind == PKI_STEP_COPY);
        pki_plan_free(plan);
    }
}

/* What all ranks together send, in n-ths of the data; "log" where that is no round number. */
static size_t expected_sent(const struct pki_algorithm *algorithm, size_t size, size_t count)
{
    const char *name = algorithm->name;
    size_t others = size - 1;
    bool flat = strcmp(name, "flat") == 0;

    switch (algorithm->coll) {
    case PKI_COLL_ALLTOALL:
        if (strcmp(name, "detour") == 0 && size > 1) /* the own block, there and back */
            return size * (others + 2) * count;
        return size * others * count;
    case PKI_COLL_ALLGATHER:
    case PKI_COLL_REDUCE_SCATTER:
        return size * others * count;
    case PKI_COLL_ALLREDUCE:
        return flat ? size * others * count : 2 * others * count;
    case PKI_COLL_REDUCE:
        return strcmp(name, "direct") == 0 || strcmp(name, "hier") == 0 ? others * count + others * (count / size)
                                                                        : others * count;
    case PKI_COLL_BARRIER:
        return 0;
    default:
        return others * count;
    }
}

/* Trees pass blocks on more than once, doubling sends all each round, and pairs of a fold all they have. */
static bool sends_more(const struct pki_algorithm *algorithm, int size)
{
    const char *name = algorithm->name;
    bool tree = strcmp(name, "tree") == 0, gathers = algorithm->coll == PKI_COLL_GATHER || algorithm->coll == PKI_COLL_SCATTER;

    return (tree && gathers) || (strcmp(name, "doubling") == 0 && algorithm->coll == PKI_COLL_ALLREDUCE) ||
           (strcmp(name, "halving") == 0 && (size & (size - 1)) != 0);
}

/* No algorithm sends a byte more than it says. */
Test(shape, wire_bytes)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        for (int size = 1; size <= 9; size++) {
            struct plan_case c = { .size = size, .root = size / 2, .count = (size_t)size * 6, .chunk = 5 };
            struct plan_world world;
            size_t all = 0;

            if ((*a)->coll >= PKI_COLL_ALLGATHERV)
                continue;
            c.in_place = size & 1 ? PLAN_ALL_IN_PLACE : 0;
            cr_assert(plan_world_make(&world, *a, &c));
            for (int rank = 0; rank < size; rank++)
                all += elements_sent(&world, rank);
            if (sends_more(*a, size))
                cr_expect_geq(all, expected_sent(*a, (size_t)size, c.count));
            else
                cr_expect_eq(all, expected_sent(*a, (size_t)size, c.count), "%s %d, %d ranks: %zu", (*a)->name, (int)(*a)->coll,
                             size, all);
            plan_world_free(&world);
        }
    }
}

/* Messages in the order of log n at the busiest rank. */
Test(shape, messages_of_64_ranks)
{
    static const struct {
        enum pki_coll coll;
        const char *name;
        uint32_t most;
    } expected[] = { { PKI_COLL_ALLGATHER, "doubling", 12 }, { PKI_COLL_ALLREDUCE, "doubling", 6 },
                     { PKI_COLL_ALLREDUCE, "halving", 12 },  { PKI_COLL_REDUCE_SCATTER, "halving", 6 },
                     { PKI_COLL_BROADCAST, "tree", 6 },      { PKI_COLL_REDUCE, "tree", 6 },
                     { PKI_COLL_GATHER, "tree", 7 },         { PKI_COLL_SCATTER, "tree", 7 },
                     { PKI_COLL_BARRIER, "doubling", 6 } };

    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        for (int rank = 0; rank < 64; rank++) {
            struct pki_plan *plan;

            cr_assert_eq(pki_plan_make(pki_algorithm_find(expected[i].coll, expected[i].name), NULL, rank, 64, 5, false, &plan),
                         PK_OK);
            cr_expect_leq(count_steps(plan, PKI_STEP_SEND), expected[i].most, "%s %d", expected[i].name, (int)expected[i].coll);
            cr_expect_leq(count_steps(plan, PKI_STEP_RECV) + count_steps(plan, PKI_STEP_RECV_REDUCE), expected[i].most, "%s %d",
                          expected[i].name, (int)expected[i].coll);
            pki_plan_free(plan);
        }
    }
}

static bool names(struct pki_ref ref, enum pki_buffer buffer)
{
    return ref.buffer == buffer;
}

static void check_buffers(const struct pki_algorithm *algorithm, const struct pki_plan *plan)
{
    bool has_in = plan_has_in(algorithm, plan->rank, plan->root), has_out = plan_has_out(algorithm, plan->rank, plan->root);

    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct pki_step *s = &plan->steps[i];
        bool reads = s->kind == PKI_STEP_SEND || s->kind == PKI_STEP_RECV_REDUCE || s->kind == PKI_STEP_COPY;
        bool writes = s->kind != PKI_STEP_SEND;

        cr_expect_not(writes && names(s->dst, PKI_BUF_IN));
        cr_expect_not(s->kind == PKI_STEP_RECV_REDUCE && !names(s->landing, PKI_BUF_SCRATCH));
        cr_expect(has_in || !reads || !names(s->src, PKI_BUF_IN), "%s %d", algorithm->name, (int)algorithm->coll);
        cr_expect(has_out || !writes || !names(s->dst, PKI_BUF_OUT), "%s %d", algorithm->name, (int)algorithm->coll);
        cr_expect(has_out || !reads || !names(s->src, PKI_BUF_OUT), "%s %d", algorithm->name, (int)algorithm->coll);
    }
    for (uint32_t i = 0; i < plan->noperands; i++) {
        cr_expect(has_in || !names(plan->operands[i], PKI_BUF_IN));
        cr_expect(has_out || !names(plan->operands[i], PKI_BUF_OUT));
    }
}

/* IN is never written, and no rank touches a buffer that the operation does not give it. */
Test(shape, buffers_that_are_there)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        for (int variant = 0; variant < 8 * 8 * 2; variant++) {
            int size = 1 + variant % 8, rank = variant / 8 % 8, in_place = variant / 64;
            struct pki_plan *plan;

            for (int root = 0; rank < size && root < size; root++) {
                cr_assert_eq(pki_plan_make(*a, NULL, rank, size, root, in_place, &plan), PK_OK);
                check_buffers(*a, plan);
                pki_plan_free(plan);
            }
        }
    }
}

static bool same_ref(struct pki_ref a, struct pki_ref b)
{
    return a.buffer == b.buffer && a.like_buffer == b.like_buffer && a.index == b.index && a.like == b.like && a.more == b.more &&
           a.base == b.base;
}

static bool same_step(const struct pki_step *a, const struct pki_step *b)
{
    return a->kind == b->kind && a->whole == b->whole && a->peer == b->peer && a->pair_index == b->pair_index &&
           same_ref(a->dst, b->dst) && same_ref(a->src, b->src) && same_ref(a->landing, b->landing) &&
           a->first_operand == b->first_operand && a->operands == b->operands && a->first_dep == b->first_dep &&
           a->deps == b->deps;
}

static bool same_plan(const struct pki_plan *a, const struct pki_plan *b)
{
    bool same = a->nsteps == b->nsteps && a->ndeps == b->ndeps && a->noperands == b->noperands && a->in_blocks == b->in_blocks &&
                a->out_blocks == b->out_blocks && a->scratch_blocks == b->scratch_blocks;

    for (uint32_t i = 0; same && i < a->nsteps; i++)
        same = same_step(&a->steps[i], &b->steps[i]);
    for (uint32_t i = 0; same && i < a->ndeps; i++)
        same = a->deps[i] == b->deps[i];
    for (uint32_t i = 0; same && i < a->noperands; i++)
        same = same_ref(a->operands[i], b->operands[i]);
    return same;
}

/* For a rank other than the root it is of no account whether it says "in place"; v-forms have the plans of the others, and no
 * stretches, whose blocks need not lie side by side. */
Test(shape, plans_that_are_the_same)
{
    static const enum pki_coll plain[] = { PKI_COLL_ALLGATHER, PKI_COLL_ALLTOALL, PKI_COLL_GATHER, PKI_COLL_SCATTER };

    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        bool v = (*a)->coll >= PKI_COLL_ALLGATHERV;
        const struct pki_algorithm *other = v ? pki_algorithm_find(plain[(*a)->coll - PKI_COLL_ALLGATHERV], (*a)->name) : *a;
        struct pki_plan *first, *second;

        cr_assert_not_null(other);
        cr_assert_eq(pki_plan_make(*a, NULL, 2, 6, 4, false, &first), PK_OK);
        cr_assert_eq(pki_plan_make(other, NULL, 2, 6, 4, plan_is_rooted(*a) && !v, &second), PK_OK);
        cr_expect(same_plan(first, second), "%s %d", (*a)->name, (int)(*a)->coll);
        for (uint32_t i = 0; v && i < first->nsteps; i++)
            cr_expect(first->steps[i].src.more == 0 && first->steps[i].dst.more == 0);
        pki_plan_free(first);
        pki_plan_free(second);
    }
}

Test(shape, layout_finds_blocks)
{
    static const size_t counts[] = { 3, 0, 5, 2 }, offsets[] = { 20, 9, 10, 0 };
    struct pki_plan plan = { .in_blocks = 4, .out_blocks = 4 };
    struct pki_layout even = { .in_total = 10, .out_total = 10 };
    struct pki_layout uneven = { .in_counts = counts, .in_offsets = offsets, .out_total = 10 };
    size_t first, count;

    pki_layout_block(&even, &plan, pki_stretch(pki_in(1), 2), &first, &count);
    cr_expect(first == 3 && count == 5);
    pki_layout_block(&even, &plan, pki_scratch_at(7, 1, pki_stretch(pki_out(2), 2)), &first, &count);
    cr_expect(first == 3 && count == 4);
    pki_layout_block(&uneven, &plan, pki_in(2), &first, &count);
    cr_expect(first == 10 && count == 5);
    pki_layout_block(&uneven, &plan, pki_scratch(0, pki_in(3)), &first, &count);
    cr_expect(first == 0 && count == 2);
    pki_layout_block(&uneven, &plan, pki_out(3), &first, &count);
    cr_expect(first == 8 && count == 2);
}

/* The operands of one REDUCE after the other, running sums left out, are the ranks in order. */
static int check_operands(const struct pki_plan *plan, uint32_t step, int next)
{
    const struct pki_step *s = &plan->steps[step];

    cr_expect(s->operands >= 2 && s->operands <= PKI_REDUCE_SOURCES);
    for (uint32_t i = 0; i < s->operands; i++) {
        struct pki_ref ref = plan->operands[s->first_operand + i];

        if (i == 0 && next > 0) {
            cr_expect_eq(ref.buffer, PKI_BUF_SCRATCH);
            cr_expect_eq(ref.index, plan->size - 1);
        } else {
            cr_expect_eq(ref.buffer, next == plan->rank ? PKI_BUF_IN : PKI_BUF_SCRATCH);
            cr_expect_eq(ref.index, next > plan->rank ? next - 1 : next);
            next++;
        }
    }
    return next;
}

Test(shape, direct_allreduce_sums_in_rank_order)
{
    static const int sizes[] = { 2, 3, 8, 16, 17, 31, 32, 40 };

    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (int rank = 0; rank < sizes[k]; rank++) {
            struct pki_plan *plan;
            int next = 0;
            uint32_t reduces = 0;

            cr_assert_eq(pki_plan_make(pki_algorithm_find(PKI_COLL_ALLREDUCE, "direct"), NULL, rank, sizes[k], 0, true, &plan),
                         PK_OK);
            for (uint32_t i = 0; i < plan->nsteps; i++) {
                if (plan->steps[i].kind == PKI_STEP_REDUCE) {
                    next = check_operands(plan, i, next);
                    reduces++;
                }
            }
            cr_expect_eq(next, sizes[k]);
            cr_expect(sizes[k] > PKI_REDUCE_SOURCES || (reduces == 1 && plan->scratch_blocks == (uint32_t)sizes[k] - 1));
            pki_plan_free(plan);
        }
    }
}

Test(shape, more_ranks_than_one_reduction_takes)
{
    static const enum pki_coll colls[] = { PKI_COLL_ALLREDUCE, PKI_COLL_REDUCE, PKI_COLL_REDUCE_SCATTER };
    static const char *const names_of[] = { "direct", "flat", "direct" };

    for (int i = 0; i < 9; i++) {
        struct plan_case c = { .size = i < 6 ? 17 : 33, .root = 3, .in_place = i % 2 ? PLAN_ALL_IN_PLACE : 0 };
        struct plan_world world;
        char text[128] = "";

        c.count = i % 3 == 0 ? 70 : 3;
        c.chunk = 2;
        cr_assert(plan_world_make(&world, pki_algorithm_find(colls[i % 3], names_of[i % 3]), &c));
        cr_expect(plan_run(&world, 7, text, sizeof text), "%s", text);
        cr_expect_not(plan_find_hazard(&world, text, sizeof text), "%s", text);
        plan_world_free(&world);
    }
}

Test(shape, transfers_are_numbered_per_pair)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        struct pki_plan *plan;
        uint32_t sent[5] = { 0 }, received[5] = { 0 };

        cr_assert_eq(pki_plan_make(*a, NULL, 2, 5, 0, false, &plan), PK_OK);
        for (uint32_t i = 0; i < plan->nsteps; i++) {
            const struct pki_step *s = &plan->steps[i];

            if (plan_step_sends(s))
                cr_expect_eq(s->pair_index, sent[s->peer]++);
            if (plan_step_receives(s))
                cr_expect_eq(s->pair_index, received[s->peer]++);
        }
        pki_plan_free(plan);
    }
}

/* ---- rounds ---- */

static const struct pki_step *nth_transfer(const struct pki_plan *plan, bool send, uint32_t n)
{
    for (uint32_t i = 0; i < plan->nsteps; i++)
        if ((send ? plan_step_sends(&plan->steps[i]) : plan_step_receives(&plan->steps[i])) && n-- == 0)
            return &plan->steps[i];
    return NULL;
}

/* The round of each step: of a transfer its number, of other steps that of the last transfer they wait for. */
static void expect_later_rounds(const struct pki_plan *plan, const char *name)
{
    uint32_t *rounds = calloc(plan->nsteps, sizeof *rounds), sends = 0, receives = 0;

    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct pki_step *s = &plan->steps[i];
        bool transfer = plan_step_sends(s) || plan_step_receives(s);
        uint32_t least = 0;

        for (uint32_t d = 0; d < s->deps; d++) {
            uint32_t round = rounds[plan->deps[s->first_dep + d]];

            least = round > least ? round : least;
        }
        rounds[i] = !transfer ? least : plan_step_sends(s) ? ++sends : ++receives;
        cr_expect(!transfer || least < rounds[i], "%s of %d ranks: step %u of rank %d, in round %u, waits for round %u", name,
                  plan->size, i, plan->rank, rounds[i], least);
    }
    free(rounds);
}

static void check_rounds(const struct pki_algorithm *algorithm, int size, bool in_place)
{
    struct pki_plan *plans[17];

    for (int rank = 0; rank < size; rank++)
        cr_assert_eq(pki_plan_make(algorithm, NULL, rank, size, 0, in_place, &plans[rank]), PK_OK);
    for (int rank = 0; rank < size && plans[rank]->ordered; rank++) {
        const struct pki_step *s;

        for (uint32_t n = 0; (s = nth_transfer(plans[rank], true, n)) != NULL; n++) {
            const struct pki_step *met = nth_transfer(plans[s->peer], false, n);

            cr_expect(met != NULL && met->peer == rank && met->pair_index == s->pair_index, "%s of %d ranks: send %u of rank %d",
                      algorithm->name, size, n, rank);
        }
        expect_later_rounds(plans[rank], algorithm->name);
    }
    for (int rank = 0; rank < size; rank++)
        pki_plan_free(plans[rank]);
}

/* What plan.h asks of ordered plans: else ranks whose links carry one transfer at a time would wait for one another in a circle. */
Test(shape, ordered_plans_go_in_rounds)
{
    int ordered = 0;

    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        struct pki_plan *plan;

        cr_assert_eq(pki_plan_make(*a, NULL, 0, 4, 0, false, &plan), PK_OK);
        ordered += plan->ordered;
        pki_plan_free(plan);
        for (int size = 2; size <= 17; size++)
            for (int in_place = 0; in_place < 2; in_place++)
                check_rounds(*a, size, in_place);
    }
    cr_expect_eq(ordered, 2);
}

/* In the r-th round everyone sends to the rank r places after it, piece by piece; the sums of a piece follow when the next one has gone. */
Test(shape, staggered_rounds)
{
    static const int hops[] = { 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3 };
    static const enum pki_coll colls[] = { PKI_COLL_ALLREDUCE, PKI_COLL_REDUCE_SCATTER };

    for (int k = 0; k < 8; k++) {
        struct pki_plan *plan;
        uint32_t n = k < 4 ? 12 : 6;

        cr_assert_eq(pki_plan_make(pki_algorithm_find(colls[k / 4], "staggered"), NULL, k % 4, 4, 0, true, &plan), PK_OK);
        cr_expect_eq(count_steps(plan, PKI_STEP_SEND), n);
        cr_expect_eq(count_steps(plan, PKI_STEP_REDUCE), 2);
        for (uint32_t i = 0; i < n; i++)
            cr_expect_eq(nth_transfer(plan, true, i)->peer, (k % 4 + hops[i]) % 4);
        for (uint32_t i = 6; i < n; i++)
            cr_expect_eq(nth_transfer(plan, true, i)->src.buffer, PKI_BUF_OUT);
        pki_plan_free(plan);
    }
}

/* Long pieces begin where a vector does; short ones are even. Blocks of ranks stay what the operation says. */
Test(shape, pieces_of_blocks)
{
    struct pki_plan plan = { .in_blocks = 6, .out_blocks = 2, .pieces = 2 };
    struct pki_layout layout = { .in_total = 3003, .out_total = 1001 };
    size_t first, count;

    pki_layout_block(&layout, &plan, pki_in(2), &first, &count);
    cr_expect(first == 1001 && count == 512, "%zu, %zu", first, count);
    pki_layout_block(&layout, &plan, pki_in(3), &first, &count);
    cr_expect(first == 1001 + 512 && count == 489, "%zu, %zu", first, count);
    pki_layout_block(&layout, &plan, pki_stretch(pki_in(4), 2), &first, &count);
    cr_expect(first == 2002 && count == 1001, "%zu, %zu", first, count);
    pki_layout_block(&layout, &plan, pki_scratch(0, pki_out(1)), &first, &count);
    cr_expect(first == 0 && count == 489, "%zu, %zu", first, count);
    layout.in_total = 15;
    pki_layout_block(&layout, &plan, pki_in(3), &first, &count);
    cr_expect(first == 8 && count == 2, "%zu, %zu", first, count);
}

Test(shape, blocks_cover_everything_once)
{
    for (size_t total = 0; total < 40; total++) {
        for (uint32_t blocks = 1; blocks < 12; blocks++) {
            size_t next = 0;

            for (uint32_t i = 0; i < blocks; i++) {
                size_t first, count;

                pki_block_range(total, blocks, i, &first, &count);
                cr_expect_eq(first, next);
                cr_expect_eq(count, total / blocks + (i < total % blocks));
                next = first + count;
            }
            cr_expect_eq(next, total);
        }
    }
}

Test(shape, a_thousand_ranks_in_a_moment)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        uint64_t best = UINT64_MAX;

        for (int run = 0; run < 5; run++) {
            struct pki_plan *plan;
            uint64_t begin = pki_now_ns(), took;

            cr_assert_eq(pki_plan_make(*a, NULL, 517, 1024, 0, run & 1, &plan), PK_OK);
            took = pki_now_ns() - begin;
            best = took < best ? took : best;
            pki_plan_free(plan);
        }
        cr_log_info("%s %d: %llu us for 1024 ranks", (*a)->name, (int)(*a)->coll, (unsigned long long)best / 1000);
        cr_expect(best < PKI_NS_PER_S, "%s: %llu ns", (*a)->name, (unsigned long long)best);
    }
}
