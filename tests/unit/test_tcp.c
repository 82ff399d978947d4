/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport between two endpoints of one process: messages, chunks, the window, cuts, and peers that misbehave. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "tcp_pair.h"
#include "util/auth.h"
#include "util/bytes.h"

#define TIMEOUT_NS (20 * PKI_NS_PER_S)

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

static void fill(unsigned char *to, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)(mix(seed + i / 8) >> 8 * (i % 8));
}

static bool equal(const unsigned char *at, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (unsigned char)(mix(seed + i / 8) >> 8 * (i % 8)))
            return false;
    return true;
}

/* ---- Messages ---- */

/* Rank `from` sends `count` messages of all lengths, the other checks them; every `cut_every`-th time round the control channel is cut. */
static void stream_messages(struct tcp_pair *pair, int from, unsigned count, unsigned cut_every)
{
    static unsigned char payload[PKI_TCP_EAGER_MAX];
    unsigned sent = 0, taken = 0;
    uint64_t until = pki_now_ns() + TIMEOUT_NS;

    while (taken < count && pki_now_ns() < until) {
        struct pki_msg msg = {
            .kind = sent % 3 == 0 ? PKI_MSG_EAGER : PKI_MSG_FIN, .op = sent, .sig = sent * 7, .index = (uint16_t)sent
        };
        const void *got;
        uint32_t most = msg.kind == PKI_MSG_EAGER ? PKI_TCP_EAGER_MAX : PKI_TCP_PAYLOAD_MAX;

        msg.payload = (uint32_t)(mix(sent) % 5 == 0 ? mix(sent) % (most + 1) : mix(sent) % 100);
        msg.bytes = mix(sent + 1); /* credit, in one of kind EAGER */
        fill(payload, msg.payload, sent);
        if (sent < count && tcp()->send(pair->ep[from], &msg, payload) == PK_OK)
            sent++;
        if (cut_every != 0 && sent % cut_every == cut_every - 1 && sent < count)
            tcp_cut(pair->ep[sent % 2], 0);
        tcp_pair_progress(pair);
        while (tcp_peek(pair->ep[1 - from], &msg, &got)) {
            cr_assert_eq(msg.op, taken);
            cr_assert_eq(msg.sig, (uint32_t)taken * 7);
            cr_assert_eq(msg.index, (uint16_t)taken);
            cr_assert_eq(msg.bytes, mix(taken + 1));
            cr_assert_eq(msg.kind, taken % 3 == 0 ? PKI_MSG_EAGER : PKI_MSG_FIN);
            cr_assert(equal(got, msg.payload, taken), "message %u", taken);
            tcp_pop(pair->ep[1 - from]);
            taken++;
        }
        cr_assert_not(pair->ep[0]->state == PKI_EP_DEAD || pair->ep[1]->state == PKI_EP_DEAD);
    }
    cr_assert_eq(taken, count);
}

Test(tcp, messages_in_order_both_ways)
{
    struct tcp_pair pair;

    tcp_params("1", "16", "524288");
    tcp_pair_new(&pair);
    stream_messages(&pair, 0, 3000, 0);
    stream_messages(&pair, 1, 3000, 0);
    tcp_pair_free(&pair);
}

Test(tcp, messages_survive_cuts)
{
    struct tcp_pair pair;

    tcp_params("1", "16", "524288");
    tcp_pair_new(&pair);
    stream_messages(&pair, 0, 1000, 10);
    stream_messages(&pair, 1, 1000, 10);
    tcp_pair_free(&pair);
}

Test(tcp, messages_wait_where_nobody_reads)
{
    struct tcp_pair pair;
    static unsigned char payload[PKI_TCP_EAGER_MAX];
    struct pki_msg msg = { .kind = PKI_MSG_EAGER, .payload = PKI_TCP_EAGER_MAX };
    unsigned taken = 0;

    tcp_params("1", "16", "524288");
    tcp_pair_new(&pair);
    for (int i = 0; i < 100000; i++) {
        taken += tcp()->send(pair.ep[0], &msg, payload) == PK_OK;
        (void)tcp()->progress(pair.iface[0]);
    }
    cr_assert_lt(taken, PKI_TCP_TX_BYTES / PKI_TCP_EAGER_MAX + 1);
    tcp_pair_free(&pair);
}

