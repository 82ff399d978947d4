/* SPDX-License-Identifier: Apache-2.0 */
/* Whom the lower folders call without knowing them: what messages of peers are for, and what happens when an operation ends. */
#include "engine/life.h"
#include "engine/proto/offer.h"
#include "engine/survive.h"

static void take_question(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg, const void *payload)
{
    (void)payload;
    pki_stragglers_message(e, peer, msg);
}

static void take_mapping(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg, const void *payload)
{
    (void)payload;
    pki_reach_message(e, peer, msg);
}

static void take_loss(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg, const void *payload)
{
    (void)peer;
    (void)payload;
    pki_switched_message(e, msg);
}

static void granted(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload)
{
    (void)payload;
    pki_send_cts_arrived(xfer, msg);
}

static void placed(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload)
{
    (void)payload;
    pki_bounce_placed(xfer, msg);
}

static void acknowledged(struct pki_xfer *xfer, const struct pki_msg *msg, const void *payload)
{
    (void)payload;
    pki_send_ats_arrived(xfer, msg);
}

static void ended(struct pki_task *task)
{
    pki_fused_left(task);
    pki_stream_left(task);
    if (task->request.stream.kind == PK_STREAM_KIND_HOST)
        pki_host_stream_ended(task->host.stream, task);
}

const struct pki_handlers pki_handlers = {
    .messages = {
        [0] = { .go_on = pki_recv_message },
        [PKI_MSG_EAGER] = { .go_on = pki_recv_message },
        [PKI_MSG_RTS] = { .go_on = pki_recv_message, .is_void = pki_offer_is_settled },
        [PKI_MSG_CTS] = { .go_on = granted },
        [PKI_MSG_DATA] = { .go_on = pki_recv_message },
        [PKI_MSG_FIN] = { .go_on = pki_recv_message },
        [PKI_MSG_CREDIT] = { .go_on = NULL }, /* channel/ctrl.c */
        [PKI_MSG_BOUNCE_REQ] = { .go_on = pki_recv_message },
        [PKI_MSG_BOUNCE_CREDIT] = { .go_on = placed },
        [PKI_MSG_OFFER] = { .go_on = pki_recv_message },
        [PKI_MSG_ATS] = { .go_on = acknowledged },
        [PKI_MSG_WHO] = { .take = take_question },
        [PKI_MSG_HERE] = { .take = take_question },
        [PKI_MSG_MAP] = { .take = take_mapping },
        [PKI_MSG_MAPPED] = { .take = take_mapping },
        [PKI_MSG_PLAN] = { .go_on = NULL }, /* kept until its collective begins here */
        [PKI_MSG_NOTE] = { .go_on = pki_recv_message },
        [PKI_MSG_SIDE] = { .take = pki_side_message },
        [PKI_MSG_UNSWITCHED] = { .take = take_loss },
    },
    .described = pki_region_described,
    .forgotten = pki_region_forgotten,
    .agreement = pki_survive_message,
    .take_events = pki_engine_take_events,
    .missing = pki_engine_missing,
    .ended = ended,
};
