/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has each rank a CPU of its own? Ranks may use different CPUs, so counting is not enough: of four ranks that may use 16 CPUs
 * together two may both be bound to the first. So each is given a CPU, if need be by moving those that have one already (a
 * matching of ranks and CPUs). Where that fails, the ranks that were asked to move, and the one that wanted a place, have fewer
 * CPUs than they are: they share. A quota is shared by the ranks of its control group: more of them than CPUs share, too,
 * wherever they run.
 */
#include <stdlib.h>
#include <string.h>

#include "util/cpus.h"
#include "util/log.h"

#define BILLION UINT64_C(1000000000)
#define NOBODY (-1)

struct assignment {
    const struct pki_cpus *const *ranks;
    int n;
    int holder[PKI_CPUS_TOLD]; /* the rank that has a CPU, or NOBODY */
    bool *asked;               /* ranks that have been asked to move, in the current attempt */
    bool *shares;
};

static bool may_use(const struct pki_cpus *cpus, int cpu)
{
    return (cpus->mask[cpu / 64] >> cpu % 64 & 1) != 0;
}

/* Who shares has been asked before, in vain, and CPUs never become free. */
static bool may_move(const struct assignment *assignment, int rank)
{
    return !assignment->asked[rank] && !assignment->shares[rank];
}

static bool place(struct assignment *assignment, int rank)
{
    const struct pki_cpus *cpus = assignment->ranks[rank];

    assignment->asked[rank] = true;
    for (int cpu = 0; cpu < PKI_CPUS_TOLD; cpu++)
        if (may_use(cpus, cpu) && assignment->holder[cpu] == NOBODY) {
            assignment->holder[cpu] = rank;
            return true;
        }
    for (int cpu = 0; cpu < PKI_CPUS_TOLD; cpu++)
        if (may_use(cpus, cpu) && may_move(assignment, assignment->holder[cpu]) && place(assignment, assignment->holder[cpu])) {
            assignment->holder[cpu] = rank;
            return true;
        }
    return false;
}

static void assign_all(struct assignment *assignment)
{
    for (int cpu = 0; cpu < PKI_CPUS_TOLD; cpu++)
        assignment->holder[cpu] = NOBODY;
    for (int rank = 0; rank < assignment->n; rank++) {
        memset(assignment->asked, 0, (size_t)assignment->n * sizeof *assignment->asked);
        if (place(assignment, rank))
            continue;
        for (int i = 0; i < assignment->n; i++)
            assignment->shares[i] = assignment->shares[i] || assignment->asked[i];
    }
}

static int users_of_cpu(const struct assignment *assignment, int cpu)
{
    int users = 0;

    for (int i = 0; i < assignment->n; i++)
        users += may_use(assignment->ranks[i], cpu);
    return users;
}

static uint64_t users_of_quota(const struct assignment *assignment, uint64_t group)
{
    uint64_t users = 0;

    for (int i = 0; i < assignment->n; i++)
        for (int k = 0; k < PKI_CPU_QUOTAS; k++)
            users += assignment->ranks[i]->quotas[k].group == group;
    return users;
}

static void count(const struct assignment *assignment, int me, struct pki_cpu_share *share)
{
    const struct pki_cpus *mine = assignment->ranks[me];
    uint64_t cpus = 0; /* billionths: the program may have made inexact sums of floats a trap */

    share->own = !assignment->shares[me];
    for (int cpu = 0; cpu < PKI_CPUS_TOLD; cpu++)
        if (may_use(mine, cpu))
            cpus += BILLION / users_of_cpu(assignment, cpu);
    for (int k = 0; k < PKI_CPU_QUOTAS && mine->quotas[k].group != 0; k++) {
        uint64_t each = mine->quotas[k].millicpus * (BILLION / 1000) / users_of_quota(assignment, mine->quotas[k].group);

        share->own = share->own && each >= BILLION;
        cpus = each < cpus ? each : cpus;
    }
    share->cpus = (int)((cpus + PKI_CPUS_TOLD) / BILLION); /* three thirds are one */
}

pk_result_t pki_cpus_share(const struct pki_cpus *const *ranks, int n, int me, struct pki_cpu_share *share)
{
    struct assignment assignment = { .ranks = ranks, .n = n };
    bool *flags = calloc(2 * (size_t)n, sizeof *flags);

    if (flags == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to assign CPUs to %d ranks", n);
    assignment.asked = flags;
    assignment.shares = flags + n;
    assign_all(&assignment);
    count(&assignment, me, share);
    free(flags);
    return PK_OK;
}
