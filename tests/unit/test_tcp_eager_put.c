/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: chunks that do not wait for their grant, and handshakes that somebody has recorded. */
#include <criterion/criterion.h>
#include <unistd.h>

#include "tcp_pair.h"

#define TIMEOUT_NS (20 * PKI_NS_PER_S)
#define BYTES 1000000u

static unsigned char sent[BYTES], taken[BYTES];
/* what has come by it is not read into memory of the transport, as if its rank looked seldom */
static struct pki_tcp_link *passed_over;

static void begin(struct tcp_pair *pair, const char *sockets, const char *chunk)
{
    tcp_params(sockets, "4", chunk);
    tcp_pair_new(pair);
    for (size_t i = 0; i < BYTES; i++)
        sent[i] = (unsigned char)(i * 2654435761u >> 16);
    memset(taken, 0, BYTES);
}

/* From rank 0, number `op`, before rank 1 has granted it. */
static void put_eagerly(struct tcp_pair *pair, struct pki_put *put, uint64_t op)
{
    *put = (struct pki_put){ .ep = pair->ep[0],
                             .src = sent,
                             .bytes = BYTES,
                             .eager_put = true,
                             .about = { .kind = PKI_MSG_FIN, .op = op, .sig = 5, .bytes = BYTES } };
    pki_list_init(&put->event.node);
    cr_assert_eq(tcp()->put(put), PK_OK);
}

static void grant_how(struct tcp_pair *pair, uint64_t op, size_t bytes, uint32_t sig, bool tells)
{
    const struct pki_msg msg = {
        .kind = PKI_MSG_CTS, .op = op, .sig = sig, .bytes = bytes, .offset = (uint64_t)(uintptr_t)taken
    };

    cr_assert_eq(tcp_post(pair->ep[1], &msg, tells), PK_OK);
}

static void grant(struct tcp_pair *pair, uint64_t op, size_t bytes)
{
    grant_how(pair, op, bytes, 5, true);
}

static void go_on(struct tcp_pair *pair)
{
    if (passed_over != NULL)
        passed_over->in->polls = 0;
    tcp_pair_progress(pair);
}

/* Progress until rank 1 has a message of this kind that says so many bytes; what comes before it is taken. */
static bool await(struct tcp_pair *pair, enum pki_msg_kind kind, uint64_t op, uint64_t bytes, unsigned cut_every)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;
    struct pki_msg msg;
    const void *payload;

    for (unsigned round = 1; pki_now_ns() < until; round++) {
        if (pair->ep[0]->state == PKI_EP_DEAD || pair->ep[1]->state == PKI_EP_DEAD)
            return false;
        go_on(pair);
        if (cut_every > 0 && round % cut_every == 0)
            tcp_cut(pair->ep[round / cut_every % 2], 1 + round / cut_every % (pki_tcp_ep_of(pair->ep[0])->nlinks - 1));
        while (tcp_peek(pair->ep[1], &msg, &payload)) {
            bool it = msg.kind == kind && msg.op == op && (kind == PKI_MSG_FIN ? msg.offset : msg.bytes) == bytes;

            tcp_pop(pair->ep[1]);
            if (it)
                return true;
        }
    }
    return false;
}

static bool put_ends(struct tcp_pair *pair, const struct pki_put *put)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;

    while (events_look(pair->iface[0]) == NULL && pki_now_ns() < until)
        tcp_pair_progress(pair);
    return events_put(pair->iface[0]) == put && put->result == PK_OK;
}

static void finish(struct tcp_pair *pair)
{
    cr_assert_eq(memcmp(sent, taken, BYTES), 0);
    cr_assert_eq(pki_tcp_ep_of(pair->ep[1])->unexpected.bytes, 0);
    cr_assert_eq(pki_tcp_iface_of(pair->iface[0])->busy, 0);
    cr_assert_eq(pki_tcp_iface_of(pair->iface[1])->busy, 0);
    tcp_pair_free(pair);
}

