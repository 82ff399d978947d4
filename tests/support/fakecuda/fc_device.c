/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and their primary contexts. */
#include "fakecuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fc_device_uuid(int physical, CUuuid *uuid)
{
    static const unsigned char start[15] = { 0xfa, 0x4e, 0xc0, 0xda, 0x20, 0x26, 0x40, 0x55,
                                             0xb1, 0x9c, 0x1e, 0x70, 0x6f, 0x2d, 0x3a };

    memcpy(uuid->bytes, start, sizeof start);
    uuid->bytes[15] = (char)physical;
}

static CUresult check_device(CUdevice device)
{
    return device >= 0 && device < fc.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        *count = fc.devices;
    return fc_leave(__func__, result);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(ordinal);
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return fc_leave(__func__, result);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(dev);
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)len, "Fake H200");
    return fc_leave(__func__, result);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(dev);
    if (result == CUDA_SUCCESS)
        fc_device_uuid(fc.physical[dev], uuid);
    return fc_leave(__func__, result);
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(dev);
    if (result == CUDA_SUCCESS && len < 13)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", 0x19 + 0x10 * fc.physical[dev]);
    return fc_leave(__func__, result);
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    CUresult result = fc_enter(__func__, FC_INIT);
    unsigned domain, bus;

    if (result == CUDA_SUCCESS && sscanf(pciBusId, "%x:%x:00.0", &domain, &bus) != 2)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        result = CUDA_ERROR_INVALID_DEVICE;
        for (CUdevice d = 0; check_device(d) == CUDA_SUCCESS; d++)
            if (domain == 0 && bus == 0x19u + 0x10u * (unsigned)fc.physical[d]) {
                *dev = d;
                result = CUDA_SUCCESS;
            }
    }
    return fc_leave(__func__, result);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(dev);
    if (result == CUDA_SUCCESS)
        *bytes = fc.memory_bytes;
    return fc_leave(__func__, result);
}

static const struct {
    CUdevice_attribute attribute;
    int value;
} attributes[] = {
    { CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024 },
    { CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024 },
    { CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff },
    { CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152 },
    { CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448 },
    { CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472 },
    { CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048 },
    { CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32 },
    { CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000 },
    { CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1 },
    { CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, FC_SMS },
    { CU_DEVICE_ATTRIBUTE_INTEGRATED, 0 },
    { CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1 },
    { CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT },
    { CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1 },
    { CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0 },
    { CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0 },
    { CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3 },
    { CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1 },
    { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9 },
    { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0 },
    { CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1 },
    { CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1 },
    { CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0 },
    { CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1 },
    { CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1 },
    { CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1 },
    { CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1 },
    { CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1 },
    { CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1 },
    { CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1 },
    { CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1 },
    { CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1 },
    { CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1 },
    { CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0 },
    { CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32 },
    { CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 0 },
    { CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0 },
    { CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0 },
};

static CUresult attribute_value(int *value, CUdevice_attribute attribute, CUdevice dev)
{
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
        *value = 0x19 + 0x10 * fc.physical[dev];
        return CUDA_SUCCESS;
    }
    if (attribute == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED || attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED ||
        attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) { /* by the host, for writes are not ordered */
        *value = fc_has_dmabuf();
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].attribute == attribute) {
            *value = attributes[i].value;
            return CUDA_SUCCESS;
        }
    /* A real driver knows many more; one that nobody here has thought about reads as "no". */
    fc_trace("device attribute %d is not in the table: 0", (int)attribute);
    *value = 0;
    return attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(dev);
    if (result == CUDA_SUCCESS)
        result = attribute_value(pi, attrib, dev);
    return fc_leave(__func__, result);
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(dev);
    if (result == CUDA_SUCCESS)
        result = check_device(peerDev);
    if (result == CUDA_SUCCESS)
        *canAccessPeer = dev != peerDev;
    return fc_leave(__func__, result);
}

/* Joined by NVLink, or with FAKECUDA_NVLINK=0 by PCIe, where a peer's memory can be reached but has no atomics. */
static int p2p_attribute(CUdevice_P2PAttribute attribute)
{
    const char *nvlink = getenv("FAKECUDA_NVLINK");
    bool pcie = nvlink != NULL && strcmp(nvlink, "0") == 0;

    if (attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)
        return pcie ? 1 : 0;
    return attribute == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED ? !pcie : 1;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(srcDevice);
    if (result == CUDA_SUCCESS)
        result = check_device(dstDevice);
    if (result == CUDA_SUCCESS && srcDevice == dstDevice)
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *value = p2p_attribute(attrib);
    return fc_leave(__func__, result);
}

