/* SPDX-License-Identifier: Apache-2.0 */
/* The in-network allreduce, byte for byte: packets, sums and indices of docs/switchml.md; settings; proofs. */
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "switchml/aggregator.h"
#include "switchml/marks.h"
#include "switchml/session.h"
#include "switchml/settings.h"
#include "switchml/sums.h"
#include "switchml/worker.h"
#include "util/clock.h"

static const float a[64] = { 0.5f, -1, 0.25f, 1.5f }, b[64] = { 0.5f, 1, 0.75f, -3 };

static void expect_bytes(const void *got, const char *hex)
{
    const unsigned char *at = got;
    unsigned byte;
    int used;

    for (; sscanf(hex, " %2x%n", &byte, &used) == 1; hex += used, at++)
        cr_assert_eq(*at, byte, "%02x at %zu, not %02x", *at, (size_t)(at - (const unsigned char *)got), byte);
}

static void pack(unsigned char *to, int8_t exponent, const float *unit, float scale)
{
    const struct pki_switchml_packet packet = { .exponents = { exponent, 0 } };

    pki_switchml_pack(&packet, 64, to);
    pki_switchml_quantise(to + PKI_SWITCHML_HEADER_BYTES, unit, 64, scale);
}

/* A sum in a packet. */
static void add(void *sum, const void *values, uint32_t n)
{
    uint32_t sums[PKI_SWITCHML_ELEMENTS_MAX];

    pki_switchml_swap(sums, sum, n);
    pki_switchml_add(sums, values, n);
    pki_switchml_swap(sum, sums, n);
}

Test(switchml, vectors_of_floats)
{
    unsigned char of_a[PKI_SWITCHML_PACKET_MAX], of_b[PKI_SWITCHML_PACKET_MAX];
    float scale = pki_switchml_scale(2, 2), sum[64];

    cr_assert_eq(pki_switchml_exponent(a, 64, 2), 1);
    cr_assert_eq(pki_switchml_exponent(b, 64, 2), 2);
    cr_assert(scale == 268435456.0f);
    pack(of_a, 1, a, scale);
    pack(of_b, 2, b, scale);
    expect_bytes(of_a, "11 00 00000000 0000 01 00 08000000 f0000000 04000000 18000000 00000000");
    expect_bytes(of_b, "11 00 00000000 0000 02 00 08000000 10000000 0c000000 d0000000 00000000");
    add(of_a + 10, of_b + 10, 64);
    expect_bytes(of_a + 10, "10000000 00000000 10000000 e8000000 00000000");
    pki_switchml_restore(sum, of_a + 10, 64, scale);
    cr_assert(sum[0] == 1 && sum[1] == 0 && sum[2] == 1 && sum[3] == -1.5f && sum[63] == 0);
}

static int8_t exponent(float x, int workers)
{
    return pki_switchml_exponent(&x, 1, workers);
}

Test(switchml, exponents)
{
    cr_assert_eq(exponent(0, 2), -126);
    cr_assert_eq(exponent(0.5f, 2), 0);
    cr_assert_eq(exponent(1, 2), 1);
    cr_assert_eq(exponent(-2, 2), 2);
    cr_assert_eq(exponent(1.7e38f, 1), 127);
    cr_assert_eq(exponent(8e37f, 2), 126);
    for (int workers = 2; workers <= 32; workers++) { /* what fits and what does not, on both sides of the border */
        const int log2 = workers <= 2 ? 1 : workers <= 4 ? 2 : workers <= 8 ? 3 : workers <= 16 ? 4 : 5;
        const float most = ldexpf(0.75f, 127 - log2);
        const float scale = pki_switchml_scale(exponent(most, workers), workers);

        cr_assert(pki_switchml_fits(exponent(most, workers), workers) && scale > 0 && isfinite(scale), "%d workers", workers);
        cr_assert_eq(exponent(2 * most, workers), PKI_SWITCHML_UNFIT);
        cr_assert(!pki_switchml_fits(PKI_SWITCHML_UNFIT, workers));
        cr_assert_eq(exponent(INFINITY, workers), PKI_SWITCHML_UNFIT);
        cr_assert_eq(exponent(NAN, workers), PKI_SWITCHML_UNFIT);
        cr_assert(isfinite(pki_switchml_scale(-126, workers)));
    }
}

