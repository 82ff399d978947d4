/* SPDX-License-Identifier: Apache-2.0 */
/* Start of the fake driver: configuration from the environment, what every entry point checks, tracing, injected failures. */
#include "fakecuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct fc_state fc = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
_Thread_local struct fc_thread fc_self;

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

/* FAKECUDA_FAIL=name:nth:code[,name:nth:code...] */
#define FAILURES_MAX 8
static struct failure {
    char name[64];
    atomic_int left;
    int code;
} failures[FAILURES_MAX];
static int nfailures;

static long env_long(const char *name, long otherwise)
{
    const char *text = getenv(name);
    char *end;
    long value;

    if (text == NULL || *text == '\0')
        return otherwise;
    value = strtol(text, &end, 10);
    return *end == '\0' ? value : otherwise;
}

static void read_visible_devices(int physical_devices)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");

    fc.devices = 0;
    if (text == NULL) {
        for (int i = 0; i < physical_devices; i++)
            fc.physical[fc.devices++] = i;
        return;
    }
    while (*text != '\0' && fc.devices < FC_MAX_DEVICES) {
        char *end;
        long index = strtol(text, &end, 10);

        /* As the driver: the list ends at the first entry that is not a device. */
        if (end == text || index < 0 || index >= physical_devices)
            break;
        fc.physical[fc.devices++] = (int)index;
        if (*end != ',')
            break;
        text = end + 1;
    }
}

static void read_failures(void)
{
    const char *text = getenv("FAKECUDA_FAIL");

    while (text != NULL && *text != '\0' && nfailures < FAILURES_MAX) {
        struct failure *f = &failures[nfailures];
        int nth;

        if (sscanf(text, "%63[^:]:%d:%d", f->name, &nth, &f->code) == 3) {
            atomic_store(&f->left, nth);
            nfailures++;
        }
        text = strchr(text, ',');
        if (text != NULL)
            text++;
    }
}

static void read_environment(void)
{
    const char *queues = getenv("FAKECUDA_QUEUES");
    long devices = env_long("FAKECUDA_DEVICES", 2);

    if (devices < 0 || devices > FC_MAX_DEVICES)
        devices = FC_MAX_DEVICES;
    read_visible_devices((int)devices);
    read_failures();
    fc.trace = env_long("FAKECUDA_TRACE", 0) != 0;
    fc.protect = env_long("FAKECUDA_PROTECT", 1) != 0;
    fc.corrupt = env_long("FAKECUDA_CORRUPT", 0) != 0;
    fc.jitter_us = (unsigned)env_long("FAKECUDA_JITTER_US", 0);
    fc.depth = (unsigned)env_long("FAKECUDA_DEPTH", 1024);
    fc.ncopy_queues = (unsigned)env_long("FAKECUDA_COPY_QUEUES", 0);
    if (fc.ncopy_queues > FC_QUEUES_MAX)
        fc.ncopy_queues = FC_QUEUES_MAX;
    fc.nwork_queues = (unsigned)env_long("FAKECUDA_WORK_QUEUES", 0);
    if (fc.nwork_queues > FC_QUEUES_MAX)
        fc.nwork_queues = FC_QUEUES_MAX;
    fc.memory_bytes = (size_t)env_long("FAKECUDA_MEMORY_MB", 16384) << 20;
    fc.stuck_s = (unsigned)env_long("FAKECUDA_STUCK_S", 10);
    fc.sync = getenv("FAKECUDA_SYNC");
    fc.hold = getenv("FAKECUDA_HOLD");
    fc.connections = (int)env_long("CUDA_DEVICE_MAX_CONNECTIONS", 8);
    if (fc.depth < 2)
        fc.depth = 2;
    if (fc.connections < 1)
        fc.connections = 1;
    if (fc.connections > 32)
        fc.connections = 32;
    fc.queues = FC_QUEUES_PROCESS;
    if (queues != NULL && strcmp(queues, "0") == 0)
        fc.queues = FC_QUEUES_OFF;
    else if (queues != NULL && strcmp(queues, "context") == 0)
        fc.queues = FC_QUEUES_CONTEXT;
}

