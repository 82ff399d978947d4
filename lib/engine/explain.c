/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation would do, from the same plans and ways that do it. */
#include <stdio.h>
#include <string.h>

#include "engine/life.h"
#include "util/dtype.h"

static void add_name(char *names, size_t len, const char *name)
{
    size_t used = strlen(names);

    if (strstr(names, name) != NULL || used + strlen(name) + 2 > len)
        return;
    snprintf(names + used, len - used, "%s%s", used > 0 ? "," : "", name);
}

static void add_path(struct pki_engine *e, int peer, enum pki_mem_kind kind, pk_explanation_t *out)
{
    struct pki_ep *path = peer == e->config.rank ? NULL : e->peers[peer].path[kind][kind];

    if (path == NULL && peer != e->config.rank) /* through slots, by what joins the hosts' memories */
        path = e->peers[peer].path[PKI_MEM_HOST][PKI_MEM_HOST];
    add_name(out->transports, sizeof out->transports,
             peer == e->config.rank ? "self"
             : path != NULL         ? path->iface->transport->name
                                    : "none");
}

static int reduce_ctas(const struct pki_engine *e)
{
    struct pki_device_info info;

    e->gpu->ops->info(e->gpu, &info);
    return e->gpu->max_ctas > 0 && e->gpu->max_ctas < info.reduce_ctas ? e->gpu->max_ctas : info.reduce_ctas;
}

/* Sums of some types have kernels that do with fewer than other reductions: of those that the caller may mean, the most. */
static int fused_ctas(const struct pki_engine *e, const struct pki_request *r)
{
    struct pki_request other = *r;
    int ctas = pki_fused_ctas(e, r), others;

    if (!pki_coll_shape(r->algorithm->coll)->reduces)
        return ctas;
    other.op = PK_MAX;
    others = pki_fused_ctas(e, &other);
    return others > ctas ? others : ctas;
}

static pk_result_t explain_kernel(const struct pki_engine *e, int ctas, pk_explanation_t *out)
{
    out->sms = ctas;
    if (e->config.sm_policy != PK_SM_NONE)
        return PK_OK;
    return pki_fail(PK_ERR_NEEDS_SM, NULL, "a copy or reduction inside the gpu runs as a kernel");
}

static int greater(int a, int b)
{
    return a > b ? a : b;
}

static pk_result_t explain_coll(struct pki_engine *e, const struct pki_request *r, enum pki_mem_kind kind, pk_explanation_t *out)
{
    struct pki_plan *plan;
    pk_result_t result = pki_plan_make(r->algorithm, e->config.hosts, e->config.rank, e->config.size, r->root,
                                       r->in_place && (r->algorithm->build_rooted == NULL || r->root == e->config.rank), &plan);
    bool kernel = false;

    if (result != PK_OK)
        return result;
    if (pki_coll_shape(r->algorithm->coll)->reduces) {
        struct pki_device *device = kind == PKI_MEM_DEVICE ? e->gpu : e->host;

        if (!device->ops->reduces(device, r->dtype, r->op))
            result = pki_fail(PK_ERR_UNSUPPORTED, NULL, "no sum of %s on a GPU in this version", pk_dtype_name(r->dtype));
    }
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        const struct pki_step *step = &plan->steps[i];

        if (step->kind == PKI_STEP_SEND || step->kind == PKI_STEP_RECV || step->kind == PKI_STEP_RECV_REDUCE)
            add_path(e, step->peer, kind, out);
        if (kind == PKI_MEM_DEVICE && (step->kind == PKI_STEP_RECV || step->kind == PKI_STEP_RECV_REDUCE))
            out->sms = greater(out->sms, pki_bounce_unpack_ctas(e, &e->peers[step->peer]));
        for (int p = 0; p < e->config.size && step->kind == PKI_STEP_FUSED; p++)
            if (p != e->config.rank)
                add_path(e, p, kind, out);
        if (step->kind == PKI_STEP_SWITCH)
            add_name(out->transports, sizeof out->transports, "switchml");
        kernel |= step->kind != PKI_STEP_SEND && step->kind != PKI_STEP_RECV && step->kind != PKI_STEP_SWITCH &&
                  !pki_bounce_copies(e, r->algorithm->coll, plan);
    }
    out->steps = plan->nsteps;
    snprintf(out->algorithm, sizeof out->algorithm, "%s", r->algorithm->name);
    pki_plan_free(plan);
    if (kernel && kind == PKI_MEM_DEVICE)
        return explain_kernel(e, r->instead != NULL ? fused_ctas(e, r) : reduce_ctas(e), out);
    return result;
}