/* The largest number below 2^e, from all workers: their sum stays within 32 bits, and comes out again. */
Test(switchml, sums_do_not_overflow)
{
    for (int workers = 2; workers <= 32; workers++)
        for (int e = -90; e <= 122; e += 53) {
            const float most = ldexpf(nextafterf(1, 0), e), scale = pki_switchml_scale((int8_t)e, workers);
            unsigned char sums[32] = { 0 }, value[32];
            float unit[8] = { most, -most, most / 3 }, sum[8];

            for (int w = 0; w < workers; w++) {
                pki_switchml_quantise(value, unit, 8, scale);
                add(sums, value, 8);
            }
            pki_switchml_restore(sum, sums, 8, scale);
            cr_assert_float_eq(sum[0] / most, workers, 1e-5, "%d workers, e %d: %g", workers, e, (double)(sum[0] / most));
            cr_assert_float_eq(sum[1] / most, -workers, 1e-5);
            cr_assert_float_eq(sum[2] / most, workers / 3.0, 1e-5);
        }
}

static uint32_t hash(uint32_t a, uint32_t b)
{
    uint32_t h = a * 2654435761u ^ (b + 0x9e3779b9u) * 2246822519u;

    h ^= h >> 15;
    h *= 2654435761u;
    return h ^ h >> 13;
}

/* Some as large as may be, the others of all lengths below. */
static float below(int e, uint32_t worker, uint32_t i)
{
    const uint32_t h = hash(worker * 64 + i, (uint32_t)e);
    const double x = i < 4 ? 1 - ldexp(1, -24) : ldexp(1 + h % 8388608 / 8388608.0, -1 - (int)(i % 40));

    return (float)ldexp((h >> 31) != 0 && i > 0 ? -x : x, e);
}

/* The bound of docs/switchml.md, and what is done where there is none: `most` is 2^e. */
static void check_bound(int workers, int e, double most)
{
    unsigned char sums[256] = { 0 }, value[256];
    float unit[64], sum[64], scale;
    int8_t largest = -128;
    const bool power = (workers & (workers - 1)) == 0;

    for (int w = 0; w < workers; w++) {
        for (uint32_t i = 0; i < 64; i++)
            unit[i] = below(e, (uint32_t)w, i);
        largest = pki_switchml_exponent(unit, 64, workers) > largest ? pki_switchml_exponent(unit, 64, workers) : largest;
    }
    cr_assert(pki_switchml_fits(largest, workers) == (most * workers <= ldexp(1, 127)) || !power, "%d workers, e %d", workers, e);
    if (!pki_switchml_fits(largest, workers)) {
        cr_assert(most * workers > ldexp(1, 127), "%d workers, e %d are refused", workers, e);
        return;
    }
    scale = pki_switchml_scale(largest, workers);
    for (int w = 0; w < workers; w++) {
        for (uint32_t i = 0; i < 64; i++)
            unit[i] = below(e, (uint32_t)w, i);
        pki_switchml_quantise(value, unit, 64, scale);
        add(sums, value, 64);
    }
    pki_switchml_restore(sum, sums, 64, scale);
    for (uint32_t i = 0; i < 64; i++) {
        double exact = 0, absolute = 0, bound = workers * workers * (most > ldexp(1, -96) ? most : ldexp(1, -96)) / 4294967296.0;

        for (int w = 0; w < workers; w++) {
            exact += (double)below(e, (uint32_t)w, i);
            absolute += fabs((double)below(e, (uint32_t)w, i));
        }
        bound += power ? ldexp(fabs((double)sum[i]), -24) : 3 * ldexp(absolute, -24);
        cr_assert(fabs((double)sum[i] - exact) <= bound, "%d workers, e %d, element %u: %g is not %g, the bound is %g", workers,
                  e, i, (double)sum[i], exact, bound);
    }
}

Test(switchml, floats_keep_the_bound_in_every_range)
{
    for (int workers = 2; workers <= 32; workers++)
        for (int e = -148; e <= 128; e++)
            check_bound(workers, e, ldexp(1, e));
}

Test(switchml, integers_wrap_and_vectors_agree)
{
    unsigned char sums[4 * 67], values[4 * 67];
    uint32_t together[67], alone[67];

    expect_bytes(memcpy(sums, "\x7f\xff\xff\xff", 4), "7fffffff");
    add(sums, "\0\0\0\1", 1);
    expect_bytes(sums, "80000000");
    for (size_t i = 0; i < sizeof sums; i++) {
        sums[i] = (unsigned char)(i * 37 + 11);
        values[i] = (unsigned char)(i * 101 + 3);
    }
    memcpy(together, sums, sizeof sums);
    memcpy(alone, sums, sizeof sums);
    pki_switchml_add(together, values, 67);
    pki_switchml_add_portably(alone, values, 67);
    cr_assert_arr_eq(together, alone, sizeof together);
    pki_switchml_swap(values, sums, 67);
    cr_assert(values[0] == sums[3] && values[267] == sums[264]);
}

