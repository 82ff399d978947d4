/* SPDX-License-Identifier: Apache-2.0 */
/* What is refused, with which code and a text that says why; and that a group in which a call was refused does nothing. */
#include <pthread.h>

#include "bed.h"

#define COUNT ((size_t)64)

static pkn_comm_t comms[2];
static gpu_stream_t stream;
static float *buffer;

static void refused(pkn_result_t got, pkn_result_t expected, const char *part, const char *what)
{
    check(got == expected && strstr(ncclGetLastError(NULL), part) != NULL, "%s: %d: %s", what, (int)got, ncclGetLastError(NULL));
}

static void operations(void)
{
    const pkn_op_t no_op = (pkn_op_t)77;
    const pkn_dtype_t no_dtype = (pkn_dtype_t)12;

    refused(ncclAllReduce(buffer, buffer, 1, PKN_FLOAT32, PKN_SUM, NULL, stream), PKN_INVALID_ARGUMENT, "NULL",
            "no communicator");
    refused(ncclAllReduce(buffer, buffer, 1, no_dtype, PKN_SUM, comms[0], stream), PKN_INVALID_ARGUMENT, "datatype is 12",
            "no type");
    refused(ncclAllReduce(buffer, buffer, 1, PKN_FLOAT32, no_op, comms[0], stream), PKN_INVALID_ARGUMENT, "operator 77",
            "no operator");
    refused(ncclAllReduce(NULL, buffer, 1, PKN_FLOAT32, PKN_SUM, comms[0], stream), PKN_INVALID_ARGUMENT, "null", "no buffer");
    refused(ncclBroadcast(buffer, buffer, 1, PKN_FLOAT32, 2, comms[0], stream), PKN_INVALID_ARGUMENT, "root 2 of 2", "no root");
    refused(ncclBroadcast(buffer, buffer, 0, PKN_FLOAT32, -1, comms[0], stream), PKN_INVALID_ARGUMENT, "root -1",
            "no root, of nothing");
    refused(ncclSend(buffer, 1, PKN_FLOAT32, 2, comms[0], stream), PKN_INVALID_ARGUMENT, "peer 2 of 2", "no peer");
    refused(ncclRecv(buffer, 1, PKN_FLOAT32, -1, comms[0], stream), PKN_INVALID_ARGUMENT, "peer -1", "no peer");
}

static void configs(void)
{
    pkn_config_t config;
    pkn_comm_t comm = NULL;
    pkn_id_t id;

    memset(&id, 0, sizeof id);
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    refused(ncclCommInitRankConfig(&comm, 1, id, 0, &config), PKN_INVALID_ARGUMENT, "magic", "a config without its magic");
    config.magic = PKN_CONFIG_MAGIC;
    config.version = PKN_VERSION;
    config.blocking = 2;
    refused(ncclCommInitRankConfig(&comm, 1, id, 0, &config), PKN_INVALID_ARGUMENT, "config.blocking is 2", "blocking");
    config.blocking = 1;
    config.min_ctas = 3;
    config.max_ctas = 2;
    refused(ncclCommInitRankConfig(&comm, 1, id, 0, &config), PKN_INVALID_ARGUMENT, "minCTAs is 3", "CTAs");
    config.version = 21600; /* had no CTAs: what lies there is anything */
    refused(ncclCommInitRankConfig(&comm, 1, id, 0, &config), PKN_INVALID_ARGUMENT, "did not make this id",
            "an older config is taken; but the id is none of its own");
    config.size = 24; /* a version that ended behind `blocking` */
    config.version = 21400;
    refused(ncclCommInitRankConfig(&comm, 1, id, 0, &config), PKN_INVALID_ARGUMENT, "did not make this id",
            "a short config is taken");
    refused(ncclCommInitRank(&comm, 0, id, 0), PKN_INVALID_ARGUMENT, "rank 0 of 0", "no ranks");
    refused(ncclCommInitRank(&comm, 2, id, 2), PKN_INVALID_ARGUMENT, "rank 2 of 2", "no such rank");
    refused(ncclCommInitRank(NULL, 1, id, 0), PKN_INVALID_ARGUMENT, "NULL", "no place for a communicator");
    refused(ncclCommInitRankScalable(&comm, 2, 0, 3, &id, NULL), PKN_INVALID_ARGUMENT, "3 ids for 2", "too many ids");
    refused(ncclGetUniqueId(NULL), PKN_INVALID_ARGUMENT, "NULL", "no place for an id");
    check(comm == NULL, "no communicator came of it");
}

