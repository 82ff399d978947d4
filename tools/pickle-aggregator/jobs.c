/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: the workers that sum together, and the memory that they have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server.h"
#include "util/netif.h"

static struct job *find(struct server *s, const unsigned char *id)
{
    for (struct pki_list *n = s->jobs.next; n != &s->jobs; n = n->next) {
        struct job *j = pki_container_of(n, struct job, node);

        if (memcmp(j->id, id, sizeof j->id) == 0)
            return j;
    }
    return NULL;
}

/* Of each thread, one at least. All packets that the workers of one job have on their way find room in the receive buffer: what
 * does not is lost, and sent again 10 ms later at most. Jobs that are at work at the same time may lose some so: seldom do all
 * packets of all of them wait. */
static uint32_t window_for(const struct server *s, const struct pki_switchml_hello *h)
{
    size_t room = s->datagrams.buffer_bytes / (h->workers * pki_datagrams_memory(h->elements));
    uint32_t window = h->window < s->window_most ? h->window : s->window_most;

    if (room < window)
        window = (uint32_t)room;
    window /= h->threads;
    while (pki_switchml_slots(window, h->threads) > PKI_SWITCHML_SLOTS_MAX)
        window--;
    return window > 0 ? window : 1;
}

static struct job *make(struct server *s, const struct pki_switchml_hello *h, const char **why)
{
    struct job *j = s->njobs < JOBS_MAX ? calloc(1, sizeof *j) : NULL;

    *why = "it has no place for one more job";
    if (j == NULL)
        return NULL;
    memcpy(j->id, h->id, sizeof j->id);
    j->workers = h->workers;
    j->elements = h->elements;
    j->threads = h->threads;
    j->window = window_for(s, h);
    if (pki_switchml_aggregator_init(&j->sums, j->workers, pki_switchml_slots(j->window, j->threads), j->elements) != PK_OK) {
        *why = "it has no memory for one more job";
        free(j);
        return NULL;
    }
    j->number = ++s->jobs_begun;
    s->njobs++;
    pki_list_push(&s->jobs, &j->node);
    return j;
}

static void unmake(struct server *s, struct job *j)
{
    pki_list_remove(&j->node);
    s->njobs--;
    pki_switchml_aggregator_close(&j->sums);
    free(j);
}

/* NULL: it fits. */
static const char *misfit(const struct job *j, const struct pki_switchml_hello *h)
{
    if (h->workers != j->workers)
        return "the others of its job say another number of ranks";
    if (h->elements != j->elements)
        return "the others of its job have packets of another length (packet_numel)";
    if (h->threads != j->threads)
        return "the others of its job have another number of threads (num_worker_threads)";
    if (h->window < j->window * j->threads)
        return "the others of its job have more packets on their way (max_outstanding_packets)";
    if ((j->came >> h->rank & 1) != 0)
        return "another one has come with its rank";
    return NULL;
}

static void list_receivers(struct job *j, uint32_t thread)
{
    struct pki_receivers *all = &j->all[thread];

    all->n = 0;
    for (uint32_t w = 0; w < j->workers; w++) {
        struct sender *sender = &j->worker[w].senders[thread];

        sender->alone = (struct pki_receivers){ .n = j->worker[w].present, .address = { &sender->address } };
        if (j->worker[w].present)
            all->address[all->n++] = &sender->address;
    }
}

/* Where packets of the worker's threads come from. False: packets of another one do. */
static bool find_places(struct server *s, const struct visitor *v, const struct pki_switchml_hello *h,
                        struct sockaddr_storage addresses[PKI_SWITCHML_THREADS_MAX])
{
    for (uint32_t t = 0; t < h->threads; t++) {
        addresses[t] = v->peer;
        pki_netif_set_port(&addresses[t], (uint16_t)(h->port + t));
        if (server_place(s, &addresses[t])->job != NULL)
            return false;
    }
    return true;
}

static const char *join(struct server *s, struct visitor *v, const struct pki_switchml_hello *h, struct job **out)
{
    struct sockaddr_storage addresses[PKI_SWITCHML_THREADS_MAX];
    struct job *j = find(s, h->id);
    const char *why = NULL;

    if (!find_places(s, v, h, addresses))
        return "packets of another rank come from its address";
    if (j != NULL)
        why = misfit(j, h);
    else
        j = make(s, h, &why);
    if (j == NULL || (why != NULL && j->came != 0))
        return why;
    j->worker[h->rank].present = true;
    j->came |= 1u << h->rank;
    j->here++;
    for (uint32_t t = 0; t < j->threads; t++) {
        j->worker[h->rank].senders[t].address = addresses[t];
        list_receivers(j, t);
        *server_place(s, &addresses[t]) = (struct place){ .job = j, .rank = h->rank, .thread = t };
    }
    server_forget_last(s);
    *out = j;
    return NULL;
}

bool job_join(struct server *s, struct visitor *v, const struct pki_switchml_hello *h, struct pki_switchml_answer *a)
{
    const char *why = join(s, v, h, &v->job);

    *a = (struct pki_switchml_answer){ .accepted = why == NULL, .port = s->port };
    if (why != NULL) {
        snprintf(a->text, sizeof a->text, "%s", why);
        server_say(s, "%s: rank %u of %u is refused: %s", v->name, h->rank, h->workers, why);
        return false;
    }
    v->rank = h->rank;
    a->window = v->job->window * v->job->threads;
    server_say(s, "job %u: rank %u of %u has come from %s, %u values a packet, %u packets, %u thread%s", v->job->number, h->rank,
               h->workers, v->name, h->elements, a->window, v->job->threads, v->job->threads == 1 ? "" : "s");
    return true;
}

/* Behind it in the table may be places that were put there because this one was taken. */
static void free_place(struct server *s, struct place *place)
{
    struct place moved;

    place->job = NULL;
    for (uint32_t at = (uint32_t)(place - s->places + 1) % PLACES_MAX; s->places[at].job != NULL; at = (at + 1) % PLACES_MAX) {
        moved = s->places[at];
        s->places[at].job = NULL;
        *server_place(s, &moved.job->worker[moved.rank].senders[moved.thread].address) = moved;
    }
    server_forget_last(s);
}

void job_leave(struct server *s, struct visitor *v)
{
    struct job *j = v->job;

    if (j == NULL)
        return;
    j->worker[v->rank].present = false;
    for (uint32_t t = 0; t < j->threads; t++) {
        free_place(s, server_place(s, &j->worker[v->rank].senders[t].address));
        list_receivers(j, t);
    }
    v->job = NULL;
    if (--j->here > 0)
        return;
    server_say(s, "job %u: all have left", j->number);
    unmake(s, j);
}