static void expect_indices(uint32_t base, uint32_t shift, const char *hex)
{
    const struct pki_switchml_timing timing = { .timeout_ns = 1, .threshold = 1 };
    struct pki_switchml_worker worker;
    unsigned index;
    int used;

    cr_assert_eq(pki_switchml_worker_init(&worker, base, 4, &timing), PK_OK);
    worker.shift = shift;
    for (uint32_t p = 0; sscanf(hex, " %4x%n", &index, &used) == 1; p++, hex += used)
        cr_assert_eq(pki_switchml_worker_index(&worker, p), index, "packet %u: %04x, not %04x", p,
                     pki_switchml_worker_index(&worker, p), index);
    pki_switchml_worker_close(&worker);
}

Test(switchml, indices)
{
    expect_indices(0, 0, "0 1 2 3 8000 8001 8002 8003 0");
    expect_indices(8, 5, "8009 800a 800b 8 9 a b 8008 8009");
}

/* Each element is one thread's, in the order of the threads, of which the first have one more where they cannot have as many. */
Test(switchml, threads_share_the_elements)
{
    static const size_t counts[] = { 0, 1, 3, 4, 15, 16, 17, 255, 1000003 };

    for (uint32_t threads = 1; threads <= PKI_SWITCHML_THREADS_MAX; threads++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            size_t next = 0, first, n;

            for (uint32_t t = 0; t < threads; t++) {
                pki_switchml_share(counts[c], threads, t, &first, &n);
                cr_assert_eq(first, next, "%zu elements, thread %u of %u", counts[c], t, threads);
                cr_assert_eq(n, counts[c] / threads + (t < counts[c] % threads));
                next = first + n;
            }
            cr_assert_eq(next, counts[c]);
        }
}

Test(switchml, threads_have_slots_of_their_own)
{
    cr_assert_eq(pki_switchml_base(4, 1), 8); /* that of the indices above */
    for (uint32_t threads = 1; threads <= PKI_SWITCHML_THREADS_MAX; threads++) {
        for (uint32_t t = 1; t < threads; t++)
            cr_assert(pki_switchml_base(5, t) >= pki_switchml_base(5, t - 1) + 5);
        cr_assert_eq(pki_switchml_slots(5, threads), pki_switchml_base(5, threads - 1) + 5);
    }
}

/* A thread without packets counts the job as the others do, and its slots stay where they were. */
Test(switchml, a_job_without_packets)
{
    const struct pki_switchml_timing timing = { .timeout_ns = 10, .threshold = 4 };
    struct pki_switchml_worker w;
    uint32_t next[2];

    cr_assert_eq(pki_switchml_worker_init(&w, 8, 4, &timing), PK_OK);
    for (int job = 0; job < 300; job++) {
        const bool any = job % 3 == 1;
        const uint32_t shift = w.shift;

        pki_switchml_worker_begin(&w, any ? 1 : 0, any ? 1 : 0, 0);
        cr_assert_eq(w.job, (uint8_t)job);
        cr_assert_eq(w.shift, job % 3 == 2 ? (shift + 1) % 8 : shift);
        cr_assert_eq(pki_switchml_worker_done(&w), !any);
        if (any)
            cr_assert(pki_switchml_worker_reply(
                &w, &(struct pki_switchml_packet){ .job = w.job, .index = pki_switchml_worker_index(&w, 0) }, 1, next));
        cr_assert_eq(pki_switchml_worker_due(&w), UINT64_MAX);
    }
    pki_switchml_worker_close(&w);
}

