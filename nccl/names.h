/* SPDX-License-Identifier: Apache-2.0 */
/* Every function that libnccl.so.2 has: ncclX, weak, so that a profiler may put itself before it, and pncclX, which does the
 * work. */
#ifndef PKN_NAMES_H
#define PKN_NAMES_H

#include "abi.h"

#pragma GCC visibility push(default)

#define PKN_FUNCTION(type, name, parameters) \
    type nccl##name parameters; \
    type pnccl##name parameters

/* Behind the definition of pncclX: ncclX is the same function. */
#define PKN_TWIN(name) extern __typeof__(pnccl##name) nccl##name __attribute__((weak, alias("pnccl" #name)))

/* ---- about the library ---- */
PKN_FUNCTION(pkn_result_t, GetVersion, (int *version));
PKN_FUNCTION(const char *, GetErrorString, (pkn_result_t result));
PKN_FUNCTION(const char *, GetLastError, (pkn_comm_t comm));
PKN_FUNCTION(void, ResetDebugInit, (void));

/* ---- communicators ---- */
PKN_FUNCTION(pkn_result_t, GetUniqueId, (pkn_id_t * id));
PKN_FUNCTION(pkn_result_t, CommInitRank, (pkn_comm_t * comm, int ranks, pkn_id_t id, int rank));
PKN_FUNCTION(pkn_result_t, CommInitRankConfig, (pkn_comm_t * comm, int ranks, pkn_id_t id, int rank, pkn_config_t *config));
PKN_FUNCTION(pkn_result_t, CommInitRankScalable,
             (pkn_comm_t * comm, int ranks, int rank, int ids, pkn_id_t *id, pkn_config_t *config));
PKN_FUNCTION(pkn_result_t, CommInitAll, (pkn_comm_t * comms, int devices, const int *list));
PKN_FUNCTION(pkn_result_t, CommSplit, (pkn_comm_t comm, int color, int key, pkn_comm_t *made, pkn_config_t *config));
PKN_FUNCTION(pkn_result_t, CommShrink,
             (pkn_comm_t comm, int *excluded, int count, pkn_comm_t *made, pkn_config_t *config, int flags));
PKN_FUNCTION(pkn_result_t, CommFinalize, (pkn_comm_t comm));
PKN_FUNCTION(pkn_result_t, CommDestroy, (pkn_comm_t comm));
PKN_FUNCTION(pkn_result_t, CommAbort, (pkn_comm_t comm));
PKN_FUNCTION(pkn_result_t, CommRevoke, (pkn_comm_t comm, int flags));
PKN_FUNCTION(pkn_result_t, CommGetAsyncError, (pkn_comm_t comm, pkn_result_t *error));
PKN_FUNCTION(pkn_result_t, CommCount, (pkn_comm_t comm, int *count));
PKN_FUNCTION(pkn_result_t, CommCuDevice, (pkn_comm_t comm, int *device));
PKN_FUNCTION(pkn_result_t, CommUserRank, (pkn_comm_t comm, int *rank));

/* ---- memory ---- */
PKN_FUNCTION(pkn_result_t, MemAlloc, (void **ptr, size_t bytes));
PKN_FUNCTION(pkn_result_t, MemFree, (void *ptr));
PKN_FUNCTION(pkn_result_t, CommRegister, (pkn_comm_t comm, void *buffer, size_t bytes, void **handle));
PKN_FUNCTION(pkn_result_t, CommDeregister, (pkn_comm_t comm, void *handle));
PKN_FUNCTION(pkn_result_t, CommWindowRegister, (pkn_comm_t comm, void *buffer, size_t bytes, pkn_window_t *window, int flags));
PKN_FUNCTION(pkn_result_t, CommWindowDeregister, (pkn_comm_t comm, pkn_window_t window));

/* ---- operators ---- */
PKN_FUNCTION(pkn_result_t, RedOpCreatePreMulSum,
             (pkn_op_t * op, void *scalar, pkn_dtype_t dtype, pkn_residence_t residence, pkn_comm_t comm));
PKN_FUNCTION(pkn_result_t, RedOpDestroy, (pkn_op_t op, pkn_comm_t comm));

