/* SPDX-License-Identifier: Apache-2.0 */
/* What the entry points share: argument checks with texts, and the way of an operation into a group or the engine. */
#ifndef PKI_API_H
#define PKI_API_H

#include "comm/comm.h"

/* PK_OK when operations may be called on it; a text that names `call` otherwise. */
pk_result_t pki_check_comm(pk_comm_t *comm, const char *call);
pk_result_t pki_check_dtype(pk_dtype_t dtype, const char *call);
pk_result_t pki_check_stream(pk_stream_t stream, const char *call);
/* Null only with 0 elements; count * multiple elements must fit an address space. */
pk_result_t pki_check_buffer(const void *buf, size_t count, size_t multiple, pk_dtype_t dtype, const char *name, const char *call);

/* Run now, or record in the calling thread's open group. */
pk_result_t pki_submit(pk_comm_t *comm, const struct pki_request *request);
/* A call inside a group found an error: the group's end returns it too. Passes `result` through. */
pk_result_t pki_submit_refused(pk_result_t result);

#endif