Test(tcp, lengths_of_messages)
{
    static const uint32_t payloads[] = { 0, 1, 2048, PKI_TCP_EAGER_MAX };
    static unsigned char bytes[PKI_TCP_MSG_FRAME_MAX];
    const unsigned char *payload;
    struct pki_msg msg;

    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
        msg = (struct pki_msg){ .kind = PKI_MSG_EAGER, .op = 9, .bytes = 4711, .payload = payloads[i] };
        cr_assert_eq(pki_tcp_put_msg(bytes, &msg), PKI_TCP_HEADER_BYTES + PKI_TCP_MSG_SHORT_BYTES);
        cr_assert(pki_tcp_get_msg(bytes + PKI_TCP_HEADER_BYTES, PKI_TCP_MSG_SHORT_BYTES + payloads[i], &msg, &payload));
        cr_assert(payload == bytes + PKI_TCP_HEADER_BYTES + PKI_TCP_MSG_SHORT_BYTES && msg.payload == payloads[i] &&
                  msg.bytes == 4711);
    }
    cr_assert_not(pki_tcp_get_msg(bytes + PKI_TCP_HEADER_BYTES, PKI_TCP_MSG_SHORT_BYTES + PKI_TCP_EAGER_MAX + 1, &msg, &payload));
    cr_assert_not(pki_tcp_get_msg(bytes + PKI_TCP_HEADER_BYTES, PKI_TCP_MSG_SHORT_BYTES - 1, &msg, &payload));
}

/* ---- Chunks ---- */

struct transfer {
    unsigned char *src, *dst;
    size_t bytes, put_bytes, reported;
    uint64_t op;
    int ended, puts; /* of so many puts */
    struct pki_put put[64];
};

static void transfer_begin(struct tcp_pair *pair, struct transfer *t, uint64_t op, size_t bytes, size_t put_bytes)
{
    struct pki_msg grant = { .kind = PKI_MSG_CTS, .op = op, .bytes = bytes };

    *t = (struct transfer){ .src = malloc(bytes), .dst = malloc(bytes), .bytes = bytes, .put_bytes = put_bytes, .op = op };
    fill(t->src, bytes, op);
    memset(t->dst, 0, bytes);
    grant.offset = (uint64_t)(uintptr_t)t->dst;
    cr_assert_eq(tcp_post(pair->ep[1], &grant, true), PK_OK);
    for (size_t at = 0; at < bytes; at += put_bytes, t->puts++) {
        size_t left = bytes - at;

        t->put[t->puts] = (struct pki_put){ .ep = pair->ep[0],
                                            .src = t->src + at,
                                            .remote = at,
                                            .bytes = left < put_bytes ? left : put_bytes,
                                            .owner = t,
                                            .about = { .kind = PKI_MSG_FIN, .op = op, .bytes = bytes } };
        pki_list_init(&t->put[t->puts].event.node);
        cr_assert_eq(tcp()->put(&t->put[t->puts]), PK_OK);
    }
}

/* What has come of both ends since; returns how many transfers are whole. */
static int transfers_look(struct tcp_pair *pair, struct transfer *t, int n)
{
    struct pki_put *put;
    struct pki_msg msg;
    const void *payload;
    int whole = 0;

    while ((put = events_put(pair->iface[0])) != NULL) {
        struct transfer *owner = put->owner;

        cr_assert_eq(put->result, PK_OK);
        cr_assert_eq(put, &owner->put[owner->ended], "puts end in order");
        owner->ended++;
    }
    while (tcp_peek(pair->ep[1], &msg, &payload)) {
        for (int i = 0; i < n; i++)
            if (msg.op == t[i].op) {
                cr_assert_eq(msg.kind, PKI_MSG_FIN);
                cr_assert_gt(msg.offset, t[i].reported);
                t[i].reported = msg.offset;
            }
        tcp_pop(pair->ep[1]);
    }
    while (tcp_peek(pair->ep[0], &msg, &payload)) {
        cr_assert_eq(msg.kind, PKI_MSG_CTS);
        cr_assert_eq(msg.offset, 0, "no address leaves its process");
        tcp_pop(pair->ep[0]);
    }
    for (int i = 0; i < n; i++)
        whole += t[i].reported == t[i].bytes && t[i].ended == t[i].puts;
    return whole;
}

