/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreement among the ranks that live, though ranks die meanwhile: all that return have the same value. The rules, as one
 * machine a rank, without I/O. docs/design/0047 says why they suffice, and tests/model/agree tries them in random orders.
 *
 * A view is a set of ranks that count as dead, and the tree of all others. In a view values are collected up the tree (UP).
 * The value of all goes down from the root (VALUE), word that all below hold it goes up (HELD), and leave to return goes down
 * (RETURN).
 * - Who learns of a death while it collects starts again in the view with that rank, and tells its neighbours in the new tree
 *   (VIEW).
 * - Who learns of a death while it holds the value sends it to all (FLOOD) and returns. So does who receives a FLOOD.
 * - Messages of ranks that count as dead are not taken. Of another view only FLOOD is taken, and the news of deaths.
 * - A rank counts as dead when what it has sent is taken, or will never be.
 * - A rank that counts as dead is told so (VIEW), for it may live: it returns without a value.
 */
#ifndef PKI_COLL_AGREE_H
#define PKI_COLL_AGREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PKI_AGREE_ID_BYTES 128

/* What is agreed on beside the view's dead. */
struct pki_agree_value {
    uint64_t all;                         /* bits that every rank has given */
    uint64_t last;                        /* the least that any rank has given */
    uint32_t calls;                       /* bits that some rank has given */
    unsigned char id[PKI_AGREE_ID_BYTES]; /* the root's */
};

enum pki_agree_kind { PKI_AGREE_VIEW = 1, PKI_AGREE_UP, PKI_AGREE_VALUE, PKI_AGREE_HELD, PKI_AGREE_RETURN, PKI_AGREE_FLOOD };

struct pki_agree_msg {
    enum pki_agree_kind kind;
    uint64_t number;              /* of the agreement */
    struct pki_agree_value value; /* of UP, VALUE and FLOOD */
    const uint64_t *set;          /* the view; of FLOOD: in which the value was made */
};

enum pki_agree_state {
    PKI_AGREE_COLLECTS, /* knows no value */
    PKI_AGREE_HOLDS,    /* knows the value, and may not return yet */
    PKI_AGREE_RETURNED, /* `value` and `view` are agreed on */
    PKI_AGREE_LEFT_OUT  /* this rank counts as dead for the others */
};

struct pki_agree {
    int rank, size;
    uint64_t number;
    enum pki_agree_state state;
    uint64_t *dead, *view; /* [pki_agree_words(size)]: what this rank knows; what it is in, or the value was made in */
    struct pki_agree_value mine, value;
    int parent, child[2]; /* -1: none */
    unsigned up, held;    /* bit c: child c has sent it */
    void (*send)(void *arg, int to, const struct pki_agree_msg *msg);
    void *arg;
};

static inline size_t pki_agree_words(int size)
{
    return ((size_t)size + 63) / 64;
}

static inline bool pki_agree_has(const uint64_t *set, int rank)
{
    return (set[rank / 64] >> (rank % 64) & 1) != 0;
}

static inline void pki_agree_add(uint64_t *set, int rank)
{
    set[rank / 64] |= (uint64_t)1 << (rank % 64);
}

/* rank, size, number, dead, mine, send, arg and room for `view` are set. */
void pki_agree_begin(struct pki_agree *agree);
/* A message of this number has come. */
void pki_agree_take(struct pki_agree *agree, int from, const struct pki_agree_msg *msg);
/* A rank counts as dead from now on. */
void pki_agree_lost(struct pki_agree *agree, int rank);
/* Tell the neighbours that this rank is here. */
void pki_agree_remind(const struct pki_agree *agree);
/* Whom this rank waits for: up to three ranks. Returns how many. */
int pki_agree_awaits(const struct pki_agree *agree, int ranks[3]);

#endif
