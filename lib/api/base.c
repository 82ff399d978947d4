/* SPDX-License-Identifier: Apache-2.0 */
#include "pickle/base.h"

#include <string.h>

#include "util/dtype.h"
#include "util/log.h"

size_t pk_dtype_size(pk_dtype_t dtype)
{
    return pki_dtype_bytes(dtype);
}

const char *pk_dtype_name(pk_dtype_t dtype)
{
    static const char *const names[PK_DTYPE_COUNT] = { "int8", "uint8", "int32", "uint32", "int64",  "uint64",
                                                       "f16",  "bf16",  "f32",   "f64",    "f8e4m3", "f8e5m2" };

    return (unsigned)dtype < PK_DTYPE_COUNT ? names[dtype] : "?";
}

int pk_version(void)
{
    return PK_VERSION_MAJOR * 10000 + PK_VERSION_MINOR * 100 + PK_VERSION_PATCH;
}

const char *pk_strerror(pk_result_t result)
{
    switch (result) {
    case PK_OK:
        return "The operation succeeded.";
    case PK_IN_PROGRESS:
        return "The operation has started and has not finished.";
    case PK_ERR_ARG:
        return "An argument is invalid.";
    case PK_ERR_MEMORY:
        return "There is not enough memory.";
    case PK_ERR_SYSTEM:
        return "A call to the system or to a driver failed.";
    case PK_ERR_UNSUPPORTED:
        return "The operation is not possible here.";
    case PK_ERR_NEEDS_SM:
        return "The operation needs a kernel, which the SM policy forbids.";
    case PK_ERR_MISMATCH:
        return "The ranks disagree about the operation.";
    case PK_ERR_TIMEOUT:
        return "A deadline passed.";
    case PK_ERR_PEER:
        return "Another rank died or its connection broke.";
    case PK_ERR_ABORTED:
        return "The communicator was aborted.";
    case PK_ERR_AUTH:
        return "A peer could not prove that it knows the secret.";
    case PK_ERR_INTERNAL:
        return "An invariant of the library is broken; please report it.";
    case PK_ERR_REVOKED:
        return "The communicator was revoked.";
    }
    return "This result code is unknown.";
}

pk_result_t pk_last_error(pk_error_info_t *info)
{
    const size_t least = offsetof(pk_error_info_t, code) + sizeof info->code;
    pk_error_info_t copy = *pki_error_get();
    size_t bytes;

    if (info == NULL || info->struct_size < least)
        return PK_ERR_ARG;
    bytes = info->struct_size < sizeof copy ? info->struct_size : sizeof copy;
    copy.struct_size = info->struct_size;
    memcpy(info, &copy, bytes);
    return PK_OK;
}
