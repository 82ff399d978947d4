/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/pieces.h"
#include "coll/tree.h"

/* Where blocks of the subtree lie: in OUT at the root. Elsewhere in scratch block 0 from the own block on, in 1 those round
 * the end. */
static struct pki_ref blocks_at(int rank, int root, const struct pki_piece *p)
{
    struct pki_ref blocks = pki_stretch(pki_out(p->first), p->blocks);

    if (rank == root)
        return blocks;
    return p->first >= (uint32_t)rank ? pki_scratch_at(0, (uint32_t)rank, blocks) : pki_scratch_at(1, 0, blocks);
}

static void collect(struct pki_plan *plan, int rank, const struct pki_tree *tree, bool in_place, struct pki_pieces *have)
{
    struct pki_piece own = { .first = (uint32_t)rank, .blocks = 1 }, parts[2];

    if (rank != tree->root || !in_place)
        pki_pieces_add(have, own.first, 1, pki_plan_copy(plan, blocks_at(rank, tree->root, &own), pki_in(0)));
    for (int distance = 1; distance < tree->reach; distance *= 2) {
        int child = pki_tree_rank(tree, tree->place + distance);
        int n = pki_pieces_cut(child, pki_tree_below(tree, distance), tree->size, parts);

        for (int i = 0; i < n; i++)
            pki_pieces_add(have, parts[i].first, parts[i].blocks,
                           pki_plan_recv(plan, child, blocks_at(rank, tree->root, &parts[i])));
    }
}

/* Up a binomial tree, subtree by subtree: log n receives at the root, log n hops. A message more where blocks go round the
 * end. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    struct pki_tree tree = pki_tree(rank, size, root);
    struct pki_pieces have = { .n = 0 };
    struct pki_piece parts[2];
    bool leaf = tree.reach == 1 && rank != root;
    int n = pki_pieces_cut(rank, pki_tree_own(&tree), size, parts);

    if (!leaf)
        collect(plan, rank, &tree, in_place, &have);
    for (int i = 0; rank != root && i < n; i++) {
        pki_plan_send(plan, pki_tree_parent(&tree), leaf ? pki_in(0) : blocks_at(rank, root, &parts[i]));
        pki_pieces_await(plan, &have, parts[i].first, parts[i].blocks);
    }
}

const struct pki_algorithm pki_tree_gather = { .name = "tree", .coll = PKI_COLL_GATHER, .build_rooted = build };
