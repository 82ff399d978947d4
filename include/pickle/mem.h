/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mem.h
 * Registered memory: what captured operations need, and what is mapped by peers ahead of time.
 */
#ifndef PICKLE_MEM_H
#define PICKLE_MEM_H

#include "pickle/base.h"
#include "pickle/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Declare that [ptr, ptr + bytes) stays allocated until pk_deregister: CUDA-graph captures may then use it, and its handle is
 * exported once.
 *
 * @param ptr    device memory of the communicator's device, or host memory; stays the caller's
 * @param bytes  1 and up
 * @return PK_OK; PK_ERR_ARG (null, empty, memory of another device); PK_ERR_MEMORY; PK_ERR_UNSUPPORTED (memory that cannot be
 *         shared between processes)
 * Local, does not block. Ranges may overlap; each register wants its own deregister. Since 0.1.
 */
PK_API pk_result_t pk_register(pk_comm_t *comm, void *ptr, size_t bytes);

/**
 * End a registration made with the same three arguments. Graphs that use the memory must not be launched any more.
 * @return PK_OK; PK_ERR_ARG (no such registration). Since 0.1.
 */
PK_API pk_result_t pk_deregister(pk_comm_t *comm, void *ptr, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
