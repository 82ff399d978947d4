/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file p2p.h
 * Sending from one rank to another, and groups of operations.
 *
 * Matching is first-in-first-out for each ordered pair of ranks: the n-th send from a to b matches the n-th receive on b from a. Both
 * must name the same number of bytes.
 */
#ifndef PICKLE_P2P_H
#define PICKLE_P2P_H

#include "pickle/base.h"
#include "pickle/comm.h"
#include "pickle/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Send `count` elements to rank `peer`.
 *
 * @param buf     [count] elements of `dtype`, host or device; belongs to the caller again when the operation ends in `stream`
 * @param count   elements; 0 is legal (a message without data, matched like any other)
 * @param dtype   type of the elements
 * @param peer    0 to size - 1; this rank itself only inside a group or in an asynchronous stream
 * @param comm    the communicator
 * @param stream  where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; PK_ERR_ARG (null communicator or buffer, unknown type, no such rank, a stream that is none, more elements than
 *         memory can hold, memory of another GPU, a finalized communicator); PK_ERR_MISMATCH (the receive names another size);
 *         PK_ERR_NEEDS_SM (the operation needs a kernel, or one more CUDA stream would wait, and sm_policy is PK_SM_NONE);
 *         PK_ERR_UNSUPPORTED (no path between these kinds of memory; in a captured stream, memory of another GPU than the
 *         communicator's, or a receive buffer that the peer cannot map; operations are pending in more CUDA streams of the process
 *         than a GPU has room for kernels that wait, about 100; in a child of fork, the parent's communicator or stream);
 *         PK_ERR_PEER; PK_ERR_TIMEOUT; PK_ERR_ABORTED; PK_ERR_MEMORY; PK_ERR_SYSTEM (a bad buffer, as in coll.h; a failed driver
 *         call); the error that poisoned the communicator
 * With PK_BLOCKING the call returns when `buf` may be reused; the peer may not have received it yet. In other streams the call
 * returns at once, and the next call, pk_comm_async_error and pk_stream_synchronize report later errors. In a CUDA stream that is
 * being captured the call waits on the CPU until the peer captures its receive. Both buffers are then GPU memory, registered or
 * not, that stays allocated as long as the graph is launched, and other processes can map the receive buffer (memory of
 * cudaMalloc, or of cuMemCreate with file descriptors). At most 1,024 receives from one rank may be pending or in existing graphs:
 * one more fails the communicator. Launches of one graph with messages must follow one another. PK_ERR_UNSUPPORTED leaves the
 * capture unchanged. Since 0.1.
 */
PK_API pk_result_t pk_send(const void *buf, size_t count, pk_dtype_t dtype, int peer, pk_comm_t *comm, pk_stream_t stream);

/**
 * Receive `count` elements from rank `peer`.
 *
 * @param buf     [count] elements of `dtype`, host or device; holds the data when the operation ends in `stream`
 * @param count   elements, as many bytes as the send names; 0 is legal
 * @param dtype   type of the elements
 * @param peer    0 to size - 1; this rank itself only inside a group or in an asynchronous stream
 * @param comm    the communicator
 * @param stream  where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return as pk_send
 * With PK_BLOCKING the call returns when the data has arrived. Otherwise as pk_send. Into GPU memory that other processes cannot map
 * (cudaMallocAsync's, or of cuMemCreate without file descriptors) the data comes through the host: slower, and a warning says so
 * once (a stream that is captured: PK_ERR_UNSUPPORTED). Since 0.1.
 */
PK_API pk_result_t pk_recv(void *buf, size_t count, pk_dtype_t dtype, int peer, pk_comm_t *comm, pk_stream_t stream);

/**
 * Begin a group: the operations that this thread calls until pk_group_end start together, and none of them waits for another. Two
 * ranks that send to each other and receive from each other need this. Groups nest; the outermost end starts the operations. Inside
 * a group a call only checks and records; its buffers belong to the library from then on. There is one exception: operations of
 * different communicators in the same CUDA stream enter it one communicator after the other, so they wait for one another there.
 *
 * @return PK_OK
 * Never blocks, never fails. State of the calling thread. Since 0.1.
 */
PK_API pk_result_t pk_group_start(void);

/**
 * End a group. With PK_BLOCKING operations inside, the call returns when all of these have ended. A group has room for 512 operations of
 * a communicator in CUDA streams; with more, no operation of this communicator starts. Operations of other kinds have no such limit.
 *
 * Operations in streams that are being captured are recorded one after the other: receives are opened, then sends, then collectives in
 * the order of the calls, then receives end. All ranks must form the same groups there. A send of a rank to itself needs its receive in
 * the same group and stream, and is a copy inside the GPU (PK_ERR_NEEDS_SM with PK_SM_NONE). One thread may capture for several
 * communicators in one group; if one operation is refused, no operation of the group is recorded.
 *
 * @return PK_OK; PK_ERR_ARG (no group is open; the communicator or the host stream of an operation was destroyed meanwhile:
 *         nothing was started); PK_ERR_UNSUPPORTED (too many in CUDA streams, captured streams beside others); PK_ERR_MEMORY
 *         (then nothing was started); else the first error of an operation in the group, including one that its call already
 *         returned (then nothing was started)
 * Bounded by the deadlines of the operations. State of the calling thread. Since 0.1.
 */
PK_API pk_result_t pk_group_end(void);

#ifdef __cplusplus
}
#endif

#endif
