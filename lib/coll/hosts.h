/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank sits on which host, and how plans that care for it name ranks: by host, and by place among its host's ranks. */
#ifndef PKI_HOSTS_H
#define PKI_HOSTS_H

#include "coll/plan.h"

/* Hosts are numbered in the order of their first ranks, places in rank order. Never changes once it is made. */
struct pki_hosts {
    int size, n;
    int least;  /* ranks of the host that has the fewest */
    int *host;  /* [size] */
    int *place; /* [size] */
    int *first; /* [n + 1]: the ranks of host h are ranks[first[h] .. first[h + 1] - 1] */
    int *ranks; /* [size] */
};

/* `host_of[size]`: any numbers, equal where ranks share a host. PK_ERR_MEMORY. */
pk_result_t pki_hosts_make(const int *host_of, int size, struct pki_hosts **hosts);
void pki_hosts_free(struct pki_hosts *hosts); /* NULL is legal */

/*
 * Where a plan's rank sits. A plan made without hosts has all ranks on one. With a root, places on its host are counted from it
 * on, so that the root is always at place 0.
 */
struct pki_site {
    const struct pki_hosts *map; /* or NULL */
    int rank, size;
    int host, place; /* of this rank */
    int ranks;       /* on this host */
    int hosts;
    int least; /* ranks of the host that has the fewest */
    int root_host, turn;
};

struct pki_site pki_site(const struct pki_plan *plan);
struct pki_site pki_site_rooted(const struct pki_plan *plan);
int pki_site_host(const struct pki_site *site, int rank);
int pki_site_ranks(const struct pki_site *site, int host);
int pki_site_rank(const struct pki_site *site, int host, int place);
/* The rank of `host` that carries between hosts what belongs to `rank`: itself on its own, and the others of a host in turn. */
int pki_site_carrier(const struct pki_site *site, int host, int rank);

#endif
