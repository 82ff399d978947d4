/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other while they meet goes through rank 0, in rounds: each rank sends it a part, and those who are to get
 * something wait for it. A gather is one round. An all-to-all has as many as keep small what rank 0 holds, and each rank gets
 * what is for it alone.
 */
#include "comm/bootstrap/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "util/clock.h"

/* A part is `columns` entries of `bytes`. */
struct round {
    size_t bytes, columns;
    int first; /* the rank that gets column 0; the next ranks get the next columns. -1: there is one, which all get */
};

static bool gets(const struct round *x, int rank)
{
    return x->first < 0 || (rank >= x->first && (size_t)(rank - x->first) < x->columns);
}

static bool not_gathered(const struct pki_bootstrap *b, int r)
{
    return r != 0 && !b->conns[r].ready;
}

/* They have come, but the deadline of the whole passed before they sent this. */
static pk_result_t parts_missing(struct pki_bootstrap *b)
{
    char names[200];
    int first = pki_bootstrap_name_missing(b, not_gathered, names, sizeof names);

    return pki_bootstrap_fail(b, PK_ERR_TIMEOUT, first, "%s of %d did not take the next step in %llu ms, and the deadline passed",
                              names, b->size, pki_bootstrap_elapsed_ms(b));
}

/* Rank 0: of whom something has come since. *n: for how many there is room; it may be 0 then. */
static pk_result_t await_parts(struct pki_bootstrap *b, struct epoll_event *events, int *n, uint64_t deadline_ns)
{
    const struct pki_wait wait = { .deadline_ns = deadline_ns, .cancel = b->cancel };
    struct pollfd p = { .fd = b->watch_fd, .events = POLLIN };
    pk_result_t result = b->asked ? PK_IN_PROGRESS : pki_poll(&p, 1, &wait);

    if (result == PK_IN_PROGRESS)
        return parts_missing(b);
    if (result == PK_ERR_ABORTED)
        return pki_bootstrap_fail(b, PK_ERR_ABORTED, -1, "aborted");
    *n = epoll_wait(b->watch_fd, events, *n, 0);
    return pki_bootstrap_adopt(b, result);
}

static pk_result_t look(struct pki_bootstrap *b, int r, int *come)
{
    pk_result_t result = pki_bootstrap_receive(b, r, true);

    *come += result == PK_OK;
    return result == PK_IN_PROGRESS ? PK_OK : result;
}

/* Rank 0 reads every rank's part, in whatever order they come: first what is there, then where the kernel says that more has
 * come. It says so once, also of a rank that is a round ahead: the next round begins by looking at all. */
static pk_result_t collect(struct pki_bootstrap *b, uint64_t deadline_ns)
{
    struct epoll_event events[64];
    pk_result_t result = PK_OK;
    int come = 1;

    for (int r = 1; r < b->size && result == PK_OK; r++)
        result = look(b, r, &come);
    while (come < b->size && result == PK_OK) {
        int n = sizeof events / sizeof events[0];

        result = await_parts(b, events, &n, deadline_ns);
        for (int i = 0; i < n && result == PK_OK; i++)
            if (!b->conns[events[i].data.u32].ready)
                result = look(b, (int)events[i].data.u32, &come);
    }
    return result;
}

/* `parts`: [size][columns] entries. */
static pk_result_t place_parts(struct pki_bootstrap *b, const void *mine, size_t bytes, unsigned char *parts)
{
    for (int r = 1; r < b->size; r++) {
        struct pki_conn *c = &b->conns[r];

        if (c->frame.type != PKI_FRAME_PART || c->frame.sequence != b->sequence || c->frame.bytes != bytes)
            return pki_bootstrap_fail(b, PK_ERR_MISMATCH, r, "rank %d sent message %d.%u of %u bytes instead of %d.%u of %zu", r,
                                      c->frame.type, c->frame.sequence, c->frame.bytes, PKI_FRAME_PART, b->sequence, bytes);
        memcpy(parts + (size_t)r * bytes, c->payload, bytes);
        pki_conn_release(c);
    }
    memcpy(parts, mine, bytes);
    return PK_OK;
}

/* What a rank gets, an entry from each. */
static const unsigned char *column_of(const struct pki_bootstrap *b, const struct round *x, const unsigned char *parts, int rank,
                                      unsigned char *room)
{
    if (x->columns == 1)
        return parts;
    for (size_t r = 0; r < (size_t)b->size; r++)
        memcpy(room + r * x->bytes, parts + (r * x->columns + (size_t)(rank - x->first)) * x->bytes, x->bytes);
    return room;
}

