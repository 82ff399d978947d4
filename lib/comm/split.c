/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators out of a communicator. Every rank listens, and one allgather in the parent tells all of them color, key and
 * address of all: from that alone each knows its group, its place in it, and where the group's rank 0 is. The secret of a group
 * is made of the parent's, on each rank alike, and is never sent.
 */
#include "comm/bootstrap/internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/split.h"
#include "util/auth.h"
#include "util/bytes.h"
#include "util/clock.h"
#include "util/netif.h"

#define LABEL_BYTES 32

/* Those who make the groups' keys know the parent's; `number` and color tell the groups apart. */
pk_result_t pki_split_secret(const struct pk_comm *parent, const char *label, uint64_t number, int32_t color,
                             struct pki_secret *secret)
{
    unsigned char text[LABEL_BYTES + sizeof number + sizeof color], mac[PKI_HASH_BYTES];
    const size_t bytes = strlen(label) + 1;
    pk_result_t result;

    memcpy(text, label, bytes);
    pki_put_u64(text + bytes, number);
    pki_put_u32(text + bytes + sizeof number, (uint32_t)color);
    result = pki_auth_mac(parent->offspring.key, sizeof parent->offspring.key, text, bytes + sizeof number + sizeof color, mac);
    if (result == PK_OK) {
        memcpy(secret->key, mac, sizeof secret->key);
        memcpy(secret->job, mac + sizeof secret->key, sizeof secret->job);
    }
    pki_auth_wipe(mac, sizeof mac);
    return result;
}

pk_result_t pki_split_listen(const struct pk_comm *parent, struct pki_id *made, pk_unique_id_t *id)
{
    const struct sockaddr_storage *met = &parent->offspring.address;
    const bool loopback = pki_netif_is_loopback(met), here = loopback && !parent->net.outside;
    pk_result_t result = pki_id_addresses(here, here || !loopback ? met : NULL, made);

    return result == PK_OK ? pki_listener_make(made, id) : result;
}

static pk_result_t make_secret(const struct pki_split *s, struct pki_secret *secret)
{
    return pki_split_secret(s->parent, "pickle group", s->number, s->mine.color, secret);
}

static pk_result_t listen_here(struct pki_split *s)
{
    struct pki_id made = { .listened = true };
    pk_result_t result = make_secret(s, &made.secret);

    if (result == PK_OK)
        result = pki_split_listen(s->parent, &made, &s->id);
    s->listens = result == PK_OK;
    pki_auth_wipe(&made.secret, sizeof made.secret);
    if (result == PK_OK)
        pki_wire_put_id(&s->mine.where, &made);
    return result;
}

static void stop_listening(struct pki_split *s)
{
    if (s->listens)
        (void)pki_listener_drop(&s->id);
    s->listens = false;
}

static void release(struct pki_split *s)
{
    stop_listening(s);
    pki_auth_wipe(&s->id, sizeof s->id);
    free(s->all);
    free(s);
}