Test(tcp_eager_put, ends_before_it_is_granted)
{
    struct tcp_pair pair;
    struct pki_put put;

    begin(&pair, "2", "65536");
    put_eagerly(&pair, &put, 3);
    cr_assert(await(&pair, PKI_MSG_RTS, 3, BYTES, 0), "the engine hears of what nobody has asked for");
    cr_assert(put_ends(&pair, &put));
    cr_assert_eq(pki_tcp_ep_of(pair.ep[1])->unexpected.bytes, BYTES);
    grant(&pair, 3, BYTES);
    cr_assert(await(&pair, PKI_MSG_FIN, 3, BYTES, 0));
    finish(&pair);
}

/* Two parts of the first transfer, and a second one, each by another connection; what the peer says of them, in what order, is told to this end alone. */
Test(tcp_eager_put, ends_while_another_transfer_waits)
{
    const size_t part = BYTES / 4;
    struct tcp_pair pair;
    struct pki_put puts[3];
    struct pki_tcp_ep *ep;
    int owners[2];

    begin(&pair, "3", "524288");
    ep = pki_tcp_ep_of(pair.ep[0]);
    for (int i = 0; i < 3; i++) {
        puts[i] =
            (struct pki_put){ .ep = pair.ep[0],
                              .src = sent,
                              .remote = i == 1 ? part : 0,
                              .bytes = part,
                              .whole = i < 2 ? 2 * part : part,
                              .eager_put = true,
                              .about = { .kind = PKI_MSG_FIN, .op = i < 2 ? 3 : 4, .sig = 5, .bytes = i < 2 ? 2 * part : part },
                              .owner = &owners[i / 2] };
        pki_list_init(&puts[i].event.node);
        cr_assert_eq(tcp()->put(&puts[i]), PK_OK);
        cr_assert_eq(ep->links[1 + i].end, 1, "it goes by the connection with the least on its way");
    }
    pki_tcp_data_acked(&ep->links[2], 1);
    cr_assert(events_look(pair.iface[0]) == NULL, "the first part has not ended");
    pki_tcp_data_acked(&ep->links[3], 1);
    cr_assert(tcp_pair_has_ended(&pair, 0, &puts[2]), "another transfer has");
    cr_assert(events_look(pair.iface[0]) == NULL);
    pki_tcp_data_acked(&ep->links[1], 1);
    cr_assert(tcp_pair_has_ended(&pair, 0, &puts[0]));
    cr_assert(tcp_pair_has_ended(&pair, 0, &puts[1]));
    cr_assert_eq(pki_tcp_iface_of(pair.iface[0])->busy, 0);
    tcp_pair_drop(&pair);
}

/* The peer leaves its calls before it has come to the first one; more puts than there is room for come behind it. */
Test(tcp_eager_put, others_end_behind_one_that_nobody_asked_for)
{
    struct tcp_pair pair;
    struct pki_put first, later;
    int owners[2];
    size_t bytes = 1000;

    begin(&pair, "2", "524288");
    first = (struct pki_put){ .ep = pair.ep[0],
                              .src = sent,
                              .bytes = bytes,
                              .eager_put = true,
                              .about = { .kind = PKI_MSG_FIN, .op = 3, .sig = 5, .bytes = bytes },
                              .owner = &owners[0] };
    pki_list_init(&first.event.node);
    cr_assert_eq(tcp()->put(&first), PK_OK);
    passed_over = &pki_tcp_ep_of(pair.ep[1])->links[1];
    for (uint64_t op = 4; op < 4 + 2 * PKI_TCP_MOVES; op++) {
        grant(&pair, op, 2 * bytes);
        later = (struct pki_put){ .ep = pair.ep[0],
                                  .src = sent,
                                  .bytes = 2 * bytes,
                                  .eager_put = true,
                                  .about = { .kind = PKI_MSG_FIN, .op = op, .sig = 5, .bytes = 2 * bytes },
                                  .owner = &owners[1] };
        pki_list_init(&later.event.node);
        cr_assert_eq(tcp()->put(&later), PK_OK);
        for (uint64_t until = pki_now_ns() + TIMEOUT_NS; events_look(pair.iface[0]) == NULL && pki_now_ns() < until;)
            go_on(&pair);
        cr_assert(tcp_pair_has_ended(&pair, 0, &later), "operation %llu", (unsigned long long)op);
        cr_assert(await(&pair, PKI_MSG_FIN, op, 2 * bytes, 0));
    }
    passed_over = NULL;
    cr_assert(put_ends(&pair, &first), "read into memory of the transport in the end");
    tcp_pair_free(&pair);
}

