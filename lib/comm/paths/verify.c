/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Some machines claim that GPUs reach one another and then lose or change what is written (an IOMMU between them, a virtual
 * machine without the right settings). So every rank writes a pattern into the GPU memory of each peer that it would put to, and
 * that one looks. A pair of which either direction fails goes through the host.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "util/clock.h"

#define PATTERN_BYTES 4096u
#define TIMEOUT_NS (5 * PKI_NS_PER_S) /* for copies of 4 KiB */

struct offer {
    struct pki_export exported;
    uint64_t offset;
    int64_t valid;
};

struct verify {
    struct pk_comm *comm;
    struct pki_ep *const *eps; /* [size]; NULL: not to be looked at */
    struct pki_queue queue;
    struct pki_iface *iface;
    char *memory;         /* a pattern for each rank to come, and the own one behind */
    unsigned char *host;  /* the same */
    struct offer *offers; /* [size] */
    uint64_t *mapped;     /* [size]; 0: not */
    unsigned char *bad;   /* [size] */
};

static void pattern(unsigned char *to, int from, int target)
{
    uint32_t state = 0x9e3779b9u * (uint32_t)(from + 1) ^ 0x85ebca6bu * (uint32_t)(target + 1);

    for (unsigned i = 0; i < PATTERN_BYTES; i++) {
        state = state * 1664525u + 1013904223u;
        to[i] = (unsigned char)(state >> 24);
    }
}

/* Before it is used; where the time is over it is used without. */
static void make_clear(struct verify *v)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;

    while (!v->comm->device->ops->clear(&v->queue, true) && pki_now_ns() < until)
        pki_cpu_pause();
}

static bool drained(struct verify *v)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;

    while (!v->comm->device->ops->idle(&v->queue)) {
        if (pki_now_ns() > until)
            return false;
        pki_cpu_pause();
    }
    return true;
}

/* Memory for the others to write to. What fails here is no error: the pairs are then taken for bad. */
static void make_offer(struct verify *v, struct offer *mine)
{
    struct pki_device *device = v->comm->device;
    struct pki_mem mem;
    void *ptr;

    for (int i = 0; i < v->comm->size && v->iface == NULL; i++)
        if (v->eps[i] != NULL)
            v->iface = v->eps[i]->iface;
    if (v->iface == NULL || pki_retained_alloc(device, ((size_t)v->comm->size + 1) * PATTERN_BYTES, &ptr) != PK_OK)
        return;
    v->memory = ptr;
    if (device->ops->classify(device, ptr, 1, &mem) != PK_OK ||
        v->iface->transport->reg(v->iface, &mem, &mine->exported) != PK_OK || mine->exported.pieces != 0)
        return;
    mine->offset = (uint64_t)(uintptr_t)ptr - mine->exported.base;
    mine->valid = device->ops->queue_open(device, &v->queue) == PK_OK;
}

static void *offered(const struct verify *v, int peer)
{
    return (void *)(uintptr_t)(v->offers[peer].exported.base + v->offers[peer].offset);
}

/* Memory of a rank of this process is held as well: that one may leave init at any time. */
static bool map(struct verify *v, int peer)
{
    struct pki_ep *ep = v->eps[peer];

    if (!v->offers[peer].valid || (ep->same_process && !pki_retained_take(offered(v, peer))))
        return false;
    if (pki_engine_map(v->comm->engine, ep, &v->offers[peer].exported, &v->mapped[peer]) == PK_OK)
        return true;
    v->mapped[peer] = 0;
    if (ep->same_process)
        pki_retained_give(offered(v, peer));
    return false;
}

static void unmap_all(struct verify *v)
{
    for (int i = 0; i < v->comm->size; i++) {
        if (v->mapped[i] == 0)
            continue;
        v->eps[i]->iface->transport->unmap(v->eps[i], &v->offers[i].exported, v->mapped[i]);
        if (v->eps[i]->same_process)
            pki_retained_give(offered(v, i));
        v->mapped[i] = 0;
    }
}

/* True: it is under way. */
static bool write_to(struct verify *v, int peer)
{
    const struct pki_device_ops *ops = v->comm->device->ops;
    char *own = v->memory + (size_t)v->comm->size * PATTERN_BYTES;

    if (!map(v, peer))
        return false;
    pattern(v->host, v->comm->rank, peer);
    return ops->copy(&v->queue, own, v->host, PATTERN_BYTES) == PK_OK &&
           ops->copy(&v->queue,
                     (void *)(uintptr_t)(v->mapped[peer] + v->offers[peer].offset + (uint64_t)v->comm->rank * PATTERN_BYTES), own,
                     PATTERN_BYTES) == PK_OK;
}

