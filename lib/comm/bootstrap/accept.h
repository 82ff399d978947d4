/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proving the secret, and accepting connections from whoever comes.
 *
 * Both ends prove themselves: the accepting one first, over the other's nonce, then the connecting one over both nonces. The
 * proofs carry different labels, so that neither can be played back as the other, and cover the job, the ranks and the size.
 */
#ifndef PKI_BOOTSTRAP_ACCEPT_H
#define PKI_BOOTSTRAP_ACCEPT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/bootstrap/meeting.h"
#include "comm/bootstrap/wire.h"

enum pki_handshake_state {
    PKI_HS_HELLO,     /* accepting end: waits for the hello */
    PKI_HS_CHALLENGE, /* connecting end: has sent its hello, waits for the challenge */
    PKI_HS_PROOF,     /* accepting end: has sent the challenge, waits for the proof */
    PKI_HS_DONE       /* both have proved themselves, as far as this end can know */
};

struct pki_handshake {
    int fd; /* non-blocking */
    enum pki_handshake_state state;
    const struct pki_secret *secret;
    struct pki_hello hello; /* of the connecting end; to be believed in state DONE only */
    unsigned char hello_bytes[PKI_HELLO_BYTES];
    unsigned char nonce[PKI_NONCE_BYTES]; /* of the accepting end */
    unsigned char in[PKI_CHALLENGE_BYTES];
    size_t have;
    uint64_t deadline_ns; /* accepting end: when to give the connection up */
};

/* The connecting end sends its hello. hello->nonce is filled here. The descriptor stays the caller's. PK_ERR_SYSTEM; PK_ERR_PEER
 * (not recorded). */
pk_result_t pki_handshake_connect(struct pki_handshake *h, int fd, const struct pki_secret *secret,
                                  const struct pki_hello *hello);

/* The accepting end of `fd`, which stays the caller's. */
void pki_handshake_accept(struct pki_handshake *h, int fd, const struct pki_secret *secret, uint64_t deadline_ns);

/* Go on with what has arrived; never blocks, never reads past the handshake. PK_OK: done. PK_IN_PROGRESS. PK_ERR_PEER: the
 * connection broke (errno; 0: it was closed). PK_ERR_AUTH: the other end sent no proof of the secret. PK_ERR_MISMATCH: it has
 * another version of the library. None of these is recorded: strangers must not fill the log. PK_ERR_SYSTEM (no randomness, no
 * hash) is. */
pk_result_t pki_handshake_step(struct pki_handshake *h);

/* Does the unix socket's other end belong to this process's user, as this process sees users? And whose it is. */
bool pki_unix_same_user(int fd, uint32_t *user);

#define PKI_ACCEPT_PENDING 256 /* more at a time push out the oldest, so that idle ones cannot shut out a rank */

/* Accepts on some listeners and runs the handshakes of all connections side by side. Garbage, half-open and idle connections
 * cost a slot until they are dropped and delay nobody. */
struct pki_acceptor {
    const struct pki_secret *secret;
    enum pki_hello_kind kind;
    uint32_t rank; /* this one: a hello to another is dropped */
    const int *listeners;
    int listener_count;
    size_t pending_count;
    size_t done_count;       /* pending[0 .. done_count) are done and wait for pki_acceptor_take */
    unsigned dropped;        /* connections that never proved the secret */
    uint64_t pause_until_ns; /* out of descriptors: leave the listeners alone until then */
    bool said_why;           /* the log knows of it */
    bool other_version;      /* a process with another version of the library came */
    struct pki_handshake pending[PKI_ACCEPT_PENDING];
};

#define PKI_ACCEPT_POLLS (PKI_MEETING_LISTENERS + PKI_ACCEPT_PENDING)

/* NULL without memory (not recorded). `secret` and `listeners` stay the caller's and must outlive it. */
struct pki_acceptor *pki_acceptor_open(const struct pki_secret *secret, enum pki_hello_kind kind, int rank, const int *listeners,
                                       int listener_count);
/* Closes every pending connection, not the listeners. NULL is legal. */
void pki_acceptor_close(struct pki_acceptor *a);

/* Fill what to poll, at most PKI_ACCEPT_POLLS; returns how many. */
size_t pki_acceptor_polls(struct pki_acceptor *a, struct pollfd *polls);

/* After poll, with the same entries. Errors are recorded and fatal. */
pk_result_t pki_acceptor_step(struct pki_acceptor *a, const struct pollfd *polls);

/* Take one finished connection: its descriptor is the caller's, its hello is proved. False: none. */
bool pki_acceptor_take(struct pki_acceptor *a, int *fd, struct pki_hello *hello);

/* When the next pending connection is due to be dropped or the listeners are to be tried again; UINT64_MAX when never. */
uint64_t pki_acceptor_due_ns(const struct pki_acceptor *a);

#endif
