/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fragments of host memory gathered by one kernel: any number, length and alignment, nothing beside them touched; on a real GPU also what it
 * takes against a copy each. Exit code 1 when a check failed, 77 without a GPU.
 */
#include "device_bed.h"

#define ROOM (4 * MIB)

static uint8_t *slots; /* registered host memory */

static void check_fragments(void)
{
    uint8_t *want = malloc(ROOM), *got = malloc(ROOM), *target = device_alloc(ROOM);
    uint32_t seed = 11;

    for (int turn = 0; turn < 60; turn++) {
        struct pki_unpack_fragment fragments[PKI_UNPACK_FRAGMENTS];
        int n = 1 + (int)(random_next(&seed) % PKI_UNPACK_FRAGMENTS);
        uint64_t most = turn % 3 == 0 ? 40 : 100000, at = 0;

        device->max_ctas = turn % 4 == 1 ? 1 + turn % 7 : 0;
        memset(want, 0x5a, ROOM);
        CHECK(upload(target, want, ROOM));
        for (int i = 0; i < n; i++) {
            struct pki_unpack_fragment *f = &fragments[i];

            f->bytes = random_next(&seed) % most + (turn % 5 == 0 ? 0 : 1);
            f->dst_offset = at + random_next(&seed) % 20;
            f->src_offset = random_next(&seed) % (ROOM - most);
            if (turn % 2 == 0)
                f->src_offset = f->src_offset & ~(uint64_t)15;
            at = f->dst_offset + f->bytes;
            memcpy(want + f->dst_offset, slots + f->src_offset, f->bytes);
        }
        CHECK(ops->unpack(&queue, target, slots, fragments, n) == PK_OK && drained(&queue));
        CHECK(download(got, target, ROOM) && memcmp(want, got, ROOM) == 0);
    }
    device->max_ctas = 0;
    ops->free(device, target);
    free(want);
    free(got);
}

static void check_refusals(void)
{
    struct pki_unpack_fragment fragments[PKI_UNPACK_FRAGMENTS + 1];

    memset(fragments, 0, sizeof fragments);
    CHECK(ops->unpack(&queue, slots, slots, fragments, 0) != PK_OK);
    CHECK(ops->unpack(&queue, slots, slots, fragments, PKI_UNPACK_FRAGMENTS + 1) != PK_OK);
}

/* Until all n fragments are in place and the CPU has seen a word that says so, in microseconds; the shortest of many. */
static double gather_us(void *target, const struct pki_unpack_fragment *fragments, int n, bool kernel)
{
    double best = 1e9;

    for (uint32_t turn = 1; turn <= 60; turn++) {
        struct pki_signal_op ended = word_op(PKI_SIGNAL_WRITE, 0, turn);
        uint64_t began = pki_now_ns();
        double us;

        for (int i = 0; i < n && !kernel; i++)
            ops->copy(&queue, (uint8_t *)target + fragments[i].dst_offset, slots + fragments[i].src_offset, fragments[i].bytes);
        for (int i = 0; i < n && kernel; i += PKI_UNPACK_FRAGMENTS)
            ops->unpack(&queue, target, slots, fragments + i, n - i < PKI_UNPACK_FRAGMENTS ? n - i : PKI_UNPACK_FRAGMENTS);
        ops->signals(&queue, &ended, 1, PKI_WAIT_VALUE);
        if (!word_becomes(0, turn))
            return -1;
        us = (double)(pki_now_ns() - began) / 1000;
        best = us < best ? us : best;
    }
    word_set(0, 0);
    return best;
}

static void check_speed(void)
{
    static const int counts[] = { 1, 4, 8, 32, 64 };
    static const uint64_t lengths[] = { 4096, 16384, 65536, 524288 };
    struct pki_device_info info;
    uint8_t *target = device_alloc(64 * MIB);

    ops->info(device, &info);
    for (int c = 0; c < 5 && strncmp(info.name, "Fake", 4) != 0; c++)
        for (int l = 0; l < 4; l++) {
            struct pki_unpack_fragment fragments[64];
            uint64_t bytes = lengths[l];
            double copy, kernel;

            for (int i = 0; i < counts[c]; i++)
                fragments[i] = (struct pki_unpack_fragment){ (uint64_t)i * 7 % 8 * (ROOM / 8), bytes, (uint64_t)i * bytes };
            copy = gather_us(target, fragments, counts[c], false);
            kernel = gather_us(target, fragments, counts[c], true);
            printf("INFO %2d fragments of %6llu B: copies %7.1f us %5.1f GB/s, kernel %7.1f us %5.1f GB/s\n", counts[c],
                   (unsigned long long)bytes, copy, (double)bytes * counts[c] / copy * 1e-3, kernel,
                   (double)bytes * counts[c] / kernel * 1e-3);
        }
    ops->free(device, target);
}

static const struct bed_check checks[] = { { "fragments", check_fragments },
                                           { "refusals", check_refusals },
                                           { "speed", check_speed } };

int main(int argc, char **argv)
{
    int result = bed_open();

    if (result != 0)
        return result;
    slots = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (slots == MAP_FAILED || ops->host_register(device, slots, ROOM) != PK_OK)
        return 1;
    fill(slots, ROOM, 3);
    result = bed_run(checks, sizeof checks / sizeof checks[0], argc, argv);
    ops->host_unregister(device, slots);
    bed_close();
    return result;
}
