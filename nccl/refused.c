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

pkn_result_t pncclCommShrink(pkn_comm_t comm, int *excluded, int count, pkn_comm_t *made, pkn_config_t *config, int flags)
{
    return refuse("ncclCommShrink");
}
PKN_TWIN(CommShrink);

pkn_result_t pncclCommRevoke(pkn_comm_t comm, int flags)
{
    return refuse("ncclCommRevoke");
}
PKN_TWIN(CommRevoke);

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

pkn_result_t pncclCommGetUniqueId(pkn_comm_t comm, pkn_id_t *id)
{
    return refuse("ncclCommGetUniqueId");
}
PKN_TWIN(CommGetUniqueId);

pkn_result_t pncclCommGrow(pkn_comm_t comm, int ranks, const pkn_id_t *id, int rank, pkn_comm_t *made, pkn_config_t *config)
{
    return refuse("ncclCommGrow");
}
PKN_TWIN(CommGrow);

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
