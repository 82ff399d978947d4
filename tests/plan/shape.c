/* SPDX-License-Identifier: Apache-2.0 */
/* What plans look like from outside: numbers of steps, bytes on the wire, order of operands, and how fast they are made. */
#include <criterion/criterion.h>

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

        cr_assert_eq(pki_plan_make(ring, rank, 8, true, &plan), PK_OK);
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

        cr_assert_eq(pki_plan_make(*a, 0, 1, true, &plan), PK_OK);
        cr_expect_eq(plan->nsteps, 0);
        pki_plan_free(plan);
        cr_assert_eq(pki_plan_make(*a, 0, 1, false, &plan), PK_OK);
        cr_expect_eq(plan->nsteps, 1);
        cr_expect_eq(plan->steps[0].kind, PKI_STEP_COPY);
        pki_plan_free(plan);
    }
}

/* Both allgathers send (n - 1) blocks a rank; both allreduces 2 (n - 1) n-ths of the data, over all ranks exactly. */
Test(shape, wire_bytes)
{
    for (const struct pki_algorithm *const *a = pki_algorithms; *a != NULL; a++) {
        for (int size = 1; size <= 9; size++) {
            struct plan_world world;
            size_t all = 0, others = (size_t)size - 1;

            cr_assert(plan_world_make(&world, *a, size, size & 1, 37, 5));
            for (int rank = 0; rank < size; rank++) {
                if ((*a)->coll == PKI_COLL_ALLGATHER)
                    cr_expect_eq(elements_sent(&world, rank), others * 37);
                all += elements_sent(&world, rank);
            }
            if ((*a)->coll == PKI_COLL_ALLREDUCE)
                cr_expect_eq(all, 2 * others * 37);
            plan_world_free(&world);
        }
    }
}

/* The operands of one REDUCE after the other, running sums left out, are the ranks in order. */
static int check_operands(const struct pki_plan *plan, uint32_t step, int next)
{
    const struct pki_step *s = &plan->steps[step];

    cr_expect(s->operands >= 2 && s->operands <= PKI_REDUCE_MAX);
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

            cr_assert_eq(pki_plan_make(pki_algorithm_find(PKI_COLL_ALLREDUCE, "direct"), rank, sizes[k], true, &plan), PK_OK);
            for (uint32_t i = 0; i < plan->nsteps; i++) {
                if (plan->steps[i].kind == PKI_STEP_REDUCE) {
                    next = check_operands(plan, i, next);
                    reduces++;
                }
            }
            cr_expect_eq(next, sizes[k]);
            cr_expect(sizes[k] > PKI_REDUCE_MAX || (reduces == 1 && plan->scratch_blocks == (uint32_t)sizes[k] - 1));
            pki_plan_free(plan);
        }
    }
}

Test(shape, more_ranks_than_one_reduction_takes)
{
    static const int sizes[] = { 17, 33 };

    for (int i = 0; i < 4; i++) {
        struct plan_world world;
        char text[128] = "";

        cr_assert(plan_world_make(&world, pki_algorithm_find(PKI_COLL_ALLREDUCE, "direct"), sizes[i / 2], i % 2, 70, 2));
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

        cr_assert_eq(pki_plan_make(*a, 2, 5, false, &plan), PK_OK);
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

            cr_assert_eq(pki_plan_make(*a, 517, 1024, run & 1, &plan), PK_OK);
            took = pki_now_ns() - begin;
            best = took < best ? took : best;
            pki_plan_free(plan);
        }
        cr_log_info("%s %d: %llu us for 1024 ranks", (*a)->name, (int)(*a)->coll, (unsigned long long)best / 1000);
        cr_expect(best < PKI_NS_PER_S, "%s: %llu ns", (*a)->name, (unsigned long long)best);
    }
}
