/* SPDX-License-Identifier: Apache-2.0 */
/* What nccl/abi.h declares is what nccl.h of 2.28.9 declares. */
#include <nccl.h>

#include "abi.h"

#if NCCL_VERSION_CODE != PKN_VERSION
#error "nccl.h is of another version"
#endif

#define SAME(a, b, what) _Static_assert((a) == (b), what)
#define FIELD(theirs, mine) \
    SAME(offsetof(ncclConfig_t, theirs), offsetof(pkn_config_t, mine), #theirs); \
    SAME(sizeof(((ncclConfig_t *)0)->theirs), sizeof(((pkn_config_t *)0)->mine), #theirs)

SAME(sizeof(ncclUniqueId), sizeof(pkn_id_t), "id");
SAME(sizeof(ncclConfig_t), sizeof(pkn_config_t), "config");
SAME(sizeof(ncclSimInfo_t), sizeof(pkn_simulation_t), "simulation");
SAME(sizeof(ncclWindow_t), sizeof(pkn_window_t), "window");
SAME(sizeof(ncclResult_t), sizeof(pkn_result_t), "result");
SAME(sizeof(ncclDataType_t), sizeof(pkn_dtype_t), "type");
SAME(sizeof(ncclRedOp_t), sizeof(pkn_op_t), "operator");
SAME(sizeof(ncclScalarResidence_t), sizeof(pkn_residence_t), "residence");
SAME(sizeof(cudaStream_t), sizeof(pkn_stream_t), "stream");
FIELD(size, size);
FIELD(magic, magic);
FIELD(version, version);
FIELD(blocking, blocking);
FIELD(cgaClusterSize, cga_cluster_size);
FIELD(minCTAs, min_ctas);
FIELD(maxCTAs, max_ctas);
FIELD(netName, net_name);
FIELD(splitShare, split_share);
FIELD(trafficClass, traffic_class);
FIELD(commName, comm_name);
FIELD(collnetEnable, collnet_enable);
FIELD(CTAPolicy, cta_policy);
FIELD(shrinkShare, shrink_share);
FIELD(nvlsCTAs, nvls_ctas);
FIELD(nChannelsPerNetPeer, channels_per_net_peer);
FIELD(nvlinkCentricSched, nvlink_centric_sched);
SAME(offsetof(ncclSimInfo_t, magic), offsetof(pkn_simulation_t, magic), "simulation: magic");
SAME(offsetof(ncclSimInfo_t, version), offsetof(pkn_simulation_t, version), "simulation: version");
SAME(offsetof(ncclSimInfo_t, estimatedTime), offsetof(pkn_simulation_t, estimated_time), "simulation: time");
SAME((int)ncclSuccess, (int)PKN_SUCCESS, "success");
SAME((int)ncclUnhandledCudaError, (int)PKN_CUDA_ERROR, "cuda error");
SAME((int)ncclSystemError, (int)PKN_SYSTEM_ERROR, "system error");
SAME((int)ncclInternalError, (int)PKN_INTERNAL_ERROR, "internal error");
SAME((int)ncclInvalidArgument, (int)PKN_INVALID_ARGUMENT, "invalid argument");
SAME((int)ncclInvalidUsage, (int)PKN_INVALID_USAGE, "invalid usage");
SAME((int)ncclRemoteError, (int)PKN_REMOTE_ERROR, "remote error");
SAME((int)ncclInProgress, (int)PKN_IN_PROGRESS, "in progress");
SAME((int)ncclNumResults, (int)PKN_RESULTS, "results");
SAME((int)ncclSum, (int)PKN_SUM, "sum");
SAME((int)ncclProd, (int)PKN_PROD, "product");
SAME((int)ncclMax, (int)PKN_MAX, "maximum");
SAME((int)ncclMin, (int)PKN_MIN, "minimum");
SAME((int)ncclAvg, (int)PKN_AVG, "average");
SAME((int)ncclNumOps, (int)PKN_OPS, "operators");
SAME((int)ncclMaxRedOp, (int)PKN_OP_LAST, "the last operator");
SAME((int)ncclInt8, (int)PKN_INT8, "int8");
SAME((int)ncclUint8, (int)PKN_UINT8, "uint8");
SAME((int)ncclInt32, (int)PKN_INT32, "int32");
SAME((int)ncclUint32, (int)PKN_UINT32, "uint32");
SAME((int)ncclInt64, (int)PKN_INT64, "int64");
SAME((int)ncclUint64, (int)PKN_UINT64, "uint64");
SAME((int)ncclFloat16, (int)PKN_FLOAT16, "float16");
SAME((int)ncclFloat32, (int)PKN_FLOAT32, "float32");
SAME((int)ncclFloat64, (int)PKN_FLOAT64, "float64");
SAME((int)ncclBfloat16, (int)PKN_BFLOAT16, "bfloat16");
SAME((int)ncclFloat8e4m3, (int)PKN_FLOAT8E4M3, "float8e4m3");
SAME((int)ncclFloat8e5m2, (int)PKN_FLOAT8E5M2, "float8e5m2");
SAME((int)ncclNumTypes, (int)PKN_DTYPES, "types");
SAME((int)ncclScalarDevice, (int)PKN_SCALAR_DEVICE, "scalar of the device");
SAME((int)ncclScalarHostImmediate, (int)PKN_SCALAR_HOST, "scalar of the host");
SAME(NCCL_SPLIT_NOCOLOR, PKN_NOCOLOR, "no color");
SAME(NCCL_WIN_COLL_SYMMETRIC, PKN_WINDOW_SYMMETRIC, "symmetric");
SAME(NCCL_CONFIG_UNDEF_INT, PKN_UNDEFINED, "undefined");

int main(void)
{
    const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const ncclSimInfo_t simulation = NCCL_SIM_INFO_INITIALIZER;

    return config.magic != PKN_CONFIG_MAGIC || simulation.magic != PKN_SIMULATION_MAGIC;
}
