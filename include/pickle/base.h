/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file base.h
 * Results, element types, reductions, versions and the error record: what every other header uses.
 */
#ifndef PICKLE_BASE_H
#define PICKLE_BASE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define PK_API __attribute__((visibility("default")))
#else
#define PK_API
#endif

/* Of this library; pk_version() says that of the one that runs. A function that says "Since 0.3" is in 0.3.0 and later. */
#define PK_VERSION_MAJOR 0
#define PK_VERSION_MINOR 3
#define PK_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/** Outcome of a call. Values are fixed for the life of the ABI; new ones are only appended. */
typedef enum pk_result {
    PK_OK = 0,              /**< done, or queued in the stream */
    PK_IN_PROGRESS = 1,     /**< started and not finished; ask again */
    PK_ERR_ARG = 2,         /**< an argument is invalid; pk_last_error() names it. Nothing happened. */
    PK_ERR_MEMORY = 3,      /**< out of host or device memory */
    PK_ERR_SYSTEM = 4,      /**< a system or driver call failed; pk_last_error() has errno and the call */
    PK_ERR_UNSUPPORTED = 5, /**< legal, but not possible here; the text says why */
    PK_ERR_NEEDS_SM = 6,    /**< the operation needs a kernel and the communicator's sm_policy forbids it */
    PK_ERR_MISMATCH = 7,    /**< ranks disagree (operation, count, type); the text names both sides */
    PK_ERR_TIMEOUT = 8,     /**< a deadline passed; the text names the ranks that are missing */
    PK_ERR_PEER = 9,        /**< a rank died or its connection broke, or nobody has its number any more; the record names it */
    PK_ERR_ABORTED = 10,    /**< the communicator was aborted, here or by another rank */
    PK_ERR_AUTH = 11,       /**< a peer could not prove that it knows the secret */
    PK_ERR_INTERNAL = 12,   /**< a broken invariant in the library: please report it */
    PK_ERR_REVOKED = 13     /**< the communicator was revoked, here or by another rank: the ranks can agree and shrink it */
} pk_result_t;

/** Element types. Sizes in bytes: 1 1 4 4 8 8 2 2 4 8 1 1. */
typedef enum pk_dtype {
    PK_INT8 = 0,
    PK_UINT8 = 1,
    PK_INT32 = 2,
    PK_UINT32 = 3,
    PK_INT64 = 4,
    PK_UINT64 = 5,
    PK_F16 = 6,  /**< IEEE 754 binary16 */
    PK_BF16 = 7, /**< the upper half of a binary32 */
    PK_F32 = 8,
    PK_F64 = 9,
    PK_F8E4M3 = 10, /**< OCP 8-bit float, 4 exponent bits, no infinity */
    PK_F8E5M2 = 11  /**< OCP 8-bit float, 5 exponent bits */
} pk_dtype_t;

#define PK_DTYPE_COUNT 12

/**
 * Size of one element of a type.
 *
 * @param dtype  the type
 * @return bytes; 0 when `dtype` is not a type
 * Never blocks. Any thread. Since 0.1.
 */
PK_API size_t pk_dtype_size(pk_dtype_t dtype);

/**
 * Name of a type.
 *
 * @param dtype  the type
 * @return its enumerator in lower case without prefix ("bf16"), not to be freed; "?" when `dtype` is not a type
 * Never blocks. Any thread. Since 0.1.
 */
PK_API const char *pk_dtype_name(pk_dtype_t dtype);

/**
 * A reduction: a handle, so that user-made ones can be added without a change of type.
 * The predefined ones are the constants below.
 */
typedef uint64_t pk_op_t;

#define PK_SUM ((pk_op_t)0)
#define PK_PROD ((pk_op_t)1)
#define PK_MIN ((pk_op_t)2)
#define PK_MAX ((pk_op_t)3)
#define PK_AVG ((pk_op_t)4) /**< sum divided by the number of ranks; integers truncate toward zero */

#define PK_OP_COUNT 5

/**
 * Version of the library that is loaded.
 *
 * @return major * 10000 + minor * 100 + patch
 * Never blocks. Any thread. Since 0.1.
 */
PK_API int pk_version(void);

/**
 * What a result means, in words.
 *
 * @param result  what a call returned
 * @return one fixed English sentence, never NULL, not to be freed
 * Never blocks. Any thread. Since 0.1.
 */
PK_API const char *pk_strerror(pk_result_t result);

/** What went wrong last on the calling thread, for programs and for people. */
typedef struct pk_error_info {
    size_t struct_size; /**< set by the caller to sizeof(pk_error_info_t) before the call */
    pk_result_t code;   /**< PK_OK when this thread has seen no error */
    int sys_errno;      /**< errno of the failed system call, or 0 */
    int rank;           /**< this rank, or -1 when no communicator was involved */
    int peer;           /**< the rank that died, disagreed or is missing; -1 when none in particular */
    uint64_t op_number; /**< number of the operation in its communicator; 0 when none */
    char op[32];        /**< "allreduce", "send", "init", ...; empty when none */
    char text[512];     /**< one line, lower case, who, whom, what and why; always terminated */
} pk_error_info_t;

/**
 * Copy the last error record of the calling thread into `info`.
 *
 * @param info  in: struct_size; out: as many fields as fit in struct_size. Owned by the caller.
 * @return PK_OK; PK_ERR_ARG (null, or struct_size smaller than the first two fields).
 * Does not clear the record. Never blocks. Since 0.1.
 */
PK_API pk_result_t pk_last_error(pk_error_info_t *info);

#ifdef __cplusplus
}
#endif

#endif