/* One message to each rank and one from each: collectives do not know holes. */
static pk_result_t start_messages(struct pki_split *s)
{
    const struct pk_comm *parent = s->parent;
    struct pki_request *requests = calloc(2 * (size_t)parent->size, sizeof *requests);
    pk_result_t result;
    int n = 0;

    if (requests == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for messages to %d ranks", parent->size);
    for (int r = 0; r < parent->size; r++) {
        struct pki_request either = { .peer = r, .count = sizeof s->mine, .dtype = PK_UINT8, .stream = PK_BLOCKING };

        s->all[r] = s->mine;
        if (s->mine.kind == PKI_SPLIT_GROUPS && r != parent->rank)
            s->all[r].color = -1; /* a hole is in no group */
        if (pki_is_hole(parent, r) || r == parent->rank)
            continue;
        requests[n] = requests[n + 1] = either;
        requests[n].what = PKI_DO_SEND;
        requests[n].in = &s->mine;
        requests[n++].in_count = either.count;
        requests[n].what = PKI_DO_RECV;
        requests[n].out = &s->all[r];
        requests[n++].out_count = either.count;
    }
    result = pki_engine_start_all(parent->engine, requests, n, pki_engine_new_group(), &s->started, NULL);
    free(requests);
    return result;
}

pk_result_t pki_split_start(struct pki_split *s)
{
    struct pk_comm *parent = s->parent;
    const size_t bytes = sizeof s->mine, total = bytes * (size_t)parent->size;
    struct pki_request request = { .what = PKI_DO_COLL,
                                   .in = &s->mine,
                                   .out = s->all,
                                   .in_count = bytes,
                                   .out_count = total,
                                   .count = bytes,
                                   .layout = { .in_total = bytes, .out_total = total },
                                   .dtype = PK_UINT8,
                                   .stream = PK_BLOCKING };
    struct pki_choice choice;
    pk_result_t result;

    if (pki_has_holes(parent))
        return start_messages(s);
    result = pki_comm_choose(parent, PKI_COLL_ALLGATHER, bytes, PK_UINT8, PK_SUM, PKI_MEM_HOST, &choice);
    if (result != PK_OK)
        return result;
    request.algorithm = choice.algorithm;
    return pki_engine_start_all(parent->engine, &request, 1, pki_engine_new_group(), &s->started, NULL);
}

pk_result_t pki_split_new(struct pk_comm *parent, enum pki_split_kind kind, struct pki_split **split)
{
    struct pki_split *s = calloc(1, sizeof *s);

    if (s != NULL)
        s->all = calloc((size_t)parent->size, sizeof *s->all);
    if (s == NULL || s->all == NULL) {
        free(s);
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to split %d ranks", parent->size);
    }
    s->parent = parent;
    s->number = parent->offspring.splits++;
    s->mine.kind = (int32_t)kind;
    pki_list_init(&s->started);
    *split = s;
    return PK_OK;
}

pk_result_t pki_split_begin(struct pk_comm *parent, int color, int key, struct pki_split **split)
{
    struct pki_split *s;
    pk_result_t result = pki_split_new(parent, PKI_SPLIT_GROUPS, &s);

    if (result != PK_OK)
        return result;
    s->mine.color = color;
    s->mine.key = key;
    if (color >= 0)
        result = listen_here(s);
    /* A rank that cannot listen still takes part, or the other ranks would wait for it: it only cannot be rank 0. */
    if (result == PK_OK || result == PK_ERR_SYSTEM)
        result = pki_split_start(s);
    if (result != PK_OK) {
        release(s);
        return result;
    }
    *split = s;
    return PK_OK;
}

/* All have told. */
static pk_result_t hear(struct pki_split *s)
{
    const struct pki_where where = { .rank = s->parent->rank, .peer = -1, .op = "split" };
    pk_result_t result = pki_engine_finish(s->parent->engine, &s->started);

    for (int r = 0; r < s->parent->size && result == PK_OK; r++)
        if (s->all[r].kind != s->mine.kind)
            result = pki_fail(PK_ERR_MISMATCH, &where, "some ranks have called pk_comm_split, others pk_comm_grow");
    return result;
}

static bool is_before(const struct pki_split_offer *all, int a, int b)
{
    return all[a].key != all[b].key ? all[a].key < all[b].key : a < b;
}

/* Size, this rank and the first rank (the parent's number) of this rank's group. */
static void find_group(const struct pki_split *s, int *size, int *rank, int *first)
{
    const int own = s->parent->rank;

    *size = *rank = 0;
    *first = own;
    for (int r = 0; r < s->parent->size; r++) {
        if (s->all[r].color != s->mine.color)
            continue;
        (*size)++;
        *rank += is_before(s->all, r, own);
        if (is_before(s->all, r, *first))
            *first = r;
    }
}

/* The id of the group: its first rank's address, and the secret that was not sent. */
static pk_result_t join_group(struct pki_split *s, int first, pk_unique_id_t *id)
{
    const struct pki_where where = { .rank = s->parent->rank, .peer = first, .op = "split" };
    struct pki_id theirs;
    pk_result_t result;

    if (!pki_wire_get_id(&s->all[first].where, &theirs) || theirs.address_count == 0)
        return pki_fail(PK_ERR_SYSTEM, &where, "rank %d of the parent, first of color %d, could not listen", first,
                        s->mine.color);
    result = make_secret(s, &theirs.secret);
    if (result == PK_OK)
        pki_wire_put_id(id, &theirs);
    pki_auth_wipe(&theirs.secret, sizeof theirs.secret);
    return result;
}

static pk_result_t place(struct pki_split *s, struct pk_comm *comm)
{
    int first;

    find_group(s, &comm->size, &comm->rank, &first);
    if (comm->rank != 0)
        stop_listening(s);
    return join_group(s, first, &comm->id);
}

pk_result_t pki_split_meet(struct pk_comm *comm, int *joiners)
{
    struct pki_split *s = comm->split;
    const bool grows = s->mine.kind == PKI_SPLIT_GROWS;
    pk_result_t result = hear(s);

    comm->split = NULL;
    comm->deadline_ns = pki_deadline_ns(comm->config.timeout_ms); /* until now the parent's counted */
    if (result == PK_OK)
        result = grows ? pki_grow_place(s, comm) : place(s, comm);
    if (result == PK_OK) {
        s->listens = false; /* the bootstrap takes it */
        pki_comm_watch_parent(comm, s->parent);
    }
    *joiners = grows ? s->mine.color : 0;
    release(s);
    return result;
}

pk_result_t pki_split_sit_out(struct pki_split *s)
{
    pk_result_t result = hear(s);

    release(s);
    return result;
}

void pki_split_release(struct pki_split *s)
{
    if (s == NULL)
        return;
    /* What is under way writes into `all`: it must end first. */
    (void)pki_engine_finish(s->parent->engine, &s->started);
    release(s);
}

pk_result_t pki_split_prepare(struct pk_comm *comm)
{
    pk_result_t result = pki_bootstrap_derive(comm->bootstrap, "pickle split", comm->offspring.key);

    if (result != PK_OK)
        return result;
    if (!pki_bootstrap_local_address(comm->bootstrap, &comm->offspring.address))
        pki_netif_loopback(&comm->offspring.address); /* a communicator of one: nobody will look for it */
    pki_netif_set_port(&comm->offspring.address, 0);
    return PK_OK;
}