/* Of a message between this rank's memory and the peer's, both of this kind. */
static struct pki_protocol_query query_of(const struct pki_engine *e, int peer, enum pki_mem_kind kind, size_t bytes)
{
    return (struct pki_protocol_query){
        .engine = e, .peer = &e->peers[peer], .kind = kind, .bytes = bytes, .eager_max = e->peers[peer].eager.max
    };
}

const char *pki_engine_protocol(struct pki_engine *e, int peer, enum pki_mem_kind kind, size_t bytes)
{
    struct pki_protocol_query query;
    const char *name;

    pki_engine_lock(e);
    query = query_of(e, peer, kind, bytes);
    name = pki_protocol_choose(&query)->name;
    pki_engine_unlock(e);
    return name;
}

static pk_result_t explain_p2p(struct pki_engine *e, const struct pki_request *r, enum pki_mem_kind kind, pk_explanation_t *out)
{
    const size_t bytes = r->count * pki_dtype_bytes(r->dtype);
    const struct pki_protocol_query query = query_of(e, r->peer, kind, bytes);
    const struct pki_protocol *protocol = pki_protocol_choose(&query);

    if (protocol->ctas != NULL)
        out->sms = protocol->ctas(&query, r->what == PKI_DO_SEND);
    snprintf(out->algorithm, sizeof out->algorithm, "%s", protocol->name);
    out->steps = 1;
    add_path(e, r->peer, kind, out);
    return r->peer == e->config.rank && kind == PKI_MEM_DEVICE ? explain_kernel(e, reduce_ctas(e), out) : PK_OK;
}

pk_result_t pki_engine_explain(struct pki_engine *e, const struct pki_request *r, enum pki_mem_kind kind, pk_explanation_t *out)
{
    pk_result_t result = PK_OK;

    out->sms = 0;
    out->steps = 0;
    out->transports[0] = '\0';
    if (kind == PKI_MEM_DEVICE && e->gpu == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "the communicator has no gpu (config.device)");
    pki_engine_lock(e);
    if (r->what == PKI_DO_COLL)
        result = explain_coll(e, r, kind, out);
    else
        result = explain_p2p(e, r, kind, out);
    pki_engine_unlock(e);
    if (strstr(out->transports, "none") != NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "some rank cannot be reached with this kind of memory: see pk_comm_path");
    return result;
}

static void count_memory(const struct pki_engine *e, pk_stats_t *stats)
{
    const struct pki_bounce_pool *pools[2] = { &e->proto.in, &e->proto.out };

    if (e->gpu != NULL)
        stats->words = e->gpu->words - e->stats.captured_words;
    if (e->proto.ll_memory != NULL)
        stats->device_bytes += (uint64_t)(e->config.size - 1) * PKI_LL_RING_BYTES + pki_fused_inbox_bytes(e);
    for (int i = 0; i < PKI_SCRATCH_MAX; i++)
        if (e->plans.scratch[i].ptr != NULL && e->plans.scratch[i].kind == PKI_MEM_DEVICE)
            stats->device_bytes += e->plans.scratch[i].bytes;
    stats->device_bytes += pki_capture_fused_bytes(e);
    for (int i = 0; i < PKI_GRAPH_SCRATCHES; i++)
        stats->device_bytes += e->mem.graph_scratch[i].ptr != NULL ? e->mem.graph_scratch[i].bytes : 0;
    for (const struct pki_list *n = e->plans.unfreed.next; n != &e->plans.unfreed; n = n->next)
        stats->device_bytes += pki_container_of(n, struct pki_unfreed, node)->bytes;
    stats->pinned_bytes += e->fused.host.memory.bytes;
    for (int i = 0; i < 2; i++)
        if (pools[i]->memory != NULL)
            stats->pinned_bytes += ((uint64_t)PKI_BOUNCE_BUFFERS + 1) * PKI_BOUNCE_BYTES;
}

void pki_engine_stats(struct pki_engine *e, pk_stats_t *stats)
{
    pki_engine_lock(e);
    *stats = e->stats;
    count_memory(e, stats);
    for (int i = 0; i < e->ifaces.n; i++) {
        const struct pki_counts *counts = &e->ifaces.at[i]->counts;

        stats->work_requests += counts->work_requests;
        stats->doorbells += counts->doorbells;
        stats->completions += counts->completions;
        stats->registrations += counts->registrations;
    }
    pki_engine_unlock(e);
    pki_stream_waits(&stats->waits_pending, &stats->waits_max);
}
