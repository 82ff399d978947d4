/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every parser of the tcp transport that reads bytes from outside, and what stands behind them: guests at the door, the control channel and the
 * chunks of an endpoint whose peer says what the input likes. The first byte chooses the target.
 */
#include <unistd.h>

#include "targets.h"
#include "tcp_pair.h"
#include "transport/tcp/conn/reach.h"

static void say(int fd, const void *bytes, size_t count)
{
    (void)!send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- Parsers: what they take, their writers give back ---- */

static void fuzz_header(const uint8_t *data, size_t size)
{
    unsigned char in[PKI_TCP_HEADER_BYTES] = { 0 };
    struct pki_tcp_frame frame;

    memcpy(in, data, size < sizeof in ? size : sizeof in);
    if (pki_tcp_get_header(in, &frame))
        require(frame.bytes <= PKI_TCP_DATA_BYTES + PKI_TCP_CHUNK_MAX &&
                (frame.type == PKI_TCP_DATA || frame.bytes <= PKI_TCP_MSG_FRAME_MAX - PKI_TCP_HEADER_BYTES));
}

static void fuzz_message(const uint8_t *data, size_t size)
{
    unsigned char out[PKI_TCP_MSG_HEAD_MAX];
    const unsigned char *payload;
    struct pki_msg msg;
    size_t head, same;

    if (size < PKI_TCP_MSG_SHORT_BYTES || !pki_tcp_get_msg(data, (uint32_t)size, &msg, &payload))
        return;
    require(msg.payload <= (msg.kind == PKI_MSG_EAGER ? PKI_TCP_EAGER_MAX : PKI_TCP_PAYLOAD_MAX) &&
            payload + msg.payload == data + size);
    head = pki_tcp_put_msg(out, &msg) - PKI_TCP_HEADER_BYTES;
    same = msg.kind == PKI_MSG_EAGER ? head : 44; /* what is behind is free */
    require(payload == data + head && memcmp(out + PKI_TCP_HEADER_BYTES, data, same) == 0);
}

static void fuzz_chunk(const uint8_t *data, size_t size)
{
    unsigned char in[PKI_TCP_DATA_HEAD_BYTES] = { 0 }, out[PKI_TCP_DATA_HEAD_BYTES];
    struct pki_tcp_chunk chunk;

    memcpy(in, data, size < sizeof in ? size : sizeof in);
    if (!pki_tcp_get_chunk(in, &chunk))
        return;
    require(chunk.bytes > 0 && chunk.bytes <= PKI_TCP_CHUNK_MAX);
    pki_tcp_put_chunk(out, &chunk);
    require(memcmp(in, out, sizeof in) == 0);
}

static void fuzz_peer_info(const uint8_t *data, size_t size)
{
    struct pki_blob in = { .len = (uint32_t)size, .fd = -1 }, out = { 0 };
    struct pki_tcp_peer_info peer_info;

    memcpy(in.bytes, data, size < sizeof in.bytes ? size : sizeof in.bytes);
    if (!pki_tcp_get_peer_info(&in, &peer_info))
        return;
    require(peer_info.addresses >= 1 && peer_info.addresses <= PKI_TCP_ADDRESSES && peer_info.window <= PKI_TCP_WINDOW_MAX);
    pki_tcp_put_peer_info(&out, &peer_info);
    require(out.len == in.len && memcmp(out.bytes, in.bytes, in.len) == 0);
}

static void fuzz_handshake(const uint8_t *data, size_t size)
{
    unsigned char in[PKI_TCP_CHALLENGE_BYTES] = { 0 }, out[PKI_TCP_CHALLENGE_BYTES];
    struct pki_tcp_challenge challenge;
    struct pki_tcp_hello hello;

    memcpy(in, data, size < sizeof in ? size : sizeof in);
    if (pki_tcp_get_hello(in, &hello)) {
        pki_tcp_put_hello(out, &hello);
        require(memcmp(in, out, PKI_TCP_HELLO_BYTES) == 0);
    }
    if (pki_tcp_get_challenge(in, &challenge)) {
        pki_tcp_put_challenge(out, &challenge);
        require(memcmp(in, out, sizeof in) == 0);
    }
}

/* ---- An endpoint ---- */

static struct pki_iface *own_iface(void)
{
    static struct pki_net net;
    static struct pki_iface *iface;

    if (iface == NULL) {
        setenv("PK_SOCKETS", "1", 1);
        setenv("PK_WINDOW", "4", 1);
        iface = tcp_iface_new(&net, 0, 2);
    }
    return iface;
}

struct far_end {
    struct pki_ep *ep;
    int ctrl, data; /* what is written here the endpoint reads */
};

static int join(struct pki_ep *ep, uint32_t link)
{
    int ends[2];

    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    require(pki_tcp_link_up(&pki_tcp_ep_of(ep)->links[link], ends[0], 0));
    return ends[1];
}

static void far_end_open(struct far_end *far)
{
    struct pki_blob blob;

    far->ep = calloc(1, tcp()->ep_bytes);
    far->ep->iface = own_iface();
    far->ep->rank = 0;
    far->ep->peer = 1;
    require(tcp()->ep_init(far->ep, &blob) == PK_OK && tcp()->ep_connect(far->ep, &blob) == PK_OK);
    far->ctrl = join(far->ep, 0);
    far->data = join(far->ep, 1);
}

static void far_end_close(struct far_end *far)
{
    close(far->ctrl);
    close(far->data);
    pki_ep_enter(far->ep, PKI_EP_DEAD); /* no waiting for somebody to read the shutdown message */
    tcp()->ep_close(far->ep);
    pki_list_init(&own_iface()->events);
    pki_tcp_iface_of(own_iface())->busy = 0;
    free(far->ep);
}

/* Read whatever has come; every byte of every payload is looked at. */
static void take_all(struct far_end *far)
{
    unsigned sum = 0;

    for (int round = 0; round < 4; round++) {
        struct pki_msg msg;
        const void *payload;

        (void)tcp()->progress(own_iface());
        while (far->ep->state != PKI_EP_DEAD && tcp_peek(far->ep, &msg, &payload)) {
            for (uint32_t i = 0; i < msg.payload; i++)
                sum += ((const unsigned char *)payload)[i];
            tcp_pop(far->ep);
        }
    }
    *(volatile unsigned *)&sum = sum;
}

/* Something to acknowledge. */
static void send_some(struct far_end *far)
{
    static const unsigned char payload[5000];
    static const uint32_t lengths[] = { 0, 100, sizeof payload };

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        require(
            tcp()->send(far->ep,
                        &(struct pki_msg){ .kind = PKI_MSG_EAGER, .flags = PKI_MSG_FLAG_COLL, .op = 1, .payload = lengths[i] },
                        payload) == PK_OK);
}

/* In two parts. */
static void fuzz_ctrl(const uint8_t *data, size_t size)
{
    struct far_end far;
    size_t half = size > 0 ? data[0] * size / 256 : 0;

    far_end_open(&far);
    send_some(&far);
    say(far.ctrl, data, half);
    take_all(&far);
    say(far.ctrl, data + half, size - half);
    take_all(&far);
    far_end_close(&far);
}

/* Two grants, a third one in the middle, and chunks that the input makes up; a byte outside a granted buffer is the address sanitizer's to find. */
static void fuzz_data(const uint8_t *data, size_t size)
{
    unsigned char *first = malloc(300), *second = malloc(40), *third = malloc(300);
    struct pki_msg grant = { .kind = PKI_MSG_CTS, .op = 1, .bytes = 300, .offset = (uint64_t)(uintptr_t)first };
    struct far_end far;

    far_end_open(&far);
    require(tcp_post(far.ep, &grant, true) == PK_OK);
    grant.op = 2;
    grant.bytes = 40;
    grant.offset = (uint64_t)(uintptr_t)second;
    require(tcp_post(far.ep, &grant, true) == PK_OK);
    while (size >= 6 && far.ep->state != PKI_EP_DEAD) {
        struct pki_tcp_chunk chunk = { .op = data[0] % 4, .offset = (uint64_t)(data[1] | data[2] << 8), .bytes = 1 + data[3] };
        unsigned char head[PKI_TCP_DATA_HEAD_BYTES], payload[256] = { 0 };

        chunk.eager_put = data[0] / 4 % 4 == 1 ? 300 : data[0] / 4 % 4 == 2 ? 40 : 0;
        pki_tcp_put_chunk(head, &chunk);
        if (data[4] == 0) /* any byte of the head may be any other */
            head[data[5] % sizeof head] ^= data[1];
        say(far.data, head, sizeof head);
        say(far.data, payload, chunk.bytes);
        /* 17: longer than a chunk waits for its grant */
        for (int i = 0; i < (data[4] % 2 == 0 ? 0 : data[4] % 4 == 1 ? 1 : 17); i++)
            take_all(&far);
        if (data[4] % 16 == 15 && grant.op == 2) {
            grant = (struct pki_msg){ .kind = PKI_MSG_CTS, .op = 3, .bytes = 300, .offset = (uint64_t)(uintptr_t)third };
            require(far.ep->state == PKI_EP_DEAD || tcp_post(far.ep, &grant, true) == PK_OK);
        }
        data += 6;
        size -= 6;
    }
    take_all(&far);
    far_end_close(&far);
    free(first);
    free(second);
    free(third);
}

/* The connection for chunks breaks and comes back; the peer says how much it has had, which may be a lie. */
static void come_back(struct far_end *far, uint64_t received)
{
    struct pki_tcp_link *link = &pki_tcp_ep_of(far->ep)->links[1];
    int ends[2];

    close(far->data);
    far->data = -1;
    (void)tcp()->progress(own_iface());
    if (link->state == PKI_TCP_OVER)
        return;
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    far->data = ends[1];
    if (!pki_tcp_link_up(link, ends[0], received))
        close(ends[0]);
}

/* Puts, kept where they are short and go ahead, while the peer reads some of it, acknowledges what it likes, and lets the connection break. Each
 * put ends once at most, and none after the endpoint has been closed. */
static void fuzz_put(const uint8_t *data, size_t size)
{
    static unsigned char bytes[1 << 20], sink[1 << 16];
    struct pki_put puts[8] = { 0 };
    unsigned begun = 0, ended = 0;
    struct far_end far;

    far_end_open(&far);
    for (; size >= 2 && far.ep->state != PKI_EP_DEAD; data += 2, size -= 2) {
        unsigned char ack[PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES];
        struct pki_put *put;

        if (data[0] % 4 == 0 && begun < 8) {
            puts[begun] = (struct pki_put){ .ep = far.ep,
                                            .src = bytes,
                                            .bytes = 1 + (size_t)data[1] * 4096,
                                            .eager_put = data[0] / 4 % 2 == 1,
                                            .about = { .kind = PKI_MSG_FIN, .op = begun, .bytes = 1 + (size_t)data[1] * 4096 } };
            pki_list_init(&puts[begun].event.node);
            require(tcp()->put(&puts[begun++]) == PK_OK);
        } else if (data[0] % 4 == 1) {
            for (int i = 0; i < data[1] % 16 && recv(far.data, sink, sizeof sink, MSG_DONTWAIT) > 0; i++)
                continue;
        } else if (data[0] % 4 == 2) {
            pki_tcp_put_ack(ack, &(struct pki_tcp_ack){ .link = 1, .frames = data[1] % 16 });
            say(far.ctrl, ack, sizeof ack);
        } else if (data[0] % 4 == 3) {
            come_back(&far, data[1] % 16);
        }
        take_all(&far);
        for (; (put = events_put(own_iface())) != NULL; ended++)
            require(put >= &puts[0] && put <= &puts[7]);
    }
    require(ended <= begun && (far.ep->state != PKI_EP_DEAD || ended == begun));
    far_end_close(&far);
}

/* Nobody without the key gets further than a place among the guests. */
static void fuzz_unproven(const uint8_t *data, size_t size)
{
    struct pki_tcp_iface *iface = pki_tcp_iface_of(own_iface());
    struct pki_tcp_unproven *unproven = &iface->accepting.unproven[0];
    struct far_end far;
    int ends[2];

    far_end_open(&far);
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    memset(unproven, 0, sizeof *unproven);
    unproven->source.kind = PKI_TCP_UNPROVEN;
    unproven->source.fd = ends[0];
    if (size > 0 && data[0] % 2 == 0) { /* a hello that is as good as one can be */
        unsigned char hello[PKI_TCP_HELLO_BYTES];

        pki_tcp_put_hello(hello, &(struct pki_tcp_hello){ .from = 1, .to = 0, .size = 2, .link = data[0] / 2 % 3 });
        say(ends[1], hello, sizeof hello);
    }
    say(ends[1], data, size);
    close(ends[1]);
    pki_tcp_unproven_step(iface, unproven);
    require(unproven->source.fd < 0);
    require(pki_tcp_ep_of(far.ep)->links[0].state == PKI_TCP_UP && pki_tcp_ep_of(far.ep)->links[1].state == PKI_TCP_UP);
    far_end_close(&far);
}

const struct fuzz_target fuzz_targets[] = {
    { "header", fuzz_header },
    { "message", fuzz_message },
    { "chunk", fuzz_chunk },
    { "card", fuzz_peer_info },
    { "handshake", fuzz_handshake },
    { "lane", fuzz_ctrl },
    { "data", fuzz_data },
    { "guest", fuzz_unproven },
    { "put", fuzz_put },
    { NULL, NULL },
};
