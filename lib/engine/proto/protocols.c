/* SPDX-License-Identifier: Apache-2.0 */
/* The protocols by which transfers go, and how one begins. */
#include "engine/proto/proto.h"

static bool is_to_self(const struct pki_protocol_query *q)
{
    return q->peer->rank == q->engine->config.rank;
}

static bool is_eager(const struct pki_protocol_query *q)
{
    return q->bytes == 0 || (q->kind == PKI_MEM_HOST && q->bytes <= q->eager_max);
}

static bool is_eager_put(const struct pki_protocol_query *q)
{
    return q->kind == PKI_MEM_HOST && pki_may_eager_put(q);
}

/* A receiver in a stream grants it so if there is room. */
static bool is_low_latency(const struct pki_protocol_query *q)
{
    return q->kind == PKI_MEM_DEVICE && q->engine->config.gpus == PKI_GPUS_KERNELS && q->peer->ll.remote != NULL &&
           q->bytes <= PKI_LL_MAX_BYTES;
}

static bool goes_by_bounce(const struct pki_protocol_query *q)
{
    return q->kind == PKI_MEM_DEVICE && pki_bounce_receives(q->engine, q->peer);
}

static bool is_any(const struct pki_protocol_query *q)
{
    (void)q;
    return true;
}

static int low_latency_ctas(const struct pki_protocol_query *q, bool is_send)
{
    (void)is_send;
    return (int)pki_ll_ctas(q->engine, q->bytes);
}

static int unpack_ctas(const struct pki_protocol_query *q, bool is_send)
{
    return is_send ? 0 : pki_bounce_unpack_ctas(q->engine, q->peer);
}

#define OF_PEERS .advance = { pki_recv_advance, pki_send_advance } /* with another rank */

const struct pki_protocol *pki_protocol_choose(const struct pki_protocol_query *query)
{
    static const struct pki_protocol protocols[] = {
        { .name = "local copy", .applies = is_to_self, .advance = { pki_self_advance, pki_self_advance } },
        { .name = "eager", .applies = is_eager, .send = pki_send_eager, .recv = pki_recv_eager, OF_PEERS },
        { .name = "eager put", .applies = is_eager_put, .send = pki_send_eager_put, .recv = pki_recv_eager_put, OF_PEERS },
        { .name = "ll kernel",
          .applies = is_low_latency,
          .ctas = low_latency_ctas,
          .send = pki_send_rendezvous,
          .recv = pki_recv_rendezvous,
          OF_PEERS },
        { .name = "bounce buffers",
          .applies = goes_by_bounce,
          .ctas = unpack_ctas,
          .send = pki_send_rendezvous,
          .recv = pki_recv_bounce,
          OF_PEERS },
        { .name = "rendezvous", .applies = is_any, .send = pki_send_rendezvous, .recv = pki_recv_rendezvous, OF_PEERS },
    };
    const struct pki_protocol *protocol = protocols;

    while (!protocol->applies(query))
        protocol++;
    return protocol;
}

/* It may be matched from now on. */
void pki_xfer_post(struct pki_xfer *xfer)
{
    const struct pki_protocol_query query = pki_xfer_query(xfer);

    xfer->protocol = pki_protocol_choose(&query);
    pki_list_push(xfer->is_send ? &xfer->peer->sends : &xfer->peer->recvs, &xfer->match);
    pki_xfer_advance(xfer);
}
