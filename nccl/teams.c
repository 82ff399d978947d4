/* SPDX-License-Identifier: Apache-2.0 */
/* Teams of NCCL's device API: no rank's memory is in reach of another's kernels here, so each is alone in its team of loads
 * and stores. */
#include "comm.h"
#include "names.h"

static const pkn_team_t nobody = { .ranks = 0, .rank = 0, .stride = 1 };

static pkn_team_t all_ranks(pkn_comm_t comm)
{
    pkn_team_t team = nobody;

    if (pkn_comm_use(comm) != PKN_SUCCESS)
        return nobody;
    team.ranks = comm->size;
    team.rank = comm->rank;
    pkn_comm_release(comm);
    return team;
}

pkn_team_t pncclTeamWorld(pkn_comm_t comm)
{
    return all_ranks(comm);
}
PKN_TWIN(TeamWorld);

pkn_team_t pncclTeamLsa(pkn_comm_t comm)
{
    (void)comm;
    return (pkn_team_t){ .ranks = 1, .rank = 0, .stride = 1 };
}
PKN_TWIN(TeamLsa);

pkn_team_t pncclTeamRail(pkn_comm_t comm)
{
    return all_ranks(comm);
}
PKN_TWIN(TeamRail);

int pncclTeamRankToWorld(pkn_comm_t comm, pkn_team_t team, int rank)
{
    return all_ranks(comm).rank + (rank - team.rank) * team.stride;
}
PKN_TWIN(TeamRankToWorld);

int pncclTeamRankToLsa(pkn_comm_t comm, pkn_team_t team, int rank)
{
    (void)comm;
    return (rank - team.rank) * team.stride;
}
PKN_TWIN(TeamRankToLsa);

/* Slots of an exchange that cannot be made. */
int pncclLLA2ACalcSlots(int elements, int element_bytes)
{
    (void)elements;
    (void)element_bytes;
    return 0;
}
PKN_TWIN(LLA2ACalcSlots);
