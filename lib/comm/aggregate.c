/* SPDX-License-Identifier: Apache-2.0 */
/* Allreduces by an aggregator in the network: who has one, and what it can do (docs/design/0046). */
#include <string.h>

#include "comm/bootstrap/meeting.h"
#include "comm/comm.h"
#include "switchml/switchml.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/env.h"

#define TRY_NS (5 * PKI_NS_PER_S)

/* Where it goes on without an aggregator that does not answer there has to be time for that. */
static void limit_try(struct pki_wait *wait)
{
    const uint64_t now = pki_now_ns(), left = wait->deadline_ns > now ? wait->deadline_ns - now : 0;

    wait->deadline_ns = now + (left / 4 < TRY_NS ? left / 4 : TRY_NS);
}

/* The aggregator's secret is that of PK_SECRET_FILE, also where the ranks have theirs from a launcher or an id. */
static pk_result_t describe(struct pk_comm *comm, struct pki_switchml_join *join)
{
    unsigned char id[PKI_BOOTSTRAP_KEY_BYTES];
    struct pki_secret secret;
    enum pki_guard guard;
    pk_result_t result;

    *join = (struct pki_switchml_join){
        .where = pki_env_get("PK_SWITCHML"), .rank = comm->rank, .size = comm->size, .wait = pki_comm_setup_timeout(comm)
    };
    if (join->where == NULL)
        return pki_fail(PK_ERR_ARG, NULL,
                        "PK_ALGORITHM names switchml, so PK_SWITCHML has to name the aggregator: host:port or a file");
    memset(&secret, 0, sizeof secret);
    result = pki_secret_find(&secret, &guard);
    if (result == PK_OK)
        result = pki_bootstrap_derive(comm->bootstrap, "pickle switchml", id);
    if (result != PK_OK)
        return result;
    _Static_assert(PKI_SWITCHML_KEY_BYTES == PKI_SECRET_BYTES && PKI_SWITCHML_ID_BYTES <= PKI_BOOTSTRAP_KEY_BYTES,
                   "one is the other");
    memcpy(join->key, secret.key, sizeof join->key);
    memcpy(join->id, id, sizeof join->id);
    pki_auth_wipe(&secret, sizeof secret);
    return PK_OK;
}

pk_result_t pki_aggregate_join(struct pk_comm *comm, bool *joined)
{
    struct pki_switchml_join join;
    pk_result_t result;

    *joined = true;
    if (!comm->chooser.switchml || comm->size == 1 || pki_has_holes(comm))
        return PK_OK;
    result = describe(comm, &join);
    if (comm->settings.switchml_fallback != 0)
        limit_try(&join.wait);
    if (result == PK_OK)
        result = pki_switchml_open(&join, &comm->switchml);
    pki_auth_wipe(join.key, sizeof join.key);
    if (result == PK_OK || comm->settings.switchml_fallback == 0 || result == PK_ERR_ABORTED || result == PK_ERR_ARG)
        return result;
    *joined = false;
    return PK_OK;
}

void pki_aggregate_agree(struct pk_comm *comm, bool all)
{
    if (!comm->chooser.switchml || comm->size == 1 || pki_has_holes(comm))
        return;
    if (!all) {
        if (comm->switchml != NULL)
            pki_log(PKI_LOG_WARN, NULL, "rank %d: another rank has not joined the aggregator: allreduces go without it",
                    comm->rank);
        pki_switchml_close(comm->switchml);
        comm->switchml = NULL;
    }
    pki_engine_set_aggregator(comm->engine, comm->switchml, comm->settings.switchml_fallback != 0);
}

pk_result_t pki_aggregate_choose(const struct pk_comm *comm, pk_dtype_t dtype, pk_op_t op, struct pki_choice *choice)
{
    const bool sums = pki_switchml_sums(dtype, op);

    if (comm->size == 1)
        return PK_OK;
    if (comm->switchml != NULL && sums) {
        choice->instead = choice->algorithm;
        choice->algorithm = &pki_switchml_algorithm;
        choice->reason = "PK_ALGORITHM of rank 0: an aggregator sums";
        return PK_OK;
    }
    if (comm->settings.switchml_fallback == 0)
        return pki_fail(
            PK_ERR_UNSUPPORTED, NULL,
            "PK_ALGORITHM names switchml, but an aggregator makes only sums of f32 and int32, not reduction %llu of %s: "
            "PK_SWITCHML_FALLBACK=1 lets other operations go without it",
            (unsigned long long)op, pk_dtype_name(dtype));
    choice->reason = sums ? "PK_SWITCHML_FALLBACK: not all ranks have joined the aggregator"
                          : "PK_SWITCHML_FALLBACK: an aggregator sums only f32 and int32";
    return PK_OK;
}
