/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: where chunks go both ways the head of one says that others have come, as of when it goes; where none goes soon, the control channel does. */
#include <criterion/criterion.h>

#include "tcp_acks.h"
#include "tcp_pair.h"

#define TIMEOUT_NS (20 * PKI_NS_PER_S)
#define BYTES 100000u

static unsigned char source[BYTES], target[2][2][BYTES];

static struct pki_tcp_link *chunks_of(const struct tcp_pair *pair, int rank)
{
    return &pki_tcp_ep_of(pair->ep[rank])->links[1];
}

static struct pki_tcp_iface *iface_of(const struct tcp_pair *pair, int rank)
{
    return pki_tcp_iface_of(pair->iface[rank]);
}

/* Both ranks wait for two transfers, as in a collective. */
static void begin_with(struct tcp_pair *pair, const char *chunk)
{
    tcp_params("1/0", "4", chunk);
    tcp_pair_new(pair);
    for (size_t i = 0; i < BYTES; i++)
        source[i] = (unsigned char)(i * 7 + i / 509);
    memset(target, 0, sizeof target);
    for (int rank = 0; rank < 2; rank++)
        for (uint64_t op = 1; op <= 2; op++) {
            const struct pki_msg msg = { .kind = PKI_MSG_CTS, .op = op, .sig = 5, .bytes = BYTES, .extra = PKI_CTS_LOCAL,
                                         .offset = (uint64_t)(uintptr_t)target[rank][op - 1] };

            cr_assert_eq(tcp()->msg(pair->ep[rank], &msg, NULL), PK_OK);
        }
    acks = 0;
}

static void begin(struct tcp_pair *pair)
{
    begin_with(pair, "524288");
}

static void put_with(struct tcp_pair *pair, int rank, struct pki_put *put, uint64_t op, bool eager_put)
{
    *put = (struct pki_put){ .ep = pair->ep[rank], .src = source, .bytes = BYTES, .about = { .kind = PKI_MSG_FIN, .op = op, .sig = 5, .bytes = BYTES } };
    put->eager_put = eager_put;
    pki_list_init(&put->node);
    cr_assert_eq(tcp()->put(put), PK_OK);
}

static void put(struct tcp_pair *pair, int rank, struct pki_put *it, uint64_t op)
{
    put_with(pair, rank, it, op, false);
}

/* Only this rank looks, until so many chunks have come to it. */
static void read_until(struct tcp_pair *pair, int rank, uint64_t chunks)
{
    for (uint64_t until = pki_now_ns() + TIMEOUT_NS; chunks_of(pair, rank)->received < chunks; (void)tcp()->progress(pair->iface[rank]))
        cr_assert(pki_now_ns() < until);
}

/* Rank 0 has sent what it was given, and rank 1 has read so much. */
static void both_until(struct tcp_pair *pair, uint64_t chunks)
{
    for (uint64_t until = pki_now_ns() + TIMEOUT_NS; chunks_of(pair, 1)->received < chunks; tcp_pair_progress(pair))
        cr_assert(pki_now_ns() < until);
}

/* Rank 0's put ends though rank 1 does nothing any more. */
static void ends_alone(struct tcp_pair *pair, struct pki_put *put)
{
    for (uint64_t until = pki_now_ns() + TIMEOUT_NS; pki_list_empty(&pair->iface[0]->done); (void)tcp()->progress(pair->iface[0]))
        cr_assert(pki_now_ns() < until);
    cr_assert(tcp_pair_has_ended(pair, 0, put));
}

Test(tcp_turns, the_next_chunk_says_that_one_has_come)
{
    struct tcp_pair pair;
    struct pki_put one, answer;

    begin(&pair);
    put(&pair, 0, &one, 1);
    read_until(&pair, 1, 1);
    cr_assert_eq(iface_of(&pair, 1)->acks_delayed, 1);
    put(&pair, 1, &answer, 1);
    read_until(&pair, 0, 1);
    cr_assert(tcp_pair_has_ended(&pair, 0, &one));
    for (int i = 0; i < 20; i++)
        (void)tcp()->progress(pair.iface[1]);
    cr_assert_eq(acks, 0, "%u: the chunk has said it", acks);
    cr_assert_eq(iface_of(&pair, 1)->acks_delayed, 0);
    tcp_pair_await_end(&pair, 1, &answer);
    cr_assert_eq(memcmp(target[0][0], source, BYTES), 0);
    cr_assert_eq(memcmp(target[1][0], source, BYTES), 0);
    tcp_pair_free(&pair);
}

