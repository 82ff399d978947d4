/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host, pinned, device and VMM memory at either end of a transfer: every pair of kinds, sizes on both sides of every change of
 * way, blocking, in host streams and in CUDA streams, either side late. Over NVLink, with PK_P2P_LEVEL=LOC (everything between GPUs goes
 * through the host), without one-copy access to the peer's memory, between hosts with threads that help, with what arrives unpacked by a kernel,
 * with one hardware queue, with a rank that has no GPU, and without kernels. What goes through slots of the host also in more pieces at a time than
 * there may be, of more than 1 MiB each, and in so many that they take one another's places.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"
#include "gpu_vmm.h"

enum { SOFTWARE }; /* words of the shared memory */
enum kind { PAGEABLE, PINNED, DEVICE, VMM, KINDS };
enum ending { BLOCKING, HOST_STREAM, CUDA_STREAM, ENDINGS };

static const char *const kind_names[] = { "pageable", "pinned", "device", "vmm" };
static const char *const ending_names[] = { "blocking", "host stream", "cuda stream" };
static const size_t sizes[] = { 0, 1, 4096, 8193, 32768, 100003, (1 << 20) + 5, 5 << 20 };

static const size_t long_sizes[] = { (9 << 20) + 5, (33 << 20) + 3 }; /* 9 pieces of up to 1.1 MiB, 17 of up to 2 MiB */

#define SIZES (sizeof sizes / sizeof sizes[0])
#define LONG_SIZES (sizeof long_sizes / sizeof long_sizes[0])
#define LARGEST ((size_t)34 << 20)
#define GUARD_BYTES 64

struct bed {
    struct gpu_rank self;
    pk_stream_t streams[ENDINGS];
    char *source[KINDS], *target[KINDS]; /* LARGEST + GUARD_BYTES */
    struct gpu_vmm vmm[2];
    bool no_gpu; /* this rank has host memory alone */
    unsigned wrong, done, turn;
};

static void open_comm(struct bed *bed)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    if (!bed->no_gpu) {
        gpu_rank_open(&bed->self, strcmp(ranks_role(), "no kernels") == 0 ? PK_SM_NONE : PK_SM_DEFAULT, 30000);
        bed->streams[CUDA_STREAM] = bed->self.in_stream;
        return;
    }
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 30000;
    must_be_ok(pk_comm_init(&bed->self.comm, &config), "pk_comm_init");
    must_be_ok(pk_comm_rank(bed->self.comm, &bed->self.rank), "pk_comm_rank");
    must_be_ok(pk_comm_size(bed->self.comm, &bed->self.size), "pk_comm_size");
    bed->streams[CUDA_STREAM] = PK_BLOCKING;
}

static char *pageable(void)
{
    char *memory = malloc(LARGEST + GUARD_BYTES);

    if (memory == NULL)
        exit(2);
    return memory;
}

static void bed_open(struct bed *bed)
{
    open_comm(bed);
    bed->streams[BLOCKING] = PK_BLOCKING;
    must_be_ok(pk_stream_create(&bed->streams[HOST_STREAM]), "pk_stream_create");
    for (int i = 0; i < 2; i++) {
        char **memory = i == 0 ? bed->source : bed->target;

        for (int k = 0; k < KINDS; k++)
            memory[k] = k == PAGEABLE || bed->no_gpu ? pageable() : NULL;
        if (bed->no_gpu)
            continue;
        memory[PINNED] = gpu_host_alloc(LARGEST + GUARD_BYTES);
        memory[DEVICE] = gpu_alloc(LARGEST + GUARD_BYTES);
        bed->vmm[i] = gpu_vmm_alloc(bed->self.rank % gpu_count(), LARGEST + GUARD_BYTES);
        memory[VMM] = bed->vmm[i].ptr;
    }
}

static void bed_close(struct bed *bed)
{
    must_be_ok(pk_stream_destroy(bed->streams[HOST_STREAM]), "pk_stream_destroy");
    if (bed->no_gpu) {
        ranks_meet();
        must_be_ok(pk_comm_destroy(bed->self.comm), "pk_comm_destroy");
        return;
    }
    gpu_rank_close(&bed->self);
    for (int i = 0; i < 2; i++)
        gpu_vmm_free(&bed->vmm[i]);
}

static bool on_gpu(const struct bed *bed, int kind)
{
    return (kind == DEVICE || kind == VMM) && !bed->no_gpu;
}

static void write_pattern(const struct bed *bed, int kind, char *to, size_t bytes, uint64_t key)
{
    if (on_gpu(bed, kind))
        pattern_to_gpu(to, bytes, key);
    else
        pattern_fill(to, bytes, key);
}

static bool is_pattern(const struct bed *bed, int kind, const char *at, size_t bytes, uint64_t key)
{
    return (on_gpu(bed, kind) ? pattern_wrong_on_gpu(at, bytes, key) : pattern_wrong(at, bytes, key)) == bytes;
}

static void set_guard(const struct bed *bed, int kind, char *at)
{
    write_pattern(bed, kind, at, GUARD_BYTES, 4711);
}

