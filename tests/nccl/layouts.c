/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, offsets and numbers of NCCL's ABI, as written down here. nccl.header compares them with nccl.h, where there is one. */
#include "bed.h"

#define OFFSET(type, field, expected) \
    check(offsetof(type, field) == (expected), #type "." #field " at %zu", offsetof(type, field))
#define NUMBER(name, expected) check((long)(name) == (expected), #name " is %ld", (long)(name))

static void structures(void)
{
    NUMBER(sizeof(pkn_id_t), 128);
    NUMBER(sizeof(pkn_config_t), 80);
    NUMBER(sizeof(pkn_simulation_t), 24);
    NUMBER(sizeof(pkn_team_t), 12);
    OFFSET(pkn_config_t, size, 0);
    OFFSET(pkn_config_t, magic, 8);
    OFFSET(pkn_config_t, version, 12);
    OFFSET(pkn_config_t, blocking, 16);
    OFFSET(pkn_config_t, cga_cluster_size, 20);
    OFFSET(pkn_config_t, min_ctas, 24);
    OFFSET(pkn_config_t, max_ctas, 28);
    OFFSET(pkn_config_t, net_name, 32);
    OFFSET(pkn_config_t, split_share, 40);
    OFFSET(pkn_config_t, traffic_class, 44);
    OFFSET(pkn_config_t, comm_name, 48);
    OFFSET(pkn_config_t, collnet_enable, 56);
    OFFSET(pkn_config_t, cta_policy, 60);
    OFFSET(pkn_config_t, shrink_share, 64);
    OFFSET(pkn_config_t, nvls_ctas, 68);
    OFFSET(pkn_config_t, channels_per_net_peer, 72);
    OFFSET(pkn_config_t, nvlink_centric_sched, 76);
    OFFSET(pkn_simulation_t, magic, 8);
    OFFSET(pkn_simulation_t, version, 12);
    OFFSET(pkn_simulation_t, estimated_time, 16);
}

int main(void)
{
    structures();
    NUMBER(sizeof(pkn_result_t), 4);
    NUMBER(sizeof(pkn_dtype_t), 4);
    NUMBER(sizeof(pkn_op_t), 4);
    NUMBER(sizeof(pkn_residence_t), 4);
    NUMBER(PKN_IN_PROGRESS, 7);
    NUMBER(PKN_REMOTE_ERROR, 6);
    NUMBER(PKN_INVALID_USAGE, 5);
    NUMBER(PKN_MAX, 2);
    NUMBER(PKN_MIN, 3);
    NUMBER(PKN_FLOAT32, 7);
    NUMBER(PKN_FLOAT64, 8);
    NUMBER(PKN_BFLOAT16, 9);
    NUMBER(PKN_FLOAT8E5M2, 11);
    NUMBER(PKN_UNDEFINED, -2147483647L - 1);
    NUMBER(PKN_CONFIG_MAGIC, 0xcafebeefL);
    NUMBER(PKN_SIMULATION_MAGIC, 0x74685283L);
    NUMBER(PKN_VERSION, 22809);
    return bed_end();
}
