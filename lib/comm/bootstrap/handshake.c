/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/bootstrap/accept.h"

#include <errno.h>
#include <string.h>

#include "util/auth.h"

#define LABEL_BYTES 16

static const char accept_label[LABEL_BYTES] = "pickle accept";
static const char connect_label[LABEL_BYTES] = "pickle connect";

/* HMAC over label, job, the whole hello and the accepting end's nonce. */
static pk_result_t prove(const struct pki_handshake *h, const char label[LABEL_BYTES], unsigned char mac[PKI_MAC_BYTES])
{
    unsigned char transcript[LABEL_BYTES + PKI_JOB_BYTES + PKI_HELLO_BYTES + PKI_NONCE_BYTES];
    unsigned char *at = transcript;

    memcpy(at, label, LABEL_BYTES);
    at += LABEL_BYTES;
    memcpy(at, h->secret->job, PKI_JOB_BYTES);
    at += PKI_JOB_BYTES;
    memcpy(at, h->hello_bytes, PKI_HELLO_BYTES);
    at += PKI_HELLO_BYTES;
    memcpy(at, h->nonce, PKI_NONCE_BYTES);
    return pki_auth_mac(h->secret->key, PKI_SECRET_BYTES, transcript, sizeof transcript, mac);
}

/* The few bytes of a handshake always fit an unused socket's buffer; where they do not, the connection is no good. */
static pk_result_t say(int fd, const void *data, size_t bytes)
{
    ssize_t n;

    do {
        n = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)bytes ? PK_OK : PK_ERR_PEER;
}

pk_result_t pki_handshake_connect(struct pki_handshake *h, int fd, const struct pki_secret *secret, const struct pki_hello *hello)
{
    pk_result_t result;

    memset(h, 0, sizeof *h);
    h->fd = fd;
    h->secret = secret;
    h->state = PKI_HS_CHALLENGE;
    h->deadline_ns = UINT64_MAX;
    h->hello = *hello;
    result = pki_auth_random(h->hello.nonce, sizeof h->hello.nonce);
    if (result != PK_OK)
        return result;
    pki_wire_put_hello(h->hello_bytes, &h->hello);
    return say(fd, h->hello_bytes, sizeof h->hello_bytes);
}

void pki_handshake_accept(struct pki_handshake *h, int fd, const struct pki_secret *secret, uint64_t deadline_ns)
{
    memset(h, 0, sizeof *h);
    h->fd = fd;
    h->secret = secret;
    h->state = PKI_HS_HELLO;
    h->deadline_ns = deadline_ns;
}

static size_t wanted(enum pki_handshake_state state)
{
    switch (state) {
    case PKI_HS_HELLO:
        return PKI_HELLO_BYTES;
    case PKI_HS_CHALLENGE:
        return PKI_CHALLENGE_BYTES;
    case PKI_HS_PROOF:
        return PKI_MAC_BYTES;
    case PKI_HS_DONE:
        break;
    }
    return 0;
}

static pk_result_t on_hello(struct pki_handshake *h)
{
    unsigned char challenge[PKI_CHALLENGE_BYTES];
    unsigned char mac[PKI_MAC_BYTES];
    pk_result_t result;

    if (!pki_wire_get_hello(h->in, &h->hello))
        return PK_ERR_AUTH;
    memcpy(h->hello_bytes, h->in, PKI_HELLO_BYTES);
    result = pki_auth_random(h->nonce, sizeof h->nonce);
    if (result == PK_OK)
        result = prove(h, accept_label, mac);
    if (result != PK_OK)
        return result;
    pki_wire_put_challenge(challenge, h->nonce, mac);
    h->state = PKI_HS_PROOF;
    return say(h->fd, challenge, sizeof challenge);
}

static pk_result_t on_challenge(struct pki_handshake *h)
{
    const unsigned char *nonce, *theirs;
    unsigned char mac[PKI_MAC_BYTES];
    pk_result_t result;

    if (!pki_wire_get_challenge(h->in, &nonce, &theirs))
        return PK_ERR_AUTH;
    memcpy(h->nonce, nonce, sizeof h->nonce);
    result = prove(h, accept_label, mac);
    if (result == PK_OK && !pki_auth_equal(mac, theirs, sizeof mac))
        result = PK_ERR_AUTH;
    if (result == PK_OK)
        result = prove(h, connect_label, mac);
    if (result != PK_OK)
        return result;
    h->state = PKI_HS_DONE;
    return say(h->fd, mac, sizeof mac);
}

static pk_result_t on_proof(struct pki_handshake *h)
{
    unsigned char mac[PKI_MAC_BYTES];
    pk_result_t result = prove(h, connect_label, mac);

    if (result == PK_OK && !pki_auth_equal(mac, h->in, sizeof mac))
        result = PK_ERR_AUTH;
    if (result == PK_OK)
        h->state = PKI_HS_DONE;
    return result;
}

/* Read up to what the state wants, never further: what follows belongs to others. */
static pk_result_t fill(struct pki_handshake *h)
{
    const size_t want = wanted(h->state);

    while (h->have < want) {
        ssize_t n = recv(h->fd, h->in + h->have, want - h->have, MSG_DONTWAIT);

        if (n > 0) {
            h->have += (size_t)n;
            if (h->state == PKI_HS_HELLO && h->have >= 4 && pki_wire_is_other_version(h->in)) /* theirs may be shorter */
                return PK_ERR_MISMATCH;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return PK_IN_PROGRESS;
        } else if (n == 0 || errno != EINTR) {
            errno = n == 0 ? 0 : errno;
            return PK_ERR_PEER;
        }
    }
    h->have = 0;
    return PK_OK;
}

pk_result_t pki_handshake_step(struct pki_handshake *h)
{
    while (h->state != PKI_HS_DONE) {
        pk_result_t result = fill(h);

        if (result != PK_OK)
            return result;
        switch (h->state) {
        case PKI_HS_HELLO:
            result = on_hello(h);
            break;
        case PKI_HS_CHALLENGE:
            result = on_challenge(h);
            break;
        case PKI_HS_PROOF:
            result = on_proof(h);
            break;
        case PKI_HS_DONE:
            break;
        }
        if (result != PK_OK)
            return result;
    }
    return PK_OK;
}
