/* SPDX-License-Identifier: Apache-2.0 */
/* What split.c and grow.c share: ranks of a parent that tell each other where the first of a new communicator listens. */
#ifndef PKI_COMM_SPLIT_H
#define PKI_COMM_SPLIT_H

#include "comm/comm.h"

enum pki_split_kind { PKI_SPLIT_GROUPS = 1, PKI_SPLIT_GROWS = 2 };

/* What every rank of the parent tells every other. */
struct pki_split_offer {
    int32_t kind;
    int32_t color, key;   /* GROWS: color is how many join */
    pk_unique_id_t where; /* an id without its secret */
};

struct pki_split {
    struct pk_comm *parent;
    uint64_t number; /* of the parent's splits */
    struct pki_split_offer mine, *all;
    pk_unique_id_t id; /* of the communicator that this rank would be rank 0 of */
    bool listens;
    struct pki_list started; /* the allgather, or messages to and from all */
};

/* split.c. PK_ERR_MEMORY. */
pk_result_t pki_split_new(struct pk_comm *parent, enum pki_split_kind kind, struct pki_split **split);
/* Tell the others, and begin to hear them. */
pk_result_t pki_split_start(struct pki_split *split);

/* grow.c: size, this rank, the id, and the number of ranks that join it, when all have told. */
pk_result_t pki_grow_place(const struct pki_split *split, struct pk_comm *comm);

#endif
