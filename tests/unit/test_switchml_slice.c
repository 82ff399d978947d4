/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank takes for a reply of its aggregator, and what its socket may say without an end of the operation. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "switchml/internal.h"
#include "switchml/marks.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/netif.h"

#define COUNT 64
#define NUMBER 9
#define SIG 77
#define LONG_NS (60 * PKI_NS_PER_S) /* no wait here ends by itself */
#define PACKET_BYTES (PKI_SWITCHML_HEADER_BYTES + 4 * COUNT)

static const struct pki_switchml_timing timing = {
    .timeout_ns = PKI_NS_PER_MS, .least_ns = PKI_NS_PER_MS, .threshold = 100, .increment = 1
};
static int32_t in[COUNT], out[COUNT];

static void loopback(struct sockaddr_storage *address, uint16_t port)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)address;

    memset(address, 0, sizeof *address);
    *v4 = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int udp(uint16_t port)
{
    struct sockaddr_storage address;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    loopback(&address, port);
    if (bind(fd, (struct sockaddr *)&address, sizeof(struct sockaddr_in)) == 0)
        return fd;
    close(fd);
    return -1;
}

/* A port that no system gives by itself, so that it can be used again. */
static int aggregator_socket(struct sockaddr_storage *address)
{
    for (int port = 11000 + getpid() % 9000; port < 30000; port++) {
        int fd = udp((uint16_t)port);

        if (fd >= 0) {
            loopback(address, (uint16_t)port);
            return fd;
        }
    }
    cr_assert_fail("no port");
    return -1;
}

/* With a connection that says nothing; the socket for packets is not connected yet. */
static struct pki_switchml *session(const struct sockaddr_storage *peer, int *other)
{
    struct pki_switchml *s = calloc(1, sizeof *s);
    struct sockaddr_storage own;
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    *other = pair[1];
    strcpy(s->name, "aggregator x:1");
    s->connection = pair[0];
    s->threads.stop = s->threads.ended = s->threads.both = -1;
    s->size = 2;
    s->elements = COUNT;
    s->window = s->nslices = 1;
    s->peer = *peer;
    s->slices[0].session = s;
    loopback(&own, 0);
    cr_assert_eq(pki_datagrams_open(&s->slices[0].datagrams, &own, 65536, PKI_DATAGRAMS_ORDINARY), PK_OK);
    cr_assert_eq(pki_switchml_worker_init(&s->slices[0].worker, 0, 1, &timing), PK_OK);
    return s;
}

static void begin(struct pki_switchml *s)
{
    cr_assert_eq(connect(s->slices[0].datagrams.fd, (struct sockaddr *)&s->peer, sizeof(struct sockaddr_in)), 0);
    for (int i = 0; i < COUNT; i++)
        in[i] = 3 * i;
    cr_assert_eq(pki_switchml_begin(s, in, out, COUNT, PK_INT32, NUMBER, SIG), PK_OK);
}

static void end(struct pki_switchml *s, int other, int peer)
{
    pki_switchml_close(s);
    close(other);
    close(peer);
}

/* What the rank has sent, from where it came. */
static struct sockaddr_storage next_packet(int peer, unsigned char packet[PACKET_BYTES])
{
    struct sockaddr_storage from;
    socklen_t length = sizeof from;

    memset(&from, 0, sizeof from);
    cr_assert_eq(recvfrom(peer, packet, PACKET_BYTES, 0, (struct sockaddr *)&from, &length), PACKET_BYTES);
    return from;
}

static void reply(int peer, const struct sockaddr_storage *to, const unsigned char packet[PACKET_BYTES])
{
    cr_assert_eq(sendto(peer, packet, PACKET_BYTES, 0, (const struct sockaddr *)to, sizeof(struct sockaddr_in)), PACKET_BYTES);
}

