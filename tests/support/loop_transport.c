/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport written after transport.h alone, between ranks that are threads of one process: messages are lists, puts and gets are copies.
 * A program that is linked with it has it in the place of shm, under whose symbol the list of transports finds it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/transport.h"

#define MESSAGES_MAX 256
#define SHORT_BYTES 16 /* of struct pki_msg in an EAGER message */

struct message {
    struct pki_list node;
    struct pki_msg msg;
    char payload[];
};

/* What comes for one end of a pair. Both ends hold it, and it goes with the last. */
struct inbox {
    struct pki_list node; /* inboxes */
    pthread_mutex_t lock;
    atomic_int messages_count;
    struct pki_list messages;
    int holders;
    bool revoked; /* the owner's memory is not the peer's any more */
};

struct loop_iface {
    struct pki_iface base;
    struct pki_list eps;     /* that are connected */
    struct pki_list refused; /* puts whose peer has failed: its engine says why, and they end with this rank's */
};

struct loop_ep {
    struct pki_ep base;
    struct pki_list node; /* loop_iface.eps */
    struct inbox *mine, *theirs;
};

/* All of the process: a peer that gives up takes its own away. */
static struct pki_list inboxes = { &inboxes, &inboxes };
static pthread_mutex_t inboxes_lock = PTHREAD_MUTEX_INITIALIZER;

static struct loop_iface *iface_of(struct pki_iface *iface)
{
    return pki_container_of(iface, struct loop_iface, base);
}

static struct loop_ep *ep_of(struct pki_ep *ep)
{
    return pki_container_of(ep, struct loop_ep, base);
}

static void loop_probe(const struct pki_iface_config *config, struct pki_probe *probe)
{
    (void)config;
    *probe = (struct pki_probe){ .usable = true, .gbps = 1, .reason = "one process" };
}

static pk_result_t loop_open(const struct pki_iface_config *config, struct pki_iface *iface)
{
    (void)config;
    iface->caps.msg_payload_max = 32768;
    pki_list_init(&iface->events);
    pki_list_init(&iface_of(iface)->eps);
    pki_list_init(&iface_of(iface)->refused);
    return PK_OK;
}

/* ---- Endpoints ---- */

static void let_go(struct inbox *inbox)
{
    struct pki_list *node;

    if (inbox == NULL)
        return;
    pthread_mutex_lock(&inboxes_lock);
    if (--inbox->holders == 0) {
        pki_list_remove(&inbox->node);
        while ((node = pki_list_pop(&inbox->messages)) != NULL)
            free(pki_container_of(node, struct message, node));
        pthread_mutex_destroy(&inbox->lock);
        free(inbox);
    }
    pthread_mutex_unlock(&inboxes_lock);
}

static pk_result_t loop_ep_init(struct pki_ep *ep, struct pki_blob *mine)
{
    struct inbox *inbox = calloc(1, sizeof *inbox);

    pki_list_init(&ep_of(ep)->node);
    if (inbox == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "over loop: no memory for an endpoint");
    pki_list_init(&inbox->node);
    pki_list_init(&inbox->messages);
    pthread_mutex_init(&inbox->lock, NULL);
    inbox->holders = 1;
    pthread_mutex_lock(&inboxes_lock);
    pki_list_push(&inboxes, &inbox->node);
    pthread_mutex_unlock(&inboxes_lock);
    ep_of(ep)->mine = inbox;
    mine->len = sizeof inbox;
    memcpy(mine->bytes, &inbox, sizeof inbox);
    return PK_OK;
}

static pk_result_t loop_ep_connect(struct pki_ep *ep, struct pki_blob *theirs)
{
    struct inbox *wanted = NULL;

    if (ep->same_process && theirs->len == sizeof wanted)
        memcpy(&wanted, theirs->bytes, sizeof wanted);
    pthread_mutex_lock(&inboxes_lock);
    for (struct pki_list *node = inboxes.next; node != &inboxes && ep_of(ep)->theirs == NULL; node = node->next)
        if (node == &wanted->node)
            ep_of(ep)->theirs = wanted;
    if (ep_of(ep)->theirs != NULL)
        wanted->holders++;
    pthread_mutex_unlock(&inboxes_lock);
    if (ep_of(ep)->theirs == NULL)
        return pki_ep_fail(ep, PK_ERR_PEER, 0, "over loop: it is not in this process any more");
    pki_list_push(&iface_of(ep->iface)->eps, &ep_of(ep)->node);
    ep->can_put = ep->can_get = true;
    return PK_OK;
}

static void loop_ep_close(struct pki_ep *ep)
{
    if (ep_of(ep)->mine != NULL)
        pki_list_remove(&ep_of(ep)->node);
    let_go(ep_of(ep)->theirs);
    let_go(ep_of(ep)->mine);
    ep_of(ep)->mine = ep_of(ep)->theirs = NULL;
}

