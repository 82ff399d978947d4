/* SPDX-License-Identifier: Apache-2.0 */
/* pickle-perf: how fast, and how right, the library moves data between the ranks of a job. */
#include "perf.h"

#include <stdlib.h>
#include <string.h>

static void choose_gpu(struct perf_run *run)
{
    int count = gpu_count();

    run->gpu = run->options.gpu;
    if (run->gpu < 0)
        run->gpu = gpu_of_rank();
    if (run->gpu >= count) {
        fprintf(stderr, "pickle-perf: there is no GPU %d, only %d of them\n", run->gpu, count);
        exit(2);
    }
    gpu_use(run->gpu);
}

static void open_stream(struct perf_run *run)
{
    run->stream = PK_BLOCKING;
    if (run->options.ending == PERF_BLOCKING)
        return;
    if (run->options.cuda)
        run->stream = PK_CUDA_STREAM(gpu_stream_new());
    else
        perf_must(pk_stream_create(&run->stream), "pk_stream_create");
}

static char *host_buffer(size_t bytes)
{
    void *buffer;

    if (posix_memalign(&buffer, 4096, bytes) != 0) {
        fprintf(stderr, "pickle-perf: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    memset(buffer, 0x33, bytes);
    return buffer;
}

static char *run_buffer(struct perf_run *run, size_t bytes)
{
    void *buffer;

    if (run->options.memory != PERF_ALLOCATED)
        return host_buffer(bytes);
    perf_must(pk_mem_alloc(run->comm, bytes, &buffer), "pk_mem_alloc");
    memset(buffer, 0x33, bytes);
    return buffer;
}

#define LARGE_PAGE_BYTES ((size_t)2 << 20)

/* One allocation for both libraries: what NCCL wants registered must come from NCCL. */
static bool memory_is_nccls(const struct perf_run *run)
{
    return run->options.nccl > PERF_NCCL_DEFAULT;
}

static void open_buffers(struct perf_run *run)
{
    const struct perf_options *o = &run->options;
    /* Where there are parts, sizes are of all together, and a part is at least one element. */
    size_t least = (size_t)run->size * pk_dtype_size(o->dtype);
    size_t bytes;

    run->capacity_bytes = o->end_bytes > least ? o->end_bytes : least;
    /* Whole large pages: a GPU maps what is left over in small ones, and copies both ways at once then run at two thirds. */
    bytes = (run->capacity_bytes + PERF_SLACK_BYTES + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    if (o->cuda) {
        run->send_buffer = memory_is_nccls(run) ? perf_nccl_alloc(bytes) : gpu_alloc(bytes);
        run->recv_buffer = memory_is_nccls(run) ? perf_nccl_alloc(bytes) : gpu_alloc(bytes);
        run->staging = o->check ? host_buffer(bytes) : NULL;
        gpu_fill(run->send_buffer, 0x33, bytes);
    } else {
        run->send_buffer = run_buffer(run, bytes);
        run->recv_buffer = run_buffer(run, bytes);
    }
    if (o->memory == PERF_REGISTERED) {
        perf_must(pk_register(run->comm, run->send_buffer, bytes), "pk_register");
        perf_must(pk_register(run->comm, run->recv_buffer, bytes), "pk_register");
    }
    run->buffer_bytes = bytes;
}

/* What cannot be known before there is a communicator. */
static const char *unfit(const struct perf_run *run)
{
    const struct perf_options *o = &run->options;

    if (run->size != 2 && (o->bare || o->op == PERF_BARECOPY))
        return "the bare copy is for 2 ranks";
    if (run->size < 2 && o->op == PERF_SENDRECV && o->pattern != PERF_BIDIR)
        return "pingpong and oneway need 2 ranks";
    if (o->root >= run->size)
        return "there is no such root";
    if (o->check && perf_reduces(o->op))
        return perf_uncheckable(o->reduction, o->dtype, run->size);
    return NULL;
}

static void open_run(struct perf_run *run)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    const struct perf_options *o = &run->options;

    config.device = PK_DEVICE_HOST;
    if (o->cuda) {
        choose_gpu(run);
        config.device = PK_DEVICE_CUDA(run->gpu);
    }
    config.sm_policy = o->zero_sm ? PK_SM_NONE : PK_SM_DEFAULT;
    perf_must(pk_comm_init(&run->comm, &config), "pk_comm_init");
    perf_must(pk_comm_rank(run->comm, &run->rank), "pk_comm_rank");
    perf_must(pk_comm_size(run->comm, &run->size), "pk_comm_size");
    if (unfit(run) != NULL) {
        if (run->rank == 0)
            fprintf(stderr, "pickle-perf: %s (%d ranks)\n", unfit(run), run->size);
        exit(2);
    }
    run->root = o->root < 0 ? 0 : o->root;
    open_stream(run);
    open_buffers(run);
    if (o->nccl != PERF_NCCL_OFF)
        perf_nccl_open(run);
}

static void free_buffers(struct perf_run *run)
{
    void (*free_buffer)(void *) = free;

    if (run->options.memory == PERF_ALLOCATED)
        return; /* with the communicator */
    if (run->options.cuda)
        free_buffer = memory_is_nccls(run) ? perf_nccl_free : gpu_free;
    free_buffer(run->send_buffer);
    free_buffer(run->recv_buffer);
    free(run->staging);
}

static void close_run(struct perf_run *run)
{
    char token = 0;
    char *tokens = host_buffer((size_t)run->size);

    perf_share(run, &token, tokens, 1);
    free(tokens);
    perf_layout_free(run);
    if (run->options.memory == PERF_REGISTERED) {
        perf_must(pk_deregister(run->comm, run->send_buffer, run->buffer_bytes), "pk_deregister");
        perf_must(pk_deregister(run->comm, run->recv_buffer, run->buffer_bytes), "pk_deregister");
    }
    if (run->options.memory == PERF_ALLOCATED) {
        perf_must(pk_mem_free(run->comm, run->send_buffer), "pk_mem_free");
        perf_must(pk_mem_free(run->comm, run->recv_buffer), "pk_mem_free");
    }
    if (run->nccl != NULL)
        perf_nccl_close(run);
    if (run->stream.kind == PK_STREAM_KIND_HOST)
        perf_must(pk_stream_destroy(run->stream), "pk_stream_destroy");
    perf_must(pk_comm_destroy(run->comm), "pk_comm_destroy");
    if (run->options.cuda)
        gpu_stream_free(run->stream.handle);
    free_buffers(run);
}

static struct perf_size size_of(const struct perf_run *run, size_t bytes)
{
    const struct perf_options *o = &run->options;
    size_t width = pk_dtype_size(o->dtype);
    size_t parts = perf_has_parts(o->op) ? (size_t)run->size : 1;
    struct perf_size size = { .count = bytes / width / parts };

    if (o->op == PERF_BARRIER)
        return (struct perf_size){ .count = 0 };
    if (size.count == 0 && bytes > 0)
        size.count = 1;
    size.message_bytes = size.count * width;
    size.bytes = size.message_bytes * parts;
    return size;
}

static void explain(const struct perf_run *run, struct perf_row *row)
{
    const struct perf_options *o = &run->options;
    int kind = perf_operation(o->op)->kind;
    int peer = (run->rank + 1) % run->size;

    row->explanation.struct_size = sizeof row->explanation;
    if (kind >= 0)
        perf_must(pk_explain(run->comm, (pk_op_kind_t)kind, row->size.count, o->dtype, o->cuda ? PK_MEM_DEVICE : PK_MEM_HOST,
                             perf_in_place(run), peer, &row->explanation),
                  "pk_explain");
}

static void set_bandwidth(const struct perf_run *run, struct perf_row *row)
{
    row->algorithm_gbps = row->times.median_us > 0 ? (double)row->size.bytes / row->times.median_us * 1e-3 : 0;
    row->bus_gbps = row->algorithm_gbps * perf_operation(run->options.op)->bus_factor(run->size);
}

static uint64_t check(struct perf_run *run, const struct perf_size *size, unsigned iteration)
{
    uint64_t wrong = perf_check(run, size, iteration);
    uint64_t *all = (uint64_t *)(void *)host_buffer((size_t)run->size * sizeof *all);

    perf_share(run, &wrong, all, sizeof wrong);
    wrong = 0;
    for (int r = 0; r < run->size; r++)
        wrong += all[r];
    free(all);
    return wrong;
}

/* The libraries take turns. What is too short for the clock to one of them is sampled in the same larger pieces with both. */
static void measure(struct perf_run *run, struct perf_row *row, unsigned index)
{
    const struct perf_library *libraries[] = { &perf_pickle, &perf_nccl };
    struct perf_times *times[] = { &row->times, &row->nccl_times };
    uint64_t *wrong[] = { &row->wrong, &row->nccl_wrong };
    unsigned turns = run->nccl != NULL ? 2 : 1;
    unsigned chunk = 1;

    for (unsigned t = 0; t < turns; t++) {
        unsigned wanted;

        run->library = libraries[t];
        if (run->options.check)
            *wrong[t] = check(run, &row->size, 4 * index + t);
        wanted = perf_warm_up(run, &row->size);
        chunk = wanted > chunk ? wanted : chunk;
    }
    for (unsigned t = 0; t < turns; t++) {
        run->library = libraries[t];
        perf_measure(run, &row->size, chunk, times[t]);
        perf_worst(run, times[t]);
        if (run->options.check)
            *wrong[t] += check(run, &row->size, 4 * index + 2 + t);
    }
    if (row->times.median_us > 0)
        row->nccl_ratio = row->nccl_times.median_us / row->times.median_us;
}

static uint64_t run_size(struct perf_run *run, size_t bytes, unsigned index)
{
    const struct perf_options *o = &run->options;
    struct perf_row row = { .size = size_of(run, bytes) };
    struct perf_times times;

    perf_lay_out(run, &row.size);
    explain(run, &row);
    if (o->op == PERF_BARECOPY)
        perf_bare_measure(run, row.size.bytes, &row.times);
    else
        measure(run, &row, index);
    if (o->bare) {
        perf_bare_measure(run, row.size.bytes, &times);
        row.bare_gbps = times.median_us > 0 ? (double)row.size.bytes / times.median_us * 1e-3 : 0;
    }
    set_bandwidth(run, &row);
    perf_report_row(run, &row);
    return row.wrong + row.nccl_wrong;
}

int main(int argc, char **argv)
{
    struct perf_run run = { .first_row = true, .library = &perf_pickle };
    uint64_t wrong = 0;
    unsigned index = 0;

    perf_subcommand(argc, argv);
    perf_parse(argc, argv, &run.options);
    if (run.options.nccl != PERF_NCCL_OFF)
        perf_nccl_load(run.options.nccl);
    open_run(&run);
    perf_header(&run);
    if (run.options.bare || run.options.op == PERF_BARECOPY)
        perf_bare_open(&run);
    for (size_t bytes = run.options.begin_bytes; bytes <= run.options.end_bytes; index++) {
        perf_progress(&run, bytes);
        wrong += run_size(&run, bytes, index);
        if (bytes > SIZE_MAX / run.options.factor)
            break;
        if (run.options.op == PERF_BARRIER) /* has no size */
            break;
        bytes = bytes == 0 ? 1 : bytes * run.options.factor;
    }
    perf_footer(&run, wrong);
    perf_bare_close(&run);
    close_run(&run);
    return wrong == 0 ? 0 : 1;
}