/* Granted after every number of rounds up to 200, connections cut meanwhile in every other turn. */
Test(tcp_eager_put, granted_in_the_middle, .timeout = 60)
{
    for (unsigned rounds = 0; rounds < 200; rounds += 7) {
        struct tcp_pair pair;
        struct pki_put put;

        begin(&pair, rounds % 3 == 0 ? "1" : "3", rounds % 2 == 0 ? "16384" : "524288");
        put_eagerly(&pair, &put, 3);
        for (unsigned i = 0; i < rounds; i++)
            tcp_pair_progress(&pair);
        if (rounds % 4 == 3)
            tcp_cut(pair.ep[0], 1);
        grant(&pair, 3, BYTES);
        cr_assert(await(&pair, PKI_MSG_FIN, 3, BYTES, rounds % 4 == 3 ? 40 : 0), "granted after %u rounds", rounds);
        cr_assert(put_ends(&pair, &put));
        finish(&pair);
    }
}

Test(tcp_eager_put, granted_after_the_peer_has_left)
{
    struct tcp_pair pair;
    struct pki_put put;
    uint64_t until;

    begin(&pair, "1", "65536");
    put_eagerly(&pair, &put, 3);
    cr_assert(put_ends(&pair, &put));
    tcp()->ep_close(pair.ep[0]);
    free(pair.ep[0]);
    pair.ep[0] = NULL;
    until = pki_now_ns() + PKI_NS_PER_S;
    while (!pki_tcp_ep_of(pair.ep[1])->left && pki_now_ns() < until)
        (void)tcp()->progress(pair.iface[1]);
    grant(&pair, 3, BYTES);
    cr_assert_eq(memcmp(sent, taken, BYTES), 0);
    tcp_pair_free(&pair);
}

/* Word of the chunks comes by itself, behind the shutdown message. */
Test(tcp_eager_put, acknowledged_behind_the_shutdown)
{
    const struct pki_tcp_ack ack = { .link = 1, .frames = 2 };
    unsigned char close_frame[PKI_TCP_HEADER_BYTES + PKI_TCP_CLOSE_BYTES], ack_frame[PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES];
    struct pki_tcp_link *links;
    struct tcp_pair pair;
    struct pki_put put;

    begin(&pair, "1", "524288");
    links = pki_tcp_ep_of(pair.ep[1])->links;
    pki_tcp_put_close(close_frame, 0);
    pki_tcp_put_ack(ack_frame, &ack);
    put_eagerly(&pair, &put, 3);
    while (links[1].received < 2) {
        links[0].writable = false; /* so that rank 1 says nothing by itself */
        tcp_pair_progress(&pair);
    }
    cr_assert_eq(send(links[0].source.fd, close_frame, sizeof close_frame, 0), sizeof close_frame);
    while (!pki_tcp_ep_of(pair.ep[0])->left)
        (void)tcp()->progress(pair.iface[0]);
    cr_assert_eq(send(links[0].source.fd, ack_frame, sizeof ack_frame, MSG_NOSIGNAL), sizeof ack_frame);
    tcp_cut(pair.ep[1], 0);
    for (uint64_t until = pki_now_ns() + PKI_NS_PER_S; pki_now_ns() < until && events_look(pair.iface[0]) == NULL;)
        (void)tcp()->progress(pair.iface[0]);
    cr_assert_eq(events_put(pair.iface[0]), &put);
    cr_assert_eq(put.result, PK_OK);
    tcp_pair_free(&pair);
}

Test(tcp_eager_put, of_another_length_is_reported)
{
    struct tcp_pair pair;
    struct pki_put put;

    begin(&pair, "1", "65536");
    grant(&pair, 3, BYTES - 70000);
    put_eagerly(&pair, &put, 3);
    cr_assert(await(&pair, PKI_MSG_RTS, 3, BYTES, 0));
    for (size_t i = BYTES - 70000; i < BYTES; i++)
        cr_assert_eq(taken[i], 0, "byte %zu, behind what was granted", i);
    tcp_pair_free(&pair);
}

