/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CUDA device share. Included in lib/device/cuda* alone. */
#ifndef PKI_CUDA_DEVICE_H
#define PKI_CUDA_DEVICE_H

#include <pthread.h>

#include "device/cuda_driver.h"
#include "device/device.h"
#include "tuning/tuning.h"
#include "util/list.h"

enum pki_cuda_kernel { /* the typed ones: one for each pk_dtype_t */
                       PKI_CUDA_WAIT,
                       PKI_CUDA_SERVE,
                       PKI_CUDA_LL,
                       PKI_CUDA_LL_ROW,
                       PKI_CUDA_TURN,
                       PKI_CUDA_EXCHANGE,
                       PKI_CUDA_PUSH,
                       PKI_CUDA_UNPACK,
                       PKI_CUDA_MOVE,
                       PKI_CUDA_SCALE,
                       PKI_CUDA_FOLD,
                       PKI_CUDA_RELAY,
                       PKI_CUDA_TWOSHOT,
                       PKI_CUDA_TWOSHOT_ANY,
                       PKI_CUDA_PUSH_SUM,
                       PKI_CUDA_PAIR_EXCHANGE,
                       PKI_CUDA_PAIR_F32,
                       PKI_CUDA_PAIR_F16,
                       PKI_CUDA_PAIR_BF16,
                       PKI_CUDA_REPLAY_EXCHANGE,
                       PKI_CUDA_REPLAY_FOLD,
                       PKI_CUDA_REPLAY_PAIR_EXCHANGE,
                       PKI_CUDA_REPLAY_PAIR_F32, /* these three in the order of the others */
                       PKI_CUDA_REPLAY_PAIR_F16,
                       PKI_CUDA_REPLAY_PAIR_BF16,
                       PKI_CUDA_REDUCE, /* one a type */
                       PKI_CUDA_KERNELS = PKI_CUDA_REDUCE + PK_DTYPE_COUNT
};

/* A stream of the library's own (cuda_pool.c). */
struct pki_cuda_stream {
    struct pki_list node; /* context->spare */
    CUstream handle;
    _Atomic uint32_t *word;        /* of context->words; NULL: there were too many */
    uint32_t asked;                /* what the stream is to write there, or has */
    bool pending;                  /* it was asked for, and has not been seen */
    uint64_t asked_ns, cleared_ns; /* when; and when it was last seen */
    uint64_t timeout_ns;           /* after which another stream takes its place */
};

/* A GPU's primary context as this process uses it: one object a GPU, shared and counted. Everything but refs, imports, closing
 * and what cuda_pool.c has is fixed once its first user has it; the first three are guarded by the process's lock. */
struct pki_cuda_context {
    const struct pki_cuda_driver *cu;
    int refs;
    int ordinal;
    CUdevice device;
    CUcontext handle;
    CUmodule module;
    CUfunction kernels[PKI_CUDA_KERNELS];
    bool early_launch;       /* a kernel can be launched before the one ahead of it in the stream has ended (sm_90) */
    bool bulk_copies;        /* the code of pki_twoshot has them (sm_90), and may have the shared memory for them */
    struct pki_list imports; /* IPC mappings, cuda_share.c's */
    int closing;             /* of them */
    pthread_mutex_t spare_lock;
    struct pki_list spare; /* streams that no queue has */
    int nspare;
    char *words;
    atomic_uint words_used;
};

/* One range that classify has seen, in pieces: VMM memory has one for each cuMemMap, all other memory one. */
struct pki_cuda_range {
    struct pki_mem mem;  /* bytes is 0 in an unused entry */
    size_t first, piece; /* bytes of the first piece, and of each further one */
    uint32_t pieces;
    uint64_t *ids; /* [pieces] what the driver must still answer for a piece to be the same memory; malloc'ed */
};

struct pki_cuda {
    struct pki_device base;
    const struct pki_cuda_driver *cu;
    struct pki_cuda_context *context;
    struct pki_device_info info;
    struct pki_cuda_range ranges[PKI_CUDA_RANGES];
    unsigned next_range; /* to be replaced */
    CUevent followed;    /* follow's; NULL: none yet */
};

static inline struct pki_cuda *pki_cuda(struct pki_device *device)
{
    return pki_container_of(device, struct pki_cuda, base);
}

/* ---- cuda_context.c ---- */

/* The lock of everything this process shares between devices: contexts, IPC mappings, registrations. */
void pki_cuda_lock(void);
void pki_cuda_unlock(void);

/* Make the context current and captures relaxed for this thread, until leave. Nests. Cheap when it is so already. */
void pki_cuda_enter(struct pki_cuda_context *context);
void pki_cuda_leave(struct pki_cuda_context *context);

/* ---- cuda.c ---- */

/* One more user of a context that the caller holds already, and one less; the last one gives the context back to the driver. Both
 * with the lock held. */
void pki_cuda_context_ref(struct pki_cuda_context *context);
void pki_cuda_context_unref(struct pki_cuda_context *context);

/* ---- cuda_range.c ---- */

void pki_cuda_ranges_close(struct pki_cuda *cuda);
pk_result_t pki_cuda_classify(struct pki_device *device, const void *ptr, size_t bytes, struct pki_mem *mem);

