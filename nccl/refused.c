/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that are there because programs look for them, and answer that libpickle does not do this. Their parameters are
 * not used. */
#include "comm.h"
#include "error.h"
#include "group.h"
#include "names.h"

static pkn_result_t refuse(const char *name)
{
    return pkn_group_refuse(pkn_fail(PKN_INVALID_USAGE, "%s is not supported by libpickle, which stands here for NCCL", name));
}

pkn_result_t pncclDevCommCreate(pkn_comm_t comm, const void *requirements, void *made)
{
    return refuse("ncclDevCommCreate");
}
PKN_TWIN(DevCommCreate);

pkn_result_t pncclDevCommDestroy(pkn_comm_t comm, const void *made)
{
    return refuse("ncclDevCommDestroy");
}
PKN_TWIN(DevCommDestroy);

pkn_result_t pncclGinBarrierCreateRequirement(pkn_comm_t comm, pkn_team_t team, int barriers, void *handle, void *requirement)
{
    return refuse("ncclGinBarrierCreateRequirement");
}
PKN_TWIN(GinBarrierCreateRequirement);

pkn_result_t pncclLsaBarrierCreateRequirement(pkn_team_t team, int barriers, void *handle, void *requirement)
{
    return refuse("ncclLsaBarrierCreateRequirement");
}
PKN_TWIN(LsaBarrierCreateRequirement);

pkn_result_t pncclLLA2ACreateRequirement(int blocks, int slots, void *handle, void *requirement)
{
    return refuse("ncclLLA2ACreateRequirement");
}
PKN_TWIN(LLA2ACreateRequirement);

pkn_result_t pncclCommQueryProperties(pkn_comm_t comm, void *properties)
{
    return refuse("ncclCommQueryProperties");
}
PKN_TWIN(CommQueryProperties);

pkn_result_t pncclCommSuspend(pkn_comm_t comm, int flags)
{
    return refuse("ncclCommSuspend");
}
PKN_TWIN(CommSuspend);

pkn_result_t pncclCommResume(pkn_comm_t comm)
{
    return refuse("ncclCommResume");
}
PKN_TWIN(CommResume);

pkn_result_t pncclCommMemStats(pkn_comm_t comm, int statistic, uint64_t *value)
{
    return refuse("ncclCommMemStats");
}
PKN_TWIN(CommMemStats);

pkn_result_t pncclPutSignal(const void *buffer, size_t count, pkn_dtype_t dtype, int peer, pkn_window_t window, size_t offset,
                            int signal, int context, unsigned flags, pkn_comm_t comm, pkn_stream_t stream)
{
    return refuse("ncclPutSignal");
}
PKN_TWIN(PutSignal);

pkn_result_t pncclSignal(int peer, int signal, int context, unsigned flags, pkn_comm_t comm, pkn_stream_t stream)
{
    return refuse("ncclSignal");
}
PKN_TWIN(Signal);

pkn_result_t pncclWaitSignal(int count, void *signals, pkn_comm_t comm, pkn_stream_t stream)
{
    return refuse("ncclWaitSignal");
}
PKN_TWIN(WaitSignal);

pkn_result_t pncclWinGetUserPtr(pkn_comm_t comm, pkn_window_t window, void **ptr)
{
    return refuse("ncclWinGetUserPtr");
}
PKN_TWIN(WinGetUserPtr);

pkn_result_t pncclGetLsaMultimemDevicePointer(pkn_window_t window, size_t offset, void **ptr)
{
    return refuse("ncclGetLsaMultimemDevicePointer");
}
PKN_TWIN(GetLsaMultimemDevicePointer);

pkn_result_t pncclGetMultimemDevicePointer(pkn_window_t window, size_t offset, void *multimem, void **ptr)
{
    return refuse("ncclGetMultimemDevicePointer");
}
PKN_TWIN(GetMultimemDevicePointer);

pkn_result_t pncclGetLsaDevicePointer(pkn_window_t window, size_t offset, int rank, void **ptr)
{
    return refuse("ncclGetLsaDevicePointer");
}
PKN_TWIN(GetLsaDevicePointer);

pkn_result_t pncclGetPeerDevicePointer(pkn_window_t window, size_t offset, int peer, void **ptr)
{
    return refuse("ncclGetPeerDevicePointer");
}
PKN_TWIN(GetPeerDevicePointer);

pkn_result_t pncclGinInboxA2ACreateRequirement(pkn_team_t peers, int blocks, int size_log2, void *handle, void *requirement)
{
    return refuse("ncclGinInboxA2ACreateRequirement");
}
PKN_TWIN(GinInboxA2ACreateRequirement);

pkn_result_t pncclGinOutboxCreateRequirement(int blocks, int size_log2, void *handle, void *requirement)
{
    return refuse("ncclGinOutboxCreateRequirement");
}
PKN_TWIN(GinOutboxCreateRequirement);

pkn_result_t pncclParamBind(void **parameter, const char *key)
{
    return refuse("ncclParamBind");
}
PKN_TWIN(ParamBind);

pkn_result_t pncclParamGet(void *parameter, void *value, int room, int *length)
{
    return refuse("ncclParamGet");
}
PKN_TWIN(ParamGet);

pkn_result_t pncclParamGetAllParameterKeys(const char ***keys, int *count)
{
    return refuse("ncclParamGetAllParameterKeys");
}
PKN_TWIN(ParamGetAllParameterKeys);

pkn_result_t pncclParamGetParameter(const char *key, const char **value, int *length)
{
    return refuse("ncclParamGetParameter");
}
PKN_TWIN(ParamGetParameter);

pkn_result_t pncclParamGetStr(void *parameter, const char **value)
{
    return refuse("ncclParamGetStr");
}
PKN_TWIN(ParamGetStr);

pkn_result_t pncclParamGetI8(void *parameter, int8_t *value)
{
    return refuse("ncclParamGetI8");
}
PKN_TWIN(ParamGetI8);

pkn_result_t pncclParamGetI16(void *parameter, int16_t *value)
{
    return refuse("ncclParamGetI16");
}
PKN_TWIN(ParamGetI16);

pkn_result_t pncclParamGetI32(void *parameter, int32_t *value)
{
    return refuse("ncclParamGetI32");
}
PKN_TWIN(ParamGetI32);

pkn_result_t pncclParamGetI64(void *parameter, int64_t *value)
{
    return refuse("ncclParamGetI64");
}
PKN_TWIN(ParamGetI64);

pkn_result_t pncclParamGetU8(void *parameter, uint8_t *value)
{
    return refuse("ncclParamGetU8");
}
PKN_TWIN(ParamGetU8);

pkn_result_t pncclParamGetU16(void *parameter, uint16_t *value)
{
    return refuse("ncclParamGetU16");
}
PKN_TWIN(ParamGetU16);

pkn_result_t pncclParamGetU32(void *parameter, uint32_t *value)
{
    return refuse("ncclParamGetU32");
}
PKN_TWIN(ParamGetU32);

pkn_result_t pncclParamGetU64(void *parameter, uint64_t *value)
{
    return refuse("ncclParamGetU64");
}
PKN_TWIN(ParamGetU64);

void pncclParamDumpAll(void)
{
    (void)refuse("ncclParamDumpAll");
}
PKN_TWIN(ParamDumpAll);
