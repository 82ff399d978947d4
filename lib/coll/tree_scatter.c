/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/pieces.h"
#include "coll/tree.h"

/* Where blocks of the subtree lie: in IN at the root. Elsewhere in scratch block 0 from the own block on, in 1 those round the
 * end. */
static struct pki_ref blocks_at(int rank, int root, const struct pki_piece *p)
{
    struct pki_ref blocks = pki_stretch(pki_in(p->first), p->blocks);

    if (rank == root)
        return blocks;
    return p->first >= (uint32_t)rank ? pki_scratch_at(0, (uint32_t)rank, blocks) : pki_scratch_at(1, 0, blocks);
}

static void receive(struct pki_plan *plan, int rank, const struct pki_tree *tree, struct pki_pieces *have)
{
    struct pki_piece parts[2];
    int n = pki_pieces_cut(rank, pki_tree_own(tree), tree->size, parts);

    for (int i = 0; i < n; i++)
        pki_pieces_add(have, parts[i].first, parts[i].blocks,
                       pki_plan_recv(plan, pki_tree_parent(tree), blocks_at(rank, tree->root, &parts[i])));
}

static void hand_on(struct pki_plan *plan, int rank, const struct pki_tree *tree, const struct pki_pieces *have)
{
    struct pki_piece parts[2];

    for (int distance = tree->reach / 2; distance >= 1; distance /= 2) {
        int child = pki_tree_rank(tree, tree->place + distance);
        int n = pki_pieces_cut(child, pki_tree_below(tree, distance), tree->size, parts);

        for (int i = 0; i < n; i++) {
            pki_plan_send(plan, child, blocks_at(rank, tree->root, &parts[i]));
            pki_pieces_await(plan, have, parts[i].first, parts[i].blocks);
        }
    }
}

/* Down a binomial tree, the largest subtree first: log n sends at the root, log n hops. A message more where blocks go round the
 * end. */
static void build(struct pki_plan *plan, int rank, int size, int root, bool in_place)
{
    struct pki_tree tree = pki_tree(rank, size, root);
    struct pki_piece own = { .first = (uint32_t)rank, .blocks = 1 };
    struct pki_pieces have = { .n = 0 };

    if (rank != root && tree.reach == 1) {
        pki_plan_recv(plan, pki_tree_parent(&tree), pki_out(0));
        return;
    }
    if (rank != root)
        receive(plan, rank, &tree, &have);
    hand_on(plan, rank, &tree, &have);
    if (rank != root || !in_place) {
        pki_plan_copy(plan, pki_out(0), blocks_at(rank, root, &own));
        pki_pieces_await(plan, &have, own.first, 1);
    }
}

const struct pki_algorithm pki_tree_scatter = { .name = "tree", .coll = PKI_COLL_SCATTER, .build_rooted = build };
