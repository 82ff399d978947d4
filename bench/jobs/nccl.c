/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The jobs' work through NCCL, on GPUs alone. Ranks find one another and exchange results by libpickle, in host memory. NCCL lets the
 * operations of a communicator go one after another, so each direction of a pipeline has its own (channels 0 and 1, channels 2 and 3).
 */
#include "jobs.h"

#include <pickle/pickle.h>

#include <stdio.h>
#include <stdlib.h>

#include "../../examples/attention_overlap/nccl_calls.h"

const char library_name[] = "NCCL", library_program[] = "jobs-nccl";
const bool library_has_gpu = true;

#define WAYS 2
#define ID_COUNT (WAYS * sizeof(struct nccl_id))

struct group {
    pk_comm_t *host;
    void *ways[WAYS];
};

static const struct nccl_calls *nccl;
static gpu_stream_t channels[JOBS_CHANNELS];
static gpu_event_t event; /* joins the streams */

static void must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    fprintf(stderr, "jobs-nccl: %s: %s %s\n", what, pk_strerror(result), info.text);
    exit(1);
}

static void call(int code, const char *what)
{
    if (code == 0)
        return;
    fprintf(stderr, "jobs-nccl: %s: NCCL says: %s\n", what, nccl->ncclGetErrorString(code));
    exit(1);
}

static struct group *of(const struct jobs_group *group)
{
    return group->handle;
}

/* Takes the communicator over. */
static void join(struct jobs_group *group, pk_comm_t *host, int ways)
{
    struct group *own = calloc(1, sizeof *own);
    struct nccl_id ids[WAYS] = { { { 0 } } };

    if (own == NULL)
        abort();
    own->host = host;
    group->handle = own;
    must(pk_comm_rank(host, &group->rank), "pk_comm_rank");
    must(pk_comm_size(host, &group->size), "pk_comm_size");
    for (int i = 0; group->rank == 0 && i < ways; i++)
        call(nccl->ncclGetUniqueId(&ids[i]), "ncclGetUniqueId");
    must(pk_broadcast(ids, ids, ID_COUNT, PK_UINT8, 0, host, PK_BLOCKING), "pk_broadcast");
    for (int i = 0; i < ways; i++)
        call(nccl->ncclCommInitRank(&own->ways[i], group->size, ids[i], group->rank), "ncclCommInitRank");
    own->ways[WAYS - 1] = own->ways[ways - 1];
}

static void leave(struct group *own)
{
    for (int i = 0; i < WAYS; i++)
        if (i == 0 || own->ways[i] != own->ways[i - 1])
            call(nccl->ncclCommDestroy(own->ways[i]), "ncclCommDestroy");
    must(pk_comm_destroy(own->host), "pk_comm_destroy");
    free(own);
}

static void need_gpus(const struct jobs_run *run)
{
    const char *why = NULL;

    nccl = run->options.cuda ? nccl_load(getenv("PERF_NCCL_LIBRARY"), &why) : NULL;
    if (nccl == NULL) {
        fprintf(stderr, "jobs-nccl: %s\n", run->options.cuda ? why : "GPU memory only (--device cuda)");
        exit(2);
    }
}

void library_open(struct jobs_run *run, int *argc, char ***argv)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm;

    (void)argc;
    (void)argv;
    need_gpus(run);
    run->gpu = gpu_of_rank();
    gpu_use(run->gpu);
    run->compute_stream = gpu_stream_new();
    event = gpu_event_new();
    for (int c = 0; c < JOBS_CHANNELS; c++)
        channels[c] = gpu_stream_new();
    config.device = PK_DEVICE_HOST;
    must(pk_comm_init(&comm, &config), "pk_comm_init");
    join(&run->world, comm, WAYS);
}

void library_describe(struct jobs_run *run, char text[JOBS_TEXT_BYTES])
{
    (void)run;
    snprintf(text, JOBS_TEXT_BYTES, "%s", nccl_name());
}

void library_close(struct jobs_run *run)
{
    leave(of(&run->world));
    for (int c = 0; c < JOBS_CHANNELS; c++)
        gpu_stream_free(channels[c]);
}

void library_split(struct jobs_run *run, int color, struct jobs_group *group)
{
    pk_comm_t *comm;

    must(pk_comm_split(of(&run->world)->host, color, run->world.rank, &comm, NULL), "pk_comm_split");
    join(group, comm, 1);
}

