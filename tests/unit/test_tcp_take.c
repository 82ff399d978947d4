/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: short messages that are taken without a peek, and sent from where they are kept. */
#include <criterion/criterion.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp_pair.h"

#define TIMEOUT_NS (20 * PKI_NS_PER_S)
#define RING_TIMES 3 /* round the ring that sent messages are kept in */

static unsigned char payload[PKI_TCP_EAGER_MAX];

static void say(struct tcp_pair *pair, int from, struct pki_msg msg)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;
    pk_result_t result;

    while ((result = tcp()->msg(pair->ep[from], &msg, payload + msg.op % 64)) == PK_IN_PROGRESS && pki_now_ns() < until)
        tcp_pair_progress(pair);
    cr_assert_eq(result, PK_OK);
}

static void say_short(struct tcp_pair *pair, int from, uint64_t op, uint32_t bytes)
{
    say(pair, from, (struct pki_msg){ .kind = PKI_MSG_EAGER, .op = op, .bytes = op * 3, .payload = bytes });
}

/* Asked until something has come. Not a byte behind the payload is written. */
static enum pki_take take(struct tcp_pair *pair, int rank, uint64_t op, uint32_t bytes)
{
    static unsigned char out[PKI_TCP_LONG_MIN + 64];
    uint64_t until = pki_now_ns() + TIMEOUT_NS, credit = 0;
    enum pki_take got;

    memset(out, 0xee, sizeof out);
    do
        got = tcp()->take(pair->ep[rank], &(struct pki_wanted){ .op = op, .bytes = bytes }, out, &credit);
    while (got == PKI_TAKE_NOTHING && pki_now_ns() < until);
    for (size_t i = got == PKI_TAKE_IT ? bytes : 0; i < sizeof out; i++)
        cr_assert_eq(out[i], 0xee, "byte %zu", i);
    if (got == PKI_TAKE_IT)
        cr_assert(credit == op * 3 && memcmp(out, payload + op % 64, bytes) == 0);
    return got;
}

static void hear(struct tcp_pair *pair, int rank, uint64_t op, uint32_t bytes)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;
    const void *got;
    struct pki_msg msg;

    while (!tcp()->peek(pair->ep[rank], &msg, &got)) {
        cr_assert(pki_now_ns() < until && !pair->ep[rank]->dead);
        tcp_pair_progress(pair);
    }
    cr_assert(msg.op == op && msg.payload == bytes && memcmp(got, payload + op % 64, bytes) == 0);
    tcp()->pop(pair->ep[rank]);
}

static bool has_reported(const struct pki_tcp_ctrl *ctrl)
{
    return !ctrl->acks_due && ctrl->acks_bytes == 0 && ctrl->link->reported == ctrl->link->received;
}

static bool has_unread(const struct pki_tcp_ctrl *ctrl)
{
    return recv(ctrl->link->source.fd, &(char){ 0 }, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* The second control channel's first word, an acknowledgement, has been read, and is no message that anybody would have to peek for. */
static void settle(struct tcp_pair *pair)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;

    for (int rank = 0; rank < 2; rank++) {
        const struct pki_tcp_ctrl *from = &pki_tcp_ep_of(pair->ep[1 - rank])->ctrl[1], *second = &pki_tcp_ep_of(pair->ep[rank])->ctrl[1];

        while (!has_reported(from) || has_unread(second)) {
            cr_assert(pki_now_ns() < until);
            tcp_pair_progress(pair);
        }
        cr_assert(second->rx_head == second->rx_scan && second->rx_tail == 0, "nothing is left of it");
    }
}

/* Control channels are looked at without being told of anything once something has come there. */
static void begin(struct tcp_pair *pair)
{
    setenv("PK_SOCKETS", "1/0", 1);
    setenv("PK_RETRY_MS", "2000", 1);
    tcp_pair_new(pair);
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (unsigned char)(i * 7 + i / 251);
    for (int from = 0; from < 2; from++) {
        say_short(pair, from, 0, 8);
        hear(pair, 1 - from, 0, 8);
    }
    settle(pair);
}

Test(tcp_take, of_every_length)
{
    struct tcp_pair pair;

    begin(&pair);
    cr_assert_eq(tcp()->take(pair.ep[1], &(struct pki_wanted){ .op = 1 }, NULL, &(uint64_t){ 0 }), PKI_TAKE_NOTHING);
    for (uint32_t bytes = 0; bytes < PKI_TCP_LONG_MIN; bytes += bytes < 200 ? 1 : 61) {
        say_short(&pair, 0, bytes + 1, bytes);
        cr_assert_eq(take(&pair, 1, bytes + 1, bytes), PKI_TAKE_IT, "%u bytes", bytes);
    }
    tcp_pair_free(&pair);
}

/* Who comes late finds each message at the first look, and has no other. */
Test(tcp_take, at_the_first_look)
{
    struct tcp_pair pair;

    begin(&pair);
    for (uint64_t op = 1; op <= 100; op++) {
        say_short(&pair, 0, op, 8);
        cr_assert_eq(take(&pair, 1, op, 8), PKI_TAKE_IT, "message %llu", (unsigned long long)op);
    }
    tcp_pair_free(&pair);
}

/* It is peeked for then, whole. */
Test(tcp_take, of_something_else)
{
    static const struct pki_msg others[] = {
        { .kind = PKI_MSG_EAGER, .op = 2, .payload = 8 },                              /* the next but one */
        { .kind = PKI_MSG_EAGER, .op = 1, .payload = 9 },
        { .kind = PKI_MSG_EAGER, .op = 1, .payload = 7 },
        { .kind = PKI_MSG_EAGER, .op = 1, .payload = 4000 },
        { .kind = PKI_MSG_EAGER, .op = 1, .payload = 8, .flags = PKI_MSG_FLAG_CAPTURED },
        { .kind = PKI_MSG_FIN, .op = 1, .payload = 8 },
    };
    struct tcp_pair pair;

    begin(&pair);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        say(&pair, 0, others[i]);
        cr_assert_eq(take(&pair, 1, 1, 8), PKI_TAKE_OTHER, "case %zu", i);
        hear(&pair, 1, others[i].op, others[i].payload);
    }
    say_short(&pair, 0, 1, PKI_TCP_LONG_MIN);
    cr_assert_eq(tcp()->take(pair.ep[1], &(struct pki_wanted){ .op = 1, .bytes = PKI_TCP_LONG_MIN }, NULL, &(uint64_t){ 0 }), PKI_TAKE_OTHER, "too long for it");
    hear(&pair, 1, 1, PKI_TCP_LONG_MIN);
    say_short(&pair, 0, 1, 8);
    cr_assert_eq(take(&pair, 1, 1, 8), PKI_TAKE_IT);
    tcp_pair_free(&pair);
}

