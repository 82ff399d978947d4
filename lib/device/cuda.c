/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA device: how its context is made and given back, and the table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda_device.h"
#include "device/cuda_entry.h"

#define ORDINALS_MAX 64

static struct pki_cuda_context *contexts[ORDINALS_MAX]; /* by ordinal; pki_cuda_lock */

void pki_cuda_context_ref(struct pki_cuda_context *context)
{
    context->refs++;
}

static void context_close(struct pki_cuda_context *context)
{
    pki_cuda_enter(context);
    pki_cuda_pool_close(context);
    pki_cuda_kernels_unload(context);
    pki_cuda_leave(context);
    context->cu->primary_release(context->device);
    free(context);
}

void pki_cuda_context_unref(struct pki_cuda_context *context)
{
    if (--context->refs > 0)
        return;
    contexts[context->ordinal] = NULL;
    context_close(context);
}

/* With the context retained and current: what it needs to be of use. */
static pk_result_t context_furnish(struct pki_cuda_context *context)
{
    pk_result_t result = pki_cuda_kernels_load(context);

    if (result != PK_OK)
        return result;
    result = pki_cuda_pool_open(context);
    if (result != PK_OK)
        pki_cuda_kernels_unload(context);
    return result;
}

static pk_result_t context_open(const struct pki_cuda_driver *cu, int ordinal, struct pki_cuda_context **out)
{
    struct pki_cuda_context *context = calloc(1, sizeof *context);
    pk_result_t result;
    CUresult code;

    if (context == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a CUDA context object");
    context->cu = cu;
    context->refs = 1;
    context->ordinal = ordinal;
    pki_list_init(&context->imports);
    code = cu->device_get(&context->device, ordinal);
    if (code == CUDA_SUCCESS)
        code = cu->primary_retain(&context->handle, context->device);
    if (code != CUDA_SUCCESS) {
        result = pki_cuda_fail(code, "cuDevicePrimaryCtxRetain of device %d", ordinal);
        goto err_free;
    }
    pki_cuda_enter(context);
    result = context_furnish(context);
    pki_cuda_leave(context);
    if (result != PK_OK)
        goto err_release;
    *out = context;
    return PK_OK;

err_release:
    cu->primary_release(context->device);
err_free:
    free(context);
    return result;
}

static pk_result_t context_get(const struct pki_cuda_driver *cu, int ordinal, struct pki_cuda_context **out)
{
    pk_result_t result = PK_OK;

    pki_cuda_lock();
    if (contexts[ordinal] != NULL)
        pki_cuda_context_ref(contexts[ordinal]);
    else
        result = context_open(cu, ordinal, &contexts[ordinal]);
    if (result == PK_OK)
        *out = contexts[ordinal];
    pki_cuda_unlock();
    return result;
}

/* The device whose primary context is current. A context of another sort is refused: its memory and streams are not the primary
 * one's, and nothing would say so until a copy fails. */
static pk_result_t current_ordinal(const struct pki_cuda_driver *cu, int *ordinal)
{
    CUcontext current = NULL, primary = NULL;
    CUdevice device;
    unsigned flags;
    int active = 0;

    if (cu->ctx_get_current(&current) != CUDA_SUCCESS || current == NULL || cu->ctx_get_device(&device) != CUDA_SUCCESS)
        return PK_ERR_UNSUPPORTED;
    if (cu->primary_get_state(device, &flags, &active) == CUDA_SUCCESS && active != 0 &&
        cu->primary_retain(&primary, device) == CUDA_SUCCESS)
        cu->primary_release(device);
    if (primary != current)
        return pki_fail(
            PK_ERR_UNSUPPORTED, NULL,
            "the current CUDA context of device %d is not the device's primary context, the only one libpickle works in",
            (int)device);
    *ordinal = (int)device; /* a CUdevice is its ordinal */
    return PK_OK;
}

/* Hardware queues of the process, as the driver reads the variable. */
static int connections(const char *variable, int usual)
{
    const char *text = getenv(variable);
    int n = text != NULL ? atoi(text) : usual;

    if (n < 1)
        return usual;
    return n > 32 ? 32 : n;
}

static pk_result_t fill_info(const struct pki_cuda_context *context, struct pki_device_info *info)
{
    const struct pki_cuda_driver *cu = context->cu;
    int vmm = 0;
    CUuuid uuid;
    CUresult code;

    memset(info, 0, sizeof *info);
    info->ordinal = context->ordinal;
    info->connections = connections("CUDA_DEVICE_MAX_CONNECTIONS", 8);
    info->copy_connections = connections("CUDA_DEVICE_MAX_COPY_CONNECTIONS", 4);
    info->reduce_ctas = pki_tuning.gpu.reduce_ctas;
    code = cu->device_get_name(info->name, (int)sizeof info->name, context->device);
    if (code == CUDA_SUCCESS)
        code = cu->device_get_uuid(&uuid, context->device);
    if (code == CUDA_SUCCESS)
        code = cu->device_get_pci_bus_id(info->pci_bus_id, (int)sizeof info->pci_bus_id, context->device);
    if (code == CUDA_SUCCESS)
        code = cu->device_get_attribute(&info->sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context->device);
    if (code == CUDA_SUCCESS)
        code = cu->device_get_attribute(&vmm, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, context->device);
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "asking device %d for its attributes", context->ordinal);
    memcpy(info->uuid, uuid.bytes, sizeof info->uuid);
    info->vmm = vmm != 0;
    return PK_OK;
}

