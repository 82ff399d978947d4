/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: short chunks that are kept, so that their puts need not wait. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <unistd.h>

#include "tcp_pair.h"

#define TIMEOUT_NS (20 * PKI_NS_PER_S)
#define BYTES 100000u
#define LEAST ((size_t)64 << 10)
#define MOST (PKI_TCP_RETRANSMIT_MAX + 5000u)

static unsigned char source[2][MOST], target[2][MOST];

static unsigned messages; /* heard */
static struct pki_tcp_ep *ep_of(const struct tcp_pair *pair, int rank)
{
    return pki_tcp_ep_of(pair->ep[rank]);
}

static unsigned char byte_of(uint64_t op, size_t at)
{
    return (unsigned char)(op * 61 + at * 7 + at / 509);
}

static void grant(struct tcp_pair *pair, int rank, uint64_t op, size_t bytes)
{
    const struct pki_msg msg = {
        .kind = PKI_MSG_CTS, .op = op, .sig = 5, .bytes = bytes, .offset = (uint64_t)(uintptr_t)target[rank]
    };

    memset(target[rank], 0, MOST);
    cr_assert_eq(tcp_post(pair->ep[rank], &msg, false), PK_OK);
}

static void fill(int rank, uint64_t op, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        source[rank][i] = byte_of(op, i);
}

static void put_it(struct tcp_pair *pair, int rank, struct pki_put *put, uint64_t op, size_t bytes)
{
    *put = (struct pki_put){ .ep = pair->ep[rank],
                             .src = source[rank],
                             .bytes = bytes,
                             .eager_put = true,
                             .about = { .kind = PKI_MSG_FIN, .op = op, .sig = 5, .bytes = bytes } };
    pki_list_init(&put->event.node);
    cr_assert_eq(tcp()->put(put), PK_OK);
}

static void put(struct tcp_pair *pair, int rank, struct pki_put *put, uint64_t op, size_t bytes)
{
    fill(rank, op, bytes);
    put_it(pair, rank, put, op, bytes);
}

/* All of it has come, and is right; only this rank looks where the other one is gone. */
static void hear(struct tcp_pair *pair, int rank, uint64_t op, size_t bytes)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;

    for (bool whole = false; !whole;) {
        struct pki_msg msg;
        const void *payload;

        cr_assert(pki_now_ns() < until && pair->ep[rank]->state != PKI_EP_DEAD, "op %llu", (unsigned long long)op);
        (void)tcp()->progress(pair->iface[rank]);
        if (pair->ep[1 - rank] != NULL)
            (void)tcp()->progress(pair->iface[1 - rank]);
        while (!whole && tcp_peek(pair->ep[rank], &msg, &payload)) {
            cr_assert(msg.kind == PKI_MSG_FIN || msg.kind == PKI_MSG_EAGER, "nothing else comes before it: %u", msg.kind);
            messages += msg.kind == PKI_MSG_EAGER;
            whole = msg.kind == PKI_MSG_FIN && msg.op == op && msg.offset == bytes;
            tcp_pop(pair->ep[rank]);
        }
    }
    for (size_t i = 0; i < bytes; i++)
        cr_assert_eq(target[rank][i], byte_of(op, i), "op %llu, byte %zu", (unsigned long long)op, i);
}

/* Both ends have had a chunk acknowledged, by which each has let the connection in. */
static void begin_with(struct tcp_pair *pair, const char *sockets, const char *window)
{
    tcp_params(sockets, window, "524288");
    tcp_pair_new(pair);
    for (int rank = 0; rank < 2; rank++) {
        struct pki_put first;

        grant(pair, 1 - rank, 1, BYTES);
        put(pair, rank, &first, 1, BYTES);
        hear(pair, 1 - rank, 1, BYTES);
        tcp_pair_await_end(pair, rank, &first);
    }
}

static void begin(struct tcp_pair *pair)
{
    begin_with(pair, "1/0", "4");
}

static void spoil(int rank)
{
    memset(source[rank], 0xee, MOST);
}

