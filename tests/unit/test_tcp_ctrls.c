/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: two control channels between two ranks, and what of one comes after what of the other. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp_pair.h"

#define TIMEOUT_NS (20 * PKI_NS_PER_S)
#define LAST_LINK 2 /* with one connection for chunks */

static unsigned char payload[PKI_TCP_EAGER_MAX];

static void begin(struct tcp_pair *pair)
{
    setenv("PK_SOCKETS", "1/0", 1);
    setenv("PK_RETRY_MS", "2000", 1);
    tcp_pair_new(pair);
    cr_assert_eq(pki_tcp_ep_of(pair->ep[0])->nctrls, 2);
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (unsigned char)(i * 7 + i / 251);
}

static void say(struct tcp_pair *pair, int from, uint64_t op, uint32_t bytes)
{
    const struct pki_msg msg = { .kind = PKI_MSG_EAGER, .flags = PKI_MSG_FLAG_COLL, .op = op, .sig = 5, .payload = bytes };
    uint64_t until = pki_now_ns() + TIMEOUT_NS;
    pk_result_t result;

    while ((result = tcp()->msg(pair->ep[from], &msg, payload)) == PK_IN_PROGRESS && pki_now_ns() < until)
        tcp_pair_progress(pair);
    cr_assert_eq(result, PK_OK);
}

static void say_news(struct tcp_pair *pair, int from)
{
    const struct pki_msg msg = { .kind = PKI_MSG_SIDE, .payload = 12 };

    cr_assert_eq(tcp()->msg(pair->ep[from], &msg, "twelve bytes"), PK_OK);
}

static bool hears(struct tcp_pair *pair, int rank, uint64_t waits_for, struct pki_msg *msg, uint64_t ns)
{
    uint64_t until = pki_now_ns() + ns;
    const void *got;

    pair->ep[rank]->expected_op = waits_for;
    while (!tcp()->peek(pair->ep[rank], msg, &got)) {
        if (pki_now_ns() >= until || pair->ep[rank]->dead)
            return false;
        tcp_pair_progress(pair);
    }
    if (msg->kind == PKI_MSG_EAGER)
        cr_assert_eq(memcmp(got, payload, msg->payload), 0);
    tcp()->pop(pair->ep[rank]);
    return true;
}

/* What comes, in any order, is op 1 to `last`, each once; `hint`: somebody waits for it in its turn. */
static void hear_all(struct tcp_pair *pair, int rank, uint64_t last, bool hint)
{
    uint64_t sum = 0;
    struct pki_msg msg;

    for (uint64_t i = 1; i <= last; i++) {
        cr_assert(hears(pair, rank, hint ? i : 0, &msg, TIMEOUT_NS), "%llu of %llu", (unsigned long long)i, (unsigned long long)last);
        cr_assert(!hint || msg.op == i);
        sum += msg.op;
    }
    cr_assert_eq(sum, last * (last + 1) / 2);
    cr_assert(!hears(pair, rank, 0, &msg, 20 * PKI_NS_PER_MS), "and nothing else");
}

Test(tcp_ctrls, both_ends_send_at_the_same_time_by_different_ones)
{
    struct tcp_pair pair;
    struct pki_msg msg;

    begin(&pair);
    for (uint64_t op = 1; op <= 100; op++) {
        for (int rank = 0; rank < 2; rank++) {
            const struct pki_tcp_ep *ep = pki_tcp_ep_of(pair.ep[rank]);
            uint64_t before[2] = { ep->ctrl[0].link->end, ep->ctrl[1].link->end };
            unsigned ctrl = (unsigned)(op + (unsigned)rank) & 1;

            say(&pair, rank, op, (uint32_t)op * 50);
            cr_assert_eq(ep->ctrl[ctrl].link->end, before[ctrl] + 1);
            cr_assert_eq(ep->ctrl[1 - ctrl].link->end, before[1 - ctrl]);
        }
        for (int rank = 0; rank < 2; rank++)
            cr_assert(hears(&pair, rank, op, &msg, TIMEOUT_NS) && msg.op == op && msg.payload == op * 50);
    }
    tcp_pair_free(&pair);
}

