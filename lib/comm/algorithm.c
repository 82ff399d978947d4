/* SPDX-License-Identifier: Apache-2.0 */
/* The algorithm of one collective: the rules' (choose.c), unless an aggregator or one kernel on each rank does it. */
#include "comm/comm.h"

pk_result_t pki_comm_choose(const struct pk_comm *comm, enum pki_coll coll, size_t bytes, pk_dtype_t dtype, pk_op_t op,
                            enum pki_mem_kind kind, struct pki_choice *choice)
{
    *choice = pki_choose(&comm->chooser, coll, bytes);
    if (comm->chooser.switchml && coll == PKI_COLL_ALLREDUCE)
        return pki_aggregate_choose(comm, dtype, op, choice);
    /* Ranks whose memory is of different kinds have to choose alike; a fused collective gives way to what the others do. */
    if (kind == PKI_MEM_DEVICE && comm->chooser.forced[coll] == NULL && pki_engine_fuses(comm->engine, coll, bytes, dtype, op)) {
        choice->instead = choice->algorithm;
        choice->algorithm = pki_fused_algorithm(coll);
        choice->reason =
            (comm->chooser.fused >> coll & 1) != 0 ? "PK_ALGORITHM of rank 0" : "one kernel on each rank, in rank order";
    }
    return PK_OK;
}