/* ---- Messages ---- */

static pk_result_t loop_send(struct pki_ep *ep, const struct pki_msg *msg, const void *payload)
{
    struct inbox *inbox = ep_of(ep)->theirs;
    struct message *message;

    if (atomic_load(&inbox->messages_count) >= MESSAGES_MAX)
        return PK_IN_PROGRESS;
    message = calloc(1, sizeof *message + msg->payload);
    if (message == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "over loop: no memory for a message");
    memcpy(&message->msg, msg, msg->kind == PKI_MSG_EAGER ? SHORT_BYTES : sizeof *msg);
    message->msg.payload = msg->payload;
    if (msg->payload > 0)
        memcpy(message->payload, payload, msg->payload);
    pthread_mutex_lock(&inbox->lock);
    pki_list_push(&inbox->messages, &message->node);
    pthread_mutex_unlock(&inbox->lock);
    atomic_fetch_add(&inbox->messages_count, 1);
    return PK_OK;
}

static bool loop_peek(struct pki_ep *ep, struct pki_msg *msg, const void **payload)
{
    struct inbox *inbox = ep_of(ep)->mine;
    struct message *message;

    if (atomic_load(&inbox->messages_count) == 0)
        return false;
    pthread_mutex_lock(&inbox->lock);
    message = pki_container_of(inbox->messages.next, struct message, node);
    pthread_mutex_unlock(&inbox->lock);
    *msg = message->msg;
    *payload = message->payload;
    return true;
}

static void loop_pop(struct pki_ep *ep)
{
    struct inbox *inbox = ep_of(ep)->mine;

    pthread_mutex_lock(&inbox->lock);
    free(pki_container_of(pki_list_pop(&inbox->messages), struct message, node));
    pthread_mutex_unlock(&inbox->lock);
    atomic_fetch_sub(&inbox->messages_count, 1);
}

/* ---- Memory: an address is all it takes ---- */

static pk_result_t loop_reg(struct pki_iface *iface, const struct pki_mem *mem, struct pki_export *out)
{
    (void)iface;
    if (mem->kind != PKI_MEM_HOST || out == NULL)
        return PK_ERR_UNSUPPORTED;
    *out = (struct pki_export){ .kind = PKI_EXPORT_ADDRESS, .base = mem->base, .bytes = mem->bytes };
    return PK_OK;
}

static pk_result_t loop_map(struct pki_ep *ep, const struct pki_export *in, uint64_t *remote)
{
    (void)ep;
    *remote = in->base;
    return in->kind == PKI_EXPORT_ADDRESS ? PK_OK : PK_ERR_UNSUPPORTED;
}

static pk_result_t loop_put(struct pki_put *put)
{
    struct inbox *inbox = ep_of(put->ep)->theirs;
    char *here = (char *)(uintptr_t)put->src, *there = (char *)(uintptr_t)put->remote; /* NOLINT: of this process */
    bool revoked;

    pthread_mutex_lock(&inbox->lock);
    revoked = inbox->revoked;
    if (!revoked)
        memcpy(put->is_get ? here : there, put->is_get ? there : here, put->bytes);
    pthread_mutex_unlock(&inbox->lock);
    put->result = revoked ? PK_ERR_PEER : PK_OK;
    if (revoked)
        pki_list_push(&iface_of(put->ep->iface)->refused, &put->event.node);
    else
        pki_event_push(put->ep->iface, &put->event, PKI_EVENT_PUT);
    return PK_OK;
}

static void loop_recv_cancel(struct pki_iface *iface)
{
    struct loop_iface *loop = iface_of(iface);
    struct pki_list *node;

    for (node = loop->eps.next; node != &loop->eps; node = node->next) {
        struct inbox *inbox = pki_container_of(node, struct loop_ep, node)->mine;

        pthread_mutex_lock(&inbox->lock);
        inbox->revoked = true;
        pthread_mutex_unlock(&inbox->lock);
    }
    while ((node = pki_list_pop(&loop->refused)) != NULL)
        pki_event_push(iface, pki_container_of(node, struct pki_event, node), PKI_EVENT_PUT);
}

const struct pki_transport pki_transport_shm = {
    .name = "loop",
    .iface_bytes = sizeof(struct loop_iface),
    .ep_bytes = sizeof(struct loop_ep),
    .reaches = { [PKI_MEM_HOST] = { [PKI_MEM_HOST] = true } },
    .probe = loop_probe,
    .open = loop_open,
    .ep_init = loop_ep_init,
    .ep_connect = loop_ep_connect,
    .ep_close = loop_ep_close,
    .reg = loop_reg,
    .map = loop_map,
    .send = loop_send,
    .peek = loop_peek,
    .pop = loop_pop,
    .put = loop_put,
    .recv_cancel = loop_recv_cancel,
};