/* Captured ones and those between two ranks are in order with what else the first control channel carries. */
Test(tcp_ctrls, others_take_the_first)
{
    const struct pki_msg others[] = { { .kind = PKI_MSG_EAGER, .payload = 8 },
                                      { .kind = PKI_MSG_EAGER, .flags = PKI_MSG_FLAG_COLL | PKI_MSG_FLAG_CAPTURED, .payload = 8 },
                                      { .kind = PKI_MSG_CREDIT, .flags = 0, .bytes = 8 } };
    struct tcp_pair pair;

    begin(&pair);
    for (uint64_t op = 1; op <= 2; op++)
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
            struct pki_msg msg = others[i];

            msg.op = op;
            cr_assert_eq(tcp()->msg(pair.ep[0], &msg, payload), PK_OK);
        }
    cr_assert_eq(pki_tcp_ep_of(pair.ep[0])->ctrl[0].link->end, 6);
    cr_assert_eq(pki_tcp_ep_of(pair.ep[0])->ctrl[1].link->end, 0);
    tcp_pair_free(&pair);
}

/* All round both rings; acknowledgements, of short messages too. */
Test(tcp_ctrls, nothing_is_lost_with_either_cut)
{
    struct tcp_pair pair;
    struct pki_msg msg;
    uint64_t heard = 0;

    begin(&pair);
    for (uint64_t op = 1; op <= 3000; op++) {
        int rank = op % 3 == 0;

        say(&pair, rank, op, (uint32_t)(op * 37 % 3000));
        if (op % 40 == 0)
            tcp_cut(pair.ep[op / 40 % 2], op / 80 % 2 == 0 ? 0 : LAST_LINK);
        cr_assert(hears(&pair, 1 - rank, op % 5 == 0 ? 0 : op, &msg, TIMEOUT_NS));
        heard += msg.op == op;
        cr_assert_not(pair.ep[0]->dead || pair.ep[1]->dead);
    }
    cr_assert_eq(heard, 3000);
    for (int rank = 0; rank < 2; rank++)
        for (int ctrl = 0; ctrl < 2; ctrl++) {
            const struct pki_tcp_ctrl *l = &pki_tcp_ep_of(pair.ep[rank])->ctrl[ctrl];

            cr_assert_lt(l->tx_end - l->tx_head, 3 * PKI_TCP_TX_BYTES / 4, "it has been acknowledged");
            cr_assert_gt(l->tx_end, 2 * PKI_TCP_TX_BYTES);
        }
    tcp_pair_free(&pair);
}

/* Keep what rank 1 says by the second control channel from going out. */
static void hold(struct tcp_pair *pair, bool held)
{
    struct pki_tcp_link *link = pki_tcp_ep_of(pair->ep[1])->ctrl[1].link;

    link->writable = !held;
    if (!held)
        pki_tcp_ctrl_flush(link->ctrl);
}

Test(tcp_ctrls, news_does_not_overtake)
{
    for (int cut = 0; cut < 2; cut++) {
        struct tcp_pair pair;
        struct pki_msg msg;

        begin(&pair);
        hold(&pair, true);
        say(&pair, 1, 2, 100); /* rank 1 connects: op 2 goes by its second control channel */
        cr_assert_eq(pki_tcp_ep_of(pair.ep[1])->ctrl[1].link->end, 1);
        say_news(&pair, 1);
        for (int i = 0; i < 200; i++) {
            const void *got;

            (void)tcp()->progress(pair.iface[0]);
            cr_assert(!tcp()->peek(pair.ep[0], &msg, &got), "kind %u", msg.kind);
        }
        if (cut)
            tcp_cut(pair.ep[0], LAST_LINK);
        else
            hold(&pair, false);
        cr_assert(hears(&pair, 0, 0, &msg, TIMEOUT_NS) && msg.kind == PKI_MSG_EAGER && msg.op == 2);
        cr_assert(hears(&pair, 0, 0, &msg, TIMEOUT_NS) && msg.kind == PKI_MSG_SIDE);
        tcp_pair_free(&pair);
    }
}

/* As where an operation fails: news first, then all chunks are given up. What was said before is heard before, whichever end it is. */
Test(tcp_ctrls, news_of_a_failure_comes)
{
    for (int from = 0; from < 2; from++) {
        struct tcp_pair pair;
        struct pki_msg msg;

        begin(&pair);
        pki_tcp_ep_of(pair.ep[from])->ctrl[1].link->writable = false;
        say(&pair, from, from == 1 ? 2 : 1, 100);
        say_news(&pair, from);
        tcp()->revoke(pair.iface[from]);
        cr_assert(hears(&pair, 1 - from, 0, &msg, TIMEOUT_NS / 20) && msg.kind == PKI_MSG_EAGER);
        cr_assert(hears(&pair, 1 - from, 0, &msg, TIMEOUT_NS / 20) && msg.kind == PKI_MSG_SIDE);
        tcp_pair_free(&pair);
    }
}

