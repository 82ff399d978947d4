/* SPDX-License-Identifier: Apache-2.0 */
#include "switchml/datagrams.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tuning/tuning.h"
#include "util/auth.h"
#include "util/fd.h"
#include "util/log.h"
#include "util/netif.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

struct control {
    _Alignas(size_t) char bytes[CMSG_SPACE(sizeof(int))]; /* as struct cmsghdr */
};

struct pki_datagrams_in {
    struct mmsghdr messages[PKI_SWITCHML_BUFFERS];
    struct iovec vectors[PKI_SWITCHML_BUFFERS];
    struct sockaddr_storage from[PKI_SWITCHML_BUFFERS];
    struct control control[PKI_SWITCHML_BUFFERS];
    unsigned char *bytes;
    size_t each;
    int buffers; /* in use */
};

struct train { /* packets that go as one datagram, to each receiver */
    unsigned packets;
    size_t packet_bytes;
    const struct pki_receivers *to;
    unsigned char *bytes; /* PKI_SWITCHML_LARGE_BYTES */
};

struct pki_datagrams_out {
    unsigned trains;
    unsigned open[PKI_SWITCHML_TRAINS]; /* those that take more: the last one to each of different receivers */
    unsigned nopen;
    struct train train[PKI_SWITCHML_TRAINS];
    unsigned nmessages;
    struct mmsghdr messages[PKI_SWITCHML_MESSAGES];
    struct iovec vectors[PKI_SWITCHML_MESSAGES];
    struct control control[PKI_SWITCHML_MESSAGES];
    const struct train *of[PKI_SWITCHML_MESSAGES]; /* whose message it is */
    int error;                                     /* the first that the socket has told since the last flush */
    unsigned char *bytes;
    unsigned char lost[PKI_SWITCHML_PACKET_MAX];
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
        in->each = d->joined ? PKI_SWITCHML_JOINED_BYTES : PKI_SWITCHML_ALONE_BYTES;
        in->buffers = d->joined ? PKI_SWITCHML_JOINED_BUFFERS : PKI_SWITCHML_BUFFERS;
        in->bytes = malloc((size_t)in->buffers * in->each);
    }
    if (d->out != NULL)
        d->out->bytes = malloc((size_t)PKI_SWITCHML_TRAINS * PKI_SWITCHML_LARGE_BYTES);
    if (in == NULL || d->out == NULL || in->bytes == NULL || d->out->bytes == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the buffers of a datagram socket");
    for (int i = 0; i < in->buffers; i++)
        in->vectors[i] = (struct iovec){ .iov_base = in->bytes + (size_t)i * in->each, .iov_len = in->each };
    for (int i = 0; i < PKI_SWITCHML_TRAINS; i++)
        d->out->train[i].bytes = d->out->bytes + (size_t)i * PKI_SWITCHML_LARGE_BYTES;
    return PK_OK;
}

static pk_result_t prepare_loss(struct pki_datagrams *d)
{
    d->loss = pki_tuning.switchml.lost_per_million * ((1ull << 32) / 1000000);
    return d->loss > 0 ? pki_auth_random(&d->random, sizeof d->random) : PK_OK;
}

static pk_result_t bind_here(const struct pki_datagrams *d, struct sockaddr_storage *address, enum pki_datagrams_how how)
{
    socklen_t length = sizeof *address;
    char text[PKI_NETIF_TEXT];

    if (bind(d->fd, (struct sockaddr *)address, pki_netif_bytes(address)) != 0) {
        if (errno == EADDRINUSE && how == PKI_DATAGRAMS_TRY)
            return PK_IN_PROGRESS;
        pki_netif_format(address, text);
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "bind of a datagram socket to %s", text);
    }
    if (getsockname(d->fd, (struct sockaddr *)address, &length) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "getsockname of a datagram socket");
    return PK_OK;
}

pk_result_t pki_datagrams_open(struct pki_datagrams *d, struct sockaddr_storage *address, size_t buffer_bytes,
                               enum pki_datagrams_how how)
{
    const bool plain = how == PKI_DATAGRAMS_PLAIN;
    const int on = 1, off = 0;
    pk_result_t result;