/* Polled until a packet has come, or for the first time that there is nothing. */
static pk_result_t poll_once(struct pki_switchml *s, bool *done)
{
    bool moved;

    return pki_switchml_poll(s, &moved, done);
}

static void expect_sums(struct pki_switchml *s)
{
    const uint64_t until = pki_now_ns() + LONG_NS;
    bool done = false;

    while (!done && pki_now_ns() < until)
        cr_assert_eq(poll_once(s, &done), PK_OK);
    cr_assert(done);
    cr_assert_arr_eq(out, in, sizeof in);
}

/* A packet that fits in every bit, of somebody who sent it before the socket was connected. */
Test(switchml_slice, packets_of_strangers)
{
    struct sockaddr_storage peer, own;
    socklen_t length = sizeof own;
    unsigned char packet[PACKET_BYTES];
    struct pki_switchml_packet header = { .index = 0 };
    int other, aggregator = aggregator_socket(&peer), stranger = udp(0);
    struct pki_switchml *s = session(&peer, &other);
    bool done;

    pki_switchml_mark(pki_switchml_operation(s->id, NUMBER, SIG), false, &header);
    memset(packet, 66, sizeof packet);
    pki_switchml_pack(&header, COUNT, packet);
    memset(&own, 0, sizeof own);
    cr_assert_eq(getsockname(s->slices[0].datagrams.fd, (struct sockaddr *)&own, &length), 0);
    reply(stranger, &own, packet);
    begin(s);
    cr_assert_eq(poll_once(s, &done), PK_OK);
    cr_assert(!done, "the stranger's packet is none of the aggregator's");
    cr_assert_eq(s->slices[0].strangers, 1);
    own = next_packet(aggregator, packet);
    reply(aggregator, &own, packet);
    expect_sums(s);
    close(stranger);
    end(s, other, aggregator);
}

/* Nobody is at the port for a while: no end, and who waits can say so. */
Test(switchml_slice, errors_that_pass)
{
    struct sockaddr_storage peer, own;
    unsigned char packet[PACKET_BYTES];
    int other, aggregator = aggregator_socket(&peer);
    struct pki_switchml *s = session(&peer, &other);
    bool done;

    close(aggregator);
    begin(s);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(poll_once(s, &done), PK_OK);
    cr_assert(!done);
    cr_assert_str_eq(pki_switchml_name(s), "aggregator x:1 (its packets: Connection refused)");
    aggregator = udp(pki_netif_port(&peer));
    cr_assert(aggregator >= 0);
    while (poll(&(struct pollfd){ .fd = aggregator, .events = POLLIN }, 1, 1) == 0) /* until it is sent again */
        cr_assert_eq(poll_once(s, &done), PK_OK);
    own = next_packet(aggregator, packet);
    reply(aggregator, &own, packet);
    expect_sums(s);
    begin(s);
    cr_assert_str_eq(pki_switchml_name(s), "aggregator x:1");
    end(s, other, aggregator);
}

/* Those that last are an end, which is named. */
Test(switchml_slice, errors_that_stay)
{
    const uint64_t was = pki_tuning.switchml.gone_ns, until = pki_now_ns() + 60 * PKI_NS_PER_S;
    struct sockaddr_storage peer;
    int other, aggregator = aggregator_socket(&peer);
    struct pki_switchml *s = session(&peer, &other);
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_result_t result = PK_OK;
    bool done;

    pki_tuning.switchml.gone_ns = 5 * PKI_NS_PER_MS;
    close(aggregator);
    begin(s);
    while (result == PK_OK && pki_now_ns() < until)
        result = poll_once(s, &done);
    cr_assert_eq(result, PK_ERR_PEER);
    cr_assert(pk_last_error(&info) == PK_OK && strstr(info.text, "no packet comes through: Connection refused") != NULL, "%s",
              info.text);
    pki_tuning.switchml.gone_ns = was;
    pki_switchml_close(s);
    close(other);
}

