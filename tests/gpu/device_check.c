/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of the CUDA device that concern one process, on one real GPU or on the software driver, without any test framework.
 * Exit code 1 when a check failed, 77 when there is no GPU. Arguments name the checks to run; none means all.
 *
 * Uses the library's inside: link with the static library.
 */
#include "device_bed.h"

/* ---- Opening ---- */

static void check_open(void)
{
    struct pki_device_info info;
    struct pki_device *again = NULL;
    uint64_t begin;

    ops->info(device, &info);
    printf("INFO %s, %d SMs, bus %s, %d connections, vmm %d\n", info.name, info.sms, info.pci_bus_id, info.connections, info.vmm);
    CHECK(info.sms > 0 && info.name[0] != '\0' && info.pci_bus_id[0] != '\0');
    CHECK(ops->open(9999, &again) == PK_ERR_ARG);
    CHECK(ops->open(-1, &again) == PK_ERR_UNSUPPORTED); /* no context is current here */
    ops->enter(device);
    begin = pki_now_ns();
    if (CHECK(ops->open(-1, &again) == PK_OK)) {
        printf("INFO second open of a device %.1f us\n", (double)(pki_now_ns() - begin) / 1e3);
        ops->close(again);
    }
    ops->leave(device);
}

/* ---- Memory ---- */

static void check_copy(void)
{
    static const size_t sizes[] = { 0, 1, 3, 4096, MIB + 7 };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];
        uint8_t *a = device_alloc(n), *b = device_alloc(n), *zero = calloc(1, n + 1), *got = malloc(n + 1);

        memset(got, 0xff, n + 1);
        CHECK(ops->zero(device, a, n) == PK_OK && download(got, a, n) && memcmp(got, zero, n) == 0);
        CHECK(device_fill(a, n, 7));
        CHECK(ops->copy(&queue, b, a, n) == PK_OK && drained(&queue));
        CHECK(device_has(b, n, 7));
        ops->free(device, a);
        ops->free(device, b);
        free(zero);
        free(got);
    }
}

static void check_classify(void)
{
    uint8_t *ptr = device_alloc(MIB), *again;
    struct pki_mem mem, inner, next;
    char *host = malloc(64);
    uint64_t begin;

    CHECK(ops->classify(device, ptr, MIB, &mem) == PK_OK);
    CHECK(mem.kind == PKI_MEM_DEVICE && mem.ordinal == 0 && mem.shareable && !mem.vmm);
    CHECK(mem.base == (uintptr_t)ptr && mem.bytes >= MIB);
    CHECK(ops->classify(device, ptr + 1000, 5, &inner) == PK_OK && memcmp(&inner, &mem, sizeof mem) == 0);
    CHECK(ops->classify(device, ptr, 0, &inner) == PK_OK && inner.kind == PKI_MEM_DEVICE);
    CHECK(ops->classify(device, ptr + 1, mem.bytes, &inner) == PK_ERR_ARG);
    begin = pki_now_ns();
    for (int i = 0; i < 1000; i++)
        ops->classify(device, ptr + i, 5, &inner);
    printf("INFO classify, known range: %.0f ns\n", (double)(pki_now_ns() - begin) / 1000);
    begin = pki_now_ns();
    for (int i = 0; i < 1000; i++)
        ops->classify(device, host, 5, &inner);
    printf("INFO classify, host memory: %.0f ns\n", (double)(pki_now_ns() - begin) / 1000);
    CHECK(inner.kind == PKI_MEM_HOST);
    CHECK(ops->classify(device, NULL, 0, &inner) == PK_OK && inner.kind == PKI_MEM_HOST);
    CHECK(ops->classify(device, (void *)(uintptr_t)words, 4, &inner) == PK_OK && inner.kind == PKI_MEM_HOST);
    ops->free(device, ptr);
    again = device_alloc(MIB);
    CHECK(ops->classify(device, again, MIB, &next) == PK_OK && next.buffer_id != mem.buffer_id);
    printf("INFO the next allocation came at %s address\n", again == ptr ? "the same" : "another");
    ops->free(device, again);
    free(host);
}

