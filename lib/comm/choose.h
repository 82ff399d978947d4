/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm a collective takes: from its size, the ranks, and rank 0's constants, so that all ranks decide alike. */
#ifndef PKI_CHOOSE_H
#define PKI_CHOOSE_H

#include <stdint.h>

#include "coll/plan.h"
#include "tuning/tuning.h"

#define PKI_ALGORITHM_TEXT 96

/* What rank 0 decides for all. */
struct pki_settings {
    struct pki_agreed agreed;
    int32_t p2p_level;                  /* PK_P2P_LEVEL: enum pki_distance, UNKNOWN where it is not set */
    int32_t switchml_fallback;          /* PK_SWITCHML_FALLBACK: what an aggregator cannot do goes without it */
    char algorithm[PKI_ALGORITHM_TEXT]; /* PK_ALGORITHM, or empty */
};

enum pki_algorithm_id {
    PKI_DIRECT,
    PKI_ONE_SHOT,
    PKI_RING,
    PKI_DOUBLING,
    PKI_HALVING,
    PKI_TREE,
    PKI_STAGGERED,
    PKI_HIER,
    PKI_NODE_LEADER,
    PKI_RELAYED,
    PKI_ALGORITHM_IDS
};

struct pki_chooser {
    struct pki_settings settings;
    int size;
    int hosts;        /* of the communicator's ranks */
    bool gpus;        /* some rank has one */
    bool one_machine; /* all ranks are on it, be it as several hosts */
    /* every rank has a GPU and NVLink from it to every other GPU, and some rank may run no kernel there; false until that is
     * known */
    bool relayed;
    const struct pki_algorithm *all[PKI_COLL_END][PKI_ALGORITHM_IDS]; /* NULL: there is none */
    const struct pki_algorithm *forced[PKI_COLL_END];                 /* by PK_ALGORITHM */
    uint32_t fused; /* likewise: bit c, a kernel in GPU memory whatever the length */
    bool switchml;  /* likewise: allreduces by an aggregator in the network */
};

struct pki_choice {
    const struct pki_algorithm *algorithm;
    const char *reason;
    const struct pki_algorithm *instead; /* of a fused one: what ranks with other memory do; else NULL */
};

/* Is this a legal PK_ALGORITHM? One name for all collectives that have an algorithm of this name, or operation=name, with
 * commas. */
pk_result_t pki_algorithm_text_check(const char *text);
/* Fill the tables; size, hosts, gpus, one_machine and settings are set. */
pk_result_t pki_chooser_init(struct pki_chooser *chooser);
/* `bytes`: the collective's count argument. Never fails. */
struct pki_choice pki_choose(const struct pki_chooser *chooser, enum pki_coll coll, size_t bytes);

#endif
