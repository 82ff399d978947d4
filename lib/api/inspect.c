/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "util/dtype.h"

/* Structs that are filled for the caller: as much as the caller's version of them holds. */
static pk_result_t give(void *out, size_t out_size, const void *full, size_t full_size, size_t least, const char *call)
{
    if (out_size < least)
        return pki_fail(PK_ERR_ARG, NULL, "%s: struct_size is %zu", call, out_size);
    memcpy((char *)out + sizeof(size_t), (const char *)full + sizeof(size_t),
           (out_size < full_size ? out_size : full_size) - sizeof(size_t));
    return PK_OK;
}

pk_result_t pk_comm_path(const pk_comm_t *comm, int peer, pk_mem_kind_t source, pk_mem_kind_t target, pk_path_t *path)
{
    struct pki_where call = PKI_CALL("comm_path");
    pk_result_t result = pki_check_comm((pk_comm_t *)(uintptr_t)comm, &call);
    const struct pki_path *found;
    pk_path_t full = { 0 };

    if (result != PK_OK)
        return result;
    if (path == NULL || peer < 0 || peer >= comm->size || (unsigned)source > PK_MEM_DEVICE || (unsigned)target > PK_MEM_DEVICE)
        return pki_fail(PK_ERR_ARG, &call, "peer %d, source %d, target %d, path %s", peer, (int)source, (int)target,
                        path == NULL ? "null" : "given");
    result = pki_check_peer(comm, peer, &call);
    if (result != PK_OK)
        return result;
    found = &comm->paths[peer].way[source][target];
    snprintf(full.transport, sizeof full.transport, "%s", found->transport != NULL ? found->transport : "none");
    snprintf(full.device, sizeof full.device, "%s", found->device);
    snprintf(full.reason, sizeof full.reason, "%s", found->reason);
    full.expected_gbps = found->gbps;
    return give(path, path->struct_size, &full, sizeof full, offsetof(pk_path_t, device), "pk_comm_path");
}

struct question {
    pk_op_kind_t op;
    size_t count;
    pk_dtype_t dtype;
    enum pki_mem_kind kind;
    bool in_place;
    int peer; /* or root */
};

static pk_result_t describe_p2p(const pk_comm_t *comm, const struct question *q, struct pki_request *r, const char **reason)
{
    r->what = q->op == PK_OP_SEND ? PKI_DO_SEND : PKI_DO_RECV;
    r->peer = q->peer;
    *reason = comm->paths[q->peer].way[q->kind][q->kind].reason;
    return PK_OK;
}

static pk_result_t describe_coll(const pk_comm_t *comm, const struct question *q, struct pki_request *r, const char **reason)
{
    struct pki_choice choice;
    pk_result_t result =
        pki_comm_choose(comm, (enum pki_coll)q->op, q->count * pki_dtype_bytes(q->dtype), q->dtype, PK_SUM, q->kind, &choice);

    if (result != PK_OK)
        return result;
    r->what = PKI_DO_COLL;
    r->root = pki_coll_shape(q->op)->rooted ? q->peer : 0;
    r->algorithm = choice.algorithm;
    r->instead = choice.instead;
    *reason = choice.reason;
    if (choice.algorithm == &pki_switchml_algorithm && pki_engine_lost_aggregator(comm->engine)) {
        r->algorithm = choice.instead;
        r->instead = NULL;
        *reason = "PK_SWITCHML_FALLBACK: the aggregator has been lost";
    }
    return PK_OK;
}

static pk_result_t describe(const pk_comm_t *comm, const struct question *q, struct pki_where *call, struct pki_request *r,
                            const char **reason)
{
    const struct pki_shape *shape = pki_coll_shape(q->op);
    bool p2p = q->op == PK_OP_SEND || q->op == PK_OP_RECV;
    pk_result_t result;

    *r = (struct pki_request){ .count = q->count, .dtype = q->dtype, .in_place = q->in_place };
    if (shape == NULL && !p2p)
        return pki_fail(PK_ERR_ARG, call, "op is %d", (int)q->op);
    if (pki_check_count(q->count, !p2p && (shape->in_many || shape->out_many) && !shape->counts ? (size_t)comm->size : 1,
                        q->dtype, call) != PK_OK)
        return PK_ERR_ARG;
    if ((p2p || shape->rooted) && (q->peer < 0 || q->peer >= comm->size))
        return pki_fail(PK_ERR_ARG, call, "peer %d of %d ranks", q->peer, comm->size);
    result = p2p ? pki_check_peer(comm, q->peer, call) : pki_check_full(comm, call);
    if (result != PK_OK)
        return result;
    return p2p ? describe_p2p(comm, q, r, reason) : describe_coll(comm, q, r, reason);
}

static pk_result_t explain(const pk_comm_t *comm, const struct question *question, pk_explanation_t *explanation)
{
    struct pki_where call = PKI_CALL("explain");
    pk_result_t result = pki_check_comm((pk_comm_t *)(uintptr_t)comm, &call);
    struct pki_request request;
    pk_explanation_t full = { 0 };
    const char *reason = "";

    if (result == PK_OK)
        result = pki_check_dtype(question->dtype, &call);
    if (result == PK_OK && (explanation == NULL || (unsigned)question->kind > (unsigned)PK_MEM_DEVICE))
        result = pki_fail(PK_ERR_ARG, &call, "%s", explanation == NULL ? "explanation is null" : "unknown kind of memory");
    if (result == PK_OK)
        result = describe(comm, question, &call, &request, &reason);
    if (result == PK_OK)
        result = pki_engine_explain(comm->engine, &request, question->kind, &full);
    if (result != PK_OK)
        return result;
    snprintf(full.reason, sizeof full.reason, "%.191s", reason);
    return give(explanation, explanation->struct_size, &full, sizeof full, offsetof(pk_explanation_t, transports), "pk_explain");
}

pk_result_t pk_explain(const pk_comm_t *comm, pk_op_kind_t op, size_t count, pk_dtype_t dtype, pk_mem_kind_t kind, int in_place,
                       int peer, pk_explanation_t *explanation)
{
    const int cancel = pki_cancel_hold();
    const struct question question = { op, count, dtype, (enum pki_mem_kind)kind, in_place != 0, peer };

    return pki_leave(cancel, explain(comm, &question, explanation));
}

pk_result_t pk_comm_stats(const pk_comm_t *comm, pk_stats_t *stats)
{
    pk_result_t state;
    pk_stats_t full = { 0 };

    if (comm == NULL || stats == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "pk_comm_stats: %s is null", comm == NULL ? "comm" : "stats");
    state = pki_check_own(comm, &(struct pki_where)PKI_CALL("comm_stats"));
    if (state != PK_OK)
        return state;
    state = pki_comm_outcome(comm);
    if (state != PK_OK)
        return pki_fail(PK_ERR_ARG, NULL, "pk_comm_stats: the communicator is not up");
    pki_engine_stats(comm->engine, &full);
    return give(stats, stats->struct_size, &full, sizeof full, offsetof(pk_stats_t, steps), "pk_comm_stats");
}

void pk_log_set_callback(pk_log_callback_t callback, void *arg)
{
    pki_log_set_callback(callback, arg);
}
