/* SPDX-License-Identifier: Apache-2.0 */
/* What is used of NCCL, opened at run time: its header is not needed to build this. Codes: 0 is success. */
#ifndef NCCL_CALLS_H
#define NCCL_CALLS_H

#include <stddef.h>

enum { NCCL_ID_BYTES = 128, NCCL_INT32 = 2, NCCL_INT64 = 4, NCCL_F32 = 7, NCCL_F64 = 8, NCCL_BF16 = 9, NCCL_SUM = 0 };

struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};

struct nccl_calls {
    int (*ncclGetVersion)(int *version);
    const char *(*ncclGetErrorString)(int code);
    int (*ncclGetUniqueId)(struct nccl_id *id);
    int (*ncclCommInitRank)(void **comm, int size, struct nccl_id id, int rank);
    int (*ncclCommDestroy)(void *comm);
    int (*ncclGroupStart)(void);
    int (*ncclGroupEnd)(void);
    int (*ncclSend)(const void *buffer, size_t count, int type, int peer, void *comm, void *stream);
    int (*ncclRecv)(void *buffer, size_t count, int type, int peer, void *comm, void *stream);
    int (*ncclAllGather)(const void *source, void *result, size_t count, int type, void *comm, void *stream);
    int (*ncclReduceScatter)(const void *source, void *result, size_t count, int type, int op, void *comm, void *stream);
    int (*ncclAllReduce)(const void *source, void *result, size_t count, int type, int op, void *comm, void *stream);
};

/* What came with 2.27: memory and windows that its zero-CTA way (2.28) wants. */
struct nccl_window_calls {
    int (*ncclMemAlloc)(void **memory, size_t bytes);
    int (*ncclMemFree)(void *memory);
    int (*ncclCommWindowRegister)(void *comm, void *memory, size_t bytes, void **window, int flags);
    int (*ncclCommWindowDeregister)(void *comm, void *window);
};

/* `given`: its path, or NULL or empty for libnccl.so.2 where it is usually found. NULL: it is not here, and `why` (static) says so. Sets an
 * environment variable (NVLink multicast stays off): call it while there is one thread. */
const struct nccl_calls *nccl_load(const char *given, const char **why);
/* After nccl_load. NULL: this NCCL has them not. */
const struct nccl_window_calls *nccl_load_windows(void);
/* "NCCL 2.28.9" */
const char *nccl_name(void);

#endif
