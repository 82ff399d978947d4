/* SPDX-License-Identifier: Apache-2.0 */
/* The CPUs of the ranks of a machine, as these told one another. */
#include <stdlib.h>

#include "comm/comm.h"

pk_result_t pki_comm_cpus(const struct pk_comm *comm, int rank, struct pki_cpu_share *share)
{
    const struct pki_cpus **ranks = malloc((size_t)comm->size * sizeof *ranks);
    pk_result_t result;
    int n = 0, me = 0;

    if (ranks == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the CPUs of %d ranks", comm->size);
    for (int i = 0; i < comm->size; i++) {
        if (i == rank)
            me = n;
        if (pki_same_machine(&comm->peer_infos[i], &comm->peer_infos[rank]))
            ranks[n++] = &comm->peer_infos[i].cpus;
    }
    result = pki_cpus_share(ranks, n, me, share);
    free(ranks);
    return result;
}
