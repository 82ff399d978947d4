/* SPDX-License-Identifier: Apache-2.0 */
/* All transports of this build. A new one is a declaration and a line. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "transport/transport.h"

extern const struct pki_transport pki_transport_nvlink;
extern const struct pki_transport pki_transport_shm;
extern const struct pki_transport pki_transport_rdma;
extern const struct pki_transport pki_transport_tcp;

static const struct pki_transport *const sources[] = {
    &pki_transport_nvlink,
    &pki_transport_shm,
#ifdef PICKLE_HAVE_RDMA
    &pki_transport_rdma,
#endif
    &pki_transport_tcp,
};

enum { COUNT = sizeof sources / sizeof *sources }; /* NOLINT(bugprone-sizeof-expression): they are pointers */

/* ---- What an empty slot means ---- */

static void no_probe(const struct pki_iface_config *config, struct pki_probe *probe)
{
    (void)config;
    *probe = (struct pki_probe){ .usable = false };
    snprintf(probe->reason, sizeof probe->reason, "not in this build");
}

static pk_result_t no_open(const struct pki_iface_config *config, struct pki_iface *iface)
{
    (void)config, (void)iface;
    return PK_ERR_UNSUPPORTED;
}

static void no_close(struct pki_iface *iface)
{
    (void)iface;
}

static pk_result_t no_ep_blob(struct pki_ep *ep, struct pki_blob *blob)
{
    (void)ep, (void)blob;
    return PK_ERR_UNSUPPORTED;
}

static void no_ep(struct pki_ep *ep)
{
    (void)ep;
}

static pk_result_t no_reg(struct pki_iface *iface, const struct pki_mem *mem, struct pki_export *out)
{
    (void)iface, (void)mem, (void)out;
    return PK_ERR_UNSUPPORTED;
}

static pk_result_t no_map(struct pki_ep *ep, const struct pki_export *in, uint64_t *remote)
{
    (void)ep, (void)in, (void)remote;
    return PK_ERR_UNSUPPORTED;
}

static void no_unmap(struct pki_ep *ep, const struct pki_export *in, uint64_t remote)
{
    (void)ep, (void)in, (void)remote;
}

static pk_result_t no_send(struct pki_ep *ep, const struct pki_msg *msg, const void *payload)
{
    (void)ep, (void)msg, (void)payload;
    return PK_ERR_UNSUPPORTED;
}

static pk_result_t no_recv_post(struct pki_recv *recv, const struct pki_msg *tell)
{
    (void)recv, (void)tell;
    return PK_ERR_UNSUPPORTED;
}

static bool no_peek(struct pki_ep *ep, struct pki_msg *msg, const void **payload)
{
    (void)ep, (void)msg, (void)payload;
    return false;
}

static pk_result_t no_move(struct pki_put *put)
{
    (void)put;
    return PK_ERR_UNSUPPORTED;
}

/* Everything ends before its call returns. */
static bool no_progress(struct pki_iface *iface)
{
    (void)iface;
    return false;
}

/* ---- The table ---- */

/* Written once under `once`, read only afterwards. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct pki_transport filled[COUNT];
static const struct pki_transport *table[COUNT + 1];

static void fill_setup(struct pki_transport *t)
{
    t->probe = t->probe != NULL ? t->probe : no_probe;
    t->open = t->open != NULL ? t->open : no_open;
    t->close = t->close != NULL ? t->close : no_close;
    t->ep_init = t->ep_init != NULL ? t->ep_init : no_ep_blob;
    t->ep_connect = t->ep_connect != NULL ? t->ep_connect : no_ep_blob;
    t->ep_close = t->ep_close != NULL ? t->ep_close : no_ep;
    t->reg = t->reg != NULL ? t->reg : no_reg;
    t->map = t->map != NULL ? t->map : no_map;
    t->unmap = t->unmap != NULL ? t->unmap : no_unmap;
}

static void fill_traffic(struct pki_transport *t)
{
    t->send = t->send != NULL ? t->send : no_send;
    t->peek = t->peek != NULL ? t->peek : no_peek;
    t->pop = t->pop != NULL ? t->pop : no_ep;
    t->put = t->put != NULL ? t->put : no_move;
    t->recv_post = t->recv_post != NULL ? t->recv_post : no_recv_post;
    t->recv_cancel = t->recv_cancel != NULL ? t->recv_cancel : no_close;
    t->progress = t->progress != NULL ? t->progress : no_progress;
}

static void fill(void)
{
    for (size_t i = 0; i < COUNT; i++) {
        filled[i] = *sources[i];
        fill_setup(&filled[i]);
        fill_traffic(&filled[i]);
        table[i] = &filled[i];
    }
}

const struct pki_transport *const *pki_transports(void)
{
    pthread_once(&once, fill);
    return table;
}

const struct pki_transport *pki_transport_find(const char *name)
{
    for (const struct pki_transport *const *t = pki_transports(); *t != NULL; t++) {
        if (strcmp((*t)->name, name) == 0)
            return *t;
    }
    return NULL;
}