Test(tcp_retransmit, ends_at_once)
{
    struct tcp_pair pair;
    struct pki_put one;

    begin(&pair);
    grant(&pair, 1, 2, 70000);
    put(&pair, 0, &one, 2, 70000);
    cr_assert(tcp_pair_has_ended(&pair, 0, &one));
    spoil(0);
    hear(&pair, 1, 2, 70000);
    tcp_pair_free(&pair);
}

/* Each is acknowledged, wherever the ring ends. */
Test(tcp_retransmit, all_one_way)
{
    struct tcp_pair pair;
    struct pki_put one;

    begin(&pair);
    for (uint64_t op = 2; op < 60; op++) {
        size_t bytes = LEAST + (size_t)(op * 7919) % (PKI_TCP_RETRANSMIT_MAX - LEAST + 1);

        grant(&pair, 1, op, bytes);
        put(&pair, 0, &one, op, bytes);
        tcp_pair_await_end(&pair, 0, &one);
        spoil(0);
        hear(&pair, 1, op, bytes);
        for (int i = 0; i < 50; i++)
            tcp_pair_progress(&pair);
        cr_assert_eq(ep_of(&pair, 0)->links[1].end, ep_of(&pair, 0)->links[1].acked);
    }
    tcp_pair_free(&pair);
}

/* Nobody reads: what has no place waits, and all comes. */
Test(tcp_retransmit, no_more_than_there_is_room_for)
{
    static struct pki_put puts[12];
    struct tcp_pair pair;
    unsigned ended = 0;

    begin_with(&pair, "1/0", "16");
    fill(0, 2, PKI_TCP_RETRANSMIT_MAX);
    for (unsigned i = 0; i < 12; i++) {
        grant(&pair, 1, 2 + i, PKI_TCP_RETRANSMIT_MAX);
        put_it(&pair, 0, &puts[i], 2 + i, PKI_TCP_RETRANSMIT_MAX);
        for (int k = 0; k < 50; k++)
            (void)tcp()->progress(pair.iface[0]);
        while (events_put(pair.iface[0]) != NULL)
            ended++;
        cr_assert_leq(ep_of(&pair, 0)->retransmit.end - ep_of(&pair, 0)->retransmit.head, PKI_TCP_RETRANSMIT_BYTES);
    }
    cr_assert_leq(ended, PKI_TCP_RETRANSMIT_BYTES / PKI_TCP_RETRANSMIT_MAX);
    for (uint64_t until = pki_now_ns() + TIMEOUT_NS; ended < 12 && pki_now_ns() < until; tcp_pair_progress(&pair))
        while (events_put(pair.iface[0]) != NULL)
            ended++;
    cr_assert_eq(ended, 12);
    for (size_t i = 0; i < PKI_TCP_RETRANSMIT_MAX; i++)
        cr_assert_eq(target[1][i], byte_of(2, i));
    tcp_pair_free(&pair);
}

/* What is not kept waits. */
Test(tcp_retransmit, waits_where_it_has_to)
{
    static const struct {
        const char *sockets, *window;
        size_t bytes;
    } cases[] = { { "1/0", "1", BYTES }, { "1/0", "4", PKI_TCP_RETRANSMIT_MAX + 1 } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tcp_pair pair;
        struct pki_put one;

        begin_with(&pair, cases[i].sockets, cases[i].window);
        grant(&pair, 1, 2, cases[i].bytes);
        put(&pair, 0, &one, 2, cases[i].bytes);
        for (int k = 0; k < 20; k++)
            (void)tcp()->progress(pair.iface[0]);
        cr_assert(events_look(pair.iface[0]) == NULL, "case %zu", i);
        hear(&pair, 1, 2, cases[i].bytes);
        tcp_pair_await_end(&pair, 0, &one);
        tcp_pair_free(&pair);
    }
}