void library_join(struct jobs_group *group)
{
    leave(group->handle);
}

static void send_to(const struct jobs_transfer *t, size_t offset, size_t count, int peer, void *comm, gpu_stream_t stream)
{
    call(nccl->ncclSend(t->source + offset, count, NCCL_F32, peer, comm, stream), "ncclSend");
}

static void recv_from(const struct jobs_transfer *t, size_t offset, size_t count, int peer, void *comm, gpu_stream_t stream)
{
    call(nccl->ncclRecv(t->result + offset, count, NCCL_F32, peer, comm, stream), "ncclRecv");
}

static void alltoallv(const struct jobs_transfer *t, void *comm, gpu_stream_t stream)
{
    call(nccl->ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < t->group->size; r++) {
        send_to(t, t->send_offsets[r], t->send_counts[r], r, comm, stream);
        recv_from(t, t->recv_offsets[r], t->recv_counts[r], r, comm, stream);
    }
    call(nccl->ncclGroupEnd(), "ncclGroupEnd");
}

static void exchange(const struct jobs_transfer *t, void *comm, gpu_stream_t stream)
{
    call(nccl->ncclGroupStart(), "ncclGroupStart");
    send_to(t, 0, t->count, t->to, comm, stream);
    recv_from(t, 0, t->count, t->from, comm, stream);
    call(nccl->ncclGroupEnd(), "ncclGroupEnd");
}

static void post(const struct jobs_transfer *t, int channel)
{
    void *comm = of(t->group)->ways[channel * WAYS / JOBS_CHANNELS];
    gpu_stream_t stream = channels[channel];

    switch (t->kind) {
    case JOBS_ALLREDUCE:
        call(nccl->ncclAllReduce(t->source, t->result, t->count, NCCL_F32, NCCL_SUM, comm, stream), "ncclAllReduce");
        break;
    case JOBS_ALLGATHER:
        call(nccl->ncclAllGather(t->source, t->result, t->count, NCCL_F32, comm, stream), "ncclAllGather");
        break;
    case JOBS_REDUCE_SCATTER:
        call(nccl->ncclReduceScatter(t->source, t->result, t->count, NCCL_F32, NCCL_SUM, comm, stream), "ncclReduceScatter");
        break;
    case JOBS_ALLTOALLV:
        alltoallv(t, comm, stream);
        break;
    case JOBS_SEND:
        send_to(t, 0, t->count, t->to, comm, stream);
        break;
    case JOBS_RECV:
        recv_from(t, 0, t->count, t->from, comm, stream);
        break;
    case JOBS_SENDRECV:
        exchange(t, comm, stream);
        break;
    }
}

void library_begin(struct jobs_run *run, const struct jobs_transfer *transfer, int channel)
{
    gpu_event_record(event, run->compute_stream);
    gpu_stream_wait(channels[channel], event);
    post(transfer, channel);
}

void library_wait(struct jobs_run *run, int channel)
{
    gpu_event_record(event, channels[channel]);
    gpu_stream_wait(run->compute_stream, event);
}

static void finish(int channel)
{
    int code = gpu_stream_sync(channels[channel]);

    if (code != 0) {
        fprintf(stderr, "jobs-nccl: the stream failed: %s\n", gpu_error(code));
        exit(1);
    }
}

void library_allreduce(struct jobs_run *run, const void *source, void *result, size_t count, enum jobs_type type)
{
    static const int types[JOBS_TYPES] = { NCCL_F32, NCCL_INT32, NCCL_F64, NCCL_INT64 };

    call(nccl->ncclAllReduce(source, result, count, types[type], NCCL_SUM, of(&run->world)->ways[0], channels[0]),
         "ncclAllReduce");
    finish(0);
}

void library_now(const struct jobs_transfer *transfer)
{
    post(transfer, 0);
    finish(0);
}

void library_share(struct jobs_run *run, const void *value, void *values, size_t bytes)
{
    must(pk_allgather(value, values, bytes, PK_UINT8, of(&run->world)->host, PK_BLOCKING), "exchange of results");
}

int library_least(const struct jobs_group *group, int number)
{
    int32_t own = number, result;

    must(pk_allreduce(&own, &result, 1, PK_INT32, PK_MIN, of(group)->host, PK_BLOCKING), "pk_allreduce");
    return result;
}