static void check_host(void)
{
    size_t bytes = 64 << 10;
    char *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint8_t *ptr = device_alloc(bytes);

    CHECK(ops->host_register(device, page, bytes) == PK_OK);
    CHECK(ops->host_register(device, page, bytes) == PK_OK); /* counted */
    ops->host_unregister(device, page);
    fill((uint8_t *)page, bytes, 3);
    CHECK(ops->copy(&queue, ptr, page, bytes) == PK_OK && drained(&queue));
    CHECK(device_has(ptr, bytes, 3));
    ops->host_unregister(device, page);
    CHECK(ops->host_register(device, page, bytes) == PK_OK);
    ops->host_unregister(device, page);
    munmap(page, bytes);
    ops->free(device, ptr);
}

/* ---- Words ---- */

/* A queue waits for word 1, then writes word 2; the CPU opens word 1 with `opens`, after `shut` did not. */
static bool wait_case(enum pki_signal_kind kind, enum pki_wait_how how, uint32_t value, uint32_t shut, uint32_t opens)
{
    struct pki_signal_op list[4] = { word_op(PKI_SIGNAL_WRITE, 0, 5), word_op(kind, 1, value), word_op(kind, 3, value),
                                     word_op(PKI_SIGNAL_WRITE, 2, 6) };
    bool ok;

    word_set(0, 0);
    word_set(1, shut);
    word_set(2, 0);
    word_set(3, opens);
    ok = ops->signals(&queue, list, 4, how) == PK_OK && word_becomes(0, 5);
    usleep(2000);
    ok = ok && word_get(2) == 0 && !ops->idle(&queue);
    word_set(1, opens);
    return ok && word_becomes(2, 6) && drained(&queue);
}

static void check_words(void)
{
    struct pki_signal_op many[255];

    for (int i = 0; i < 255; i++)
        many[i] = word_op(PKI_SIGNAL_WRITE, i % 60, (uint32_t)(1000 + i));
    CHECK(ops->signals(&queue, many, 255, PKI_WAIT_VALUE) == PK_OK && drained(&queue));
    CHECK(word_get(0) == 1240 && word_get(14) == 1254 && word_get(15) == 1195);
    CHECK(ops->signals(&queue, many, 256, PKI_WAIT_VALUE) == PK_ERR_ARG &&
          ops->signals(&queue, many, 0, PKI_WAIT_VALUE) == PK_OK);
    for (int how = PKI_WAIT_VALUE; how <= (int)PKI_WAIT_KERNEL; how++) {
        CHECK(wait_case(PKI_SIGNAL_WAIT, (enum pki_wait_how)how, 10, 9, 10));
        CHECK(wait_case(PKI_SIGNAL_WAIT, (enum pki_wait_how)how, 10, 0xfffffff0u, 12));
        CHECK(wait_case(PKI_SIGNAL_WAIT, (enum pki_wait_how)how, 0xfffffff0u, 0xffffff00u, 5));
        CHECK(wait_case(PKI_SIGNAL_WAIT_EQ, (enum pki_wait_how)how, 10, 11, 10));
    }
}

/* Data before the word that announces it, seen by the CPU in registered memory. */
static void check_order(void)
{
    size_t bytes = 256 << 10;
    uint8_t *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *ptr = device_alloc(bytes);
    struct pki_signal_op write;
    uint64_t begin;

    CHECK(ops->host_register(device, host, bytes) == PK_OK);
    for (uint32_t round = 1; round <= 50; round++) {
        memset(host, (int)round, bytes);
        CHECK(upload(ptr, host, bytes));
        memset(host, 0, bytes);
        write = word_op(PKI_SIGNAL_WRITE, 0, round);
        CHECK(ops->copy(&queue, host, ptr, bytes) == PK_OK && ops->signals(&queue, &write, 1, PKI_WAIT_VALUE) == PK_OK);
        CHECK(word_becomes(0, round) && host[0] == (uint8_t)round && host[bytes - 1] == (uint8_t)round);
    }
    begin = pki_now_ns();
    for (uint32_t round = 100; round < 150; round++) {
        write = word_op(PKI_SIGNAL_WRITE, 0, round);
        ops->signals(&queue, &write, 1, PKI_WAIT_VALUE);
        word_becomes(0, round);
    }
    printf("INFO a word through a queue and back to the CPU: %.1f us\n", (double)(pki_now_ns() - begin) / 50e3);
    ops->host_unregister(device, host);
    munmap(host, bytes);
    ops->free(device, ptr);
}

