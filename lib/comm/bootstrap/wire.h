/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of the bootstrap: the id, the handshake and the frames behind it, all little endian. Pure functions; every get_*
 * takes bytes from outside, trusts nothing and is a fuzz target. They return false when the bytes are no such thing.
 *
 *   hello      magic "PKh3", kind u8, zero[3], from u32, to u32, size u32, life u32, nonce[32]   connecting end speaks first
 *   challenge  magic "PKc1", nonce[32], mac[32]                                              accepting end proves itself
 *   proof      mac[32]                                                                       connecting end proves itself
 *   frame      magic "PKb1", type u8, zero[3], sequence u32, bytes u32, payload
 */
#ifndef PKI_BOOTSTRAP_WIRE_H
#define PKI_BOOTSTRAP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "pickle/comm.h"

#define PKI_SECRET_BYTES 16
#define PKI_JOB_BYTES 8
#define PKI_NONCE_BYTES 32
#define PKI_MAC_BYTES 32
#define PKI_SESSION_BYTES 16
#define PKI_ID_ADDRESSES 4

#define PKI_HELLO_BYTES (24 + PKI_NONCE_BYTES)
#define PKI_CHALLENGE_BYTES (4 + PKI_NONCE_BYTES + PKI_MAC_BYTES)
#define PKI_FRAME_HEADER_BYTES 16
#define PKI_PLACE_BYTES 8
#define PKI_NOTICE_TEXT 400
#define PKI_NOTICE_BYTES (8 + PKI_NOTICE_TEXT)

/* What both ends of a connection know before it exists. */
struct pki_secret {
    unsigned char key[PKI_SECRET_BYTES];
    unsigned char job[PKI_JOB_BYTES];
};

/* An id, unpacked: where rank 0 listens (tried in order) and the secret. */
struct pki_id {
    struct pki_secret secret;
    bool listened; /* rank 0 did, before anybody was given the id */
    bool led;      /* instead the process that made the id did, and leads to rank 0, wherever that is */
    bool grows;    /* it is of a communicator that there is already, for ranks that join it; the job is a random number */
    int address_count;
    struct sockaddr_storage address[PKI_ID_ADDRESSES];
};

#define PKI_HELLO_JOINER UINT32_MAX /* `from` of a rank that joins, and hears its number; its size is 0 */

enum pki_hello_kind { PKI_HELLO_CONTROL = 1, PKI_HELLO_LOCAL = 2 };

struct pki_hello {
    enum pki_hello_kind kind;
    uint32_t from, to, size;
    uint32_t life; /* how often the launcher has started the job again, and one; 0: it does not say */
    unsigned char nonce[PKI_NONCE_BYTES];
};

enum pki_frame_type {
    PKI_FRAME_WELCOME = 1,  /* rank 0: all are in; payload is the session's random name */
    PKI_FRAME_PART = 2,     /* to rank 0: this rank's part of a gather, or what it has for some ranks */
    PKI_FRAME_ALL = 3,      /* rank 0: the gathered parts, or what all have for this rank */
    PKI_FRAME_NOTICE = 4,   /* an error; the sender gives up */
    PKI_FRAME_SHUTDOWN = 5, /* the sender leaves in good order */
    PKI_FRAME_WHERE = 6,    /* to and from the process that made the id: where rank 0 listens, an id without its secret */
    PKI_FRAME_PLACE = 7     /* rank 0, before the welcome of a rank that joins: its rank u32, size u32 */
};

struct pki_frame {
    enum pki_frame_type type;
    uint32_t sequence;
    uint32_t bytes;
};

/* An error on its way to another rank. An empty text with PK_ERR_TIMEOUT asks rank 0 who is missing. */
struct pki_notice {
    pk_result_t code;
    int peer;
    char text[PKI_NOTICE_TEXT];
};

void pki_wire_put_id(pk_unique_id_t *out, const struct pki_id *id);
bool pki_wire_get_id(const pk_unique_id_t *bytes, struct pki_id *id);

void pki_wire_put_hello(unsigned char out[PKI_HELLO_BYTES], const struct pki_hello *hello);
/* The beginning of a hello is that of another version of the library. */
bool pki_wire_is_other_version(const unsigned char bytes[4]);
bool pki_wire_get_hello(const unsigned char bytes[PKI_HELLO_BYTES], struct pki_hello *hello);

/* The challenge is looked at only through these: the nonce is any bytes, the proof is the authenticator's matter. */
void pki_wire_put_challenge(unsigned char out[PKI_CHALLENGE_BYTES], const unsigned char nonce[PKI_NONCE_BYTES],
                            const unsigned char mac[PKI_MAC_BYTES]);
bool pki_wire_get_challenge(const unsigned char bytes[PKI_CHALLENGE_BYTES], const unsigned char **nonce,
                            const unsigned char **mac);

/* `part_max` and `all_max` bound the payloads of PART and ALL. */
void pki_wire_put_frame(unsigned char out[PKI_FRAME_HEADER_BYTES], const struct pki_frame *frame);
bool pki_wire_get_frame(const unsigned char bytes[PKI_FRAME_HEADER_BYTES], size_t part_max, size_t all_max,
                        struct pki_frame *frame);

/* Returns the payload's length. */
size_t pki_wire_put_notice(unsigned char out[PKI_NOTICE_BYTES], const struct pki_notice *notice);
bool pki_wire_get_notice(const unsigned char *bytes, size_t count, struct pki_notice *notice);

#define PKI_HOST_BYTES 256
#define PKI_PORT_BYTES 8

/* "host:port" or "[v6 address]:port", port 1 to 65535. */
bool pki_wire_split_host_port(const char *text, char host[PKI_HOST_BYTES], char port[PKI_PORT_BYTES]);

#endif
