/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a worker and an aggregator begin: three messages over a TCP connection, which stays open as long as the worker takes part.
 * Both prove that they know the secret; an aggregator and workers without one have a key of zeros. Pure functions of bytes
 * (docs/switchml.md).
 */
#ifndef PKI_SWITCHML_SESSION_H
#define PKI_SWITCHML_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "pickle/base.h"

#define PKI_SWITCHML_SESSION 2u /* version */
#define PKI_SWITCHML_KEY_BYTES 16
#define PKI_SWITCHML_NONCE_BYTES 32
#define PKI_SWITCHML_ID_BYTES 16
#define PKI_SWITCHML_GREETING_BYTES 40
#define PKI_SWITCHML_HELLO_BYTES 108
#define PKI_SWITCHML_ANSWER_BYTES 140
#define PKI_SWITCHML_TEXT_BYTES 92

/* The aggregator's first message. */
struct pki_switchml_greeting {
    unsigned char nonce[PKI_SWITCHML_NONCE_BYTES];
};

/* The worker's. */
struct pki_switchml_hello {
    unsigned char id[PKI_SWITCHML_ID_BYTES]; /* the same of all workers of the job, and of no other one */
    uint32_t rank, workers, elements;
    uint32_t window;  /* packets on their way at most, of all its threads */
    uint16_t port;    /* UDP, of the worker's first thread, at the address of the connection; the others' follow */
    uint16_t threads; /* 1 to PKI_SWITCHML_THREADS_MAX, and at most as many as the window has packets */
    unsigned char nonce[PKI_SWITCHML_NONCE_BYTES];
};

/* And what the aggregator says to it. */
struct pki_switchml_answer {
    bool accepted;
    uint32_t window;                    /* that all workers of the job have: at most what they asked for; a multiple of threads */
    uint16_t port;                      /* UDP, of the aggregator */
    char text[PKI_SWITCHML_TEXT_BYTES]; /* why not */
};

/* The connection of a session is idle while packets go. Where the host at its other end is silent it ends. */
void pki_switchml_keep_alive(int fd);

void pki_switchml_greeting_pack(const struct pki_switchml_greeting *greeting, unsigned char out[PKI_SWITCHML_GREETING_BYTES]);
/* The version of who has sent it, 0: it is none. With another one than PKI_SWITCHML_SESSION nothing more is understood. */
uint32_t pki_switchml_greeting_unpack(const unsigned char in[PKI_SWITCHML_GREETING_BYTES],
                                      struct pki_switchml_greeting *greeting);

/* Packing fails only where the crypto library does (recorded). Unpacking: false where the bytes make no sense or prove nothing;
 * no field is used before the proof has been looked at. */
pk_result_t pki_switchml_hello_pack(const struct pki_switchml_hello *hello, const unsigned char *key,
                                    const struct pki_switchml_greeting *greeting, unsigned char out[PKI_SWITCHML_HELLO_BYTES]);
bool pki_switchml_hello_unpack(const unsigned char in[PKI_SWITCHML_HELLO_BYTES], const unsigned char *key,
                               const struct pki_switchml_greeting *greeting, struct pki_switchml_hello *hello);
pk_result_t pki_switchml_answer_pack(const struct pki_switchml_answer *answer, const unsigned char *key,
                                     const struct pki_switchml_greeting *greeting, const struct pki_switchml_hello *hello,
                                     unsigned char out[PKI_SWITCHML_ANSWER_BYTES]);
bool pki_switchml_answer_unpack(const unsigned char in[PKI_SWITCHML_ANSWER_BYTES], const unsigned char *key,
                                const struct pki_switchml_greeting *greeting, const struct pki_switchml_hello *hello,
                                struct pki_switchml_answer *answer);

#endif