/* ---- Low-latency messages ---- */

struct ll_bed {
    uint8_t *src, *dst;
    uint64_t *slot;
    uint32_t *arrived; /* of either side */
    uint32_t flag, ctas;
};

static bool ll_case(struct ll_bed *bed, uint32_t bytes, uint32_t src_offset, uint32_t dst_offset)
{
    struct pki_ll_op send = { .send = true,
                              .user = bed->src + src_offset,
                              .bytes = bytes,
                              .flag = ++bed->flag,
                              .slot = bed->slot,
                              .done = &words[0],
                              .ctas = bed->ctas,
                              .arrived = bed->arrived };
    struct pki_ll_op recv = { .user = bed->dst + dst_offset,
                              .bytes = bytes,
                              .flag = bed->flag,
                              .slot = bed->slot,
                              .done = &words[16],
                              .ctas = bed->ctas,
                              .arrived = bed->arrived + 1 };
    uint8_t *edge = calloc(1, 8);
    bool ok = device_fill(bed->src + src_offset, bytes, bed->flag) && device_fill(bed->dst, PKI_LL_MAX_BYTES + 32, 99);
    uint8_t before[8] = { 0 };

    ok = ok && download(before, bed->dst + dst_offset + bytes, 8);
    ok = ok && ops->ll(&second, &recv, 1, 0, &words[32]) == PK_OK && ops->ll(&queue, &send, 1, 0, &words[32]) == PK_OK;
    ok = ok && word_becomes(0, bed->flag) && word_becomes(1, bed->flag) && drained(&queue) && drained(&second);
    ok = ok && device_has(bed->dst + dst_offset, bytes, bed->flag);
    ok = ok && download(edge, bed->dst + dst_offset + bytes, 8) && memcmp(edge, before, 8) == 0;
    free(edge);
    return ok;
}

/* As many messages as one launch takes, half of them there and half back. */
static void ll_many(struct ll_bed *bed)
{
    enum { HALF = PKI_LL_ROW_OPS / 2 };
    struct pki_ll_op list[2 * HALF];
    uint8_t *slots = device_alloc(HALF * PKI_LL_SLOT_BYTES);

    CHECK(device_fill(bed->src, HALF * 1000, 4321));
    bed->flag++;
    for (uint32_t i = 0; i < HALF; i++) {
        uint64_t *slot = (uint64_t *)(void *)(slots + i * PKI_LL_SLOT_BYTES);

        list[i] = (struct pki_ll_op){ .user = bed->dst + i * 1000, .bytes = 1000, .flag = bed->flag, .slot = slot };
        list[HALF + i] =
            (struct pki_ll_op){ .send = true, .user = bed->src + i * 1000, .bytes = 1000, .flag = bed->flag, .slot = slot };
    }
    CHECK(ops->ll(&queue, list, 2 * HALF, 0, NULL) == PK_OK && drained(&queue));
    CHECK(device_has(bed->dst, HALF * 1000, 4321));
    ops->free(device, slots);
}

static void ll_abort(struct ll_bed *bed)
{
    struct pki_ll_op recv = { .user = bed->dst, .bytes = 4096, .flag = ++bed->flag, .slot = bed->slot, .done = &words[0] };

    word_set(0, 0);
    word_set(2, 0);
    CHECK(ops->ll(&queue, &recv, 1, 0, &words[32]) == PK_OK);
    usleep(2000);
    CHECK(!ops->idle(&queue));
    word_set(2, 1);
    CHECK(drained(&queue) && word_get(0) == 0);
    word_set(2, 0);
}

