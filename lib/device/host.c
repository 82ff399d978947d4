/* SPDX-License-Identifier: Apache-2.0 */
/* The host as a device: every queue does its work in the call. */
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "util/log.h"

#define LINE_BYTES 64u
#define PAGE_BYTES 4096u

/* It has no state, so that one serves all communicators. */
static struct pki_device host = { .ops = &pki_device_host };

static pk_result_t host_open(int ordinal, struct pki_device **device)
{
    (void)ordinal;
    *device = &host;
    return PK_OK;
}

static void host_nothing(struct pki_device *device)
{
    (void)device;
}

/* Whatever memory it is, the host calls it its own: base and bytes are the range itself. */
static pk_result_t host_classify(struct pki_device *device, const void *ptr, size_t bytes, struct pki_mem *mem)
{
    (void)device;
    *mem = (struct pki_mem){ .kind = PKI_MEM_HOST, .ordinal = -1, .base = (uintptr_t)ptr, .bytes = bytes };
    return PK_OK;
}

/* Page-aligned where it fills pages: copies between buffers of equal page offset are the fast ones. */
static pk_result_t host_alloc(struct pki_device *device, size_t bytes, void **ptr)
{
    size_t alignment = bytes < PAGE_BYTES ? LINE_BYTES : PAGE_BYTES;
    size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void *p = rounded < bytes ? NULL : aligned_alloc(alignment, rounded == 0 ? alignment : rounded);

    (void)device;
    if (p == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no host memory for %zu bytes", bytes);
    memset(p, 0, rounded);
    *ptr = p;
    return PK_OK;
}

static pk_result_t host_zero(struct pki_device *device, void *ptr, size_t bytes)
{
    (void)device;
    memset(ptr, 0, bytes);
    return PK_OK;
}

static void host_free(struct pki_device *device, void *ptr)
{
    (void)device;
    free(ptr);
}

static pk_result_t host_register(struct pki_device *device, void *ptr, size_t bytes)
{
    (void)device;
    (void)ptr;
    (void)bytes;
    return PK_OK;
}

static void host_unregister(struct pki_device *device, void *ptr)
{
    (void)device;
    (void)ptr;
}

static pk_result_t host_export(struct pki_device *device, const struct pki_mem *mem, struct pki_export *out)
{
    (void)device;
    *out = (struct pki_export){ .kind = PKI_EXPORT_ADDRESS, .base = mem->base, .bytes = mem->bytes, .buffer_id = mem->buffer_id };
    return PK_OK;
}

static pk_result_t host_import(struct pki_device *device, const struct pki_export *in, bool same_process, void **base)
{
    (void)device;
    if (in->kind != PKI_EXPORT_ADDRESS || !same_process)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "host memory of another process cannot be mapped: only its address is known");
    *base = (void *)(uintptr_t)in->base;
    return PK_OK;
}

static void host_unimport(struct pki_device *device, const struct pki_export *in, bool same_process, void *base)
{
    (void)device;
    (void)in;
    (void)same_process;
    (void)base;
}

static pk_result_t host_dmabuf(struct pki_device *device, const struct pki_mem *mem, int *fd)
{
    (void)device, (void)mem, (void)fd;
    return PK_ERR_UNSUPPORTED;
}

static pk_result_t host_settle(struct pki_device *device)
{
    (void)device;
    return PK_OK;
}

static void host_drop_stale_mappings(struct pki_device *device)
{
    (void)device;
}

static pk_result_t host_queue_open(struct pki_device *device, struct pki_queue *queue)
{
    *queue = (struct pki_queue){ .device = device };
    return PK_OK;
}

static bool host_clear(struct pki_queue *queue, bool work)
{
    (void)queue, (void)work;
    return true;
}

static void host_queue_close(struct pki_queue *queue)
{
    queue->device = NULL;
}

static bool host_idle(const struct pki_queue *queue)
{
    (void)queue;
    return true;
}

static pk_result_t host_follow(const struct pki_queue *queue, const struct pki_queue *before)
{
    (void)queue;
    (void)before;
    return PK_OK;
}

static pk_result_t host_capturing(const struct pki_queue *queue, bool *yes, uint64_t *id)
{
    (void)queue;
    *yes = false;
    *id = 0;
    return PK_OK;
}

