/* SPDX-License-Identifier: Apache-2.0 */
#include "switchml/session.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "switchml/packet.h"
#include "util/auth.h"

#define KEEPALIVE_S 3 /* a host that is silent for three of these after the first is gone */

void pki_switchml_keep_alive(int fd)
{
    const int on = 1, seconds = KEEPALIVE_S, probes = 3;

    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

#define MAC_BYTES PKI_HASH_BYTES
#define HELLO_LABEL "pickle switchml hello"
#define ANSWER_LABEL "pickle switchml answer"
#define PROVEN_MAX (32 + 2 * PKI_SWITCHML_NONCE_BYTES + PKI_SWITCHML_ANSWER_BYTES)

static const unsigned char magic[4] = { 'P', 'K', 'S', 'W' };

static void put(unsigned char *to, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> 8 * (bytes - 1 - i));
}

static uint32_t get(const unsigned char *from, int bytes)
{
    uint32_t value = 0;

    for (int i = 0; i < bytes; i++)
        value = value << 8 | from[i];
    return value;
}

static size_t add(unsigned char *to, size_t at, const void *bytes, size_t n)
{
    memcpy(to + at, bytes, n);
    return at + n;
}

void pki_switchml_greeting_pack(const struct pki_switchml_greeting *g, unsigned char out[PKI_SWITCHML_GREETING_BYTES])
{
    memcpy(out, magic, sizeof magic);
    put(out + 4, PKI_SWITCHML_SESSION, 4);
    memcpy(out + 8, g->nonce, sizeof g->nonce);
}

uint32_t pki_switchml_greeting_unpack(const unsigned char in[PKI_SWITCHML_GREETING_BYTES], struct pki_switchml_greeting *g)
{
    memcpy(g->nonce, in + 8, sizeof g->nonce);
    return memcmp(in, magic, sizeof magic) == 0 ? get(in + 4, 4) : 0;
}

/* Bound to the connection by the nonces, so that a proof that was heard is of no use in another one. */
static pk_result_t prove_hello(const unsigned char *hello, const unsigned char *key, const struct pki_switchml_greeting *g,
                               unsigned char mac[MAC_BYTES])
{
    unsigned char text[PROVEN_MAX];
    size_t n = add(text, 0, HELLO_LABEL, sizeof HELLO_LABEL);

    n = add(text, n, g->nonce, sizeof g->nonce);
    n = add(text, n, hello, PKI_SWITCHML_HELLO_BYTES - MAC_BYTES);
    return pki_auth_mac(key, PKI_SWITCHML_KEY_BYTES, text, n, mac);
}

static pk_result_t prove_answer(const unsigned char *answer, const unsigned char *key, const struct pki_switchml_greeting *g,
                                const struct pki_switchml_hello *h, unsigned char mac[MAC_BYTES])
{
    unsigned char text[PROVEN_MAX];
    size_t n = add(text, 0, ANSWER_LABEL, sizeof ANSWER_LABEL);

    n = add(text, n, g->nonce, sizeof g->nonce);
    n = add(text, n, h->nonce, sizeof h->nonce);
    n = add(text, n, answer, PKI_SWITCHML_ANSWER_BYTES - MAC_BYTES);
    return pki_auth_mac(key, PKI_SWITCHML_KEY_BYTES, text, n, mac);
}

pk_result_t pki_switchml_hello_pack(const struct pki_switchml_hello *h, const unsigned char *key,
                                    const struct pki_switchml_greeting *g, unsigned char out[PKI_SWITCHML_HELLO_BYTES])
{
    memset(out, 0, PKI_SWITCHML_HELLO_BYTES);
    memcpy(out, magic, sizeof magic);
    put(out + 4, PKI_SWITCHML_SESSION, 4);
    memcpy(out + 8, h->id, sizeof h->id);
    put(out + 24, h->rank, 4);
    put(out + 28, h->workers, 4);
    put(out + 32, h->elements, 4);
    put(out + 36, h->window, 4);
    put(out + 40, h->port, 2);
    put(out + 42, h->threads, 2);
    memcpy(out + 44, h->nonce, sizeof h->nonce);
    return prove_hello(out, key, g, out + PKI_SWITCHML_HELLO_BYTES - MAC_BYTES);
}

