/* SPDX-License-Identifier: Apache-2.0 */
/* The same messages by NCCL, opened at run time, at its default settings; NVLink multicast stays off. The numbers are those of nccl.h. */
#include "beside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/attention_overlap/open_library.h"

enum { ID_BYTES = 128, F32 = 7, SUM = 0 };

struct id {
    char bytes[ID_BYTES];
};

static struct calls {
    int (*ncclGetVersion)(int *version);
    const char *(*ncclGetErrorString)(int code);
    int (*ncclGetUniqueId)(struct id *id);
    int (*ncclCommInitRank)(void **comm, int size, struct id id, int rank);
    int (*ncclCommDestroy)(void *comm);
    int (*ncclGroupStart)(void);
    int (*ncclGroupEnd)(void);
    int (*ncclSend)(const void *buffer, size_t count, int type, int peer, void *comm, void *stream);
    int (*ncclRecv)(void *buffer, size_t count, int type, int peer, void *comm, void *stream);
    int (*ncclAllGather)(const void *source, void *result, size_t count, int type, void *comm, void *stream);
    int (*ncclAllReduce)(const void *source, void *result, size_t count, int type, int op, void *comm, void *stream);
} nccl;

#define CALL(name) { #name, offsetof(struct calls, name) }
static const struct library_call calls[] = {
    CALL(ncclGetVersion), CALL(ncclGetErrorString), CALL(ncclGetUniqueId), CALL(ncclCommInitRank), CALL(ncclCommDestroy), CALL(ncclGroupStart),
    CALL(ncclGroupEnd),   CALL(ncclSend),           CALL(ncclRecv),        CALL(ncclAllGather),    CALL(ncclAllReduce),
};

static void *comm;

static void must(int code, const char *what)
{
    if (code != 0)
        beside_fail("%s: NCCL says: %s", what, nccl.ncclGetErrorString(code));
}

static void post(struct beside_run *run, const struct beside_case *c)
{
    size_t count = c->bytes / sizeof(float);
    void *stream = run->message_stream;
    int next = (run->rank + 1) % run->size, before = (run->rank + run->size - 1) % run->size;

    switch (c->operation) {
    case BESIDE_ALLREDUCE: must(nccl.ncclAllReduce(run->source, run->result, count, F32, SUM, comm, stream), "ncclAllReduce"); return;
    case BESIDE_ALLGATHER:
        must(nccl.ncclAllGather(run->result + (size_t)run->rank * c->bytes, run->result, count, F32, comm, stream), "ncclAllGather");
        return;
    default: break;
    }
    must(nccl.ncclGroupStart(), "ncclGroupStart");
    if (c->operation == BESIDE_SENDRECV || run->rank == 0)
        must(nccl.ncclSend(run->source, count, F32, next, comm, stream), "ncclSend");
    if (c->operation == BESIDE_SENDRECV || run->rank == 1)
        must(nccl.ncclRecv(run->result, count, F32, before, comm, stream), "ncclRecv");
    must(nccl.ncclGroupEnd(), "ncclGroupEnd");
}

/* All ranks or none: one that has it would wait for the others. */
static bool load(struct beside_run *run, const char **why)
{
    static char error[256], text[320];
    void *library;
    const char *missing = NULL;
    bool here;

    setenv("NCCL_NVLS_ENABLE", "0", 1); /* NCCL reads it when it is first called */
    library = library_open(getenv("PERF_NCCL_LIBRARY"), "libnccl.so.2", error, sizeof error);
    if (library != NULL)
        missing = library_load(library, calls, sizeof calls / sizeof calls[0], &nccl);
    here = library != NULL && missing == NULL;
    snprintf(text, sizeof text, "NCCL: %s", here ? "another rank has none" : missing != NULL ? missing : error);
    *why = text;
    return beside_all(run, here);
}

bool beside_nccl_open(struct beside_run *run, struct beside_side *side, const char **why)
{
    static char text[160];
    struct id own = { { 0 } }, *ids;
    int version = 0, code;

    if (!load(run, why))
        return false;
    ids = calloc((size_t)run->size, sizeof *ids);
    if (ids == NULL)
        abort();
    if (run->rank == 0)
        must(nccl.ncclGetUniqueId(&own), "ncclGetUniqueId");
    beside_share(run, &own, ids, sizeof own);
    code = nccl.ncclCommInitRank(&comm, run->size, ids[0], run->rank);
    free(ids);
    snprintf(text, sizeof text, "ncclCommInitRank: NCCL says: %s", nccl.ncclGetErrorString(code));
    *why = text;
    if (!beside_all(run, code == 0))
        return false;
    must(nccl.ncclGetVersion(&version), "ncclGetVersion");
    *side = (struct beside_side){ .name = "NCCL", .post = post };
    snprintf(side->how, sizeof side->how, "NCCL %d.%d.%d, default settings", version / 10000, version / 100 % 100, version % 100);
    return true;
}

void beside_nccl_close(void)
{
    if (comm != NULL)
        must(nccl.ncclCommDestroy(comm), "ncclCommDestroy");
    comm = NULL;
}