/* The other end is not in the library, and has given up its chunks. */
Test(tcp_ctrls, nobody_waits_at_the_end_for_who_has_failed)
{
    struct tcp_pair pair;
    uint64_t began;

    begin(&pair);
    tcp()->revoke(pair.iface[1]);
    for (int i = 0; i < 100; i++)
        (void)tcp()->progress(pair.iface[0]);
    began = pki_now_ns();
    tcp()->ep_close(pair.ep[0]);
    cr_assert_lt(pki_now_ns() - began, PKI_NS_PER_S);
    free(pair.ep[0]);
    pair.ep[0] = NULL;
    tcp_pair_drop(&pair);
}

/* Somebody who counts what was never sent keeps nobody awake. */
Test(tcp_ctrls, who_waits_for_the_other_ctrl_may_sleep)
{
    unsigned char head[PKI_TCP_MSG_HEAD_MAX + PKI_TCP_LINE] = { 0 };
    const struct pki_msg events = { .kind = PKI_MSG_SIDE, .bytes = UINT64_MAX, .payload = 12 };
    struct tcp_pair pair;
    int awake = 0;
    size_t n;

    begin(&pair);
    n = pki_tcp_filled((uint32_t)pki_tcp_put_msg(head, &events, 0) - PKI_TCP_HEADER_BYTES + 12);
    cr_assert_eq(write(pki_tcp_ep_of(pair.ep[1])->links[0].source.fd, head, n), (ssize_t)n);
    for (int i = 0; i < 20000; i++) {
        struct pki_msg msg;
        const void *got;

        (void)tcp()->progress(pair.iface[0]);
        cr_assert(!tcp()->peek(pair.ep[0], &msg, &got));
        awake += i >= 10000 && tcp()->wait_fd(pair.iface[0]) < 0;
    }
    cr_assert_lt(awake, 100);
    tcp_pair_drop(&pair);
}

/* Between two ranks the first of which is gone before the other one looks. */
Test(tcp_ctrls, shutdown_is_behind_everything)
{
    for (unsigned pause = 0; pause < 2; pause++) {
        struct tcp_pair pair;

        begin(&pair);
        for (uint64_t op = 1; op <= 40; op++)
            say(&pair, 1, op, 3000);
        tcp()->ep_close(pair.ep[1]);
        if (pause)
            usleep(20000);
        hear_all(&pair, 0, 40, false);
        for (uint64_t until = pki_now_ns() + TIMEOUT_NS; !pair.ep[0]->left && !pki_tcp_ep_of(pair.ep[0])->left && pki_now_ns() < until;)
            (void)tcp()->progress(pair.iface[0]);
        cr_assert(!pair.ep[0]->dead && pki_tcp_ep_of(pair.ep[0])->left);
        tcp_pair_free(&pair);
    }
}

/* Rank 1's shutdown message, of so many frames by the second control channel, before them, and the end of that connection behind it. */
static void send_shutdown_first(struct tcp_pair *pair, uint64_t frames)
{
    unsigned char frame[PKI_TCP_HEADER_BYTES + PKI_TCP_CLOSE_BYTES];
    int fd = pki_tcp_ep_of(pair->ep[1])->links[0].source.fd;

    pki_tcp_put_close(frame, &(struct pki_tcp_before){ .messages = frames });
    cr_assert_eq(write(fd, frame, sizeof frame), (ssize_t)sizeof frame);
    cr_assert_eq(shutdown(fd, SHUT_WR), 0);
    for (int i = 0; i < 300; i++)
        (void)tcp()->progress(pair->iface[0]);
    cr_assert(!pki_tcp_ep_of(pair->ep[0])->left && pki_tcp_ep_of(pair->ep[0])->links[0].state == PKI_TCP_UP);
}

/* `ends`: the second control channel's connection does, too, right behind the message. */
Test(tcp_ctrls, shutdown_that_comes_first_waits)
{
    for (int ends = 0; ends < 2; ends++) {
        struct tcp_pair pair;
        struct pki_msg msg;

        begin(&pair);
        hold(&pair, true);
        say(&pair, 1, 2, 100);
        send_shutdown_first(&pair, 1);
        hold(&pair, false);
        if (ends)
            cr_assert_eq(shutdown(pki_tcp_ep_of(pair.ep[1])->ctrl[1].link->source.fd, SHUT_WR), 0);
        usleep(1000);
        for (int i = 0; i < 300; i++)
            (void)tcp()->progress(pair.iface[0]);
        cr_assert(pki_tcp_ep_of(pair.ep[0])->left && !pair.ep[0]->dead, "%d", ends);
        cr_assert(hears(&pair, 0, 0, &msg, TIMEOUT_NS) && msg.op == 2);
        for (uint64_t until = pki_now_ns() + TIMEOUT_NS; !pair.ep[0]->left && pki_now_ns() < until;)
            (void)tcp()->progress(pair.iface[0]);
        cr_assert(pair.ep[0]->left && !pair.ep[0]->dead);
        tcp_pair_drop(&pair);
    }
}