static void devices(void)
{
    static const int twice[] = { 1, 1 }, beyond[] = { 0, 9 };
    pkn_comm_t some[2];

    refused(ncclCommInitAll(some, 2, twice), PKN_INVALID_USAGE, "device 1 is in the list twice", "a device twice");
    refused(ncclCommInitAll(some, 2, beyond), PKN_INVALID_ARGUMENT, "device 9 of", "a device that is not there");
}

static void unsupported(void)
{
    pkn_comm_t made = NULL;
    pkn_id_t id;
    uint64_t value;
    int excluded = 1;

    refused(ncclCommShrink(comms[0], &excluded, 1, &made, NULL, 6), PKN_INVALID_ARGUMENT, "shrinkFlags are 0x6", "shrink");
    refused(ncclCommRevoke(comms[0], 2), PKN_INVALID_ARGUMENT, "revokeFlags are 0x2", "revoke");
    refused(ncclCommGrow(comms[0], 3, &id, 2, &made, NULL), PKN_INVALID_ARGUMENT, "rank is 2", "grow");
    refused(ncclCommMemStats(comms[0], 0, &value), PKN_INVALID_USAGE, "ncclCommMemStats", "statistics");
    refused(ncclSignal(1, 0, 0, 0, comms[0], stream), PKN_INVALID_USAGE, "ncclSignal", "signal");
    refused(ncclDevCommCreate(comms[0], NULL, NULL), PKN_INVALID_USAGE, "ncclDevCommCreate", "the device API");
    check(ncclTeamWorld(comms[1]).ranks == 2 && ncclTeamWorld(comms[1]).rank == 1 && ncclTeamLsa(comms[1]).ranks == 1, "teams");
}

static void operators(void)
{
    pkn_op_t op = PKN_SUM;
    float scalar = 2;

    refused(ncclRedOpDestroy(PKN_SUM, comms[0]), PKN_INVALID_ARGUMENT, "NCCL's own", "a sum cannot be destroyed");
    refused(ncclRedOpDestroy((pkn_op_t)9, comms[0]), PKN_INVALID_ARGUMENT, "no operator 9", "none of this number");
    refused(ncclRedOpCreatePreMulSum(&op, NULL, PKN_FLOAT32, PKN_SCALAR_HOST, comms[0]), PKN_INVALID_ARGUMENT, "scalar is NULL",
            "no scalar");
    refused(ncclRedOpCreatePreMulSum(&op, &scalar, PKN_FLOAT32, (pkn_residence_t)3, comms[0]), PKN_INVALID_ARGUMENT, "is 3",
            "no residence");
}

/* Sums of products. The operator is destroyed before the group ends. */
static void products(pkn_residence_t residence)
{
    float host[COUNT], scalar[2] = { 2, 3 };
    float *buffers[2], *scalars[2] = { &scalar[0], &scalar[1] };
    gpu_stream_t streams[2];
    pkn_op_t ops[2];
    bool right = true;

    for (size_t i = 0; i < COUNT; i++)
        host[i] = 1;
    MUST(ncclGroupStart());
    for (int g = 0; g < 2; g++) {
        gpu_use(g);
        streams[g] = gpu_stream_new();
        buffers[g] = bed_upload(host, COUNT);
        if (residence == PKN_SCALAR_DEVICE)
            scalars[g] = bed_upload(&scalar[g], 1);
        MUST(ncclRedOpCreatePreMulSum(&ops[g], scalars[g], PKN_FLOAT32, residence, comms[g]));
        check((int)ops[g] >= PKN_OPS, "operator %d", (int)ops[g]);
        refused(ncclAllReduce(buffers[g], buffers[g], 0, PKN_FLOAT64, ops[g], comms[g], streams[g]), PKN_INVALID_ARGUMENT,
                "is for datatype 7", "the operator's type is another");
    }
    check(ncclGroupEnd() == PKN_INVALID_ARGUMENT, "the group says so too");
    MUST(ncclGroupStart());
    for (int g = 0; g < 2; g++) {
        MUST(ncclAllReduce(buffers[g], buffers[g], COUNT, PKN_FLOAT32, ops[g], comms[g], streams[g]));
        MUST(ncclRedOpDestroy(ops[g], comms[g]));
    }
    MUST(ncclGroupEnd());
    for (int g = 0; g < 2; g++) {
        gpu_use(g);
        right = right && bed_idle(streams[g]);
        bed_download(host, buffers[g], COUNT);
        for (size_t i = 0; i < COUNT; i++)
            right = right && host[i] == 5;
    }
    check(right, "sums of products by scalars of the %s", residence == PKN_SCALAR_DEVICE ? "device" : "host");
    gpu_use(0);
}