Test(tcp_turns, else_ctrl_says_it)
{
    struct tcp_pair pair;
    struct pki_put one;

    begin(&pair);
    put(&pair, 0, &one, 1);
    read_until(&pair, 1, 1);
    cr_assert_eq(acks, 0);
    (void)tcp()->progress(pair.iface[1]);
    cr_assert_eq(acks, 1);
    cr_assert_eq(iface_of(&pair, 1)->acks_delayed, 0);
    tcp_pair_await_end(&pair, 0, &one);
    tcp_pair_free(&pair);
}

Test(tcp_turns, nobody_sleeps_and_delays_acks)
{
    struct tcp_pair pair;
    struct pki_put one;

    begin(&pair);
    put(&pair, 0, &one, 1);
    read_until(&pair, 1, 1);
    while (tcp()->wait_fd(pair.iface[1]) < 0) {
        cr_assert_eq(acks, 0);
        (void)tcp()->progress(pair.iface[1]);
    }
    cr_assert_eq(acks, 1);
    cr_assert_eq(iface_of(&pair, 1)->acks_delayed, 0);
    tcp_pair_await_end(&pair, 0, &one);
    tcp_pair_free(&pair);
}

/* A chunk that had to wait says what has come since. */
Test(tcp_turns, reported_as_of_when_it_goes)
{
    struct tcp_pair pair;
    struct pki_put one, answer;

    begin(&pair);
    chunks_of(&pair, 1)->writable = false;
    put(&pair, 1, &answer, 1);
    put(&pair, 0, &one, 1);
    read_until(&pair, 1, 1);
    chunks_of(&pair, 1)->writable = true;
    pki_tcp_link_ready(chunks_of(&pair, 1));
    pki_tcp_data_write(chunks_of(&pair, 1));
    read_until(&pair, 0, 1);
    cr_assert(tcp_pair_has_ended(&pair, 0, &one));
    cr_assert_eq(acks, 0);
    tcp_pair_await_end(&pair, 1, &answer);
    tcp_pair_free(&pair);
}

/* A short collective ends with the round that brings its last chunk, and its caller may not come back for a while. */
Test(tcp_turns, eager_puts_are_acknowledged_at_once)
{
    struct tcp_pair pair;
    struct pki_put one;

    begin_with(&pair, "65536");
    put_with(&pair, 0, &one, 1, true);
    both_until(&pair, 2);
    cr_assert_eq(iface_of(&pair, 1)->acks_delayed, 0);
    ends_alone(&pair, &one);
    tcp_pair_free(&pair);
}

/* Nor may the engine come back when it has heard that the last transfer it waits for is there. */
Test(tcp_turns, acknowledged_when_all_is_heard)
{
    struct tcp_pair pair;
    struct pki_put puts[2];
    const void *payload;
    struct pki_msg msg;

    begin(&pair);
    for (uint64_t op = 1; op <= 2; op++)
        put(&pair, 0, &puts[op - 1], op);
    both_until(&pair, 2);
    while (tcp()->peek(pair.ep[1], &msg, &payload))
        tcp()->pop(pair.ep[1]);
    cr_assert_eq(iface_of(&pair, 1)->acks_delayed, 0);
    for (int i = 0; i < 2; i++)
        ends_alone(&pair, &puts[i]);
    tcp_pair_free(&pair);
}

Test(tcp_turns, who_is_about_to_sleep_delays_no_ack)
{
    struct tcp_pair pair;
    struct pki_put one;

    begin(&pair);
    put(&pair, 0, &one, 1);
    atomic_fetch_add(&pair.iface[1]->sleepers, 1);
    read_until(&pair, 1, 1);
    cr_assert_eq(acks, 1);
    cr_assert_eq(iface_of(&pair, 1)->acks_delayed, 0);
    atomic_fetch_sub(&pair.iface[1]->sleepers, 1);
    tcp_pair_await_end(&pair, 0, &one);
    tcp_pair_free(&pair);
}

/* What an endpoint owes goes with it. */
Test(tcp_turns, leaves_in_debt)
{
    struct tcp_pair pair;
    struct pki_put one;

    begin(&pair);
    put(&pair, 0, &one, 1);
    read_until(&pair, 1, 1);
    cr_assert_eq(iface_of(&pair, 1)->acks_delayed, 1);
    pair.ep[1]->dead = true; /* no waiting for the shutdown message */
    tcp()->ep_close(pair.ep[1]);
    cr_assert_eq(iface_of(&pair, 1)->acks_delayed, 0);
    free(pair.ep[1]);
    pair.ep[1] = NULL;
    tcp_pair_drop(&pair);
}
