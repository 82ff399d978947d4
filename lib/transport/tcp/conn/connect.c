/* SPDX-License-Identifier: Apache-2.0 */
/* Attempts to connect: hello, challenge and proof as the connecting end has them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transport/tcp/conn/reach.h"
#include "util/auth.h"
#include "util/clock.h"

#define LABEL_BYTES 32
#define SHOWS_PART 8 /* of PK_RETRY_MS: so long stands what a living process has accepted, or will */

pk_result_t pki_tcp_prove(const struct pki_tcp_iface *iface, const char *label, const unsigned char hello[PKI_TCP_HELLO_BYTES],
                          const struct pki_tcp_challenge *challenge, unsigned char mac[PKI_TCP_MAC_BYTES])
{
    unsigned char transcript[LABEL_BYTES + PKI_TCP_HELLO_BYTES + PKI_TCP_CHALLENGE_BYTES] = { 0 };
    struct pki_tcp_challenge plain = *challenge;

    memset(plain.mac, 0, sizeof plain.mac);
    (void)snprintf((char *)transcript, LABEL_BYTES, "%s", label);
    memcpy(transcript + LABEL_BYTES, hello, PKI_TCP_HELLO_BYTES);
    pki_tcp_put_challenge(transcript + LABEL_BYTES + PKI_TCP_HELLO_BYTES, &plain);
    return pki_auth_mac(iface->key, sizeof iface->key, transcript, sizeof transcript, mac);
}

void pki_tcp_attempt_failed(struct pki_tcp_link *link, int error)
{
    struct pki_where where = pki_tcp_where(link->ep);
    uint64_t pause = pki_tuning.tcp.backoff_ns << (link->attempt.count < 7 ? link->attempt.count : 7);
    bool is_refused;
    char text[128];

    pki_log(PKI_LOG_DEBUG, &where, "over tcp: connection %u, attempt %u: %s", link->index, link->attempt.count,
            pki_tcp_reason(error, text, sizeof text));
    if (link->state == PKI_TCP_PROBING)
        pause = PKI_TCP_PROBE_NS;
    /* For who leaves it is enough that the peer's place answers nothing but a closed connection. */
    pki_tcp_target_failed(link, error);
    is_refused = error == ECONNREFUSED ||
                 (link->ep->iface->shutdown_ns > 0 && link->attempt.shows_ns > 0 && (error == 0 || error == ECONNRESET));
    pki_tcp_wait_again(link, pause < pki_tuning.tcp.backoff_most_ns ? pause : pki_tuning.tcp.backoff_most_ns);
    link->attempt.count++;
    if (!pki_tcp_target_is_known(link)) /* that nobody listens at some address says nothing of the peer */
        return;
    if (is_refused)
        pki_tcp_refused(link, error);
    else
        link->attempt.refused_ns = 0;
}

uint64_t pki_tcp_shows_after(const struct pki_tcp_link *link, uint64_t now)
{
    return now + link->ep->iface->params.retry_ns / SHOWS_PART;
}

void pki_tcp_attempt_begin(struct pki_tcp_link *link, enum pki_tcp_state state)
{
    int fd = pki_tcp_target_socket(link);

    link->state = state;
    link->attempt.shows_ns = 0;
    link->attempt.ends_ns = pki_now_ns() + pki_tcp_target_ns(link);
    if (fd < 0) {
        pki_tcp_attempt_failed(link, errno);
    } else if (!pki_tcp_source(link->ep->iface, &link->source, fd, true)) {
        close(fd);
        pki_tcp_attempt_failed(link, 0);
    }
}

static void say_hello(struct pki_tcp_link *link)
{
    struct pki_tcp_attempt *attempt = &link->attempt;
    struct pki_tcp_ep *ep = link->ep;
    struct pki_tcp_hello hello = { .from = (uint32_t)ep->base.rank,
                                   .to = (uint32_t)ep->base.peer,
                                   .size = (uint32_t)ep->iface->size,
                                   .link = link->index,
                                   .received = link->received };
    ssize_t n;

    if (pki_auth_random(hello.nonce, sizeof hello.nonce) != PK_OK) {
        pki_tcp_attempt_failed(link, 0);
        return;
    }
    pki_tcp_put_hello(attempt->hello, &hello);
    link->state = PKI_TCP_CHALLENGED;
    attempt->have = 0;
    n = send(link->source.fd, attempt->hello, sizeof attempt->hello, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n != (ssize_t)sizeof attempt->hello)
        pki_tcp_attempt_failed(link, errno);
}

static void connected(struct pki_tcp_link *link)
{
    struct sockaddr_storage there;
    socklen_t bytes = sizeof there, error_bytes = sizeof(int);
    int error = 0;

    if (getsockopt(link->source.fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0 || error != 0) {
        pki_tcp_attempt_failed(link, error);
        return;
    }
    if (getpeername(link->source.fd, (struct sockaddr *)&there, &bytes) != 0) /* not yet */
        return;
    if (link->attempt.shows_ns == 0) {
        link->attempt.shows_ns = pki_tcp_shows_after(link, pki_now_ns());
        link->attempt.ends_ns = pki_now_ns() + pki_tcp_target_ns(link);
    }
    if (link->state != PKI_TCP_PROBING)
        say_hello(link);
    else if (recv(link->source.fd, &(char){ 0 }, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        pki_tcp_attempt_failed(link, 0);
}

static bool answer(struct pki_tcp_link *link, const struct pki_tcp_challenge *challenge)
{
    const struct pki_tcp_iface *iface = link->ep->iface;
    unsigned char mac[PKI_TCP_MAC_BYTES];

    if (pki_tcp_prove(iface, PKI_TCP_LABEL_ACCEPT, link->attempt.hello, challenge, mac) != PK_OK ||
        !pki_auth_equal(mac, challenge->mac, sizeof mac))
        return false;
    if (pki_tcp_prove(iface, PKI_TCP_LABEL_CONNECT, link->attempt.hello, challenge, mac) != PK_OK)
        return false;
    return send(link->source.fd, mac, sizeof mac, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof mac;
}

static void challenged(struct pki_tcp_link *link)
{
    struct pki_tcp_attempt *attempt = &link->attempt;
    struct pki_tcp_challenge challenge;
    int fd = link->source.fd;

    while (attempt->have < sizeof attempt->challenge) {
        ssize_t n = recv(fd, attempt->challenge + attempt->have, sizeof attempt->challenge - attempt->have, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            pki_tcp_attempt_failed(link, n < 0 ? errno : 0);
            return;
        }
        attempt->have += (size_t)n;
    }
    if (!pki_tcp_get_challenge(attempt->challenge, &challenge) || !answer(link, &challenge) ||
        !pki_tcp_link_up(link, fd, challenge.received))
        pki_tcp_attempt_failed(link, 0);
}

void pki_tcp_link_step(struct pki_tcp_link *link)
{
    if (link->state == PKI_TCP_CONNECTING || link->state == PKI_TCP_PROBING)
        connected(link);
    if (link->state == PKI_TCP_CHALLENGED)
        challenged(link);
}