static pk_result_t choose_ordinal(const struct pki_cuda_driver *cu, int wanted, int *ordinal)
{
    int count = 0;

    if (wanted == -1)
        return current_ordinal(cu, ordinal);
    cu->device_get_count(&count);
    if (wanted < 0 || wanted >= count || wanted >= ORDINALS_MAX)
        return pki_fail(PK_ERR_ARG, NULL, "there is no CUDA device %d: the driver shows %d", wanted, count);
    *ordinal = wanted;
    return PK_OK;
}

static pk_result_t cuda_open(int ordinal, struct pki_device **device)
{
    const char *why = NULL;
    const struct pki_cuda_driver *cu;
    struct pki_cuda *cuda;
    pk_result_t result;

    if (ordinal == -1 && !pki_cuda_driver_loaded())
        return PK_ERR_UNSUPPORTED;
    cu = pki_cuda_driver(&why);
    if (cu == NULL)
        return ordinal == -1 ? PK_ERR_UNSUPPORTED : pki_fail(PK_ERR_UNSUPPORTED, NULL, "no CUDA device: %s", why);
    result = choose_ordinal(cu, ordinal, &ordinal);
    if (result != PK_OK)
        return result;
    cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a CUDA device object");
    cuda->base.ops = &pki_device_cuda_ops;
    cuda->cu = cu;
    result = context_get(cu, ordinal, &cuda->context);
    if (result != PK_OK)
        goto err_free;
    result = fill_info(cuda->context, &cuda->info);
    if (result != PK_OK)
        goto err_context;
    *device = &cuda->base;
    return PK_OK;

err_context:
    pki_cuda_lock();
    pki_cuda_context_unref(cuda->context);
    pki_cuda_unlock();
err_free:
    free(cuda);
    return result;
}

static void cuda_close(struct pki_device *device)
{
    struct pki_cuda *cuda = pki_cuda(device);

    if (cuda->followed != NULL) {
        pki_cuda_enter(cuda->context);
        cuda->cu->event_destroy(cuda->followed);
        pki_cuda_leave(cuda->context);
    }
    pki_cuda_lock();
    pki_cuda_context_unref(cuda->context);
    pki_cuda_unlock();
    pki_cuda_ranges_close(cuda);
    free(cuda);
}

static void cuda_enter(struct pki_device *device)
{
    pki_cuda_enter(pki_cuda(device)->context);
}

static void cuda_leave(struct pki_device *device)
{
    pki_cuda_leave(pki_cuda(device)->context);
}

static void cuda_info(const struct pki_device *device, struct pki_device_info *info)
{
    *info = ((const struct pki_cuda *)(const void *)device)->info;
}

const char *pki_cuda_absent(void)
{
    const char *why = NULL;

    return pki_cuda_driver(&why) != NULL ? NULL : why;
}

const struct pki_device_ops pki_device_cuda_ops = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .classify = pki_cuda_classify,
    .alloc = pki_cuda_alloc,
    .zero = pki_cuda_zero,
    .free = pki_cuda_free,
    .host_register = pki_cuda_host_register,
    .host_unregister = pki_cuda_host_unregister,
    .export = pki_cuda_export,
    .import = pki_cuda_import,
    .unimport = pki_cuda_unimport,
    .drop_stale_mappings = pki_cuda_drop_stale_mappings,
    .dmabuf = pki_cuda_dmabuf,
    .settle = pki_cuda_settle,
    .queue_open = pki_cuda_queue_open,
    .queue_close = pki_cuda_queue_close,
    .clear = pki_cuda_clear,
    .idle = pki_cuda_idle,
    .follow = pki_cuda_follow,
    .capturing = pki_cuda_capturing,
    .graph_keep = pki_cuda_graph_keep,
    .graphs_wait = pki_cuda_graphs_wait,
    .replay_lock_open = pki_cuda_replay_lock_open,
    .replay_lock_close = pki_cuda_replay_lock_close,
    .replay_lock = pki_cuda_replay_lock,
    .replay_unlock = pki_cuda_replay_unlock,
    .copy = pki_cuda_copy,
    .reduce = pki_cuda_reduce,
    .reduces = pki_cuda_reduces,
    .scale = pki_cuda_scale,
    .signals = pki_cuda_signals,
    .unpack = pki_cuda_unpack,
    .ll = pki_cuda_ll,
    .move = pki_cuda_move,
    .fused = pki_cuda_fused,
    .info = cuda_info,
};