static void groups(void)
{
    pkn_comm_t comm = NULL;
    pkn_id_t id;
    float before = 0, after = 0;

    refused(ncclGroupEnd(), PKN_INVALID_USAGE, "no group is open", "an end without a start");
    MUST(ncclGetUniqueId(&id));
    gpu_copy(&before, buffer, sizeof before);
    MUST(ncclGroupStart());
    MUST(ncclCommInitRank(&comm, 1, id, 0));
    MUST(ncclAllReduce(buffer, buffer, COUNT, PKN_FLOAT32, PKN_SUM, comms[0], stream)); /* the other rank does not call it */
    check(ncclAllReduce(buffer, buffer, COUNT, (pkn_dtype_t)-1, PKN_SUM, comms[0], stream) == PKN_INVALID_ARGUMENT,
          "a call in a group is refused");
    check(ncclGroupEnd() == PKN_INVALID_ARGUMENT, "and so is the group");
    check(comm == NULL, "no communicator was made");
    check(bed_idle(stream), "nothing was begun");
    gpu_copy(&after, buffer, sizeof after);
    check(before == after, "nothing was moved");
    MUST(ncclGroupStart());
    MUST(ncclGroupEnd());
}

static const char *seen;

static void *look(void *arg)
{
    (void)arg;
    seen = ncclGetLastError(NULL);
    return NULL;
}

static void last_error(void)
{
    pthread_t thread;

    (void)ncclCommInitAll(NULL, 1, NULL);
    if (pthread_create(&thread, NULL, look, NULL) != 0)
        exit(2);
    pthread_join(thread, NULL);
    check(strcmp(seen, "comm is NULL") == 0, "the last error is seen from another thread: %s", seen);
    check(strcmp(ncclGetErrorString(PKN_SUCCESS), "no error") == 0 && ncclGetErrorString((pkn_result_t)99) != NULL,
          "results have texts");
}

/* On a machine without a GPU. */
static int without_device(void)
{
    pkn_comm_t comm = NULL;
    pkn_id_t id;

    memset(&id, 0, sizeof id);
    refused(ncclCommInitRank(&comm, 1, id, 0), PKN_CUDA_ERROR, "", "no device");
    refused(ncclCommInitAll(&comm, 1, NULL), PKN_CUDA_ERROR, "", "no device for all");
    check(comm == NULL && strlen(ncclGetLastError(NULL)) > 0, "it is said why: %s", ncclGetLastError(NULL));
    return bed_end();
}

static int start_without_device(void)
{
    int code;

    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    code = bed_wait(bed_start("without_device", 0));
    unsetenv("CUDA_VISIBLE_DEVICES");
    return code;
}

int main(void)
{
    int version = 0, number, without;

    if (bed_role(&number) != NULL)
        return without_device();
    without = start_without_device();
    check(without == 0, "a process that sees no device: %d", without);
    MUST(ncclGetVersion(&version));
    check(version == 22809, "the version is %d", version);
    if (!bed_has_gpus(2))
        return BED_SKIPPED;
    gpu_use(0);
    stream = gpu_stream_new();
    buffer = gpu_alloc(COUNT * sizeof *buffer);
    gpu_fill(buffer, 0x3f, COUNT * sizeof *buffer);
    MUST(ncclCommInitAll(comms, 2, NULL));
    operations();
    configs();
    devices();
    unsupported();
    operators();
    products(PKN_SCALAR_HOST);
    products(PKN_SCALAR_DEVICE);
    groups();
    last_error();
    MUST(ncclCommDestroy(comms[0]));
    MUST(ncclCommDestroy(comms[1]));
    return bed_end();
}
