/* SPDX-License-Identifier: Apache-2.0 */
/* Two ways to do the same: which is tried when, and which pays. */
#include <criterion/criterion.h>

#include "util/autotuner.h"

#define EPOCH 512u

/* One round of both ways, of which each takes so long, but for a few strays. */
static void round_of(struct pki_autotuner *t, uint64_t epoch, uint64_t first, uint64_t second, size_t bytes)
{
    for (uint64_t i = 0; i < EPOCH; i++) {
        uint64_t number = epoch * EPOCH + i;

        cr_assert_eq(pki_autotuner_is_on(number), i < 2 * PKI_AUTOTUNER_TURNS);
        if (!pki_autotuner_is_on(number))
            continue;
        cr_assert_eq(pki_autotuner_goes_second(number, true), "01101001"[i / PKI_AUTOTUNER_BLOCK] == '1');
        pki_autotuner_decide(t, number);
        pki_autotuner_took(t, number, bytes == 0 ? i : bytes, i % 4 == 3 ? 1000000 : pki_autotuner_goes_second(number, false) ? second : first);
    }
}

Test(tuner, goes_the_way_that_takes_less)
{
    static const struct {
        uint64_t first, second;
        size_t bytes;
        bool goes_second;
    } rounds[] = {
        { 1000, 1000, 8, false },
        { 1000, 990, 8, false }, /* by too little */
        { 1000, 900, 8, true },
        { 1000, 1010, 8, true }, /* as much, too little to go back */
        { 1000, 2000, 0, true }, /* of different lengths: nothing is known */
        { 1000, 1100, 8, false },
    };
    struct pki_autotuner t = { 0 };

    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        round_of(&t, i, rounds[i].first, rounds[i].second, rounds[i].bytes);
        cr_assert_eq(t.second, rounds[i].goes_second, "round %zu", i);
        cr_assert_eq(pki_autotuner_goes_second(i * EPOCH + 100, t.second), rounds[i].goes_second);
    }
}

/* Blocks by turns long and short, as a collective's steps are, and one of each way disturbed. */
Test(tuner, compares_like_with_like)
{
    struct pki_autotuner t = { 0 };

    for (uint64_t i = 0; i < 2 * PKI_AUTOTUNER_TURNS; i++) {
        unsigned block = (unsigned)(i / PKI_AUTOTUNER_BLOCK);
        uint64_t ns = block < 2 ? 100000 : block % 2 == 0 ? 3000 : 1000;

        pki_autotuner_took(&t, i, 8, pki_autotuner_goes_second(i, false) ? ns - 100 : ns);
        pki_autotuner_decide(&t, i);
    }
    cr_assert(t.second, "2900 and 900, not 3000 and 1000");
}

Test(tuner, too_few_tell_nothing)
{
    struct pki_autotuner t = { 0 };

    for (uint64_t i = 0; i < 2 * PKI_AUTOTUNER_TURNS; i++) {
        pki_autotuner_decide(&t, i);
        if (!pki_autotuner_goes_second(i, false) || i < PKI_AUTOTUNER_BLOCK + 3) /* three of the second way */
            pki_autotuner_took(&t, i, 8, pki_autotuner_goes_second(i, false) ? 10 : 1000);
    }
    cr_assert_not(t.second);
}

Test(tuner, flips_for_tests)
{
    struct pki_autotuner t = { .flips = true };

    for (uint64_t epoch = 0; epoch < 4; epoch++) {
        round_of(&t, epoch, 10, 1000, 8);
        cr_assert_eq(t.second, epoch % 2 == 0);
    }
}