/* The connection breaks before it is read, or in the middle, or behind it: it comes from the copy, once. After that nothing is kept. */
Test(tcp_retransmit, comes_from_the_copy)
{
    for (int rounds = 0; rounds < 12; rounds++) {
        struct tcp_pair pair;
        struct pki_put one;

        begin(&pair);
        grant(&pair, 1, 2, 200000);
        put(&pair, 0, &one, 2, 200000);
        tcp_pair_await_end(&pair, 0, &one);
        spoil(0);
        for (int i = 0; i < rounds; i++)
            (void)tcp()->progress(pair.iface[1]);
        tcp_cut(pair.ep[rounds % 2], 1);
        hear(&pair, 1, 2, 200000);
        for (uint64_t until = pki_now_ns() + TIMEOUT_NS;
             (!ep_of(&pair, 0)->retransmit.never || ep_of(&pair, 0)->links[1].state != PKI_TCP_UP) && pki_now_ns() < until;)
            tcp_pair_progress(&pair);
        grant(&pair, 1, 3, BYTES);
        put(&pair, 0, &one, 3, BYTES);
        cr_assert(events_look(pair.iface[0]) == NULL);
        hear(&pair, 1, 3, BYTES);
        tcp_pair_await_end(&pair, 0, &one);
        cr_assert_eq(ep_of(&pair, 0)->links[1].acked, ep_of(&pair, 0)->links[1].end);
        tcp_pair_free(&pair);
    }
}

static void say_news(struct tcp_pair *pair, int from, bool leaves)
{
    const struct pki_msg msg = { .kind = PKI_MSG_SIDE, .payload = 12, .extra = leaves ? PKI_SIDE_SHUTDOWN : 0 };

    cr_assert_eq(tcp()->send(pair->ep[from], &msg, "twelve bytes"), PK_OK);
}

static bool hears_news(struct tcp_pair *pair, int rank)
{
    struct pki_msg msg;
    const void *payload;

    for (uint64_t until = pki_now_ns() + TIMEOUT_NS / 4; pki_now_ns() < until; (void)tcp()->progress(pair->iface[rank]))
        if (tcp_peek(pair->ep[rank], &msg, &payload)) {
            tcp_pop(pair->ep[rank]);
            messages += msg.kind == PKI_MSG_EAGER;
            if (msg.kind == PKI_MSG_SIDE)
                return true;
        }
    return false;
}

/* Whoever sends and is gone: news and shutdown message come behind it, in whatever order the connections are read. */
Test(tcp_retransmit, shutdown_is_behind_it)
{
    for (int how = 0; how < 3; how++) {
        struct tcp_pair pair;
        struct pki_put one;

        begin(&pair);
        if (how > 0)
            grant(&pair, 1, 2, BYTES);
        put(&pair, 0, &one, 2, BYTES);
        tcp_pair_await_end(&pair, 0, &one);
        spoil(0);
        say_news(&pair, 0, true);
        tcp()->ep_close(pair.ep[0]);
        free(pair.ep[0]);
        pair.ep[0] = NULL;
        ep_of(&pair, 1)->links[1].readable = false;
        (void)pki_tcp_ctrl_read(&ep_of(&pair, 1)->ctrl); /* the shutdown message, before anything of the chunk */
        cr_assert_not(ep_of(&pair, 1)->left);
        if (how == 0) { /* nobody has asked for it yet */
            for (int i = 0; i < 300; i++)
                (void)tcp()->progress(pair.iface[1]);
            grant(&pair, 1, 2, BYTES);
        }
        if (how == 2)
            usleep(50000);
        hear(&pair, 1, 2, BYTES);
        cr_assert(hears_news(&pair, 1));
        for (uint64_t until = pki_now_ns() + TIMEOUT_NS; !ep_of(&pair, 1)->left && pki_now_ns() < until;)
            (void)tcp()->progress(pair.iface[1]);
        cr_assert(ep_of(&pair, 1)->left && pair.ep[1]->state != PKI_EP_DEAD);
        tcp_pair_free(&pair);
    }
}

