/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file inspect.h
 * What the library chose and why, before and after the fact. Any thread may call these while the communicator exists; none
 * blocks on a peer.
 */
#ifndef PICKLE_INSPECT_H
#define PICKLE_INSPECT_H

#include "pickle/base.h"
#include "pickle/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Kinds of memory. */
typedef enum pk_mem_kind {
    PK_MEM_HOST = 0,  /**< pageable or pinned memory of the host */
    PK_MEM_DEVICE = 1 /**< memory of the communicator's GPU */
} pk_mem_kind_t;

/** Operations, for pk_explain. */
typedef enum pk_op_kind {
    PK_OP_SEND = 0,
    PK_OP_RECV = 1,
    PK_OP_ALLGATHER = 2,
    PK_OP_ALLREDUCE = 3
} pk_op_kind_t;

/** The way from this rank to a peer. */
typedef struct pk_path {
    size_t struct_size;    /**< set by the caller */
    char transport[16];    /**< "self", "shm", "nvlink"; "none" where there is no way */
    char device[32];       /**< what carries the bytes: "cma", "ring", "copy engine", ... */
    double expected_gbps;  /**< 1e9 bytes a second one way; 0 unknown */
    char reason[192];      /**< one sentence: why this one */
} pk_path_t;

/**
 * The way bytes go from memory of `source` kind here to memory of `target` kind on `peer`. Fixed when the communicator was made.
 * @return PK_OK; PK_ERR_ARG (null, no such rank or kind, struct_size). Since 0.1.
 */
PK_API pk_result_t pk_comm_path(const pk_comm_t *comm, int peer, pk_mem_kind_t source, pk_mem_kind_t target, pk_path_t *path);

/** How an operation would be done. */
typedef struct pk_explanation {
    size_t struct_size;    /**< set by the caller */
    char algorithm[32];    /**< "direct", "ring", "copy", "ll kernel", ... */
    char transports[64];   /**< names of the transports it uses, with commas */
    uint64_t steps;        /**< plan steps this rank executes; pk_comm_stats counts the same */
    int sms;               /**< multiprocessors it occupies at most at a time; 0 = copy engines and CPU only */
    char reason[192];      /**< why this algorithm */
} pk_explanation_t;

/**
 * What this rank would do for an operation on `count` elements of `dtype` in memory of `kind`; `in_place` as the operation defines it.
 * For SEND and RECV `peer` is the other rank; else ignored.
 * @return PK_OK; PK_ERR_ARG; PK_ERR_NEEDS_SM and PK_ERR_UNSUPPORTED where the operation would return them. Since 0.1.
 */
PK_API pk_result_t pk_explain(const pk_comm_t *comm, pk_op_kind_t op, size_t count, pk_dtype_t dtype, pk_mem_kind_t kind,
                              int in_place, int peer, pk_explanation_t *explanation);

/** Counters since the communicator was made. */
typedef struct pk_stats {
    size_t struct_size;       /**< set by the caller */
    uint64_t operations;      /**< ended */
    uint64_t steps;           /**< plan steps executed */
    uint64_t bytes_sent;
    uint64_t bytes_received;
    uint64_t messages;        /**< lane messages sent */
    uint64_t copies;          /**< copies handed to copy engines */
    uint64_t kernels;         /**< kernels launched, of any kind */
    uint64_t waits_pending;   /**< stream waits that hold a hardware queue now */
    uint64_t waits_max;       /**< the most of them at a time */
} pk_stats_t;

/** Read the counters. @return PK_OK; PK_ERR_ARG (null, struct_size). Since 0.1. */
PK_API pk_result_t pk_comm_stats(const pk_comm_t *comm, pk_stats_t *stats);

/** Receives one log line without newline. Called from any thread, must not call the library, must not keep `line`. */
typedef void (*pk_log_callback_t)(void *arg, int level, const char *line);

/** Send log lines to `callback` instead of standard error; NULL restores it. Levels: 1 error 2 warn 3 info 4 debug. Since 0.1. */
PK_API void pk_log_set_callback(pk_log_callback_t callback, void *arg);

#ifdef __cplusplus
}
#endif

#endif
