/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file coll.h
 * Collective operations: every rank of the communicator calls them, in the same order, with the same count and type.
 *
 * Errors common to all: PK_ERR_ARG (null communicator or buffer, unknown type, buffers that overlap other than as "in place"
 * says, or of different kinds of memory); PK_ERR_MISMATCH (ranks disagree on operation, count or type: names both sides);
 * PK_ERR_NEEDS_SM; PK_ERR_UNSUPPORTED; PK_ERR_PEER; PK_ERR_TIMEOUT; PK_ERR_ABORTED; PK_ERR_MEMORY. A rank that fails
 * with PK_ERR_ARG has not taken part. With PK_BLOCKING the call returns when the buffers are the caller's again; in other
 * streams at once. Different communicators may be used from different threads.
 *
 * With CUDA_DEVICE_MAX_CONNECTIONS=1 or 2 a stream that waits can hold up the kernels of every other: there a collective on a GPU
 * that needs a kernel of the library (allreduce; allgather out of place) is completed within the call, whatever the stream, and a
 * warning says so once.
 */
#ifndef PICKLE_COLL_H
#define PICKLE_COLL_H

#include "pickle/base.h"
#include "pickle/comm.h"
#include "pickle/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Gather `count` elements from every rank into every rank's `recvbuf`, in rank order.
 *
 * @param sendbuf  [count] elements of `dtype`, host or device; in place when it equals recvbuf + rank * count elements
 * @param recvbuf  [size * count] elements, the same kind of memory as sendbuf
 * @param count    elements each rank contributes; 0 is legal
 * In place it never needs a kernel; out of place on a GPU the local copy does (PK_ERR_NEEDS_SM with PK_SM_NONE).
 * Since 0.1.
 */
PK_API pk_result_t pk_allgather(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_comm_t *comm,
                                pk_stream_t stream);

/**
 * Reduce `count` elements over all ranks, element by element, and leave the result on every rank.
 *
 * @param sendbuf  [count] elements of `dtype`, host or device; in place when it equals recvbuf
 * @param recvbuf  [count] elements, the same kind of memory
 * @param count    elements; 0 is legal
 * @param op       PK_SUM; 16-bit floats are accumulated in f32 and rounded to nearest even once a step of the algorithm
 * Every rank gets the same bits, and the same from run to run for the same communicator, count and type. On a GPU it needs a
 * kernel. In this version f32, f16, bf16 and int32 with PK_SUM; others return PK_ERR_UNSUPPORTED. Since 0.1.
 */
PK_API pk_result_t pk_allreduce(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_op_t op, pk_comm_t *comm,
                                pk_stream_t stream);

#ifdef __cplusplus
}
#endif

#endif
