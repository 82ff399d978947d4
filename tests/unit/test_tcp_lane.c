/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: the control channel between two ranks while connections break, and who leaves. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp_pair.h"

#define TIMEOUT_NS (20 * PKI_NS_PER_S)

static unsigned char payload[PKI_TCP_EAGER_MAX];

static void begin(struct tcp_pair *pair)
{
    setenv("PK_SOCKETS", "1/0", 1);
    setenv("PK_RETRY_MS", "6000", 1); /* so long who leaves waits for a processor at least */
    tcp_pair_new(pair);
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (unsigned char)(i * 7 + i / 251);
}

static void say(struct tcp_pair *pair, int from, uint64_t op, uint32_t bytes)
{
    const struct pki_msg msg = { .kind = PKI_MSG_EAGER, .flags = PKI_MSG_FLAG_COLL, .op = op, .sig = 5, .payload = bytes };
    uint64_t until = pki_now_ns() + TIMEOUT_NS;
    pk_result_t result;

    while ((result = tcp()->send(pair->ep[from], &msg, payload)) == PK_IN_PROGRESS && pki_now_ns() < until)
        tcp_pair_progress(pair);
    cr_assert_eq(result, PK_OK);
}

static void say_news(struct tcp_pair *pair, int from)
{
    const struct pki_msg msg = { .kind = PKI_MSG_SIDE, .payload = 12 };

    cr_assert_eq(tcp()->send(pair->ep[from], &msg, "twelve bytes"), PK_OK);
}

static bool hears(struct tcp_pair *pair, int rank, struct pki_msg *msg, uint64_t ns)
{
    uint64_t until = pki_now_ns() + ns;
    const void *got;

    while (!tcp()->peek(pair->ep[rank], msg, &got)) {
        if (pki_now_ns() >= until || pair->ep[rank]->state == PKI_EP_DEAD)
            return false;
        tcp_pair_progress(pair);
    }
    if (msg->kind == PKI_MSG_EAGER)
        cr_assert_eq(memcmp(got, payload, msg->payload), 0);
    tcp()->pop(pair->ep[rank]);
    return true;
}

/* What comes is op 1 to `last`, in order. */
static void hear_all(struct tcp_pair *pair, int rank, uint64_t last)
{
    struct pki_msg msg;

    for (uint64_t i = 1; i <= last; i++) {
        cr_assert(hears(pair, rank, &msg, TIMEOUT_NS), "%llu of %llu", (unsigned long long)i, (unsigned long long)last);
        cr_assert_eq(msg.op, i);
    }
    cr_assert(!hears(pair, rank, &msg, 20 * PKI_NS_PER_MS), "and nothing else");
}

/* All round the ring; acknowledgements, of short messages too. */
Test(tcp_lane, nothing_is_lost_where_it_is_cut)
{
    struct tcp_pair pair;
    struct pki_msg msg;
    uint64_t heard = 0;

    begin(&pair);
    for (uint64_t op = 1; op <= 3000; op++) {
        int rank = op % 3 == 0;

        say(&pair, rank, op, (uint32_t)(op * 37 % 3000));
        if (op % 40 == 0)
            tcp_cut(pair.ep[op / 40 % 2], 0);
        cr_assert(hears(&pair, 1 - rank, &msg, TIMEOUT_NS));
        heard += msg.op == op;
        cr_assert_not(pair.ep[0]->state == PKI_EP_DEAD || pair.ep[1]->state == PKI_EP_DEAD);
    }
    cr_assert_eq(heard, 3000);
    for (int rank = 0; rank < 2; rank++) {
        const struct pki_tcp_ctrl *ctrl = &pki_tcp_ep_of(pair.ep[rank])->ctrl;

        cr_assert_lt(ctrl->tx_end - ctrl->tx_head, 3 * PKI_TCP_TX_BYTES / 4, "it has been acknowledged");
        cr_assert_gt(ctrl->tx_end, 2 * PKI_TCP_TX_BYTES);
    }
    tcp_pair_free(&pair);
}

/* As where an operation fails: news first, then all chunks are given up. What was said before is heard before, whichever end it is. */
Test(tcp_lane, news_of_a_failure_comes)
{
    for (int from = 0; from < 2; from++) {
        struct tcp_pair pair;
        struct pki_msg msg;

        begin(&pair);
        say(&pair, from, 1, 100);
        say_news(&pair, from);
        tcp()->recv_cancel(pair.iface[from]);
        cr_assert(hears(&pair, 1 - from, &msg, TIMEOUT_NS / 20) && msg.kind == PKI_MSG_EAGER);
        cr_assert(hears(&pair, 1 - from, &msg, TIMEOUT_NS / 20) && msg.kind == PKI_MSG_SIDE);
        tcp_pair_free(&pair);
    }
}

