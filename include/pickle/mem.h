/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mem.h
 * Registered memory, and memory of the host and of GPUs that other processes can map. No operation needs registered memory.
 */
#ifndef PICKLE_MEM_H
#define PICKLE_MEM_H

#include "pickle/base.h"
#include "pickle/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Declare that [ptr, ptr + bytes) stays allocated until pk_deregister, and learn whether other processes can map it. No operation
 * needs this, not even captured operations: these share the memory that they use.
 *
 * @param comm   the communicator whose operations will use it
 * @param ptr    device memory of the communicator's device, or host memory; stays the caller's
 * @param bytes  1 and up
 * @return PK_OK; PK_ERR_ARG (null, empty, beyond the end of the address space, memory of another device); PK_ERR_MEMORY;
 *         PK_ERR_UNSUPPORTED (memory that cannot be shared between processes; in a child of fork, the parent's communicator);
 *         PK_ERR_SYSTEM (the driver's error); the error that poisoned the communicator
 * Local, does not block. Ranges may overlap; each pk_register needs its own pk_deregister. Since 0.1.
 */
PK_API pk_result_t pk_register(pk_comm_t *comm, void *ptr, size_t bytes);

/**
 * End a registration made with the same three arguments. Graphs that use the memory must not be launched any more.
 *
 * @param comm   the communicator
 * @param ptr    as given to pk_register
 * @param bytes  as given to pk_register
 * @return PK_OK; PK_ERR_ARG (null, empty, no such registration); PK_ERR_UNSUPPORTED (in a child of fork, the parent's
 *         communicator); the error that poisoned the communicator, whose pk_comm_destroy ends all registrations
 * Local, does not block. Since 0.1.
 */
PK_API pk_result_t pk_deregister(pk_comm_t *comm, void *ptr, size_t bytes);

/**
 * Allocate host memory that the ranks of this host map: transfers and reductions read and write it in place, without the kernel. It is
 * the fastest memory for messages of 64 KiB and more.
 *
 * @param comm   the communicator whose operations will use it; others treat it as ordinary memory
 * @param bytes  1 and up, rounded up to whole pages, of 2 MiB for 2 MiB and more
 * @param ptr    out: zeroed memory, aligned to 4096 bytes; pk_mem_free gives it back, and pk_comm_destroy does at the latest
 * @return PK_OK; PK_ERR_ARG (null, no bytes); PK_ERR_MEMORY (EFBIG: more than ulimit -f allows); PK_ERR_SYSTEM (no descriptors;
 *         the driver cannot pin it); PK_ERR_UNSUPPORTED (in a child of fork, the parent's communicator); the error that poisoned
 *         the communicator
 * Local, does not block. With a GPU the memory is pinned, so that CUDA streams may use it. A child of fork shares it. Where a sandbox
 * denies memfd_create it is ordinary memory. Since 0.2.
 */
PK_API pk_result_t pk_mem_alloc(pk_comm_t *comm, size_t bytes, void **ptr);

/**
 * Allocate GPU memory that other processes of the machine can map, and that every GPU of this process can use that reaches it: one
 * piece of virtual memory (cuMemCreate), which a network card can read and write if the driver allows that. If the driver has no such
 * memory, the call allocates as cudaMalloc does.
 *
 * @param comm   a communicator: its GPU. NULL: the calling thread's current device
 * @param bytes  1 and up, rounded up to the granularity of the driver, usually 2 MiB
 * @param ptr    out: uninitialized memory; the caller's until pk_mem_free, also after pk_comm_destroy
 * @return PK_OK; PK_ERR_ARG (null, no bytes); PK_ERR_UNSUPPORTED (no GPU, no driver, a library without CUDA; in a child of fork,
 *         the parent's communicator); PK_ERR_MEMORY; PK_ERR_SYSTEM (the driver's error); the error that poisoned the communicator
 * Local; may wait for the GPU. Any thread with comm NULL, also while it captures a stream. Since 0.2.
 */
PK_API pk_result_t pk_mem_alloc_device(pk_comm_t *comm, size_t bytes, void **ptr);

/**
 * Free memory of pk_mem_alloc or pk_mem_alloc_device. No operation may use it any more.
 *
 * @param comm  for memory of pk_mem_alloc, its communicator; for memory of pk_mem_alloc_device any communicator, or NULL
 * @param ptr   memory of pk_mem_alloc or pk_mem_alloc_device; NULL does nothing if comm is not NULL
 * @return PK_OK; PK_ERR_ARG (anything else); PK_ERR_UNSUPPORTED (in a child of fork, the parent's); PK_ERR_SYSTEM (the driver's
 *         error); for pk_mem_alloc's memory the error that poisoned the communicator, whose pk_comm_destroy frees it
 * Local; with GPU memory the call may wait for the GPU. Since 0.2.
 */
PK_API pk_result_t pk_mem_free(pk_comm_t *comm, void *ptr);

#ifdef __cplusplus
}
#endif

#endif
