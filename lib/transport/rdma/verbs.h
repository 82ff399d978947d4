/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libibverbs, opened at run time, so that the library loads on machines without it. Its functions are members of one table; what
 * verbs.h defines as inline (posting, polling) goes through the device's own table and needs no symbol.
 */
#ifndef PKI_RDMA_VERBS_H
#define PKI_RDMA_VERBS_H

#include <infiniband/verbs.h>

/* Member = the function of verbs.h with this name. */
struct pki_verbs {
    __typeof__(ibv_get_device_list) *get_device_list;
    __typeof__(ibv_free_device_list) *free_device_list;
    __typeof__(ibv_get_device_name) *get_device_name;
    __typeof__(ibv_open_device) *open_device;
    __typeof__(ibv_close_device) *close_device;
    __typeof__(ibv_query_device) *query_device;
    int (*query_port)(struct ibv_context *context, uint8_t port, void *attr); /* struct ibv_port_attr, zeroed before */
    __typeof__(_ibv_query_gid_ex) *query_gid_ex;
    __typeof__(ibv_alloc_pd) *alloc_pd;
    __typeof__(ibv_dealloc_pd) *dealloc_pd;
    /* Leaves away optional access flags (relaxed ordering) that the kernel does not know. */
    __typeof__(ibv_reg_mr_iova2) *reg_mr_iova2;
    __typeof__(ibv_dereg_mr) *dereg_mr;
    __typeof__(ibv_reg_dmabuf_mr) *reg_dmabuf_mr; /* NULL before rdma-core 34 */
    __typeof__(ibv_create_comp_channel) *create_comp_channel;
    __typeof__(ibv_destroy_comp_channel) *destroy_comp_channel;
    __typeof__(ibv_get_cq_event) *get_cq_event;
    __typeof__(ibv_ack_cq_events) *ack_cq_events;
    __typeof__(ibv_create_cq) *create_cq;
    __typeof__(ibv_destroy_cq) *destroy_cq;
    __typeof__(ibv_create_qp) *create_qp;
    __typeof__(ibv_modify_qp) *modify_qp;
    __typeof__(ibv_destroy_qp) *destroy_qp;
    __typeof__(ibv_wc_status_str) *wc_status_str;
};

/* The table; NULL when the library cannot be used, and then *why (if not NULL) is a sentence. Any thread. */
const struct pki_verbs *pki_verbs(const char **why);

#endif
