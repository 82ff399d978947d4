/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver, opened at run time. Its functions are members of one table, so a call reads cu->mem_alloc(&ptr, bytes). The
 * driver is never closed: other users of it live in the same process, and its threads and exit handlers outlive us.
 */
#ifndef PKI_CUDA_DRIVER_H
#define PKI_CUDA_DRIVER_H

#include <cuda.h>

#include "pickle/base.h"
#include "util/log.h"

/* Member = the function of cuda.h; cuda_driver.c names the symbol, version and all, that has this signature. */
struct pki_cuda_driver {
    __typeof__(cuInit) *init;
    __typeof__(cuDriverGetVersion) *driver_get_version;
    __typeof__(cuGetErrorName) *get_error_name;
    __typeof__(cuDeviceGet) *device_get;
    __typeof__(cuDeviceGetCount) *device_get_count;
    __typeof__(cuDeviceGetName) *device_get_name;
    __typeof__(cuDeviceGetUuid) *device_get_uuid;
    __typeof__(cuDeviceGetPCIBusId) *device_get_pci_bus_id;
    __typeof__(cuDeviceGetByPCIBusId) *device_get_by_bus_id;
    __typeof__(cuDeviceGetP2PAttribute) *device_get_p2p_attribute;
    __typeof__(cuDeviceGetAttribute) *device_get_attribute;
    __typeof__(cuDeviceCanAccessPeer) *device_can_access_peer;
    __typeof__(cuDevicePrimaryCtxRetain) *primary_retain;
    __typeof__(cuDevicePrimaryCtxRelease) *primary_release;
    __typeof__(cuDevicePrimaryCtxGetState) *primary_get_state;
    __typeof__(cuCtxGetCurrent) *ctx_get_current;
    __typeof__(cuCtxPushCurrent) *ctx_push;
    __typeof__(cuCtxPopCurrent) *ctx_pop;
    __typeof__(cuCtxGetDevice) *ctx_get_device;
    __typeof__(cuCtxEnablePeerAccess) *ctx_enable_peer_access;
    __typeof__(cuThreadExchangeStreamCaptureMode) *exchange_capture_mode;
    __typeof__(cuPointerGetAttribute) *pointer_get_attribute;
    __typeof__(cuPointerGetAttributes) *pointer_get_attributes;
    __typeof__(cuMemAlloc) *mem_alloc;
    __typeof__(cuMemFree) *mem_free;
    __typeof__(cuMemsetD8Async) *memset_async;
    __typeof__(cuMemcpyAsync) *memcpy_async;
    __typeof__(cuMemHostRegister) *host_register;
    __typeof__(cuMemHostUnregister) *host_unregister;
    __typeof__(cuMemHostGetDevicePointer) *host_get_device_pointer;
    __typeof__(cuMemGetAddressRange) *mem_get_address_range;
    __typeof__(cuMemGetHandleForAddressRange) *mem_get_handle_for_range;
    __typeof__(cuFlushGPUDirectRDMAWrites) *flush_rdma_writes;
    __typeof__(cuIpcGetMemHandle) *ipc_get_mem_handle;
    __typeof__(cuIpcOpenMemHandle) *ipc_open_mem_handle;
    __typeof__(cuIpcCloseMemHandle) *ipc_close_mem_handle;
    __typeof__(cuMemRetainAllocationHandle) *vmm_retain;
    __typeof__(cuMemCreate) *vmm_create;
    __typeof__(cuMemRelease) *vmm_release;
    __typeof__(cuMemGetAllocationPropertiesFromHandle) *vmm_get_properties;
    __typeof__(cuMemGetAllocationGranularity) *vmm_get_granularity;
    __typeof__(cuMemExportToShareableHandle) *vmm_export;
    __typeof__(cuMemImportFromShareableHandle) *vmm_import;
    __typeof__(cuMemAddressReserve) *vmm_reserve;
    __typeof__(cuMemAddressFree) *vmm_unreserve;
    __typeof__(cuMemMap) *vmm_map;
    __typeof__(cuMemUnmap) *vmm_unmap;
    __typeof__(cuMemSetAccess) *vmm_set_access;
    __typeof__(cuStreamCreate) *stream_create;
    __typeof__(cuStreamDestroy) *stream_destroy;
    __typeof__(cuStreamQuery) *stream_query;
    __typeof__(cuCtxSynchronize) *ctx_synchronize;
    __typeof__(cuStreamIsCapturing) *stream_is_capturing;
    /* Version 2 whatever cuda.h is: version 3 came with 12.3, and its signature with it. */
    CUresult (*stream_get_capture_info)(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                        const CUgraphNode **dependencies, size_t *dependency_count);
    __typeof__(cuStreamWaitValue32) *stream_wait_value;
    __typeof__(cuStreamWriteValue32) *stream_write_value;
    __typeof__(cuStreamBatchMemOp) *stream_batch_mem_op;
    __typeof__(cuEventCreate) *event_create;
    __typeof__(cuEventDestroy) *event_destroy;
    __typeof__(cuEventRecord) *event_record;
    __typeof__(cuEventRecordWithFlags) *event_record_with_flags;
    __typeof__(cuStreamWaitEvent) *stream_wait_event;
    /* Version 1, for the same reason. */
    CUresult (*stream_update_dependencies)(CUstream stream, CUgraphNode *dependencies, size_t dependency_count,
                                           unsigned int flags);
    __typeof__(cuUserObjectCreate) *user_object_create;
    __typeof__(cuUserObjectRelease) *user_object_release;
    __typeof__(cuGraphRetainUserObject) *graph_retain_user_object;
    __typeof__(cuModuleLoadData) *module_load_data;
    __typeof__(cuModuleUnload) *module_unload;
    __typeof__(cuModuleGetFunction) *module_get_function;
    __typeof__(cuFuncGetAttribute) *func_get_attribute;
    __typeof__(cuFuncSetAttribute) *func_set_attribute;
    __typeof__(cuLaunchKernelEx) *launch_kernel;
};

/* The table; NULL when the driver cannot be used, and then *why (if why is not NULL) is a sentence that says so. Opens the driver
 * and initialises it at the first call; no context is made. Any thread. */
const struct pki_cuda_driver *pki_cuda_driver(const char **why);

/* Has something else in this process loaded the driver? A program that has not has no current context either. */
bool pki_cuda_driver_loaded(void);

/* Record and log a failed driver call: fmt says which, the driver's name for the error follows. Out of memory is PK_ERR_MEMORY,
 * "not supported" PK_ERR_UNSUPPORTED, anything else PK_ERR_SYSTEM. Call at once; the driver's table must be open. */
pk_result_t pki_cuda_fail(CUresult code, const char *fmt, ...) PKI_PRINTF(2, 3);

#endif
