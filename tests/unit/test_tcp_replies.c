/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: transfers whose receiver sends back what it makes of them, which says that they have come, from a place of the transport. */
#include <criterion/criterion.h>
#include <dlfcn.h>

#include "tcp_acks.h"
#include "tcp_pair.h"

#define TIMEOUT_NS (20 * PKI_NS_PER_S)
#define BYTES 300000u
#define READ_MAX 70000u

static unsigned char source[BYTES], target[2][BYTES];
static bool reads_less; /* than READ_MAX bytes at a time */

ssize_t readv(int fd, const struct iovec *parts, int n)
{
    static ssize_t (*real)(int, const struct iovec *, int);
    struct iovec less[2];
    size_t left = READ_MAX;

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "readv");
    for (int i = 0; i < n && i < 2; i++) {
        less[i] = parts[i];
        less[i].iov_len = less[i].iov_len < left ? less[i].iov_len : left;
        left -= less[i].iov_len;
    }
    return real(fd, reads_less ? less : parts, n);
}

static struct pki_tcp_ep *ep_of(const struct tcp_pair *pair, int rank)
{
    return pki_tcp_ep_of(pair->ep[rank]);
}

static unsigned acks_delayed(const struct tcp_pair *pair, int rank)
{
    return (unsigned)pki_tcp_iface_of(pair->iface[rank])->acks_delayed;
}

static void fill(uint64_t op)
{
    for (size_t i = 0; i < BYTES; i++)
        source[i] = (unsigned char)(op * 61 + i * 7 + i / 509);
}

static void grant(struct tcp_pair *pair, int rank, uint64_t op, unsigned extra)
{
    const struct pki_msg msg = { .kind = PKI_MSG_CTS, .op = op, .sig = 5, .bytes = BYTES, .offset = (uint64_t)(uintptr_t)target[rank],
                                 .extra = (uint16_t)(PKI_CTS_LOCAL | extra) };

    memset(target[rank], 0, BYTES);
    cr_assert_eq(tcp()->msg(pair->ep[rank], &msg, NULL), PK_OK);
}

static void put(struct tcp_pair *pair, int rank, struct pki_put *put, uint64_t op, const void *src, bool answered)
{
    *put = (struct pki_put){ .ep = pair->ep[rank], .src = src, .bytes = BYTES, .eager_put = true, .answered = answered,
                             .about = { .kind = PKI_MSG_FIN, .op = op, .sig = 5, .bytes = BYTES } };
    pki_list_init(&put->node);
    cr_assert_eq(tcp()->put(put), PK_OK);
}

/* Puts are copied, and both ends have let the connection in. */
static void begin_with(struct tcp_pair *pair, const char *sockets)
{
    reads_less = false;
    tcp_params(sockets, "4", "524288");
    tcp_pair_new(pair);
    for (int rank = 0; rank < 2; rank++) {
        struct pki_put first;

        tcp_pair_go(pair, rank, true);
        cr_assert_null(tcp()->place(pair->ep[rank], BYTES), "nothing has been acknowledged");
        grant(pair, 1 - rank, 1, 0);
        put(pair, rank, &first, 1, source, false);
        tcp_pair_await_end(pair, rank, &first);
    }
    for (int rank = 0; rank < 2; rank++) {
        struct pki_msg msg;
        const void *payload;

        while (tcp()->peek(pair->ep[rank], &msg, &payload))
            tcp()->pop(pair->ep[rank]);
    }
    acks = 0;
}

static void begin(struct tcp_pair *pair)
{
    begin_with(pair, "1/0");
}

/* Word that this operation has come whole; `parts`: counts word of less. Only this rank looks. */
static void hear(struct tcp_pair *pair, int rank, uint64_t op, unsigned *parts)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;
    size_t before = 0;

    for (bool whole = false; !whole;) {
        struct pki_msg msg;
        const void *payload;

        cr_assert(pki_now_ns() < until && !pair->ep[rank]->dead);
        (void)tcp()->progress(pair->iface[rank]);
        while (!whole && tcp()->peek(pair->ep[rank], &msg, &payload)) {
            cr_assert(msg.kind == PKI_MSG_FIN && msg.op == op);
            cr_assert(msg.offset == BYTES || (msg.offset % 64 == 0 && msg.offset > before), "%llu behind %zu", (unsigned long long)msg.offset, before);
            cr_assert_eq(memcmp(target[rank] + before, source + before, msg.offset - before), 0, "what is told of is there");
            before = msg.offset;
            *parts += msg.offset < BYTES;
            whole = msg.offset == BYTES;
            tcp()->pop(pair->ep[rank]);
        }
    }
}

static void rounds(struct tcp_pair *pair, int rank, int n)
{
    for (int i = 0; i < n; i++)
        (void)tcp()->progress(pair->iface[rank]);
}

