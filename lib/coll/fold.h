/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks for algorithms that halve and double. Where there are more than a power of two, the first ranks go in pairs: 0 and 1, 2
 * and 3, ...; the lower one stands for both. Those who take part are numbered in rank order.
 */
#ifndef PKI_FOLD_H
#define PKI_FOLD_H

#include <stdbool.h>

struct pki_fold {
    int power;   /* how many take part: the largest power of two <= size */
    int pairs;   /* size - power */
    int number;  /* of this rank; -1: the rank before it stands for it */
    bool paired; /* this rank stands for the next one too */
};

static inline struct pki_fold pki_fold(int rank, int size)
{
    struct pki_fold f = { .power = 1 };

    while (f.power <= size / 2)
        f.power *= 2;
    f.pairs = size - f.power;
    if (rank >= 2 * f.pairs)
        f.number = rank - f.pairs;
    else
        f.number = rank % 2 == 0 ? rank / 2 : -1;
    f.paired = f.number >= 0 && f.number < f.pairs;
    return f;
}

/* The rank with a number; of the number `power`: size. */
static inline int pki_fold_rank(const struct pki_fold *f, int number)
{
    return number < f->pairs ? 2 * number : number + f->pairs;
}

#endif