Test(tcp_eager_put, of_another_kind_is_reported)
{
    struct tcp_pair pair;
    struct pki_put put;

    begin(&pair, "1", "65536");
    grant_how(&pair, 3, BYTES, 6, false);
    put_eagerly(&pair, &put, 3);
    cr_assert(await(&pair, PKI_MSG_RTS, 3, BYTES, 0));
    tcp_pair_free(&pair);
}

/* The first grant of rank 1 that rank 0 hears of: its operation; 0: of none within this time. */
static uint64_t hears_of_grant(struct tcp_pair *pair, uint64_t timeout_ns)
{
    uint64_t until = pki_now_ns() + timeout_ns;
    struct pki_msg msg;
    const void *payload;

    while (pki_now_ns() < until) {
        tcp_pair_progress(pair);
        if (!tcp_peek(pair->ep[0], &msg, &payload))
            continue;
        tcp_pop(pair->ep[0]);
        if (msg.kind == PKI_MSG_CTS)
            return msg.op;
    }
    return 0;
}

Test(tcp_eager_put, a_cts_is_sent_when_it_is_asked_for)
{
    struct tcp_pair pair;
    struct pki_put put;

    begin(&pair, "1", "65536");
    grant_how(&pair, 3, BYTES, 5, false);
    cr_assert_eq(hears_of_grant(&pair, PKI_NS_PER_S / 5), 0);
    cr_assert_eq(tcp()->send(pair.ep[1], &(struct pki_msg){ .kind = PKI_MSG_CTS, .op = 3, .sig = 5, .bytes = BYTES }, NULL),
                 PK_OK);
    cr_assert_eq(hears_of_grant(&pair, TIMEOUT_NS), 3);
    put_eagerly(&pair, &put, 3);
    put.eager_put = false;
    cr_assert(await(&pair, PKI_MSG_FIN, 3, BYTES, 0));
    cr_assert(put_ends(&pair, &put));
    finish(&pair);
}

/* ---- Peers that misbehave ---- */

static bool kills(const struct pki_tcp_chunk *chunks, size_t count)
{
    static unsigned char payload[PKI_TCP_EAGER_PUT_MAX];
    struct tcp_pair pair;
    uint64_t until = pki_now_ns() + PKI_NS_PER_S;
    bool dead;

    begin(&pair, "1", "65536");
    for (size_t i = 0; i < count; i++) {
        int fd = pki_tcp_ep_of(pair.ep[0])->links[1].source.fd;
        unsigned char head[PKI_TCP_DATA_HEAD_BYTES];
        size_t at = 0;

        pki_tcp_put_chunk(head, &chunks[i]);
        while (at < sizeof head + chunks[i].bytes && pair.ep[1]->state != PKI_EP_DEAD && pki_now_ns() < until) {
            ssize_t n = at < sizeof head ? send(fd, head + at, sizeof head - at, MSG_NOSIGNAL | MSG_DONTWAIT)
                                         : send(fd, payload, sizeof head + chunks[i].bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT);

            at += n > 0 ? (size_t)n : 0;
            (void)tcp()->progress(pair.iface[1]);
        }
    }
    while (pair.ep[1]->state != PKI_EP_DEAD && pki_now_ns() < until)
        (void)tcp()->progress(pair.iface[1]);
    dead = pair.ep[1]->state == PKI_EP_DEAD;
    cr_assert_leq(pki_tcp_ep_of(pair.ep[1])->unexpected.bytes, PKI_TCP_EAGER_PUT_CREDIT);
    tcp_pair_drop(&pair);
    return dead;
}