/* Few looks, far apart: meanwhile the other connections have ended, and nobody listens any more. */
Test(tcp_retransmit, shutdown_to_who_seldom_polls, .timeout = 60)
{
    for (int leaver = 0; leaver < 2; leaver++) {
        struct tcp_pair pair;
        struct pki_put one;

        begin(&pair);
        messages = 0;
        put(&pair, leaver, &one, 2, BYTES);
        tcp_pair_await_end(&pair, leaver, &one);
        spoil(leaver);
        for (uint64_t op = 1; op <= 2; op++)
            cr_assert_eq(
                tcp()->send(pair.ep[leaver],
                            &(struct pki_msg){ .kind = PKI_MSG_EAGER, .flags = PKI_MSG_FLAG_COLL, .op = op, .payload = 5 },
                            "five!"),
                PK_OK);
        say_news(&pair, leaver, true);
        tcp()->ep_close(pair.ep[leaver]);
        free(pair.ep[leaver]);
        pair.ep[leaver] = NULL;
        tcp()->close(pair.iface[leaver]);
        for (int i = 0; i < 70; i++) { /* longer than PK_RETRY_MS */
            (void)tcp()->progress(pair.iface[1 - leaver]);
            cr_assert_not(pair.ep[1 - leaver]->state == PKI_EP_DEAD, "leaver %d, look %d", leaver, i);
            usleep(40000);
        }
        grant(&pair, 1 - leaver, 2, BYTES);
        hear(&pair, 1 - leaver, 2, BYTES);
        cr_assert(hears_news(&pair, 1 - leaver));
        cr_assert_eq(messages, 2);
        tcp()->ep_close(pair.ep[1 - leaver]);
        free(pair.ep[1 - leaver]);
        tcp()->close(pair.iface[1 - leaver]);
        free(pair.iface[0]);
        free(pair.iface[1]);
    }
}

static void *close_end(void *ep)
{
    tcp()->ep_close(ep);
    return NULL;
}

/* The kernel hears of it soon. */
static bool comes_to_be_out(struct tcp_pair *pair, int rank, bool out)
{
    for (uint64_t until = pki_now_ns() + PKI_NS_PER_S; pki_now_ns() < until; usleep(100))
        if (pki_tcp_copies_are_out(ep_of(pair, rank)) == out)
            return true;
    return false;
}

/* The connection has been reset with the chunk unread, and whoever leaves has not looked yet. */
Test(tcp_retransmit, shutdown_after_a_reset)
{
    for (int leaver = 0; leaver < 2; leaver++) {
        struct tcp_pair pair;
        struct pki_put one;
        pthread_t thread;

        begin(&pair);
        for (uint64_t op = 3; op < 30; op++) { /* the kernel comes to take all of one at once */
            grant(&pair, 1 - leaver, op, BYTES);
            put(&pair, leaver, &one, op, BYTES);
            tcp_pair_await_end(&pair, leaver, &one);
            hear(&pair, 1 - leaver, op, BYTES);
        }
        put(&pair, leaver, &one, 2, BYTES);
        tcp_pair_await_end(&pair, leaver, &one);
        spoil(leaver);
        cr_assert(comes_to_be_out(&pair, leaver, true));
        pki_tcp_link_broken(&ep_of(&pair, 1 - leaver)->links[1], 0);
        cr_assert(comes_to_be_out(&pair, leaver, false));
        cr_assert_eq(pthread_create(&thread, NULL, close_end, pair.ep[leaver]), 0);
        grant(&pair, 1 - leaver, 2, BYTES);
        for (uint64_t until = pki_now_ns() + TIMEOUT_NS;
             !ep_of(&pair, 1 - leaver)->left && pki_now_ns() < until && pair.ep[1 - leaver]->state != PKI_EP_DEAD;)
            (void)tcp()->progress(pair.iface[1 - leaver]);
        pthread_join(thread, NULL);
        free(pair.ep[leaver]);
        pair.ep[leaver] = NULL;
        hear(&pair, 1 - leaver, 2, BYTES);
        tcp_pair_free(&pair);
    }
}

