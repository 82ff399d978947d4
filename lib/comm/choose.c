/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules. On one host, up to 16 ranks, sums are in rank order whatever the size: `flat` and `direct` sum up in rank order,
 * and so does the ring of two ranks, since a + b = b + a. Measured on a host with 2 and 4 ranks (docs/design/0008). Where
 * hosts have several ranks, plans that know of hosts cross each link once where all-to-all algorithms cross it once for each rank
 * (docs/design/0011).
 */
#include "comm/choose.h"

#include <string.h>

#include "transport/transport.h"
#include "util/log.h"

static const char *const names[PKI_ALGORITHM_IDS] = { "direct", "flat",      "ring", "doubling", "halving",
                                                      "tree",   "staggered", "hier", "leader",   "detour" };
/* What PK_ALGORITHM may say instead. */
static const char *const aliases[PKI_ALGORITHM_IDS] = {
    [PKI_ONE_SHOT] = "one-shot", [PKI_NODE_LEADER] = "node-leader", [PKI_RELAYED] = "relayed"
};

/* ---- PK_ALGORITHM ---- */

static bool is_name(const char *candidate, const char *name, size_t len)
{
    return candidate != NULL && strlen(candidate) == len && memcmp(candidate, name, len) == 0;
}

static int algorithm_named(const char *name, size_t len)
{
    for (int id = 0; id < PKI_ALGORITHM_IDS; id++)
        if (is_name(names[id], name, len) || is_name(aliases[id], name, len))
            return id;
    return -1;
}

static int coll_named(const char *name, size_t len)
{
    for (unsigned c = 0; c < PKI_COLL_END; c++) {
        const struct pki_shape *shape = pki_coll_shape(c);

        if (shape != NULL && strlen(shape->name) == len && memcmp(shape->name, name, len) == 0)
            return (int)c;
    }
    return -1;
}

/* One word of the list: "ring" or "allreduce=ring". */
static pk_result_t force(struct pki_chooser *chooser, const char *word, size_t len)
{
    const char *equal = memchr(word, '=', len);
    size_t before = equal != NULL ? (size_t)(equal - word) : 0;
    const char *name = equal != NULL ? equal + 1 : word;
    bool fused = word + len - name == 5 && memcmp(name, "fused", 5) == 0;
    int way = equal != NULL ? algorithm_named(equal + 1, len - before - 1) : algorithm_named(word, len);
    int coll = equal != NULL ? coll_named(word, before) : -1;

    if (word + len - name == 8 && memcmp(name, "switchml", 8) == 0 && (equal == NULL || coll == PKI_COLL_ALLREDUCE)) {
        chooser->switchml = true;
        return PK_OK;
    }
    if (fused && (equal == NULL || (coll >= 0 && pki_fused_algorithm((enum pki_coll)coll) != NULL))) {
        chooser->fused |= coll >= 0 ? 1u << coll : UINT32_MAX;
        return PK_OK;
    }
    if (way < 0 || (equal != NULL && (coll < 0 || chooser->all[coll][way] == NULL)))
        return pki_fail(PK_ERR_ARG, NULL,
                        "PK_ALGORITHM: unknown algorithm '%.*s': use direct, flat, ring, doubling, halving, tree, "
                        "staggered, hier, leader, detour, fused, switchml, or OPERATION=ALGORITHM if the operation has it",
                        (int)len, word);
    for (int c = 0; c < PKI_COLL_END; c++)
        if ((coll < 0 || c == coll) && chooser->all[c][way] != NULL)
            chooser->forced[c] = chooser->all[c][way];
    return PK_OK;
}

static pk_result_t force_all(struct pki_chooser *chooser, const char *text)
{
    pk_result_t result = PK_OK;

    while (*text != '\0' && result == PK_OK) {
        size_t len = strcspn(text, ",");

        result = force(chooser, text, len);
        text += len + (text[len] == ',');
    }
    return result;
}

pk_result_t pki_chooser_init(struct pki_chooser *chooser)
{
    chooser->fused = 0;
    chooser->switchml = false;
    for (int c = 0; c < PKI_COLL_END; c++) {
        chooser->forced[c] = NULL;
        for (int w = 0; w < PKI_ALGORITHM_IDS; w++)
            chooser->all[c][w] = pki_algorithm_find((enum pki_coll)c, names[w]);
    }
    return force_all(chooser, chooser->settings.algorithm);
}

pk_result_t pki_algorithm_text_check(const char *text)
{
    struct pki_chooser chooser;

    memset(&chooser, 0, sizeof chooser);
    if (strlen(text) >= sizeof chooser.settings.algorithm)
        return pki_fail(PK_ERR_ARG, NULL, "PK_ALGORITHM is longer than %zu characters", sizeof chooser.settings.algorithm - 1);
    strcpy(chooser.settings.algorithm, text);
    return pki_chooser_init(&chooser);
}

/* ---- the rules ---- */

struct rule {
    enum pki_algorithm_id way;
    const char *why;
};