static void write_all(struct verify *v)
{
    bool ready = v->offers[v->comm->rank].valid != 0;

    if (ready)
        make_clear(v);
    for (int i = 0; i < v->comm->size; i++)
        if (v->eps[i] != NULL)
            v->bad[i] = !ready || !write_to(v, i);
    if (ready && !drained(v))
        memset(v->bad, 1, (size_t)v->comm->size);
}

static void look(struct verify *v)
{
    const struct pki_device_ops *ops = v->comm->device->ops;
    size_t bytes = (size_t)v->comm->size * PATTERN_BYTES;
    unsigned char want[PATTERN_BYTES];
    bool ok = v->offers[v->comm->rank].valid != 0;

    if (ok)
        make_clear(v);
    ok = ok && ops->copy(&v->queue, v->host, v->memory, bytes) == PK_OK && drained(v);
    for (int i = 0; i < v->comm->size; i++) {
        if (v->eps[i] == NULL)
            continue;
        pattern(want, i, v->comm->rank);
        if (!ok || memcmp(v->host + (size_t)i * PATTERN_BYTES, want, PATTERN_BYTES) != 0)
            v->bad[i] = 1;
    }
    unmap_all(v);
}

/* Bad for both as soon as it is for one. */
static pk_result_t agree(struct verify *v)
{
    size_t size = (size_t)v->comm->size;
    unsigned char *theirs = calloc(size, 1);
    pk_result_t result;

    if (theirs == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %zu ranks", size);
    result = pki_comm_alltoall(v->comm, v->bad, 1, theirs);
    for (size_t i = 0; i < size && result == PK_OK; i++) {
        struct pki_where where = { .rank = v->comm->rank, .peer = (int)i, .op = "init" };

        v->bad[i] |= theirs[i];
        if (v->eps[i] == NULL || v->bad[i] == 0)
            continue;
        v->eps[i]->can_put = false;
        pki_log(PKI_LOG_WARN, &where,
                "the driver says that the GPUs reach each other, but a test pattern arrived damaged: this pair goes through "
                "the host");
    }
    free(theirs);
    return result;
}

static pk_result_t run(struct verify *v)
{
    struct offer mine;
    pk_result_t result;

    memset(&mine, 0, sizeof mine);
    if (v->comm->device != NULL)
        make_offer(v, &mine);
    result = pki_comm_gather(v->comm, &mine, sizeof mine, v->offers);
    if (result != PK_OK)
        return result;
    if (v->comm->device != NULL)
        write_all(v);
    result = pki_bootstrap_barrier(v->comm->bootstrap, v->comm->deadline_ns);
    if (result != PK_OK)
        return result;
    if (v->comm->device != NULL)
        look(v);
    return agree(v);
}

/* All ranks know the same peer infos. */
static bool is_needed(const struct pk_comm *comm)
{
    int gpus = 0;

    for (int i = 0; i < comm->size; i++)
        gpus += comm->peer_infos[i].has_gpu != 0;
    return gpus > 1;
}

pk_result_t pki_comm_verify(struct pk_comm *comm, struct pki_ep *const *eps)
{
    size_t size = (size_t)comm->size;
    struct verify v = { .comm = comm, .eps = eps };
    pk_result_t result;

    if (!is_needed(comm))
        return PK_OK;
    v.host = malloc((size + 1) * PATTERN_BYTES);
    v.offers = calloc(size, sizeof *v.offers);
    v.mapped = calloc(size, sizeof *v.mapped);
    v.bad = calloc(size, 1);
    if (v.host == NULL || v.offers == NULL || v.mapped == NULL || v.bad == NULL)
        result = pki_fail(PK_ERR_MEMORY, NULL, "no memory for %zu ranks", size);
    else
        result = run(&v);
    if (v.queue.device != NULL)
        comm->device->ops->queue_close(&v.queue);
    if (v.mapped != NULL)
        unmap_all(&v);
    if (v.memory != NULL) /* peers in other processes have unmapped it: agree came after that */
        pki_retained_give(v.memory);
    free(v.host);
    free(v.offers);
    free(v.mapped);
    free(v.bad);
    return result;
}
