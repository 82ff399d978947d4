/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations are the driver's ABI as it has been since CUDA 12. */
#include "cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "error.h"

#define LIBRARY "libcuda.so.1"

typedef unsigned long long address_t;

static struct driver {
    int (*cuInit)(unsigned flags);
    int (*cuGetErrorName)(int code, const char **name);
    int (*cuDeviceGetCount)(int *count);
    int (*cuDeviceGet)(int *device, int ordinal);
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuCtxGetCurrent)(void **context);
    int (*cuCtxGetDevice)(int *device);
    int (*cuCtxPushCurrent_v2)(void *context);
    int (*cuCtxPopCurrent_v2)(void **context);
    int (*cuMemAlloc_v2)(address_t *ptr, size_t bytes);
    int (*cuMemFree_v2)(address_t ptr);
} cu;

static const struct {
    const char *name;
    size_t offset;
} entries[] = {
#define ENTRY(name) { #name, offsetof(struct driver, name) }
    ENTRY(cuInit),          ENTRY(cuGetErrorName), ENTRY(cuDeviceGetCount),    ENTRY(cuDeviceGet),
    ENTRY(cuDevicePrimaryCtxRetain), ENTRY(cuCtxGetCurrent), ENTRY(cuCtxGetDevice), ENTRY(cuCtxPushCurrent_v2),
    ENTRY(cuCtxPopCurrent_v2), ENTRY(cuMemAlloc_v2), ENTRY(cuMemFree_v2),
#undef ENTRY
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char absent[256];
static int devices;

static const char *error_name(int code)
{
    const char *name = NULL;

    return cu.cuGetErrorName(code, &name) == 0 && name != NULL ? name : "unknown CUDA error";
}

static bool find_symbols(void *library)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *symbol = dlsym(library, entries[i].name);

        if (symbol == NULL) {
            snprintf(absent, sizeof absent, LIBRARY " has no %s: the driver is too old", entries[i].name);
            return false;
        }
        memcpy((char *)&cu + entries[i].offset, &symbol, sizeof symbol);
    }
    return true;
}

static void load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    int code;

    if (library == NULL) {
        snprintf(absent, sizeof absent, LIBRARY " cannot be opened: %s", dlerror());
        return;
    }
    if (!find_symbols(library))
        return;
    code = cu.cuInit(0);
    if (code == 0)
        code = cu.cuDeviceGetCount(&devices);
    if (code != 0)
        snprintf(absent, sizeof absent, "the CUDA driver cannot be used: %s", error_name(code));
    else if (devices == 0)
        snprintf(absent, sizeof absent, "the CUDA driver sees no device");
}

static pkn_result_t check(int code, const char *call)
{
    return code == 0 ? PKN_SUCCESS : pkn_fail(PKN_CUDA_ERROR, "%s: %s", call, error_name(code));
}

static pkn_result_t have_driver(void)
{
    pthread_once(&once, load);
    return absent[0] == '\0' ? PKN_SUCCESS : pkn_fail(PKN_CUDA_ERROR, "%s", absent);
}

pkn_result_t pkn_cuda_count(int *count)
{
    pkn_result_t result = have_driver();

    if (result == PKN_SUCCESS)
        *count = devices;
    return result;
}

pkn_result_t pkn_cuda_device(int *device)
{
    void *context = NULL;
    int found = 0;
    pkn_result_t result = have_driver();

    if (result == PKN_SUCCESS)
        result = check(cu.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    if (result == PKN_SUCCESS && context != NULL)
        result = check(cu.cuCtxGetDevice(&found), "cuCtxGetDevice");
    if (result == PKN_SUCCESS)
        *device = found;
    return result;
}

/* The context of the thread's device, made current. The reference to the primary context is the process's from then on, as
 * the CUDA runtime keeps one. */
static pkn_result_t enter(void)
{
    static void *contexts[64];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int device = 0, handle;
    pkn_result_t result = pkn_cuda_device(&device);

    if (result != PKN_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    if (device >= (int)(sizeof contexts / sizeof contexts[0]))
        result = pkn_fail(PKN_CUDA_ERROR, "device %d is beyond the 64 that this library knows", device);
    else if (contexts[device] == NULL)
        result = check(cu.cuDeviceGet(&handle, device), "cuDeviceGet");
    if (result == PKN_SUCCESS && contexts[device] == NULL)
        result = check(cu.cuDevicePrimaryCtxRetain(&contexts[device], handle), "cuDevicePrimaryCtxRetain");
    if (result == PKN_SUCCESS)
        result = check(cu.cuCtxPushCurrent_v2(contexts[device]), "cuCtxPushCurrent");
    pthread_mutex_unlock(&lock);
    return result;
}

static void leave(void)
{
    void *context;

    (void)cu.cuCtxPopCurrent_v2(&context);
}

pkn_result_t pkn_cuda_alloc(size_t bytes, void **ptr)
{
    address_t address = 0;
    pkn_result_t result = enter();

    if (result != PKN_SUCCESS)
        return result;
    result = check(cu.cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
    leave();
    if (result == PKN_SUCCESS)
        *ptr = (void *)(uintptr_t)address;
    return result;
}

pkn_result_t pkn_cuda_free(void *ptr)
{
    pkn_result_t result = enter();

    if (result != PKN_SUCCESS)
        return result;
    result = check(cu.cuMemFree_v2((address_t)(uintptr_t)ptr), "cuMemFree");
    leave();
    return result;
}