/* Rank 0 sends, rank 1 answers from a place of its transport: it returns where that was. */
static char *to_and_fro(struct tcp_pair *pair, uint64_t op)
{
    struct pki_put one, answer;
    unsigned parts = 0;
    char *place;

    fill(op);
    grant(pair, 1, op, PKI_CTS_REPLIES);
    grant(pair, 0, op, 0);
    put(pair, 0, &one, op, source, true);
    hear(pair, 1, op, &parts);
    cr_assert_eq(acks_delayed(pair, 1), 1, "the answer says it");
    place = tcp()->place(pair->ep[1], BYTES);
    cr_assert_not_null(place);
    cr_assert_eq(tcp()->place(pair->ep[1], BYTES), place, "as long as nothing has been put from there");
    memcpy(place, source, BYTES);
    put(pair, 1, &answer, op, place, false);
    for (uint64_t until = pki_now_ns() + TIMEOUT_NS; pki_list_empty(&pair->iface[1]->done); rounds(pair, 0, 1), rounds(pair, 1, 1))
        cr_assert(pki_now_ns() < until);
    cr_assert(tcp_pair_has_ended(pair, 1, &answer));
    hear(pair, 0, op, &parts);
    cr_assert(tcp_pair_has_ended(pair, 0, &one), "the answer has said it");
    rounds(pair, 1, 20);
    cr_assert_eq(acks, 0, "%u messages for that", acks);
    return place;
}

Test(tcp_answers, the_answer_says_it_and_its_put_does_not_wait)
{
    struct tcp_pair pair;
    char *place;

    begin(&pair);
    place = to_and_fro(&pair, 2);
    cr_assert_neq(tcp()->place(pair.ep[1], BYTES), place, "the peer has not said that it has it");
    for (uint64_t op = 3; op < 20; op++)
        cr_assert_eq(to_and_fro(&pair, op), place, "it has, with what came next");
    tcp_pair_free(&pair);
}

Test(tcp_answers, without_one_ctrl_says_it)
{
    struct tcp_pair pair;
    struct pki_put one;
    unsigned parts = 0;

    begin(&pair);
    fill(2);
    grant(&pair, 1, 2, PKI_CTS_REPLIES);
    put(&pair, 0, &one, 2, source, true);
    hear(&pair, 1, 2, &parts);
    cr_assert_eq(acks, 0);
    rounds(&pair, 1, 1);
    cr_assert_eq(acks, 1);
    cr_assert_eq(acks_delayed(&pair, 1), 0);
    tcp_pair_await_end(&pair, 0, &one);
    tcp_pair_free(&pair);
}

/* The head of an answer, which goes by the first connection, says nothing of another one; the engine may return to its caller with this round. */
Test(tcp_answers, what_comes_by_another_connection_is_said_at_once)
{
    struct tcp_pair pair;
    struct pki_tcp_link *first;
    struct pki_put one;
    unsigned parts = 0;

    begin_with(&pair, "2/0");
    first = &ep_of(&pair, 0)->links[1];
    fill(2);
    grant(&pair, 1, 2, PKI_CTS_REPLIES);
    first->outstanding += BYTES;
    put(&pair, 0, &one, 2, source, true);
    first->outstanding -= BYTES;
    hear(&pair, 1, 2, &parts);
    cr_assert_eq(acks_delayed(&pair, 1), 0);
    cr_assert_eq(acks, 1);
    tcp_pair_await_end(&pair, 0, &one);
    tcp_pair_free(&pair);
}

Test(tcp_answers, parts_are_reported)
{
    struct tcp_pair pair;
    struct pki_put one;
    unsigned parts = 0;

    begin(&pair);
    fill(2);
    reads_less = true;
    grant(&pair, 1, 2, PKI_CTS_REPLIES);
    put(&pair, 0, &one, 2, source, true);
    while (parts == 0 || memcmp(target[1], source, BYTES) != 0) {
        rounds(&pair, 0, 1);
        hear(&pair, 1, 2, &parts);
    }
    cr_assert_geq(parts, 4);
    tcp_pair_await_end(&pair, 0, &one);
    tcp_pair_free(&pair);
}

/* What is written there stays until the peer has it, over whichever connection. */
Test(tcp_answers, a_place_outlives_the_connection)
{
    struct tcp_pair pair;
    struct pki_put one, two;
    unsigned parts = 0;
    char *place[2];

    begin(&pair);
    place[0] = tcp()->place(pair.ep[0], BYTES);
    fill(2);
    memcpy(place[0], source, BYTES);
    tcp_cut(pair.ep[0], 1);
    grant(&pair, 1, 2, 0);
    put(&pair, 0, &one, 2, place[0], false);
    cr_assert_neq(tcp()->place(pair.ep[0], BYTES), place[0]);
    tcp_pair_await_end(&pair, 0, &one);
    hear(&pair, 1, 2, &parts);
    cr_assert_null(tcp()->place(pair.ep[0], BYTES), "not on a connection that was made anew");
    fill(3);
    grant(&pair, 1, 3, 0);
    put(&pair, 0, &two, 3, source, false);
    tcp_pair_await_end(&pair, 0, &two);
    hear(&pair, 1, 3, &parts);
    tcp_pair_free(&pair);
}

Test(tcp_answers, no_place_for_more_than_a_chunk)
{
    struct tcp_pair pair;
    struct pki_put put_from[2];
    char *place;

    begin(&pair);
    cr_assert_null(tcp()->place(pair.ep[0], PKI_TCP_PLACE_MAX + 1));
    cr_assert_not_null(tcp()->place(pair.ep[0], PKI_TCP_PLACE_MAX));
    for (unsigned i = 0; i < PKI_TCP_PLACES; i++) {
        place = tcp()->place(pair.ep[0], BYTES);
        cr_assert_not_null(place);
        put(&pair, 0, &put_from[i], 2 + i, place, false);
    }
    cr_assert_null(tcp()->place(pair.ep[0], BYTES), "there are only so many");
    tcp_pair_drop(&pair);
}
