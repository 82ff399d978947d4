/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls of the driver wait for a stream that waits. The engine makes some of them between the moment a stream begins to wait for an
 * operation and the moment it lets the stream go: if such a call waited for all work of the GPU, neither would ever end. Those are checked;
 * of the others a line says what they do. Exit code 1 when a check failed, 77 when there is no GPU.
 *
 * Uses the library's inside: link with the static library.
 */
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>

#include "kernels/kernels.h"
#include "device_bed.h"

#define PROGRAM "/proc/self/exe"
#define HOLD_MS 300 /* how long the stream waits when the call does; 20 times as long if it must not */
#define FROM_PARENT_FD 20
#define TO_PARENT_FD 21
#define FIRST_BYTES ((size_t)256 << 10)
#define SECOND_BYTES ((size_t)128 << 10)
#define SEED 5

extern char **environ;
extern const unsigned char pki_kernels_fatbin[];

/* What the calls work on. */
static struct {
    CUdeviceptr small, large, mapped, again, range;
    CUmemGenericAllocationHandle piece;
    void *host;
    size_t host_bytes, piece_bytes;
    CUstream stream;
    CUmodule module;
    CUfunction kernel;
    struct pki_export first, second;
    char pageable[4096];
} room;

/* ---- another process that lends memory ---- */

static void export_it(void *ptr, size_t bytes)
{
    struct pki_mem mem;
    struct pki_export out;

    if (ops->classify(device, ptr, bytes, &mem) != PK_OK || ops->export(device, &mem, &out) != PK_OK ||
        write(TO_PARENT_FD, &out, sizeof out) != (ssize_t)sizeof out)
        exit(1);
}

/* Memory that is freed while the parent maps it, then other memory, most likely at the same place. */
static int lend(void)
{
    void *first = device_alloc(FIRST_BYTES), *other_memory = device_alloc(FIRST_BYTES), *again;
    char word;

    export_it(first, FIRST_BYTES);
    if (read(FROM_PARENT_FD, &word, 1) != 1)
        return 1;
    ops->free(device, first);
    again = device_alloc(SECOND_BYTES);
    if (!device_fill(again, SECOND_BYTES, SEED))
        return 1;
    export_it(again, SECOND_BYTES);
    if (read(FROM_PARENT_FD, &word, 1) != 1)
        return 1;
    ops->free(device, again);
    ops->free(device, other_memory);
    return 0;
}

static int to_child[2], from_child[2];

static pid_t start_child(void)
{
    posix_spawn_file_actions_t actions;
    char *argv[] = { (char *)(uintptr_t)PROGRAM, (char *)(uintptr_t) "--lend", NULL };
    pid_t pid = -1;

    if (pipe(to_child) != 0 || pipe(from_child) != 0)
        return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_child[0], FROM_PARENT_FD);
    posix_spawn_file_actions_adddup2(&actions, from_child[1], TO_PARENT_FD);
    if (posix_spawn(&pid, PROGRAM, &actions, NULL, argv, environ) != 0)
        pid = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(from_child[1]);
    return pid;
}

static bool hear(struct pki_export *out)
{
    bool heard = read(from_child[0], out, sizeof *out) == (ssize_t)sizeof *out;

    out->fds = NULL;
    return heard;
}

/* ---- the calls ---- */

static CUresult alloc_small(void)
{
    return cu->mem_alloc(&room.small, 4096);
}

static CUresult alloc_large(void)
{
    return cu->mem_alloc(&room.large, 64 * MIB);
}

static CUresult free_small(void)
{
    return cu->mem_free(room.small);
}

static CUresult free_large(void)
{
    return cu->mem_free(room.large);
}