static void check_ll(void)
{
    static const uint32_t sizes[] = { 0, 1, 4, 7, 8, 9, 16, 31, 100, 4096, 4097, 8191, 16384, 20000, 32767, 32768 };
    struct ll_bed bed = { device_alloc(PKI_LL_MAX_BYTES + 64),
                          device_alloc(PKI_LL_MAX_BYTES + 64),
                          device_alloc(PKI_LL_SLOT_BYTES),
                          (uint32_t *)(void *)device_alloc(8),
                          0,
                          1 };
    struct pki_ll_op bad = { .bytes = PKI_LL_MAX_BYTES + 1, .flag = 1 };

    word_set(2, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (uint32_t offset = 0; offset < 9; offset += i % 3 + 1) {
            if (!CHECK(ll_case(&bed, sizes[i], offset, (offset * 5) % 9)))
                printf("     (%u bytes, offsets %u and %u)\n", sizes[i], offset, (offset * 5) % 9);
        }
    }
    for (bed.ctas = 2; bed.ctas <= 16; bed.ctas *= 2)
        CHECK(ll_case(&bed, bed.ctas << 15, 0, 0) && ll_case(&bed, (bed.ctas << 15) - 5, 8, 3) && ll_case(&bed, 1, 1, 2));
    bed.ctas = 1;
    ll_many(&bed);
    ll_abort(&bed);
    CHECK(ops->ll(&queue, &bad, 1, 0, NULL) == PK_ERR_INTERNAL);
    ops->free(device, bed.src);
    ops->free(device, bed.dst);
    ops->free(device, bed.slot);
    ops->free(device, bed.arrived);
}

/* ---- Capture ---- */

static void replay(CUgraph graph, uint8_t *a, uint8_t *b)
{
    CUgraphExec exec;

    if (!CHECK(extra.graph_instantiate(&exec, graph, 0) == CUDA_SUCCESS))
        return;
    for (uint32_t round = 1; round <= 3; round++) {
        CHECK(device_fill(a, 4096, round));
        word_set(0, 0);
        word_set(1, 0);
        CHECK(extra.graph_launch(exec, (CUstream)second.handle) == CUDA_SUCCESS);
        usleep(1000);
        CHECK(word_get(1) == 0);
        word_set(0, 1);
        CHECK(word_becomes(1, 1) && drained(&second) && word_get(0) == 0);
        CHECK(device_has(b, 4096, round));
    }
    extra.graph_exec_destroy(exec);
}

