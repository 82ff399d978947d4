/* SPDX-License-Identifier: Apache-2.0 */
#include "switchml/datagrams.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/auth.h"
#include "util/env.h"
#include "util/fd.h"
#include "util/log.h"
#include "util/netif.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define BUFFERS 32
#define JOINED_BYTES 65536u
#define ALONE_BYTES 2048u
#define CALLS 4            /* of recvmmsg, in one receive */
#define LARGE_BYTES 64000u /* of packets in one large datagram */

struct control {
    _Alignas(size_t) char bytes[CMSG_SPACE(sizeof(int))]; /* as struct cmsghdr */
};

struct pki_datagrams_in {
    struct mmsghdr messages[BUFFERS];
    struct iovec vectors[BUFFERS];
    struct sockaddr_storage from[BUFFERS];
    struct control control[BUFFERS];
    unsigned char *bytes;
    size_t each;
};

struct train { /* packets that go as one datagram */
    unsigned packets;
    size_t packet_bytes;
    const struct sockaddr_storage *to;
    struct iovec vectors[2 * PKI_DATAGRAMS_SEGMENTS];
};

struct pki_datagrams_out {
    unsigned char headers[PKI_DATAGRAMS_QUEUE][PKI_SWITCHML_HEADER_BYTES + 6];
    unsigned packets, trains;
    unsigned open[PKI_DATAGRAMS_DESTINATIONS]; /* trains that take more, one a destination, used in turn */
    unsigned nopen;
    struct train train[PKI_DATAGRAMS_QUEUE];
    struct mmsghdr messages[PKI_DATAGRAMS_QUEUE];
    struct control control[PKI_DATAGRAMS_QUEUE];
};

/* ---- open ---- */

static void size_buffers(struct pki_datagrams *d, size_t bytes)
{
    int wanted = (int)(bytes < 1u << 30 ? bytes : 1u << 30), granted = 0;
    socklen_t length = sizeof granted;

    if (setsockopt(d->fd, SOL_SOCKET, SO_RCVBUFFORCE, &wanted, sizeof wanted) != 0)
        (void)setsockopt(d->fd, SOL_SOCKET, SO_RCVBUF, &wanted, sizeof wanted);
    if (setsockopt(d->fd, SOL_SOCKET, SO_SNDBUFFORCE, &wanted, sizeof wanted) != 0)
        (void)setsockopt(d->fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted);
    if (getsockopt(d->fd, SOL_SOCKET, SO_RCVBUF, &granted, &length) == 0 && granted > 0)
        d->buffer_bytes = (size_t)granted;
}

