/* SPDX-License-Identifier: Apache-2.0 */
/* What the entry points share: argument checks with texts, and the way of an operation into a group or the engine. */
#ifndef PKI_API_H
#define PKI_API_H

#include <stdatomic.h>

#include "comm/comm.h"
#include "util/cancel.h"

/* What an entry point returns at its end, when it has held cancellation from its beginning. */
static inline pk_result_t pki_leave(int cancel, pk_result_t result)
{
    pki_cancel_release(cancel);
    return result;
}

/* What PK_WITHIN has put into a stream; 0: nothing. The stream is as without it then. */
static inline uint64_t pki_take_timeout(pk_stream_t *stream)
{
    const uint64_t ms = (uint64_t)stream->kind >> PK_STREAM_KIND_BITS;
    const uint64_t most = (uint64_t)1 << 40; /* longer than any program runs, and no overflow in nanoseconds */

    stream->kind &= ((uintptr_t)1 << PK_STREAM_KIND_BITS) - 1;
    return ms < most ? ms : most;
}

/* Who calls what, for error records: rank and peer are -1 until pki_check_comm has set the rank. */
#define PKI_CALL(name) \
    { \
        .rank = -1, .peer = -1, .op = (name) \
    }

/* This process made it, its init went well, and it has not been finalized. Whether it has failed since is for the engine to
 * say. */
static inline bool pki_check_ready(const pk_comm_t *comm)
{
    return pki_fork_is_ours(comm->stamp) && atomic_load_explicit(&comm->state, memory_order_acquire) == PK_OK;
}

/* PK_OK when this process made it. */
pk_result_t pki_check_own(const pk_comm_t *comm, const struct pki_where *call);
/* PK_OK when it is up, and has not failed. */
pk_result_t pki_check_comm(pk_comm_t *comm, struct pki_where *call);
/* And operations may be called on it. */
pk_result_t pki_check_open(pk_comm_t *comm, struct pki_where *call);
/* There is such a rank, and somebody has its number: PK_ERR_ARG, PK_ERR_PEER. The communicator is up. */
pk_result_t pki_check_peer(const pk_comm_t *comm, int peer, struct pki_where *call);
/* It has no holes. PK_ERR_PEER. */
pk_result_t pki_check_full(const pk_comm_t *comm, struct pki_where *call);
pk_result_t pki_check_dtype(pk_dtype_t dtype, const struct pki_where *call);
/* Those two and the stream. */
pk_result_t pki_check_common(pk_comm_t *comm, pk_dtype_t dtype, pk_stream_t stream, struct pki_where *call);
pk_result_t pki_check_stream(pk_stream_t stream, const struct pki_where *call);
/* count * multiple elements must fit an address space. */
pk_result_t pki_check_count(size_t count, size_t multiple, pk_dtype_t dtype, const struct pki_where *call);
/* The same, and null only with 0 elements. */
pk_result_t pki_check_buffer(const void *buf, size_t count, pk_dtype_t dtype, const char *name, const struct pki_where *call);

/* Keep it for the end of the calling thread's open group. */
pk_result_t pki_group_record(pk_comm_t *comm, const struct pki_request *request);
/* Threads of the process that have a group open. Every call asks, and while there is none no function need be called for the
 * address of the thread's own memory. (Memory at a fixed place in each thread would spare that too, but it is scarce: a
 * process that opens the library late, or has it twice, may have none left.) */
extern atomic_int pki_open_groups;
bool pki_thread_in_group(void);
/* Is a group open in the calling thread? */
static inline bool pki_in_group(void)
{
    /* a thread sees what it counted itself */
    return atomic_load_explicit(&pki_open_groups, memory_order_relaxed) > 0 && pki_thread_in_group();
}
/* Run now, or at the end of that group. */
static inline pk_result_t pki_submit(pk_comm_t *comm, const struct pki_request *request)
{
    return pki_in_group() ? pki_group_record(comm, request) : pki_engine_run(comm->engine, request);
}
/* A call inside a group found an error: the group's end returns it too. Passes `result` through. */
pk_result_t pki_submit_refused(pk_result_t result);
/* A communicator or a host stream (or NULL) is about to go: the calling thread's open group cannot start what it has recorded
 * for it. */
void pki_group_forgo(const pk_comm_t *comm, const void *stream);

#endif