Test(switchml, timers_double_and_come_back)
{
    const struct pki_switchml_timing timing = { .timeout_ns = 10, .threshold = 4, .increment = 100 };
    struct pki_switchml_worker w;
    uint64_t now = 0;

    cr_assert_eq(pki_switchml_worker_init(&w, 0, 4, &timing), PK_OK);
    pki_switchml_worker_begin(&w, 8, 4, now);
    cr_assert_eq(pki_switchml_worker_due(&w), 10);
    cr_assert_eq(pki_switchml_worker_late(&w, 9), PKI_SWITCHML_NONE);
    for (uint32_t id = 0; id < 4; id++) /* of the first batch each by its own number */
        cr_assert_eq(pki_switchml_worker_late(&w, 10), id);
    cr_assert_eq(pki_switchml_worker_late(&w, 10), PKI_SWITCHML_NONE);
    cr_assert_eq(pki_switchml_worker_due(&w), 30, "after four it is twice as long: %llu",
                 (unsigned long long)pki_switchml_worker_due(&w));
    for (uint32_t id = 0; id < 8; id++) {
        const struct pki_switchml_packet reply = { .id = id, .index = pki_switchml_worker_index(&w, id) };
        uint32_t next[2];

        cr_assert(pki_switchml_worker_reply(&w, &reply, 12, next));
        cr_assert(!pki_switchml_worker_reply(&w, &reply, 12, next), "a second time");
        cr_assert_eq(next[0], PKI_SWITCHML_NONE);
        cr_assert_eq(next[1], id + 4 < 8 ? id + 4 : PKI_SWITCHML_NONE);
    }
    cr_assert(pki_switchml_worker_done(&w));
    cr_assert_eq(w.doublings, 0);
    cr_assert_eq(pki_switchml_worker_due(&w), UINT64_MAX);
    pki_switchml_worker_close(&w);
}

/* After four, then six more, then eight more; then a window of replies, and it starts again. */
Test(switchml, timers_double_more_and_more_slowly)
{
    const struct pki_switchml_timing timing = { .timeout_ns = 10, .threshold = 4, .increment = 2 };
    struct pki_switchml_worker w;
    uint64_t now = 0, last = 10;
    uint32_t doubled[3] = { 0 }, n = 0, next[2];

    cr_assert_eq(pki_switchml_worker_init(&w, 0, 1, &timing), PK_OK);
    pki_switchml_worker_begin(&w, 2, 1, now);
    for (uint32_t sent = 1; n < 3; sent++) {
        now = pki_switchml_worker_due(&w);
        cr_assert_eq(pki_switchml_worker_late(&w, now), 0);
        if (pki_switchml_worker_due(&w) - now == last)
            continue;
        cr_assert_eq(pki_switchml_worker_due(&w) - now, 2 * last);
        last *= 2;
        doubled[n++] = sent;
    }
    cr_assert(doubled[0] == 4 && doubled[1] == 10 && doubled[2] == 18, "%u, %u, %u", doubled[0], doubled[1], doubled[2]);
    cr_assert(pki_switchml_worker_reply(&w, &(struct pki_switchml_packet){ .index = 0 }, now, next));
    for (int sent = 1; sent <= 4; sent++) {
        const uint64_t due = pki_switchml_worker_due(&w);

        cr_assert_eq(due - now, 10, "after %d it is not as at first", sent - 1);
        now = due;
        cr_assert_eq(pki_switchml_worker_late(&w, now), 1);
    }
    cr_assert_eq(pki_switchml_worker_due(&w) - now, 20);
    pki_switchml_worker_close(&w);
}

static void answer(struct pki_switchml_worker *w, uint32_t id, uint64_t now, uint32_t next)
{
    const struct pki_switchml_packet reply = { .id = id, .index = pki_switchml_worker_index(w, id) };
    uint32_t sent[2];

    cr_assert(pki_switchml_worker_reply(w, &reply, now, sent));
    cr_assert_eq(sent[1], next, "after the reply to %u goes %u, not %u", id, sent[1], next);
}

/* 1,000 is the longest. The first packets wait for ranks that have not called: the first round trip is that of packet 4. */
Test(switchml, timers_learn_round_trips)
{
    const struct pki_switchml_timing timing = { .timeout_ns = 1000, .least_ns = 50, .threshold = 100, .increment = 100 };
    struct pki_switchml_worker w;

    cr_assert_eq(pki_switchml_worker_init(&w, 0, 4, &timing), PK_OK);
    pki_switchml_worker_begin(&w, 100, 4, 0);
    for (uint32_t id = 0; id < 4; id++)
        answer(&w, id, 900, id + 4);
    cr_assert_eq(pki_switchml_worker_due(&w), 1900);
    answer(&w, 4, 1000, 8); /* 100, give or take 50 */
    cr_assert_eq(pki_switchml_worker_due(&w), 900 + 100 + 4 * 50);
    for (uint32_t id = 5; id < 90; id++)
        answer(&w, id, 1000, id + 4);
    cr_assert_eq(pki_switchml_worker_due(&w), 1050, "the least that a timer waits");
    pki_switchml_worker_close(&w);
}

