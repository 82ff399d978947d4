/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What PK_LOG=info says when a communicator is up: which protocol a message to each peer goes by, and which algorithm each
 * collective takes, from which size to which. By the functions that choose, so that operations themselves have nothing to say.
 */
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "util/text.h"

#define LONGEST ((size_t)8 << 30) /* bytes: the last class */
#define LINE_BYTES 480

struct question {
    const struct pk_comm *comm;
    enum pki_mem_kind kind;
    int peer; /* of a message; -1: a collective */
    enum pki_coll coll;
    size_t unit; /* sizes are multiples of this many bytes */
};

static const char *const kinds[] = { [PKI_MEM_HOST] = "host memory", [PKI_MEM_DEVICE] = "GPU memory" };

static const char *answer(const struct question *q, size_t bytes)
{
    struct pki_choice choice;

    if (q->peer >= 0)
        return pki_engine_protocol(q->comm->engine, q->peer, q->kind, bytes);
    if (pki_comm_choose(q->comm, q->coll, bytes, PK_F32, PK_SUM, q->kind, &choice) != PK_OK)
        return "none";
    return choice.algorithm->name;
}

static bool is_answer(const struct question *q, size_t bytes, const char *name)
{
    return strcmp(answer(q, bytes), name) == 0;
}

/* The answer is `name` at `low` and another at `high`: up to where is it this one? */
static size_t last_of(const struct question *q, const char *name, size_t low, size_t high)
{
    while (high - low > q->unit) {
        size_t middle = low + (high - low) / 2 / q->unit * q->unit;

        if (is_answer(q, middle, name))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* "eager up to 8192 bytes, then rendezvous" */
static void add_sizes(struct pki_text *out, const struct question *q)
{
    const char *name = answer(q, q->unit), *then = "";
    size_t low = q->unit;

    for (size_t high = 2 * low; high <= LONGEST; high *= 2) {
        while (!is_answer(q, high, name)) {
            size_t last = last_of(q, name, low, high);

            pki_text_add(out, "%s%s up to %zu bytes, ", then, name, last);
            low = last + q->unit;
            name = answer(q, low);
            then = "then ";
        }
        low = high;
    }
    pki_text_add(out, "%s%s", then, name);
}

/* Of a message to a peer. */
static void add_peer(struct pki_text *out, const struct pk_comm *comm, int peer, enum pki_mem_kind kind)
{
    const struct pki_path *path = &comm->paths[peer].way[kind][kind];
    const struct question q = { .comm = comm, .kind = kind, .peer = peer, .unit = 1 };

    if (path->transport == NULL) {
        pki_text_add(out, "no path");
        return;
    }
    pki_text_add(out, "over %s (%s): ", path->transport, path->device);
    add_sizes(out, &q);
}

static void say_peers(const struct pk_comm *comm, int first, int last, enum pki_mem_kind kind, const char *text)
{
    const struct pki_where where = { .rank = comm->rank, .peer = -1 };

    if (first == last)
        pki_log(PKI_LOG_INFO, &where, "messages of %s with rank %d %s", kinds[kind], first, text);
    else
        pki_log(PKI_LOG_INFO, &where, "messages of %s with ranks %d to %d %s", kinds[kind], first, last, text);
}

/* Neighbours of which the same is to be said share a line. */
static void say_messages(const struct pk_comm *comm, enum pki_mem_kind kind)
{
    char said[LINE_BYTES] = "", text[LINE_BYTES];
    int first = -1;

    for (int peer = 0; peer <= comm->size; peer++) {
        struct pki_text out = { .start = text, .capacity = sizeof text };

        text[0] = '\0';
        if (peer < comm->size && peer != comm->rank && !pki_is_hole(comm, peer))
            add_peer(&out, comm, peer, kind);
        if (first >= 0 && strcmp(said, text) != 0)
            say_peers(comm, first, peer - 1, kind, said);
        if (strcmp(said, text) != 0)
            first = text[0] != '\0' ? peer : -1;
        strcpy(said, text);
    }
}

/* The v-forms are left out: nobody knows how long their blocks are. */
static void say_collectives(const struct pk_comm *comm, enum pki_mem_kind kind)
{
    const struct pki_where where = { .rank = comm->rank, .peer = -1 };

    for (int coll = PKI_COLL_ALLGATHER; coll < PKI_COLL_BARRIER; coll++) {
        const struct question q = { .comm = comm, .kind = kind, .peer = -1, .coll = (enum pki_coll)coll, .unit = sizeof(float) };
        char text[LINE_BYTES];
        struct pki_text out = { .start = text, .capacity = sizeof text };

        add_sizes(&out, &q);
        pki_log(PKI_LOG_INFO, &where, "%s of %s, by its count: %s", pki_coll_shape((unsigned)coll)->name, kinds[kind], text);
    }
}

void pki_comm_say_protocols(const struct pk_comm *comm)
{
    if (comm->size < 2 || !pki_log_enabled(PKI_LOG_INFO))
        return;
    say_messages(comm, PKI_MEM_HOST);
    if (!pki_has_holes(comm))
        say_collectives(comm, PKI_MEM_HOST);
    if (comm->device == NULL)
        return;
    say_messages(comm, PKI_MEM_DEVICE);
    if (!pki_has_holes(comm))
        say_collectives(comm, PKI_MEM_DEVICE);
}
