/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/rdma/verbs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libibverbs.so.1"

static const struct symbol {
    const char *name;
    size_t offset; /* of the member */
    bool optional;
} symbols[] = {
    { "ibv_get_device_list", offsetof(struct pki_verbs, get_device_list), false },
    { "ibv_free_device_list", offsetof(struct pki_verbs, free_device_list), false },
    { "ibv_get_device_name", offsetof(struct pki_verbs, get_device_name), false },
    { "ibv_open_device", offsetof(struct pki_verbs, open_device), false },
    { "ibv_close_device", offsetof(struct pki_verbs, close_device), false },
    { "ibv_query_device", offsetof(struct pki_verbs, query_device), false },
    { "ibv_query_port", offsetof(struct pki_verbs, query_port), false },
    { "_ibv_query_gid_ex", offsetof(struct pki_verbs, query_gid_ex), false },
    { "ibv_alloc_pd", offsetof(struct pki_verbs, alloc_pd), false },
    { "ibv_dealloc_pd", offsetof(struct pki_verbs, dealloc_pd), false },
    { "ibv_reg_mr_iova2", offsetof(struct pki_verbs, reg_mr_iova2), false },
    { "ibv_dereg_mr", offsetof(struct pki_verbs, dereg_mr), false },
    { "ibv_reg_dmabuf_mr", offsetof(struct pki_verbs, reg_dmabuf_mr), true },
    { "ibv_create_comp_channel", offsetof(struct pki_verbs, create_comp_channel), false },
    { "ibv_destroy_comp_channel", offsetof(struct pki_verbs, destroy_comp_channel), false },
    { "ibv_get_cq_event", offsetof(struct pki_verbs, get_cq_event), false },
    { "ibv_ack_cq_events", offsetof(struct pki_verbs, ack_cq_events), false },
    { "ibv_create_cq", offsetof(struct pki_verbs, create_cq), false },
    { "ibv_destroy_cq", offsetof(struct pki_verbs, destroy_cq), false },
    { "ibv_create_qp", offsetof(struct pki_verbs, create_qp), false },
    { "ibv_modify_qp", offsetof(struct pki_verbs, modify_qp), false },
    { "ibv_destroy_qp", offsetof(struct pki_verbs, destroy_qp), false },
    { "ibv_wc_status_str", offsetof(struct pki_verbs, wc_status_str), false },
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct pki_verbs verbs; /* written by load alone, read-only after it */
static char absent[160];

/* Never closed: providers keep state of the process. */
static void load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        const char *text = dlerror();

        snprintf(absent, sizeof absent, "%s cannot be loaded: %s", LIBRARY, text != NULL ? text : "no reason given");
        return;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *address = dlsym(library, symbols[i].name);

        if (address == NULL && !symbols[i].optional) {
            snprintf(absent, sizeof absent, "%s has no %s: rdma-core 28 or newer is needed", LIBRARY, symbols[i].name);
            return;
        }
        /* memcpy, because C has no conversion from an object's address to a function's. */
        memcpy((char *)&verbs + symbols[i].offset, &address, sizeof address);
    }
}

const struct pki_verbs *pki_verbs(const char **why)
{
    pthread_once(&once, load);
    if (absent[0] == '\0')
        return &verbs;
    if (why != NULL)
        *why = absent;
    return NULL;
}
