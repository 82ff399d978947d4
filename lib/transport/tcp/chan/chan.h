/* SPDX-License-Identifier: Apache-2.0 */
/* chan/: the control channel of a pair of ranks: messages in their order, and its end. */
#ifndef PKI_TCP_CHAN_H
#define PKI_TCP_CHAN_H

#include "transport/tcp/ack/ack.h"
#include "transport/tcp/wire.h"
#include "transport/transport.h"

struct pki_tcp_ep;
struct pki_tcp_link;

struct pki_tcp_ctrl {
    struct pki_tcp_link *link;
    bool heard; /* something has come by this connection: the peer has let it in */

    /* out: a ring, bytes [head, end) kept, [sent, end) not yet written; acknowledgements go between frames */
    unsigned char *tx;
    uint64_t tx_head, tx_sent, tx_end;

    /* in: [head, scan) whole frames, [scan, tail) part of one */
    unsigned char *rx;
    size_t rx_head, rx_scan, rx_tail;

    struct pki_tcp_acks acks;
};

/* ---- ctrl.c: messages ---- */

/* Memory for it. False: there is none; what there is, pki_tcp_ctrl_free takes away. */
bool pki_tcp_ctrl_open(struct pki_tcp_ctrl *ctrl);
void pki_tcp_ctrl_free(struct pki_tcp_ctrl *ctrl);
/* It uses this connection. */
void pki_tcp_ctrl_use(struct pki_tcp_link *link);
/* For this message on the control channel. */
bool pki_tcp_has_room(const struct pki_tcp_ep *ep, const struct pki_msg *msg);
pk_result_t pki_tcp_send(struct pki_ep *ep, const struct pki_msg *msg, const void *payload);
bool pki_tcp_peek(struct pki_ep *ep, struct pki_msg *msg, const void **payload);
void pki_tcp_pop(struct pki_ep *ep);
/* Read what has come; true when something has. */
bool pki_tcp_ctrl_read(struct pki_tcp_ctrl *ctrl);
/* Write what waits, acknowledgements that are due among it. */
void pki_tcp_ctrl_flush(struct pki_tcp_ctrl *ctrl);
/* A shutdown message there may have waited for what has come by another connection. */
void pki_tcp_ctrl_look(struct pki_tcp_ep *ep);
/* Behind what is kept there already; there is room. */
void pki_tcp_ctrl_write(struct pki_tcp_ctrl *ctrl, const void *data, size_t bytes);

/* ---- shutdown.c ---- */

void pki_tcp_ctrl_close(struct pki_tcp_ep *ep); /* say that this rank leaves, and see it out, waiting a moment at most */
/* The peer must have had this number of chunks on link 1 before it hears how this rank fares. `leaves`: in good order, else the
 * chunks are about to be given up. */
uint64_t pki_tcp_sent_before(const struct pki_tcp_ep *ep, bool leaves);

#endif