static CUresult host_register(void)
{
    return cu->host_register(room.host, room.host_bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
}

static CUresult host_unregister(void)
{
    return cu->host_unregister(room.host);
}

static CUresult stream_create(void)
{
    return cu->stream_create(&room.stream, CU_STREAM_NON_BLOCKING);
}

static CUresult stream_destroy(void)
{
    return cu->stream_destroy(room.stream);
}

static CUresult copy_pageable(void)
{
    return cu->memcpy_async((CUdeviceptr)(uintptr_t)room.small, (CUdeviceptr)(uintptr_t)room.pageable, sizeof room.pageable,
                            (CUstream)second.handle);
}

static CUresult module_load(void)
{
    return cu->module_load_data(&room.module, pki_kernels_fatbin);
}

static CUresult module_function(void)
{
    int threads;
    CUresult code = cu->module_get_function(&room.kernel, room.module, PKI_KERNEL_WAIT);

    return code == CUDA_SUCCESS ? cu->func_get_attribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, room.kernel) : code;
}

static CUresult first_launch(void)
{
    struct pki_wait_args args = { .n = 0 };
    CUlaunchConfig config = { .gridDimX = 1,
                              .gridDimY = 1,
                              .gridDimZ = 1,
                              .blockDimX = 32,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .hStream = (CUstream)second.handle };
    void *params[] = { &args };

    return cu->launch_kernel(&config, room.kernel, params, NULL);
}

static CUresult module_unload(void)
{
    return cu->module_unload(room.module);
}

static CUresult vmm_map(void)
{
    CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = access.location,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR };
    CUresult code = extra.mem_create(&room.piece, room.piece_bytes, &prop, 0);

    if (code == CUDA_SUCCESS)
        code = cu->vmm_reserve(&room.range, room.piece_bytes, 0, 0, 0);
    if (code == CUDA_SUCCESS)
        code = cu->vmm_map(room.range, room.piece_bytes, 0, room.piece, 0);
    return code == CUDA_SUCCESS ? cu->vmm_set_access(room.range, room.piece_bytes, &access, 1) : code;
}

static CUresult vmm_unmap(void)
{
    CUresult code = cu->vmm_unmap(room.range, room.piece_bytes);

    cu->vmm_unreserve(room.range, room.piece_bytes);
    cu->vmm_release(room.piece);
    return code;
}

