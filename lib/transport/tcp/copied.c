/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Within a machine a chunk's pages may be lent (splice.c), or it may be copied into the connection, as it is on a wire. Which takes less time is the machine's
 * affair: what a copy costs, and how near the cores are to one another; so both are tried now and then.
 *
 * A short transfer that went ahead of its grant, in one chunk, and is copied, is copied once more, into memory of this transport, in case the connection breaks:
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

/* A step of a collective that may go whole in the lane has its own two ways. */
static bool has_two_ways(const struct pki_tcp_ep *ep, const struct pki_put *put)
{
    bool in_lane = (put->about.flags & PKI_MSG_FLAG_COLL) != 0 && put->bytes <= PKI_TCP_EAGER_MAX;

    return ep->iface->threads.max == 0 && !in_lane;
}

static struct pki_tcp_ways *ways_of(struct pki_tcp_ep *ep, const struct pki_put *put)
{
    if (put->ahead)
        return &ep->ways[put->bytes <= PKI_TCP_KEEP_MAX ? 0 : 1];
    return &ep->ways[put->bytes <= PKI_TCP_AHEAD_MAX ? 2 : 3];
}

/* Of tries, of which the last one is `last`, and which took `ns` together. */
static void end_block(struct pki_tcp_ways *ways, uint64_t last, uint64_t ns)
{
    for (uint64_t i = 0; ways->bytes > 0 && i < PKI_TRIAL_BLOCK; i++)
        pki_trial_took(&ways->trial, last - i, UNIT, ns * UNIT / ways->bytes);
    pki_trial_decide(&ways->trial, last);
    ways->bytes = 0;
    ways->busy_ns = 0;
}

/* A block of tries is over, or another begins, by this put, which is a whole transfer and may end before the peer has it. The block took from its first put to
 * the first behind it, for so many bytes: puts of one burst are given at once, and wait later. */
static void begin_block(struct pki_tcp_ways *ways)
{
    uint64_t now = pki_now_ns();

    end_block(ways, ways->puts - 1, now - ways->began_ns);
    ways->began_ns = now;
}

static void count_in_block(struct pki_tcp_ways *ways, size_t bytes)
{
    bool is_tried = pki_trial_is_on(ways->puts);

    if (ways->puts % PKI_TRIAL_BLOCK == 0 && (is_tried || pki_trial_is_on(ways->puts - 1)))
        begin_block(ways);
    ways->bytes += is_tried ? bytes : 0;
}

/* Others end when the peer has them, and are given while those before them are under way, of whatever length: each took from the end of the one before, or from
 * when it was given. Of several that end at once the first has taken all of it: so blocks count. */
void pki_tcp_way_ended(struct pki_tcp_ep *ep, struct pki_tcp_move *move)
{
    struct pki_tcp_ways *ways = move->ways;
    uint64_t began = move->given_ns > ep->ended_ns ? move->given_ns : ep->ended_ns;

    ep->ended_ns = pki_now_ns();
    if (!pki_trial_is_on(move->number))
        return;
    ways->busy_ns += ep->ended_ns - began;
    ways->bytes += move->put->bytes;
    if (move->number % PKI_TRIAL_BLOCK == PKI_TRIAL_BLOCK - 1)
        end_block(ways, move->number, ways->busy_ns);
}

static void begin_try(struct pki_tcp_ways *ways, struct pki_tcp_move *move)
{
    move->ways = ways; /* all say when they end, those of any number that are tried began then */
    move->number = ways->puts;
    if (!pki_trial_is_on(ways->puts))
        return;
    if (!pki_trial_is_on(ways->puts - 1)) { /* what was late in the tries before */
        ways->bytes = 0;
        ways->busy_ns = 0;
    }
    move->given_ns = pki_now_ns();
}

bool pki_tcp_is_copied(struct pki_tcp_ep *ep, struct pki_tcp_move *move)
{
    const struct pki_put *put = move->put;
    struct pki_tcp_ways *ways = ways_of(ep, put);

    if (!ep->iface->one_machine || put->bytes < PKI_TCP_SPLICE_MIN)
        return true;
    if (!has_two_ways(ep, put))
        return false;
    if (put->ahead)
        count_in_block(ways, put->bytes);
    else
        begin_try(ways, move);
    return pki_trial_goes_second(ways->puts++, ways->trial.second);
}

