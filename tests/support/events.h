/* SPDX-License-Identifier: Apache-2.0 */
/* What a test that drives a transport takes from its events. */
#ifndef EVENTS_H
#define EVENTS_H

#include "transport/transport.h"

/* The oldest put that has ended and was not taken yet; NULL: none has. */
static inline struct pki_put *events_look(struct pki_iface *iface)
{
    for (struct pki_list *node = iface->events.next; node != &iface->events; node = node->next) {
        struct pki_event *event = pki_container_of(node, struct pki_event, node);

        if (event->kind == PKI_EVENT_PUT)
            return pki_container_of(event, struct pki_put, event);
    }
    return NULL;
}

static inline struct pki_put *events_put(struct pki_iface *iface)
{
    struct pki_put *put = events_look(iface);

    if (put != NULL)
        pki_list_remove(&put->event.node);
    return put;
}

/* The oldest news of what has come, as a message: FIN with how much of a posted receive, RTS of what nobody has posted a receive for. */
static inline bool events_come(struct pki_iface *iface, struct pki_msg *msg)
{
    for (struct pki_list *node = iface->events.next; node != &iface->events; node = node->next) {
        struct pki_event *event = pki_container_of(node, struct pki_event, node);

        if (event->kind == PKI_EVENT_PUT)
            continue;
        pki_list_remove(node);
        if (event->kind == PKI_EVENT_RECEIVED) {
            const struct pki_recv *recv = pki_container_of(event, struct pki_recv, event);

            *msg = (struct pki_msg){ .kind = PKI_MSG_FIN,
                                     .flags = recv->flags,
                                     .index = recv->index,
                                     .sig = recv->sig,
                                     .op = recv->op,
                                     .offset = recv->have,
                                     .bytes = recv->bytes };
        } else {
            *msg = pki_container_of(event, struct pki_unexpected_put, event)->about;
            msg->kind = PKI_MSG_RTS;
        }
        return true;
    }
    return false;
}

/* The receive that `cts` speaks of, whose `offset` is an address here. */
static inline struct pki_recv events_recv(struct pki_ep *ep, const struct pki_msg *cts)
{
    return (struct pki_recv){ .ep = ep,
                              .addr = (char *)(uintptr_t)cts->offset, /* NOLINT: given as a number */
                              .bytes = cts->bytes,
                              .flags = cts->flags,
                              .index = cts->index,
                              .sig = cts->sig,
                              .op = cts->op,
                              .owner = ep };
}

#endif
