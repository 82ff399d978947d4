/* SPDX-License-Identifier: Apache-2.0 */
/* Where the inboxes of fused collectives are: in memory of the GPUs if each reaches all others, else in host memory. */
#include "comm/comm.h"

static pk_result_t ask_all(struct pk_comm *comm, bool *apart)
{
    int32_t mine = !pki_engine_reaches_all(comm->engine), all[PKI_FUSED_RANKS] = { 0 };
    pk_result_t result = pki_comm_gather(comm, &mine, sizeof mine, all);

    *apart = false;
    for (int i = 0; i < comm->size && result == PK_OK; i++)
        *apart = *apart || all[i] != 0;
    return result;
}

/* Pair by pair, all in the same order, as connections are made: connect.c says why. */
static pk_result_t swap_all(struct pk_comm *comm)
{
    const struct pki_wait wait = pki_comm_setup_timeout(comm);
    pk_result_t result = PK_OK;

    for (int turn = 0; turn < comm->size && result == PK_OK; turn++) {
        int peer = (turn - comm->rank + comm->size) % comm->size;

        if (peer != comm->rank)
            result = pki_engine_host_inbox_swap(comm->engine, peer, &wait);
    }
    return result;
}

pk_result_t pki_comm_place_inboxes(struct pk_comm *comm)
{
    bool apart;
    pk_result_t result, news;

    if (!pki_engine_may_fuse(comm->engine))
        return PK_OK;
    result = ask_all(comm, &apart);
    if (result != PK_OK || !apart)
        return result;
    pki_engine_host_inbox_open(comm->engine);
    result = swap_all(comm);
    if (result == PK_OK) {
        pki_engine_host_inbox_ready(comm->engine);
        return PK_OK;
    }
    /* Who leaves init says on the side sockets that it does, which is no descriptor; why is said at the meeting. */
    news = pki_bootstrap_news(comm->bootstrap);
    return news != PK_OK ? news : result;
}
