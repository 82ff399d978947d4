/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that comes and goes: 10,000 different buffers, buffers freed and allocated again at the same address with another size, VMM memory
 * whose pieces are replaced. The data is right, and what peers keep mapped stays bounded.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"
#include "gpu_vmm.h"

#define BUFFERS 2500
#define AT_A_TIME 50
#define BYTES ((size_t)48 << 10) /* above the low-latency slots: these are granted and mapped */

/* How many ranges of memory the software driver knows in this process; 0 on a real one. */
static unsigned long ranges(void)
{
    unsigned long (*stat)(const char *name);
    void *library = gpu_is_software() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;

    if (library == NULL)
        return 0;
    *(void **)&stat = dlsym(library, "fakecuda_stat");
    return stat != NULL ? stat("ranges") : 0;
}

static void exchange_in(struct gpu_rank *self, char *source, char *target, size_t bytes, pk_stream_t stream)
{
    int other = 1 - self->rank;

    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(source, bytes, PK_UINT8, other, self->comm, stream), "pk_send");
    must_be_ok(pk_recv(target, bytes, PK_UINT8, other, self->comm, stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
}

static void exchange(struct gpu_rank *self, char *source, char *target, size_t bytes)
{
    exchange_in(self, source, target, bytes, PK_BLOCKING);
}

static void different(struct gpu_rank *self)
{
    char *source = gpu_alloc(BYTES), *held[AT_A_TIME];
    pk_stats_t stats = { .struct_size = sizeof stats };
    unsigned wrong = 0;
    unsigned long most = 0;

    for (int i = 0; i < BUFFERS; i++) {
        int at = i % AT_A_TIME;
        bool look = i % 16 == 0; /* at the data, which costs more than all the rest */

        if (i >= AT_A_TIME)
            gpu_free(held[at]);
        held[at] = gpu_alloc(BYTES + (size_t)(i % 7) * 4096);
        if (look)
            pattern_to_gpu(source, BYTES, (uint64_t)(2 * i + self->rank));
        exchange(self, source, held[at], BYTES);
        if (look)
            wrong += pattern_wrong_on_gpu(held[at], BYTES, (uint64_t)(2 * i + 1 - self->rank)) != BYTES;
        if (look && ranges() > most)
            most = ranges();
    }
    for (int i = 0; i < AT_A_TIME; i++)
        gpu_free(held[i]);
    gpu_free(source);
    must_be_ok(pk_comm_stats(self->comm, &stats), "pk_comm_stats");
    report(wrong == 0, "rank %d: %d buffers, %u wrong; %llu mapped, %llu found mapped", self->rank, BUFFERS, wrong,
           (unsigned long long)stats.mappings_made, (unsigned long long)stats.mappings_found);
    report(most < 2000, "rank %d: at most %lu ranges at a time", self->rank, most);
}

/* More of them alive than are kept described: the least recently used are forgotten, and described again. */
static void alive(struct gpu_rank *self)
{
    enum { ALIVE = 1300 };
    char *source = gpu_alloc(BYTES), *all[ALIVE];
    unsigned wrong = 0;

    for (int i = 0; i < ALIVE; i++)
        all[i] = gpu_alloc(BYTES);
    for (int i = 0; i < 2 * ALIVE; i++) {
        if (i % 16 == 0)
            pattern_to_gpu(source, BYTES, (uint64_t)(2 * i + self->rank));
        exchange(self, source, all[i % ALIVE], BYTES);
        if (i % 16 == 0)
            wrong += pattern_wrong_on_gpu(all[i % ALIVE], BYTES, (uint64_t)(2 * i + 1 - self->rank)) != BYTES;
    }
    report(wrong == 0, "rank %d: %d buffers alive, twice in turn, %u wrong", self->rank, ALIVE, wrong);
    report(ranges() < ALIVE + 1024 + 200, "rank %d: then %lu ranges", self->rank, ranges());
    ranks_meet();
    for (int i = 0; i < ALIVE; i++)
        gpu_free(all[i]);
    gpu_free(source);
}

static uint64_t blocked(const struct gpu_rank *self)
{
    pk_stats_t stats = { .struct_size = sizeof stats };

    must_be_ok(pk_comm_stats(self->comm, &stats), "pk_comm_stats");
    return stats.mappings_blocked;
}

/* The peer still maps what lay there; while its stream waits for this very transfer it cannot let go of it. */
static void same_address(struct gpu_rank *self, pk_stream_t stream, const char *how)
{
    uint64_t blocked_before = blocked(self);
    char *source = gpu_alloc(64 * BYTES), *last = NULL;
    unsigned wrong = 0, again = 0;

    for (int i = 0; i < 300; i++) {
        size_t bytes = BYTES * (1 + (size_t)(i * 5 % 17)), at = (size_t)(i % 3) * 256;
        char *target = gpu_alloc(bytes);

        again += target == last;
        last = target;
        pattern_to_gpu(source, bytes, (uint64_t)(7000 + 2 * i + self->rank));
        ranks_meet();
        /* The peers agree on what is left of the longer beginning. */
        exchange_in(self, source, target + at, bytes - at, stream);
        if (stream.kind == PK_STREAM_KIND_CUDA && !stream_idle_within(self->stream, 20000, NULL)) {
            report(false, "rank %d: freed and allocated again, %s: turn %d does not end", self->rank, how, i);
            exit(1);
        }
        wrong += pattern_wrong_on_gpu(target + at, bytes - at, (uint64_t)(7001 + 2 * i - self->rank)) != bytes - at;
        gpu_free(target);
    }
    gpu_free(source);
    report(wrong == 0,
           "rank %d: freed and allocated again, %s: %u times at the same address, %llu times through the host, %u wrong",
           self->rank, how, again, (unsigned long long)(blocked(self) - blocked_before), wrong);
    if (gpu_is_software())
        report((blocked(self) > blocked_before) == (stream.kind == PK_STREAM_KIND_CUDA), "rank %d: %s: a mapping was in the way",
               self->rank, how);
}

static void replaced_pieces(struct gpu_rank *self)
{
    int gpu = self->rank % gpu_count();
    struct gpu_vmm target = gpu_vmm_alloc(gpu, (size_t)5 << 20);
    char *source = gpu_alloc(target.bytes);
    unsigned wrong = 0;

    for (int i = 0; i < 60; i++) {
        pattern_to_gpu(source, target.bytes, (uint64_t)(2 * i + self->rank));
        exchange(self, source, target.ptr, target.bytes);
        wrong += pattern_wrong_on_gpu(target.ptr, target.bytes, (uint64_t)(2 * i + 1 - self->rank)) != target.bytes;
        gpu_vmm_replace_last(&target, gpu);
    }
    report(wrong == 0, "rank %d: 60 times a piece replaced, %u wrong", self->rank, wrong);
    ranks_meet();
    gpu_vmm_free(&target);
    gpu_free(source);
}

static int rank_main(void)
{
    struct gpu_rank self;

    gpu_rank_open(&self, PK_SM_DEFAULT, 30000);
    same_address(&self, PK_BLOCKING, "blocking");
    same_address(&self, self.in_stream, "in a stream");
    replaced_pieces(&self);
    different(&self);
    alive(&self);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "buffers", 100000, "many buffers");
}
