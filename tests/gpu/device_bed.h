/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the GPU programs of this folder that look inside the library share: a device, two queues, a page of words, and a way to
 * report. A line "PASS name" or "FAIL name: where" for each check, "INFO" for what was measured.
 */
#ifndef PKI_DEVICE_BED_H
#define PKI_DEVICE_BED_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/cuda_device.h"
#include "util/clock.h"

#define MIB ((size_t)1 << 20)
#define TIMEOUT_NS (10 * PKI_NS_PER_S)

/* What the checks need of the driver beyond what the library does. */
struct extra {
    __typeof__(cuMemCreate) *mem_create;
    __typeof__(cuStreamBeginCapture) *begin_capture;
    __typeof__(cuStreamEndCapture) *end_capture;
    __typeof__(cuGraphInstantiateWithFlags) *graph_instantiate;
    __typeof__(cuGraphLaunch) *graph_launch;
    __typeof__(cuGraphExecDestroy) *graph_exec_destroy;
    __typeof__(cuGraphDestroy) *graph_destroy;
};

static struct extra extra;
static struct pki_device *device;
static struct pki_device *other; /* a second GPU, or NULL */
static const struct pki_device_ops *ops;
static const struct pki_cuda_driver *cu;
static struct pki_queue queue, second;
static _Atomic uint32_t *words; /* a registered page */
static int failures;            /* of the running check */
static const char *running;

static inline bool check(bool ok, int line, const char *what)
{
    if (!ok) {
        printf("FAIL %s: line %d: %s\n", running, line, what);
        failures++;
    }
    return ok;
}

#define CHECK(condition) check((condition), __LINE__, #condition)

/* ---- Helpers ---- */

static inline uint32_t random_next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static inline bool drained(const struct pki_queue *q)
{
    uint64_t deadline = pki_now_ns() + TIMEOUT_NS;

    while (!ops->idle(q)) {
        if (pki_now_ns() > deadline)
            return false;
        pki_cpu_pause();
    }
    return true;
}

static inline void *device_alloc(size_t bytes)
{
    void *ptr = NULL;

    if (ops->alloc(device, bytes, &ptr) != PK_OK) {
        printf("FAIL %s: no device memory\n", running);
        exit(1);
    }
    return ptr;
}

static inline bool upload(void *dst, const void *src, size_t bytes)
{
    return ops->copy(&queue, dst, src, bytes) == PK_OK && drained(&queue);
}

static inline bool download(void *dst, const void *src, size_t bytes)
{
    return upload(dst, src, bytes);
}

static inline void fill(uint8_t *bytes, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(random_next(&seed) >> 4);
}

/* The n bytes at ptr on the device are those of fill(seed). */
static inline bool device_has(const void *ptr, size_t n, uint32_t seed)
{
    uint8_t *want = malloc(n + 1), *got = calloc(1, n + 1);
    bool same;

    fill(want, n, seed);
    same = download(got, ptr, n) && memcmp(want, got, n) == 0;
    free(want);
    free(got);
    return same;
}

static inline bool device_fill(void *ptr, size_t n, uint32_t seed)
{
    uint8_t *data = malloc(n + 1);
    bool ok;

    fill(data, n, seed);
    ok = upload(ptr, data, n);
    free(data);
    return ok;
}

static inline struct pki_signal_op word_op(enum pki_signal_kind kind, int index, uint32_t value)
{
    return (struct pki_signal_op){ kind, { &words[index * 16], value } };
}

static inline uint32_t word_get(int index)
{
    return atomic_load_explicit(&words[index * 16], memory_order_acquire);
}

static inline void word_set(int index, uint32_t value)
{
    atomic_store_explicit(&words[index * 16], value, memory_order_release);
}

static inline bool word_becomes(int index, uint32_t value)
{
    uint64_t deadline = pki_now_ns() + TIMEOUT_NS;

    while (word_get(index) != value) {
        if (pki_now_ns() > deadline)
            return false;
        pki_cpu_pause();
    }
    return true;
}

/* ---- Running ---- */

static inline bool extra_load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void *member;
    } symbols[] = { { "cuMemCreate", &extra.mem_create },         { "cuStreamBeginCapture_v2", &extra.begin_capture },
                    { "cuStreamEndCapture", &extra.end_capture }, { "cuGraphInstantiateWithFlags", &extra.graph_instantiate },
                    { "cuGraphLaunch", &extra.graph_launch },     { "cuGraphExecDestroy", &extra.graph_exec_destroy },
                    { "cuGraphDestroy", &extra.graph_destroy } };

    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *address = library != NULL ? dlsym(library, symbols[i].name) : NULL;

        if (address == NULL) {
            printf("FAIL the driver has no %s\n", symbols[i].name);
            return false;
        }
        memcpy(symbols[i].member, &address, sizeof address);
    }
    return true;
}

static inline bool set_up(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t begin = pki_now_ns();
    int count = 0;

    ops = pki_device_cuda();
    if (!extra_load() || ops->open(0, &device) != PK_OK)
        return false;
    printf("INFO open of device 0: %.1f ms\n", (double)(pki_now_ns() - begin) / 1e6);
    cu = pki_cuda(device)->cu;
    words = page;
    cu->device_get_count(&count);
    if (count > 1 && getenv("CUDA_VISIBLE_DEVICES") == NULL && ops->open(1, &other) != PK_OK)
        return false;
    return ops->host_register(device, page, 4096) == PK_OK && ops->queue_open(device, &queue) == PK_OK &&
           ops->queue_open(device, &second) == PK_OK;
}

static inline bool wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0)
            return true;
    }
    return argc < 2;
}

struct bed_check {
    const char *name;
    void (*run)(void);
};

/* Open what the checks need: 0, or the exit code that says why not. */
static inline int bed_open(void)
{
    const char *absent = pki_device_cuda_absent();

    if (absent != NULL) {
        printf("SKIPPED: %s\n", absent);
        return 77;
    }
    if (!set_up()) {
        printf("FAIL the device cannot be opened\n");
        return 1;
    }
    return 0;
}

static inline void bed_close(void)
{
    ops->queue_close(&queue);
    ops->queue_close(&second);
    ops->host_unregister(device, (void *)(uintptr_t)words);
    if (other != NULL)
        ops->close(other);
    ops->close(device);
}

/* The checks named on the command line, or all. Returns the exit code: 1 when one failed. */
static inline int bed_run(const struct bed_check *checks, size_t n, int argc, char **argv)
{
    int failed = 0;

    for (size_t i = 0; i < n; i++) {
        if (!wanted(checks[i].name, argc, argv))
            continue;
        running = checks[i].name;
        failures = 0;
        checks[i].run();
        failed += failures != 0;
        if (failures == 0)
            printf("PASS %s\n", running);
        fflush(stdout);
    }
    printf("%s\n", failed == 0 ? "all checks passed" : "some checks FAILED");
    return failed != 0;
}

#endif
