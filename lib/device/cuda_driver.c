/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"
#define OLDEST_DRIVER 12000 /* 12.0: stream memory operations without restriction, and in graphs */

struct symbol {
    const char *name;
    size_t offset; /* of the member */
};

static const struct symbol symbols[] = {
    { "cuInit", offsetof(struct pki_cuda_driver, init) },
    { "cuDriverGetVersion", offsetof(struct pki_cuda_driver, driver_get_version) },
    { "cuGetErrorName", offsetof(struct pki_cuda_driver, get_error_name) },
    { "cuDeviceGet", offsetof(struct pki_cuda_driver, device_get) },
    { "cuDeviceGetCount", offsetof(struct pki_cuda_driver, device_get_count) },
    { "cuDeviceGetName", offsetof(struct pki_cuda_driver, device_get_name) },
    { "cuDeviceGetUuid_v2", offsetof(struct pki_cuda_driver, device_get_uuid) },
    { "cuDeviceGetPCIBusId", offsetof(struct pki_cuda_driver, device_get_pci_bus_id) },
    { "cuDeviceGetByPCIBusId", offsetof(struct pki_cuda_driver, device_get_by_bus_id) },
    { "cuDeviceGetP2PAttribute", offsetof(struct pki_cuda_driver, device_get_p2p_attribute) },
    { "cuDeviceGetAttribute", offsetof(struct pki_cuda_driver, device_get_attribute) },
    { "cuDeviceCanAccessPeer", offsetof(struct pki_cuda_driver, device_can_access_peer) },
    { "cuDevicePrimaryCtxRetain", offsetof(struct pki_cuda_driver, primary_retain) },
    { "cuDevicePrimaryCtxRelease_v2", offsetof(struct pki_cuda_driver, primary_release) },
    { "cuDevicePrimaryCtxGetState", offsetof(struct pki_cuda_driver, primary_get_state) },
    { "cuCtxGetCurrent", offsetof(struct pki_cuda_driver, ctx_get_current) },
    { "cuCtxPushCurrent_v2", offsetof(struct pki_cuda_driver, ctx_push) },
    { "cuCtxPopCurrent_v2", offsetof(struct pki_cuda_driver, ctx_pop) },
    { "cuCtxGetDevice", offsetof(struct pki_cuda_driver, ctx_get_device) },
    { "cuCtxEnablePeerAccess", offsetof(struct pki_cuda_driver, ctx_enable_peer_access) },
    { "cuThreadExchangeStreamCaptureMode", offsetof(struct pki_cuda_driver, exchange_capture_mode) },
    { "cuPointerGetAttribute", offsetof(struct pki_cuda_driver, pointer_get_attribute) },
    { "cuPointerGetAttributes", offsetof(struct pki_cuda_driver, pointer_get_attributes) },
    { "cuMemAlloc_v2", offsetof(struct pki_cuda_driver, mem_alloc) },
    { "cuMemFree_v2", offsetof(struct pki_cuda_driver, mem_free) },
    { "cuMemsetD8Async", offsetof(struct pki_cuda_driver, memset_async) },
    { "cuMemcpyAsync", offsetof(struct pki_cuda_driver, memcpy_async) },
    { "cuMemHostRegister_v2", offsetof(struct pki_cuda_driver, host_register) },
    { "cuMemHostUnregister", offsetof(struct pki_cuda_driver, host_unregister) },
    { "cuMemHostGetDevicePointer_v2", offsetof(struct pki_cuda_driver, host_get_device_pointer) },
    { "cuMemGetAddressRange_v2", offsetof(struct pki_cuda_driver, mem_get_address_range) },
    { "cuMemGetHandleForAddressRange", offsetof(struct pki_cuda_driver, mem_get_handle_for_range) },
    { "cuFlushGPUDirectRDMAWrites", offsetof(struct pki_cuda_driver, flush_rdma_writes) },
    { "cuIpcGetMemHandle", offsetof(struct pki_cuda_driver, ipc_get_mem_handle) },
    { "cuIpcOpenMemHandle_v2", offsetof(struct pki_cuda_driver, ipc_open_mem_handle) },
    { "cuIpcCloseMemHandle", offsetof(struct pki_cuda_driver, ipc_close_mem_handle) },
    { "cuMemRetainAllocationHandle", offsetof(struct pki_cuda_driver, vmm_retain) },
    { "cuMemCreate", offsetof(struct pki_cuda_driver, vmm_create) },
    { "cuMemRelease", offsetof(struct pki_cuda_driver, vmm_release) },
    { "cuMemGetAllocationPropertiesFromHandle", offsetof(struct pki_cuda_driver, vmm_get_properties) },
    { "cuMemGetAllocationGranularity", offsetof(struct pki_cuda_driver, vmm_get_granularity) },
    { "cuMemExportToShareableHandle", offsetof(struct pki_cuda_driver, vmm_export) },
    { "cuMemImportFromShareableHandle", offsetof(struct pki_cuda_driver, vmm_import) },
    { "cuMemAddressReserve", offsetof(struct pki_cuda_driver, vmm_reserve) },
    { "cuMemAddressFree", offsetof(struct pki_cuda_driver, vmm_unreserve) },
    { "cuMemMap", offsetof(struct pki_cuda_driver, vmm_map) },
    { "cuMemUnmap", offsetof(struct pki_cuda_driver, vmm_unmap) },
    { "cuMemSetAccess", offsetof(struct pki_cuda_driver, vmm_set_access) },
    { "cuStreamCreate", offsetof(struct pki_cuda_driver, stream_create) },
    { "cuStreamDestroy_v2", offsetof(struct pki_cuda_driver, stream_destroy) },
    { "cuStreamQuery", offsetof(struct pki_cuda_driver, stream_query) },
    { "cuCtxSynchronize", offsetof(struct pki_cuda_driver, ctx_synchronize) },
    { "cuStreamIsCapturing", offsetof(struct pki_cuda_driver, stream_is_capturing) },
    { "cuStreamGetCaptureInfo_v2", offsetof(struct pki_cuda_driver, stream_get_capture_info) },
    { "cuStreamWaitValue32_v2", offsetof(struct pki_cuda_driver, stream_wait_value) },
    { "cuStreamWriteValue32_v2", offsetof(struct pki_cuda_driver, stream_write_value) },
    { "cuStreamBatchMemOp_v2", offsetof(struct pki_cuda_driver, stream_batch_mem_op) },
    { "cuEventCreate", offsetof(struct pki_cuda_driver, event_create) },
    { "cuEventDestroy_v2", offsetof(struct pki_cuda_driver, event_destroy) },
    { "cuEventRecord", offsetof(struct pki_cuda_driver, event_record) },
    { "cuEventRecordWithFlags", offsetof(struct pki_cuda_driver, event_record_with_flags) },
    { "cuStreamWaitEvent", offsetof(struct pki_cuda_driver, stream_wait_event) },
    { "cuStreamUpdateCaptureDependencies", offsetof(struct pki_cuda_driver, stream_update_dependencies) },
    { "cuUserObjectCreate", offsetof(struct pki_cuda_driver, user_object_create) },
    { "cuUserObjectRelease", offsetof(struct pki_cuda_driver, user_object_release) },
    { "cuGraphRetainUserObject", offsetof(struct pki_cuda_driver, graph_retain_user_object) },
    { "cuModuleLoadData", offsetof(struct pki_cuda_driver, module_load_data) },
    { "cuModuleUnload", offsetof(struct pki_cuda_driver, module_unload) },
    { "cuModuleGetFunction", offsetof(struct pki_cuda_driver, module_get_function) },
    { "cuFuncGetAttribute", offsetof(struct pki_cuda_driver, func_get_attribute) },
    { "cuFuncSetAttribute", offsetof(struct pki_cuda_driver, func_set_attribute) },
    { "cuLaunchKernelEx", offsetof(struct pki_cuda_driver, launch_kernel) },
};

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static struct pki_cuda_driver driver; /* written by load alone, read-only after it */
static bool usable;
static char absent[160];