static pk_result_t allocate(struct pki_datagrams *d)
{
    struct pki_datagrams_in *in = calloc(1, sizeof *in);

    d->in = in;
    d->out = calloc(1, sizeof *d->out);
    if (in != NULL) {
        in->each = d->joined ? JOINED_BYTES : ALONE_BYTES;
        in->bytes = malloc(BUFFERS * in->each);
    }
    if (in == NULL || d->out == NULL || in->bytes == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the buffers of a datagram socket");
    for (int i = 0; i < BUFFERS; i++)
        in->vectors[i] = (struct iovec){ .iov_base = in->bytes + (size_t)i * in->each, .iov_len = in->each };
    return PK_OK;
}

static pk_result_t read_test_settings(struct pki_datagrams *d)
{
    int64_t per_million;
    pk_result_t result = pki_env_int("PICKLE_TEST_SWITCHML_LOSS", 0, 1000000, 0, &per_million);

    if (result != PK_OK || per_million == 0)
        return result;
    d->loss = (uint64_t)per_million * ((1ull << 32) / 1000000);
    return pki_auth_random(&d->random, sizeof d->random);
}

static pk_result_t bind_here(const struct pki_datagrams *d, struct sockaddr_storage *address)
{
    socklen_t length = sizeof *address;

    if (bind(d->fd, (struct sockaddr *)address, pki_netif_bytes(address)) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "bind of a datagram socket");
    if (getsockname(d->fd, (struct sockaddr *)address, &length) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "getsockname of a datagram socket");
    return PK_OK;
}

pk_result_t pki_datagrams_open(struct pki_datagrams *d, struct sockaddr_storage *address, size_t buffer_bytes, bool plain)
{
    const int on = 1, off = 0;
    pk_result_t result;

    *d = (struct pki_datagrams){ .fd = -1 };
    result = read_test_settings(d);
    if (result != PK_OK)
        return result;
    d->fd = pki_fd_keep(socket(address->ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (d->fd < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "a datagram socket");
    size_buffers(d, buffer_bytes);
    result = bind_here(d, address);
    d->joined = !plain && setsockopt(d->fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on) == 0;
    d->segments = !plain && setsockopt(d->fd, IPPROTO_UDP, UDP_SEGMENT, &off, sizeof off) == 0;
    if (result == PK_OK)
        result = allocate(d);
    if (result != PK_OK)
        pki_datagrams_close(d);
    return result;
}

void pki_datagrams_close(struct pki_datagrams *d)
{
    if (d->fd < 0)
        return;
    close(d->fd);
    d->fd = -1;
    if (d->in != NULL)
        free(d->in->bytes);
    free(d->in);
    free(d->out);
    d->in = NULL;
    d->out = NULL;
}

/* A test's network: xorshift is random enough. */
static bool is_lost(struct pki_datagrams *d)
{
    if (d->loss == 0)
        return false;
    d->random |= d->random == 0;
    d->random ^= d->random << 13;
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    if (d->random >> 32 >= d->loss)
        return false;
    d->shed++;
    return true;
}

/* ---- receive ---- */

/* How long the packets are that the kernel has joined. */
static size_t packet_bytes(struct msghdr *message, size_t bytes)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c))
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO && c->cmsg_len >= CMSG_LEN(sizeof(int))) {
            int length;

            memcpy(&length, CMSG_DATA(c), sizeof length);
            return length > 0 ? (size_t)length : bytes;
        }
    return bytes;
}

static void prepare(struct pki_datagrams_in *in, bool joined)
{
    for (int i = 0; i < BUFFERS; i++)
        in->messages[i].msg_hdr = (struct msghdr){ .msg_name = &in->from[i],
                                                   .msg_namelen = sizeof in->from[i],
                                                   .msg_iov = &in->vectors[i],
                                                   .msg_iovlen = 1,
                                                   .msg_control = joined ? in->control[i].bytes : NULL,
                                                   .msg_controllen = joined ? sizeof in->control[i].bytes : 0 };
}

