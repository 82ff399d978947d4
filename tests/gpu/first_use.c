/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the first communicator on a GPU costs beyond the GPU's context: less than 50 ms, and at most 16 MiB of its memory for each other rank of the
 * communicator, also after transfers of every length. Without a real GPU the limits of time are not held. INFO lines say where the time goes.
 *
 * Uses the library's inside: link with the static library.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/cuda_device.h"
#include "kernels/kernels.h"
#include "gpu_rank.h"

#define LIMIT_MS 50
#define RANKS 2
#define LIMIT_BYTES ((RANKS - 1) * ((size_t)16 << 20))
#define LONGEST ((size_t)32 << 20)

extern const unsigned char pki_kernels_fatbin[];

static size_t memory_used(void)
{
    static int (*get_info)(size_t *, size_t *);
    size_t left = 0, total = 0;

    if (get_info == NULL)
        *(void **)&get_info = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuMemGetInfo_v2");
    return get_info(&left, &total) == 0 ? total - left : 0;
}

static pk_comm_t *open_comm(int device)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;

    config.device = device;
    config.timeout_ms = 30000;
    must_be_ok(pk_comm_init(&comm, &config), "pk_comm_init");
    return comm;
}

/* What the communicator has allocated. */
static size_t own_memory(const pk_comm_t *comm)
{
    pk_stats_t stats = { .struct_size = sizeof stats };

    must_be_ok(pk_comm_stats(comm, &stats), "pk_comm_stats");
    return (size_t)stats.device_bytes;
}

/* Both ways at once, from the low-latency kernels to long copies. */
static void transfers(pk_comm_t *comm, char *source, char *target)
{
    pk_stream_t stream = PK_CUDA_STREAM(gpu_stream_new());
    int other = 1 - ranks_rank();

    for (size_t bytes = 8; bytes <= LONGEST; bytes *= 8) {
        must_be_ok(pk_group_start(), "pk_group_start");
        must_be_ok(pk_send(source, bytes, PK_UINT8, other, comm, stream), "pk_send");
        must_be_ok(pk_recv(target, bytes, PK_UINT8, other, comm, stream), "pk_recv");
        must_be_ok(pk_group_end(), "pk_group_end");
    }
    report(stream_idle_within(stream.handle, 20000, NULL), "rank %d: transfers of all lengths", ranks_rank());
    gpu_stream_free(stream.handle);
}

static int first_main(void)
{
    double began, host_ms, first_ms, second_ms;
    size_t before, opened, after, own;
    char *source, *target;
    pk_comm_t *comm, *second;

    gpu_use(ranks_rank() % gpu_count());
    source = gpu_alloc(LONGEST);
    target = gpu_alloc(LONGEST);
    gpu_fill(source, 1, LONGEST); /* the driver's own first times */
    comm = open_comm(PK_DEVICE_HOST);
    must_be_ok(pk_comm_destroy(comm), "pk_comm_destroy");
    ranks_meet();
    began = monotonic_ms();
    comm = open_comm(PK_DEVICE_HOST);
    host_ms = monotonic_ms() - began;
    must_be_ok(pk_comm_destroy(comm), "pk_comm_destroy");
    before = memory_used();
    ranks_meet();
    began = monotonic_ms();
    comm = open_comm(PK_DEVICE_CUDA(ranks_rank() % gpu_count()));
    first_ms = monotonic_ms() - began;
    ranks_meet();
    opened = memory_used() - before;
    began = monotonic_ms();
    second = open_comm(PK_DEVICE_CUDA(ranks_rank() % gpu_count()));
    second_ms = monotonic_ms() - began;
    must_be_ok(pk_comm_destroy(second), "pk_comm_destroy");
    transfers(comm, source, target);
    ranks_meet();
    after = memory_used() - before;
    own = own_memory(comm);
    report(gpu_is_software() || first_ms - host_ms < LIMIT_MS,
           "rank %d: first use of a GPU: %.1f ms beyond the context (%.1f without a GPU, then %.1f)", ranks_rank(),
           first_ms - host_ms, host_ms, second_ms);
    /* The driver's figures have the code and the streams of the process in them, and count in blocks of 2 MiB. */
    printf("INFO rank %d: the driver counts %.1f MiB of GPU memory, %.1f after transfers\n", ranks_rank(),
           (double)opened / 1048576, (double)after / 1048576);
    report(own > 0 && own <= LIMIT_BYTES, "rank %d: %.1f MiB of GPU memory for %d ranks", ranks_rank(), (double)own / 1048576,
           RANKS);
    ranks_meet();
    must_be_ok(pk_comm_destroy(comm), "pk_comm_destroy");
    gpu_free(source);
    gpu_free(target);
    return report_end();
}