static pk_result_t give_back(struct pki_bootstrap *b, const struct round *x, const unsigned char *parts, void *theirs,
                             uint64_t deadline_ns)
{
    const size_t bytes = (size_t)b->size * x->bytes;
    unsigned char *room = malloc(bytes);
    pk_result_t result = PK_OK;

    if (room == NULL)
        result = pki_bootstrap_fail(b, PK_ERR_MEMORY, -1, "no memory to pass %zu bytes on", bytes);
    for (int r = 1; r < b->size && result == PK_OK; r++)
        if (gets(x, r))
            result = pki_bootstrap_send(b, r, PKI_FRAME_ALL, column_of(b, x, parts, r, room), bytes, deadline_ns);
    if (result == PK_OK && gets(x, 0))
        memcpy(theirs, column_of(b, x, parts, 0, room), bytes);
    free(room);
    return result;
}

static pk_result_t round_of_root(struct pki_bootstrap *b, const struct round *x, const void *mine, void *theirs,
                                 uint64_t deadline_ns)
{
    const size_t part = x->columns * x->bytes, total = (size_t)b->size * part;
    unsigned char *parts = malloc(total);
    pk_result_t result = PK_OK;

    if (parts == NULL)
        result = pki_bootstrap_fail(b, PK_ERR_MEMORY, -1, "no memory to gather %zu bytes", total);
    if (result == PK_OK)
        result = collect(b, deadline_ns);
    if (result == PK_OK)
        result = place_parts(b, mine, part, parts);
    if (result == PK_OK)
        result = give_back(b, x, parts, theirs, deadline_ns);
    free(parts);
    return result;
}

static pk_result_t round_of_other(struct pki_bootstrap *b, const struct round *x, const void *mine, void *theirs,
                                  uint64_t deadline_ns)
{
    const size_t total = (size_t)b->size * x->bytes;
    struct pki_conn *root = &b->conns[0];
    pk_result_t result = pki_bootstrap_send(b, 0, PKI_FRAME_PART, mine, x->columns * x->bytes, deadline_ns);

    if (result != PK_OK || !gets(x, b->rank))
        return result;
    result = pki_bootstrap_await(b, PKI_FRAME_ALL, deadline_ns);
    if (result != PK_OK)
        return result;
    if (root->frame.bytes != total)
        return pki_bootstrap_fail(b, PK_ERR_MISMATCH, 0, "rank 0 gathered %u bytes, not %zu", root->frame.bytes, total);
    memcpy(theirs, root->payload, total);
    pki_conn_release(root);
    return PK_OK;
}

static pk_result_t run_round(struct pki_bootstrap *b, const struct round *x, const void *mine, void *theirs, uint64_t deadline_ns)
{
    pk_result_t result =
        b->rank == 0 ? round_of_root(b, x, mine, theirs, deadline_ns) : round_of_other(b, x, mine, theirs, deadline_ns);

    b->sequence++;
    return result;
}

static pk_result_t begin(struct pki_bootstrap *b, size_t bytes)
{
    pk_result_t result = pki_bootstrap_check(b);

    if (result != PK_OK)
        return result;
    b->began_ns = pki_now_ns();
    if (bytes == 0 || bytes > PKI_BOOTSTRAP_GATHER_MAX || bytes > UINT32_MAX / (size_t)b->size) /* a frame's length has 32 bits */
        return pki_bootstrap_fail(b, PK_ERR_ARG, -1, "cannot gather %zu bytes from each rank", bytes);
    return PK_OK;
}

pk_result_t pki_bootstrap_allgather(struct pki_bootstrap *b, const void *mine, size_t bytes, void *all, uint64_t deadline_ns)
{
    const struct round x = { .bytes = bytes, .columns = 1, .first = -1 };
    pk_result_t result = begin(b, bytes);

    return result == PK_OK ? run_round(b, &x, mine, all, deadline_ns) : result;
}

/* Ranks that get something in one round, of which rank 0 holds 64 MiB at most. */
static size_t columns_of(const struct pki_bootstrap *b, size_t bytes)
{
    const size_t size = (size_t)b->size, sent = PKI_BOOTSTRAP_GATHER_MAX / bytes, held = 64 * sent / size;
    const size_t most = held < sent ? held : sent; /* all ranks find the same */

    return most == 0 ? 1 : most < size ? most : size;
}

pk_result_t pki_bootstrap_alltoall(struct pki_bootstrap *b, const void *mine, size_t bytes, void *theirs, uint64_t deadline_ns)
{
    pk_result_t result = begin(b, bytes);
    size_t most;

    if (result != PK_OK)
        return result;
    most = columns_of(b, bytes);
    for (size_t first = 0; first < (size_t)b->size && result == PK_OK; first += most) {
        const size_t rest = (size_t)b->size - first;
        const struct round x = { .bytes = bytes, .columns = rest < most ? rest : most, .first = (int)first };

        result = run_round(b, &x, (const unsigned char *)mine + first * bytes, theirs, deadline_ns);
    }
    return result;
}
