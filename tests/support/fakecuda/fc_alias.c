/* SPDX-License-Identifier: Apache-2.0 */
/* The names without a suffix, which the header turns into others: same function, or an older form of it. */
#include "fakecuda.h"

#define OLD(name, parameters, call) \
    CUresult name parameters; \
    CUresult name parameters \
    { \
        return call; \
    }

#pragma GCC visibility push(default)

#undef cuGetProcAddress
OLD(cuGetProcAddress, (const char *symbol, void **pfn, int version, cuuint64_t flags),
    cuGetProcAddress_v2(symbol, pfn, version, flags, NULL))
#undef cuDeviceGetUuid
OLD(cuDeviceGetUuid, (CUuuid * uuid, CUdevice dev), cuDeviceGetUuid_v2(uuid, dev))
#undef cuDeviceTotalMem
OLD(cuDeviceTotalMem, (size_t * bytes, CUdevice dev), cuDeviceTotalMem_v2(bytes, dev))
#undef cuDevicePrimaryCtxRelease
OLD(cuDevicePrimaryCtxRelease, (CUdevice dev), cuDevicePrimaryCtxRelease_v2(dev))
#undef cuDevicePrimaryCtxSetFlags
OLD(cuDevicePrimaryCtxSetFlags, (CUdevice dev, unsigned flags), cuDevicePrimaryCtxSetFlags_v2(dev, flags))
#undef cuCtxPushCurrent
OLD(cuCtxPushCurrent, (CUcontext ctx), cuCtxPushCurrent_v2(ctx))
#undef cuCtxPopCurrent
OLD(cuCtxPopCurrent, (CUcontext * ctx), cuCtxPopCurrent_v2(ctx))
#undef cuMemAlloc
OLD(cuMemAlloc, (CUdeviceptr * pointer, size_t bytes), cuMemAlloc_v2(pointer, bytes))
#undef cuMemFree
OLD(cuMemFree, (CUdeviceptr pointer), cuMemFree_v2(pointer))
#undef cuMemGetInfo
OLD(cuMemGetInfo, (size_t * free_bytes, size_t *total), cuMemGetInfo_v2(free_bytes, total))
#undef cuMemAllocHost
OLD(cuMemAllocHost, (void **pointer, size_t bytes), cuMemAllocHost_v2(pointer, bytes))
#undef cuMemHostRegister
OLD(cuMemHostRegister, (void *pointer, size_t bytes, unsigned flags), cuMemHostRegister_v2(pointer, bytes, flags))
#undef cuMemHostGetDevicePointer
OLD(cuMemHostGetDevicePointer, (CUdeviceptr * out, void *pointer, unsigned flags),
    cuMemHostGetDevicePointer_v2(out, pointer, flags))
#undef cuMemGetAddressRange
OLD(cuMemGetAddressRange, (CUdeviceptr * base, size_t *bytes, CUdeviceptr pointer), cuMemGetAddressRange_v2(base, bytes, pointer))
#undef cuIpcOpenMemHandle
OLD(cuIpcOpenMemHandle, (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned flags),
    cuIpcOpenMemHandle_v2(pointer, handle, flags))
#undef cuMemcpyDtoDAsync
OLD(cuMemcpyDtoDAsync, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s), cuMemcpyDtoDAsync_v2(dst, src, bytes, s))
#undef cuMemcpyHtoDAsync
OLD(cuMemcpyHtoDAsync, (CUdeviceptr dst, const void *src, size_t bytes, CUstream s), cuMemcpyHtoDAsync_v2(dst, src, bytes, s))
#undef cuMemcpyDtoHAsync
OLD(cuMemcpyDtoHAsync, (void *dst, CUdeviceptr src, size_t bytes, CUstream s), cuMemcpyDtoHAsync_v2(dst, src, bytes, s))
#undef cuMemcpyHtoD
OLD(cuMemcpyHtoD, (CUdeviceptr dst, const void *src, size_t bytes), cuMemcpyHtoD_v2(dst, src, bytes))
#undef cuMemcpyDtoH
OLD(cuMemcpyDtoH, (void *dst, CUdeviceptr src, size_t bytes), cuMemcpyDtoH_v2(dst, src, bytes))
#undef cuMemcpyDtoD
OLD(cuMemcpyDtoD, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), cuMemcpyDtoD_v2(dst, src, bytes))
#undef cuMemsetD8
OLD(cuMemsetD8, (CUdeviceptr dst, unsigned char value, size_t n), cuMemsetD8_v2(dst, value, n))
#undef cuMemsetD32
OLD(cuMemsetD32, (CUdeviceptr dst, unsigned value, size_t n), cuMemsetD32_v2(dst, value, n))
#undef cuStreamDestroy
OLD(cuStreamDestroy, (CUstream s), cuStreamDestroy_v2(s))
#undef cuStreamBeginCapture
OLD(cuStreamBeginCapture, (CUstream s), cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL))
#undef cuStreamGetCaptureInfo
OLD(cuStreamGetCaptureInfo, (CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id),
    cuStreamGetCaptureInfo_v2(s, status, id, NULL, NULL, NULL))
#undef cuStreamUpdateCaptureDependencies
OLD(cuStreamUpdateCaptureDependencies, (CUstream s, CUgraphNode *deps, size_t n, unsigned flags),
    cuStreamUpdateCaptureDependencies_v2(s, deps, NULL, n, flags))
#undef cuStreamWaitValue32
OLD(cuStreamWaitValue32, (CUstream s, CUdeviceptr address, cuuint32_t value, unsigned flags),
    cuStreamWaitValue32_v2(s, address, value, flags))
#undef cuStreamWriteValue32
OLD(cuStreamWriteValue32, (CUstream s, CUdeviceptr address, cuuint32_t value, unsigned flags),
    cuStreamWriteValue32_v2(s, address, value, flags))
#undef cuStreamWaitValue64
OLD(cuStreamWaitValue64, (CUstream s, CUdeviceptr address, cuuint64_t value, unsigned flags),
    cuStreamWaitValue64_v2(s, address, value, flags))
#undef cuStreamWriteValue64
OLD(cuStreamWriteValue64, (CUstream s, CUdeviceptr address, cuuint64_t value, unsigned flags),
    cuStreamWriteValue64_v2(s, address, value, flags))
#undef cuStreamBatchMemOp
OLD(cuStreamBatchMemOp, (CUstream s, unsigned n, CUstreamBatchMemOpParams *params, unsigned flags),
    cuStreamBatchMemOp_v2(s, n, params, flags))
#undef cuEventDestroy
OLD(cuEventDestroy, (CUevent event), cuEventDestroy_v2(event))
#undef cuEventElapsedTime
OLD(cuEventElapsedTime, (float *ms, CUevent start, CUevent end), cuEventElapsedTime_v2(ms, start, end))
#undef cuGraphInstantiate
OLD(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *node, char *log, size_t bytes),
    ((void)node, (void)log, (void)bytes, cuGraphInstantiateWithFlags(exec, graph, 0)))

#pragma GCC visibility pop