#define NODE_LEADERS "short, among hosts of several ranks: one of each host speaks for it"
#define ACROSS_HOSTS "among hosts of several ranks: within each host first, each block once between them"
#define IN_PIECES "long: in pieces, in rank order, so that links carry one while another is reduced"
#define IN_RANK_ORDER "every rank reaches every other; reductions are in rank order"

static bool is_few(const struct pki_chooser *c)
{
    return (uint64_t)c->size <= c->settings.agreed.coll.direct_max_ranks;
}

/* Several ranks share their host's link to others. */
static bool shares_links(const struct pki_chooser *c)
{
    return c->hosts > 1 && c->hosts < c->size;
}

/* Up to here one rank of a host speaks for it. Of very many ranks too much would go through one. */
static size_t node_leader_max_bytes(const struct pki_chooser *c)
{
    size_t bytes = c->settings.agreed.coll.node_leader_max_bytes_per_rank * (size_t)c->size;

    return bytes < c->settings.agreed.coll.node_leader_max_bytes ? bytes : c->settings.agreed.coll.node_leader_max_bytes;
}

/* Everyone has, or gets, all the data. */
static struct rule across_hosts(const struct pki_chooser *c, size_t bytes)
{
    if (bytes <= node_leader_max_bytes(c))
        return (struct rule){ PKI_NODE_LEADER, NODE_LEADERS };
    return (struct rule){ PKI_HIER, ACROSS_HOSTS };
}

static size_t one_shot_pair_max_bytes(const struct pki_chooser *c)
{
    if (c->gpus)
        return c->settings.agreed.coll.one_shot_pair_gpu_max_bytes;
    return c->settings.agreed.coll.one_shot_pair_max_bytes;
}

static size_t one_shot_max_bytes(const struct pki_chooser *c)
{
    const struct pki_tuning_coll *t = &c->settings.agreed.coll;

    if (c->size == 2 && c->hosts == 1 && !c->gpus)
        return t->one_shot_two_max_bytes;
    return t->one_shot_max_bytes / (c->size > 1 ? (size_t)c->size - 1 : 1);
}

static struct rule allreduce(const struct pki_chooser *c, size_t bytes)
{
    const struct pki_tuning_coll *t = &c->settings.agreed.coll;

    if (is_few(c) && (c->hosts == 1 || c->size <= t->one_shot_hosts_ranks) && bytes <= one_shot_max_bytes(c))
        return (struct rule){ PKI_ONE_SHOT, "short: one hop, reduced in rank order everywhere" };
    if (c->size == 2 && c->hosts == 2 && bytes <= one_shot_pair_max_bytes(c))
        return (struct rule){ PKI_ONE_SHOT, "two hosts: one hop, with as many bytes between them as in a ring" };
    if (shares_links(c) && bytes > node_leader_max_bytes(c) &&
        bytes <= PKI_NODE_LEADER_TIMES * t->node_leader_max_bytes_per_rank * (size_t)c->size)
        return is_few(c) ? (struct rule){ PKI_NODE_LEADER, NODE_LEADERS } : (struct rule){ PKI_HALVING, "many ranks: few hops" };
    if (shares_links(c))
        return across_hosts(c, bytes);
    if ((!is_few(c) || c->hosts > 1) && bytes <= t->few_hops_max_bytes / PKI_DOUBLING_SHARE)
        return (struct rule){ PKI_DOUBLING, "short, among many ranks: few hops" };
    if (c->size == 2 && !c->gpus)
        return (struct rule){ PKI_RING, "two ranks: reduced as it arrives, still in rank order" };
    if (!is_few(c) && bytes <= PKI_HALVING_TIMES * t->few_hops_max_bytes)
        return (struct rule){ PKI_HALVING, "many ranks: few hops" };
    if (!is_few(c))
        return (struct rule){ PKI_RING, "long, among many ranks: in a ring each link carries the fewest bytes" };
    if (c->hosts == 1 && c->gpus && bytes >= t->staggered_min_bytes)
        return (struct rule){ PKI_STAGGERED, IN_PIECES };
    return (struct rule){ PKI_DIRECT, IN_RANK_ORDER };
}

static bool root_sums_alone(const struct pki_chooser *c, size_t bytes)
{
    const struct pki_tuning_coll *t = &c->settings.agreed.coll;
    uint64_t others = c->size > 1 ? (uint64_t)c->size - 1 : 1;

    return is_few(c) && c->hosts == 1 &&
           bytes <= (c->gpus ? t->one_shot_root_max_bytes / others : t->one_shot_root_max_work / (others * others));
}

static struct rule reduce(const struct pki_chooser *c, size_t bytes)
{
    if (c->size == 2 && !c->gpus)
        return (struct rule){ PKI_RING, "two ranks: reduced as it arrives, still in rank order" };
    if (root_sums_alone(c, bytes))
        return (struct rule){ PKI_ONE_SHOT, "short: one hop, reduced in rank order at the root" };
    if (shares_links(c))
        return across_hosts(c, bytes);
    if ((!is_few(c) || c->hosts > 1) && bytes <= c->settings.agreed.coll.few_hops_max_bytes)
        return (struct rule){ PKI_TREE, "short, among many ranks: few hops" };
    if (!is_few(c))
        return (struct rule){ PKI_RING, "long, among many ranks: in a ring each link carries the fewest bytes" };
    return (struct rule){ PKI_DIRECT, IN_RANK_ORDER };
}

