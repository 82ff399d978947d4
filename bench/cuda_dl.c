/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations below are the driver's ABI as it has been since CUDA 12; the names are those of the shared object. */
#include "cuda_dl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long address_t;

static struct driver {
    int (*cuInit)(unsigned flags);
    int (*cuDeviceGetCount)(int *count);
    int (*cuDeviceGet)(int *device, int ordinal);
    int (*cuDeviceGetName)(char *name, int bytes, int device);
    int (*cuDeviceGetAttribute)(int *value, int attribute, int device);
    int (*cuDeviceGetPCIBusId)(char *text, int bytes, int device);
    int (*cuGetErrorString)(int code, const char **text);
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuCtxSetCurrent)(void *context);
    int (*cuCtxSynchronize)(void);
    int (*cuMemAlloc_v2)(address_t *ptr, size_t bytes);
    int (*cuMemFree_v2)(address_t ptr);
    int (*cuMemHostAlloc)(void **ptr, size_t bytes, unsigned flags);
    int (*cuMemFreeHost)(void *ptr);
    int (*cuMemcpyAsync)(address_t dst, address_t src, size_t bytes, void *stream);
    int (*cuMemsetD8Async)(address_t dst, unsigned char value, size_t count, void *stream);
    int (*cuStreamCreate)(void **stream, unsigned flags);
    int (*cuStreamCreateWithPriority)(void **stream, unsigned flags, int priority);
    int (*cuStreamDestroy_v2)(void *stream);
    int (*cuStreamSynchronize)(void *stream);
    int (*cuStreamQuery)(void *stream);
    int (*cuStreamWaitEvent)(void *stream, void *event, unsigned flags);
    int (*cuEventCreate)(void **event, unsigned flags);
    int (*cuEventDestroy_v2)(void *event);
    int (*cuEventRecord)(void *event, void *stream);
    int (*cuEventQuery)(void *event);
    int (*cuEventElapsedTime)(float *ms, void *start, void *end);
    int (*cuIpcGetMemHandle)(gpu_ipc_t *handle, address_t ptr);
    int (*cuIpcOpenMemHandle_v2)(address_t *ptr, gpu_ipc_t handle, unsigned flags);
    int (*cuIpcCloseMemHandle)(address_t ptr);
    int (*cuStreamBeginCapture_v2)(void *stream, int mode);
    int (*cuStreamEndCapture)(void *stream, void **graph);
    int (*cuGraphInstantiateWithFlags)(void **exec, void *graph, unsigned long long flags);
    int (*cuGraphDestroy)(void *graph);
    int (*cuGraphLaunch)(void *exec, void *stream);
    int (*cuGraphExecDestroy)(void *exec);
    int (*cuModuleLoadData)(void **module, const void *image);
    int (*cuModuleGetFunction)(void **function, void *module, const char *name);
    int (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, void *function, int threads, size_t shared);
    int (*cuLaunchKernel)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **params, void **extra);
} cu;

struct entry {
    const char *name;
    size_t offset;
};

#define ENTRY(function) \
    { \
        .name = #function, .offset = offsetof(struct driver, function) \
    }