Test(tcp_eager_put, what_a_peer_may_not)
{
    const struct pki_tcp_chunk same = { .op = 1, .bytes = 100, .eager_put = 200 };
    const struct pki_tcp_chunk overlapping = { .op = 1, .offset = 50, .bytes = 100, .eager_put = 200 };
    const struct pki_tcp_chunk longest = { .op = 1, .bytes = PKI_TCP_EAGER_PUT_MAX, .eager_put = PKI_TCP_EAGER_PUT_MAX };
    struct pki_tcp_chunk many[1 + PKI_TCP_EAGER_PUT_CREDIT / PKI_TCP_EAGER_PUT_MAX], wrong = longest;

    cr_assert(kills((struct pki_tcp_chunk[]){ same, same }, 2), "the same bytes twice");
    cr_assert(kills((struct pki_tcp_chunk[]){ same, overlapping }, 2), "some of them");
    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        many[i] = longest, many[i].op = i;
    cr_assert(kills(many, sizeof many / sizeof *many), "more than its credit");
    wrong.eager_put++;
    cr_assert(kills(&wrong, 1), "too long a transfer");
    wrong = same, wrong.offset = 101;
    cr_assert(kills(&wrong, 1), "behind the end of it");
    wrong = same, wrong.flags = PKI_MSG_FLAG_BOUNCE;
    cr_assert(kills(&wrong, 1), "into a slot");
}

/* ---- Recorded handshakes ---- */

static int stranger(const struct tcp_pair *pair)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(
        connect(fd, (const struct sockaddr *)&pki_tcp_iface_of(pair->iface[0])->own.address[0], sizeof(struct sockaddr_in)), 0);
    return fd;
}

/* Say hello to rank 0; false: it hung up instead of answering. */
static bool challenge_of(struct tcp_pair *pair, int fd, const unsigned char *hello, unsigned char *answer)
{
    uint64_t until = pki_now_ns() + 20 * PKI_NS_PER_S;
    ssize_t n = -1;

    cr_assert_eq(send(fd, hello, PKI_TCP_HELLO_BYTES, MSG_NOSIGNAL), PKI_TCP_HELLO_BYTES);
    while (n < 0 && pki_now_ns() < until) {
        (void)tcp()->progress(pair->iface[0]);
        n = recv(fd, answer, PKI_TCP_CHALLENGE_BYTES, MSG_DONTWAIT);
    }
    return n == PKI_TCP_CHALLENGE_BYTES;
}

Test(tcp_eager_put, a_recorded_handshake_is_dropped_and_counted)
{
    unsigned char hello[PKI_TCP_HELLO_BYTES], answer[2][PKI_TCP_CHALLENGE_BYTES], mac[PKI_TCP_MAC_BYTES];
    struct pki_tcp_challenge challenge;
    struct tcp_pair pair;
    struct pki_tcp_iface *iface;
    uint64_t until;
    int fd[2];

    begin(&pair, "1", "65536");
    iface = pki_tcp_iface_of(pair.iface[0]);
    pki_tcp_put_hello(hello, &(struct pki_tcp_hello){ .from = 1, .to = 0, .size = 2, .link = 1, .nonce = { 7 } });
    fd[0] = stranger(&pair);
    cr_assert(challenge_of(&pair, fd[0], hello, answer[0]));
    cr_assert(pki_tcp_get_challenge(answer[0], &challenge));
    /* as the peer would: this is what is recorded */
    cr_assert_eq(pki_tcp_prove(iface, PKI_TCP_LABEL_CONNECT, hello, &challenge, mac), PK_OK);
    fd[1] = stranger(&pair);
    cr_assert(challenge_of(&pair, fd[1], hello, answer[1]));
    cr_assert_neq(memcmp(answer[0], answer[1], sizeof answer[0]), 0, "no challenge comes twice");
    cr_assert_eq(send(fd[1], mac, sizeof mac, MSG_NOSIGNAL), (ssize_t)sizeof mac);
    until = pki_now_ns() + 20 * PKI_NS_PER_S;
    while (iface->accepting.dropped == 0 && pki_now_ns() < until)
        (void)tcp()->progress(pair.iface[0]);
    cr_assert_eq(iface->accepting.dropped, 1);
    cr_assert_eq(pki_tcp_ep_of(pair.ep[0])->links[1].state, PKI_TCP_UP, "and the true connection stands");
    close(fd[0]);
    close(fd[1]);
    tcp_pair_free(&pair);
}