static size_t place_bytes(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Where a copy will be in the ring, and returned: where it ends. 0: there is no room. */
static uint64_t ring_place(struct pki_tcp_keep *keep, size_t bytes)
{
    size_t behind;

    if (keep->ring == NULL)
        keep->ring = aligned_alloc(PAGE, PKI_TCP_KEEP_BYTES);
    if (keep->head == keep->end) /* again where the last one was: that is in a cache */
        keep->head = keep->end = keep->end / PKI_TCP_KEEP_BYTES * PKI_TCP_KEEP_BYTES;
    behind = PKI_TCP_KEEP_BYTES - keep->end % PKI_TCP_KEEP_BYTES; /* to the ring's end */
    if (behind >= bytes)
        behind = 0;
    if (keep->ring == NULL || keep->end + behind + bytes - keep->head > PKI_TCP_KEEP_BYTES)
        return 0;
    keep->end += behind + bytes;
    return keep->end;
}

/* By the first connection, which the peer has let in when it has acknowledged one. With a window of one chunk it would have to answer each. */
static bool may_keep(const struct pki_tcp_link *link)
{
    return link->index == 1 && link->ep->iface->threads.max == 0 && link->ep->params.window > 1 && !link->ep->keep.never && link->acked > 0;
}

/* What is answered is not worth a copy: the answer says that it has come. */
void pki_tcp_keep(struct pki_tcp_link *link, struct pki_tcp_slot *slot)
{
    if (!slot->copied || !may_keep(link))
        return;
    if (slot->place == PKI_TCP_PLACES && slot->bytes <= PKI_TCP_KEEP_MAX && !slot->move->put->answered)
        slot->kept_end = ring_place(&link->ep->keep, place_bytes(slot->bytes));
    slot->kept = slot->place < PKI_TCP_PLACES || slot->kept_end > 0;
}

void pki_tcp_keep_ends(struct pki_tcp_ep *ep, const struct pki_tcp_slot *slot)
{
    if (slot->kept_end > 0)
        ep->keep.head = slot->kept_end;
    if (slot->place < PKI_TCP_PLACES)
        ep->keep.places[slot->place].busy = false;
}

void pki_tcp_kept(struct pki_tcp_ep *ep, struct pki_tcp_slot *slot)
{
    if (slot->kept_end > 0) {
        char *copy = ep->keep.ring + (slot->kept_end - place_bytes(slot->bytes)) % PKI_TCP_KEEP_BYTES;

        memcpy(copy, slot->src, slot->bytes);
        slot->src = copy;
    }
    slot->move->acked += slot->bytes;
    slot->move = NULL;
    ep->links[1].outstanding -= slot->bytes;
    ep->keep.frames = ep->links[1].next;
}

void pki_tcp_keep_again(struct pki_tcp_slot *slot)
{
    struct pki_tcp_chunk chunk;

    if (!slot->kept || !pki_tcp_get_chunk(slot->head, &chunk))
        return;
    chunk.kept = false;
    pki_tcp_put_chunk(slot->head, &chunk);
}

/* The first that is free: it is in a cache. */
char *pki_tcp_place(struct pki_ep *base, size_t bytes)
{
    struct pki_tcp_ep *ep = pki_tcp_ep_of(base);
    struct pki_tcp_keep *keep = &ep->keep;
    unsigned i = 0;

    if (bytes > PKI_TCP_PLACE_MAX || bytes > ep->params.chunk_bytes || ep->links == NULL || !may_keep(&ep->links[1]))
        return NULL;
    while (i < PKI_TCP_PLACES && keep->places[i].busy)
        i++;
    if (i == PKI_TCP_PLACES)
        return NULL;
    if (keep->places[i].at == NULL)
        keep->places[i].at = aligned_alloc(PAGE, PKI_TCP_PLACE_MAX);
    return keep->places[i].at;
}

unsigned pki_tcp_place_of(const struct pki_tcp_ep *ep, const void *src)
{
    unsigned i = 0;

    while (i < PKI_TCP_PLACES && (src == NULL || src != ep->keep.places[i].at))
        i++;
    return i;
}

/* A connection that has been reset has nothing waiting either. */
static bool is_whole(const struct pki_tcp_link *link)
{
    struct pollfd p = { .fd = link->watch.fd, .events = POLLRDHUP };

    return poll(&p, 1, 0) == 0;
}

bool pki_tcp_kept_is_out(const struct pki_tcp_ep *ep)
{
    const struct pki_tcp_link *link = &ep->links[1];
    int waiting = 0;

    if (link->state == PKI_TCP_OVER || link->acked >= ep->keep.frames)
        return true;
    return !ep->keep.never && link->state == PKI_TCP_UP && link->next >= ep->keep.frames && ioctl(link->watch.fd, SIOCOUTQ, &waiting) == 0 && waiting == 0 &&
           is_whole(link);
}
