/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of the TCP transport, all little endian; docs/wire.md is their description. Pure functions; every get_* takes bytes from
 * outside, trusts nothing and is a fuzz target. They return false when the bytes are no such thing.
 */
#ifndef PKI_TCP_WIRE_H
#define PKI_TCP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "transport/transport.h"
#include "tuning/tuning.h"
#include "util/bytes.h"

#define PKI_TCP_VERSION 9u
#define PKI_TCP_SOCKETS_MAX 16u
#define PKI_TCP_LINKS_MAX (1 + PKI_TCP_SOCKETS_MAX)
#define PKI_TCP_WINDOW_MAX 64u
#define PKI_TCP_CHUNK_MIN (16u << 10)
#define PKI_TCP_CHUNK_MAX (16u << 20)
#define PKI_TCP_ADDRESSES 8

/* ---- Frames ---- */

enum pki_tcp_frame_type {
    PKI_TCP_MSG = 1,   /* control channel: a message and its payload */
    PKI_TCP_DATA = 2,  /* data: a chunk of a granted transfer */
    PKI_TCP_ACK = 3,   /* control channel: how many frames of a connection have come */
    PKI_TCP_CLOSE = 4, /* control channel: the sender leaves in good order */
};

struct pki_tcp_frame {
    enum pki_tcp_frame_type type;
    uint32_t bytes; /* behind the header */
};

/* The kernel copies what begins with a cache line, there and here, in two thirds of the time. */
#define PKI_TCP_HEADER_BYTES 8
/* frames of the control channel are filled up to a multiple of it, and heads of chunks are one: see below */
#define PKI_TCP_LINE 64u
/* EAGER; with the header 32, behind which the kernel copies a payload sooner than behind 24; */
#define PKI_TCP_MSG_SHORT_BYTES 24
#define PKI_TCP_MSG_BYTES 56
#define PKI_TCP_DATA_BYTES 56
#define PKI_TCP_ACK_BYTES 56
#define PKI_TCP_CLOSE_BYTES 56
#define PKI_TCP_MSG_HEAD_MAX (PKI_TCP_HEADER_BYTES + PKI_TCP_MSG_BYTES)
#define PKI_TCP_MSG_FRAME_MAX (PKI_TCP_HEADER_BYTES + PKI_TCP_MSG_SHORT_BYTES + PKI_TCP_EAGER_MAX)
#define PKI_TCP_DATA_HEAD_BYTES (PKI_TCP_HEADER_BYTES + PKI_TCP_DATA_BYTES)

/* Of a header that this end has written. */
static inline uint32_t pki_tcp_get_length(const unsigned char bytes[PKI_TCP_HEADER_BYTES])
{
    return pki_get_u32(bytes + 4);
}

/* What a frame of `bytes` behind its header takes on a control channel. */
static inline uint32_t pki_tcp_filled(uint32_t bytes)
{
    return (PKI_TCP_HEADER_BYTES + bytes + PKI_TCP_LINE - 1) / PKI_TCP_LINE * PKI_TCP_LINE;
}

/* Checks the length against what the type allows. */
bool pki_tcp_get_header(const unsigned char bytes[PKI_TCP_HEADER_BYTES], struct pki_tcp_frame *frame);

/* Header and message, without the payload; returns their length. */
size_t pki_tcp_put_msg(unsigned char out[PKI_TCP_MSG_HEAD_MAX], const struct pki_msg *msg);
/* `count` bytes behind the header. *payload points into them. */
bool pki_tcp_get_msg(const unsigned char *bytes, uint32_t count, struct pki_msg *msg, const unsigned char **payload);

struct pki_tcp_chunk {
    uint8_t flags; /* identity of the transfer, as in struct pki_msg */
    uint16_t index;
    uint32_t sig;
    uint64_t op;
    uint64_t offset; /* of the first byte in the transfer */
    uint32_t bytes;
    uint32_t eager_put; /* length of the whole transfer, where the chunk does not wait for its grant; else 0 */
};

/* Header and description of a chunk; the payload follows. */
void pki_tcp_put_chunk(unsigned char out[PKI_TCP_DATA_HEAD_BYTES], const struct pki_tcp_chunk *chunk);
bool pki_tcp_get_chunk(const unsigned char bytes[PKI_TCP_DATA_HEAD_BYTES], struct pki_tcp_chunk *chunk);

struct pki_tcp_ack {
    uint32_t link;
    uint64_t frames;
};

void pki_tcp_put_ack(unsigned char out[PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES], const struct pki_tcp_ack *ack);
bool pki_tcp_get_ack(const unsigned char bytes[PKI_TCP_ACK_BYTES], struct pki_tcp_ack *ack);
/* The number of chunks that were sent on link 1 before the shutdown message. */
void pki_tcp_put_close(unsigned char out[PKI_TCP_HEADER_BYTES + PKI_TCP_CLOSE_BYTES], uint64_t chunks);
static inline uint64_t pki_tcp_get_close(const unsigned char bytes[PKI_TCP_CLOSE_BYTES])
{
    return pki_get_u64(bytes);
}

/* ---- What a rank tells its peers before they connect (struct pki_blob) ---- */

struct pki_tcp_peer_info {
    uint32_t sockets, window, chunk_bytes;
    uint32_t addresses, near;                           /* of them those to be used first */
    struct sockaddr_storage address[PKI_TCP_ADDRESSES]; /* without a scope: that is each host's own */
};

void pki_tcp_put_peer_info(struct pki_blob *blob, const struct pki_tcp_peer_info *peer_info);
/* The version of these bytes that its sender speaks; 0: it is no card. */
uint32_t pki_tcp_peer_info_version(const struct pki_blob *blob);
bool pki_tcp_get_peer_info(const struct pki_blob *blob, struct pki_tcp_peer_info *peer_info);

/* ---- Handshake: hello and proof come from the connecting end, the challenge from the other ---- */

#define PKI_TCP_NONCE_BYTES 32
#define PKI_TCP_MAC_BYTES 32
#define PKI_TCP_HELLO_BYTES (32 + PKI_TCP_NONCE_BYTES)
#define PKI_TCP_CHALLENGE_BYTES (16 + PKI_TCP_NONCE_BYTES + PKI_TCP_MAC_BYTES)

struct pki_tcp_hello {
    uint32_t from, to, size, link;
    uint64_t received; /* frames of this connection that have come before it broke */
    unsigned char nonce[PKI_TCP_NONCE_BYTES];
};

struct pki_tcp_challenge {
    uint64_t received;
    unsigned char nonce[PKI_TCP_NONCE_BYTES];
    unsigned char mac[PKI_TCP_MAC_BYTES];
};

void pki_tcp_put_hello(unsigned char out[PKI_TCP_HELLO_BYTES], const struct pki_tcp_hello *hello);
bool pki_tcp_get_hello(const unsigned char bytes[PKI_TCP_HELLO_BYTES], struct pki_tcp_hello *hello);
void pki_tcp_put_challenge(unsigned char out[PKI_TCP_CHALLENGE_BYTES], const struct pki_tcp_challenge *challenge);
bool pki_tcp_get_challenge(const unsigned char bytes[PKI_TCP_CHALLENGE_BYTES], struct pki_tcp_challenge *challenge);

#endif
