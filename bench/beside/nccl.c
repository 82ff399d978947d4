/* SPDX-License-Identifier: Apache-2.0 */
/* The same messages by NCCL, opened at run time, at its default settings; NVLink multicast stays off. */
#include "beside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/attention_overlap/nccl_calls.h"

static const struct nccl_calls *nccl;
static void *comm;

static void must(int code, const char *what)
{
    if (code != 0)
        beside_fail("%s: NCCL says: %s", what, nccl->ncclGetErrorString(code));
}

static void post(struct beside_run *run, const struct beside_case *c)
{
    size_t count = c->bytes / sizeof(float);
    void *stream = run->message_stream;
    int next = (run->rank + 1) % run->size, before = (run->rank + run->size - 1) % run->size;

    switch (c->operation) {
    case BESIDE_ALLREDUCE: must(nccl->ncclAllReduce(run->source, run->result, count, NCCL_F32, NCCL_SUM, comm, stream), "ncclAllReduce"); return;
    case BESIDE_ALLGATHER:
        must(nccl->ncclAllGather(run->result + (size_t)run->rank * c->bytes, run->result, count, NCCL_F32, comm, stream), "ncclAllGather");
        return;
    default: break;
    }
    must(nccl->ncclGroupStart(), "ncclGroupStart");
    if (c->operation == BESIDE_SENDRECV || run->rank == 0)
        must(nccl->ncclSend(run->source, count, NCCL_F32, next, comm, stream), "ncclSend");
    if (c->operation == BESIDE_SENDRECV || run->rank == 1)
        must(nccl->ncclRecv(run->result, count, NCCL_F32, before, comm, stream), "ncclRecv");
    must(nccl->ncclGroupEnd(), "ncclGroupEnd");
}

bool beside_nccl_open(struct beside_run *run, struct beside_side *side, const char **why)
{
    static char text[160];
    struct nccl_id own = { { 0 } }, *ids;
    int code;

    nccl = nccl_load(getenv("PERF_NCCL_LIBRARY"), why);
    if (!beside_all(run, nccl != NULL)) /* one that has it would wait for the others */
        return false;
    ids = calloc((size_t)run->size, sizeof *ids);
    if (ids == NULL)
        abort();
    if (run->rank == 0)
        must(nccl->ncclGetUniqueId(&own), "ncclGetUniqueId");
    beside_share(run, &own, ids, sizeof own);
    code = nccl->ncclCommInitRank(&comm, run->size, ids[0], run->rank);
    free(ids);
    snprintf(text, sizeof text, "ncclCommInitRank: NCCL says: %s", nccl->ncclGetErrorString(code));
    *why = text;
    if (!beside_all(run, code == 0))
        return false;
    *side = (struct beside_side){ .name = "NCCL", .post = post };
    snprintf(side->how, sizeof side->how, "%s, default settings", nccl_name());
    return true;
}

void beside_nccl_close(void)
{
    if (comm != NULL)
        must(nccl->ncclCommDestroy(comm), "ncclCommDestroy");
    comm = NULL;
}