/* ---- operations ---- */
PKN_FUNCTION(pkn_result_t, Reduce,
             (const void *in, void *out, size_t count, pkn_dtype_t dtype, pkn_op_t op, int root, pkn_comm_t comm,
              pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, Bcast,
             (void *buffer, size_t count, pkn_dtype_t dtype, int root, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, Broadcast,
             (const void *in, void *out, size_t count, pkn_dtype_t dtype, int root, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, AllReduce,
             (const void *in, void *out, size_t count, pkn_dtype_t dtype, pkn_op_t op, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, ReduceScatter,
             (const void *in, void *out, size_t count, pkn_dtype_t dtype, pkn_op_t op, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, AllGather,
             (const void *in, void *out, size_t count, pkn_dtype_t dtype, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, AlltoAll,
             (const void *in, void *out, size_t count, pkn_dtype_t dtype, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, Gather,
             (const void *in, void *out, size_t count, pkn_dtype_t dtype, int root, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, Scatter,
             (const void *in, void *out, size_t count, pkn_dtype_t dtype, int root, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, Send,
             (const void *in, size_t count, pkn_dtype_t dtype, int peer, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, Recv, (void *out, size_t count, pkn_dtype_t dtype, int peer, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, GroupStart, (void));
PKN_FUNCTION(pkn_result_t, GroupEnd, (void));
PKN_FUNCTION(pkn_result_t, GroupSimulateEnd, (pkn_simulation_t * simulation));

/* ---- the host's side of the device API ---- */
PKN_FUNCTION(pkn_result_t, DevCommCreate, (pkn_comm_t comm, const void *requirements, void *made));
PKN_FUNCTION(pkn_result_t, DevCommDestroy, (pkn_comm_t comm, const void *made));
PKN_FUNCTION(pkn_result_t, GinBarrierCreateRequirement,
             (pkn_comm_t comm, pkn_team_t team, int barriers, void *handle, void *requirement));
PKN_FUNCTION(pkn_result_t, LsaBarrierCreateRequirement, (pkn_team_t team, int barriers, void *handle, void *requirement));
PKN_FUNCTION(pkn_result_t, LLA2ACreateRequirement, (int blocks, int slots, void *handle, void *requirement));
PKN_FUNCTION(int, LLA2ACalcSlots, (int elements, int element_bytes));
PKN_FUNCTION(pkn_team_t, TeamWorld, (pkn_comm_t comm));
PKN_FUNCTION(pkn_team_t, TeamLsa, (pkn_comm_t comm));
PKN_FUNCTION(pkn_team_t, TeamRail, (pkn_comm_t comm));
PKN_FUNCTION(int, TeamRankToWorld, (pkn_comm_t comm, pkn_team_t team, int rank));
PKN_FUNCTION(int, TeamRankToLsa, (pkn_comm_t comm, pkn_team_t team, int rank));

/* ---- of NCCL 2.29 and 2.30 ---- */
PKN_FUNCTION(pkn_result_t, CommQueryProperties, (pkn_comm_t comm, void *properties));
PKN_FUNCTION(pkn_result_t, CommGetUniqueId, (pkn_comm_t comm, pkn_id_t *id));
PKN_FUNCTION(pkn_result_t, CommGrow,
             (pkn_comm_t comm, int ranks, const pkn_id_t *id, int rank, pkn_comm_t *made, pkn_config_t *config));
PKN_FUNCTION(pkn_result_t, CommSuspend, (pkn_comm_t comm, int flags));
PKN_FUNCTION(pkn_result_t, CommResume, (pkn_comm_t comm));
PKN_FUNCTION(pkn_result_t, CommMemStats, (pkn_comm_t comm, int statistic, uint64_t *value));
PKN_FUNCTION(pkn_result_t, PutSignal,
             (const void *buffer, size_t count, pkn_dtype_t dtype, int peer, pkn_window_t window, size_t offset, int signal,
              int context, unsigned flags, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, Signal, (int peer, int signal, int context, unsigned flags, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, WaitSignal, (int count, void *signals, pkn_comm_t comm, pkn_stream_t stream));
PKN_FUNCTION(pkn_result_t, WinGetUserPtr, (pkn_comm_t comm, pkn_window_t window, void **ptr));
PKN_FUNCTION(pkn_result_t, GetLsaMultimemDevicePointer, (pkn_window_t window, size_t offset, void **ptr));
PKN_FUNCTION(pkn_result_t, GetMultimemDevicePointer, (pkn_window_t window, size_t offset, void *multimem, void **ptr));
PKN_FUNCTION(pkn_result_t, GetLsaDevicePointer, (pkn_window_t window, size_t offset, int rank, void **ptr));
PKN_FUNCTION(pkn_result_t, GetPeerDevicePointer, (pkn_window_t window, size_t offset, int peer, void **ptr));
PKN_FUNCTION(pkn_result_t, GinInboxA2ACreateRequirement,
             (pkn_team_t peers, int blocks, int size_log2, void *handle, void *requirement));
PKN_FUNCTION(pkn_result_t, GinOutboxCreateRequirement, (int blocks, int size_log2, void *handle, void *requirement));
PKN_FUNCTION(pkn_result_t, ParamBind, (void **parameter, const char *key));
PKN_FUNCTION(pkn_result_t, ParamGet, (void *parameter, void *value, int room, int *length));
PKN_FUNCTION(pkn_result_t, ParamGetAllParameterKeys, (const char ***keys, int *count));
PKN_FUNCTION(pkn_result_t, ParamGetParameter, (const char *key, const char **value, int *length));
PKN_FUNCTION(pkn_result_t, ParamGetStr, (void *parameter, const char **value));
PKN_FUNCTION(pkn_result_t, ParamGetI8, (void *parameter, int8_t *value));
PKN_FUNCTION(pkn_result_t, ParamGetI16, (void *parameter, int16_t *value));
PKN_FUNCTION(pkn_result_t, ParamGetI32, (void *parameter, int32_t *value));
PKN_FUNCTION(pkn_result_t, ParamGetI64, (void *parameter, int64_t *value));
PKN_FUNCTION(pkn_result_t, ParamGetU8, (void *parameter, uint8_t *value));
PKN_FUNCTION(pkn_result_t, ParamGetU16, (void *parameter, uint16_t *value));
PKN_FUNCTION(pkn_result_t, ParamGetU32, (void *parameter, uint32_t *value));
PKN_FUNCTION(pkn_result_t, ParamGetU64, (void *parameter, uint64_t *value));
PKN_FUNCTION(void, ParamDumpAll, (void));

#pragma GCC visibility pop

#endif
