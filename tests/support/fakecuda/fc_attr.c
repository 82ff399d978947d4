/* SPDX-License-Identifier: Apache-2.0 */
/* What a pointer is. */
#include "fakecuda.h"

#include <string.h>

static bool on_device(const struct fc_range *r)
{
    return r->kind == FC_DEVICE || r->kind == FC_POOL || r->kind == FC_IPC || r->kind == FC_VMM;
}

/* The width of each attribute, for the zeros that an unknown pointer gives. 0: not an attribute of the table. */
static size_t attribute_bytes(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return 8;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        return 4;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return 1;
    default:
        return 0;
    }
}

static uint64_t number_of(const struct fc_range *r, CUpointer_attribute attribute, uintptr_t address)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return r->kind == FC_VMM || r->kind == FC_POOL ? 0 : (uint64_t)(uintptr_t)r->ctx;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return address;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return on_device(r) ? 0 : address;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        return r->id;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return r->base;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return r->bytes;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return r->kind == FC_VMM ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return on_device(r) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return (uint32_t)(r->device >= 0 ? r->device : r->ctx->device);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        return r->sync_memops;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return 1;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return r->kind == FC_DEVICE;
    default:
        return 0;
    }
}

/* Little-endian, as every machine with a GPU: the low bytes come first. */
static CUresult attribute_get(const struct fc_range *r, CUpointer_attribute attribute, uintptr_t address, void *data)
{
    size_t bytes = attribute_bytes(attribute);
    uint64_t value;

    if (bytes == 0 || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    value = r != NULL ? number_of(r, attribute, address) : 0;
    if (r == NULL && attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        value = (uint32_t)CU_DEVICE_INVALID;
    memcpy(data, &value, bytes);
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        struct fc_range *r;

        fc_lock();
        r = fc_range_find(ptr);
        if (r == NULL || (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && on_device(r)))
            result = CUDA_ERROR_INVALID_VALUE;
        else
            result = attribute_get(r, attribute, ptr, data);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        struct fc_range *r;

        fc_lock();
        r = fc_range_find(ptr);
        for (unsigned i = 0; i < numAttributes && result == CUDA_SUCCESS; i++)
            result = attribute_get(r, attributes[i], ptr, data[i]);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        struct fc_range *r;

        fc_lock();
        r = fc_range_find(ptr);
        if (r == NULL || value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            memcpy(&r->sync_memops, value, sizeof r->sync_memops);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        struct fc_range *r;

        fc_lock();
        r = fc_range_find(dptr);
        if (r == NULL)
            result = CUDA_ERROR_NOT_FOUND;
        if (r != NULL && pbase != NULL)
            *pbase = r->base;
        if (r != NULL && psize != NULL)
            *psize = r->bytes;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}
