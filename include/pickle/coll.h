/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file coll.h
 * Collective operations: every rank of the communicator calls them, in the same order, with the same count, type, reduction and root.
 *
 * Errors common to all: PK_ERR_ARG (a null communicator or buffer; an unknown type, reduction, root or stream; a finalized
 * communicator; memory of another GPU; buffers that overlap, except "in place"; more elements than memory can hold; in v-forms null
 * counts, or a block of a rank for itself with two different lengths); PK_ERR_MISMATCH (the ranks disagree on operation, count, type,
 * reduction or root: the text names both sides); PK_ERR_NEEDS_SM (the operation needs a kernel, or one more CUDA stream would wait, and
 * sm_policy is PK_SM_NONE); PK_ERR_UNSUPPORTED (no path between two ranks for their memory; in a captured stream, see below;
 * operations are pending in more CUDA streams of the process than a GPU has room for kernels that wait, about 100; in a child of fork,
 * the parent's communicator or stream); PK_ERR_PEER; PK_ERR_TIMEOUT; PK_ERR_ABORTED; PK_ERR_MEMORY; PK_ERR_SYSTEM (where the kernel
 * copies, a buffer that is not mapped or may not be written: EFAULT, and the rank whose buffer it is; elsewhere such a buffer ends the
 * process with SIGSEGV); the error that poisoned the communicator.
 *
 * A rank that fails with PK_ERR_ARG has not taken part. With PK_BLOCKING the call returns when the buffers belong to the caller again;
 * in other streams it returns at once. Different communicators may be used from different threads. Calls inside a group start together
 * when the group ends (p2p.h).
 *
 * Counts are in elements of `dtype`. A count of 0 is legal, and so is a communicator of one rank. Buffers belong to the caller: sendbuf
 * is only read, and the caller may touch neither buffer before the operation has ended in its stream. Where only one rank has a buffer
 * ("at the root"), the other ranks may pass anything, also NULL, and the library ignores it. A buffer without elements may be NULL.
 *
 * Reductions (`op`) work element by element. Integers wrap around. f16, bf16 and the 8-bit floats are combined in f32 and rounded to
 * nearest even once in each step of the algorithm that combines blocks; the direct algorithms combine the blocks of up to 16 ranks in
 * one step, in rank order. PK_MIN and PK_MAX give NaN where any rank has a NaN. PK_AVG is the sum, divided by the number of ranks
 * before its last rounding (so a sum of f32 or f64 may overflow where the average would not); the wrapped sum of integers is divided
 * and truncated toward zero. Every rank gets the same bits, and every run gets the same bits for the same communicator, count and type,
 * whatever rounding mode, treatment of subnormal numbers or traps the program has set in its threads (-ffast-math, FTZ, fesetround,
 * feenableexcept): reductions run in the default floating-point environment, and the thread gets its own back afterwards. Which
 * exception flags they raise is not specified. On a GPU reductions need a kernel.
 *
 * V-forms: blocks have different lengths. `counts[r]` and `offsets[r]` describe the block that goes to or comes from rank r; offsets
 * count from the first element of the buffer. With NULL offsets the blocks follow one another in rank order. Both arrays have one entry
 * for each rank and belong to the caller again when the call returns, also in a group. Blocks of a receive buffer must not overlap. A
 * rank must receive as many elements from another rank as that rank sends: else PK_ERR_MISMATCH names both lengths.
 *
 * In a CUDA stream that is being captured a collective becomes part of the graph, on GPUs that reach one another. Its memory may be
 * registered or not; other ranks must be able to map the memory that they write (p2p.h; a short collective that is one kernel writes
 * its own memory only). Else it returns PK_ERR_UNSUPPORTED, which leaves the capture unchanged. The memory must stay allocated as long
 * as the graph is launched. The call waits on the CPU until the other ranks capture their parts. All ranks replay their graphs in the
 * same order, and launch none after pk_comm_destroy; replays should have ended before it. The collectives of one communicator run one
 * after another: within a graph as they were captured, and across graphs as these are launched, in any streams. They share scratch
 * memory. The first call after the last graph that uses it is gone frees this memory, like everything that the library holds for a
 * graph; except 6 MiB a rank for collectives that are one kernel, from the first such capture until pk_comm_destroy.
 *
 * Memory of the host and of the GPU may be mixed, between the ranks and between the two buffers of a rank; then the library adds a copy
 * through pinned memory before or after. If the library's choice of algorithm depends on the kind of memory (pk_explain says so),
 * PK_ALGORITHM must lead ranks with different kinds to the same algorithm; else they get PK_ERR_MISMATCH. What comes into GPU memory
 * that other processes cannot map comes through the host (p2p.h).
 *
 * With CUDA_DEVICE_MAX_CONNECTIONS=1 or 2 a stream that waits can hold up the kernels of every other stream. There a collective on a
 * GPU that needs a kernel of the library (a reduction, or a copy inside the GPU) completes within the call, in any stream, and a
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
 * Make a reduction that multiplies the elements of each rank by a scalar of that rank, and then sums them. All ranks call an operation
 * with such a reduction, made for the same type; their scalars may differ.
 *
 * The product is rounded to `dtype` once (f16, bf16 and 8-bit floats are multiplied in f32; integers wrap), and the products are
 * summed as by PK_SUM. sendbuf does not change, except by a result in place. The products need as much scratch memory as sendbuf.
 * On a GPU the reduction needs a kernel (PK_ERR_NEEDS_SM with PK_SM_NONE).
 *
 * @param comm              the communicator
 * @param dtype             of the elements and of the scalar
 * @param scalar            one element, the caller's
 * @param scalar_is_device  0: in host memory, read in this call. 1: in memory of the communicator's GPU, read in the order of
 *                          its stream whenever an operation runs, replays of a captured one too; it stays allocated until the
 *                          last one has ended
 * @param op                out: for pk_reduce, pk_allreduce and pk_reduce_scatter of this communicator, until pk_op_destroy or
 *                          pk_comm_destroy
 * @return PK_OK; PK_ERR_ARG (null, not a type, a device scalar that is not memory of the communicator's GPU or not aligned); the
 *         error that poisoned the communicator; PK_ERR_MEMORY; PK_ERR_UNSUPPORTED (in a child of fork, the parent's
 *         communicator); PK_ERR_SYSTEM (the driver's error)
 * Local, does not block. Since 0.2.
 */
PK_API pk_result_t pk_op_create_premul(pk_comm_t *comm, pk_dtype_t dtype, const void *scalar, int scalar_is_device, pk_op_t *op);

/**
 * Destroy a reduction. Operations that have been called already, also in an open group, are not affected.
 *
 * @param comm  the communicator, which may be poisoned
 * @param op    made by pk_op_create_premul for this communicator
 * @return PK_OK; PK_ERR_ARG (null, a predefined reduction, one that this communicator does not have); PK_ERR_UNSUPPORTED (in a
 *         child of fork, the parent's communicator)
 * Local, does not block. Since 0.2.
 */
PK_API pk_result_t pk_op_destroy(pk_comm_t *comm, pk_op_t op);

/**
 * Wait until every rank has called this: no call ends (in its stream) before the last rank's call has begun.
 *
 * @param comm    the communicator
 * @param stream  where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * Moves no data and needs no kernel. Since 0.2.
 */
PK_API pk_result_t pk_barrier(pk_comm_t *comm, pk_stream_t stream);

/**
 * Copy `count` elements from the root to every rank.
 *
 * @param sendbuf  at the root: [count] elements, host or device; in place when it equals recvbuf
 * @param recvbuf  [count] elements
 * @param count    elements; 0 is legal
 * @param dtype    type of the elements
 * @param root     rank whose data it is
 * @param comm     the communicator
 * @param stream   where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * In place it never needs a kernel; out of place on a GPU the root's local copy does (PK_ERR_NEEDS_SM with PK_SM_NONE).
 * Since 0.2.
 */
PK_API pk_result_t pk_broadcast(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, int root, pk_comm_t *comm,
                                pk_stream_t stream);

/**
 * Reduce `count` elements over all ranks and leave the result at the root.
 *
 * @param sendbuf  [count] elements, host or device; at the root in place when it equals recvbuf
 * @param recvbuf  at the root: [count] elements
 * @param count    elements; 0 is legal
 * @param dtype    type of the elements
 * @param op       PK_SUM, PK_PROD, PK_MIN, PK_MAX, PK_AVG, or made by pk_op_create_premul for this type
 * @param root     rank that gets the result
 * @param comm     the communicator
 * @param stream   where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * Since 0.2.
 */
PK_API pk_result_t pk_reduce(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_op_t op, int root,
                             pk_comm_t *comm, pk_stream_t stream);

/**
 * Reduce `count` elements over all ranks and leave the result on every rank.
 *
 * @param sendbuf  [count] elements, host or device; in place when it equals recvbuf
 * @param recvbuf  [count] elements
 * @param count    elements; 0 is legal
 * @param dtype    type of the elements
 * @param op       PK_SUM, PK_PROD, PK_MIN, PK_MAX, PK_AVG, or made by pk_op_create_premul for this type
 * @param comm     the communicator
 * @param stream   where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * Since 0.1.
 */
PK_API pk_result_t pk_allreduce(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_op_t op, pk_comm_t *comm,
                                pk_stream_t stream);

/**
 * Reduce size * recvcount elements over all ranks; rank r gets elements r * recvcount and on of the result.
 *
 * @param sendbuf    [size * recvcount] elements, host or device
 * @param recvbuf    [recvcount] elements; in place when it equals sendbuf + rank * recvcount elements (other elements of sendbuf
 *                   keep their values)
 * @param recvcount  elements that each rank gets; 0 is legal
 * @param dtype      type of the elements
 * @param op         PK_SUM, PK_PROD, PK_MIN, PK_MAX, PK_AVG, or made by pk_op_create_premul for this type
 * @param comm       the communicator
 * @param stream     where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * Since 0.2.
 */
PK_API pk_result_t pk_reduce_scatter(const void *sendbuf, void *recvbuf, size_t recvcount, pk_dtype_t dtype, pk_op_t op,
                                     pk_comm_t *comm, pk_stream_t stream);

/**
 * Gather `count` elements from every rank into every rank's `recvbuf`, in rank order.
 *
 * @param sendbuf  [count] elements of `dtype`, host or device; in place when it equals recvbuf + rank * count elements
 * @param recvbuf  [size * count] elements
 * @param count    elements each rank contributes; 0 is legal
 * @param dtype    type of the elements
 * @param comm     the communicator
 * @param stream   where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * In place it never needs a kernel; out of place on a GPU the local copy does (PK_ERR_NEEDS_SM with PK_SM_NONE). Since 0.1.
 */
PK_API pk_result_t pk_allgather(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_comm_t *comm,
                                pk_stream_t stream);

/**
 * As pk_allgather, with blocks of different lengths.
 *
 * @param sendbuf      [sendcount] elements, host or device; in place when it equals recvbuf + recvoffsets[rank] elements
 * @param sendcount    elements from this rank, the same as recvcounts[rank]
 * @param recvbuf      a block of each rank
 * @param recvcounts   [size] elements of each block, the same on all ranks
 * @param recvoffsets  [size] where each block begins, in elements; NULL: one block behind the other
 * @param dtype        type of the elements
 * @param comm         the communicator
 * @param stream       where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * In place it never needs a kernel; out of place on a GPU the local copy does (PK_ERR_NEEDS_SM with PK_SM_NONE). Since 0.2.
 */
PK_API pk_result_t pk_allgatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                                 const size_t *recvoffsets, pk_dtype_t dtype, pk_comm_t *comm, pk_stream_t stream);

/**
 * Send block p of sendbuf to rank p, for every p, and put what comes from rank p into block p of recvbuf.
 *
 * @param sendbuf  [size * count] elements, host or device; in place when it equals recvbuf
 * @param recvbuf  [size * count] elements
 * @param count    elements of one block; 0 is legal
 * @param dtype    type of the elements
 * @param comm     the communicator
 * @param stream   where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * On a GPU in place the operation needs a kernel (PK_ERR_NEEDS_SM with PK_SM_NONE). Out of place the copy of the rank's own block needs
 * a kernel. With PK_SM_NONE that block goes through host memory instead, which a captured stream refuses with PK_ERR_NEEDS_SM; a block
 * of 2 MiB or more goes to the next GPU and back instead, if NVLink joins all GPUs, which takes GPU memory of the length of a block.
 * Since 0.2.
 */
PK_API pk_result_t pk_alltoall(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, pk_comm_t *comm,
                               pk_stream_t stream);

/**
 * As pk_alltoall, with blocks of different lengths. What it needs of a GPU is the same.
 *
 * @param sendbuf      a block for each rank, host or device; in place when it equals recvbuf: then counts and offsets of both are
 *                     the same
 * @param sendcounts   [size] elements for each rank
 * @param sendoffsets  [size] where each block begins, in elements; NULL: one block behind the other
 * @param recvbuf      a block of each rank
 * @param recvcounts   [size] elements from each rank
 * @param recvoffsets  [size] where each block begins, in elements; NULL: one block behind the other
 * @param dtype        type of the elements
 * @param comm         the communicator
 * @param stream       where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * Since 0.2.
 */
PK_API pk_result_t pk_alltoallv(const void *sendbuf, const size_t *sendcounts, const size_t *sendoffsets, void *recvbuf,
                                const size_t *recvcounts, const size_t *recvoffsets, pk_dtype_t dtype, pk_comm_t *comm,
                                pk_stream_t stream);

/**
 * Gather `count` elements from every rank into the root's `recvbuf`, in rank order.
 *
 * @param sendbuf  [count] elements, host or device; at the root in place when it equals recvbuf + root * count elements
 * @param recvbuf  at the root: [size * count] elements
 * @param count    elements each rank contributes; 0 is legal
 * @param dtype    type of the elements
 * @param root     rank that gets them
 * @param comm     the communicator
 * @param stream   where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * Since 0.2.
 */
PK_API pk_result_t pk_gather(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, int root, pk_comm_t *comm,
                             pk_stream_t stream);

/**
 * As pk_gather, with blocks of different lengths.
 *
 * @param sendbuf      [sendcount] elements, host or device; at the root in place when it equals recvbuf + recvoffsets[root]
 *                     elements
 * @param sendcount    elements from this rank
 * @param recvbuf      at the root: a block of each rank
 * @param recvcounts   at the root: [size] elements of each block; recvcounts[root] equals sendcount
 * @param recvoffsets  at the root: [size] where each block begins, in elements; NULL: one block behind the other
 * @param dtype        type of the elements
 * @param root         rank that gets them
 * @param comm         the communicator
 * @param stream       where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * Since 0.2.
 */
PK_API pk_result_t pk_gatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                              const size_t *recvoffsets, pk_dtype_t dtype, int root, pk_comm_t *comm, pk_stream_t stream);

