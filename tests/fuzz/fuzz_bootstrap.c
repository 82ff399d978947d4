/* SPDX-License-Identifier: Apache-2.0 */
/* Every parser of the bootstrap that reads bytes from outside, and the two state machines in front of them fed through a socket.
 * The first byte chooses the target. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "comm/bootstrap/accept.h"
#include "comm/bootstrap/internal.h"
#include "targets.h"
#include "util/netif.h"

/* What a parser takes, its writer must give back. */
static void fuzz_id(const unsigned char *data, size_t bytes)
{
    pk_unique_id_t in = { { 0 } }, out;
    struct pki_id id;
    char text[PKI_NETIF_TEXT];

    memcpy(in.bytes, data, bytes < sizeof in.bytes ? bytes : sizeof in.bytes);
    if (!pki_wire_get_id(&in, &id))
        return;
    require(id.address_count >= 0 && id.address_count <= PKI_ID_ADDRESSES);
    for (int i = 0; i < id.address_count; i++) {
        pki_netif_format(&id.address[i], text);
        (void)pki_netif_is_loopback(&id.address[i]);
    }
    pki_wire_put_id(&out, &id);
    require(memcmp(&in, &out, sizeof in) == 0);
}

static void fuzz_hello(const unsigned char *data, size_t bytes)
{
    unsigned char in[PKI_HELLO_BYTES] = { 0 }, out[PKI_HELLO_BYTES];
    struct pki_hello hello;

    memcpy(in, data, bytes < sizeof in ? bytes : sizeof in);
    if (!pki_wire_get_hello(in, &hello))
        return;
    pki_wire_put_hello(out, &hello);
    require(memcmp(in, out, sizeof in) == 0);
    require(!pki_wire_is_other_version(in));
}

static void fuzz_notice(const unsigned char *data, size_t bytes)
{
    struct pki_notice notice;

    if (!pki_wire_get_notice(data, bytes, &notice))
        return;
    require(notice.code >= PK_ERR_ARG && notice.code <= PK_ERR_INTERNAL && notice.peer >= -1);
    require(strnlen(notice.text, sizeof notice.text) < sizeof notice.text && strchr(notice.text, '\n') == NULL);
}

static void fuzz_host_port(const unsigned char *data, size_t bytes)
{
    char host[PKI_HOST_BYTES], port[PKI_PORT_BYTES];
    char *text = malloc(bytes + 1);

    if (text == NULL)
        return;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (pki_wire_split_host_port(text, host, port))
        require(host[0] != '\0' && atoi(port) >= 1 && atoi(port) <= 65535);
    free(text);
}

/* Bytes, then the end of the stream, at the far end of a socket. */
static int feed(const unsigned char *data, size_t bytes)
{
    int ends[2];

    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    if (bytes > 0)
        (void)!write(ends[0], data, bytes < 65536 ? bytes : 65536);
    close(ends[0]);
    return ends[1];
}

/* Whoever does not know the key never gets through, on either side. */
static void fuzz_handshake(const unsigned char *data, size_t bytes, bool accepting)
{
    static const struct pki_secret secret = { { 1, 2, 3 }, { 4 } };
    const struct pki_hello hello = { .kind = PKI_HELLO_CONTROL, .from = 1, .size = 2 };
    struct pki_handshake h;
    int fd = feed(data, bytes);

    if (accepting)
        pki_handshake_accept(&h, fd, &secret, UINT64_MAX);
    else if (pki_handshake_connect(&h, fd, &secret, &hello) != PK_OK)
        h.state = PKI_HS_CHALLENGE; /* the far end is closed already; read what it sent anyway */
    require(pki_handshake_step(&h) != PK_OK);
    close(fd);
}

static void fuzz_conn(const unsigned char *data, size_t bytes)
{
    struct pki_conn c = { .fd = feed(data, bytes) };
    struct pki_notice notice;

    while (pki_conn_read(&c, 4096, 4096) == PK_OK) {
        require(c.ready && c.frame.bytes <= 4096);
        if (c.frame.type == PKI_FRAME_NOTICE)
            (void)pki_wire_get_notice(c.payload, c.frame.bytes, &notice);
        pki_conn_release(&c);
    }
    pki_conn_close(&c);
}

static void fuzz_accept(const unsigned char *data, size_t bytes)
{
    fuzz_handshake(data, bytes, true);
}

static void fuzz_connect(const unsigned char *data, size_t bytes)
{
    fuzz_handshake(data, bytes, false);
}

/* Bytes, and no more behind them; the far end goes on taking what comes. */
static int talk(const unsigned char *data, size_t bytes, int *far)
{
    int ends[2];

    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    if (bytes > 0)
        (void)!write(ends[0], data, bytes < 65536 ? bytes : 65536);
    (void)shutdown(ends[0], SHUT_WR);
    *far = ends[0];
    return ends[1];
}

/* Two ranks gather (bit 1 of the first byte: have something for each), and the other one, rank 0 or (bit 0) rank 1, says anything. */
static void fuzz_exchange(const unsigned char *data, size_t bytes)
{
    const int other = bytes > 0 ? data[0] & 1 : 0;
    const bool all = bytes > 0 && (data[0] & 2) == 0;
    unsigned char mine[16] = { 0 }, theirs[16];
    struct pki_conn conns[2] = { { .fd = -1 }, { .fd = -1 } };
    struct pki_bootstrap b = { .size = 2, .rank = 1 - other, .conns = conns, .conn_count = 1 + other, .watch_fd = -1 };
    struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u32 = (uint32_t)other };
    pk_result_t result;
    int far;

    conns[other].fd = talk(data + (bytes > 0), bytes - (bytes > 0), &far);
    b.watch_fd = epoll_create1(EPOLL_CLOEXEC);
    require(b.watch_fd >= 0 && epoll_ctl(b.watch_fd, EPOLL_CTL_ADD, conns[other].fd, &event) == 0);
    result =
        all ? pki_bootstrap_allgather(&b, mine, 8, theirs, UINT64_MAX) : pki_bootstrap_alltoall(&b, mine, 8, theirs, UINT64_MAX);
    require(result == b.failed && (result != PK_OK || b.sequence == 1));
    pki_conn_close(&conns[other]);
    close(b.watch_fd);
    close(far);
}

const struct fuzz_target fuzz_targets[] = {
    { "id", fuzz_id },
    { "hello", fuzz_hello },
    { "notice", fuzz_notice },
    { "host_port", fuzz_host_port },
    { "accept", fuzz_accept },
    { "connect", fuzz_connect },
    { "frame", fuzz_conn },
    { "exchange", fuzz_exchange },
    { NULL, NULL },
};