static void transfers_run(struct tcp_pair *pair, struct transfer *t, int n, unsigned cut_every)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;
    const struct pki_tcp_ep *ep = pki_tcp_ep_of(pair->ep[0]);
    unsigned cuts = 0;

    for (unsigned round = 1; transfers_look(pair, t, n) < n && pki_now_ns() < until; round++) {
        tcp_pair_progress(pair);
        cr_assert_not(pair->ep[0]->state == PKI_EP_DEAD || pair->ep[1]->state == PKI_EP_DEAD);
        for (uint32_t i = 1; i < ep->nlinks; i++)
            cr_assert_leq(ep->links[i].end - ep->links[i].acked, ep->params.window);
        if (cut_every != 0 && round % cut_every == 0) {
            cuts++;
            tcp_cut(pair->ep[cuts % 2], (uint32_t)(mix(cuts) % ep->nlinks));
        }
    }
    cr_assert_eq(transfers_look(pair, t, n), n);
    for (int i = 0; i < n; i++) {
        cr_assert(equal(t[i].dst, t[i].bytes, t[i].op), "transfer %d", i);
        free(t[i].src);
        free(t[i].dst);
    }
}

static void transfer_some(const char *sockets, const char *window, const char *chunk, unsigned cut_every)
{
    static const size_t lengths[] = { 1, 16384, 16385, 1000000, 4 << 20, 9000001 };
    struct transfer t[6];
    struct tcp_pair pair;

    tcp_params(sockets, window, chunk);
    tcp_pair_new(&pair);
    for (int i = 0; i < 6; i++)
        transfer_begin(&pair, &t[i], 100 + (uint64_t)i, lengths[i], lengths[i] / 3 + 1);
    transfers_run(&pair, t, 6, cut_every);
    cr_assert_eq(pki_tcp_iface_of(pair.iface[0])->busy, 0);
    cr_assert_eq(pki_tcp_iface_of(pair.iface[1])->busy, 0);
    tcp_pair_free(&pair);
}

Test(tcp, chunks_over_one_socket)
{
    transfer_some("1", "16", "524288", 0);
}

Test(tcp, chunks_over_five_sockets)
{
    transfer_some("5", "3", "16384", 0);
}

Test(tcp, window_of_one)
{
    transfer_some("2", "1", "65536", 0);
}

Test(tcp, chunks_survive_cuts)
{
    transfer_some("1", "4", "65536", 50);
    transfer_some("4", "4", "16384", 20);
}

Test(tcp, lower_of_both_counts)
{
    struct tcp_pair pair;
    struct pki_tcp_peer_info peer_info;

    tcp_params("3", "8", "65536");
    tcp_pair_begin(&pair);
    cr_assert(pki_tcp_get_peer_info(&pair.blob[1], &peer_info));
    peer_info.sockets = 2;
    peer_info.window = 32;
    peer_info.chunk_bytes = 32768;
    pki_tcp_put_peer_info(&pair.blob[1], &peer_info);
    cr_assert_eq(tcp()->ep_connect(pair.ep[0], &pair.blob[1]), PK_OK);
    cr_assert_eq(pki_tcp_ep_of(pair.ep[0])->params.sockets, 2);
    cr_assert_eq(pki_tcp_ep_of(pair.ep[0])->params.window, 8);
    cr_assert_eq(pki_tcp_ep_of(pair.ep[0])->params.chunk_bytes, 32768);
    tcp_pair_free(&pair);
}