static const struct entry entries[] = {
    ENTRY(cuInit),
    ENTRY(cuDeviceGetCount),
    ENTRY(cuDeviceGet),
    ENTRY(cuDeviceGetName),
    ENTRY(cuDeviceGetAttribute),
    ENTRY(cuDeviceGetPCIBusId),
    ENTRY(cuGetErrorString),
    ENTRY(cuDevicePrimaryCtxRetain),
    ENTRY(cuCtxSetCurrent),
    ENTRY(cuCtxSynchronize),
    ENTRY(cuMemAlloc_v2),
    ENTRY(cuMemFree_v2),
    ENTRY(cuMemHostAlloc),
    ENTRY(cuMemFreeHost),
    ENTRY(cuMemcpyAsync),
    ENTRY(cuMemsetD8Async),
    ENTRY(cuStreamCreate),
    ENTRY(cuStreamCreateWithPriority),
    ENTRY(cuStreamDestroy_v2),
    ENTRY(cuStreamSynchronize),
    ENTRY(cuStreamQuery),
    ENTRY(cuStreamWaitEvent),
    ENTRY(cuEventCreate),
    ENTRY(cuEventDestroy_v2),
    ENTRY(cuEventRecord),
    ENTRY(cuEventQuery),
    ENTRY(cuEventElapsedTime),
    ENTRY(cuIpcGetMemHandle),
    ENTRY(cuIpcOpenMemHandle_v2),
    ENTRY(cuIpcCloseMemHandle),
    ENTRY(cuStreamBeginCapture_v2),
    ENTRY(cuStreamEndCapture),
    ENTRY(cuGraphInstantiateWithFlags),
    ENTRY(cuGraphDestroy),
    ENTRY(cuGraphLaunch),
    ENTRY(cuGraphExecDestroy),
    ENTRY(cuModuleLoadData),
    ENTRY(cuModuleGetFunction),
    ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor),
    ENTRY(cuLaunchKernel),
};

enum {
    ATTRIBUTE_MULTIPROCESSORS = 16,
    ATTRIBUTE_THREADS_PER_MULTIPROCESSOR = 39,
    STREAM_NON_BLOCKING = 1,
    PRIORITY_HIGHEST = -100, /* the driver takes the highest that it has */
    HOST_PORTABLE_MAPPED = 3,
    IPC_LAZY_PEER_ACCESS = 1,
    CAPTURE_THREAD_LOCAL = 1
};

static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static char driver_absent[256];
static int device_count;
static _Thread_local gpu_stream_t private_stream; /* of gpu_copy and gpu_fill */
static _Thread_local int private_stream_device = -1;
static _Thread_local int current_device = -1;

static address_t address(const void *ptr)
{
    return (address_t)(uintptr_t)ptr;
}

const char *gpu_error(int code)
{
    const char *text = NULL;

    if (cu.cuGetErrorString == NULL || cu.cuGetErrorString(code, &text) != 0 || text == NULL)
        return "unknown driver error";
    return text;
}

static void must(int code, const char *call)
{
    if (code == 0)
        return;
    fprintf(stderr, "%s: %s (%d)\n", call, gpu_error(code), code);
    exit(2);
}

/* A driver keeps old versions of a call, another implementation may have the newest alone. */
static void *find_symbol(void *library, const char *name)
{
    char newer[80];
    void *symbol = dlsym(library, name);

    if (symbol != NULL)
        return symbol;
    snprintf(newer, sizeof newer, "%s_v2", name);
    return dlsym(library, newer);
}

static bool load_entries(void *library)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *symbol = find_symbol(library, entries[i].name);

        if (symbol == NULL) {
            snprintf(driver_absent, sizeof driver_absent, "libcuda.so.1 has no %s: the driver is too old", entries[i].name);
            return false;
        }
        *(void **)(void *)((char *)&cu + entries[i].offset) = symbol;
    }
    return true;
}

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int code;

    if (library == NULL) {
        snprintf(driver_absent, sizeof driver_absent, "libcuda.so.1 was not found: %s", dlerror());
        return;
    }
    if (!load_entries(library))
        return;
    code = cu.cuInit(0);
    if (code == 0)
        code = cu.cuDeviceGetCount(&device_count);
    if (code != 0)
        snprintf(driver_absent, sizeof driver_absent, "cuInit: %s (%d)", gpu_error(code), code);
    else if (device_count == 0)
        snprintf(driver_absent, sizeof driver_absent, "the CUDA driver sees no device");
}

const char *gpu_absent(void)
{
    pthread_once(&driver_once, open_driver);
    return driver_absent[0] != '\0' ? driver_absent : NULL;
}

int gpu_count(void)
{
    return gpu_absent() == NULL ? device_count : 0;
}

