/* SPDX-License-Identifier: Apache-2.0 */
#include "perf.h"

static const char *const setting_names[] = { "off", "default", "registered", "zerocta" };

const char *perf_nccl_setting_name(enum perf_nccl_setting setting)
{
    return setting_names[setting];
}

#ifdef PERF_HAVE_NCCL

#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "../examples/attention_overlap/open_library.h"

#define ZERO_CTA_SINCE NCCL_VERSION(2, 28, 0)

struct perf_nccl {
    ncclComm_t comm;
    void *handles[2]; /* of the send and the receive buffer: registrations or windows */
};

static struct calls {
    __typeof__(ncclGetVersion) *ncclGetVersion;
    __typeof__(ncclGetErrorString) *ncclGetErrorString;
    __typeof__(ncclGetLastError) *ncclGetLastError;
    __typeof__(ncclGetUniqueId) *ncclGetUniqueId;
    __typeof__(ncclCommInitRank) *ncclCommInitRank;
    __typeof__(ncclCommInitRankConfig) *ncclCommInitRankConfig;
    __typeof__(ncclCommDestroy) *ncclCommDestroy;
    __typeof__(ncclCommGetAsyncError) *ncclCommGetAsyncError;
    __typeof__(ncclMemAlloc) *ncclMemAlloc;
    __typeof__(ncclMemFree) *ncclMemFree;
    __typeof__(ncclCommRegister) *ncclCommRegister;
    __typeof__(ncclCommDeregister) *ncclCommDeregister;
    __typeof__(ncclCommWindowRegister) *ncclCommWindowRegister;
    __typeof__(ncclCommWindowDeregister) *ncclCommWindowDeregister;
    __typeof__(ncclGroupStart) *ncclGroupStart;
    __typeof__(ncclGroupEnd) *ncclGroupEnd;
    __typeof__(ncclSend) *ncclSend;
    __typeof__(ncclRecv) *ncclRecv;
    __typeof__(ncclAllGather) *ncclAllGather;
    __typeof__(ncclAllReduce) *ncclAllReduce;
    __typeof__(ncclBroadcast) *ncclBroadcast;
    __typeof__(ncclReduce) *ncclReduce;
    __typeof__(ncclReduceScatter) *ncclReduceScatter;
} nccl;

/* In the order of the settings: each needs what stands before it too. */
#define CALL(function) \
    { \
        .name = #function, .offset = offsetof(struct calls, function) \
    }
static const struct library_call entries[] = {
    /* --nccl=default */
    CALL(ncclGetVersion),
    CALL(ncclGetErrorString),
    CALL(ncclGetLastError),
    CALL(ncclGetUniqueId),
    CALL(ncclCommInitRank),
    CALL(ncclCommDestroy),
    CALL(ncclCommGetAsyncError),
    CALL(ncclGroupStart),
    CALL(ncclGroupEnd),
    CALL(ncclSend),
    CALL(ncclRecv),
    CALL(ncclAllGather),
    CALL(ncclAllReduce),
    CALL(ncclBroadcast),
    CALL(ncclReduce),
    CALL(ncclReduceScatter),
    /* --nccl=registered */
    CALL(ncclMemAlloc),
    CALL(ncclMemFree),
    CALL(ncclCommRegister),
    CALL(ncclCommDeregister),
    /* --nccl=zerocta */
    CALL(ncclCommInitRankConfig),
    CALL(ncclCommWindowRegister),
    CALL(ncclCommWindowDeregister),
};
static const size_t needed[] = { [PERF_NCCL_DEFAULT] = 16, [PERF_NCCL_REGISTERED] = 20, [PERF_NCCL_ZERO_CTA] = 23 };

_Static_assert(sizeof entries / sizeof entries[0] == 23, "each call belongs to a setting");

static char library_path[512];
static char library_version[24];

const char *perf_nccl_absent(void)
{
    return NULL;
}

const char *perf_nccl_version(void)
{
    return library_version;
}

const char *perf_nccl_path(void)
{
    return library_path;
}

static void must(ncclResult_t result, ncclComm_t comm, const char *call)
{
    const char *last;

    if (result == ncclSuccess)
        return;
    last = nccl.ncclGetLastError(comm);
    fprintf(stderr, "pickle-perf: %s: NCCL says: %s (%d)%s%s\n", call, nccl.ncclGetErrorString(result), (int)result,
            last != NULL && *last != '\0' ? "; last error: " : "", last != NULL ? last : "");
    exit(1);
}

