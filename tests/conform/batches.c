/* SPDX-License-Identifier: Apache-2.0 */
/* The list in stretches of equal ranks and algorithm, each on a communicator of its own, of the first ranks alone. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>

static bool same_batch(const struct item *a, const struct item *b)
{
    return a->ranks == b->ranks && a->algorithm == b->algorithm;
}

/* Rank 0's environment counts. All others are in share() meanwhile. NULL: as it was at first. */
static void set_algorithm(const struct rank *rank, const char *name)
{
    static char *first;
    static bool known;

    if (rank->rank != 0)
        return;
    if (!known && getenv("PK_ALGORITHM") != NULL)
        first = strdup(getenv("PK_ALGORITHM"));
    known = true;
    if (name == NULL)
        name = first;
    if (name != NULL)
        setenv("PK_ALGORITHM", name, 1);
    else
        unsetenv("PK_ALGORITHM");
}

static void run_on(struct rank *rank, const struct item *items, unsigned n, const pk_unique_id_t *id)
{
    pk_comm_config_t config = rank->comm_config;
    pk_comm_t *whole = rank->comm;
    int size = rank->size;

    begin_case(rank, "a communicator of some of the ranks");
    if (!expect(rank, pk_comm_init_rank(&rank->comm, items->ranks, rank->rank, id, &config), PK_OK, "pk_comm_init_rank")) {
        rank->comm = whole;
        give_up(rank, rank->watch->what, rank->failure);
    }
    rank->size = items->ranks;
    for (unsigned i = 0; i < n; i++)
        run_item(rank, &items[i]);
    begin_case(rank, "the end of a communicator of some of the ranks");
    if (!expect(rank, pk_comm_destroy(rank->comm), PK_OK, "pk_comm_destroy"))
        give_up(rank, rank->watch->what, rank->failure);
    rank->comm = whole;
    rank->size = size;
    end_watch(rank);
}

static void run_batch(struct rank *rank, const struct item *items, unsigned n)
{
    char token = 0, tokens[RANKS_MAX];
    pk_unique_id_t id;

    rank->ok = true;
    set_algorithm(rank, algorithms[items->algorithm]);
    if (!new_id(rank, &id))
        give_up(rank, "a new id", rank->failure);
    if (rank->rank < items->ranks)
        run_on(rank, items, n, &id);
    share(rank, &token, tokens, 1);
}

static bool any_selected(const struct rank *rank, const struct item *items, unsigned n)
{
    char what[WHAT_BYTES];

    for (unsigned i = 0; i < n; i++) {
        describe(&items[i], what);
        if (selected(rank, what))
            return true;
    }
    return false;
}

void run_list(struct rank *rank, const struct item *items, unsigned n)
{
    unsigned end;

    for (unsigned i = 0; i < n; i = end) {
        for (end = i + 1; end < n && same_batch(&items[i], &items[end]); end++)
            ;
        if (any_selected(rank, items + i, end - i))
            run_batch(rank, items + i, end - i);
    }
    set_algorithm(rank, NULL);
}
