/* SPDX-License-Identifier: Apache-2.0 */
/* Posting the operations, and the little that the ranks tell one another besides. */
#include "perf.h"

#include <stdlib.h>
#include <time.h>

void perf_must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    fprintf(stderr, "pickle-perf: %s: %s %s\n", what, pk_strerror(result), info.text);
    exit(1);
}

double perf_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

void perf_share(struct perf_run *run, const void *value, void *values, size_t bytes)
{
    perf_must(pk_allgather(value, values, bytes, PK_UINT8, run->comm, PK_BLOCKING), "exchange of results");
}

bool perf_takes_part(const struct perf_run *run)
{
    const struct perf_options *o = &run->options;
    bool for_two = o->op == PERF_BARECOPY || (o->op == PERF_SENDRECV && o->pattern != PERF_BIDIR);

    return !for_two || run->rank < 2;
}

unsigned perf_window(const struct perf_size *size)
{
    if (size->message_bytes <= 64 << 10)
        return 64;
    return size->message_bytes <= 16 << 20 ? 16 : 4;
}

char *perf_source(const struct perf_run *run, const struct perf_size *size)
{
    if (!run->options.in_place)
        return run->send_buffer;
    if (run->options.op == PERF_ALLGATHER)
        return run->recv_buffer + (size_t)run->rank * size->message_bytes;
    return run->recv_buffer;
}

size_t perf_result_bytes(const struct perf_run *run, const struct perf_size *size)
{
    return run->options.op == PERF_ALLGATHER ? size->message_bytes * (size_t)run->size : size->message_bytes;
}

static void group_start(void)
{
    perf_must(pk_group_start(), "pk_group_start");
}

static void group_end(void)
{
    perf_must(pk_group_end(), "pk_group_end");
}

static void send_to(struct perf_run *run, const void *buffer, size_t count, int peer)
{
    perf_must(pk_send(buffer, count, run->options.dtype, peer, run->comm, run->stream), "pk_send");
}

static void receive_from(struct perf_run *run, void *buffer, size_t count, int peer)
{
    perf_must(pk_recv(buffer, count, run->options.dtype, peer, run->comm, run->stream), "pk_recv");
}

static void allgather(struct perf_run *run, const void *source, size_t count)
{
    perf_must(pk_allgather(source, run->recv_buffer, count, run->options.dtype, run->comm, run->stream), "pk_allgather");
}

static void allreduce(struct perf_run *run, const void *source, size_t count)
{
    perf_must(pk_allreduce(source, run->recv_buffer, count, run->options.dtype, PK_SUM, run->comm, run->stream), "pk_allreduce");
}

static void must_be_well(struct perf_run *run)
{
    perf_must(pk_comm_async_error(run->comm), "operation in the stream");
}

const struct perf_library perf_pickle = {
    .group_start = group_start,
    .group_end = group_end,
    .send = send_to,
    .receive = receive_from,
    .allgather = allgather,
    .allreduce = allreduce,
    .must_be_well = must_be_well,
};

static void post_bidir(struct perf_run *run, size_t count)
{
    run->library->group_start();
    run->library->send(run, run->send_buffer, count, (run->rank + 1) % run->size);
    run->library->receive(run, run->recv_buffer, count, (run->rank + run->size - 1) % run->size);
    run->library->group_end();
}

static void post_pingpong(struct perf_run *run, size_t count)
{
    if (run->rank == 0) {
        run->library->send(run, run->send_buffer, count, 1);
        run->library->receive(run, run->recv_buffer, count, 1);
    } else {
        run->library->receive(run, run->recv_buffer, count, 0);
        run->library->send(run, run->send_buffer, count, 0);
    }
}

/* A window of messages, then one element back: the time covers the arrival of the data, not only its departure. */
static void post_oneway(struct perf_run *run, const struct perf_size *size)
{
    unsigned window = perf_window(size);
    char *answer = run->recv_buffer + run->capacity_bytes;

    run->library->group_start();
    for (unsigned i = 0; i < window; i++) {
        if (run->rank == 0)
            run->library->send(run, run->send_buffer, size->count, 1);
        else
            run->library->receive(run, run->recv_buffer, size->count, 0);
    }
    run->library->group_end();
    if (run->rank == 0)
        run->library->receive(run, answer, 1, 1);
    else
        run->library->send(run, answer, 1, 0);
}

void perf_post(struct perf_run *run, const struct perf_size *size)
{
    const struct perf_options *o = &run->options;
    const char *source = perf_source(run, size);

    if (!perf_takes_part(run))
        return;
    if (o->op == PERF_ALLGATHER)
        run->library->allgather(run, source, size->count);
    else if (o->op == PERF_ALLREDUCE)
        run->library->allreduce(run, source, size->count);
    else if (o->pattern == PERF_BIDIR)
        post_bidir(run, size->count);
    else if (o->pattern == PERF_PINGPONG)
        post_pingpong(run, size->count);
    else
        post_oneway(run, size);
}

void perf_finish(struct perf_run *run)
{
    if (run->stream.kind == PK_STREAM_KIND_HOST)
        perf_must(pk_stream_synchronize(run->stream), "pk_stream_synchronize");
    if (run->stream.kind == PK_STREAM_KIND_CUDA) {
        int code = gpu_stream_sync(run->stream.handle);

        if (code != 0) {
            fprintf(stderr, "pickle-perf: cuStreamSynchronize: %s\n", gpu_error(code));
            exit(1);
        }
        run->library->must_be_well(run);
    }
}
