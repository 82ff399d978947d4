/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/hosts.h"

#include <stdlib.h>

#include "util/log.h"

/* Number hosts in the order of their first ranks, and count their ranks into first[h + 1]. */
static void number_hosts(struct pki_hosts *h, const int *host_of)
{
    for (int r = 0; r < h->size; r++) {
        int same = 0;

        while (host_of[same] != host_of[r])
            same++;
        h->host[r] = same == r ? h->n++ : h->host[same];
        h->place[r] = h->first[h->host[r] + 1]++;
    }
}

static void list_ranks(struct pki_hosts *h)
{
    h->least = h->size;
    for (int i = 0; i < h->n; i++) {
        h->least = h->first[i + 1] < h->least ? h->first[i + 1] : h->least;
        h->first[i + 1] += h->first[i];
    }
    for (int r = 0; r < h->size; r++)
        h->ranks[h->first[h->host[r]] + h->place[r]] = r;
}

pk_result_t pki_hosts_make(const int *host_of, int size, struct pki_hosts **hosts)
{
    struct pki_hosts *h = calloc(1, sizeof *h);
    int *tables = calloc(4 * (size_t)size + 1, sizeof *tables);

    if (h == NULL || tables == NULL) {
        free(h);
        free(tables);
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the hosts of %d ranks", size);
    }
    h->size = size;
    h->host = tables; /* the first of the tables owns them all */
    h->place = h->host + size;
    h->ranks = h->place + size;
    h->first = h->ranks + size;
    number_hosts(h, host_of);
    list_ranks(h);
    *hosts = h;
    return PK_OK;
}

void pki_hosts_free(struct pki_hosts *hosts)
{
    if (hosts != NULL)
        free(hosts->host);
    free(hosts);
}

static int place_of(const struct pki_site *site, int rank)
{
    return site->map == NULL ? rank : site->map->place[rank];
}

int pki_site_host(const struct pki_site *site, int rank)
{
    return site->map == NULL ? 0 : site->map->host[rank];
}

int pki_site_ranks(const struct pki_site *site, int host)
{
    return site->map == NULL ? site->size : site->map->first[host + 1] - site->map->first[host];
}

int pki_site_rank(const struct pki_site *site, int host, int place)
{
    if (host == site->root_host)
        place = (place + site->turn) % pki_site_ranks(site, host);
    return site->map == NULL ? place : site->map->ranks[site->map->first[host] + place];
}

int pki_site_carrier(const struct pki_site *site, int host, int rank)
{
    if (pki_site_host(site, rank) == host)
        return rank;
    return pki_site_rank(site, host, place_of(site, rank) % pki_site_ranks(site, host));
}

struct pki_site pki_site(const struct pki_plan *plan)
{
    struct pki_site s = { .map = plan->hosts, .rank = plan->rank, .size = plan->size, .hosts = 1, .least = plan->size };

    if (plan->hosts != NULL) {
        s.hosts = plan->hosts->n;
        s.least = plan->hosts->least;
    }
    s.host = pki_site_host(&s, plan->rank);
    s.place = place_of(&s, plan->rank);
    s.ranks = pki_site_ranks(&s, s.host);
    return s;
}

struct pki_site pki_site_rooted(const struct pki_plan *plan)
{
    struct pki_site s = pki_site(plan);

    s.root_host = pki_site_host(&s, plan->root);
    s.turn = place_of(&s, plan->root);
    if (s.host == s.root_host)
        s.place = (s.place + s.ranks - s.turn) % s.ranks;
    return s;
}