static bool makes_sense(const struct pki_switchml_hello *h)
{
    return h->workers >= 1 && h->workers <= PKI_SWITCHML_WORKERS_MAX && h->rank < h->workers &&
           pki_switchml_elements_ok(h->elements) && h->window >= h->threads && h->window <= PKI_SWITCHML_SLOTS_MAX &&
           h->threads >= 1 && h->threads <= PKI_SWITCHML_THREADS_MAX && h->port != 0 && h->port <= UINT16_MAX - (h->threads - 1);
}

bool pki_switchml_hello_unpack(const unsigned char in[PKI_SWITCHML_HELLO_BYTES], const unsigned char *key,
                               const struct pki_switchml_greeting *g, struct pki_switchml_hello *h)
{
    unsigned char mac[MAC_BYTES];

    if (memcmp(in, magic, sizeof magic) != 0 || get(in + 4, 4) != PKI_SWITCHML_SESSION || prove_hello(in, key, g, mac) != PK_OK ||
        !pki_auth_equal(mac, in + PKI_SWITCHML_HELLO_BYTES - MAC_BYTES, MAC_BYTES))
        return false;
    memcpy(h->id, in + 8, sizeof h->id);
    h->rank = get(in + 24, 4);
    h->workers = get(in + 28, 4);
    h->elements = get(in + 32, 4);
    h->window = get(in + 36, 4);
    h->port = (uint16_t)get(in + 40, 2);
    h->threads = (uint16_t)get(in + 42, 2);
    memcpy(h->nonce, in + 44, sizeof h->nonce);
    return makes_sense(h);
}

pk_result_t pki_switchml_answer_pack(const struct pki_switchml_answer *a, const unsigned char *key,
                                     const struct pki_switchml_greeting *g, const struct pki_switchml_hello *h,
                                     unsigned char out[PKI_SWITCHML_ANSWER_BYTES])
{
    memset(out, 0, PKI_SWITCHML_ANSWER_BYTES);
    memcpy(out, magic, sizeof magic);
    put(out + 4, !a->accepted, 4);
    put(out + 8, a->window, 4);
    put(out + 12, a->port, 2);
    memcpy(out + 16, a->text, strnlen(a->text, sizeof a->text - 1));
    return prove_answer(out, key, g, h, out + PKI_SWITCHML_ANSWER_BYTES - MAC_BYTES);
}

bool pki_switchml_answer_unpack(const unsigned char in[PKI_SWITCHML_ANSWER_BYTES], const unsigned char *key,
                                const struct pki_switchml_greeting *g, const struct pki_switchml_hello *h,
                                struct pki_switchml_answer *a)
{
    unsigned char mac[MAC_BYTES];

    if (memcmp(in, magic, sizeof magic) != 0 || get(in + 4, 4) > 1 || prove_answer(in, key, g, h, mac) != PK_OK ||
        !pki_auth_equal(mac, in + PKI_SWITCHML_ANSWER_BYTES - MAC_BYTES, MAC_BYTES))
        return false;
    a->accepted = get(in + 4, 4) == 0;
    a->window = get(in + 8, 4);
    a->port = (uint16_t)get(in + 12, 2);
    memcpy(a->text, in + 16, sizeof a->text);
    a->text[sizeof a->text - 1] = '\0';
    for (char *c = a->text; *c != '\0'; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    return !a->accepted || (a->window >= h->threads && a->window <= h->window && a->window % h->threads == 0 &&
                            pki_switchml_slots(a->window / h->threads, h->threads) <= PKI_SWITCHML_SLOTS_MAX && a->port != 0);
}
