/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: any image is taken, and its kernels are looked up by name among those of fc_kernels.c. */
#include "fakecuda.h"

#include <stdlib.h>
#include <string.h>

#define STATIC_SHARED_BYTES 49152u
#define OPTIN_SHARED_BYTES 232448

struct function {
    const struct fc_kernel *kernel;
    struct module *module;
    int max_dynamic_shared;
};

/* A module (of a context) or a library (of all contexts: ctx is NULL). */
struct module {
    struct module *next;
    struct fc_ctx *ctx;
    unsigned epoch;
    size_t n;
    struct function functions[];
};

static struct module *modules;

static CUresult load(const void *image, struct fc_ctx *ctx, struct module **module)
{
    struct module *m;
    size_t n = 0;

    if (image == NULL || module == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    while (fc_kernels[n].name != NULL)
        n++;
    m = calloc(1, sizeof *m + n * sizeof(struct function));
    if (m == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->ctx = ctx;
    m->epoch = ctx != NULL ? ctx->epoch : 0;
    m->n = n;
    for (size_t i = 0; i < n; i++)
        m->functions[i] = (struct function){ .kernel = &fc_kernels[i], .module = m };
    fc_lock();
    m->next = modules;
    modules = m;
    fc_unlock();
    *module = m;
    return CUDA_SUCCESS;
}

static struct module *find_module(const void *handle, bool library)
{
    struct module *m = modules;

    while (m != NULL && (m != handle || (m->ctx == NULL) != library))
        m = m->next;
    return m;
}

static struct function *find_function(const void *handle)
{
    for (struct module *m = modules; m != NULL; m = m->next)
        for (size_t i = 0; i < m->n; i++)
            if (&m->functions[i] == handle)
                return &m->functions[i];
    return NULL;
}

static CUresult unload(const void *handle, bool library)
{
    struct module **link = &modules;
    struct module *m = find_module(handle, library);

    if (m == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    while (*link != m)
        link = &(*link)->next;
    *link = m->next;
    free(m);
    return CUDA_SUCCESS;
}

static CUresult get_function(const void *handle, bool library, const char *name, struct function **function)
{
    struct module *m = find_module(handle, library);

    if (m == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->functions[i].kernel->name, name) == 0) {
            *function = &m->functions[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

/* Measured: both wait for all work of the context. */
static void wait_first(void)
{
    fc_lock();
    fc_wait_before_free(fc_current());
    fc_unlock();
}

static CUresult module_entry(const char *name, CUmodule *module, const void *image)
{
    struct module *m = NULL;
    CUresult result = fc_enter(name, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        wait_first();
        result = load(image, fc_current(), &m);
    }
    if (result == CUDA_SUCCESS)
        *module = (CUmodule)(void *)m;
    return fc_leave(name, result);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return module_entry(__func__, module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                            void **optionValues)
{
    (void)numOptions;
    (void)options;
    (void)optionValues;
    return module_entry(__func__, module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return module_entry(__func__, module, fatCubin);
}

CUresult cuModuleUnload(CUmodule hmod)
{
    CUresult result = fc_enter(__func__, FC_CTX | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        wait_first();
        fc_lock();
        result = unload(hmod, false);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        struct function *f = NULL;

        fc_lock();
        result = get_function(hmod, false, name, &f);
        fc_unlock();
        if (result == CUDA_SUCCESS)
            *hfunc = (CUfunction)(void *)f;
    }
    return fc_leave(__func__, result);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions)
{
    struct module *m = NULL;
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    if (result == CUDA_SUCCESS)
        result = load(code, NULL, &m);
    if (result == CUDA_SUCCESS)
        *library = (CUlibrary)(void *)m;
    return fc_leave(__func__, result);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    CUresult result = fc_enter(__func__, FC_INIT | FC_UNSAFE);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = unload(library, true);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        struct function *f = NULL;

        fc_lock();
        result = get_function(library, true, name, &f);
        fc_unlock();
        if (result == CUDA_SUCCESS)
            *pKernel = (CUkernel)(void *)f;
    }
    return fc_leave(__func__, result);
}

/* A kernel of a library is launched by the same handle here. */
CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS)
        *pFunc = (CUfunction)(void *)kernel;
    return fc_leave(__func__, result);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        struct function *f;

        fc_lock();
        f = find_function(hfunc);
        if (f == NULL)
            result = CUDA_ERROR_INVALID_HANDLE;
        else if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && (value < 0 || value > OPTIN_SHARED_BYTES))
            result = CUDA_ERROR_INVALID_VALUE;
        else if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
            f->max_dynamic_shared = value;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static int attribute_of(const struct function *f, CUfunction_attribute attribute)
{
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        return 1024;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        return 32;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        return 90;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        return f->max_dynamic_shared > 0 ? f->max_dynamic_shared : (int)STATIC_SHARED_BYTES;
    default:
        return 0;
    }
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS) {
        struct function *f;

        fc_lock();
        f = find_function(hfunc);
        if (f == NULL || pi == NULL || attrib < 0 || attrib >= CU_FUNC_ATTRIBUTE_MAX)
            result = f == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
        else
            *pi = attribute_of(f, attrib);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    (void)func;
    (void)dynamicSMemSize;
    if (result == CUDA_SUCCESS && (numBlocks == NULL || blockSize <= 0 || blockSize > 1024))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *numBlocks = 2048 / blockSize < 32 ? 2048 / blockSize : 32;
    return fc_leave(__func__, result);
}

/* The driver reads all parameters at the call: so does this. */
static struct fc_op *launch_op(struct fc_ctx *ctx, const struct fc_kernel *kernel, void **params)
{
    struct fc_op *op = fc_op_new(FC_OP_KERNEL, ctx);
    size_t bytes = kernel->nparams * sizeof(void *);
    char *at;

    bytes = fc_round(bytes, 16);
    for (size_t i = 0; i < kernel->nparams; i++)
        bytes += fc_round(kernel->param_bytes[i], 16);
    op->launch.params = malloc(bytes + 16);
    if (op->launch.params == NULL)
        abort();
    at = (char *)op->launch.params + fc_round(kernel->nparams * sizeof(void *), 16);
    for (size_t i = 0; i < kernel->nparams; i++) {
        op->launch.params[i] = memcpy(at, params[i], kernel->param_bytes[i]);
        at += fc_round(kernel->param_bytes[i], 16);
    }
    op->launch.kernel = kernel;
    return op;
}

static bool is_early(const CUlaunchConfig *config)
{
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
            config->attrs[i].value.programmaticStreamSerializationAllowed != 0)
            return true;
    return false;
}

static CUresult launch(const void *function, const CUlaunchConfig *config, void **params)
{
    struct function *f = find_function(function);
    struct fc_stream *s = NULL;
    struct fc_op *op;
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    uint64_t blocks = (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ;
    CUresult result = f != NULL ? fc_stream_get(config->hStream, &s) : CUDA_ERROR_INVALID_HANDLE;

    if (result != CUDA_SUCCESS)
        return result;
    if (s->ctx != fc_current() || (f->module->ctx != NULL && f->module->ctx != s->ctx))
        return CUDA_ERROR_INVALID_HANDLE;
    if (threads == 0 || threads > 1024 || blocks == 0 || (params == NULL && f->kernel->nparams > 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (config->sharedMemBytes > STATIC_SHARED_BYTES && config->sharedMemBytes > (unsigned)f->max_dynamic_shared)
        return CUDA_ERROR_INVALID_VALUE;
    if (is_early(config) && !fc_waits_for_stream(f->kernel))
        return CUDA_ERROR_INVALID_VALUE;
    op = launch_op(s->ctx, f->kernel, params);
    op->launch.grid = (struct fc_dims){ config->gridDimX, config->gridDimY, config->gridDimZ };
    op->launch.block = (struct fc_dims){ config->blockDimX, config->blockDimY, config->blockDimZ };
    return fc_submit(s, op);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS && (config == NULL || extra != NULL))
        result = config == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = launch(f, config, kernelParams);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
                        unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void **kernelParams, void **extra)
{
    const CUlaunchConfig config = { .gridDimX = gridDimX,
                                    .gridDimY = gridDimY,
                                    .gridDimZ = gridDimZ,
                                    .blockDimX = blockDimX,
                                    .blockDimY = blockDimY,
                                    .blockDimZ = blockDimZ,
                                    .sharedMemBytes = sharedMemBytes,
                                    .hStream = hStream };
    CUresult result = fc_enter(__func__, FC_CTX);

    if (result == CUDA_SUCCESS && extra != NULL)
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS) {
        fc_lock();
        result = launch(f, &config, kernelParams);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}
