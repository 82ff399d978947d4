/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The moving kernel: transfers of any length and alignment that wait for their words, in whatever order these open, and tell behind the last byte; on
 * real GPUs also what it takes. Exit code 1 when a check failed, 77 without a GPU.
 */
#include "device_bed.h"

#define ROOM (20 * MIB)
#define BIG (4 * MIB + 3)
#define CANARY 0x5a

static uint8_t *source, *target; /* memory of the GPU */
static uint8_t *content, *want;  /* what the source has, and what the target is to have */
static uint32_t *arrived;
static _Atomic uint32_t *signals; /* registered: the start words, the done words, the abort word */
static struct pki_move_op list[PKI_MOVE_OPS + 1];

static _Atomic uint32_t *start_word(int i)
{
    return &signals[i * 8];
}

static _Atomic uint32_t *done_word(int i)
{
    return &signals[(PKI_MOVE_OPS + i) * 8];
}

static _Atomic uint32_t *abort_word(void)
{
    return &signals[2 * PKI_MOVE_OPS * 8];
}

static bool is_done(int i)
{
    return pki_signal_is_open(&list[i].done);
}

static bool becomes_done(int i)
{
    uint64_t deadline = pki_now_ns() + TIMEOUT_NS;

    while (!is_done(i)) {
        if (pki_now_ns() > deadline)
            return false;
        pki_cpu_pause();
    }
    return atomic_load(done_word(i)) == list[i].done.value;
}

static void clear_arrived(void)
{
    static const uint32_t zeros[PKI_MOVE_OPS];

    CHECK(upload(arrived, zeros, sizeof zeros));
}

/* The target is canaries all over. */
static void begin(void)
{
    memset(want, CANARY, ROOM);
    CHECK(upload(target, want, ROOM));
}

/* Transfer i, whose signals are closed. */
static void transfer(int i, size_t src_at, size_t dst_at, size_t bytes, uint32_t value)
{
    list[i] = (struct pki_move_op){ .src = source + src_at,
                                    .dst = target + dst_at,
                                    .bytes = bytes,
                                    .start = { start_word(i), value },
                                    .done = { done_word(i), value + 7 },
                                    .arrived = arrived + i };
    atomic_store(start_word(i), value - 1);
    atomic_store(done_word(i), value + 6);
    memcpy(want + dst_at, content + src_at, bytes);
}

static void launch(int n, int ctas)
{
    CHECK(ops->move(&queue, list, n, ctas, abort_word()) == PK_OK);
}

/* The launch has ended; if it does not by itself, by force. */
static void end(void)
{
    if (CHECK(drained(&queue)))
        return;
    atomic_store(abort_word(), 1);
    CHECK(drained(&queue));
    atomic_store(abort_word(), 0);
    clear_arrived();
}

static bool target_is_right(void)
{
    static uint8_t got[ROOM];

    return download(got, target, ROOM) && memcmp(got, want, ROOM) == 0;
}

/* Every alignment of source and target, 64 short transfers a launch. */
static void check_alignments(void)
{
    static const size_t lengths[] = { 0, 1, 7, 15, 16, 17, 33, 100, 4099 };
    int ctas = 0;

    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        for (size_t first = 0; first < 256; first += PKI_MOVE_OPS, ctas = (ctas + 1) % 5) {
            begin();
            for (size_t i = 0; i < PKI_MOVE_OPS; i++) {
                transfer((int)i, i * 9008 + (first + i) % 16, i * 8192 + (first + i) / 16, lengths[l], (uint32_t)i);
                pki_signal_open(&list[i].start);
            }
            launch(PKI_MOVE_OPS, ctas);
            for (int i = 0; i < PKI_MOVE_OPS; i++)
                CHECK(becomes_done(i));
            end();
            if (!CHECK(target_is_right()))
                printf("INFO %zu bytes, alignments %zu and up, %d CTAs\n", lengths[l], first, ctas);
        }
    }
}

static void shuffle(int *order, int n, uint32_t *seed)
{
    for (int i = 0; i < n; i++) {
        int j = (int)(random_next(seed) % (uint32_t)(i + 1));

        order[i] = order[j];
        order[j] = i;
    }
}

