/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of cases. Each is a choice of one level for every factor; the list is built so that any two levels of any two factors soon
 * occur together (errors mostly come from two circumstances that meet). Once all pairs are covered it starts again with other companions.
 */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum factor {
    F_OP,
    F_DTYPE,
    F_SIZE,
    F_IN_PLACE,
    F_ENDING,
    F_PLACE,
    F_MISALIGN,
    F_ROUNDS,
    F_GROUPED,
    F_REDUCTION,
    F_ROOT,
    F_RANKS,
    F_ALGORITHM,
    FACTORS
};

#define LEVELS_MAX 24
#define CANDIDATES 24
#define PAIR_LEVELS (FACTORS * LEVELS_MAX)

/* Sizes: elements, or bytes and elements on top; cut to max_bytes. */
static const struct {
    size_t elements, bytes;
} sizes[] = {
    { 0, 0 },     { 1, 0 },      { 3, 0 },      { 7, 0 },       { 0, 40 },      { 1, 40 },      { 0, 64 },           { 1000, 0 },
    { 0, 4096 },  { 1, 4096 },   { 0, 8192 },   { 1, 8192 },    { 0, 16384 },   { 3, 16384 },   { 0, 32768 },        { 1, 32768 },
    { 5, 65536 }, { 100000, 0 }, { 3, 262144 }, { 0, 1 << 20 }, { 1, 1 << 20 }, { 7, 3 << 20 }, { 0, SIZE_MAX / 2 },
};

static const unsigned rounds[] = { 1, 2, 4 };
static const char *const op_names[OPS] = { "pingpong",       "ring",      "many",       "exchange", "self",
                                           "mixed",          "barrier",   "broadcast",  "reduce",   "allreduce",
                                           "reduce_scatter", "allgather", "allgatherv", "alltoall", "alltoallv",
                                           "gather",         "gatherv",   "scatter",    "scatterv" };
static const char *const reduction_names[REDUCTIONS] = { "sum", "prod", "min", "max", "avg", "premul sum" };
static const char *const root_names[ROOTS] = { "first", "last", "middle" };
const char *const algorithms[] = { NULL,   "direct",    "flat", "ring",   "doubling", "halving",
                                   "tree", "staggered", "hier", "leader", "detour" };
static const char *const ending_names[ENDINGS] = { "blocking", "host stream", "cuda stream" };
static const char *const misalign_names[MISALIGNS] = { "aligned", "off by an element", "off by bytes" };

struct generator {
    uint64_t state;
    int levels[FACTORS];
    bool covered[PAIR_LEVELS][PAIR_LEVELS];
    unsigned left; /* pairs not covered */
};

static unsigned draw(struct generator *g, unsigned below)
{
    g->state = g->state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((g->state >> 33) % below);
}

static int cell(int factor, int level)
{
    return factor * LEVELS_MAX + level;
}

static void begin_round(struct generator *g)
{
    memset(g->covered, 0, sizeof g->covered);
    g->left = 0;
    for (int a = 0; a < FACTORS; a++)
        for (int b = a + 1; b < FACTORS; b++)
            g->left += (unsigned)(g->levels[a] * g->levels[b]);
}

/* Pairs that `choice` would cover for the first time; covers them if `mark`. */
static unsigned gain(struct generator *g, const int *choice, bool mark)
{
    unsigned n = 0;

    for (int a = 0; a < FACTORS; a++) {
        for (int b = a + 1; b < FACTORS; b++) {
            bool *covered = &g->covered[cell(a, choice[a])][cell(b, choice[b])];

            n += !*covered;
            *covered = *covered || mark;
        }
    }
    return n;
}

/* Some pair that is not covered yet, looking from a random place on, so that every candidate gains something. */
static void plant_uncovered(struct generator *g, int *choice)
{
    for (unsigned tries = 0;; tries++) {
        int a = (int)draw(g, FACTORS);
        int b = (int)draw(g, FACTORS);
        int x = (int)draw(g, (unsigned)g->levels[a]);
        int y = (int)draw(g, (unsigned)g->levels[b]);

        if (a < b && (!g->covered[cell(a, x)][cell(b, y)] || tries > 20000)) {
            choice[a] = x;
            choice[b] = y;
            return;
        }
    }
}

