/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: a peer that is not in the library for long, while a connection to it is broken. */
#include <criterion/criterion.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "tcp_pair.h"

#define AWAY_NS (4 * PKI_NS_PER_S)
#define TIMEOUT_NS (20 * PKI_NS_PER_S)

/* That wait for the rank to accept them. */
static unsigned queued(const struct pki_iface *iface)
{
    struct tcp_info info = { 0 };
    socklen_t bytes = sizeof info;
    const struct pki_tcp_iface *tcp_iface = pki_container_of(iface, struct pki_tcp_iface, base);

    cr_assert_eq(getsockopt(tcp_iface->accepting.listener[0].fd, IPPROTO_TCP, TCP_INFO, &info, &bytes), 0);
    return info.tcpi_unacked;
}

static void run(struct tcp_pair *pair, int who, uint64_t ns)
{
    for (uint64_t until = pki_now_ns() + ns; pki_now_ns() < until; usleep(200))
        (void)tcp()->progress(pair->iface[who]);
}

static void come_back(struct tcp_pair *pair, int away)
{
    const struct pki_msg msg = { .kind = PKI_MSG_EAGER, .op = 7 };
    uint64_t until = pki_now_ns() + TIMEOUT_NS;
    struct pki_msg in = { .op = 0 };
    const void *payload;

    cr_assert_eq(tcp()->send(pair->ep[1 - away], &msg, NULL), PK_OK);
    while (!tcp()->peek(pair->ep[away], &in, &payload) && pki_now_ns() < until)
        tcp_pair_progress(pair);
    cr_assert_eq(in.op, 7);
}

/* Whoever keeps asking whether it lives must not fill the queue of its listener: the next one would find it dead. */
Test(tcp_away, is_asked_once, .timeout = 60)
{
    for (int away = 0; away < 2; away++) {
        struct tcp_pair pair;

        setenv("PK_SOCKETS", "1", 1);
        setenv("PK_RETRY_MS", "1000", 1);
        tcp_pair_new(&pair);
        tcp_cut(pair.ep[1 - away], 0);
        run(&pair, 1 - away, AWAY_NS);
        cr_assert(pair.ep[1 - away]->state != PKI_EP_DEAD);
        cr_expect_leq(queued(pair.iface[away]), 2u, "%u connections wait for rank %d", queued(pair.iface[away]), away);
        come_back(&pair, away);
        tcp_pair_free(&pair);
    }
}
