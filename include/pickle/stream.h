/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stream.h
 * Where an operation ends: in the call itself, in a host stream, or in a CUDA stream.
 *
 * Every operation takes a pk_stream_t. The stream says *how* the operation ends; the memory of its buffers decides which path the
 * bytes take. Host memory in a CUDA stream is legal.
 */
#ifndef PICKLE_STREAM_H
#define PICKLE_STREAM_H

#include "pickle/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What the handle of a pk_stream_t is. */
enum {
    PK_STREAM_KIND_BLOCKING = 0, /**< none: the call returns when the buffers are the caller's again */
    PK_STREAM_KIND_HOST = 1,     /**< made by pk_stream_create */
    PK_STREAM_KIND_CUDA = 2      /**< a cudaStream_t or CUstream of the communicator's device; NULL is the legacy stream */
};

/** A stream by value. Its two words are part of the ABI. */
typedef struct pk_stream {
    uintptr_t kind;
    void *handle;
} pk_stream_t;

#ifdef __cplusplus
#define PK_STREAM_VALUE(kind, handle) (pk_stream_t{ (kind), (handle) })
#else
#define PK_STREAM_VALUE(kind, handle) ((pk_stream_t){ (kind), (handle) })
#endif

/** The call itself waits: on return the buffers are the caller's again. */
#define PK_BLOCKING PK_STREAM_VALUE(PK_STREAM_KIND_BLOCKING, 0)

/** A CUDA stream: the call returns at once and the operation takes its place in the stream, as a kernel would. */
#define PK_CUDA_STREAM(stream) PK_STREAM_VALUE(PK_STREAM_KIND_CUDA, (void *)(stream))

/**
 * A stream with a deadline for the call, instead of the communicator's timeout_ms: shorter or longer.
 *
 *     pk_allreduce(in, out, n, PK_F32, PK_SUM, comm, PK_WITHIN(PK_BLOCKING, 50));
 *     pk_send(buf, n, PK_F32, peer, comm, PK_WITHIN(stream, 2000));
 *
 * `stream` is any of the three kinds, and is evaluated twice. The time begins with the call, also where the operation waits for
 * others in its stream; in a group, with pk_group_end. When it is over the operation ends as at the communicator's deadline:
 * PK_ERR_TIMEOUT, which names who is missing, if anybody is, and the communicator has failed. 0 milliseconds: the communicator's
 * deadline; that one alone, timeout_ms, counts while a call is inside the GPU's driver. Of two deadlines the outer one holds. A
 * captured operation cannot have one (PK_ERR_UNSUPPORTED). Each operation has its own: calls that take a host stream and
 * nothing else, such as pk_stream_synchronize, refuse such a stream. Since 0.3.
 */
#define PK_WITHIN(stream, milliseconds) \
    PK_STREAM_VALUE(((stream).kind & (((uintptr_t)1 << PK_STREAM_KIND_BITS) - 1)) | (uintptr_t)(milliseconds) \
                                                                                        << PK_STREAM_KIND_BITS, \
                    (stream).handle)

/** The lower bits of pk_stream_t.kind say what the handle is; those above are PK_WITHIN's. */
#define PK_STREAM_KIND_BITS 8

/**
 * Make a host stream: its operations run one after another in the order of the calls, and a thread of the library drives them;
 * each call returns at once. Operations of different communicators may share a stream.
 *
 * @param stream  out: the stream, the caller's until pk_stream_destroy
 * @return PK_OK; PK_ERR_ARG (null); PK_ERR_MEMORY; PK_ERR_SYSTEM (no thread can be made: EAGAIN; nothing else has failed)
 * The first host stream makes the library's thread, which all host streams share. Does not block. Any thread. Since 0.1.
 */
PK_API pk_result_t pk_stream_create(pk_stream_t *stream);

/**
 * Wait until every operation of a host stream has ended.
 *
 * @param stream  made by pk_stream_create
 * @return PK_OK; PK_ERR_ARG (not a host stream); PK_ERR_UNSUPPORTED (in a child of fork, the parent's stream); else the first
 *         error of an operation in the stream since it was last returned
 * Bounded by the deadlines of the operations. Since 0.1.
 */
PK_API pk_result_t pk_stream_synchronize(pk_stream_t stream);

/**
 * Like pk_stream_synchronize without waiting.
 *
 * @param stream  made by pk_stream_create
 * @return PK_IN_PROGRESS (an operation has not ended); as pk_stream_synchronize
 * Since 0.1.
 */
PK_API pk_result_t pk_stream_query(pk_stream_t stream);

/**
 * Synchronize and free a host stream. The stream is invalid afterwards, whatever the call returns; a handle that is not a stream
 * of this process is not touched.
 *
 * @param stream  made by pk_stream_create
 * @return as pk_stream_synchronize
 * Bounded by the deadlines of the operations. Since 0.1.
 */
PK_API pk_result_t pk_stream_destroy(pk_stream_t stream);

#ifdef __cplusplus
}
#endif

#endif
