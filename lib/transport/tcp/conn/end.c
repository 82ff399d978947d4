/* SPDX-License-Identifier: Apache-2.0 */
/* The end of all connections with a peer: it is lost, or it leaves in good order. */
#include <stdarg.h>
#include <stdio.h>

#include "transport/tcp/tcp.h"

void pki_tcp_links_over(struct pki_tcp_ep *ep, uint32_t first)
{
    for (uint32_t i = first; i < ep->nlinks; i++) {
        struct pki_tcp_link *link = &ep->links[i];

        pki_list_remove(&link->ready);
        link->user->broken(link);
        pki_tcp_source_remove(&link->source);
        link->state = PKI_TCP_OVER;
    }
    pki_tcp_look_connected(ep);
}

void pki_tcp_lost(struct pki_tcp_ep *ep, int error, const char *fmt, ...)
{
    struct pki_where where = pki_tcp_where(ep);
    char text[256];
    va_list args;

    if (ep->base.state == PKI_EP_DEAD)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (ep->iface->shutdown_ns > 0 || ep->base.farewell.theirs) { /* this rank leaves anyway, or the peer has */
        pki_log(PKI_LOG_INFO, &where, "over tcp: %s", text);
        pki_tcp_left(ep);
        return;
    }
    (void)pki_ep_fail(&ep->base, PK_ERR_PEER, error, "over tcp: %s", text);
    pki_tcp_links_over(ep, 0);
    pki_ep_enter(&ep->base, PKI_EP_DEAD);
    for (uint32_t i = 0; i < ep->nlinks; i++)
        ep->links[i].user->lost(&ep->links[i]);
}

/* Puts under way stay where they are: the engine knows that the peer is gone, and names what waited for it. */
void pki_tcp_left(struct pki_tcp_ep *ep)
{
    pki_tcp_is_shutting_down(ep);
    pki_tcp_links_over(ep, 0);
    pki_ep_enter(&ep->base, PKI_EP_LEFT);
}

/* Its last acknowledgements may be behind its shutdown message. */
void pki_tcp_is_shutting_down(struct pki_tcp_ep *ep)
{
    ep->left = true;
    pki_ep_enter(&ep->base, PKI_EP_UP);
    pki_tcp_links_over(ep, 1);
}
