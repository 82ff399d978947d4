/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"
#include "names.h"

/* Callers gate what they use on it. */
pkn_result_t pncclGetVersion(int *version)
{
    if (version == NULL)
        return pkn_fail(PKN_INVALID_ARGUMENT, "version is NULL");
    *version = PKN_VERSION;
    return PKN_SUCCESS;
}
PKN_TWIN(GetVersion);

/* Does nothing in NCCL either, any more. */
void pncclResetDebugInit(void)
{
}
PKN_TWIN(ResetDebugInit);