/* Where the connection has ended it is over at once. */
Test(switchml_slice, the_connection_knows_better)
{
    struct sockaddr_storage peer;
    int other, aggregator = aggregator_socket(&peer);
    struct pki_switchml *s = session(&peer, &other);
    pk_result_t result = PK_OK;
    bool done;

    close(aggregator);
    shutdown(other, SHUT_RDWR);
    begin(s);
    for (int i = 0; i < 2 && result == PK_OK; i++)
        result = poll_once(s, &done);
    cr_assert_eq(result, PK_ERR_PEER);
    pki_switchml_close(s);
    close(other);
}

/* Replies of an earlier operation count for nothing; of ranks that differ the third one tells. */
Test(switchml_slice, replies_of_other_operations)
{
    struct sockaddr_storage peer, own;
    unsigned char packet[PACKET_BYTES], foreign[PACKET_BYTES], mixed[PACKET_BYTES];
    int other, aggregator = aggregator_socket(&peer);
    struct pki_switchml *s = session(&peer, &other);
    bool done;

    begin(s);
    own = next_packet(aggregator, packet);
    memcpy(foreign, packet, sizeof packet);
    memcpy(mixed, packet, sizeof packet);
    foreign[9] = (unsigned char)((signed char)packet[9] == INT8_MIN ? 1 : packet[9] - 1); /* another mark, */
    foreign[8] = (unsigned char)~foreign[9];                                              /* of all ranks */
    mixed[9] = (unsigned char)PKI_SWITCHML_MARKS_DIFFER;
    for (int i = 0; i < 20; i++) {
        reply(aggregator, &own, foreign);
        if (i < 2)
            reply(aggregator, &own, mixed);
        cr_assert_eq(poll_once(s, &done), PK_OK, "%d", i);
        cr_assert(!done);
    }
    reply(aggregator, &own, packet);
    expect_sums(s);
    cr_assert_eq(pki_switchml_begin(s, in, out, COUNT, PK_INT32, NUMBER + 4, SIG), PK_OK);
    do /* the first one is sent again at times */
        own = next_packet(aggregator, mixed);
    while (mixed[1] != 1);
    mixed[9] = (unsigned char)PKI_SWITCHML_MARKS_DIFFER;
    for (int i = 0; i < 3; i++)
        reply(aggregator, &own, mixed);
    cr_assert_eq(poll_once(s, &done), PK_ERR_MISMATCH);
    end(s, other, aggregator);
}

static void count_packets(void *arg, const unsigned char *packet, size_t bytes, const struct sockaddr_storage *from)
{
    (void)packet;
    (void)bytes;
    (void)from;
    ++*(size_t *)arg;
}

/* As many packets as a receive buffer is said to hold find room in it. */
Test(switchml_slice, what_packets_take_of_a_receive_buffer)
{
    static const uint32_t elements[] = { 64, 256 };
    static const unsigned char packet[PKI_SWITCHML_PACKET_MAX];

    for (int k = 0; k < 2; k++) {
        struct sockaddr_storage own;
        struct pki_datagrams d;
        size_t most, came = 0;
        int n, sender = udp(0);

        loopback(&own, 0);
        cr_assert_eq(pki_datagrams_open(&d, &own, 100000, PKI_DATAGRAMS_PLAIN), PK_OK);
        most = d.buffer_bytes / pki_datagrams_memory(elements[k]);
        for (size_t i = 0; i < most; i++)
            cr_assert_gt(sendto(sender, packet, pki_switchml_packet_bytes(elements[k]), 0, (struct sockaddr *)&own,
                                sizeof(struct sockaddr_in)),
                         0);
        while ((n = pki_datagrams_receive(&d, count_packets, &came)) > 0)
            ;
        cr_assert_eq(n, 0);
        cr_assert_eq(came, most, "%zu of %zu packets of %u values", came, most, elements[k]);
        pki_datagrams_close(&d);
        close(sender);
    }
}