/* Lengths mixed, from anywhere to anywhere; words open in any order, each when the transfer before has been told (odd turns), or all at a time. */
static void check_lengths(void)
{
    static const size_t lengths[] = { BIG, 0, 1, 7, 4096, 70001, 32768, 32769 };
    int order[16];
    uint32_t seed = 5;

    for (int turn = 0; turn < 24; turn++) {
        size_t at = 0;

        begin();
        shuffle(order, 16, &seed);
        for (int i = 0; i < 16; i++) {
            size_t bytes = lengths[i % 8] - (lengths[i % 8] > 100 ? random_next(&seed) % 4 : 0),
                   apart = (size_t)1 << random_next(&seed) % 5;

            at += random_next(&seed) % 40;
            transfer(i, random_next(&seed) % (8 * MIB) / apart * apart + at % apart, at, bytes, random_next(&seed));
            at += bytes;
        }
        launch(16, turn % 6 == 5 ? 21 : turn % 6);
        for (int i = 0; i < 16; i++) {
            pki_signal_open(&list[order[i]].start);
            CHECK(turn % 2 == 0 || becomes_done(order[i]));
        }
        end();
        for (int i = 0; i < 16; i++)
            CHECK(is_done(i));
        CHECK(target_is_right());
    }
}

/* The first of the list opens last. Before it does, all others are done, and nothing of it has moved. */
static void check_late(void)
{
    static const size_t lengths[] = { BIG, 4096, 1, 0, 77777, 7 };
    uint8_t *early = malloc(64 << 10);

    begin();
    for (size_t i = 0; i < 6; i++)
        transfer((int)i, i * MIB + 3 * i, i > 0 ? 5 * MIB + i * MIB : 0, lengths[i], 1000);
    launch(6, 0);
    for (int i = 5; i > 0; i--) {
        pki_signal_open(&list[i].start);
        CHECK(becomes_done(i));
    }
    CHECK(!is_done(0) && !ops->idle(&queue));
    CHECK(ops->copy(&second, early, target, 64 << 10) == PK_OK && drained(&second));
    for (size_t i = 0; i < 64 << 10; i++)
        if (early[i] != CANARY) {
            CHECK(early[i] == CANARY);
            break;
        }
    pki_signal_open(&list[0].start);
    CHECK(becomes_done(0));
    end();
    CHECK(target_is_right());
    free(early);
}

/* Values around 2^32; a word that has moved on; no word to wait for, and none to tell. */
static void check_values(void)
{
    begin();
    transfer(0, 0, 0, 100, 1);
    atomic_store(start_word(0), UINT32_MAX); /* closed by two */
    transfer(1, 1000, 1000, 100, UINT32_MAX - 1);
    atomic_store(start_word(1), 3); /* open, by five */
    transfer(2, 2000, 2000, 100, 0x80000000u);
    atomic_store(start_word(2), 0x7fffffffu); /* closed, though more as a signed number */
    transfer(3, 3000, 3000, 40000, 0);
    list[3].start.word = NULL;
    list[3].done.word = NULL;
    list[1].done.value = 0;
    atomic_store(done_word(1), UINT32_MAX);
    launch(4, 3);
    CHECK(becomes_done(1));
    CHECK(!is_done(0) && !is_done(2) && !ops->idle(&queue));
    atomic_store(start_word(0), 5);
    CHECK(becomes_done(0));
    CHECK(!is_done(2) && !ops->idle(&queue));
    pki_signal_open(&list[2].start);
    CHECK(becomes_done(2));
    end();
    CHECK(target_is_right());
}

/* While one waits; and from the beginning, when nothing is told though all is open. */
static void check_abort(void)
{
    uint8_t head[64];

    begin();
    for (int i = 0; i < 3; i++)
        transfer(i, 100, (size_t)i * 6 * MIB, BIG, 50);
    launch(3, 0);
    pki_signal_open(&list[0].start);
    pki_signal_open(&list[2].start);
    CHECK(becomes_done(0) && becomes_done(2));
    CHECK(!ops->idle(&queue));
    atomic_store(abort_word(), 1);
    if (CHECK(drained(&queue)))
        CHECK(!is_done(1));
    else
        pki_signal_open(&list[1].start);
    CHECK(download(head, target + 6 * MIB, sizeof head) && head[0] == CANARY && memcmp(head, head + 1, 63) == 0);
    clear_arrived();
    atomic_store(done_word(0), 0);
    launch(1, 0);
    CHECK(drained(&queue) && atomic_load(done_word(0)) == 0);
    atomic_store(abort_word(), 0);
    clear_arrived();
}

/* An op without bytes that tells nobody: the launch goes on until its word is open too, and that holds up no transfer. */
static void check_wait_only(void)
{
    for (int ctas = 0; ctas < 4; ctas++) {
        begin();
        transfer(0, 100, 0, BIG, 60);
        transfer(2, 100, 6 * MIB, 1000, 60);
        list[1] = (struct pki_move_op){ .start = { start_word(1), 60 } };
        atomic_store(start_word(1), 59);
        launch(3, ctas);
        pki_signal_open(&list[2].start);
        pki_signal_open(&list[0].start);
        CHECK(becomes_done(0) && becomes_done(2));
        usleep(2000);
        CHECK(!ops->idle(&queue));
        pki_signal_open(&list[1].start);
        end();
        CHECK(target_is_right());
    }
}