/**
 * Send block p of the root's `sendbuf` to rank p, for every p.
 *
 * @param sendbuf  at the root: [size * count] elements, host or device
 * @param recvbuf  [count] elements; in place when it equals sendbuf + root * count elements
 * @param count    elements that each rank gets; 0 is legal
 * @param dtype    type of the elements
 * @param root     rank whose data it is
 * @param comm     the communicator
 * @param stream   where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * Since 0.2.
 */
PK_API pk_result_t pk_scatter(const void *sendbuf, void *recvbuf, size_t count, pk_dtype_t dtype, int root, pk_comm_t *comm,
                              pk_stream_t stream);

/**
 * As pk_scatter, with blocks of different lengths.
 *
 * @param sendbuf      at the root: a block for each rank, host or device
 * @param sendcounts   at the root: [size] elements of each block; sendcounts[root] equals recvcount
 * @param sendoffsets  at the root: [size] where each block begins, in elements; NULL: one block behind the other
 * @param recvbuf      [recvcount] elements; at the root in place when it equals sendbuf + sendoffsets[root] elements
 * @param recvcount    elements for this rank
 * @param dtype        type of the elements
 * @param root         rank whose data it is
 * @param comm         the communicator
 * @param stream       where the operation ends: PK_BLOCKING, a host stream or PK_CUDA_STREAM (stream.h)
 * @return PK_OK; the errors common to all
 * Since 0.2.
 */
PK_API pk_result_t pk_scatterv(const void *sendbuf, const size_t *sendcounts, const size_t *sendoffsets, void *recvbuf,
                               size_t recvcount, pk_dtype_t dtype, int root, pk_comm_t *comm, pk_stream_t stream);

#ifdef __cplusplus
}
#endif

#endif
