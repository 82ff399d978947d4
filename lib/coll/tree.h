/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Binomial trees. Ranks are counted from the root on: `place` 0 is the root. The parent of a place lacks its lowest bit; the
 * subtree of a place is a stretch of places that begins with it.
 */
#ifndef PKI_TREE_H
#define PKI_TREE_H

struct pki_tree {
    int size, root;
    int place; /* of this rank */
    int reach; /* the children are at place + 1, 2, 4, ... below reach */
};

static inline struct pki_tree pki_tree(int rank, int size, int root)
{
    struct pki_tree t = { .size = size, .root = root, .place = (rank + size - root) % size };

    for (t.reach = 1; (t.place & t.reach) == 0 && t.place + t.reach < size;)
        t.reach *= 2;
    return t;
}

static inline int pki_tree_rank(const struct pki_tree *t, int place)
{
    return (place + t->root) % t->size;
}

static inline int pki_tree_parent(const struct pki_tree *t)
{
    return pki_tree_rank(t, t->place & (t->place - 1));
}

/* How many places the subtree of place + distance has, where that is a child. */
static inline int pki_tree_below(const struct pki_tree *t, int distance)
{
    int left = t->size - t->place - distance;

    return distance < left ? distance : left;
}

/* How many the own subtree has. */
static inline int pki_tree_own(const struct pki_tree *t)
{
    int left = t->size - t->place;

    return t->reach < left ? t->reach : left;
}

#endif
