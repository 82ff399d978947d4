/* SPDX-License-Identifier: Apache-2.0 */
/* Ids, and the begin of a communicator by one. */
#ifndef PKN_IDS_H
#define PKN_IDS_H

#include "comm.h"

/* An id for NCCL_COMM_ID where that is set, else libpickle's. */
pkn_result_t pkn_id_make(pk_unique_id_t *id);

/* It will not be used. Does nothing with an id of another process. */
void pkn_id_give_back(const pk_unique_id_t *id);

/* Begin the communicator, which the caller polls. */
pk_result_t pkn_id_begin(pk_comm_t **pk, int ranks, int rank, const pk_unique_id_t *id, const pk_comm_config_t *config);

#endif
