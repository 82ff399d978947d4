/* SPDX-License-Identifier: Apache-2.0 */
/* Places of low-latency messages: never two at one place, never across the end, and all of the ring comes back. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/life.h"

#define UNITS (PKI_LL_RING_BYTES / PKI_LL_UNIT)

struct message {
    uint32_t flag, units;
    int place;
};

static unsigned char used[UNITS];

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void occupy(const struct message *m, unsigned char from, unsigned char to)
{
    cr_assert(m->place >= 0 && (uint32_t)m->place + m->units <= UNITS);
    for (uint32_t i = 0; i < m->units; i++) {
        cr_assert_eq(used[(uint32_t)m->place + i], from);
        used[(uint32_t)m->place + i] = to;
    }
}

static bool take(struct pki_ll_ring *ring, size_t bytes, struct message *m)
{
    m->units = (uint32_t)((2 * bytes + PKI_LL_UNIT - 1) / PKI_LL_UNIT);
    if (!pki_ll_take(ring, bytes, &m->place, &m->flag))
        return false;
    cr_assert_neq(m->flag, 0);
    occupy(m, 0, 1);
    return true;
}

static void rounds(struct pki_ll_ring *ring, uint32_t *state)
{
    struct message live[PKI_LL_MESSAGES + 1];
    size_t n = 0;

    memset(used, 0, sizeof used);
    for (int i = 0; i < 20000; i++) {
        size_t bytes = 1 + next(state) % (next(state) % 4 == 0 ? PKI_LL_MAX_BYTES : 9000);

        if (take(ring, bytes, &live[n])) {
            n++;
        } else {
            cr_assert_gt(n, 0, "an empty ring has room for any message");
        }
        cr_assert_leq(n, PKI_LL_MESSAGES);
        while (n > 0 && next(state) % 3 == 0) { /* they end in any order */
            size_t which = next(state) % n;

            occupy(&live[which], 1, 0);
            pki_ll_give(ring, live[which].flag);
            live[which] = live[--n];
        }
    }
    while (n > 0)
        pki_ll_give(ring, live[--n].flag);
    cr_assert_eq(ring->live, 0);
}

Test(ll, places_do_not_overlap)
{
    struct pki_ll_ring ring = { 0 };
    uint32_t state = 7;

    rounds(&ring, &state);
}

/* 0 is what an empty cell holds. */
Test(ll, flags_leave_zero_out)
{
    struct pki_ll_ring ring = { .flag = UINT32_MAX - 5000 };
    uint32_t state = 8;

    rounds(&ring, &state);
    cr_assert_lt(ring.flag, UINT32_MAX / 2, "it has come round");
}