Test(tcp, another_version_is_named)
{
    struct tcp_pair pair;
    pk_error_info_t info = { .struct_size = sizeof info };
    char here[32];

    tcp_params("1", "4", "65536");
    tcp_pair_begin(&pair);
    pki_put_u32(pair.blob[1].bytes, PKI_TCP_VERSION + 7);
    cr_assert_eq(tcp()->ep_connect(pair.ep[0], &pair.blob[1]), PK_ERR_MISMATCH);
    pk_last_error(&info);
    snprintf(here, sizeof here, "version %u,", PKI_TCP_VERSION + 7);
    cr_assert(strstr(info.text, here) != NULL, "%s", info.text);
    snprintf(here, sizeof here, "version %u:", PKI_TCP_VERSION);
    cr_assert(strstr(info.text, here) != NULL, "%s", info.text);
    tcp_pair_free(&pair);
}

/* ---- The end of a peer ---- */

static bool dies(struct tcp_pair *pair, int who)
{
    uint64_t until = pki_now_ns() + 20 * PKI_NS_PER_S;

    while (pair->ep[who]->state != PKI_EP_DEAD && pki_now_ns() < until) {
        tcp_pair_progress(pair);
        usleep(100);
    }
    return pair->ep[who]->state == PKI_EP_DEAD;
}

/* Everything of one end goes at once, as when its process is killed. */
static void kill_end(struct tcp_pair *pair, int who)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(pair->ep[who]);
    struct pki_tcp_iface *iface = pki_tcp_iface_of(pair->iface[who]);

    for (uint32_t i = 0; i < ep->nlinks; i++) {
        pki_tcp_source_remove(&ep->links[i].source);
        ep->links[i].state = PKI_TCP_OVER;
    }
    for (uint32_t i = 0; i < iface->accepting.listeners; i++)
        pki_tcp_source_remove(&iface->accepting.listener[i]);
    pki_ep_enter(pair->ep[who], PKI_EP_DEAD);
}

Test(tcp, death_is_noticed_on_both_sides)
{
    for (int victim = 0; victim < 2; victim++) {
        struct tcp_pair pair;
        struct transfer t;
        struct pki_put *ended;

        tcp_params("2", "2", "16384");
        tcp_pair_new(&pair);
        transfer_begin(&pair, &t, 5, 1 << 20, 1 << 20);
        kill_end(&pair, victim);
        cr_assert(dies(&pair, 1 - victim), "rank %d is dead", victim);
        ended = events_put(pair.iface[0]);
        if (victim == 1) {
            cr_assert_eq(ended, &t.put[0]);
            cr_assert_eq(t.put[0].result, PK_ERR_PEER);
            cr_assert_eq(tcp()->put(&t.put[0]), PK_ERR_PEER);
        }
        tcp_pair_free(&pair);
        free(t.src);
        free(t.dst);
    }
}

Test(tcp, leaving_is_no_death)
{
    struct tcp_pair pair;
    struct pki_msg msg = { .kind = PKI_MSG_EAGER };
    const void *payload;
    uint64_t until;

    tcp_params("2", "2", "16384");
    tcp_pair_new(&pair);
    cr_assert_eq(tcp()->send(pair.ep[0], &msg, NULL), PK_OK);
    tcp()->ep_close(pair.ep[0]);
    free(pair.ep[0]);
    pair.ep[0] = NULL;
    until = pki_now_ns() + PKI_NS_PER_S;
    while (!pki_tcp_ep_of(pair.ep[1])->left && pki_now_ns() < until)
        (void)tcp()->progress(pair.iface[1]);
    cr_assert_not(pair.ep[1]->state == PKI_EP_DEAD);
    cr_assert(tcp_peek(pair.ep[1], &msg, &payload), "what was sent before is read");
    tcp_pop(pair.ep[1]);
    cr_assert_eq(tcp()->send(pair.ep[1], &msg, NULL), PK_OK, "and what comes too late goes nowhere");
    tcp_pair_free(&pair);
}

/* ---- Peers that misbehave ---- */