int pki_datagrams_receive(struct pki_datagrams *d,
                          void (*take)(void *arg, const unsigned char *packet, size_t bytes, const struct sockaddr_storage *from),
                          void *arg)
{
    struct pki_datagrams_in *in = d->in;
    int all = 0, n = BUFFERS;

    for (int call = 0; call < CALLS && n == BUFFERS; call++) {
        prepare(in, d->joined);
        n = recvmmsg(d->fd, in->messages, BUFFERS, MSG_DONTWAIT, NULL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR || all > 0 ? all : -1;
        for (int i = 0; i < n; i++) {
            size_t bytes = in->messages[i].msg_len, each = packet_bytes(&in->messages[i].msg_hdr, bytes);
            const unsigned char *at = in->vectors[i].iov_base;

            for (size_t done = 0; done < bytes; done += each) {
                d->received++;
                all++;
                if (!is_lost(d))
                    take(arg, at + done, bytes - done < each ? bytes - done : each, &in->from[i]);
            }
        }
    }
    return all;
}

/* ---- send ---- */

bool pki_datagrams_is_full(const struct pki_datagrams *d)
{
    return d->out->packets == PKI_DATAGRAMS_QUEUE;
}

/* The train to `to` that has room for one more packet, or a new one. */
static struct train *train_for(struct pki_datagrams *d, const struct sockaddr_storage *to, size_t bytes)
{
    struct pki_datagrams_out *out = d->out;
    unsigned at = 0;
    struct train *t;

    while (at < out->nopen && out->train[out->open[at]].to != to)
        at++;
    if (at < out->nopen) {
        t = &out->train[out->open[at]];
        if (d->segments && t->packet_bytes == bytes && t->packets < PKI_DATAGRAMS_SEGMENTS &&
            (t->packets + 1) * bytes <= LARGE_BYTES)
            return t;
    } else if (out->nopen < PKI_DATAGRAMS_DESTINATIONS) {
        out->nopen++;
    } else {
        at = out->trains % PKI_DATAGRAMS_DESTINATIONS;
    }
    out->open[at] = out->trains;
    t = &out->train[out->trains++];
    t->packets = 0;
    t->packet_bytes = bytes;
    t->to = to;
    return t;
}

void pki_datagrams_add(struct pki_datagrams *d, const struct sockaddr_storage *to,
                       const unsigned char header[PKI_SWITCHML_HEADER_BYTES], const void *values, size_t value_bytes)
{
    struct pki_datagrams_out *out = d->out;
    struct train *t;

    if (is_lost(d))
        return;
    t = train_for(d, to, PKI_SWITCHML_HEADER_BYTES + value_bytes);
    memcpy(out->headers[out->packets], header, PKI_SWITCHML_HEADER_BYTES);
    t->vectors[2 * t->packets] = (struct iovec){ .iov_base = out->headers[out->packets], .iov_len = PKI_SWITCHML_HEADER_BYTES };
    t->vectors[2 * t->packets + 1] = (struct iovec){ .iov_base = (void *)(uintptr_t)values, .iov_len = value_bytes };
    t->packets++;
    out->packets++;
}

static void fill_message(struct pki_datagrams_out *out, unsigned i)
{
    struct train *t = &out->train[i];
    struct msghdr *m = &out->messages[i].msg_hdr;
    struct cmsghdr *c;
    const uint16_t length = (uint16_t)t->packet_bytes;

    *m = (struct msghdr){ .msg_iov = t->vectors, .msg_iovlen = 2 * t->packets };
    if (t->to != NULL) {
        m->msg_name = (void *)(uintptr_t)t->to;
        m->msg_namelen = pki_netif_bytes(t->to);
    }
    if (t->packets == 1)
        return;
    m->msg_control = out->control[i].bytes;
    m->msg_controllen = CMSG_SPACE(sizeof length);
    c = CMSG_FIRSTHDR(m);
    c->cmsg_level = IPPROTO_UDP;
    c->cmsg_type = UDP_SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof length);
    memcpy(CMSG_DATA(c), &length, sizeof length);
}

/* The device cannot cut: its packets one by one, and all later ones so. */
static void send_one_by_one(struct pki_datagrams *d, const struct train *t)
{
    d->segments = false;
    for (unsigned p = 0; p < t->packets; p++) {
        struct msghdr m = { .msg_iov = (struct iovec *)&t->vectors[2 * p], .msg_iovlen = 2 };

        if (t->to != NULL) {
            m.msg_name = (void *)(uintptr_t)t->to;
            m.msg_namelen = pki_netif_bytes(t->to);
        }
        if (sendmsg(d->fd, &m, MSG_DONTWAIT) >= 0)
            d->sent++;
        else
            d->unsent++;
    }
}

/* Message `i` was refused with errno. Returns what is the matter with the socket, or 0: go on behind it. */
static int refused(struct pki_datagrams *d, unsigned i)
{
    const struct train *t = &d->out->train[i];
    const int error = errno;

    if (t->packets > 1 && (error == EIO || error == EINVAL || error == EMSGSIZE || error == EOPNOTSUPP)) {
        send_one_by_one(d, t);
        return 0;
    }
    d->unsent += t->packets;
    return error == EAGAIN || error == ENOBUFS || error == EINTR || error == EPERM ? 0 : error;
}

/* One receiver without a route keeps nothing from the others. */
static void first_error(int *first, int error)
{
    if (*first == 0)
        *first = error;
}

int pki_datagrams_flush(struct pki_datagrams *d)
{
    struct pki_datagrams_out *out = d->out;
    unsigned done = 0;
    int error = 0;

    for (unsigned i = 0; i < out->trains; i++)
        fill_message(out, i);
    while (done < out->trains) {
        int n = sendmmsg(d->fd, out->messages + done, out->trains - done, MSG_DONTWAIT);

        for (int i = 0; i < n; i++)
            d->sent += out->train[done + (unsigned)i].packets;
        if (n > 0)
            done += (unsigned)n;
        else
            first_error(&error, refused(d, done++));
    }
    out->packets = out->trains = out->nopen = 0;
    return error;
}
