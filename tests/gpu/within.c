/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines of single calls in CUDA streams: an operation that the other rank does not call ends by its own deadline, long
 * before the communicator's; its stream goes on; and the error names who is missing. What is captured cannot have one.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define TIMEOUT_MS 120000
#define CALL_MS 400
#define COUNT ((size_t)1 << 18)

static pk_result_t settled(pk_comm_t *comm)
{
    const double until = monotonic_ms() + TIMEOUT_MS;
    pk_result_t result = PK_OK;

    while (result == PK_OK && monotonic_ms() < until) {
        result = pk_comm_async_error(comm);
        usleep(1000);
    }
    return result;
}

/* Rank 0 calls, and rank 1 does not. */
static void waits_in_vain(struct gpu_rank *self, bool collective, float *in, float *out)
{
    pk_comm_t *comm = gpu_rank_another(self, TIMEOUT_MS);
    const pk_stream_t stream = PK_WITHIN(self->in_stream, CALL_MS);
    const char *what = collective ? "an allreduce" : "a receive";
    pk_error_info_t info = { .struct_size = sizeof info };
    const double begin = monotonic_ms();
    pk_result_t result;
    double took;

    if (self->rank == 0) {
        result = collective ? pk_allreduce(in, out, COUNT, PK_F32, PK_SUM, comm, stream)
                            : pk_recv(out, COUNT, PK_F32, 1, comm, stream);
        if (result == PK_OK)
            result = settled(comm);
        took = monotonic_ms() - begin;
        pk_last_error(&info);
        report(result == PK_ERR_TIMEOUT && info.peer == 1, "%s: %s, peer %d: %.200s", what, pk_strerror(result), info.peer,
               info.text);
        report(took > CALL_MS - 2 && took < TIMEOUT_MS / 2, "%s: not before its deadline, and before the communicator's", what);
        report(stream_idle_within(self->stream, TIMEOUT_MS, NULL), "%s: the stream goes on", what);
    }
    ranks_meet();
    (void)pk_comm_destroy(comm);
}

/* In time. */
static void comes(struct gpu_rank *self, float *in, float *out)
{
    must_be_ok(pk_allreduce(in, out, COUNT, PK_F32, PK_SUM, self->comm, PK_WITHIN(self->in_stream, TIMEOUT_MS)), "pk_allreduce");
    report(stream_idle_within(self->stream, TIMEOUT_MS, NULL) && pk_comm_async_error(self->comm) == PK_OK,
           "rank %d: an allreduce in time", self->rank);
}

static void captured(struct gpu_rank *self, float *in, float *out)
{
    gpu_graph_t graph = NULL;
    pk_result_t result;

    gpu_capture_begin(self->stream);
    result = pk_allreduce(in, out, COUNT, PK_F32, PK_SUM, self->comm, PK_WITHIN(self->in_stream, CALL_MS));
    report(gpu_capture_end(self->stream, &graph) == 0 && result == PK_ERR_UNSUPPORTED,
           "rank %d: what is captured has no deadline of its own: %s", self->rank, pk_strerror(result));
    gpu_graph_free(graph);
}

static int rank_main(void)
{
    struct gpu_rank self;
    float *in, *out;

    gpu_rank_open(&self, PK_SM_DEFAULT, TIMEOUT_MS);
    in = gpu_alloc(COUNT * sizeof(float));
    out = gpu_alloc(COUNT * sizeof(float));
    comes(&self, in, out);
    captured(&self, in, out);
    waits_in_vain(&self, false, in, out);
    waits_in_vain(&self, true, in, out);
    gpu_rank_close(&self);
    gpu_free(in);
    gpu_free(out);
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "within", 2 * TIMEOUT_MS, "deadlines of calls");
}
