/* SPDX-License-Identifier: Apache-2.0 */
/* Operators, those that a program makes included. An operation that is queued in a group keeps its operator, which may be
 * destroyed before the group ends. */
#ifndef PKN_REDUCTION_H
#define PKN_REDUCTION_H

#include "comm.h"

/* The operator for an operation on `dtype`. *kept: to be released once the operation has been called, NULL for NCCL's own.
 * PKN_INVALID_ARGUMENT, recorded: there is none of this number, or it is for another type. */
pkn_result_t pkn_reduction_keep(struct pkn_comm *comm, pkn_op_t op, pkn_dtype_t dtype, pk_op_t *pk_op,
                                struct pkn_reduction **kept);
void pkn_reduction_release(struct pkn_comm *comm, struct pkn_reduction *kept);

/* All that are left, at the communicator's end. */
void pkn_reductions_free(struct pkn_comm *comm);

#endif