/* ---- where the time goes ---- */

static double since(double *mark)
{
    double now = monotonic_ms(), took = now - *mark;

    *mark = now;
    return took;
}

static void kernels(const struct pki_cuda_driver *cu, CUmodule module)
{
    static const char *const names[] = { PKI_KERNEL_WAIT,
                                         PKI_KERNEL_LL,
                                         PKI_KERNEL_LL_ROW,
                                         PKI_KERNEL_MOVE,
                                         PKI_KERNEL_EXCHANGE,
                                         PKI_KERNEL_PUSH,
                                         PKI_KERNEL_FOLD,
                                         PKI_KERNEL_RELAY,
                                         PKI_KERNEL_TWOSHOT,
                                         PKI_KERNEL_TWOSHOT_ANY,
                                         PKI_KERNEL_PUSH_SUM,
                                         PKI_KERNEL_PAIR_EXCHANGE,
                                         PKI_KERNEL_SERVE,
                                         (PKI_KERNEL_PAIR_SUM "f32"),
                                         (PKI_KERNEL_PAIR_SUM "f16"),
                                         (PKI_KERNEL_PAIR_SUM "bf16") };
    CUfunction function;
    int threads;
    double mark = monotonic_ms();

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (cu->module_get_function(&function, module, names[i]) == CUDA_SUCCESS)
            cu->func_get_attribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
        printf("INFO %s: %.2f ms\n", names[i], since(&mark));
    }
    for (int type = 0; type < PK_DTYPE_COUNT; type++) {
        char name[64];

        snprintf(name, sizeof name, "%s%s", PKI_KERNEL_REDUCE, pk_dtype_name((pk_dtype_t)type));
        if (cu->module_get_function(&function, module, name) == CUDA_SUCCESS)
            cu->func_get_attribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
    }
    printf("INFO %d of %s: %.2f ms\n", PK_DTYPE_COUNT, PKI_KERNEL_REDUCE, since(&mark));
}

static int parts_main(void)
{
    const struct pki_cuda_driver *cu;
    double mark = monotonic_ms();
    CUdeviceptr memory = 0;
    struct pki_device *device = NULL;
    CUcontext context = NULL;
    CUmodule module = NULL;
    CUstream stream = NULL;
    void *host = mmap(NULL, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    cu = pki_cuda_driver(NULL);
    printf("INFO driver: %.2f ms\n", since(&mark));
    report(cu != NULL && cu->primary_retain(&context, 0) == CUDA_SUCCESS && cu->ctx_push(context) == CUDA_SUCCESS, "context");
    printf("INFO context: %.2f ms\n", since(&mark));
    report(cu->stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS, "stream");
    printf("INFO first stream: %.2f ms\n", since(&mark));
    report(cu->module_load_data(&module, pki_kernels_fatbin) == CUDA_SUCCESS, "module");
    printf("INFO module: %.2f ms\n", since(&mark));
    kernels(cu, module);
    mark = monotonic_ms();
    report(cu->mem_alloc(&memory, 4 << 20) == CUDA_SUCCESS, "memory");
    printf("INFO 4 MiB of memory: %.2f ms\n", since(&mark));
    report(cu->memset_async(memory, 0, 4 << 20, stream) == CUDA_SUCCESS && cu->ctx_synchronize() == CUDA_SUCCESS, "memset");
    printf("INFO first memset: %.2f ms\n", since(&mark));
    for (int i = 0; i < 2; i++) {
        report(cu->host_register((char *)host + i * 32768, 32768, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE) ==
                   CUDA_SUCCESS,
               "registered memory");
        printf("INFO 32 KiB registered, time %d: %.2f ms\n", i + 1, since(&mark));
    }
    report(pki_device_cuda()->open(0, &device) == PK_OK, "open");
    printf("INFO open of the device, by then the second time for the driver: %.2f ms\n", since(&mark));
    pki_device_cuda()->close(device);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return strcmp(ranks_role(), "parts") == 0 ? parts_main() : first_main();
    if (!gpu_enough(1))
        return GPU_SKIPPED;
    ranks_drive(&(struct ranks_turn){ .role = "parts", .size = 1 }, "parts");
    if (gpu_count() >= 2)
        ranks_drive(&(struct ranks_turn){ .role = "first", .size = RANKS }, "first use");
    return report_end();
}