/* The chunks are about to be given up: nobody waits for them. */
Test(tcp_retransmit, news_of_a_failure_comes)
{
    struct tcp_pair pair;
    struct pki_put one;

    begin(&pair);
    put(&pair, 0, &one, 2, BYTES);
    tcp_pair_await_end(&pair, 0, &one);
    say_news(&pair, 0, false);
    tcp()->recv_cancel(pair.iface[0]);
    cr_assert(hears_news(&pair, 1));
    tcp_pair_free(&pair);
}

/* ---- Who leaves while connections break ---- */

struct leaver {
    struct tcp_pair pair;
    uint64_t last, state;
    _Atomic uint64_t heard;
};

static unsigned draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 40);
}

static void *leave(void *arg)
{
    static struct pki_put one;
    struct leaver *l = arg;

    for (uint64_t op = 2; op <= l->last; op++) {
        put(&l->pair, 0, &one, op, LEAST + op * 100);
        if (draw(&l->state) % 6 == 0)
            tcp_cut(l->pair.ep[0], draw(&l->state) % 2);
        while (events_look(l->pair.iface[0]) == NULL)
            (void)tcp()->progress(l->pair.iface[0]);
        cr_assert(tcp_pair_has_ended(&l->pair, 0, &one));
        spoil(0);
        while (op < l->last && atomic_load(&l->heard) < op) /* one target for all */
            (void)tcp()->progress(l->pair.iface[0]);
    }
    say_news(&l->pair, 0, true);
    if (draw(&l->state) % 3 == 0)
        tcp_cut(l->pair.ep[0], draw(&l->state) % 2);
    tcp()->ep_close(l->pair.ep[0]);
    return NULL;
}

static void hear_out(struct leaver *l, uint64_t op)
{
    size_t bytes = LEAST + op * 100;
    uint64_t until = pki_now_ns() + TIMEOUT_NS;
    struct pki_msg msg = { 0 };
    const void *payload;

    grant(&l->pair, 1, op, bytes);
    while (msg.kind != PKI_MSG_FIN || msg.op != op || msg.offset != bytes) {
        cr_assert(pki_now_ns() < until && l->pair.ep[1]->state != PKI_EP_DEAD, "op %llu of %llu", (unsigned long long)op,
                  (unsigned long long)l->last);
        (void)tcp()->progress(l->pair.iface[1]);
        if (!tcp_peek(l->pair.ep[1], &msg, &payload))
            continue;
        cr_assert_eq(msg.kind, PKI_MSG_FIN);
        tcp_pop(l->pair.ep[1]);
    }
    for (size_t i = 0; i < bytes; i++)
        cr_assert_eq(target[1][i], byte_of(op, i), "op %llu, byte %zu", (unsigned long long)op, i);
}

Test(tcp_retransmit, leaving_while_connections_break, .timeout = 120)
{
    uint64_t until = pki_now_ns() + 3 * PKI_NS_PER_S;

    for (unsigned round = 0; pki_now_ns() < until; round++) {
        static struct leaver l;
        pthread_t thread;

        l = (struct leaver){ .last = 2 + round % 5, .state = round * 7919 + 1 };
        begin(&l.pair);
        cr_assert_eq(pthread_create(&thread, NULL, leave, &l), 0);
        for (uint64_t op = 2; op <= l.last; op++) {
            hear_out(&l, op);
            atomic_store(&l.heard, op);
        }
        cr_assert(hears_news(&l.pair, 1) && l.pair.ep[1]->state != PKI_EP_DEAD);
        for (uint64_t end = pki_now_ns() + TIMEOUT_NS; !ep_of(&l.pair, 1)->left && pki_now_ns() < end;)
            (void)tcp()->progress(l.pair.iface[1]);
        cr_assert(ep_of(&l.pair, 1)->left && l.pair.ep[1]->state != PKI_EP_DEAD);
        pthread_join(thread, NULL);
        tcp_pair_drop(&l.pair);
    }
}