/* The piece of VMM memory (one cuMemMap) that address lies in. *handle is retained: the caller releases it. PK_ERR_UNSUPPORTED
 * without a log line when the address is not VMM memory. */
pk_result_t pki_cuda_piece(const struct pki_cuda_context *context, uintptr_t address, uintptr_t *base, size_t *bytes,
                           CUmemGenericAllocationHandle *handle);

/* ---- cuda_mem.c ---- */

pk_result_t pki_cuda_alloc(struct pki_device *device, size_t bytes, void **ptr);
pk_result_t pki_cuda_zero(struct pki_device *device, void *ptr, size_t bytes);
void pki_cuda_free(struct pki_device *device, void *ptr);
pk_result_t pki_cuda_host_register(struct pki_device *device, void *ptr, size_t bytes);
void pki_cuda_host_unregister(struct pki_device *device, void *ptr);

/* ---- cuda_share.c ---- */

pk_result_t pki_cuda_export(struct pki_device *device, const struct pki_mem *mem, struct pki_export *out);
pk_result_t pki_cuda_import(struct pki_device *device, const struct pki_export *in, bool same_process, void **base);
void pki_cuda_unimport(struct pki_device *device, const struct pki_export *in, bool same_process, void *base);
void pki_cuda_drop_stale_mappings(struct pki_device *device);

/* ---- cuda_dmabuf.c ---- */

pk_result_t pki_cuda_dmabuf(struct pki_device *device, const struct pki_mem *mem, int *fd);
pk_result_t pki_cuda_settle(struct pki_device *device);

/* ---- cuda_pool.c ---- */

/* With the context current. Close: no queue is open any more. */
pk_result_t pki_cuda_pool_open(struct pki_cuda_context *context);
void pki_cuda_pool_close(struct pki_cuda_context *context);
pk_result_t pki_cuda_queue_open(struct pki_device *device, struct pki_queue *queue);
void pki_cuda_queue_close(struct pki_queue *queue);
bool pki_cuda_clear(struct pki_queue *queue, bool work);

/* ---- cuda_queue.c ---- */

bool pki_cuda_idle(const struct pki_queue *queue);
pk_result_t pki_cuda_follow(const struct pki_queue *queue, const struct pki_queue *before);
pk_result_t pki_cuda_capturing(const struct pki_queue *queue, bool *yes, uint64_t *id);
pk_result_t pki_cuda_copy(const struct pki_queue *queue, void *dst, const void *src, size_t bytes);
pk_result_t pki_cuda_signals(const struct pki_queue *queue, const struct pki_signal_op *ops, int n, enum pki_wait_how how);

/* ---- cuda_graph.c ---- */

pk_result_t pki_cuda_graph_keep(const struct pki_queue *queue, void (*gone)(void *arg), void *arg);
void pki_cuda_graphs_wait(struct pki_device *device);
pk_result_t pki_cuda_replay_lock_open(struct pki_device *device, void **turn);
void pki_cuda_replay_lock_close(struct pki_device *device, void *turn);
pk_result_t pki_cuda_replay_lock(const struct pki_queue *queue, void *turn, void *last);
pk_result_t pki_cuda_replay_unlock(const struct pki_queue *queue, void *turn, void **last);

/* ---- cuda_kernels.c ---- */

/* Load every kernel into the context, which is current, and unload them. At open and not at the first launch: the driver may
 * synchronise the whole context to load code, and by then a queue may be waiting for what only this thread can give. */
pk_result_t pki_cuda_kernels_load(struct pki_cuda_context *context);
void pki_cuda_kernels_unload(struct pki_cuda_context *context);

/* Poll the n words with one warp, n <= PKI_WAIT_WORDS_MAX, none of them a write. */
pk_result_t pki_cuda_wait_kernel(const struct pki_queue *queue, const struct pki_signal_op *ops, int n);
pk_result_t pki_cuda_serve_kernel(const struct pki_queue *queue, const struct pki_signal_op *ops, int n,
                                  const struct pki_serving *serving);
bool pki_cuda_reduces(const struct pki_device *device, pk_dtype_t dtype, pk_op_t op);
pk_result_t pki_cuda_reduce(const struct pki_queue *queue, void *dst, const void *const *srcs, int n, size_t count,
                            pk_dtype_t dtype, pk_op_t op);
pk_result_t pki_cuda_scale(const struct pki_queue *queue, void *dst, const void *src, size_t count, pk_dtype_t dtype,
                           const struct pki_factor *factor);
pk_result_t pki_cuda_fused(const struct pki_queue *queue, enum pki_fused_kernel kernel, pk_dtype_t dtype, int ctas,
                           const struct pki_fused_args *args);
pk_result_t pki_cuda_unpack(const struct pki_queue *queue, void *dst, const void *src,
                            const struct pki_unpack_fragment *fragments, int n);
pk_result_t pki_cuda_move(const struct pki_queue *queue, const struct pki_move_op *ops, int n, int ctas,
                          const _Atomic uint32_t *abort_flag);
pk_result_t pki_cuda_ll(const struct pki_queue *queue, const struct pki_ll_op *ops, int n, int ctas,
                        const _Atomic uint32_t *abort_flag);

#endif
