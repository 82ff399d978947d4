/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device against its contract: what goes wrong, what is counted, what a thread finds as it left it. The data paths are
 * tests/gpu/device_check.c's. Runs on whatever libcuda.so.1 is found, a GPU's or the software driver's; without one every test is
 * reported as skipped.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/cuda_device.h"
#include "transport/transport.h"
#include "util/clock.h"

extern const struct pki_transport pki_transport_nvlink;

#define PAGE 4096

static struct pki_device *device;
static const struct pki_device_ops *ops;
static const struct pki_cuda_driver *cu;

static void open_device(void)
{
    const char *absent = pki_device_cuda_absent();

    if (absent != NULL)
        cr_skip_test("%s", absent);
    ops = pki_device_cuda();
    cr_assert_eq(ops->open(0, &device), PK_OK);
    cu = pki_cuda(device)->cu;
}

static void close_device(void)
{
    if (device != NULL)
        ops->close(device);
    device = NULL;
}

TestSuite(cuda, .init = open_device, .fini = close_device);

static void *page_new(size_t bytes)
{
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(page, MAP_FAILED);
    return page;
}

static bool drained(const struct pki_queue *queue)
{
    uint64_t deadline = pki_now_ns() + 5 * PKI_NS_PER_S;

    while (!ops->idle(queue) && pki_now_ns() < deadline)
        usleep(100);
    return ops->idle(queue);
}

/* ---- Opening ---- */

Test(cuda, ordinals)
{
    struct pki_device *other = NULL;

    cr_expect_eq(ops->open(-2, &other), PK_ERR_ARG);
    cr_expect_eq(ops->open(1000, &other), PK_ERR_ARG);
    cr_expect_null(other);
}

Test(cuda, the_current_context_decides)
{
    struct pki_device *other = NULL;
    struct pki_device_info info;

    cr_expect_eq(ops->open(-1, &other), PK_ERR_UNSUPPORTED, "no context is current");
    ops->enter(device);
    cr_assert_eq(ops->open(-1, &other), PK_OK);
    ops->leave(device);
    ops->info(other, &info);
    cr_expect_eq(info.ordinal, 0);
    cr_expect_eq(pki_cuda(other)->context, pki_cuda(device)->context, "one context a GPU in a process");
    ops->close(other);
}

Test(cuda, the_last_close_gives_the_context_back)
{
    struct pki_device *other = NULL;
    unsigned flags;
    int active = 0;

    cr_assert_eq(ops->open(0, &other), PK_OK);
    ops->close(device);
    cr_assert_eq(cu->primary_get_state(0, &flags, &active), CUDA_SUCCESS);
    cr_expect_eq(active, 1);
    ops->close(other);
    device = NULL;
    cr_assert_eq(cu->primary_get_state(0, &flags, &active), CUDA_SUCCESS);
    cr_expect_eq(active, 0);
}

Test(cuda, info_is_complete)
{
    static const uint8_t none[16];
    struct pki_device_info info;

    ops->info(device, &info);
    cr_expect_neq(memcmp(info.uuid, none, sizeof none), 0);
    cr_expect_gt(info.sms, 0);
    cr_expect_gt(strlen(info.name), 0);
    cr_expect_gt(strlen(info.pci_bus_id), 0);
    cr_expect(info.connections >= 1 && info.connections <= 32);
}

/* ---- What a thread finds afterwards ---- */

static void expect_thread(CUcontext context, CUstreamCaptureMode mode)
{
    CUcontext current = (CUcontext)1;
    CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_RELAXED;

    cr_expect_eq(cu->ctx_get_current(&current), CUDA_SUCCESS);
    cr_expect_eq(current, context);
    cr_expect_eq(cu->exchange_capture_mode(&now), CUDA_SUCCESS);
    cr_expect_eq(now, mode);
    cu->exchange_capture_mode(&now);
}

