/* SPDX-License-Identifier: Apache-2.0 */
/* libpickle, opened at the first call that needs it: this library is loaded into compilers and shells too, by LD_PRELOAD, and
 * costs them nothing. */
#ifndef PKN_TABLE_H
#define PKN_TABLE_H

#include <pickle/pickle.h>

#define PKN_NEEDED(X) \
    X(pk_version) \
    X(pk_strerror) \
    X(pk_last_error) \
    X(pk_log_set_callback) \
    X(pk_get_unique_id) \
    X(pk_get_unique_id_anywhere) \
    X(pk_unique_id_release) \
    X(pk_comm_init) \
    X(pk_comm_init_rank) \
    X(pk_comm_split) \
    X(pk_comm_abort) \
    X(pk_comm_async_error) \
    X(pk_comm_destroy) \
    X(pk_comm_rank) \
    X(pk_comm_size) \
    X(pk_comm_finalize) \
    X(pk_comm_revoke) \
    X(pk_comm_shrink) \
    X(pk_comm_get_unique_id) \
    X(pk_comm_grow) \
    X(pk_comm_join) \
    X(pk_op_create_premul) \
    X(pk_op_destroy) \
    X(pk_mem_alloc_device) \
    X(pk_mem_free) \
    X(pk_register) \
    X(pk_deregister) \
    X(pk_group_start) \
    X(pk_group_end) \
    X(pk_send) \
    X(pk_recv) \
    X(pk_broadcast) \
    X(pk_reduce) \
    X(pk_allreduce) \
    X(pk_reduce_scatter) \
    X(pk_allgather) \
    X(pk_alltoall) \
    X(pk_gather) \
    X(pk_scatter)

struct pkn_table {
#define PKN_MEMBER(name) __typeof__(name) *name;
    PKN_NEEDED(PKN_MEMBER)
#undef PKN_MEMBER
};

/* NULL: libpickle cannot be opened, and the last error says why; the call returns PKN_SYSTEM_ERROR. */
const struct pkn_table *pkn_pk(void);

/* The file that it was opened from. */
const char *pkn_pk_path(void);

#endif
