/* SPDX-License-Identifier: Apache-2.0 */
/* Two endpoints of the rdma transport in one process, and what the engine would do with them. */
#ifndef RDMA_PAIR_H
#define RDMA_PAIR_H

#include "events.h"
#include "transport/rdma/rdma.h"
#include "util/clock.h"

extern const struct pki_transport pki_transport_rdma;

#define T (&pki_transport_rdma)
#define WAIT_NS (20 * PKI_NS_PER_S)

struct side {
    struct pki_iface *iface;
    struct pki_ep *ep;
    struct pki_blob blob;
};

extern struct side sides[2];
extern unsigned failures;
extern bool notes_lost; /* what carries notes between the two does so no more */

void check(bool good, const char *what);
void must(pk_result_t result, const char *what);
struct pki_rdma_ep *rdma_ep(int side);
void open_pair(uint32_t piece_shift);
void close_pair(void);
void progress(void);
uint8_t byte_at(size_t i, unsigned seed);
void fill(uint8_t *at, size_t bytes, unsigned seed);
bool holds(const uint8_t *at, size_t bytes, unsigned seed);
/* Take one message at `side`; false when time runs out. */
bool next_message(int side, struct pki_msg *msg, const void **payload);

/* Of a receive that side 1 has posted more has come. */
bool next_news(struct pki_msg *msg);

/* One transfer, from side 0 to side 1. */
struct transfer {
    uint8_t *source;
    struct pki_msg grant;
    struct pki_recv recv;
    size_t bytes, piece, issued, done;
    struct pki_put puts[64];
    unsigned n, ended;
};

/* Start the next put. False: it was refused. */
bool put_next(struct transfer *t);
/* The sender has got the grant. */
bool is_granted(struct transfer *t);
/* The receiver is told of each put, or of all. */
bool is_told(const struct transfer *t);
/* What the engine does for one transfer: grant, put in pieces. `disturb` is called when half of the pieces are on their way. */
bool transfer(size_t bytes, size_t offset, size_t piece, unsigned op, void (*disturb)(void));

#endif