static struct rule reduce_scatter(const struct pki_chooser *c, size_t bytes)
{
    if (c->size == 2 && !c->gpus)
        return (struct rule){ PKI_RING, "two ranks: reduced as it arrives, still in rank order" };
    if (shares_links(c) && bytes * (size_t)c->size >= c->settings.agreed.coll.hier_min_bytes)
        return (struct rule){ PKI_HIER, ACROSS_HOSTS };
    if (shares_links(c) || (!is_few(c) && bytes * (size_t)c->size <= c->settings.agreed.coll.few_hops_max_bytes))
        return (struct rule){ PKI_HALVING, "short, among many ranks: few hops" };
    if (!is_few(c))
        return (struct rule){ PKI_RING, "long, among many ranks: in a ring each link carries the fewest bytes" };
    if (c->hosts == 1 && c->gpus && c->size > 2 && bytes * (size_t)c->size >= c->settings.agreed.coll.staggered_min_bytes)
        return (struct rule){ PKI_STAGGERED, IN_PIECES };
    return (struct rule){ PKI_DIRECT, IN_RANK_ORDER };
}

static struct rule broadcast(const struct pki_chooser *c, size_t bytes)
{
    if (shares_links(c))
        return across_hosts(c, bytes);
    if (is_few(c) && c->hosts == 1 && (!c->gpus || bytes <= c->settings.agreed.coll.few_hops_max_bytes))
        return (struct rule){ PKI_ONE_SHOT, "one hop: all ranks take it from the root at once" };
    if (bytes <= c->settings.agreed.coll.few_hops_max_bytes)
        return (struct rule){ PKI_TREE, "short, among many ranks: few hops" };
    if (!is_few(c))
        return (struct rule){ PKI_RING, "long, among many ranks: from rank to rank, each link carries it once" };
    return (struct rule){ PKI_DIRECT, "long: the other ranks pass parts on" };
}

static struct rule allgather(const struct pki_chooser *c, size_t bytes)
{
    if (shares_links(c) && bytes * (size_t)c->size >= c->settings.agreed.coll.hier_min_bytes)
        return (struct rule){ PKI_HIER, ACROSS_HOSTS };
    if (shares_links(c) || (!is_few(c) && bytes * (size_t)c->size <= c->settings.agreed.coll.few_hops_max_bytes))
        return (struct rule){ PKI_DOUBLING, "short, among many ranks: few hops" };
    return (struct rule){ PKI_DIRECT, "every rank reaches every other" };
}

static struct rule gather_or_scatter(const struct pki_chooser *c, size_t bytes)
{
    if (!is_few(c) && bytes * (size_t)c->size <= c->settings.agreed.coll.few_hops_max_bytes)
        return (struct rule){ PKI_TREE, "short, among many ranks: few hops" };
    return (struct rule){ PKI_DIRECT, "one hop" };
}

static struct rule rule_for(const struct pki_chooser *c, enum pki_coll coll, size_t bytes)
{
    switch (coll) {
    case PKI_COLL_ALLREDUCE:
        return allreduce(c, bytes);
    case PKI_COLL_REDUCE:
        return reduce(c, bytes);
    case PKI_COLL_REDUCE_SCATTER:
        return reduce_scatter(c, bytes);
    case PKI_COLL_BROADCAST:
        return broadcast(c, bytes);
    case PKI_COLL_ALLGATHER:
        return allgather(c, bytes);
    case PKI_COLL_GATHER:
    case PKI_COLL_SCATTER:
        return gather_or_scatter(c, bytes);
    case PKI_COLL_BARRIER:
        if (shares_links(c) && c->size > c->settings.agreed.coll.barrier_flat_ranks)
            return (struct rule){ PKI_HIER, NODE_LEADERS };
        if (c->size > c->settings.agreed.coll.barrier_one_hop_ranks)
            return (struct rule){ PKI_DOUBLING, "many ranks: few hops" };
        return (struct rule){ PKI_DIRECT, "one hop" };
    case PKI_COLL_ALLTOALL:
        if (c->relayed && bytes >= c->settings.agreed.coll.relayed_min_bytes)
            return (struct rule){ PKI_RELAYED, "no kernels: this rank's own block goes by way of the next rank" };
        break;
    case PKI_COLL_ALLGATHERV: /* nobody knows how long the blocks are on average */
        if (shares_links(c))
            return (struct rule){ PKI_HIER, ACROSS_HOSTS };
        break;
    default:
        break;
    }
    return (struct rule){ PKI_DIRECT, "every rank reaches every other" };
}

struct pki_choice pki_choose(const struct pki_chooser *chooser, enum pki_coll coll, size_t bytes)
{
    struct rule rule;

    if (chooser->forced[coll] != NULL)
        return (struct pki_choice){ chooser->forced[coll], "PK_ALGORITHM of rank 0", NULL };
    rule = rule_for(chooser, coll, bytes);
    return (struct pki_choice){ chooser->all[coll][rule.way], rule.why, NULL };
}