static pk_result_t host_copy(const struct pki_queue *queue, void *dst, const void *src, size_t bytes)
{
    (void)queue;
    if (bytes > 0 && dst != src)
        memcpy(dst, src, bytes);
    return PK_OK;
}

static pk_result_t host_reduce(const struct pki_queue *queue, void *dst, const void *const *srcs, int n, size_t count,
                               pk_dtype_t dtype, pk_op_t op)
{
    (void)queue;
    return pki_reduce_host(dst, srcs, n, count, dtype, op);
}

static pk_result_t host_scale(const struct pki_queue *queue, void *dst, const void *src, size_t count, pk_dtype_t dtype,
                              const struct pki_factor *factor)
{
    (void)queue;
    return pki_scale_host(dst, src, count, dtype, factor);
}

static bool host_reduces(const struct pki_device *device, pk_dtype_t dtype, pk_op_t op)
{
    (void)device;
    (void)dtype;
    return op <= PK_AVG;
}

/* All or nothing: a wait among the operations is found before a word is written. */
static pk_result_t host_signals(const struct pki_queue *queue, const struct pki_signal_op *ops, int n, enum pki_wait_how how)
{
    (void)queue;
    (void)how;
    for (int i = 0; i < n; i++)
        if (ops[i].kind != PKI_SIGNAL_WRITE)
            return pki_fail(PK_ERR_UNSUPPORTED, NULL, "the host's queue cannot wait for a word");
    for (int i = 0; i < n; i++)
        if (ops[i].signal.word != NULL)
            pki_signal_open(&ops[i].signal);
    return PK_OK;
}

static pk_result_t host_unpack(const struct pki_queue *queue, void *dst, const void *src,
                               const struct pki_unpack_fragment *fragments, int n)
{
    (void)queue;
    for (int i = 0; i < n; i++)
        memcpy((char *)dst + fragments[i].dst_offset, (const char *)src + fragments[i].src_offset, fragments[i].bytes);
    return PK_OK;
}

static pk_result_t host_ll(const struct pki_queue *queue, const struct pki_ll_op *ops, int n, int ctas,
                           const _Atomic uint32_t *abort_flag)
{
    (void)queue;
    (void)ops;
    (void)n;
    (void)ctas;
    (void)abort_flag;
    return pki_fail(PK_ERR_UNSUPPORTED, NULL, "the host has no low-latency kernel");
}

static pk_result_t host_move(const struct pki_queue *queue, const struct pki_move_op *ops, int n, int ctas,
                             const _Atomic uint32_t *abort_flag)
{
    (void)queue;
    (void)ops;
    (void)n;
    (void)ctas;
    (void)abort_flag;
    return pki_fail(PK_ERR_UNSUPPORTED, NULL, "the host has no moving kernel");
}

static pk_result_t host_fused(const struct pki_queue *queue, enum pki_fused_kernel kernel, pk_dtype_t dtype, int ctas,
                              const struct pki_fused_args *args)
{
    (void)queue;
    (void)kernel;
    (void)dtype;
    (void)ctas;
    (void)args;
    return pki_fail(PK_ERR_UNSUPPORTED, NULL, "the host has no fused kernels");
}

static void host_info(const struct pki_device *device, struct pki_device_info *info)
{
    (void)device;
    *info = (struct pki_device_info){ .name = "host", .ordinal = -1 };
}

const struct pki_device_ops pki_device_host = {
    .name = "host",
    .open = host_open,
    .close = host_nothing,
    .enter = host_nothing,
    .leave = host_nothing,
    .classify = host_classify,
    .alloc = host_alloc,
    .zero = host_zero,
    .free = host_free,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .export = host_export,
    .import = host_import,
    .unimport = host_unimport,
    .drop_stale_mappings = host_drop_stale_mappings,
    .dmabuf = host_dmabuf,
    .settle = host_settle,
    .queue_open = host_queue_open,
    .queue_close = host_queue_close,
    .clear = host_clear,
    .idle = host_idle,
    .follow = host_follow,
    .capturing = host_capturing,
    .copy = host_copy,
    .reduce = host_reduce,
    .reduces = host_reduces,
    .scale = host_scale,
    .signals = host_signals,
    .unpack = host_unpack,
    .ll = host_ll,
    .move = host_move,
    .fused = host_fused,
    .info = host_info,
};
