/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Within a machine a chunk's pages may be lent (splice.c), or it may be copied into the connection, as it is on a wire. Which takes less time is the machine's
 * affair: what a copy costs, and how near the cores are to one another; so both are tried now and then.
 *
 * A short transfer that went before its CTS, in one chunk, and is copied, is copied once more, into memory of this transport, in case the connection breaks:
 * then its put ends at once, where one that lends has to wait to hear that its pages have been read, and what came is said along with the next chunk the other
 * way. Only while the first connection for chunks stands: a chunk that goes once more waits for its answer, since who leaves has to know that it came.
 */
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "transport/tcp/tcp.h"
#include "util/clock.h"

#define PAGE ((size_t)4096) /* copies from one to the other take half the time where both begin with one */
#define UNIT ((size_t)1024) /* times are compared for so many bytes, whatever the puts' lengths */

/* A step of a collective that may go whole in the control channel has its own two ways. */
static bool has_tuner(const struct pki_tcp_ep *ep, const struct pki_put *put)
{
    bool by_ctrl = (put->about.flags & PKI_MSG_FLAG_COLL) != 0 && put->bytes <= PKI_TCP_EAGER_MAX;

    return ep->iface->threads.max == 0 && !by_ctrl;
}

static struct pki_tcp_tuner *tuner_of(struct pki_tcp_ep *ep, const struct pki_put *put)
{
    if (put->eager_put)
        return &ep->tuner[put->bytes <= PKI_TCP_RETRANSMIT_MAX ? 0 : 1];
    return &ep->tuner[put->bytes <= PKI_TCP_EAGER_PUT_MAX ? 2 : 3];
}

/* Of tries, of which the last one is `last`, and which took `ns` together. */
static void end_block(struct pki_tcp_tuner *tuner, uint64_t last, uint64_t ns)
{
    for (uint64_t i = 0; tuner->bytes > 0 && i < PKI_AUTOTUNER_BLOCK; i++)
        pki_autotuner_took(&tuner->autotuner, last - i, UNIT, ns * UNIT / tuner->bytes);
    pki_autotuner_decide(&tuner->autotuner, last);
    tuner->bytes = 0;
    tuner->busy_ns = 0;
}

/* A block of tries is over, or another begins, by this put, which is a whole transfer and may end before the peer has it. The block took from its first put to
 * the first behind it, for so many bytes: puts of one burst are given at once, and wait later. */
static void begin_block(struct pki_tcp_tuner *tuner)
{
    uint64_t now = pki_now_ns();

    end_block(tuner, tuner->puts - 1, now - tuner->began_ns);
    tuner->began_ns = now;
}

static void count_in_block(struct pki_tcp_tuner *tuner, size_t bytes)
{
    bool is_tried = pki_autotuner_is_on(tuner->puts);

    if (tuner->puts % PKI_AUTOTUNER_BLOCK == 0 && (is_tried || pki_autotuner_is_on(tuner->puts - 1)))
        begin_block(tuner);
    tuner->bytes += is_tried ? bytes : 0;
}

/* Others end when the peer has them, and are given while those before them are under way, of whatever length: each took from the end of the one before, or from
 * when it was given. Of several that end at once the first has taken all of it: so blocks count. */
void pki_tcp_tuner_ended(struct pki_tcp_ep *ep, struct pki_tcp_move *move)
{
    struct pki_tcp_tuner *tuner = move->tuner;
    uint64_t began = move->given_ns > ep->ended_ns ? move->given_ns : ep->ended_ns;

    ep->ended_ns = pki_now_ns();
    if (!pki_autotuner_is_on(move->number))
        return;
    tuner->busy_ns += ep->ended_ns - began;
    tuner->bytes += move->put->bytes;
    if (move->number % PKI_AUTOTUNER_BLOCK == PKI_AUTOTUNER_BLOCK - 1)
        end_block(tuner, move->number, tuner->busy_ns);
}

static void begin_try(struct pki_tcp_tuner *tuner, struct pki_tcp_move *move)
{
    move->tuner = tuner; /* all say when they end, those of any number that are tried began then */
    move->number = tuner->puts;
    if (!pki_autotuner_is_on(tuner->puts))
        return;
    if (!pki_autotuner_is_on(tuner->puts - 1)) { /* what was late in the tries before */
        tuner->bytes = 0;
        tuner->busy_ns = 0;
    }
    move->given_ns = pki_now_ns();
}