/* Three later ones have been answered: it is lost. A reply to what was sent twice says nothing of those between. */
Test(switchml, overtaken_packets_go_again)
{
    const struct pki_switchml_timing timing = { .timeout_ns = 1000, .threshold = 100, .increment = 100 };
    struct pki_switchml_worker w;

    cr_assert_eq(pki_switchml_worker_init(&w, 0, 8, &timing), PK_OK);
    pki_switchml_worker_begin(&w, 100, 8, 0);
    answer(&w, 1, 1, 9);
    answer(&w, 2, 1, 10);
    cr_assert_eq(pki_switchml_worker_overtaken(&w, 1), PKI_SWITCHML_NONE);
    answer(&w, 3, 1, 11);
    cr_assert_eq(pki_switchml_worker_overtaken(&w, 1), 0);
    cr_assert_eq(pki_switchml_worker_overtaken(&w, 1), PKI_SWITCHML_NONE, "once");
    answer(&w, 0, 2, 8);
    cr_assert_eq(pki_switchml_worker_overtaken(&w, 2), PKI_SWITCHML_NONE);
    cr_assert_eq(w.resends, 0, "no timer has run out");
    pki_switchml_worker_close(&w);
}

/* A job of three units of floats and four slots: packet 4 is next for slot 0 when packet 1 has been answered, and packet 0 has
 * not. */
Test(switchml, slots_are_free_before_they_are_used_again)
{
    const struct pki_switchml_timing timing = { .timeout_ns = 10, .threshold = 100, .increment = 100 };
    const uint32_t order[] = { 1, 2, 0, 3, 4, 5 };
    const uint32_t wanted[][2] = { { UINT32_MAX, UINT32_MAX }, { UINT32_MAX, 5 },          { 4, 3 },
                                   { UINT32_MAX, UINT32_MAX }, { UINT32_MAX, UINT32_MAX }, { UINT32_MAX, UINT32_MAX } };
    struct pki_switchml_worker w;

    cr_assert_eq(pki_switchml_worker_init(&w, 0, 4, &timing), PK_OK);
    pki_switchml_worker_begin(&w, 6, 3, 0);
    for (int i = 0; i < 6; i++) {
        const struct pki_switchml_packet reply = { .id = order[i], .index = pki_switchml_worker_index(&w, order[i]) };
        uint32_t next[2];

        cr_assert(pki_switchml_worker_reply(&w, &reply, 1, next));
        cr_assert(next[0] == wanted[i][0] && next[1] == wanted[i][1], "reply %u: %u and %u", order[i], next[0], next[1]);
    }
    cr_assert(pki_switchml_worker_done(&w));
    pki_switchml_worker_close(&w);
}

/* Packet by packet, two workers and a slot. */
Test(switchml, aggregator)
{
    struct pki_switchml_aggregator s;
    const unsigned char one[256] = { 0, 0, 0, 1 }, two[256] = { 0, 0, 0, 2 };
    struct pki_switchml_packet p;
    const uint32_t *sums;

#define SEND(worker, packet, set, values) \
    (p = (struct pki_switchml_packet){ .id = (packet), .index = (set), .exponents = { (int8_t)(worker), 0 } }, \
     pki_switchml_aggregate(&s, (worker), &p, (values), &sums))
    cr_assert_eq(pki_switchml_aggregator_init(&s, 2, 1, 64), PK_OK);
    cr_assert_eq(SEND(0, 0, 1, one), PKI_SWITCHML_OUTSIDE);
    cr_assert_eq(SEND(0, 0, 0, one), PKI_SWITCHML_WAIT);
    cr_assert_eq(SEND(0, 0, 0, one), PKI_SWITCHML_AGAIN);
    cr_assert_eq(SEND(1, 7, 0, two), PKI_SWITCHML_DISAGREES);
    cr_assert_eq(SEND(1, 0, 0, two), PKI_SWITCHML_TO_ALL);
    cr_assert_eq(sums[0], 3);
    cr_assert_eq(p.exponents[0], 1);
    cr_assert_eq(SEND(0, 0, 0, one), PKI_SWITCHML_TO_ONE);
    cr_assert_eq(sums[0], 3);
    cr_assert_eq(SEND(1, 1, 0x8000, one), PKI_SWITCHML_WAIT);
    cr_assert_eq(SEND(1, 0, 0, two), PKI_SWITCHML_STALE);
    cr_assert_eq(SEND(0, 0, 0, one), PKI_SWITCHML_TO_ONE);
    cr_assert_eq(SEND(0, 1, 0x8000, one), PKI_SWITCHML_TO_ALL);
    cr_assert_eq(sums[0], 2);
    pki_switchml_aggregator_close(&s);
    cr_assert_eq(pki_switchml_aggregator_init(&s, 1, 1, 64), PK_OK);
    cr_assert_eq(SEND(0, 0, 0, two), PKI_SWITCHML_TO_ALL);
    cr_assert_eq(SEND(0, 0, 0, two), PKI_SWITCHML_TO_ONE);
    pki_switchml_aggregator_close(&s);
}