Test(cuda, a_call_leaves_the_thread_as_it_was)
{
    CUcontext ours = pki_cuda(device)->context->handle;
    void *ptr = NULL;

    expect_thread(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL);
    cr_assert_eq(ops->alloc(device, 100, &ptr), PK_OK);
    ops->free(device, ptr);
    expect_thread(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ops->enter(device);
    ops->enter(device);
    expect_thread(ours, CU_STREAM_CAPTURE_MODE_RELAXED);
    ops->leave(device);
    expect_thread(ours, CU_STREAM_CAPTURE_MODE_RELAXED);
    ops->leave(device);
    expect_thread(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static void *alloc_in_thread(void *arg)
{
    void **ptr = arg;

    return ops->alloc(device, PAGE, ptr) == PK_OK ? arg : NULL;
}

Test(cuda, any_thread_may_call)
{
    pthread_t thread;
    void *ptr = NULL, *result = NULL;

    cr_assert_eq(pthread_create(&thread, NULL, alloc_in_thread, &ptr), 0);
    pthread_join(thread, &result);
    cr_assert_not_null(result);
    ops->free(device, ptr);
}

/* ---- Memory ---- */

Test(cuda, classify_knows_where_memory_ends)
{
    struct pki_mem mem, again;
    uint8_t *ptr = NULL;

    cr_assert_eq(ops->alloc(device, 10 * PAGE, (void **)&ptr), PK_OK);
    cr_assert_eq(ops->classify(device, ptr + 5, 10, &mem), PK_OK);
    cr_expect_eq(mem.kind, PKI_MEM_DEVICE);
    cr_expect_eq(mem.base, (uintptr_t)ptr);
    cr_expect(mem.shareable && !mem.vmm);
    cr_expect_eq(ops->classify(device, ptr + 5, mem.bytes - 5, &again), PK_OK);
    cr_expect_eq(memcmp(&mem, &again, sizeof mem), 0);
    cr_expect_eq(ops->classify(device, ptr + 5, mem.bytes - 4, &again), PK_ERR_ARG);
    cr_expect_eq(ops->classify(device, ptr + 5, SIZE_MAX, &again), PK_ERR_ARG);
    ops->free(device, ptr);
    cr_assert_eq(ops->classify(device, ptr + 5, 10, &again), PK_OK);
    cr_expect_eq(again.kind, PKI_MEM_HOST, "freed memory is not the device's any more, remembered or not");
}

Test(cuda, classify_tells_an_allocation_from_its_successor)
{
    struct pki_mem first, second;
    void *ptr = NULL, *next = NULL;

    cr_assert_eq(ops->alloc(device, PAGE, &ptr), PK_OK);
    cr_assert_eq(ops->classify(device, ptr, PAGE, &first), PK_OK);
    ops->free(device, ptr);
    cr_assert_eq(ops->alloc(device, PAGE, &next), PK_OK);
    cr_assert_eq(ops->classify(device, next, PAGE, &second), PK_OK);
    cr_expect_neq(first.buffer_id, second.buffer_id);
    ops->free(device, next);
}

Test(cuda, classify_forgets_the_oldest)
{
    uint8_t *ptr[PKI_CUDA_RANGES + 8];
    struct pki_mem mem;

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < PKI_CUDA_RANGES + 8; i++) {
            if (round == 0)
                cr_assert_eq(ops->alloc(device, 100, (void **)&ptr[i]), PK_OK);
            cr_assert_eq(ops->classify(device, ptr[i] + 10, 5, &mem), PK_OK);
            cr_assert_eq(mem.base, (uintptr_t)ptr[i]);
        }
    }
    for (int i = 0; i < PKI_CUDA_RANGES + 8; i++)
        ops->free(device, ptr[i]);
}

Test(cuda, host_memory_is_host_memory)
{
    void *page = page_new(PAGE);
    struct pki_mem mem;

    cr_assert_eq(ops->classify(device, NULL, 0, &mem), PK_OK);
    cr_expect_eq(mem.kind, PKI_MEM_HOST);
    cr_assert_eq(ops->classify(device, page, PAGE, &mem), PK_OK);
    cr_expect_eq(mem.kind, PKI_MEM_HOST);
    cr_assert_eq(ops->host_register(device, page, PAGE), PK_OK);
    cr_assert_eq(ops->classify(device, page, PAGE, &mem), PK_OK);
    cr_expect_eq(mem.kind, PKI_MEM_HOST);
    ops->host_unregister(device, page);
    munmap(page, PAGE);
}

static bool is_registered(void *page)
{
    CUdeviceptr address = 0;
    bool yes;

    ops->enter(device);
    yes = cu->host_get_device_pointer(&address, page, 0) == CUDA_SUCCESS;
    ops->leave(device);
    return yes;
}

Test(cuda, registrations_are_counted_in_the_process)
{
    void *page = page_new(PAGE);
    struct pki_device *other = NULL;

    cr_assert_eq(ops->open(0, &other), PK_OK);
    cr_assert_eq(ops->host_register(device, page, PAGE), PK_OK);
    cr_assert_eq(ops->host_register(other, page, PAGE), PK_OK);
    ops->host_unregister(device, page);
    cr_expect(is_registered(page));
    ops->host_unregister(other, page);
    cr_expect_not(is_registered(page));
    ops->host_unregister(other, page); /* once too often does no harm */
    ops->close(other);
    munmap(page, PAGE);
}

Test(cuda, a_registration_of_the_program_stays_its_own)
{
    void *page = page_new(2 * PAGE);

    ops->enter(device);
    cr_assert_eq(cu->host_register(page, PAGE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
    ops->leave(device);
    cr_expect_eq(ops->host_register(device, page, PAGE), PK_OK);
    ops->host_unregister(device, page);
    cr_expect(is_registered(page));
    cr_expect_neq(ops->host_register(device, page, 2 * PAGE), PK_OK, "the second page is not registered");
    ops->enter(device);
    cu->host_unregister(page);
    ops->leave(device);
    munmap(page, 2 * PAGE);
}

Test(cuda, export_refuses_what_it_cannot_share)
{
    struct pki_mem mem;
    struct pki_export out;
    void *ptr = NULL;

    cr_assert_eq(ops->alloc(device, PAGE, &ptr), PK_OK);
    cr_assert_eq(ops->classify(device, ptr, PAGE, &mem), PK_OK);
    mem.shareable = false;
    cr_expect_eq(ops->export(device, &mem, &out), PK_ERR_UNSUPPORTED);
    mem.shareable = true;
    mem.ordinal = 1;
    cr_expect_eq(ops->export(device, &mem, &out), PK_ERR_ARG);
    mem.kind = PKI_MEM_HOST;
    cr_expect_eq(ops->export(device, &mem, &out), PK_ERR_ARG);
    ops->free(device, ptr);
}

Test(cuda, import_believes_no_numbers)
{
    struct pki_export in;
    int fds[2] = { -1, -1 };
    void *base = NULL;

    memset(&in, 0, sizeof in);
    in.kind = PKI_EXPORT_ADDRESS;
    cr_expect_eq(ops->import(device, &in, false, &base), PK_ERR_ARG);
    in.kind = PKI_EXPORT_VMM;
    in.bytes = 4 << 20;
    cr_expect_neq(ops->import(device, &in, false, &base), PK_OK, "no pieces");
    in.pieces = 2;
    in.fds = fds;
    in.piece_bytes_first = in.piece_bytes = 4 << 20;
    cr_expect_neq(ops->import(device, &in, false, &base), PK_OK, "pieces longer than the whole");
    in.piece_bytes_first = in.piece_bytes = 2 << 20;
    cr_expect_neq(ops->import(device, &in, false, &base), PK_OK, "descriptors that are none");
    in.kind = PKI_EXPORT_IPC;
    cr_expect_neq(ops->import(device, &in, false, &base), PK_OK, "a handle of zeros");
    cr_expect_null(base);
}

/* ---- Queues ---- */

Test(cuda, limits_of_work)
{
    struct pki_signal_op word = { PKI_SIGNAL_WRITE, { NULL, 1 } };
    struct pki_ll_op ll = { .bytes = 1, .flag = 0 };
    struct pki_queue queue;
    const void *srcs[PKI_REDUCE_SOURCES + 1] = { NULL };

    cr_assert_eq(ops->queue_open(device, &queue), PK_OK);
    cr_expect_eq(ops->copy(&queue, NULL, (void *)8, 0), PK_OK);
    cr_expect_eq(ops->signals(&queue, &word, 0, PKI_WAIT_VALUE), PK_OK);
    cr_expect_eq(ops->signals(&queue, &word, 256, PKI_WAIT_VALUE), PK_ERR_ARG);
    cr_expect_eq(ops->reduce(&queue, NULL, srcs, PKI_REDUCE_SOURCES + 1, 1, PK_F32, PK_SUM), PK_ERR_ARG);
    cr_expect_eq(ops->reduce(&queue, NULL, srcs, 2, 0, PK_F32, PK_SUM), PK_OK);
    cr_expect_eq(ops->reduce(&queue, NULL, srcs, 2, 1, PK_F32, PK_AVG), PK_ERR_INTERNAL, "divided by how much?");
    cr_expect_eq(ops->reduce(&queue, NULL, srcs, 2, 1, PK_DTYPE_COUNT, PK_SUM), PK_ERR_INTERNAL);
    cr_expect_eq(ops->ll(&queue, &ll, 1, 0, NULL), PK_ERR_INTERNAL, "a flag of 0");
    cr_expect_eq(ops->ll(&queue, &ll, PKI_LL_ROW_OPS + 1, 0, NULL), PK_ERR_ARG);
    ops->queue_close(&queue);
    cr_expect_null(queue.handle);
}

Test(cuda, an_idle_queue_and_a_waiting_one)
{
    _Atomic uint32_t *words = page_new(PAGE);
    struct pki_queue queue;

    cr_assert_eq(ops->host_register(device, (void *)words, PAGE), PK_OK);
    cr_assert_eq(ops->queue_open(device, &queue), PK_OK);
    for (int how = PKI_WAIT_VALUE; how <= (int)PKI_WAIT_KERNEL; how++) {
        struct pki_signal_op wait = { PKI_SIGNAL_WAIT, { words, (uint32_t)how + 1 } };

        cr_expect(ops->idle(&queue));
        cr_assert_eq(ops->signals(&queue, &wait, 1, (enum pki_wait_how)how), PK_OK);
        usleep(5000);
        cr_expect_not(ops->idle(&queue));
        pki_signal_open(&wait.signal);
        cr_expect(drained(&queue));
    }
    ops->queue_close(&queue);
    ops->host_unregister(device, (void *)words);
    munmap((void *)words, PAGE);
}

/* ---- The nvlink transport's edges ---- */

Test(cuda, nvlink_says_why_not)
{
    struct pki_iface_config config = { .size = 1 };
    struct pki_probe probe;

    pki_transport_nvlink.probe(&config, &probe);
    cr_expect_not(probe.usable);
    cr_expect_gt(strlen(probe.reason), 0);
    config.device = device;
    pki_transport_nvlink.probe(&config, &probe);
    cr_expect(probe.usable && probe.gbps > 0);
}

Test(cuda, nvlink_refuses_a_strange_peer)
{
    struct pki_iface_config config = { .size = 2, .device = device };
    struct pki_iface *iface = calloc(1, pki_transport_nvlink.iface_bytes);
    struct pki_ep *ep = calloc(1, pki_transport_nvlink.ep_bytes);
    struct pki_export in = { .kind = PKI_EXPORT_IPC };
    struct pki_blob blob, empty = { .fd = -1 };
    uint64_t remote;

    pki_list_init(&iface->events);
    *ep = (struct pki_ep){ .iface = iface, .peer = 1 };
    cr_assert_eq(pki_transport_nvlink.open(&config, iface), PK_OK);
    cr_assert_eq(pki_transport_nvlink.ep_init(ep, &blob), PK_OK);
    cr_expect_eq(pki_transport_nvlink.ep_connect(ep, &empty), PK_ERR_MISMATCH);
    cr_expect_not(ep->can_put);
    cr_assert_eq(pki_transport_nvlink.ep_connect(ep, &blob), PK_OK);
    cr_expect(ep->can_put);
    cr_expect_eq(pki_transport_nvlink.map(ep, &in, &remote), PK_ERR_MISMATCH, "memory of another GPU than was named");
    pki_transport_nvlink.ep_close(ep);
    pki_transport_nvlink.close(iface);
    free(ep);
    free(iface);
}