static void inject(struct tcp_pair *pair, uint32_t link, const void *bytes, size_t count)
{
    int fd = pki_tcp_ep_of(pair->ep[0])->links[link].source.fd;

    cr_assert_eq(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
}

Test(tcp, chunk_outside_the_grant)
{
    static const struct pki_tcp_chunk wrong[] = {
        { .op = 7, .offset = 4096, .bytes = 1 }, /* behind the end */
        { .op = 7, .offset = 4000, .bytes = 97 },
        { .op = 7, .offset = UINT64_MAX, .bytes = 2 },
        { .op = 8, .offset = 0, .bytes = 16 }, /* another transfer */
        { .op = 7, .index = 1, .offset = 0, .bytes = 16 },
        { .op = 7, .flags = PKI_MSG_FLAG_COLL, .offset = 0, .bytes = 16 },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        unsigned char head[PKI_TCP_DATA_HEAD_BYTES], target[4096] = { 0 };
        struct pki_msg grant = { .kind = PKI_MSG_CTS, .op = 7, .bytes = sizeof target, .offset = (uint64_t)(uintptr_t)target };
        struct tcp_pair pair;

        tcp_params("1", "4", "16384");
        tcp_pair_new(&pair);
        cr_assert_eq(tcp_post(pair.ep[1], &grant, true), PK_OK);
        pki_tcp_put_chunk(head, &wrong[i]);
        inject(&pair, 1, head, sizeof head);
        cr_assert(dies(&pair, 1), "case %zu", i);
        tcp_pair_drop(&pair);
    }
}

Test(tcp, bytes_that_make_no_sense)
{
    for (uint32_t link = 0; link < 2; link++) {
        static const unsigned char garbage[64] = "GET / HTTP/1.1";
        struct tcp_pair pair;

        tcp_params("1", "4", "16384");
        tcp_pair_new(&pair);
        inject(&pair, link, garbage, sizeof garbage);
        cr_assert(dies(&pair, 1));
        tcp_pair_drop(&pair);
    }
}

Test(tcp, acknowledgement_of_what_was_not_sent)
{
    unsigned char frame[PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES];
    struct pki_tcp_ack ack = { .link = 1, .frames = 1 };
    struct tcp_pair pair;

    tcp_params("1", "4", "16384");
    tcp_pair_new(&pair);
    pki_tcp_put_ack(frame, &ack);
    inject(&pair, 0, frame, sizeof frame);
    cr_assert(dies(&pair, 1));
    tcp_pair_drop(&pair);
}

/* Rank 0 says that a frame of the control channel has come. */
static void acknowledge_first(struct tcp_pair *pair)
{
    unsigned char frame[PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES];

    pki_tcp_put_ack(frame, &(struct pki_tcp_ack){ .link = 0, .frames = 1 });
    inject(pair, 0, frame, sizeof frame);
}

Test(tcp, messages_that_were_not_sent_cannot_be_acknowledged)
{
    static unsigned char payload[PKI_TCP_EAGER_MAX];
    const struct pki_msg msg = { .kind = PKI_MSG_EAGER, .payload = sizeof payload };

    for (int queued = 0; queued < 2; queued++) {
        struct tcp_pair pair;
        struct pki_tcp_ep *ep;

        tcp_params("1", "4", "16384");
        tcp_pair_new(&pair);
        ep = pki_tcp_ep_of(pair.ep[1]);
        if (queued) { /* the kernel has no room */
            ep->links[0].writable = false;
            cr_assert_eq(tcp()->send(pair.ep[1], &msg, payload), PK_OK);
            cr_assert_lt(ep->ctrl.tx_sent, ep->ctrl.tx_end);
        }
        acknowledge_first(&pair);
        for (int i = 0; i < 1000 && pair.ep[1]->state != PKI_EP_DEAD; i++)
            (void)pki_tcp_ctrl_read(&ep->ctrl);
        cr_assert(pair.ep[1]->state == PKI_EP_DEAD, "%d", queued);
        tcp_pair_drop(&pair);
    }
}

/* ---- Strangers ---- */

static int stranger(const struct tcp_pair *pair)
{
    const struct pki_tcp_iface *iface = pki_tcp_iface_of(pair->iface[0]);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(connect(fd, (const struct sockaddr *)&iface->own.address[0], sizeof(struct sockaddr_in)), 0);
    return fd;
}

/* A stranger does the whole handshake as `hello` says, with `key`, and then with the proof changed in one bit if `flip`. */
static unsigned shake(struct tcp_pair *pair, struct pki_tcp_hello hello, unsigned char key, bool flip)
{
    struct pki_tcp_iface wrong = { 0 };
    unsigned char out[PKI_TCP_HELLO_BYTES], in[PKI_TCP_CHALLENGE_BYTES], mac[PKI_TCP_MAC_BYTES];
    struct pki_tcp_challenge challenge;
    unsigned before = pki_tcp_iface_of(pair->iface[0])->accepting.dropped;
    uint64_t until = pki_now_ns() + 20 * PKI_NS_PER_S;
    int fd = stranger(pair);
    ssize_t n = 0;

    memset(wrong.key, key, sizeof wrong.key);
    pki_tcp_put_hello(out, &hello);
    cr_assert_eq(send(fd, out, sizeof out, MSG_NOSIGNAL), (ssize_t)sizeof out);
    while (n <= 0 && pki_tcp_iface_of(pair->iface[0])->accepting.dropped == before && pki_now_ns() < until) {
        tcp_pair_progress(pair);
        n = recv(fd, in, sizeof in, MSG_DONTWAIT);
    }
    if (n == (ssize_t)sizeof in && pki_tcp_get_challenge(in, &challenge)) {
        cr_assert_eq(pki_tcp_prove(&wrong, PKI_TCP_LABEL_CONNECT, out, &challenge, mac), PK_OK);
        mac[5] ^= flip ? 1 : 0;
        cr_assert_eq(send(fd, mac, sizeof mac, MSG_NOSIGNAL), (ssize_t)sizeof mac);
    }
    while (pki_tcp_iface_of(pair->iface[0])->accepting.dropped == before && pki_now_ns() < until)
        tcp_pair_progress(pair);
    close(fd);
    return pki_tcp_iface_of(pair->iface[0])->accepting.dropped - before;
}

Test(tcp, strangers_are_dropped_and_counted)
{
    static const struct pki_tcp_hello good = { .from = 1, .to = 0, .size = 2, .link = 0 };
    struct pki_tcp_hello hello = good;
    struct tcp_pair pair;
    struct transfer t;
    int idle[100];

    tcp_params("1", "4", "16384");
    tcp_pair_new(&pair);
    cr_assert_eq(shake(&pair, good, 41, false), 1, "another key");
    cr_assert_eq(shake(&pair, good, 42, true), 1, "an altered proof");
    hello.received = 1000;
    cr_assert_eq(shake(&pair, hello, 42, false), 1, "counts what was not sent");
    hello = good, hello.from = 0;
    cr_assert_eq(shake(&pair, hello, 42, false), 1, "not a peer");
    hello = good, hello.link = 9;
    cr_assert_eq(shake(&pair, hello, 42, false), 1, "no such connection");
    for (int i = 0; i < 100; i++)
        idle[i] = stranger(&pair);
    for (int i = 0; i < 50; i++)
        cr_assert_eq(send(idle[i], "garbage, and some more of it, until a hello would be whole. Now.", 64, MSG_NOSIGNAL), 64);
    transfer_begin(&pair, &t, 9, 1 << 20, 1 << 20);
    transfers_run(&pair, &t, 1, 0);
    for (int i = 0; i < 100; i++)
        close(idle[i]);
    tcp_cut(pair.ep[0], 1); /* and through all that a broken connection comes back */
    transfer_begin(&pair, &t, 10, 1 << 20, 1 << 20);
    transfers_run(&pair, &t, 1, 0);
    cr_assert_geq(pki_tcp_iface_of(pair.iface[0])->accepting.dropped, 55);
    tcp_pair_free(&pair);
}