/* Threads of streams outlive any dlclose: stay loaded. */
static void *own_object(void)
{
    Dl_info info;

    if (dladdr((void *)&fc, &info) == 0)
        return NULL;
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

void fc_lock(void)
{
    pthread_mutex_lock(&fc.lock);
}

void fc_unlock(void)
{
    pthread_mutex_unlock(&fc.lock);
}

void fc_count(enum fc_stat stat, long by)
{
    atomic_fetch_add(&fc.stats[stat], (unsigned long)by);
}

void fc_max(enum fc_stat stat, unsigned long value)
{
    unsigned long old = atomic_load(&fc.stats[stat]);

    while (old < value && !atomic_compare_exchange_weak(&fc.stats[stat], &old, value))
        ;
}

void fc_trace(const char *format, ...)
{
    char line[512];
    va_list arguments;
    int used;

    if (!fc.trace)
        return;
    used = snprintf(line, sizeof line, "fakecuda %d/%ld ", (int)getpid(), (long)syscall(SYS_gettid));
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    strcat(line, "\n");
    fputs(line, stderr);
}

void fc_fault(const char *what, uintptr_t address, size_t bytes)
{
    fprintf(stderr, "fakecuda %d: illegal address: %s at %#lx, %zu bytes\n", (int)getpid(), what, (unsigned long)address, bytes);
    fc_lock();
    if (fc.sticky == CUDA_SUCCESS)
        fc.sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    pthread_cond_broadcast(&fc.changed);
    fc_unlock();
}

bool fc_ctx_valid(const struct fc_ctx *ctx)
{
    return ctx >= fc.contexts && ctx < fc.contexts + fc.devices;
}

struct fc_ctx *fc_current(void)
{
    return fc_self.depth > 0 ? fc_self.stack[fc_self.depth - 1] : NULL;
}

static CUresult injected(const char *name)
{
    for (int i = 0; i < nfailures; i++)
        if (strcmp(failures[i].name, name) == 0 && atomic_fetch_sub(&failures[i].left, 1) == 1)
            return (CUresult)failures[i].code;
    return CUDA_SUCCESS;
}

static CUresult check_state(unsigned need)
{
    struct fc_ctx *ctx = fc_current();
    CUresult result = CUDA_SUCCESS;

    /* First of all: after a fork the lock may be held for ever. */
    if ((need & FC_INIT) && atomic_load(&fc.use) != FC_IN_USE)
        return CUDA_ERROR_NOT_INITIALIZED;
    fc_lock();
    if ((need & FC_CTX) == FC_CTX && ctx == NULL)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if ((need & FC_CTX) == FC_CTX && ctx->refs == 0)
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    else if (need & FC_INIT)
        result = fc.sticky;
    if (result == CUDA_SUCCESS && (need & FC_UNSAFE))
        result = fc_capture_unsafe();
    fc_unlock();
    return result;
}

const char *fc_call(void)
{
    return fc_self.call != NULL ? fc_self.call : "a thread of the driver";
}

static bool is_among(const char *name, const char *names)
{
    const char *found = names != NULL ? strstr(names, name) : NULL;

    return found != NULL && (found == names || found[-1] == ',') && (found[strlen(name)] == ',' || found[strlen(name)] == '\0');
}

/* Calls that need a context stand in line behind the one of another thread that holds the driver. */
static void take_turn(const char *name)
{
    if (fc.hold == NULL)
        return;
    fc_lock();
    while (fc.holder != NULL && fc.holder != &fc_self)
        pthread_cond_wait(&fc.changed, &fc.lock);
    if (is_among(name, fc.hold))
        fc.holder = &fc_self;
    fc_unlock();
}

static void give_turn(const char *name)
{
    if (fc.hold == NULL || !is_among(name, fc.hold))
        return;
    fc_lock();
    if (fc.holder == &fc_self)
        fc.holder = NULL;
    pthread_cond_broadcast(&fc.changed);
    fc_unlock();
}

CUresult fc_enter(const char *name, unsigned need)
{
    CUresult result;

    pthread_once(&environment_once, read_environment);
    result = injected(name);
    if (result == CUDA_SUCCESS && fc_self.in_callback && !(need & FC_CALLBACK))
        result = CUDA_ERROR_NOT_PERMITTED;
    if (result == CUDA_SUCCESS)
        result = check_state(need);
    fc_self.call = name;
    if (result == CUDA_SUCCESS && (need & FC_CTX) == FC_CTX)
        take_turn(name);
    if (result == CUDA_SUCCESS && fc_current() != NULL && is_among(name, fc.sync)) {
        fc_lock();
        fc_wait_ctx(fc_current());
        fc_unlock();
    }
    return result;
}

CUresult fc_leave(const char *name, CUresult result)
{
    give_turn(name);
    if (fc.trace) {
        const char *text = "?";

        if (cuGetErrorName(result, &text) != CUDA_SUCCESS)
            text = "?";
        fc_trace("%s -> %s", name, text);
    }
    return result;
}

static void note_fork(void)
{
    atomic_store(&fc.use, FC_LOST);
}

static CUresult init(unsigned flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (fc.devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    if (atomic_load(&fc.use) != FC_UNUSED)
        return atomic_load(&fc.use) == FC_IN_USE ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    fc_lock();
    own_object();
    for (int i = 0; i < fc.devices; i++)
        fc.contexts[i].device = i;
    if (pthread_atfork(NULL, NULL, note_fork) == 0)
        atomic_store(&fc.use, FC_IN_USE);
    fc_unlock();
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int Flags)
{
    CUresult result = fc_enter(__func__, FC_ANY);

    if (result == CUDA_SUCCESS)
        result = init(Flags);
    return fc_leave(__func__, result);
}

CUresult cuDriverGetVersion(int *driverVersion)
{
    if (driverVersion == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = (int)env_long("FAKECUDA_DRIVER_VERSION", 13000);
    return CUDA_SUCCESS;
}

/* The newest form of an entry point: `name` with its highest suffix. */
static void *entry_point(const char *name)
{
    static const char *const suffixes[] = { "_v3", "_v2", "" };
    void *object = own_object();
    char full[128];

    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        void *found;

        snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
        found = dlsym(object != NULL ? object : RTLD_DEFAULT, full);
        if (found != NULL)
            return found;
    }
    return NULL;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    (void)cudaVersion;
    (void)flags;
    if (symbol == NULL || pfn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pfn = entry_point(symbol);
    if (symbolStatus != NULL)
        *symbolStatus = *pfn != NULL ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *pfn != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Not part of CUDA: what the streams have done so far, for tests (find it by dlsym). Unknown names give ULONG_MAX. */
__attribute__((visibility("default"))) unsigned long fakecuda_stat(const char *name);

unsigned long fakecuda_stat(const char *name)
{
    static const char *const names[FC_STATS] = {
        [FC_KERNELS] = "kernels",
        [FC_MEMSETS] = "memsets",
        [FC_LOCAL_COPIES] = "local_copies",
        [FC_PEER_COPIES] = "peer_copies",
        [FC_HOST_COPIES] = "host_copies",
        [FC_WAITS] = "waits",
        [FC_WRITES] = "writes",
        [FC_PENDING_WAITS] = "pending_waits",
        [FC_PENDING_WAITS_MAX] = "pending_waits_max",
        [FC_GRAPH_LAUNCHES] = "graph_launches",
        [FC_IPC_OPENS] = "ipc_opens",
        [FC_ALLOCATIONS] = "allocations",
        [FC_RANGES] = "ranges",
        [FC_STREAMS] = "streams",
        [FC_EVENTS] = "events",
    };

    for (int i = 0; i < FC_STATS; i++)
        if (strcmp(names[i], name) == 0)
            return atomic_load(&fc.stats[i]);
    return ULONG_MAX;
}