static CUresult ipc_open(const struct pki_export *in, CUdeviceptr *address)
{
    CUipcMemHandle handle;

    memcpy(&handle, in->handle, sizeof handle);
    return cu->ipc_open_mem_handle(address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult open_first(void)
{
    return ipc_open(&room.first, &room.mapped);
}

/* The first mapping stands: refused where the new memory lies in its place. */
static CUresult open_second(void)
{
    CUresult code = ipc_open(&room.second, &room.again);

    return code == CUDA_ERROR_ALREADY_MAPPED ? CUDA_SUCCESS : code;
}

static CUresult close_first(void)
{
    return cu->ipc_close_mem_handle(room.mapped);
}

struct call {
    const char *name;
    bool waits; /* it may: the engine does not make it while a stream waits */
    CUresult (*make)(void);
};

static const struct call calls[] = {
    { "cuMemAlloc of 4 KiB", false, alloc_small },
    { "cuMemAlloc of 64 MiB", false, alloc_large },
    { "cuMemcpyAsync from pageable memory", false, copy_pageable },
    { "cuMemFree of 4 KiB", true, free_small },
    { "cuMemFree of 64 MiB", true, free_large },
    { "cuMemHostRegister of 8 MiB", false, host_register },
    { "cuMemHostUnregister", true, host_unregister },
    { "cuStreamCreate", true, stream_create }, /* every 43rd (docs/design/0024) */
    { "cuStreamDestroy", false, stream_destroy },
    { "cuModuleLoadData", true, module_load },
    { "cuModuleGetFunction and its code", true, module_function },
    { "first launch of a function", false, first_launch },
    { "cuModuleUnload", true, module_unload },
    { "cuMemCreate, cuMemMap, cuMemSetAccess", false, vmm_map },
    { "cuMemUnmap", true, vmm_unmap },
    { "cuIpcOpenMemHandle", false, open_first },
    { "cuIpcOpenMemHandle at the same place", false, open_second },
    { "cuIpcCloseMemHandle", true, close_first },
};

/* ---- a stream that waits meanwhile ---- */

static uint32_t turn;
static atomic_bool returned, time_is_up;

/* Once the call has returned, or when it takes too long. */
static void *let_go_in_time(void *arg)
{
    const struct call *call = arg;
    uint64_t until = pki_now_ns() + (uint64_t)(call->waits ? 1 : 20) * HOLD_MS * PKI_NS_PER_MS;

    while (!atomic_load(&returned) && pki_now_ns() < until)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    atomic_store(&time_is_up, !atomic_load(&returned));
    word_set(0, turn);
    return NULL;
}

static void make(const struct call *call, enum pki_wait_how how, const char *by)
{
    struct pki_signal_op wait = word_op(PKI_SIGNAL_WAIT, 0, ++turn);
    pthread_t thread;
    uint64_t begin;
    double took_ms;
    CUresult code;

    CHECK(ops->signals(&queue, &wait, 1, how) == PK_OK && !ops->idle(&queue));
    atomic_store(&returned, false);
    if (pthread_create(&thread, NULL, let_go_in_time, (void *)(uintptr_t)call) != 0)
        exit(1);
    begin = pki_now_ns();
    code = call->make();
    took_ms = (double)(pki_now_ns() - begin) / 1e6;
    atomic_store(&returned, true);
    pthread_join(thread, NULL);
    CHECK(code == CUDA_SUCCESS);
    printf("INFO beside a stream that waits by a %s: %-38s %8.3f ms%s\n", by, call->name, took_ms,
           atomic_load(&time_is_up) ? ", it waits for the stream" : "");
    if (!call->waits && !CHECK(!atomic_load(&time_is_up)))
        printf("FAIL %s waits for a waiting stream\n", call->name);
    CHECK(drained(&queue) && drained(&second));
}

static void second_memory(void)
{
    char word = 0;

    CHECK(write(to_child[1], &word, 1) == 1 && hear(&room.second));
    printf("INFO freed at %#llx, allocated at %#llx\n", (unsigned long long)room.first.base,
           (unsigned long long)room.second.base);
}

/* What the mapping of the memory that was freed shows of the other memory in its place. */
static void look_through_old_mapping(void)
{
    bool same;

    if (room.again != 0 || room.second.base < room.first.base)
        return;
    same = device_has((const void *)(uintptr_t)(room.mapped + (room.second.base - room.first.base)), SECOND_BYTES, SEED);
    printf("INFO refused, and the old mapping shows %s\n", same ? "the new memory" : "other bytes");
}

static void run(enum pki_wait_how how, const char *by)
{
    pid_t child;
    int status = -1;
    char word = 0;

    running = by;
    memset(&room, 0, sizeof room);
    room.host_bytes = 8 * MIB;
    room.piece_bytes = 2 * MIB;
    room.host = mmap(NULL, room.host_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    child = start_child();
    if (!CHECK(child > 0 && room.host != MAP_FAILED && hear(&room.first)))
        return;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0] && failures == 0; i++) {
        if (calls[i].make == open_second)
            second_memory();
        make(&calls[i], how, by);
        if (calls[i].make == open_second)
            look_through_old_mapping();
    }
    if (room.again != 0)
        CHECK(cu->ipc_close_mem_handle(room.again) == CUDA_SUCCESS);
    (void)!write(to_child[1], &word, 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(to_child[0]);
    close(to_child[1]);
    close(from_child[0]);
    munmap(room.host, room.host_bytes);
}

static void by_value(void)
{
    run(PKI_WAIT_VALUE, "word");
}

static void by_kernel(void)
{
    run(PKI_WAIT_KERNEL, "kernel");
}

static const struct bed_check checks[] = {
    { "word", by_value },
    { "kernel", by_kernel },
};

int main(int argc, char **argv)
{
    int result = bed_open();

    if (result != 0)
        return result;
    ops->enter(device);
    if (argc > 1 && strcmp(argv[1], "--lend") == 0)
        result = lend();
    else
        result = bed_run(checks, sizeof checks / sizeof checks[0], argc, argv);
    ops->leave(device);
    bed_close();
    return result;
}
