/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's ABI of version 2.28.9: the numbers and layouts that programs were compiled with. Names of later versions are added,
 * for their callers look for them by dlsym. The test `nccl.layouts` holds these against nccl.h. */
#ifndef PKN_ABI_H
#define PKN_ABI_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define PKN_VERSION 22809

typedef enum pkn_result {
    PKN_SUCCESS = 0,
    PKN_CUDA_ERROR = 1,
    PKN_SYSTEM_ERROR = 2,
    PKN_INTERNAL_ERROR = 3,
    PKN_INVALID_ARGUMENT = 4,
    PKN_INVALID_USAGE = 5,
    PKN_REMOTE_ERROR = 6,
    PKN_IN_PROGRESS = 7,
    PKN_RESULTS = 8
} pkn_result_t;

typedef enum pkn_dtype {
    PKN_INT8 = 0,
    PKN_UINT8 = 1,
    PKN_INT32 = 2,
    PKN_UINT32 = 3,
    PKN_INT64 = 4,
    PKN_UINT64 = 5,
    PKN_FLOAT16 = 6,
    PKN_FLOAT32 = 7,
    PKN_FLOAT64 = 8,
    PKN_BFLOAT16 = 9,
    PKN_FLOAT8E4M3 = 10,
    PKN_FLOAT8E5M2 = 11,
    PKN_DTYPES = 12
} pkn_dtype_t;

typedef enum pkn_op {
    PKN_SUM = 0,
    PKN_PROD = 1,
    PKN_MAX = 2,
    PKN_MIN = 3,
    PKN_AVG = 4,
    PKN_OPS = 5, /* operators that a program makes begin here */
    PKN_OP_LAST = 0x7fffffff
} pkn_op_t;

typedef enum pkn_residence { PKN_SCALAR_DEVICE = 0, PKN_SCALAR_HOST = 1 } pkn_residence_t;

#define PKN_NOCOLOR (-1)
#define PKN_SHRINK_ABORT 1
#define PKN_UNDEFINED INT_MIN
#define PKN_WINDOW_SYMMETRIC 1

#define PKN_ID_BYTES 128
typedef struct pkn_id {
    char bytes[PKN_ID_BYTES];
} pkn_id_t;

#define PKN_CONFIG_MAGIC 0xcafebeefu
typedef struct pkn_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
    int traffic_class;
    const char *comm_name;
    int collnet_enable;
    int cta_policy;
    int shrink_share;
    int nvls_ctas;
    int channels_per_net_peer;
    int nvlink_centric_sched;
} pkn_config_t;

#define PKN_SIMULATION_MAGIC 0x74685283u
typedef struct pkn_simulation {
    size_t size;
    unsigned magic;
    unsigned version;
    float estimated_time; /* -1: not known */
} pkn_simulation_t;

/* Of NCCL's device API, whose host functions are in the same library. */
typedef struct pkn_team {
    int ranks, rank, stride;
} pkn_team_t;

typedef struct pkn_comm *pkn_comm_t;
typedef struct pkn_registration *pkn_window_t;
typedef void *pkn_stream_t; /* cudaStream_t */

#endif