static void read_version(enum perf_nccl_setting setting)
{
    int version = 0;
    int major_unit;

    must(nccl.ncclGetVersion(&version), NULL, "ncclGetVersion");
    major_unit = version < 10000 ? 1000 : 10000; /* as NCCL_VERSION has it: 2.8 and older are written shorter */
    snprintf(library_version, sizeof library_version, "%d.%d.%d", version / major_unit, version % major_unit / 100,
             version % 100);
    if (setting == PERF_NCCL_ZERO_CTA && version < ZERO_CTA_SINCE) {
        fprintf(stderr, "pickle-perf: --nccl=zerocta needs NCCL 2.28 or newer, %s is %s\n", library_path, library_version);
        exit(2);
    }
}

void perf_nccl_load(enum perf_nccl_setting setting)
{
    char error[512];
    void *library = open_nccl(getenv("PERF_NCCL_LIBRARY"), error, sizeof error);
    const char *missing;
    Dl_info info;

    if (library == NULL) {
        fprintf(stderr, "pickle-perf: NCCL was not found: %s (PERF_NCCL_LIBRARY=/path/to/libnccl.so.2 says where it is)\n",
                error);
        exit(2);
    }
    missing = library_load(library, entries, needed[setting], &nccl);
    if (nccl.ncclGetVersion != NULL && dladdr(*(void **)(void *)&nccl.ncclGetVersion, &info) != 0)
        snprintf(library_path, sizeof library_path, "%s", info.dli_fname);
    if (missing != NULL) {
        fprintf(stderr, "pickle-perf: %s has no %s, which --nccl=%s needs: it is no NCCL, or an older one\n",
                *library_path != '\0' ? library_path : "the NCCL found", missing, setting_names[setting]);
        exit(2);
    }
    read_version(setting);
}

void *perf_nccl_alloc(size_t bytes)
{
    void *buffer = NULL;

    must(nccl.ncclMemAlloc(&buffer, bytes), NULL, "ncclMemAlloc");
    return buffer;
}

void perf_nccl_free(void *buffer)
{
    must(nccl.ncclMemFree(buffer), NULL, "ncclMemFree");
}

/* NCCL gives no handle, and no error either, where a registration would have no effect. */
static void must_have(const void *handle, const char *call)
{
    if (handle != NULL)
        return;
    fprintf(stderr, "pickle-perf: %s gave no handle: here NCCL cannot use registered buffers, or its environment forbids it\n",
            call);
    exit(1);
}

static void *make_known(struct perf_run *run, void *buffer, size_t bytes)
{
    ncclComm_t comm = run->nccl->comm;
    ncclWindow_t window = NULL;
    void *handle = NULL;

    if (run->options.nccl == PERF_NCCL_ZERO_CTA) {
        must(nccl.ncclCommWindowRegister(comm, buffer, bytes, &window, NCCL_WIN_COLL_SYMMETRIC), comm, "ncclCommWindowRegister");
        must_have(window, "ncclCommWindowRegister");
        return window;
    }
    must(nccl.ncclCommRegister(comm, buffer, bytes, &handle), comm, "ncclCommRegister");
    must_have(handle, "ncclCommRegister");
    return handle;
}

/* Rank 0's id, told to all through the library. */
static ncclUniqueId shared_id(struct perf_run *run)
{
    ncclUniqueId id;
    ncclUniqueId *ids = calloc((size_t)run->size, sizeof *ids);

    if (ids == NULL)
        abort();
    memset(&id, 0, sizeof id);
    if (run->rank == 0)
        must(nccl.ncclGetUniqueId(&id), NULL, "ncclGetUniqueId");
    perf_share(run, &id, ids, sizeof id);
    id = ids[0];
    free(ids);
    return id;
}

void perf_nccl_open(struct perf_run *run)
{
    enum perf_nccl_setting setting = run->options.nccl;
    size_t bytes = run->capacity_bytes + PERF_SLACK_BYTES;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id = shared_id(run);
    struct perf_nccl *made = calloc(1, sizeof *made);

    if (made == NULL)
        abort();
    run->nccl = made;
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    if (setting == PERF_NCCL_ZERO_CTA)
        must(nccl.ncclCommInitRankConfig(&made->comm, run->size, id, run->rank, &config), NULL, "ncclCommInitRankConfig");
    else
        must(nccl.ncclCommInitRank(&made->comm, run->size, id, run->rank), NULL, "ncclCommInitRank");
    if (setting > PERF_NCCL_DEFAULT) {
        made->handles[0] = make_known(run, run->send_buffer, bytes);
        made->handles[1] = make_known(run, run->recv_buffer, bytes);
    }
}

