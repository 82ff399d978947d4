/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for devices of others: where FAKECUDA_DMABUF is 1 the memfd behind an allocation takes the place of a dma-buf. */
#include "fakecuda.h"

#include <fcntl.h>
#include <stdlib.h>

bool fc_has_dmabuf(void)
{
    const char *text = getenv("FAKECUDA_DMABUF");

    return text != NULL && text[0] == '1';
}

static CUresult dmabuf(int *fd, uintptr_t address, size_t bytes)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    const struct fc_range *r;

    fc_lock();
    r = fc_range_find(address);
    if (r != NULL && r->kind == FC_DEVICE && r->base == address && r->mapped_bytes == bytes) {
        *fd = fcntl(r->fd, F_DUPFD_CLOEXEC, 0);
        result = *fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    fc_unlock();
    return result;
}

/* Of whole allocations alone. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType handleType,
                                       unsigned long long flags)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS && (handle == NULL || handleType != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && !fc_has_dmabuf())
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        result = dmabuf(handle, dptr, size);
    return fc_leave(__func__, result);
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS &&
        (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
         (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER && scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && !fc_has_dmabuf())
        result = CUDA_ERROR_NOT_SUPPORTED;
    return fc_leave(__func__, result);
}
