/* SPDX-License-Identifier: Apache-2.0 */
#include "util/autotuner.h"

#define ENOUGH (PKI_AUTOTUNER_TURNS / 2)

bool pki_autotuner_is_on(uint64_t number)
{
    return number % PKI_AUTOTUNER_EVERY < 2 * PKI_AUTOTUNER_TURNS;
}

/* The blocks' order is that of Thue and Morse: whatever comes again after so many turns, a power of two, as the steps of a collective do, falls to both as often. */
bool pki_autotuner_goes_second(uint64_t number, bool settled)
{
    return pki_autotuner_is_on(number) ? __builtin_parityll(number % PKI_AUTOTUNER_EVERY / PKI_AUTOTUNER_BLOCK) : settled;
}

void pki_autotuner_took(struct pki_autotuner *t, uint64_t number, size_t bytes, uint64_t ns)
{
    bool second = pki_autotuner_goes_second(number, false);

    if (t->epoch != number / PKI_AUTOTUNER_EVERY || t->n[0] + t->n[1] == 0) {
        t->epoch = number / PKI_AUTOTUNER_EVERY;
        t->bytes = bytes;
        t->n[0] = t->n[1] = 0;
    }
    if (t->bytes != bytes)
        t->bytes = 0;
    t->ns[second][t->n[second]++ % PKI_AUTOTUNER_TURNS] = ns;
}

/* What a quarter of them took at most: what disturbs one makes it longer. `between`: of a way's second and third block, or of the others. */
static uint64_t quartile(const uint64_t *ns, unsigned n, bool between)
{
    uint64_t sorted[PKI_AUTOTUNER_TURNS];
    unsigned count = 0;

    for (unsigned i = 0; i < n; i++) {
        unsigned k = count;

        if ((i / PKI_AUTOTUNER_BLOCK % 3 != 0) != between)
            continue;
        for (; k > 0 && sorted[k - 1] > ns[i]; k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = ns[i];
        count++;
    }
    return count > 0 ? sorted[count / 4] : 0;
}

/* Of the blocks with even numbers and of those with odd ones, which a collective's steps may be by turns, each way has two: these, or those between. */
static uint64_t takes(const struct pki_autotuner *t, bool second)
{
    return quartile(t->ns[second], t->n[second], false) + quartile(t->ns[second], t->n[second], true);
}

/* By so much that it is worth another way. */
static bool is_less(uint64_t a, uint64_t b)
{
    return a + a / 32 < b;
}

void pki_autotuner_decide(struct pki_autotuner *t, uint64_t number)
{
    uint64_t first, second;

    if (number % PKI_AUTOTUNER_EVERY != 2 * PKI_AUTOTUNER_TURNS - 1)
        return;
    t->second ^= t->flips;
    if (t->flips || t->epoch != number / PKI_AUTOTUNER_EVERY || t->bytes == 0 || t->n[0] < ENOUGH || t->n[1] < ENOUGH)
        return;
    first = takes(t, false);
    second = takes(t, true);
    t->second = t->second ? !is_less(first, second) : is_less(second, first);
}