/* A launch behind another in its queue moves on what that has brought, by the same words in `arrived`. */
static void check_behind(void)
{
    struct pki_move_op first[4];

    for (int turn = 0; turn < 10; turn++) {
        begin();
        for (int i = 0; i < 4; i++) {
            transfer(i, (size_t)i * MIB, (size_t)i * MIB, MIB - (size_t)i, 10);
            first[i] = list[i];
        }
        launch(4, turn % 5);
        for (int i = 4; i < 8; i++) {
            size_t from = (size_t)(7 - i);

            transfer(i, from * MIB, (size_t)i * MIB, MIB - from, 20);
            list[i].src = target + from * MIB;
            list[i].arrived = arrived + i - 4;
            pki_signal_open(&list[i].start);
        }
        CHECK(ops->move(&queue, list + 4, 4, (turn + 2) % 5, abort_word()) == PK_OK);
        for (int i = 0; i < 4; i++) {
            CHECK(!is_done(4 + i));
            pki_signal_open(&first[i].start);
        }
        end();
        for (int i = 0; i < 8; i++)
            CHECK(is_done(i));
        CHECK(target_is_right());
    }
}

/* Two transfers of a launch from one place, which is rewritten in between: the second brings what is new. */
static void check_fresh_from(uint8_t *from, const struct pki_queue *writer)
{
    uint8_t *fresh = malloc(MIB);

    for (uint32_t turn = 0; turn < 20; turn++) {
        begin();
        transfer(0, 0, 0, MIB, turn);
        transfer(1, 0, 2 * MIB + 8, MIB, turn);
        list[0].src = list[1].src = from;
        CHECK(ops->copy(writer, from, content, MIB) == PK_OK && drained(writer));
        launch(2, 0);
        pki_signal_open(&list[0].start);
        CHECK(becomes_done(0));
        fill(fresh, MIB, 100 + turn);
        memcpy(want + 2 * MIB + 8, fresh, MIB);
        CHECK(ops->copy(writer, from, fresh, MIB) == PK_OK && drained(writer));
        pki_signal_open(&list[1].start);
        CHECK(becomes_done(1));
        end();
        CHECK(target_is_right());
    }
    free(fresh);
}

static void check_fresh(void)
{
    uint8_t *from = device_alloc(MIB);

    check_fresh_from(from, &second);
    ops->free(device, from);
}

static void check_refusals(void)
{
    transfer(0, 0, 0, 100, 1);
    CHECK(ops->move(&queue, list, 0, 0, abort_word()) != PK_OK);
    CHECK(ops->move(&queue, list, PKI_MOVE_OPS + 1, 0, abort_word()) != PK_OK);
    list[0].arrived = NULL;
    CHECK(ops->move(&queue, list, 1, 0, abort_word()) != PK_OK);
    list[0].bytes = 0; /* it tells somebody */
    CHECK(ops->move(&queue, list, 1, 0, abort_word()) != PK_OK);
    CHECK(pki_device_host.move(&queue, list, 1, 0, abort_word()) == PK_ERR_UNSUPPORTED);
}

/* ---- Another GPU ---- */

static uint8_t *far; /* memory of the other GPU, ROOM bytes, as this one reaches it; or NULL */
static struct pki_queue far_queue;
static struct pki_export far_export;

static bool far_open(void)
{
    struct pki_mem mem;
    void *ptr = NULL, *mapped = NULL;

    if (other == NULL)
        return true;
    running = "memory of another GPU";
    if (!CHECK(ops->alloc(other, ROOM, &ptr) == PK_OK && ops->queue_open(other, &far_queue) == PK_OK) ||
        !CHECK(ops->classify(other, ptr, ROOM, &mem) == PK_OK && ops->export(other, &mem, &far_export) == PK_OK) ||
        !CHECK(ops->import(device, &far_export, true, &mapped) == PK_OK))
        return false;
    far = (uint8_t *)mapped + ((uintptr_t)ptr - (uintptr_t)far_export.base);
    return true;
}

static void far_close(void)
{
    if (far == NULL)
        return;
    ops->unimport(device, &far_export, true, (void *)(uintptr_t)far_export.base);
    ops->queue_close(&far_queue);
    ops->free(other, far);
}

