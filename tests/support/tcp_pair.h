/* SPDX-License-Identifier: Apache-2.0 */
/* Two endpoints of the tcp transport in one process, over loopback. */
#ifndef TCP_PAIR_H
#define TCP_PAIR_H

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "events.h"
#include "transport/tcp/tcp.h"
#include "util/clock.h"

struct tcp_pair {
    struct pki_net net[2];
    struct pki_iface *iface[2];
    struct pki_ep *ep[2];
    struct pki_blob blob[2];
};

static inline const struct pki_transport *tcp(void)
{
    static const struct pki_transport *found;

    if (found == NULL)
        found = pki_transport_find("tcp");
    return found;
}

/* PK_* are read when an interface is opened. */
static inline void tcp_params(const char *sockets, const char *window, const char *chunk)
{
    setenv("PK_SOCKETS", sockets, 1);
    setenv("PK_WINDOW", window, 1);
    setenv("PK_CHUNK_BYTES", chunk, 1);
    setenv("PK_RETRY_MS", "2000", 1);
}

static inline struct pki_iface *tcp_iface_new(struct pki_net *net, int rank, int size)
{
    struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct pki_iface_config config = { .rank = rank, .size = size, .net = net };
    struct pki_iface *iface = calloc(1, tcp()->iface_bytes);

    memset(net, 0, sizeof *net);
    memset(net->key, 42, sizeof net->key);
    memcpy(&net->local, &loopback, sizeof loopback);
    iface->transport = tcp();
    iface->carries = true;
    pki_list_init(&iface->events);
    assert(tcp()->open(&config, iface) == PK_OK);
    return iface;
}

/* Interfaces and cards; the caller may change the cards before tcp_pair_connect. */
static inline void tcp_pair_begin(struct tcp_pair *pair)
{
    memset(pair, 0, sizeof *pair);
    for (int i = 0; i < 2; i++) {
        pair->iface[i] = tcp_iface_new(&pair->net[i], i, 2);
        pair->ep[i] = calloc(1, tcp()->ep_bytes);
        pair->ep[i]->iface = pair->iface[i];
        pair->ep[i]->rank = i;
        pair->ep[i]->peer = 1 - i;
        assert(tcp()->ep_init(pair->ep[i], &pair->blob[i]) == PK_OK);
    }
}

static inline void tcp_pair_progress(struct tcp_pair *pair)
{
    for (int i = 0; i < 2; i++)
        (void)tcp()->progress(pair->iface[i]);
}

/* False: not connected within 20 s. */
static inline bool tcp_pair_connect(struct tcp_pair *pair)
{
    uint64_t until = pki_now_ns() + 20 * PKI_NS_PER_S;

    for (int i = 0; i < 2; i++)
        assert(tcp()->ep_connect(pair->ep[i], &pair->blob[1 - i]) == PK_OK);
    while ((pair->ep[0]->state == PKI_EP_CONNECTING || pair->ep[1]->state == PKI_EP_CONNECTING) && pki_now_ns() < until)
        tcp_pair_progress(pair);
    return pair->ep[0]->state == PKI_EP_UP && pair->ep[1]->state == PKI_EP_UP;
}

static inline void tcp_pair_new(struct tcp_pair *pair)
{
    bool connected;

    tcp_pair_begin(pair);
    connected = tcp_pair_connect(pair);
    assert(connected);
}

static inline void tcp_pair_free(struct tcp_pair *pair)
{
    for (int i = 0; i < 2; i++) {
        if (pair->ep[i] != NULL)
            tcp()->ep_close(pair->ep[i]);
        free(pair->ep[i]);
        tcp()->close(pair->iface[i]);
        free(pair->iface[i]);
    }
}

/* It is the next of this rank's to end, and is over. */
static inline bool tcp_pair_has_ended(struct tcp_pair *pair, int rank, struct pki_put *put)
{
    return events_put(pair->iface[rank]) == put && put->result == PK_OK;
}

static inline void tcp_pair_await_end(struct tcp_pair *pair, int rank, struct pki_put *put)
{
    bool ended;

    for (uint64_t until = pki_now_ns() + 20 * PKI_NS_PER_S; events_look(pair->iface[rank]) == NULL && pki_now_ns() < until;)
        tcp_pair_progress(pair);
    ended = tcp_pair_has_ended(pair, rank, put);
    assert(ended);
}

/* Post the receive that `cts` speaks of; `tells`: and let the peer know. It is one of a few that are used in turn. */
static inline pk_result_t tcp_post(struct pki_ep *ep, const struct pki_msg *cts, bool tells)
{
    static struct pki_recv recvs[256];
    static atomic_uint next;
    struct pki_recv *recv = &recvs[atomic_fetch_add(&next, 1) % 256];

    *recv = events_recv(ep, cts);
    return tcp()->recv_post(recv, tells ? cts : NULL);
}

/* News of what has come, as messages, and those of the peer. */
static _Thread_local bool tcp_peeked_news;
static inline bool tcp_peek(struct pki_ep *ep, struct pki_msg *msg, const void **payload)
{
    *payload = NULL;
    tcp_peeked_news = events_come(ep->iface, msg);
    return tcp_peeked_news || tcp()->peek(ep, msg, payload);
}

static inline void tcp_pop(struct pki_ep *ep)
{
    if (!tcp_peeked_news)
        tcp()->pop(ep);
    tcp_peeked_news = false;
}

/* Without a shutdown message, for which the other end, dead or of another opinion of what was sent, would let this one wait. */
static inline void tcp_pair_drop(struct tcp_pair *pair)
{
    for (int i = 0; i < 2; i++)
        if (pair->ep[i] != NULL)
            pki_ep_enter(pair->ep[i], PKI_EP_DEAD);
    tcp_pair_free(pair);
}

/* Cut connection `link` of one end, as a network does. */
static inline void tcp_cut(struct pki_ep *ep, uint32_t link)
{
    struct pki_tcp_link *l = &pki_tcp_ep_of(ep)->links[link];

    if (l->source.fd >= 0)
        (void)shutdown(l->source.fd, SHUT_RDWR);
}

#endif
