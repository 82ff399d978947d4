/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of workers: whose they are, what they change, who gets the sums. */
#include <errno.h>
#include <string.h>

#include "server.h"
#include "switchml/sums.h"
#include "util/netif.h"

static uint32_t hash(const struct sockaddr_storage *address)
{
    uint32_t words[4] = { 0 }, h = pki_netif_port(address);

    if (address->ss_family == AF_INET)
        words[0] = ((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr;
    else
        memcpy(words, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, sizeof words);
    for (int i = 0; i < 4; i++)
        h = (h ^ words[i]) * 2654435761u;
    return h ^ h >> 15;
}

static const struct sender *sender_of(const struct place *p)
{
    return &p->job->worker[p->rank].senders[p->thread];
}

struct place *server_place(struct server *s, const struct sockaddr_storage *address)
{
    uint32_t at = hash(address) % PLACES_MAX;

    while (s->places[at].job != NULL && !pki_netif_same(&sender_of(&s->places[at])->address, address))
        at = (at + 1) % PLACES_MAX;
    return &s->places[at];
}

void server_forget_last(struct server *s)
{
    s->last.job = NULL;
}

static const struct place *find(struct server *s, const struct sockaddr_storage *from)
{
    if (s->last.job != NULL && pki_netif_same(&s->last_from, from))
        return &s->last;
    s->last = *server_place(s, from);
    s->last_from = *from;
    return s->last.job != NULL ? &s->last : NULL;
}

static void reply(struct server *s, const struct job *j, const struct pki_receivers *to, const struct pki_switchml_packet *packet,
                  const uint32_t *sums)
{
    unsigned char *bytes;

    if (to->n == 0)
        return;
    bytes = pki_datagrams_add(&s->datagrams, to, pki_switchml_packet_bytes(j->elements));
    pki_switchml_pack(packet, j->elements, bytes);
    pki_switchml_swap(bytes + PKI_SWITCHML_HEADER_BYTES, sums, j->elements);
    s->counts.replies += to->n;
}

/* To the threads that have the sender's number. Written once for all, unless a test lets each of them lose packets of its own. */
static void reply_to_all(struct server *s, const struct job *j, uint32_t thread, const struct pki_switchml_packet *packet,
                         const uint32_t *sums)
{
    if (s->datagrams.loss == 0)
        reply(s, j, &j->all[thread], packet, sums);
    for (uint32_t w = 0; w < j->workers && s->datagrams.loss > 0; w++)
        reply(s, j, &j->worker[w].senders[thread].alone, packet, sums);
}

static void complain(struct server *s, struct job *j, uint32_t rank, const struct pki_switchml_packet *p)
{
    if (j->complained)
        return;
    j->complained = true;
    server_say(s,
               "job %u: rank %u sends packet %u of its allreduce %u into slot %u, where the others have another one: the ranks "
               "do not call "
               "the same operations",
               j->number, rank, p->id, p->job, p->index & ~PKI_SWITCHML_SET);
}

/* A thread has slots of its own. */
static enum pki_switchml_verdict aggregate(const struct place *place, struct pki_switchml_packet *packet, const void *values,
                                           const uint32_t **sums)
{
    struct job *j = place->job;

    if ((packet->index & ~PKI_SWITCHML_SET) / pki_switchml_base(j->window, 1) != place->thread)
        return PKI_SWITCHML_OUTSIDE;
    return pki_switchml_aggregate(&j->sums, place->rank, packet, values, sums);
}

static void take(void *arg, const unsigned char *data, size_t bytes, const struct sockaddr_storage *from)
{
    struct server *s = arg;
    const struct place *place = find(s, from);
    enum pki_switchml_verdict verdict;
    struct pki_switchml_packet packet;
    const uint32_t *sums;
    struct job *j;

    if (place == NULL) {
        s->counts.strangers++;
        return;
    }
    j = place->job;
    if (!pki_switchml_unpack(data, bytes, j->elements, &packet)) {
        s->counts.malformed++;
        return;
    }
    verdict = aggregate(place, &packet, data + PKI_SWITCHML_HEADER_BYTES, &sums);
    s->counts.packets++;
    s->counts.verdicts[verdict]++;
    if (verdict == PKI_SWITCHML_DISAGREES)
        complain(s, j, place->rank, &packet);
    if (verdict == PKI_SWITCHML_TO_ALL)
        reply_to_all(s, j, place->thread, &packet, sums);
    else if (verdict == PKI_SWITCHML_TO_ONE)
        reply(s, j, &sender_of(place)->alone, &packet, sums);
}

int server_packets(struct server *s)
{
    int n = pki_datagrams_receive(&s->datagrams, take, s);

    (void)pki_datagrams_flush(&s->datagrams);
    return n < 0 && pki_datagrams_is_passing(errno) ? 0 : n;
}