/* And does so no longer than any connection is waited for: its process is gone, with what it had to say. */
Test(tcp_ctrls, shutdown_before_what_never_comes)
{
    struct tcp_pair pair;

    begin(&pair);
    hold(&pair, true);
    say(&pair, 1, 2, 100);
    send_shutdown_first(&pair, 1);
    pair.ep[1]->dead = true;
    tcp()->ep_close(pair.ep[1]);
    free(pair.ep[1]);
    pair.ep[1] = NULL;
    tcp()->close(pair.iface[1]);
    for (uint64_t until = pki_now_ns() + TIMEOUT_NS; !pair.ep[0]->dead && pki_now_ns() < until;)
        (void)tcp()->progress(pair.iface[0]);
    cr_assert(pair.ep[0]->dead);
    tcp()->ep_close(pair.ep[0]);
    free(pair.ep[0]);
    tcp()->close(pair.iface[0]);
    free(pair.iface[0]);
    free(pair.iface[1]);
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
        const struct pki_msg msg = { .kind = PKI_MSG_EAGER, .flags = PKI_MSG_FLAG_COLL, .op = op, .payload = draw(&l->state) % 4000 };

        while (tcp()->msg(l->pair.ep[l->rank], &msg, payload) == PK_IN_PROGRESS)
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

    while (!(events && pki_tcp_ep_of(ep)->left) && !ep->dead && pki_now_ns() < until) {
        struct pki_msg msg;
        const void *got;

        ep->expected_op = draw(&state) % 2 == 0 ? heard + 1 : 0;
        for (unsigned i = draw(&state) % 12; i > 0 && tcp()->peek(ep, &msg, &got); i--) {
            cr_assert_not(events, "nothing comes behind it");
            events = msg.kind == PKI_MSG_SIDE;
            heard += msg.kind == PKI_MSG_EAGER;
            tcp()->pop(ep);
        }
        if (draw(&state) % 2 == 0)
            (void)tcp()->progress(l->pair.iface[1 - l->rank]);
    }
    cr_assert(events && !ep->dead && heard == l->last, "%llu of %llu, dead %d", (unsigned long long)heard, (unsigned long long)l->last, ep->dead);
}

Test(tcp_ctrls, leaving_while_connections_break, .timeout = 120)
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

/* What only the first control channel may say is a reason to lose the peer on the second. */
Test(tcp_ctrls, the_second_says_less)
{
    for (int what = 0; what < 3; what++) {
        unsigned char frame[PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES];
        size_t bytes = sizeof frame;
        struct tcp_pair pair;

        begin(&pair);
        say(&pair, 0, 2, 100); /* a frame of the first control channel */
        if (what == 0) {
            pki_tcp_put_close(frame, &(struct pki_tcp_before){ 0 });
            bytes = PKI_TCP_HEADER_BYTES + PKI_TCP_CLOSE_BYTES;
        } else {
            pki_tcp_put_ack(frame, &(struct pki_tcp_ack){ .link = what == 1 ? 0 : LAST_LINK, .frames = 1 });
        }
        cr_assert_eq(write(pki_tcp_ep_of(pair.ep[1])->ctrl[1].link->source.fd, frame, bytes), (ssize_t)bytes);
        for (uint64_t until = pki_now_ns() + TIMEOUT_NS; !pair.ep[0]->dead && pki_now_ns() < until;)
            (void)tcp()->progress(pair.iface[0]);
        cr_assert(pair.ep[0]->dead, "%d", what);
        tcp_pair_drop(&pair);
    }
}

Test(tcp_ctrls, one_where_the_peer_has_one)
{
    struct tcp_pair pair;
    struct pki_tcp_peer_info peer_info;

    setenv("PK_SOCKETS", "1/0", 1);
    tcp_pair_begin(&pair);
    cr_assert(pki_tcp_get_peer_info(&pair.blob[1], &peer_info));
    cr_assert_eq(peer_info.ctrls, 2);
    peer_info.ctrls = 1;
    pki_tcp_put_peer_info(&pair.blob[1], &peer_info);
    cr_assert_eq(tcp()->ep_connect(pair.ep[0], &pair.blob[1]), PK_OK);
    cr_assert_eq(pki_tcp_ep_of(pair.ep[0])->nctrls, 1);
    cr_assert_eq(pki_tcp_ep_of(pair.ep[0])->nlinks, 2);
    tcp_pair_drop(&pair);
}
