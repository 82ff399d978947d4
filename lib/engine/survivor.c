/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part in agreements, and the messages that it sends: what cannot be sent now is kept, and sent in order. */
#include "engine/survivor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool allocate(struct pki_survivor *s, int size)
{
    const size_t words = pki_agree_words(size);

    s->agree.dead = calloc(3 * words, sizeof *s->agree.dead);
    s->fds = calloc((size_t)size + PKI_IFACES_MAX, sizeof *s->fds);
    s->heard_ns = calloc((size_t)size, sizeof *s->heard_ns);
    if (s->agree.dead == NULL || s->fds == NULL || s->heard_ns == NULL)
        return false;
    s->agree.view = s->agree.dead + words;
    s->set = s->agree.view + words;
    return true;
}

static void release(struct pki_survivor *s)
{
    struct pki_list *lists[2] = { &s->later, &s->unsent }, *node;

    for (int i = 0; i < 2; i++)
        while ((node = pki_list_pop(lists[i])) != NULL)
            free(pki_container_of(node, struct pki_kept, node));
    free(s->agree.dead);
    free(s->fds);
    free(s->heard_ns);
    free(s);
}

bool pki_survive_is_dead(const struct pki_engine *e, int rank)
{
    return e->survivor != NULL && pki_agree_has(e->survivor->agree.dead, rank);
}

void pki_survive_close(struct pki_engine *e)
{
    if (e->survivor != NULL)
        release(e->survivor);
    e->survivor = NULL;
}

bool pki_survivor_keep(struct pki_list *list, int rank, const unsigned char *bytes, size_t n)
{
    struct pki_kept *kept = malloc(sizeof *kept + n);

    if (kept == NULL)
        return false;
    kept->rank = rank;
    kept->bytes = n;
    memcpy(kept->data, bytes, n);
    pki_list_push(list, &kept->node);
    return true;
}

static bool is_unsent_to(const struct pki_list *unsent, int rank)
{
    for (const struct pki_list *n = unsent->next; n != unsent; n = n->next)
        if (pki_container_of(n, struct pki_kept, node)->rank == rank)
            return true;
    return false;
}

/* True: it has gone, or nobody is there. Whatever keeps it from going may pass: no room, no memory in the system. */
static bool try_to_send(struct pki_engine *e, int to, const unsigned char *bytes, size_t n)
{
    struct pki_survivor *s = e->survivor;
    const struct pki_where where = { .rank = e->config.rank, .peer = to, .op = "agree" };
    const pk_result_t result = pki_side_send_agree(&e->peers[to], bytes, n);
    const int refusal = errno;
    char reason[64];

    if (result == PK_OK || result == PK_ERR_PEER)
        return true;
    if (result == PK_ERR_SYSTEM) {
        if (s->refusal != refusal)
            pki_log(PKI_LOG_WARN, &where, "a message could not be sent; trying again: sendmsg: %s",
                    strerror_r(refusal, reason, sizeof reason));
        s->refused_by = to;
        s->refusal = refusal;
    }
    return false;
}

/* The machine's. Without memory for it, it is as if this rank had died here: the others go on without it. */
static void send_message(void *arg, int to, const struct pki_agree_msg *msg)
{
    struct pki_engine *e = arg;
    struct pki_survivor *s = e->survivor;
    unsigned char bytes[PKI_AGREE_WIRE_MAX];
    const size_t n = pki_agree_encode(msg, e->config.size, bytes);

    if (!is_unsent_to(&s->unsent, to) && try_to_send(e, to, bytes, n))
        return;
    if (!pki_survivor_keep(&s->unsent, to, bytes, n))
        s->ended = PK_ERR_MEMORY;
}

/* In order, of each rank. */
void pki_survivor_send_unsent(struct pki_engine *e)
{
    struct pki_survivor *s = e->survivor;
    struct pki_list left, *node;

    pki_list_init(&left);
    while ((node = pki_list_pop(&s->unsent)) != NULL) {
        struct pki_kept *kept = pki_container_of(node, struct pki_kept, node);

        if (is_unsent_to(&left, kept->rank) || !try_to_send(e, kept->rank, kept->data, kept->bytes))
            pki_list_push(&left, node);
        else
            free(kept);
    }
    while ((node = pki_list_pop(&left)) != NULL)
        pki_list_push(&s->unsent, node);
}

pk_result_t pki_survivor_open(struct pki_engine *e)
{
    struct pki_where where = pki_engine_where(e, -1, NULL);
    struct pki_survivor *s;

    if (e->survivor != NULL)
        return PK_OK;
    if (e->config.size > PKI_AGREE_RANKS_MAX)
        return pki_fail(PK_ERR_UNSUPPORTED, &where, "ranks can agree in communicators of up to %d ranks", PKI_AGREE_RANKS_MAX);
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return pki_fail(PK_ERR_MEMORY, &where, "no memory for an agreement of %d ranks", e->config.size);
    pki_list_init(&s->later);
    pki_list_init(&s->unsent);
    if (!allocate(s, e->config.size)) {
        release(s);
        return pki_fail(PK_ERR_MEMORY, &where, "no memory for an agreement of %d ranks", e->config.size);
    }
    s->left_out_by = -1;
    s->agree.rank = e->config.rank;
    s->agree.size = e->config.size;
    s->agree.send = send_message;
    s->agree.arg = e;
    for (int i = 0; i < e->config.size; i++)
        if (e->peers[i].gone && e->peers[i].ctrl == NULL) /* a hole */
            pki_agree_add(s->agree.dead, i);
    e->survivor = s;
    return PK_OK;
}