    *d = (struct pki_datagrams){ .fd = -1 };
    result = prepare_loss(d);
    if (result != PK_OK)
        return result;
    d->fd = pki_fd_keep(socket(address->ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (d->fd < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "a datagram socket");
    size_buffers(d, buffer_bytes);
    result = bind_here(d, address, how);
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
    if (d->out != NULL)
        free(d->out->bytes);
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
    for (int i = 0; i < in->buffers; i++)
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
    const int buffers = in->buffers;
    int all = 0, n = buffers;

    for (int datagrams = 0; datagrams < PKI_SWITCHML_DATAGRAMS && n == buffers; datagrams += n) {
        prepare(in, d->joined);
        n = recvmmsg(d->fd, in->messages, (unsigned)buffers, MSG_DONTWAIT, NULL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR || all > 0 ? all : -1;
        for (int i = 0; i < n; i++) {
            size_t bytes = in->messages[i].msg_len, each = packet_bytes(&in->messages[i].msg_hdr, bytes);
            const unsigned char *at = in->vectors[i].iov_base;

            for (size_t done = 0; done < bytes; done += each) {
                all++;
                if (!is_lost(d))
                    take(arg, at + done, bytes - done < each ? bytes - done : each, &in->from[i]);
            }
        }
    }
    return all;
}

bool pki_datagrams_is_passing(int error)
{
    return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN || error == ENOBUFS ||
           error == ENOMEM;
}

size_t pki_datagrams_memory(uint32_t elements)
{
    return elements == 64 ? PKI_SWITCHML_SMALL_PACKET_MEMORY : PKI_SWITCHML_PACKET_MEMORY;
}

/* ---- send ---- */

static bool takes(const struct pki_datagrams *d, const struct train *t, size_t bytes)
{
    return d->segments && t->packet_bytes == bytes && t->packets < PKI_DATAGRAMS_SEGMENTS &&
           (t->packets + 1) * bytes <= PKI_SWITCHML_LARGE_BYTES;
}

static void send_kept(struct pki_datagrams *d);

/* The train to `to` that has room for one more packet, or a new one. */
static struct train *train_for(struct pki_datagrams *d, const struct pki_receivers *to, size_t bytes)
{
    struct pki_datagrams_out *out = d->out;
    unsigned at = 0;
    struct train *t;

    while (at < out->nopen && out->train[out->open[at]].to != to)
        at++;
    if (at < out->nopen && takes(d, &out->train[out->open[at]], bytes))
        return &out->train[out->open[at]];
    if (out->trains == PKI_SWITCHML_TRAINS) {
        send_kept(d);
        at = 0;
    }
    if (at == out->nopen)
        out->nopen++;
    out->open[at] = out->trains;
    t = &out->train[out->trains++];
    t->packets = 0;
    t->packet_bytes = bytes;
    t->to = to;
    return t;
}

unsigned char *pki_datagrams_add(struct pki_datagrams *d, const struct pki_receivers *to, size_t bytes)
{
    struct train *t;

    if (is_lost(d))
        return d->out->lost;
    t = train_for(d, to, bytes);
    return t->bytes + t->packets++ * bytes;
}

static void set_address(struct msghdr *m, const struct sockaddr_storage *to)
{
    if (to == NULL)
        return;
    m->msg_name = (void *)(uintptr_t)to;
    m->msg_namelen = pki_netif_bytes(to);
}

static void add_message(struct pki_datagrams_out *out, const struct train *t, const struct sockaddr_storage *to)
{
    const unsigned i = out->nmessages++;
    struct msghdr *m = &out->messages[i].msg_hdr;
    struct cmsghdr *c;
    const uint16_t length = (uint16_t)t->packet_bytes;

    out->of[i] = t;
    out->vectors[i] = (struct iovec){ .iov_base = t->bytes, .iov_len = t->packets * t->packet_bytes };
    *m = (struct msghdr){ .msg_iov = &out->vectors[i], .msg_iovlen = 1 };
    set_address(m, to);
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
static void send_one_by_one(struct pki_datagrams *d, const struct train *t, const struct msghdr *message)
{
    d->segments = false;
    for (unsigned p = 0; p < t->packets; p++) {
        struct iovec vector = { .iov_base = t->bytes + p * t->packet_bytes, .iov_len = t->packet_bytes };
        struct msghdr m = *message;

        m.msg_iov = &vector;
        m.msg_control = NULL;
        m.msg_controllen = 0;
        if (sendmsg(d->fd, &m, MSG_DONTWAIT) < 0)
            d->unsent++;
    }
}

/* Message `i` was refused with errno. One receiver without a route keeps nothing from the others. */
static void refused(struct pki_datagrams *d, unsigned i)
{
    const struct train *t = d->out->of[i];
    const int error = errno;

    if (t->packets > 1 && (error == EIO || error == EINVAL || error == EMSGSIZE || error == EOPNOTSUPP)) {
        send_one_by_one(d, t, &d->out->messages[i].msg_hdr);
        return;
    }
    d->unsent += t->packets;
    if (error != EAGAIN && error != ENOBUFS && error != EINTR && error != EPERM && d->out->error == 0)
        d->out->error = error;
}

static void send_messages(struct pki_datagrams *d)
{
    struct pki_datagrams_out *out = d->out;
    unsigned done = 0;

    while (done < out->nmessages) {
        int n = sendmmsg(d->fd, out->messages + done, out->nmessages - done, MSG_DONTWAIT);

        if (n > 0)
            done += (unsigned)n;
        else
            refused(d, done++);
    }
    out->nmessages = 0;
}

static void send_kept(struct pki_datagrams *d)
{
    struct pki_datagrams_out *out = d->out;

    for (unsigned i = 0; i < out->trains; i++) {
        const struct pki_receivers *to = out->train[i].to;

        for (unsigned r = 0; r < (to == NULL ? 1 : to->n); r++) {
            if (out->nmessages == PKI_SWITCHML_MESSAGES)
                send_messages(d);
            add_message(out, &out->train[i], to == NULL ? NULL : to->address[r]);
        }
    }
    send_messages(d);
    out->trains = out->nopen = 0;
}

int pki_datagrams_flush(struct pki_datagrams *d)
{
    int error;

    send_kept(d);
    error = d->out->error;
    d->out->error = 0;
    return error;
}
