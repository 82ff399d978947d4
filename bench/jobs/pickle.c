/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs' work through libpickle: a channel is a stream, of the host or of the GPU. */
#include "jobs.h"

#include <pickle/pickle.h>

#include <stdio.h>
#include <stdlib.h>

const char library_name[] = "libpickle", library_program[] = "pickle-perf-jobs";
const bool library_has_gpu = true;

static pk_stream_t channels[JOBS_CHANNELS];
static gpu_event_t event; /* joins the streams of a GPU */

static const pk_dtype_t types[JOBS_TYPES] = { PK_F32, PK_INT32, PK_F64, PK_INT64 };

static void must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    fprintf(stderr, "pickle-perf-jobs: %s: %s %s\n", what, pk_strerror(result), info.text);
    exit(1);
}

static void know(struct jobs_group *group, pk_comm_t *comm)
{
    group->handle = comm;
    must(pk_comm_rank(comm, &group->rank), "pk_comm_rank");
    must(pk_comm_size(comm, &group->size), "pk_comm_size");
}

static void open_gpu(struct jobs_run *run)
{
    run->gpu = gpu_of_rank();
    gpu_use(run->gpu);
    run->compute_stream = gpu_stream_new();
    event = gpu_event_new();
}

void library_open(struct jobs_run *run, int *argc, char ***argv)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm;

    (void)argc;
    (void)argv;
    if (run->options.cuda)
        open_gpu(run);
    config.device = run->options.cuda ? PK_DEVICE_CUDA(run->gpu) : PK_DEVICE_HOST;
    must(pk_comm_init(&comm, &config), "pk_comm_init");
    know(&run->world, comm);
    for (int c = 0; c < JOBS_CHANNELS; c++) {
        if (run->options.cuda)
            channels[c] = PK_CUDA_STREAM(gpu_stream_new());
        else
            must(pk_stream_create(&channels[c]), "pk_stream_create");
    }
}

void library_describe(struct jobs_run *run, char text[JOBS_TEXT_BYTES])
{
    pk_mem_kind_t kind = run->options.cuda ? PK_MEM_DEVICE : PK_MEM_HOST;
    pk_path_t path = { .struct_size = sizeof path };
    int version = pk_version(), peer = (run->world.rank + 1) % run->world.size;

    must(pk_comm_path(run->world.handle, peer, kind, kind, &path), "pk_comm_path");
    snprintf(text, JOBS_TEXT_BYTES, "libpickle %d.%d.%d, %s (%s)", version / 10000, version / 100 % 100, version % 100,
             path.transport, path.device);
}

void library_close(struct jobs_run *run)
{
    for (int c = 0; c < JOBS_CHANNELS; c++) {
        if (run->options.cuda)
            gpu_stream_free(channels[c].handle);
        else
            must(pk_stream_destroy(channels[c]), "pk_stream_destroy");
    }
    must(pk_comm_destroy(run->world.handle), "pk_comm_destroy");
}

void library_split(struct jobs_run *run, int color, struct jobs_group *group)
{
    pk_comm_t *comm;

    must(pk_comm_split(run->world.handle, color, run->world.rank, &comm, NULL), "pk_comm_split");
    know(group, comm);
}

void library_join(struct jobs_group *group)
{
    must(pk_comm_destroy(group->handle), "pk_comm_destroy");
}

static void exchange(const struct jobs_transfer *t, pk_stream_t stream)
{
    must(pk_group_start(), "pk_group_start");
    must(pk_send(t->source, t->count, PK_F32, t->to, t->group->handle, stream), "pk_send");
    must(pk_recv(t->result, t->count, PK_F32, t->from, t->group->handle, stream), "pk_recv");
    must(pk_group_end(), "pk_group_end");
}

static void post(const struct jobs_transfer *t, pk_stream_t stream)
{
    pk_comm_t *comm = t->group->handle;

    switch (t->kind) {
    case JOBS_ALLREDUCE:
        must(pk_allreduce(t->source, t->result, t->count, PK_F32, PK_SUM, comm, stream), "pk_allreduce");
        break;
    case JOBS_ALLGATHER:
        must(pk_allgather(t->source, t->result, t->count, PK_F32, comm, stream), "pk_allgather");
        break;
    case JOBS_REDUCE_SCATTER:
        must(pk_reduce_scatter(t->source, t->result, t->count, PK_F32, PK_SUM, comm, stream), "pk_reduce_scatter");
        break;
    case JOBS_ALLTOALLV:
        must(pk_alltoallv(t->source, t->send_counts, t->send_offsets, t->result, t->recv_counts, t->recv_offsets, PK_F32, comm,
                          stream),
             "pk_alltoallv");
        break;
    case JOBS_SEND:
        must(pk_send(t->source, t->count, PK_F32, t->to, comm, stream), "pk_send");
        break;
    case JOBS_RECV:
        must(pk_recv(t->result, t->count, PK_F32, t->from, comm, stream), "pk_recv");
        break;
    case JOBS_SENDRECV:
        exchange(t, stream);
        break;
    }
}

/* On a GPU what begins comes behind what was computed, and what is computed after wait behind what was waited for. */
void library_begin(struct jobs_run *run, const struct jobs_transfer *transfer, int channel)
{
    if (run->options.cuda) {
        gpu_event_record(event, run->compute_stream);
        gpu_stream_wait(channels[channel].handle, event);
    }
    post(transfer, channels[channel]);
}

void library_wait(struct jobs_run *run, int channel)
{
    if (!run->options.cuda) {
        must(pk_stream_synchronize(channels[channel]), "pk_stream_synchronize");
        return;
    }
    gpu_event_record(event, channels[channel].handle);
    gpu_stream_wait(run->compute_stream, event);
    must(pk_comm_async_error(run->world.handle), "operation in a stream");
}

void library_allreduce(struct jobs_run *run, const void *source, void *result, size_t count, enum jobs_type type)
{
    must(pk_allreduce(source, result, count, types[type], PK_SUM, run->world.handle, PK_BLOCKING), "pk_allreduce");
}

void library_now(const struct jobs_transfer *transfer)
{
    post(transfer, PK_BLOCKING);
}

void library_share(struct jobs_run *run, const void *value, void *values, size_t bytes)
{
    must(pk_allgather(value, values, bytes, PK_UINT8, run->world.handle, PK_BLOCKING), "exchange of results");
}

int library_least(const struct jobs_group *group, int number)
{
    int32_t own = number, result;

    must(pk_allreduce(&own, &result, 1, PK_INT32, PK_MIN, group->handle, PK_BLOCKING), "pk_allreduce");
    return result;
}
