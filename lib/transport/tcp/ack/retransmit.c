/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A short transfer that goes before its CTS, in one chunk, is copied into memory of this transport once it has been
 * written, in case the connection breaks: then its put ends at once, where it would have to wait for one trip there and one
 * back. An allreduce of 128 KiB between two hosts takes one trip so, and two without (docs/design/0045). Only while the first
 * connection for chunks stands: a chunk that goes once more waits for its answer, since who leaves has to know that it came.
 */
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "transport/tcp/tcp.h"

#define PAGE ((size_t)4096) /* copies from one to the other take half the time where both begin with one */

static size_t place_bytes(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Where a copy will be in the ring, and returned: where it ends. 0: there is no room. */
static uint64_t ring_place(struct pki_tcp_retransmit *retransmit, size_t bytes)
{
    size_t behind;

    if (retransmit->ring == NULL)
        retransmit->ring = aligned_alloc(PAGE, PKI_TCP_RETRANSMIT_BYTES);
    if (retransmit->head == retransmit->end) /* again where the last one was: that is in a cache */
        retransmit->head = retransmit->end = retransmit->end / PKI_TCP_RETRANSMIT_BYTES * PKI_TCP_RETRANSMIT_BYTES;
    behind = PKI_TCP_RETRANSMIT_BYTES - retransmit->end % PKI_TCP_RETRANSMIT_BYTES; /* to the ring's end */
    if (behind >= bytes)
        behind = 0;
    if (retransmit->ring == NULL || retransmit->end + behind + bytes - retransmit->head > PKI_TCP_RETRANSMIT_BYTES)
        return 0;
    retransmit->end += behind + bytes;
    return retransmit->end;
}

/* By the first connection, which the peer has let in when it has acknowledged one. With a window of one chunk each has to be
 * answered first. */
static bool may_copy(const struct pki_tcp_link *link)
{
    const struct pki_tcp_ep *ep = link->ep;

    return link->index == 1 && ep->iface->threads.max == 0 && ep->params.window > 1 && !ep->retransmit.never && link->acked > 0;
}

void pki_tcp_copy_keep(struct pki_tcp_link *link, struct pki_tcp_slot *slot)
{
    if (slot->bytes > PKI_TCP_RETRANSMIT_MAX || !may_copy(link))
        return;
    slot->copy_end = ring_place(&link->ep->retransmit, place_bytes(slot->bytes));
}

void pki_tcp_copy_ends(struct pki_tcp_ep *ep, const struct pki_tcp_slot *slot)
{
    if (slot->copy_end > 0)
        ep->retransmit.head = slot->copy_end;
}

void pki_tcp_copy_released(struct pki_tcp_ep *ep, struct pki_tcp_slot *slot)
{
    char *copy = ep->retransmit.ring + (slot->copy_end - place_bytes(slot->bytes)) % PKI_TCP_RETRANSMIT_BYTES;

    memcpy(copy, slot->src, slot->bytes);
    slot->src = copy;
    slot->move->acked += slot->bytes;
    slot->move = NULL;
    ep->links[1].out->outstanding -= slot->bytes;
    ep->retransmit.frames = ep->links[1].out->next;
}

/* A connection that has been reset has nothing waiting either. */
static bool is_whole(const struct pki_tcp_link *link)
{
    struct pollfd p = { .fd = link->source.fd, .events = POLLRDHUP };

    return poll(&p, 1, 0) == 0;
}

bool pki_tcp_copies_are_out(const struct pki_tcp_ep *ep)
{
    const struct pki_tcp_link *link = &ep->links[1];
    int waiting = 0;

    if (link->state == PKI_TCP_OVER || link->acked >= ep->retransmit.frames)
        return true;
    return !ep->retransmit.never && link->state == PKI_TCP_UP && link->out->next >= ep->retransmit.frames &&
           ioctl(link->source.fd, SIOCOUTQ, &waiting) == 0 && waiting == 0 && is_whole(link);
}