static void finish(struct bed *bed, enum ending ending)
{
    if (ending == HOST_STREAM)
        must_be_ok(pk_stream_synchronize(bed->streams[HOST_STREAM]), "pk_stream_synchronize");
    if (ending == CUDA_STREAM && !bed->no_gpu && !stream_idle_within(bed->self.stream, 25000, NULL)) {
        (void)pk_comm_async_error(bed->self.comm);
        must_be_ok(pk_comm_async_error(bed->self.comm), "the stream does not end, and the communicator");
        report(false, "rank %d: the stream does not end", bed->self.rank);
        exit(1);
    }
    must_be_ok(pk_comm_async_error(bed->self.comm), "pk_comm_async_error");
}

/* Each rank sends to the next one. What kinds meet differs from rank to rank. */
static void exchange(struct bed *bed, int from, int to, size_t bytes, enum ending ending)
{
    struct gpu_rank *self = &bed->self;
    int source = (from + self->rank) % KINDS, target = (to + self->rank) % KINDS;
    int next = (self->rank + 1) % self->size, previous = (self->rank + self->size - 1) % self->size;
    uint64_t key = (uint64_t)bed->turn++ * 64;
    pk_stream_t stream = bed->streams[ending];

    write_pattern(bed, source, bed->source[source], bytes, key + (uint64_t)self->rank);
    set_guard(bed, target, bed->target[target] + bytes);
    if ((bed->turn + (unsigned)self->rank) % 7 == 0)
        usleep(300); /* late, so that the peer's part comes first */
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(bed->source[source], bytes, PK_UINT8, next, self->comm, stream), "pk_send");
    must_be_ok(pk_recv(bed->target[target], bytes, PK_UINT8, previous, self->comm, stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
    finish(bed, ending);
    bed->done++;
    if (is_pattern(bed, target, bed->target[target], bytes, key + (uint64_t)previous) &&
        is_pattern(bed, target, bed->target[target] + bytes, GUARD_BYTES, 4711))
        return;
    if (bed->wrong++ < 5)
        report(false, "%s: rank %d: %zu bytes into %s memory, rank %d's from %s, %s: wrong", ranks_role(), self->rank, bytes,
               kind_names[target], previous, kind_names[(from + previous) % KINDS], ending_names[ending]);
}

/* Through slots, if any: at least one end of each is in GPU memory. */
static void long_ones(struct bed *bed)
{
    for (int kind = PINNED; kind < KINDS; kind++)
        for (unsigned s = 0; s < LONG_SIZES; s++)
            exchange(bed, kind, kind, long_sizes[s], (enum ending)(((unsigned)kind + s) % ENDINGS));
}

static bool through_slots(void)
{
    return strstr(ranks_role(), "through the host") != NULL || strstr(ranks_role(), "between hosts") != NULL ||
           strstr(ranks_role(), "unpacked") != NULL;
}

/* Many at a time, each of several pieces, so that slots and pieces are shared, and received in another order of sizes than the kinds suggest. */
static void flood(struct bed *bed)
{
    enum { N = 12 };
    struct gpu_rank *self = &bed->self;
    int next = (self->rank + 1) % self->size, previous = (self->rank + self->size - 1) % self->size;
    size_t part = LARGEST / N;
    char *got, *wanted;

    for (int i = 0; i < N; i++)
        write_pattern(bed, i % KINDS, bed->source[i % KINDS] + (size_t)i * part, part, (uint64_t)(99 + i * N + self->rank));
    must_be_ok(pk_group_start(), "pk_group_start");
    for (int i = 0; i < N; i++) {
        must_be_ok(pk_send(bed->source[i % KINDS] + (size_t)i * part, part, PK_UINT8, next, self->comm, PK_BLOCKING), "pk_send");
        must_be_ok(pk_recv(bed->target[(i / 2) % KINDS] + (size_t)i * part, part, PK_UINT8, previous, self->comm, PK_BLOCKING),
                   "pk_recv");
    }
    must_be_ok(pk_group_end(), "pk_group_end");
    got = malloc(part);
    wanted = malloc(part);
    if (got == NULL || wanted == NULL)
        exit(2);
    for (int i = 0; i < N; i++) {
        int kind = (i / 2) % KINDS;

        pattern_fill(wanted, part, (uint64_t)(99 + i * N + previous));
        if (on_gpu(bed, kind))
            gpu_copy(got, bed->target[kind] + (size_t)i * part, part);
        else
            memcpy(got, bed->target[kind] + (size_t)i * part, part);
        bed->wrong += memcmp(got, wanted, part) != 0;
    }
    free(got);
    free(wanted);
    report(bed->wrong == 0, "%s: rank %d: %d transfers at a time", ranks_role(), self->rank, N);
}

/* More operations in a stream than the library has words for, before the first can begin: what copies for them needs some too. */
static void pile_up(struct bed *bed)
{
    enum { N = 700, BYTES = 40000 };
    struct gpu_rank *self = &bed->self;
    pk_stream_t stream = bed->streams[CUDA_STREAM];

    if (self->rank > 1)
        return;
    write_pattern(bed, DEVICE, bed->source[DEVICE], BYTES, 7);
    for (int i = 0; i < N; i++)
        if (self->rank == 0)
            must_be_ok(pk_send(bed->source[DEVICE], BYTES, PK_UINT8, 1, self->comm, stream), "pk_send");
        else
            must_be_ok(pk_recv(bed->target[DEVICE] + i % 64 * BYTES, BYTES, PK_UINT8, 0, self->comm, stream), "pk_recv");
    finish(bed, CUDA_STREAM);
    for (int i = 0; i < 64 && self->rank == 1; i++)
        bed->wrong += !is_pattern(bed, DEVICE, bed->target[DEVICE] + i * BYTES, BYTES, 7);
    report(bed->wrong == 0, "%s: rank %d: %d operations in a stream", ranks_role(), self->rank, N);
}

static uint64_t kernels_so_far(const struct bed *bed)
{
    pk_stats_t stats = { .struct_size = sizeof stats };

    must_be_ok(pk_comm_stats(bed->self.comm, &stats), "pk_comm_stats");
    return stats.kernels;
}

/* A kernel unpacks where it was asked for, and nowhere else. By calls that block, for streams wait by kernels. */
static void check_unpack(struct bed *bed)
{
    uint64_t kernels = kernels_so_far(bed);

    exchange(bed, DEVICE, DEVICE, sizes[SIZES - 1], BLOCKING);
    kernels = kernels_so_far(bed) - kernels;
    if (strcmp(ranks_role(), "between hosts") == 0)
        report(kernels == 0, "between hosts: rank %d: %llu kernels unpacked", bed->self.rank, (unsigned long long)kernels);
    if (strstr(ranks_role(), "unpacked") != NULL)
        report(kernels > 0, "%s: rank %d: %llu kernels unpacked", ranks_role(), bed->self.rank, (unsigned long long)kernels);
}

/* A processor moves what a GPU would: of the sizes behind the first two each pair of kinds has every other one. */
static bool is_left_out(int from, int to, unsigned s)
{
    return atomic_load(&ranks_shared()->words[SOFTWARE]) != 0 && s > 1 && ((unsigned)from + (unsigned)to / 2 + s) % 2 != 0;
}

static int rank_main(void)
{
    struct bed bed = { .no_gpu = strcmp(ranks_role(), "a rank without gpu") == 0 && ranks_rank() == 1 };

    if (strncmp(ranks_role(), "between hosts", 13) == 0)
        setenv("PK_HOST_ID", ranks_rank() == 0 ? "one" : "two", 1);
    bed_open(&bed);
    check_unpack(&bed);
    for (int from = 0; from < KINDS; from++)
        for (int to = 0; to < KINDS; to++)
            for (unsigned s = 0; s < SIZES; s++)
                if (!is_left_out(from, to, s))
                    exchange(&bed, from, to, sizes[s], (enum ending)(((unsigned)from + (unsigned)to + s) % ENDINGS));
    if (through_slots())
        long_ones(&bed);
    report(bed.wrong == 0, "%s: rank %d: %u exchanges, %u wrong", ranks_role(), bed.self.rank, bed.done, bed.wrong);
    flood(&bed);
    pile_up(&bed);
    if (strcmp(ranks_role(), "no kernels") == 0)
        report(kernels_so_far(&bed) == 0, "no kernels: rank %d: %llu kernels", bed.self.rank,
               (unsigned long long)kernels_so_far(&bed));
    bed_close(&bed);
    return report_end();
}

static void drive(const char *role, int ranks)
{
    ranks_drive(&(struct ranks_turn){ .role = role, .size = ranks, .word = gpu_is_software() }, "%s", role);
}

static void drive_with(const char *role, const char *name, const char *value)
{
    setenv(name, value, 1);
    drive(role, 2);
    unsetenv(name);
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    drive("as it is", gpu_ranks(3));
    drive_with("through the host", "PK_P2P_LEVEL", "LOC");
    if (getenv("FAKECUDA_SYNC") != NULL) /* streams of the communicator's own, which these two make all of */
        return report_end();
    setenv("PICKLE_TEST_TUNING", "shm.cma=0", 1);
    drive_with("through the host in two copies", "PK_P2P_LEVEL", "LOC");
    drive("in two copies", 2);
    unsetenv("PICKLE_TEST_TUNING");
    drive_with("between hosts", "PK_SOCKETS", "3/2");
    setenv("PK_UNPACK", "kernel", 1);
    drive_with("unpacked", "PK_P2P_LEVEL", "LOC");
    drive_with("between hosts, unpacked", "PK_SOCKETS", "2/0");
    drive("no kernels", 2);
    unsetenv("PK_UNPACK");
    drive_with("one hardware queue", "CUDA_DEVICE_MAX_CONNECTIONS", "1");
    drive("a rank without gpu", 2);
    return report_end();
}
