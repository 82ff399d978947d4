/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory that a NIC reads and writes itself. */
#include <unistd.h>

#include "device/cuda_device.h"
#include "util/fd.h"

static int attribute(const struct pki_cuda_context *context, CUdevice_attribute which)
{
    int value = 0;

    return context->cu->device_get_attribute(&value, which, context->device) == CUDA_SUCCESS ? value : 0;
}

/* The driver wants whole pages; a small allocation may begin within one. */
pk_result_t pki_cuda_dmabuf(struct pki_device *device, const struct pki_mem *mem, int *fd)
{
    struct pki_cuda_context *context = pki_cuda(device)->context;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = mem->base / page * page, end = (mem->base + mem->bytes + page - 1) / page * page;
    CUresult code = CUDA_ERROR_NOT_SUPPORTED;
    int found = -1;

    pki_cuda_enter(context);
    if (attribute(context, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0)
        code = context->cu->mem_get_handle_for_range(&found, begin, end - begin, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    pki_cuda_leave(context);
    if (code != CUDA_SUCCESS)
        return PK_ERR_UNSUPPORTED;
    *fd = pki_fd_keep(found);
    return *fd >= 0 ? PK_OK : PK_ERR_UNSUPPORTED;
}

/* GPUs that order a NIC's writes before what they read later themselves need nothing done. */
pk_result_t pki_cuda_settle(struct pki_device *device)
{
    struct pki_cuda_context *context = pki_cuda(device)->context;
    CUresult code = CUDA_ERROR_NOT_SUPPORTED;

    pki_cuda_enter(context);
    if (attribute(context, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
        code = CUDA_SUCCESS;
    else if ((attribute(context, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
              CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0)
        code = context->cu->flush_rdma_writes(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                              CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
    pki_cuda_leave(context);
    return code == CUDA_SUCCESS ? PK_OK : PK_ERR_UNSUPPORTED;
}