/* Of two ranks; `sum` is what a switch makes of them: the largest of both. */
static enum pki_switchml_marked seen(uint32_t own, uint32_t others, bool exponent, uint32_t id)
{
    struct pki_switchml_packet x = { .id = id }, y = { .id = id };

    pki_switchml_mark(own, exponent, &x);
    pki_switchml_mark(others, exponent, &y);
    for (int i = 0; i < 2; i++)
        y.exponents[i] = x.exponents[i] > y.exponents[i] ? x.exponents[i] : y.exponents[i];
    return pki_switchml_marked(own, exponent, &y);
}

Test(switchml, marks_of_operations)
{
    const unsigned char id[PKI_SWITCHML_ID_BYTES] = { 1, 2 }, another[PKI_SWITCHML_ID_BYTES] = { 1, 3 };
    const uint32_t own = pki_switchml_operation(id, 5, 77);
    const uint32_t others[] = { pki_switchml_operation(id, 5, 78), pki_switchml_operation(id, 9, 77),
                                pki_switchml_operation(id, 5 + 4 * 256, 77), pki_switchml_operation(another, 5, 77) };
    struct pki_switchml_packet reply;

    for (int k = 0; k < 4; k++) {
        int alike = 0, one_sided = 0, foreign = 0;

        for (uint32_t p = 0; p < 1000; p++) {
            reply = (struct pki_switchml_packet){ .id = p };
            pki_switchml_mark(others[k], false, &reply);
            foreign += pki_switchml_marked(own, false, &reply) == PKI_SWITCHML_FOREIGN;
            alike += seen(own, others[k], false, p) == PKI_SWITCHML_OWN;
            cr_assert_eq(seen(own, others[k], false, p), seen(others[k], own, false, p), "both see it, or none");
            one_sided +=
                (seen(own, others[k], true, p) == PKI_SWITCHML_MIXED) + (seen(others[k], own, true, p) == PKI_SWITCHML_MIXED);
            cr_assert_eq(seen(own, own, p % 2 == 0, p), PKI_SWITCHML_OWN);
            cr_assert_neq(reply.exponents[1], PKI_SWITCHML_MARKS_DIFFER);
        }
        cr_assert_leq(alike, 20, "case %d: %d of 1000 are alike", k, alike);
        cr_assert_eq(foreign + alike, 1000, "what is over is told from what others call");
        cr_assert_eq(one_sided + alike, 1000, "with an exponent the one with the smaller mark sees it");
    }
    reply = (struct pki_switchml_packet){ .id = 3, .exponents = { 0, PKI_SWITCHML_MARKS_DIFFER } };
    cr_assert_eq(pki_switchml_marked(own, true, &reply), PKI_SWITCHML_MIXED);
}

/* Where marks differ the reply says so to all, whoever came first. */
Test(switchml, aggregator_tells_of_marks)
{
    static const int8_t marks[][2] = { { 3, 3 }, { 3, -9 }, { -9, 3 } };
    const unsigned char values[256] = { 0 };
    struct pki_switchml_aggregator s;
    const uint32_t *sums;

    for (int k = 0; k < 3; k++) {
        struct pki_switchml_packet first = { .exponents = { 5, marks[k][0] } }, second = { .exponents = { 4, marks[k][1] } };

        cr_assert_eq(pki_switchml_aggregator_init(&s, 2, 1, 64), PK_OK);
        cr_assert_eq(pki_switchml_aggregate(&s, 0, &first, values, &sums), PKI_SWITCHML_WAIT);
        cr_assert_eq(pki_switchml_aggregate(&s, 1, &second, values, &sums), PKI_SWITCHML_TO_ALL);
        cr_assert_eq(second.exponents[0], 5);
        cr_assert_eq(second.exponents[1], k == 0 ? 3 : PKI_SWITCHML_MARKS_DIFFER);
        pki_switchml_aggregator_close(&s);
    }
}

