/* SPDX-License-Identifier: Apache-2.0 */
/* ack/: acknowledgements, and copies of chunks that have none yet. */
#ifndef PKI_TCP_ACK_H
#define PKI_TCP_ACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/tcp/wire.h"

struct pki_tcp_ep;
struct pki_tcp_link;
struct pki_tcp_slot;

/* Those of all connections of a pair, to be written by its control channel between frames. */
struct pki_tcp_acks {
    bool due;
    size_t bytes, sent; /* of `row`: there, and written */
    size_t unreported;  /* bytes of frames of the control channel that have not been acknowledged */
    unsigned char row[PKI_TCP_LINKS_MAX * (PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES)];
};

struct pki_tcp_retransmit { /* copies of chunks whose puts did not wait (retransmit.c), in a ring: bytes [head, end) */
    char *ring;             /* NULL until there is one */
    uint64_t head, end;
    uint64_t frames; /* of link 1 up to the last of them */
    bool never;      /* the connection has been made again: who leaves could not tell whether the last ones have come */
};

/* ---- ack.c: how many frames have come ---- */

/* What the peer has not been told yet is to be written next, between frames. */
void pki_tcp_acks_gather(struct pki_tcp_ep *ep);
/* The control channel is a new one: what was told may not have come. */
void pki_tcp_acks_repeat(struct pki_tcp_ep *ep);
/* The peer's, as it has come. False: it cannot be. */
bool pki_tcp_ack_take(struct pki_tcp_ep *ep, const unsigned char bytes[PKI_TCP_ACK_BYTES]);

/* ---- retransmit.c: copies of short chunks, so that a put need not wait ---- */

/* The slot's chunk, all of its move's put and the link's next, is to be kept where that can be. */
void pki_tcp_copy_keep(struct pki_tcp_link *link, struct pki_tcp_slot *slot);
/* The peer has it. */
void pki_tcp_copy_ends(struct pki_tcp_ep *ep, const struct pki_tcp_slot *slot);
/* The chunk has been written: it is copied, and counts as acknowledged for its put. */
void pki_tcp_copy_released(struct pki_tcp_ep *ep, struct pki_tcp_slot *slot);
/* The peer has all of them, or its kernel has. */
bool pki_tcp_copies_are_out(const struct pki_tcp_ep *ep);

#endif