void perf_nccl_close(struct perf_run *run)
{
    struct perf_nccl *made = run->nccl;

    for (int i = 0; i < 2; i++) {
        if (run->options.nccl == PERF_NCCL_ZERO_CTA)
            must(nccl.ncclCommWindowDeregister(made->comm, made->handles[i]), made->comm, "ncclCommWindowDeregister");
        else if (run->options.nccl == PERF_NCCL_REGISTERED)
            must(nccl.ncclCommDeregister(made->comm, made->handles[i]), made->comm, "ncclCommDeregister");
    }
    must(nccl.ncclCommDestroy(made->comm), NULL, "ncclCommDestroy");
    free(made);
    run->nccl = NULL;
}

static ncclDataType_t type_of(const struct perf_run *run)
{
    static const ncclDataType_t types[PK_DTYPE_COUNT] = {
        [PK_INT8] = ncclInt8,   [PK_UINT8] = ncclUint8,   [PK_INT32] = ncclInt32,       [PK_UINT32] = ncclUint32,
        [PK_INT64] = ncclInt64, [PK_UINT64] = ncclUint64, [PK_F16] = ncclFloat16,       [PK_BF16] = ncclBfloat16,
        [PK_F32] = ncclFloat32, [PK_F64] = ncclFloat64,   [PK_F8E4M3] = ncclFloat8e4m3, [PK_F8E5M2] = ncclFloat8e5m2,
    };

    return types[run->options.dtype];
}

static void group_start(void)
{
    must(nccl.ncclGroupStart(), NULL, "ncclGroupStart");
}

static void group_end(void)
{
    must(nccl.ncclGroupEnd(), NULL, "ncclGroupEnd");
}

static void send_to(struct perf_run *run, const void *buffer, size_t count, int peer)
{
    ncclComm_t comm = run->nccl->comm;

    must(nccl.ncclSend(buffer, count, type_of(run), peer, comm, run->stream.handle), comm, "ncclSend");
}

static void receive_from(struct perf_run *run, void *buffer, size_t count, int peer)
{
    ncclComm_t comm = run->nccl->comm;

    must(nccl.ncclRecv(buffer, count, type_of(run), peer, comm, run->stream.handle), comm, "ncclRecv");
}

/* What NCCL has no call for is a group of sends and receives. */
static void collective(struct perf_run *run, const struct perf_size *size, const void *source, void *result)
{
    static const ncclRedOp_t reductions[] = { ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg }; /* in the order of PK_SUM */
    ncclRedOp_t op = reductions[run->options.reduction];
    ncclComm_t comm = run->nccl->comm;
    ncclDataType_t type = type_of(run);
    cudaStream_t stream = run->stream.handle;
    size_t n = size->count;
    ncclResult_t code;

    switch (run->options.op) {
    case PERF_BROADCAST:
        code = nccl.ncclBroadcast(source, result, n, type, run->root, comm, stream);
        break;
    case PERF_REDUCE:
        code = nccl.ncclReduce(source, result, n, type, op, run->root, comm, stream);
        break;
    case PERF_ALLREDUCE:
        code = nccl.ncclAllReduce(source, result, n, type, op, comm, stream);
        break;
    case PERF_REDUCE_SCATTER:
        code = nccl.ncclReduceScatter(source, result, n, type, op, comm, stream);
        break;
    case PERF_ALLGATHER:
        code = nccl.ncclAllGather(source, result, n, type, comm, stream);
        break;
    default:
        perf_exchange(run, source, result);
        return;
    }
    must(code, comm, perf_operation(run->options.op)->name);
}

static void must_be_well(struct perf_run *run)
{
    ncclResult_t state = ncclSuccess;

    must(nccl.ncclCommGetAsyncError(run->nccl->comm, &state), run->nccl->comm, "ncclCommGetAsyncError");
    must(state, run->nccl->comm, "operation in the stream");
}

const struct perf_library perf_nccl = {
    .group_start = group_start,
    .group_end = group_end,
    .send = send_to,
    .receive = receive_from,
    .collective = collective,
    .must_be_well = must_be_well,
};

#else /* built without nccl.h: perf_parse refuses --nccl, so that nothing below is reached with it */

#include <stdlib.h>

const struct perf_library perf_nccl = { .send = NULL };

const char *perf_nccl_absent(void)
{
    return "--nccl: this pickle-perf was built without nccl.h (2.28 or newer) and the CUDA headers";
}

void perf_nccl_load(enum perf_nccl_setting setting)
{
    (void)setting;
    abort();
}

void *perf_nccl_alloc(size_t bytes)
{
    (void)bytes;
    abort();
}

void perf_nccl_free(void *buffer)
{
    (void)buffer;
    abort();
}

void perf_nccl_open(struct perf_run *run)
{
    (void)run;
    abort();
}

void perf_nccl_close(struct perf_run *run)
{
    (void)run;
    abort();
}

const char *perf_nccl_version(void)
{
    return "";
}

const char *perf_nccl_path(void)
{
    return "";
}

#endif