int gpu_of_rank(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK", "SLURM_LOCALID", "LOCAL_RANK",
                                         "PK_RANK" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);

        if (value != NULL && *value != '\0')
            return atoi(value) % device_count;
    }
    return 0;
}

static int device_of(int ordinal)
{
    int device;

    if (gpu_absent() != NULL) {
        fprintf(stderr, "no GPU: %s\n", gpu_absent());
        exit(2);
    }
    must(cu.cuDeviceGet(&device, ordinal), "cuDeviceGet");
    return device;
}

void gpu_use(int ordinal)
{
    void *context;

    must(cu.cuDevicePrimaryCtxRetain(&context, device_of(ordinal)), "cuDevicePrimaryCtxRetain");
    must(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    current_device = ordinal;
}

void gpu_name(int ordinal, char *name, size_t bytes)
{
    must(cu.cuDeviceGetName(name, (int)bytes, device_of(ordinal)), "cuDeviceGetName");
}

void gpu_bus_id(int ordinal, char *text, size_t bytes)
{
    must(cu.cuDeviceGetPCIBusId(text, (int)bytes, device_of(ordinal)), "cuDeviceGetPCIBusId");
}

static int attribute_of(int ordinal, int attribute)
{
    int value;

    must(cu.cuDeviceGetAttribute(&value, attribute, device_of(ordinal)), "cuDeviceGetAttribute");
    return value;
}

int gpu_multiprocessors(int ordinal)
{
    return attribute_of(ordinal, ATTRIBUTE_MULTIPROCESSORS);
}

int gpu_threads_per_multiprocessor(int ordinal)
{
    return attribute_of(ordinal, ATTRIBUTE_THREADS_PER_MULTIPROCESSOR);
}

void *gpu_alloc(size_t bytes)
{
    address_t ptr;

    must(cu.cuMemAlloc_v2(&ptr, bytes > 0 ? bytes : 1), "cuMemAlloc");
    return (void *)(uintptr_t)ptr;
}

void gpu_free(void *ptr)
{
    if (ptr != NULL)
        must(cu.cuMemFree_v2(address(ptr)), "cuMemFree");
}

void *gpu_host_alloc(size_t bytes)
{
    void *ptr;

    must(cu.cuMemHostAlloc(&ptr, bytes, HOST_PORTABLE_MAPPED), "cuMemHostAlloc");
    return ptr;
}

void gpu_host_free(void *ptr)
{
    if (ptr != NULL)
        must(cu.cuMemFreeHost(ptr), "cuMemFreeHost");
}

static gpu_stream_t own_stream(void)
{
    if (private_stream == NULL || private_stream_device != current_device) {
        private_stream = gpu_stream_new();
        private_stream_device = current_device;
    }
    return private_stream;
}

void gpu_copy(void *dst, const void *src, size_t bytes)
{
    if (bytes == 0)
        return;
    gpu_copy_async(dst, src, bytes, own_stream());
    must(gpu_stream_sync(own_stream()), "cuStreamSynchronize");
}

void gpu_copy_async(void *dst, const void *src, size_t bytes, gpu_stream_t stream)
{
    must(cu.cuMemcpyAsync(address(dst), address(src), bytes, stream), "cuMemcpyAsync");
}

void gpu_fill(void *dst, unsigned char value, size_t bytes)
{
    if (bytes == 0)
        return;
    must(cu.cuMemsetD8Async(address(dst), value, bytes, own_stream()), "cuMemsetD8Async");
    must(gpu_stream_sync(own_stream()), "cuStreamSynchronize");
}

gpu_stream_t gpu_stream_new(void)
{
    void *stream;

    must(cu.cuStreamCreate(&stream, STREAM_NON_BLOCKING), "cuStreamCreate");
    return stream;
}

gpu_stream_t gpu_stream_new_first(void)
{
    void *stream;

    must(cu.cuStreamCreateWithPriority(&stream, STREAM_NON_BLOCKING, PRIORITY_HIGHEST), "cuStreamCreateWithPriority");
    return stream;
}

void gpu_stream_free(gpu_stream_t stream)
{
    if (stream != NULL)
        must(cu.cuStreamDestroy_v2(stream), "cuStreamDestroy");
}

int gpu_context_sync(void)
{
    return cu.cuCtxSynchronize();
}

int gpu_stream_sync(gpu_stream_t stream)
{
    return cu.cuStreamSynchronize(stream);
}

int gpu_stream_query(gpu_stream_t stream)
{
    return cu.cuStreamQuery(stream);
}

void gpu_stream_wait(gpu_stream_t stream, gpu_event_t event)
{
    must(cu.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

gpu_event_t gpu_event_new(void)
{
    void *event;

    must(cu.cuEventCreate(&event, 0), "cuEventCreate");
    return event;
}

void gpu_event_free(gpu_event_t event)
{
    if (event != NULL)
        must(cu.cuEventDestroy_v2(event), "cuEventDestroy");
}

void gpu_event_record(gpu_event_t event, gpu_stream_t stream)
{
    must(cu.cuEventRecord(event, stream), "cuEventRecord");
}

int gpu_event_query(gpu_event_t event)
{
    return cu.cuEventQuery(event);
}

double gpu_event_elapsed_us(gpu_event_t start, gpu_event_t end)
{
    float ms;

    must(cu.cuEventElapsedTime(&ms, start, end), "cuEventElapsedTime");
    return ms * 1e3;
}

void gpu_ipc_export(const void *ptr, gpu_ipc_t *handle)
{
    must(cu.cuIpcGetMemHandle(handle, address(ptr)), "cuIpcGetMemHandle");
}

void *gpu_ipc_open(const gpu_ipc_t *handle)
{
    address_t ptr;

    must(cu.cuIpcOpenMemHandle_v2(&ptr, *handle, IPC_LAZY_PEER_ACCESS), "cuIpcOpenMemHandle");
    return (void *)(uintptr_t)ptr;
}

void gpu_ipc_close(void *ptr)
{
    must(cu.cuIpcCloseMemHandle(address(ptr)), "cuIpcCloseMemHandle");
}

void gpu_capture_begin(gpu_stream_t stream)
{
    must(cu.cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture");
}

int gpu_capture_end(gpu_stream_t stream, gpu_graph_t *graph)
{
    return gpu_capture_end_all(&stream, 1, graph);
}

int gpu_capture_end_all(const gpu_stream_t *streams, int n, gpu_graph_t *graphs)
{
    int code = 0;

    for (int i = 0; i < n; i++) {
        int ended = cu.cuStreamEndCapture(streams[i], &graphs[i]);

        if (ended != 0)
            graphs[i] = NULL;
        code = code != 0 ? code : ended;
    }
    for (int i = 0; i < n; i++) {
        void *captured = graphs[i];

        graphs[i] = NULL;
        if (captured == NULL)
            continue;
        if (code == 0)
            code = cu.cuGraphInstantiateWithFlags(&graphs[i], captured, 0);
        must(cu.cuGraphDestroy(captured), "cuGraphDestroy");
    }
    return code;
}

void gpu_graph_launch(gpu_graph_t graph, gpu_stream_t stream)
{
    must(cu.cuGraphLaunch(graph, stream), "cuGraphLaunch");
}

void gpu_graph_free(gpu_graph_t graph)
{
    if (graph != NULL)
        must(cu.cuGraphExecDestroy(graph), "cuGraphExecDestroy");
}

gpu_kernel_t gpu_kernel_load(const char *ptx, const char *name)
{
    void *module;
    void *function;

    must(cu.cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    must(cu.cuModuleGetFunction(&function, module, name), name);
    return function;
}

int gpu_kernel_blocks_per_multiprocessor(gpu_kernel_t kernel, int threads)
{
    int blocks;

    must(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0),
         "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    return blocks;
}

void gpu_kernel_launch(gpu_kernel_t kernel, int blocks, int threads, void **params, gpu_stream_t stream)
{
    must(cu.cuLaunchKernel(kernel, (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}