static void choose(struct generator *g, int *best)
{
    unsigned best_gain = 0;

    if (g->left == 0)
        begin_round(g);
    for (int c = 0; c < CANDIDATES; c++) {
        int choice[FACTORS];
        unsigned gained;

        for (int f = 0; f < FACTORS; f++)
            choice[f] = (int)draw(g, (unsigned)g->levels[f]);
        plant_uncovered(g, choice);
        gained = gain(g, choice, false);
        if (c == 0 || gained > best_gain) {
            best_gain = gained;
            memcpy(best, choice, sizeof choice);
        }
    }
    g->left -= gain(g, best, true);
}

/* Cut so that no buffer is longer than max_bytes. */
static size_t count_of(const struct config *config, const struct item *item, int level)
{
    size_t width = pk_dtype_size(item->dtype), max = config->max_bytes / width;
    size_t count = sizes[level].elements + sizes[level].bytes / width;

    if (is_many(item->op) || item->op == OP_EXCHANGE || item->op == OP_MIXED)
        max /= (size_t)item->ranks;
    return count > max ? max : count;
}

static void make_item(const struct config *config, const int *choice, struct item *item)
{
    item->op = (enum op)choice[F_OP];
    item->dtype = (pk_dtype_t)choice[F_DTYPE];
    item->in_place = choice[F_IN_PLACE] == 1;
    item->ending = (enum ending)choice[F_ENDING];
    item->place = (enum place)choice[F_PLACE];
    item->misalign = (enum misalign)choice[F_MISALIGN];
    item->rounds = rounds[choice[F_ROUNDS]];
    item->grouped = choice[F_GROUPED] == 1 && item->op != OP_PINGPONG; /* what is sent back comes with the round itself */
    item->reduction = (pk_op_t)choice[F_REDUCTION];
    item->root = (enum root)choice[F_ROOT];
    item->ranks = choice[F_RANKS] + 1;
    item->algorithm = choice[F_ALGORITHM];
    if (!is_reduction(item->op))
        item->reduction = PK_SUM;
    /* Arithmetic wants its natural alignment. */
    if (is_reduction(item->op) && item->misalign == BY_BYTES)
        item->misalign = BY_ELEMENT;
    item->count = count_of(config, item, choice[F_SIZE]);
}

static int by_batch(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    if (x->ranks != y->ranks)
        return x->ranks - y->ranks;
    if (x->algorithm != y->algorithm)
        return x->algorithm - y->algorithm;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void set_levels(struct generator *g, const struct config *config, int ranks)
{
    g->levels[F_OP] = OPS;
    g->levels[F_DTYPE] = PK_DTYPE_COUNT;
    g->levels[F_SIZE] = sizeof sizes / sizeof sizes[0];
    g->levels[F_IN_PLACE] = 2;
    g->levels[F_ENDING] = config->cuda ? 3 : 2;
    g->levels[F_PLACE] = config->cuda ? 2 : 1;
    g->levels[F_MISALIGN] = MISALIGNS;
    g->levels[F_ROUNDS] = sizeof rounds / sizeof rounds[0];
    g->levels[F_GROUPED] = 2;
    g->levels[F_REDUCTION] = REDUCTIONS;
    g->levels[F_ROOT] = ROOTS;
    g->levels[F_RANKS] = ranks < LEVELS_MAX ? ranks : LEVELS_MAX;
    g->levels[F_ALGORITHM] = getenv("PK_ALGORITHM") != NULL ? 1 : sizeof algorithms / sizeof algorithms[0];
}

unsigned list_cases(const struct config *config, int ranks, struct item *items)
{
    static struct generator g;

    g.state = config->seed * 2 + 1;
    set_levels(&g, config, ranks);
    begin_round(&g);
    for (unsigned i = 0; i < config->cases; i++) {
        int choice[FACTORS];

        choose(&g, choice);
        make_item(config, choice, &items[i]);
        items[i].number = i;
    }
    qsort(items, config->cases, sizeof *items, by_batch);
    return config->cases;
}

void describe(const struct item *item, char *what)
{
    char special[64] = "";

    if (is_reduction(item->op))
        snprintf(special, sizeof special, " %s", reduction_names[item->reduction]);
    snprintf(what, WHAT_BYTES, "case %u: %s %s%s count %zu%s, %d ranks, %s, root %s, %s, %s memory, %s, %u rounds%s",
             item->number, op_names[item->op], pk_dtype_name(item->dtype), special, item->count,
             item->in_place ? " in place" : "", item->ranks, item->algorithm > 0 ? algorithms[item->algorithm] : "chosen",
             root_names[item->root], ending_names[item->ending], item->place == PLACE_DEVICE ? "device" : "host",
             misalign_names[item->misalign], item->rounds, item->grouped ? " in a group" : "");
}