/* Short jobs go round the slots: the next packet of a slot is of many jobs later, as packets count jobs of one before. */
Test(switchml, slots_that_rest_for_many_jobs)
{
    const unsigned char values[256] = { 0, 0, 0, 1 };
    struct pki_switchml_aggregator s;
    struct pki_switchml_packet p;
    const uint32_t *sums;

    for (uint32_t slots = 100; slots <= 600; slots += 100) {
        cr_assert_eq(pki_switchml_aggregator_init(&s, 1, slots, 64), PK_OK);
        for (uint32_t job = 0; job < 2000; job++) {
            const uint16_t set = job / slots % 2 != 0 ? 0x8000 : 0;

            p = (struct pki_switchml_packet){ .job = (uint8_t)job, .index = (uint16_t)(job % slots | set) };
            cr_assert_eq(pki_switchml_aggregate(&s, 0, &p, values, &sums), PKI_SWITCHML_TO_ALL, "job %u of %u slots", job, slots);
            p = (struct pki_switchml_packet){ .job = (uint8_t)(job - 1), .index = p.index };
            cr_assert_eq(pki_switchml_aggregate(&s, 0, &p, values, &sums), PKI_SWITCHML_STALE, "older than job %u", job);
        }
        pki_switchml_aggregator_close(&s);
    }
}

Test(switchml, packets_of_another_length_are_none)
{
    unsigned char bytes[PKI_SWITCHML_PACKET_MAX] = { 0 };
    const struct pki_switchml_packet packet = { .id = 0x01020304, .index = 0x8005, .job = 9, .exponents = { -3, 4 } };
    struct pki_switchml_packet got;

    pki_switchml_pack(&packet, 256, bytes);
    expect_bytes(bytes, "13 09 04030201 8005 fd 04");
    cr_assert(pki_switchml_unpack(bytes, 1034, 256, &got));
    cr_assert(got.id == packet.id && got.index == packet.index && got.job == packet.job && got.exponents[0] == -3 &&
              got.exponents[1] == 4);
    for (size_t n = 0; n < 1100; n++)
        cr_assert(n == 1034 || !pki_switchml_unpack(bytes, n, 256, &got));
    cr_assert(!pki_switchml_unpack(bytes, 266, 64, &got));
    bytes[6] |= 0x40;
    cr_assert(!pki_switchml_unpack(bytes, 1034, 256, &got));
}

Test(switchml, settings)
{
    struct pki_switchml_settings s;
    char file[] =
        "# a comment\n[general]\nrank = 3\ncontroller_ip = 10.0.0.7 ; another\ncontroller_port=50099\npacket_numel = 64\n"
        "max_outstanding_packets = 128\nnum_worker_threads = 3\ntimeout = 5\ntimeout_threshold = 7\ntimeout_threshold_increment = "
        "0\n[backend.rdma]\nmsg_numel = 1\n";
    char unknown[] = "[general]\ncontroller_ip = h\npackets = 3\n", no_host[] = "[general]\n",
         number[] = "controller_ip = h\ntimeout = 0\n", no_thread[] = "controller_ip = h\nnum_worker_threads = 0\n",
         many[] = "controller_ip = h\nnum_worker_threads = 17\n",
         few[] = "num_worker_threads = 3\nmax_outstanding_packets = 2\ncontroller_ip = h\n";
    pk_error_info_t info = { .struct_size = sizeof info };

    cr_assert_eq(pki_switchml_settings_parse(file, "file", &s), PK_OK);
    cr_assert(strcmp(s.host, "10.0.0.7") == 0 && s.port == 50099 && s.elements == 64 && s.window == 128 && s.threads == 3);
    cr_assert(s.timing.timeout_ns == 5 * PKI_NS_PER_MS && s.timing.threshold == 7 && s.timing.increment == 0);
    cr_assert_eq(pki_switchml_settings_parse(unknown, "file", &s), PK_ERR_ARG);
    cr_assert_eq(pki_switchml_settings_parse(no_host, "file", &s), PK_ERR_ARG);
    cr_assert_eq(pki_switchml_settings_parse(number, "file", &s), PK_ERR_ARG);
    cr_assert_eq(pki_switchml_settings_parse(no_thread, "file", &s), PK_ERR_ARG);
    cr_assert_eq(pki_switchml_settings_parse(many, "file", &s), PK_ERR_ARG);
    cr_assert_eq(pki_switchml_settings_parse(few, "file", &s), PK_ERR_ARG);
    cr_assert(pk_last_error(&info) == PK_OK && strstr(info.text, "file: max_outstanding_packets is 2") != NULL, "%s", info.text);
    cr_assert_eq(pki_switchml_settings_read("[fe80::1%eth0]:7", &s), PK_OK);
    cr_assert(strcmp(s.host, "fe80::1%eth0") == 0 && s.port == 7 && s.elements == 256 && s.window == 256 && s.threads == 1);
    cr_assert_eq(pki_switchml_settings_read("switch:48864", &s), PK_OK);
    cr_assert_eq(pki_switchml_settings_read("switch", &s), PK_ERR_ARG);
    cr_assert_eq(pki_switchml_settings_read(":1", &s), PK_ERR_ARG);
    cr_assert_eq(pki_switchml_settings_read("[]:1", &s), PK_ERR_ARG);
    cr_assert_eq(pki_switchml_settings_read("switch:70000", &s), PK_ERR_ARG);
    cr_assert_eq(pki_switchml_settings_read("/no/such.cfg", &s), PK_ERR_ARG);
}

