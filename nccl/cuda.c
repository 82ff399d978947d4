/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations are the driver's ABI as it has been since CUDA 12. */
#include "cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "error.h"

#define LIBRARY "libcuda.so.1"

static struct driver {
    int (*cuInit)(unsigned flags);
    int (*cuGetErrorName)(int code, const char **name);
    int (*cuDeviceGetCount)(int *count);
    int (*cuCtxGetCurrent)(void **context);
    int (*cuCtxGetDevice)(int *device);
} cu;

static const struct {
    const char *name;
    size_t offset;
} entries[] = {
#define ENTRY(function) \
    { \
        .name = #function, .offset = offsetof(struct driver, function) \
    }
    ENTRY(cuInit), ENTRY(cuGetErrorName), ENTRY(cuDeviceGetCount), ENTRY(cuCtxGetCurrent), ENTRY(cuCtxGetDevice),
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