/* There by one launch and back by another, lengths and alignments mixed. */
static void check_peer(void)
{
    static const size_t lengths[] = { BIG, 0, 1, 7, 4096, BIG - 1, 32770, 3 * BIG / 4 };
    struct pki_move_op back[8];
    uint8_t *empty = calloc(1, ROOM);

    for (size_t turn = 0; far != NULL && turn < 16; turn++) {
        size_t at = 0;

        begin();
        CHECK(ops->copy(&far_queue, far, empty, ROOM) == PK_OK && drained(&far_queue));
        for (size_t i = 0; i < 8; i++) {
            transfer((int)i, at, at + turn, lengths[i], 3);
            back[i] = list[i];
            back[i].src = list[i].dst = far + at + (5 * i + 3 * turn) % 16;
            back[i].done.value++;
            pki_signal_open(&list[i].start);
            at += lengths[i] + 64;
        }
        launch(8, (int)turn % 3 * 7);
        CHECK(ops->move(&queue, back, 8, 0, abort_word()) == PK_OK);
        end();
        for (int i = 0; i < 8; i++)
            CHECK(atomic_load(done_word(i)) == back[i].done.value);
        CHECK(target_is_right());
    }
    free(empty);
    if (far != NULL)
        check_fresh_from(far, &far_queue);
}

/* ---- Speed ---- */

/* From the launch to the done word, the shortest of many, in microseconds; the word is open before. */
static double move_us(const void *src, void *dst, size_t bytes, int ctas)
{
    double best = 1e9;

    for (uint32_t turn = 1; turn <= 40; turn++) {
        uint64_t began;
        double us;

        list[0] = (struct pki_move_op){ .src = src,
                                        .dst = dst,
                                        .bytes = bytes,
                                        .start = { start_word(0), turn },
                                        .done = { done_word(0), turn },
                                        .arrived = arrived };
        atomic_store(start_word(0), turn);
        atomic_store(done_word(0), turn - 1);
        began = pki_now_ns();
        ops->move(&queue, list, 1, ctas, abort_word());
        if (!CHECK(becomes_done(0)))
            return 1e9;
        us = (double)(pki_now_ns() - began) / 1000;
        best = us < best ? us : best;
        end();
    }
    return best;
}

static void print_speed(const char *what, const void *src, void *dst, size_t bytes)
{
    static const int ctas[] = { 0, 1, 4, 8, 16 };

    printf("INFO %s, %9zu B, us (CTAs):", what, bytes);
    for (size_t c = 0; c < sizeof ctas / sizeof ctas[0]; c++) {
        double us = move_us(src, dst, bytes, ctas[c]);

        printf(" %.1f (%d)", us, ctas[c]);
        if (bytes >= MIB)
            printf(" %.0f GB/s", (double)bytes / us * 1e-3);
    }
    printf("\n");
}

static void check_speed(void)
{
    static const size_t lengths[] = { 8, 4096, 32768, 65536, 262144, MIB, 16 * MIB };
    struct pki_device_info info;

    ops->info(device, &info);
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0] && strncmp(info.name, "Fake", 4) != 0; l++) {
        print_speed("inside the GPU", source, target, lengths[l]);
        if (far != NULL) {
            print_speed("from a peer   ", far, target, lengths[l]);
            print_speed("to a peer     ", source, far, lengths[l]);
        }
        print_speed("bytes apart   ", source + 1, target, lengths[l]);
    }
}

static const struct bed_check checks[] = { { "alignments", check_alignments },
                                           { "lengths", check_lengths },
                                           { "late", check_late },
                                           { "values", check_values },
                                           { "abort", check_abort },
                                           { "behind", check_behind },
                                           { "wait only", check_wait_only },
                                           { "fresh", check_fresh },
                                           { "refusals", check_refusals },
                                           { "peer", check_peer },
                                           { "speed", check_speed } };

static bool prepare(void)
{
    running = "memory";
    source = device_alloc(ROOM);
    target = device_alloc(ROOM);
    arrived = device_alloc(PKI_MOVE_OPS * sizeof *arrived);
    content = malloc(ROOM);
    want = malloc(ROOM);
    signals = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (signals == MAP_FAILED || ops->host_register(device, (void *)(uintptr_t)signals, 8192) != PK_OK || !far_open())
        return false;
    fill(content, ROOM, 3);
    clear_arrived();
    return CHECK(upload(source, content, ROOM));
}

int main(int argc, char **argv)
{
    int result = bed_open();

    if (result != 0)
        return result;
    if (!prepare())
        return 1;
    result = bed_run(checks, sizeof checks / sizeof checks[0], argc, argv);
    far_close();
    ops->host_unregister(device, (void *)(uintptr_t)signals);
    ops->free(device, source);
    ops->free(device, target);
    ops->free(device, arrived);
    bed_close();
    free(content);
    free(want);
    return result;
}