/* --- primary contexts --- */

static void retain(CUcontext *context, CUdevice dev)
{
    struct fc_ctx *ctx = &fc.contexts[dev];

    fc_lock();
    if (ctx->refs++ == 0) {
        ctx->epoch++;
        ctx->peers = 0;
    }
    fc_unlock();
    *context = (CUcontext)(void *)ctx;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(dev);
    if (result == CUDA_SUCCESS)
        retain(pctx, dev);
    return fc_leave(__func__, result);
}

/* The last release destroys the context: its streams end once they are idle, its memory goes. */
static CUresult release(CUdevice dev)
{
    struct fc_ctx *ctx = &fc.contexts[dev];
    CUresult result = CUDA_SUCCESS;

    fc_lock();
    if (ctx->refs == 0) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (ctx->refs == 1) {
        fc_wait_ctx(ctx);
        ctx->refs = 0;
        fc_ctx_free_memory(ctx);
    } else {
        ctx->refs--;
    }
    fc_unlock();
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(dev);
    if (result == CUDA_SUCCESS)
        result = release(dev);
    return fc_leave(__func__, result);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = check_device(dev);
    if (result == CUDA_SUCCESS) {
        fc_lock();
        *flags = 0;
        *active = fc.contexts[dev].refs > 0;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    (void)flags;
    if (result == CUDA_SUCCESS)
        result = check_device(dev);
    return fc_leave(__func__, result);
}

/* --- the calling thread's stack of contexts --- */

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        *pctx = (CUcontext)(void *)fc_current();
    return fc_leave(__func__, result);
}

static CUresult set_current(struct fc_ctx *ctx)
{
    if (ctx == NULL) {
        if (fc_self.depth > 0)
            fc_self.depth--;
        return CUDA_SUCCESS;
    }
    if (!fc_ctx_valid(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fc_self.depth == 0)
        fc_self.depth = 1;
    fc_self.stack[fc_self.depth - 1] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = set_current((struct fc_ctx *)(void *)ctx);
    return fc_leave(__func__, result);
}

static CUresult push_current(struct fc_ctx *ctx)
{
    if (!fc_ctx_valid(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fc_self.depth == (int)(sizeof fc_self.stack / sizeof fc_self.stack[0]))
        return CUDA_ERROR_UNKNOWN;
    fc_self.stack[fc_self.depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS)
        result = push_current((struct fc_ctx *)(void *)ctx);
    return fc_leave(__func__, result);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS && fc_self.depth == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS) {
        struct fc_ctx *popped = fc_self.stack[--fc_self.depth];

        if (pctx != NULL)
            *pctx = (CUcontext)(void *)popped;
    }
    return fc_leave(__func__, result);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS)
        *device = fc_current()->device;
    return fc_leave(__func__, result);
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        if (leastPriority != NULL)
            *leastPriority = 0;
        if (greatestPriority != NULL)
            *greatestPriority = -5;
    }
    return fc_leave(__func__, result);
}

static CUresult ctx_synchronize(void)
{
    CUresult result = CUDA_SUCCESS;

    fc_lock();
    if (fc_capture_in_ctx(fc_current(), true))
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result == CUDA_SUCCESS) {
        fc_wait_ctx(fc_current());
        result = fc.sticky;
    }
    fc_unlock();
    return result;
}

CUresult cuCtxSynchronize(void)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS)
        result = ctx_synchronize();
    return fc_leave(__func__, result);
}

static CUresult enable_peer(struct fc_ctx *peer)
{
    struct fc_ctx *ctx = fc_current();
    CUresult result = CUDA_SUCCESS;

    if (!fc_ctx_valid(peer))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peer == ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    fc_lock();
    if (peer->refs == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (ctx->peers & 1u << peer->device)
        result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    else
        ctx->peers |= 1u << peer->device;
    fc_unlock();
    return result;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS && Flags != 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = enable_peer((struct fc_ctx *)(void *)peerContext);
    return fc_leave(__func__, result);
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);
    struct fc_ctx *peer = (struct fc_ctx *)(void *)peerContext;

    if (result == CUDA_SUCCESS && !fc_ctx_valid(peer))
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        if (fc_current()->peers & 1u << peer->device)
            fc_current()->peers &= ~(1u << peer->device);
        else
            result = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}
