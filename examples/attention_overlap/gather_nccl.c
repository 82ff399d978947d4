/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values by NCCL, to compare with: ncclAllGather in the stream in which libpickle's end. */
#include "attention.h"

#include "nccl_calls.h"

static struct {
    const struct nccl_calls *calls;
    const struct job *job;
    void *comm, *stream;
} nccl;

static void need(int code, const char *what)
{
    if (code == 0)
        return;
    fprintf(stderr, "attention_overlap: %s: NCCL says: %s\n", what, nccl.calls->ncclGetErrorString(code));
    exit(1);
}

static void begin(void *state, void *parts, size_t elements)
{
    char *own = (char *)parts + (size_t)nccl.job->shape.rank * elements * nccl.job->compute->element_bytes;

    (void)state;
    need(nccl.calls->ncclAllGather(own, parts, elements, NCCL_BF16, nccl.comm, nccl.stream), "ncclAllGather");
}

static void end(void *state)
{
    (void)state;
    must(nccl.job->compute->stream_wait(nccl.job->compute_state), "the stream of the communication");
}

static void fetch(void *state, void *parts, size_t elements)
{
    begin(state, parts, elements);
    end(state);
}

static void close_nccl(void *state)
{
    (void)state;
    need(nccl.calls->ncclCommDestroy(nccl.comm), "ncclCommDestroy");
}

/* All ranks or none: one that has it would wait for the others. */
static bool all(const struct job *job, bool here)
{
    int32_t mine = here, least;

    must(pk_allreduce(&mine, &least, 1, PK_INT32, PK_MIN, job->comm, PK_BLOCKING), "pk_allreduce");
    return least != 0;
}

bool gather_nccl(struct gather *gather, const struct job *job, const char **why)
{
    struct nccl_id id = { { 0 } };
    int code;

    *why = "it is compared with on GPUs";
    if (job->compute->memory != PK_MEM_DEVICE || job->compute->type != PK_BF16)
        return false;
    nccl.calls = nccl_load(NULL, why);
    nccl.job = job;
    nccl.stream = job->compute->stream(job->compute_state).handle;
    if (!all(job, nccl.calls != NULL))
        return false;
    if (job->shape.rank == 0)
        need(nccl.calls->ncclGetUniqueId(&id), "ncclGetUniqueId");
    must(pk_broadcast(&id, &id, sizeof id, PK_UINT8, 0, job->comm, PK_BLOCKING), "pk_broadcast");
    code = nccl.calls->ncclCommInitRank(&nccl.comm, job->shape.ranks, id, job->shape.rank);
    *why = nccl.calls->ncclGetErrorString(code);
    if (!all(job, code == 0))
        return false;
    *gather = (struct gather){ nccl_name(), "ncclAllGather in a stream", NULL, fetch, begin, NULL, end, close_nccl };
    return true;
}