Test(switchml, proofs)
{
    const unsigned char key[16] = { 1 }, other[16] = { 2 };
    const struct pki_switchml_greeting greeting = { { 5 } }, another = { { 6 } };
    const struct pki_switchml_hello hello = {
        .id = { 3 }, .rank = 1, .workers = 2, .elements = 64, .window = 9, .port = 7, .threads = 1, .nonce = { 8 }
    };
    const struct pki_switchml_answer answer = { .accepted = true, .window = 9, .port = 7 };
    struct pki_switchml_hello got;
    struct pki_switchml_answer said;
    unsigned char bytes[PKI_SWITCHML_HELLO_BYTES], reply[PKI_SWITCHML_ANSWER_BYTES];

    cr_assert_eq(pki_switchml_hello_pack(&hello, key, &greeting, bytes), PK_OK);
    cr_assert(pki_switchml_hello_unpack(bytes, key, &greeting, &got) && got.rank == 1 && got.window == 9 && got.port == 7);
    cr_assert(!pki_switchml_hello_unpack(bytes, other, &greeting, &got), "another secret");
    cr_assert(!pki_switchml_hello_unpack(bytes, key, &another, &got), "another connection's");
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] ^= 1;
        cr_assert(!pki_switchml_hello_unpack(bytes, key, &greeting, &got), "byte %zu", i);
        bytes[i] ^= 1;
    }
    cr_assert_eq(pki_switchml_answer_pack(&answer, key, &greeting, &hello, reply), PK_OK);
    cr_assert(pki_switchml_answer_unpack(reply, key, &greeting, &hello, &said) && said.accepted && said.window == 9);
    cr_assert(!pki_switchml_answer_unpack(reply, other, &greeting, &hello, &said));
    for (size_t i = 0; i < sizeof reply; i++) {
        reply[i] ^= 1;
        cr_assert(!pki_switchml_answer_unpack(reply, key, &greeting, &hello, &said), "byte %zu", i);
        reply[i] ^= 1;
    }
}

Test(switchml, hellos_of_several_threads)
{
    const unsigned char key[16] = { 1 };
    const struct pki_switchml_greeting greeting = { { 5 } };
    struct pki_switchml_hello hello = { .workers = 2, .elements = 64, .window = 9, .port = 65530, .threads = 1 }, got;
    struct pki_switchml_answer answer = { .accepted = true, .port = 7 }, said;
    unsigned char bytes[PKI_SWITCHML_HELLO_BYTES], reply[PKI_SWITCHML_ANSWER_BYTES];

    for (hello.threads = 0; hello.threads < 20; hello.threads++) {
        const bool right = hello.threads >= 1 && hello.threads <= 6; /* 65535 is the last port */

        cr_assert_eq(pki_switchml_hello_pack(&hello, key, &greeting, bytes), PK_OK);
        expect_bytes(bytes + 4, "00000002");
        cr_assert_eq(pki_switchml_hello_unpack(bytes, key, &greeting, &got), right, "%u threads", hello.threads);
        cr_assert(!right || got.threads == hello.threads);
    }
    hello.threads = 16;
    hello.port = 9;
    cr_assert_eq(pki_switchml_hello_pack(&hello, key, &greeting, bytes), PK_OK);
    cr_assert(!pki_switchml_hello_unpack(bytes, key, &greeting, &got), "a packet for each thread");
    hello.threads = 3;
    for (answer.window = 0; answer.window < 12; answer.window++) {
        cr_assert_eq(pki_switchml_answer_pack(&answer, key, &greeting, &hello, reply), PK_OK);
        cr_assert_eq(pki_switchml_answer_unpack(reply, key, &greeting, &hello, &said),
                     answer.window >= 3 && answer.window <= 9 && answer.window % 3 == 0, "W %u", answer.window);
    }
}