Test(tcp_take, of_one_of_several)
{
    struct tcp_pair pair;

    begin(&pair);
    for (uint64_t op = 1; op <= 3; op++)
        say_short(&pair, 0, op, 8);
    cr_assert_eq(take(&pair, 1, 1, 8), PKI_TAKE_OTHER, "they have come together");
    for (uint64_t op = 1; op <= 3; op++)
        hear(&pair, 1, op, 8);
    say_short(&pair, 0, 4, 8);
    cr_assert_eq(take(&pair, 1, 4, 8), PKI_TAKE_IT);
    tcp_pair_free(&pair);
}

/* Who waits for a short message on the first control channel, as the engine does, sees what comes on the second one. */
Test(tcp_take, and_the_other_ctrl)
{
    struct tcp_pair pair;

    begin(&pair);
    cr_assert_eq(pki_tcp_ep_of(pair.ep[1])->nctrls, 2);
    for (unsigned polls = 0; polls < 40; polls++) {
        unsigned char out[8];
        const void *got;
        struct pki_msg msg = { 0 };
        uint64_t credit;
        bool found = false;
        unsigned n = 0;

        say(&pair, 0, (struct pki_msg){ .kind = PKI_MSG_EAGER, .flags = PKI_MSG_FLAG_COLL, .op = 2 * polls + !pki_tcp_ep_of(pair.ep[0])->connects, .payload = 8 });
        pki_tcp_ep_of(pair.ep[1])->polls = polls;
        for (; n < 64 && !found; n++)
            found = tcp()->take(pair.ep[1], &(struct pki_wanted){ .op = 1, .bytes = 8 }, out, &credit) == PKI_TAKE_OTHER && tcp()->peek(pair.ep[1], &msg, &got);
        cr_assert(found && msg.flags == PKI_MSG_FLAG_COLL, "from look %u on: not in %u", polls, n);
        tcp()->pop(pair.ep[1]);
    }
    tcp_pair_free(&pair);
}

/* What has come in one piece has been found, too: a control channel that is read anyway is taken out of epoll. */
Test(tcp_take, of_bursts)
{
    struct tcp_pair pair;

    begin(&pair);
    for (uint64_t op = 1; op <= 100; op += 2) {
        say_short(&pair, 0, op, 8);
        say_short(&pair, 0, op + 1, 8);
        cr_assert_eq(take(&pair, 1, op, 8), PKI_TAKE_OTHER);
        hear(&pair, 1, op, 8);
        hear(&pair, 1, op + 1, 8);
    }
    cr_assert(!pki_list_empty(&pki_tcp_ep_of(pair.ep[1])->links[0].busy_polled));
    tcp_pair_free(&pair);
}

/* Neither end does anything but that: what is kept is acknowledged all the same, and what goes round the ring's end comes whole. */
Test(tcp_take, and_nothing_else)
{
    struct tcp_pair pair;
    uint32_t bytes = 0;

    begin(&pair);
    for (uint64_t op = 1; op * 64 < (uint64_t)RING_TIMES * PKI_TCP_TX_BYTES; op++) {
        bytes = (bytes + 37) % 400;
        for (int from = 0; from < 2; from++) {
            const struct pki_msg msg = { .kind = PKI_MSG_EAGER, .op = op, .bytes = op * 3, .payload = bytes };
            enum pki_take got;

            cr_assert_eq(tcp()->msg(pair.ep[from], &msg, payload + op % 64), PK_OK, "op %llu", (unsigned long long)op);
            got = take(&pair, 1 - from, op, bytes);
            if (got == PKI_TAKE_OTHER) /* an acknowledgement came with it */
                hear(&pair, 1 - from, op, bytes);
        }
    }
    tcp_pair_free(&pair);
}

Test(tcp_take, while_ctrl_breaks)
{
    struct tcp_pair pair;

    begin(&pair);
    for (uint64_t op = 1; op <= 400; op++) {
        say_short(&pair, 0, op, (uint32_t)op);
        if (op % 7 == 0)
            tcp_cut(pair.ep[op % 2], 0);
        if (take(&pair, 1, op, (uint32_t)op) != PKI_TAKE_IT)
            hear(&pair, 1, op, (uint32_t)op);
    }
    tcp_pair_free(&pair);
}