bool pki_tcp_is_copied(struct pki_tcp_ep *ep, struct pki_tcp_move *move)
{
    const struct pki_put *put = move->put;
    struct pki_tcp_tuner *tuner = tuner_of(ep, put);

    if (!ep->iface->one_machine || put->bytes < PKI_TCP_SPLICE_MIN)
        return true;
    if (!has_tuner(ep, put))
        return false;
    if (put->eager_put)
        count_in_block(tuner, put->bytes);
    else
        begin_try(tuner, move);
    return pki_autotuner_goes_second(tuner->puts++, tuner->autotuner.second);
}

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

/* By the first connection, which the peer has let in when it has acknowledged one. With a window of one chunk it would have to answer each. */
static bool may_copy(const struct pki_tcp_link *link)
{
    return link->index == 1 && link->ep->iface->threads.max == 0 && link->ep->params.window > 1 && !link->ep->retransmit.never && link->acked > 0;
}

/* What is answered is not worth a copy: the answer says that it has come. */
void pki_tcp_retransmit(struct pki_tcp_link *link, struct pki_tcp_slot *slot)
{
    if (!slot->copied || !may_copy(link))
        return;
    if (slot->place == PKI_TCP_PLACES && slot->bytes <= PKI_TCP_RETRANSMIT_MAX && !slot->move->put->answered)
        slot->copy_end = ring_place(&link->ep->retransmit, place_bytes(slot->bytes));
    slot->has_copy = slot->place < PKI_TCP_PLACES || slot->copy_end > 0;
}

void pki_tcp_retransmit_ends(struct pki_tcp_ep *ep, const struct pki_tcp_slot *slot)
{
    if (slot->copy_end > 0)
        ep->retransmit.head = slot->copy_end;
    if (slot->place < PKI_TCP_PLACES)
        ep->retransmit.places[slot->place].busy = false;
}

void pki_tcp_copy_released(struct pki_tcp_ep *ep, struct pki_tcp_slot *slot)
{
    if (slot->copy_end > 0) {
        char *copy = ep->retransmit.ring + (slot->copy_end - place_bytes(slot->bytes)) % PKI_TCP_RETRANSMIT_BYTES;

        memcpy(copy, slot->src, slot->bytes);
        slot->src = copy;
    }
    slot->move->acked += slot->bytes;
    slot->move = NULL;
    ep->links[1].outstanding -= slot->bytes;
    ep->retransmit.frames = ep->links[1].next;
}

void pki_tcp_retransmit_again(struct pki_tcp_slot *slot)
{
    struct pki_tcp_chunk chunk;

    if (!slot->has_copy || !pki_tcp_get_chunk(slot->head, &chunk))
        return;
    chunk.has_copy = false;
    pki_tcp_put_chunk(slot->head, &chunk);
}

/* The first that is free: it is in a cache. */
char *pki_tcp_place(struct pki_ep *base, size_t bytes)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_retransmit *retransmit = &ep->retransmit;
    unsigned i = 0;

    if (bytes > PKI_TCP_PLACE_MAX || bytes > ep->params.chunk_bytes || ep->links == NULL || !may_copy(&ep->links[1]))
        return NULL;
    while (i < PKI_TCP_PLACES && retransmit->places[i].busy)
        i++;
    if (i == PKI_TCP_PLACES)
        return NULL;
    if (retransmit->places[i].at == NULL)
        retransmit->places[i].at = aligned_alloc(PAGE, PKI_TCP_PLACE_MAX);
    return retransmit->places[i].at;
}

unsigned pki_tcp_place_of(const struct pki_tcp_ep *ep, const void *src)
{
    unsigned i = 0;

    while (i < PKI_TCP_PLACES && (src == NULL || src != ep->retransmit.places[i].at))
        i++;
    return i;
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
    return !ep->retransmit.never && link->state == PKI_TCP_UP && link->next >= ep->retransmit.frames && ioctl(link->source.fd, SIOCOUTQ, &waiting) == 0 && waiting == 0 &&
           is_whole(link);
}
