/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of 33 to 64 KiB over TCP within a machine may lend its pages, and end when the peer says that it has read them, or be copied as one message,
 * which asks for no answer. Which takes less time is the machine's affair: how near the two cores are to one another, which changes while they run. So
 * both are tried now and then, by the collective's number, which all ranks count alike; then the sender goes the way that took less. The last message
 * of those tries says which it is, so that the receiver knows what to wait for; a wrong guess costs it time and nothing else.
 */
#include "engine/program.h"

#define EVERY 256u /* collectives */
#define ENOUGH (PKI_WAY_TRIES / 2)

bool pki_way_is_whole(uint64_t number, bool settled)
{
    uint64_t phase = number % EVERY;

    return phase < PKI_WAY_TRIES ? false : phase < 2 * PKI_WAY_TRIES ? true : settled;
}

bool pki_way_is_tried(uint64_t number)
{
    return number % EVERY < 2 * PKI_WAY_TRIES;
}

void pki_way_took(struct pki_engine *e, uint64_t number, size_t bytes, uint64_t ns)
{
    struct pki_ways *w = &e->ways;
    bool whole = pki_way_is_whole(number, false);

    if (w->epoch != number / EVERY || w->n[0] + w->n[1] == 0) {
        w->epoch = number / EVERY;
        w->bytes = bytes;
        w->n[0] = w->n[1] = 0;
    }
    if (w->bytes != bytes)
        w->bytes = 0;
    w->ns[whole][w->n[whole]++ % PKI_WAY_TRIES] = ns;
}

static uint64_t median(const uint64_t *ns, unsigned n)
{
    uint64_t sorted[PKI_WAY_TRIES];

    for (unsigned i = 0; i < n; i++) {
        unsigned k = i;

        for (; k > 0 && sorted[k - 1] > ns[i]; k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = ns[i];
    }
    return sorted[n / 2];
}

/* By so much that it is worth another way. */
static bool is_less(uint64_t a, uint64_t b)
{
    return a + a / 32 < b;
}

void pki_way_decide(struct pki_engine *e, uint64_t number)
{
    struct pki_ways *w = &e->ways;
    uint64_t lent, whole;

    if (number % EVERY != 2 * PKI_WAY_TRIES - 1)
        return;
    w->whole ^= w->flips;
    if (w->flips || w->epoch != number / EVERY || w->bytes == 0 || w->n[0] < ENOUGH || w->n[1] < ENOUGH)
        return;
    lent = median(w->ns[0], w->n[0]);
    whole = median(w->ns[1], w->n[1]);
    w->whole = w->whole ? !is_less(lent, whole) : is_less(whole, lent);
}