/* The other end is not in the library, and has given up its chunks. */
Test(tcp_lane, nobody_waits_at_the_end_for_who_has_failed)
{
    struct tcp_pair pair;
    uint64_t began;

    begin(&pair);
    tcp()->recv_cancel(pair.iface[1]);
    for (int i = 0; i < 100; i++)
        (void)tcp()->progress(pair.iface[0]);
    began = pki_now_ns();
    tcp()->ep_close(pair.ep[0]);
    cr_assert_lt(pki_now_ns() - began, PKI_NS_PER_S);
    free(pair.ep[0]);
    pair.ep[0] = NULL;
    tcp_pair_drop(&pair);
}

/* Between two ranks the first of which is gone before the other one looks. */
Test(tcp_lane, shutdown_is_behind_everything)
{
    for (unsigned pause = 0; pause < 2; pause++) {
        struct tcp_pair pair;

        begin(&pair);
        for (uint64_t op = 1; op <= 40; op++)
            say(&pair, 1, op, 3000);
        tcp()->ep_close(pair.ep[1]);
        if (pause)
            usleep(20000);
        hear_all(&pair, 0, 40);
        for (uint64_t until = pki_now_ns() + TIMEOUT_NS; !pki_tcp_ep_of(pair.ep[0])->left && pki_now_ns() < until;)
            (void)tcp()->progress(pair.iface[0]);
        cr_assert(pair.ep[0]->state != PKI_EP_DEAD && pki_tcp_ep_of(pair.ep[0])->left);
        tcp_pair_free(&pair);
    }
}

/* ---- Who leaves while connections break ---- */

struct leaver {
    struct tcp_pair pair;
    int rank;
    uint64_t last, state;
};

static unsigned draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 40);
}

static void cut_one(struct leaver *l, unsigned chance)
{
    if (draw(&l->state) % chance == 0)
        tcp_cut(l->pair.ep[l->rank], draw(&l->state) % pki_tcp_ep_of(l->pair.ep[l->rank])->nlinks);
}

static void *leave(void *arg)
{
    struct leaver *l = arg;

    for (uint64_t op = 1; op <= l->last; op++) {
        const struct pki_msg msg = {
            .kind = PKI_MSG_EAGER, .flags = PKI_MSG_FLAG_COLL, .op = op, .payload = draw(&l->state) % 4000
        };

        while (tcp()->send(l->pair.ep[l->rank], &msg, payload) == PK_IN_PROGRESS)
            (void)tcp()->progress(l->pair.iface[l->rank]);
        cut_one(l, 12);
        if (draw(&l->state) % 3 == 0)
            (void)tcp()->progress(l->pair.iface[l->rank]);
    }
    say_news(&l->pair, l->rank);
    cut_one(l, 3);
    tcp()->ep_close(l->pair.ep[l->rank]);
    return NULL;
}

/* All of it comes, news last, and then the shutdown message. */
static void hear_out(struct leaver *l, uint64_t state)
{
    struct pki_ep *ep = l->pair.ep[1 - l->rank];
    uint64_t until = pki_now_ns() + TIMEOUT_NS, heard = 0;
    bool events = false;

    while (!(events && pki_tcp_ep_of(ep)->left) && ep->state != PKI_EP_DEAD && pki_now_ns() < until) {
        struct pki_msg msg;
        const void *got;

        for (unsigned i = draw(&state) % 12; i > 0 && tcp()->peek(ep, &msg, &got); i--) {
            cr_assert_not(events, "nothing comes behind it");
            events = msg.kind == PKI_MSG_SIDE;
            heard += msg.kind == PKI_MSG_EAGER;
            tcp()->pop(ep);
        }
        if (draw(&state) % 2 == 0)
            (void)tcp()->progress(l->pair.iface[1 - l->rank]);
    }
    cr_assert(events && ep->state != PKI_EP_DEAD && heard == l->last, "%llu of %llu, state %d", (unsigned long long)heard,
              (unsigned long long)l->last, (int)ep->state);
}

Test(tcp_lane, leaving_while_connections_break, .timeout = 120)
{
    uint64_t until = pki_now_ns() + 3 * PKI_NS_PER_S;

    for (unsigned round = 0; pki_now_ns() < until; round++) {
        struct leaver l = { .rank = (int)(round % 2), .last = 1 + round % 60, .state = round * 7919 + 1 };
        pthread_t thread;

        begin(&l.pair);
        cr_assert_eq(pthread_create(&thread, NULL, leave, &l), 0);
        hear_out(&l, round);
        pthread_join(thread, NULL);
        tcp_pair_drop(&l.pair);
    }
}