static void capture_with(enum pki_wait_how how)
{
    struct pki_signal_op wait[2] = { word_op(PKI_SIGNAL_WAIT_EQ, 0, 1), word_op(PKI_SIGNAL_WRITE, 0, 0) };
    struct pki_signal_op done = word_op(PKI_SIGNAL_WRITE, 1, 1);
    uint8_t *a = device_alloc(4096), *b = device_alloc(4096);
    bool yes = true;
    uint64_t id = 1;
    CUgraph graph = NULL;

    CHECK(ops->capturing(&queue, &yes, &id) == PK_OK && !yes);
    ops->enter(device);
    CHECK(extra.begin_capture((CUstream)queue.handle, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    ops->leave(device);
    CHECK(ops->capturing(&queue, &yes, &id) == PK_OK && yes && id != 0);
    CHECK(!ops->idle(&queue));
    CHECK(ops->signals(&queue, wait, 2, how) == PK_OK && ops->copy(&queue, b, a, 4096) == PK_OK);
    CHECK(ops->signals(&queue, &done, 1, how) == PK_OK);
    ops->free(device, device_alloc(1024)); /* legal meanwhile, and does not end the capture */
    ops->enter(device);
    CHECK(extra.end_capture((CUstream)queue.handle, &graph) == CUDA_SUCCESS && graph != NULL);
    if (graph != NULL) {
        replay(graph, a, b);
        extra.graph_destroy(graph);
    }
    ops->leave(device);
    ops->free(device, a);
    ops->free(device, b);
}

static void check_capture(void)
{
    capture_with(PKI_WAIT_VALUE);
    capture_with(PKI_WAIT_KERNEL);
}

/* ---- What submitting costs the CPU ---- */

enum { COST_COPY, COST_WORD, COST_WORDS, COST_WAIT_KERNEL, COST_REDUCE, COST_LL, COSTS };

static const char *const cost_names[COSTS] = {
    "copy of 4 KiB inside the GPU",         "one word", "two words", "wait kernel", "reduction of 4 KiB",
    "low-latency message to oneself, 4 KiB"
};

static void submit(int what, uint8_t *a, uint8_t *b, uint64_t *slot, uint32_t flag)
{
    struct pki_signal_op two[2] = { word_op(PKI_SIGNAL_WRITE, 0, flag), word_op(PKI_SIGNAL_WRITE, 1, flag) };
    struct pki_signal_op wait = word_op(PKI_SIGNAL_WAIT_EQ, 4, 0);
    struct pki_ll_op ll[2] = { { .send = true, .user = a, .bytes = 4096, .flag = flag, .slot = slot },
                               { .user = b, .bytes = 4096, .flag = flag, .slot = slot, .done = &words[32] } };
    const void *srcs[2] = { a, b };

    switch (what) {
    case COST_COPY:
        CHECK(ops->copy(&queue, a, b, 4096) == PK_OK);
        break;
    case COST_WORD:
    case COST_WORDS:
        CHECK(ops->signals(&queue, two, what == COST_WORD ? 1 : 2, PKI_WAIT_VALUE) == PK_OK);
        break;
    case COST_WAIT_KERNEL:
        CHECK(ops->signals(&queue, &wait, 1, PKI_WAIT_KERNEL) == PK_OK);
        break;
    case COST_REDUCE:
        CHECK(ops->reduce(&queue, a, srcs, 2, 1024, PK_F32, PK_SUM) == PK_OK);
        break;
    default:
        CHECK(ops->ll(&queue, ll, 2, 0, NULL) == PK_OK);
    }
}

static void check_cost(void)
{
    uint8_t *a = device_alloc(4096), *b = device_alloc(4096);
    uint64_t *slot = device_alloc(PKI_LL_SLOT_BYTES);
    uint32_t flag = 0;

    word_set(4, 0);
    for (int what = 0; what < COSTS; what++) {
        uint64_t submitted = 0, ended = 0, first = 0;

        for (int i = 0; i <= 100; i++) { /* the first one may have things to load */
            uint64_t begin = pki_now_ns(), middle;

            submit(what, a, b, slot, ++flag);
            middle = pki_now_ns();
            CHECK(drained(&queue));
            first = i == 0 ? middle - begin : first;
            submitted += i == 0 ? 0 : middle - begin;
            ended += i == 0 ? 0 : pki_now_ns() - begin;
        }
        printf("INFO %s: submitted in %.2f us (the first in %.1f), over after %.2f us\n", cost_names[what],
               (double)submitted / 100e3, (double)first / 1e3, (double)ended / 100e3);
    }
    ops->free(device, a);
    ops->free(device, b);
    ops->free(device, slot);
}

/* ---- All of it ---- */

static const struct bed_check checks[] = {
    { "open", check_open },          { "cost", check_cost },   { "copy", check_copy },   { "classify", check_classify },
    { "host_register", check_host }, { "words", check_words }, { "order", check_order }, { "ll", check_ll },
    { "capture", check_capture },
};

int main(int argc, char **argv)
{
    int result = bed_open();

    if (result != 0)
        return result;
    result = bed_run(checks, sizeof checks / sizeof checks[0], argc, argv);
    bed_close();
    return result;
}
