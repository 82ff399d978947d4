/* SPDX-License-Identifier: Apache-2.0 */
/* The same messages by NCCL, opened at run time, at its default settings or by its zero-CTA way; NVLink multicast stays off. */
#include "overlap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/attention_overlap/nccl_calls.h"

enum { WINDOW_SYMMETRIC = 1 };

static const struct nccl_calls *nccl;
static const struct nccl_window_calls *windows; /* NULL: not wanted */
static void *comm, *registered[2];

static void must(int code, const char *what)
{
    if (code != 0)
        overlap_fail("%s: NCCL says: %s", what, nccl->ncclGetErrorString(code));
}

static void post(struct overlap_run *run, const struct overlap_case *c)
{
    size_t count = c->bytes / sizeof(float);
    void *stream = run->message_stream;
    int next = (run->rank + 1) % run->size, before = (run->rank + run->size - 1) % run->size;

    switch (c->operation) {
    case OVERLAP_ALLREDUCE:
        must(nccl->ncclAllReduce(run->source, run->result, count, NCCL_F32, NCCL_SUM, comm, stream), "ncclAllReduce");
        return;
    case OVERLAP_ALLGATHER: /* at the same place of a window on all ranks: out of place */
        must(nccl->ncclAllGather(windows != NULL ? run->source : run->result + (size_t)run->rank * c->bytes, run->result, count,
                                 NCCL_F32, comm, stream),
             "ncclAllGather");
        return;
    default:
        break;
    }
    must(nccl->ncclGroupStart(), "ncclGroupStart");
    if (c->operation == OVERLAP_SENDRECV || run->rank == 0)
        must(nccl->ncclSend(run->source, count, NCCL_F32, next, comm, stream), "ncclSend");
    if (c->operation == OVERLAP_SENDRECV || run->rank == 1)
        must(nccl->ncclRecv(run->result, count, NCCL_F32, before, comm, stream), "ncclRecv");
    must(nccl->ncclGroupEnd(), "ncclGroupEnd");
}

bool overlap_nccl_load(struct overlap_run *run, const char **why)
{
    bool zero = run->options.nccl == OVERLAP_NCCL_ZERO_CTA;

    if (zero)
        setenv("NCCL_CTA_POLICY", "2", 1);
    nccl = nccl_load(getenv("PERF_NCCL_LIBRARY"), why);
    windows = zero && nccl != NULL ? nccl_load_windows() : NULL;
    if (nccl != NULL && zero && windows == NULL)
        *why = "NCCL: it has no windows";
    return overlap_all(run, nccl != NULL && zero == (windows != NULL)); /* one that has it would wait for the others */
}

void *overlap_message_alloc(size_t bytes)
{
    void *memory;

    if (windows == NULL)
        return gpu_alloc(bytes);
    must(windows->ncclMemAlloc(&memory, bytes), "ncclMemAlloc");
    return memory;
}

void overlap_message_free(void *memory)
{
    if (windows == NULL)
        gpu_free(memory);
    else
        must(windows->ncclMemFree(memory), "ncclMemFree");
}

static void register_windows(struct overlap_run *run)
{
    if (windows == NULL)
        return;
    must(windows->ncclCommWindowRegister(comm, run->source, run->source_bytes, &registered[0], WINDOW_SYMMETRIC),
         "ncclCommWindowRegister");
    must(windows->ncclCommWindowRegister(comm, run->result, run->result_bytes, &registered[1], WINDOW_SYMMETRIC),
         "ncclCommWindowRegister");
}

bool overlap_nccl_open(struct overlap_run *run, struct overlap_side *side, const char **why)
{
    static char text[160];
    struct nccl_id own = { { 0 } }, *ids;
    int code;

    ids = calloc((size_t)run->size, sizeof *ids);
    if (ids == NULL)
        abort();
    if (run->rank == 0)
        must(nccl->ncclGetUniqueId(&own), "ncclGetUniqueId");
    overlap_share(run, &own, ids, sizeof own);
    code = nccl->ncclCommInitRank(&comm, run->size, ids[0], run->rank);
    free(ids);
    snprintf(text, sizeof text, "ncclCommInitRank: NCCL says: %s", nccl->ncclGetErrorString(code));
    *why = text;
    if (!overlap_all(run, code == 0))
        return false;
    register_windows(run);
    *side = (struct overlap_side){ .name = windows != NULL ? "NCCL zero" : "NCCL", .post = post };
    snprintf(side->how, sizeof side->how, "%s, %s", nccl_name(),
             windows != NULL ? "symmetric windows, NCCL_CTA_POLICY=2 (zero)" : "default settings");
    return true;
}

void overlap_nccl_close(void)
{
    for (int i = 0; i < 2; i++)
        if (registered[i] != NULL)
            must(windows->ncclCommWindowDeregister(comm, registered[i]), "ncclCommWindowDeregister");
    if (comm != NULL)
        must(nccl->ncclCommDestroy(comm), "ncclCommDestroy");
    comm = NULL;
}
