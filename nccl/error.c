/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "names.h"
#include "table.h"

#define TEXT_BYTES 1024

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[TEXT_BYTES + 1]; /* its last byte is always 0, for callers read it without the lock */

static void record(const char *text)
{
    pthread_mutex_lock(&lock);
    (void)snprintf(last_error, TEXT_BYTES, "%s", text);
    pthread_mutex_unlock(&lock);
}

pkn_result_t pkn_fail(pkn_result_t code, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    record(text);
    return code;
}

static pkn_result_t translate(pk_result_t result)
{
    switch (result) {
    case PK_OK:
        return PKN_SUCCESS;
    case PK_IN_PROGRESS:
        return PKN_IN_PROGRESS;
    case PK_ERR_ARG:
        return PKN_INVALID_ARGUMENT;
    case PK_ERR_UNSUPPORTED:
    case PK_ERR_NEEDS_SM:
    case PK_ERR_MISMATCH:
        return PKN_INVALID_USAGE;
    case PK_ERR_TIMEOUT:
    case PK_ERR_PEER:
    case PK_ERR_ABORTED:
    case PK_ERR_REVOKED:
        return PKN_REMOTE_ERROR;
    case PK_ERR_MEMORY:
    case PK_ERR_SYSTEM:
    case PK_ERR_AUTH:
        return PKN_SYSTEM_ERROR;
    case PK_ERR_INTERNAL:
        break;
    }
    return PKN_INTERNAL_ERROR;
}

pkn_result_t pkn_from_pk(pk_result_t result)
{
    const struct pkn_table *pk = pkn_pk();
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result != PK_OK && result != PK_IN_PROGRESS && pk != NULL)
        record(pk->pk_last_error(&info) == PK_OK && info.code == result ? info.text : pk->pk_strerror(result));
    return translate(result);
}

const char *pncclGetErrorString(pkn_result_t result)
{
    static const char *const texts[PKN_RESULTS] = {
        [PKN_SUCCESS] = "no error",
        [PKN_CUDA_ERROR] = "unhandled cuda error: ncclGetLastError says more",
        [PKN_SYSTEM_ERROR] = "unhandled system error: ncclGetLastError says more",
        [PKN_INTERNAL_ERROR] = "internal error in libpickle: please report it",
        [PKN_INVALID_ARGUMENT] = "invalid argument",
        [PKN_INVALID_USAGE] = "invalid usage: ncclGetLastError says more",
        [PKN_REMOTE_ERROR] = "a remote process ended or cannot be reached, or the communicator was aborted",
        [PKN_IN_PROGRESS] = "operation in progress",
    };

    return (unsigned)result < PKN_RESULTS ? texts[result] : "unknown result code";
}
PKN_TWIN(GetErrorString);

const char *pncclGetLastError(pkn_comm_t comm)
{
    (void)comm;
    return last_error;
}
PKN_TWIN(GetLastError);