/* Fills the table; false and `absent` when a symbol is missing. */
static bool find_symbols(void *library)
{
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *address = dlsym(library, symbols[i].name);

        if (address == NULL) {
            snprintf(absent, sizeof absent, "%s has no %s: the driver is too old (12.0 is needed)", LIBRARY, symbols[i].name);
            return false;
        }
        /* memcpy, because C has no conversion from an object's address to a function's. */
        memcpy((char *)&driver + symbols[i].offset, &address, sizeof address);
    }
    return true;
}

static const char *error_name(CUresult code)
{
    const char *name = NULL;

    if (driver.get_error_name == NULL || driver.get_error_name(code, &name) != CUDA_SUCCESS || name == NULL)
        return "unknown CUDA error";
    return name;
}

static void load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    int version = 0, count = 0;
    CUresult code;

    if (library == NULL) {
        const char *text = dlerror();

        snprintf(absent, sizeof absent, "%s cannot be loaded: %s", LIBRARY, text != NULL ? text : "no reason given");
        return;
    }
    if (!find_symbols(library))
        return;
    code = driver.driver_get_version(&version);
    if (code != CUDA_SUCCESS || version < OLDEST_DRIVER) {
        snprintf(absent, sizeof absent, "the CUDA driver supports %d.%d, 12.0 is needed", version / 1000, version % 1000 / 10);
        return;
    }
    code = driver.init(0);
    if (code == CUDA_SUCCESS)
        code = driver.device_get_count(&count);
    if (code != CUDA_SUCCESS || count == 0) {
        snprintf(absent, sizeof absent, "the CUDA driver finds no device: %s",
                 code != CUDA_SUCCESS ? error_name(code) : "count is 0");
        return;
    }
    usable = true;
}

const struct pki_cuda_driver *pki_cuda_driver(const char **why)
{
    pthread_once(&load_once, load);
    if (!usable && why != NULL)
        *why = absent;
    return usable ? &driver : NULL;
}

bool pki_cuda_driver_loaded(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);

    if (library != NULL)
        dlclose(library); /* gives back the count that this dlopen added; whoever loaded the driver holds it */
    return library != NULL;
}

pk_result_t pki_cuda_fail(CUresult code, const char *fmt, ...)
{
    char what[256];
    pk_result_t result = PK_ERR_SYSTEM;
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        result = PK_ERR_MEMORY;
    else if (code == CUDA_ERROR_NOT_SUPPORTED)
        result = PK_ERR_UNSUPPORTED;
    return pki_fail(result, NULL, "%s: %s", what, error_name(code));
}
