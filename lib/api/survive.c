/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"

/* It is up, whether it has failed or not. */
static pk_result_t check_up(pk_comm_t *comm, struct pki_where *call)
{
    pk_result_t result = pki_check_own(comm, call);

    if (result != PK_OK)
        return result;
    if (pki_comm_outcome(comm) == PK_IN_PROGRESS)
        return pki_fail(PK_ERR_ARG, call, "the communicator is still being made (pk_comm_async_error tells when it is ready)");
    if (pki_comm_outcome(comm) != PK_OK)
        return pki_fail(PK_ERR_ARG, call, "the communicator was not made: its init failed");
    call->rank = comm->rank;
    return PK_OK;
}

static pk_result_t check_together(pk_comm_t *comm, struct pki_where *call)
{
    pk_result_t result = check_up(comm, call);

    if (result == PK_OK && atomic_load(&comm->state) == PKI_COMM_FINALIZED)
        result = pki_fail(PK_ERR_ARG, call, "the communicator was finalized (pk_comm_finalize)");
    if (result == PK_OK && pki_in_group())
        result = pki_fail(PK_ERR_ARG, call, "a group is open in this thread");
    return result;
}

pk_result_t pk_comm_revoke(pk_comm_t *comm)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("comm_revoke");
    pk_result_t result = check_up(comm, &call);

    if (result == PK_OK)
        pki_engine_revoke(comm->engine);
    return pki_leave(cancel, result);
}

static void list_failed(const pk_comm_t *comm, const struct pki_agreement *a, int *failed, int *failed_count)
{
    int n = 0;

    for (int r = 0; r < comm->size; r++) {
        if (!pki_counts_as_dead(a, r))
            continue;
        if (failed != NULL)
            failed[n] = r;
        n++;
    }
    if (failed_count != NULL)
        *failed_count = n;
}

pk_result_t pk_comm_agree(pk_comm_t *comm, uint64_t value, uint64_t *all, int *failed, int *failed_count, uint64_t *last_complete)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("agree");
    struct pki_agreement a = { .all = value, .calls = PKI_CALLS_AGREE };
    pk_result_t result = check_together(comm, &call);

    if (result == PK_OK)
        result = pki_engine_agree(comm->engine, &a);
    if (result == PK_OK)
        result = pki_check_calls(comm, a.calls, "agree");
    if (result != PK_OK)
        return pki_leave(cancel, result);
    if (all != NULL)
        *all = a.all;
    if (last_complete != NULL)
        *last_complete = a.last;
    list_failed(comm, &a, failed, failed_count);
    return pki_leave(cancel, PK_OK);
}

static pk_result_t check_excluded(const pk_comm_t *comm, const int *exclude, int count, const struct pki_where *call)
{
    if (count < 0 || (count > 0 && exclude == NULL))
        return pki_fail(PK_ERR_ARG, call, "%d ranks to exclude%s", count, exclude == NULL ? ", and no list" : "");
    for (int i = 0; i < count; i++)
        if (exclude[i] < 0 || exclude[i] >= comm->size || exclude[i] == comm->rank)
            return pki_fail(PK_ERR_ARG, call, "rank %d cannot be excluded by rank %d of %d", exclude[i], comm->rank, comm->size);
    return PK_OK;
}

pk_result_t pk_comm_get_unique_id(pk_comm_t *comm, pk_unique_id_t *id)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("comm_get_unique_id");
    pk_result_t result = id != NULL ? pki_check_open(comm, &call) : pki_fail(PK_ERR_ARG, &call, "id is null");

    if (result == PK_OK && comm->rank != pki_next_member(comm, 0))
        result = pki_fail(PK_ERR_ARG, &call, "this is rank %d: ranks that join meet the others at rank %d", comm->rank,
                          pki_next_member(comm, 0));
    return pki_leave(cancel, result != PK_OK ? result : pki_grow_id(comm, id));
}

pk_result_t pk_comm_grow(pk_comm_t *comm, int count, const pk_unique_id_t *id, pk_comm_t **newcomm,
                         const pk_comm_config_t *config)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("grow");
    pk_result_t result = newcomm != NULL ? pki_check_open(comm, &call) : pki_fail(PK_ERR_ARG, &call, "newcomm is null");

    if (result == PK_OK && pki_in_group())
        result = pki_fail(PK_ERR_ARG, &call, "a group is open in this thread");
    if (result == PK_OK && (count < 1 || count > PKI_RANKS_MAX - comm->size))
        result = pki_fail(PK_ERR_ARG, &call, "%d ranks to take in (1 to %d)", count, PKI_RANKS_MAX - comm->size);
    if (result == PK_OK && comm->rank == pki_next_member(comm, 0) && id == NULL)
        result = pki_fail(PK_ERR_ARG, &call, "rank %d gives no id", comm->rank);
    if (result == PK_OK)
        result = pki_comm_create_grown(newcomm, comm, count, id, config);
    if (result != PK_OK && result != PK_IN_PROGRESS && result != PK_ERR_ARG && id != NULL &&
        comm->rank == pki_next_member(comm, 0))
        (void)pki_id_drop(id); /* used up, though perhaps nobody has taken it */
    return pki_leave(cancel, result);
}

pk_result_t pk_comm_join(pk_comm_t **comm, int rank, const pk_unique_id_t *id, const pk_comm_config_t *config)
{
    const int cancel = pki_cancel_hold();
    const struct pki_where call = PKI_CALL("join");
    pk_result_t result = PK_OK;

    if (comm == NULL || id == NULL)
        result = pki_fail(PK_ERR_ARG, &call, "%s is null", comm == NULL ? "comm" : "id");
    else if (rank < -1 || rank >= PKI_RANKS_MAX)
        result = pki_fail(PK_ERR_ARG, &call, "rank is %d (-1: any)", rank);
    else if (!pki_id_grows(id))
        result = pki_fail(PK_ERR_ARG, &call, "pk_comm_get_unique_id did not make the id");
    return pki_leave(cancel, result != PK_OK ? result : pki_comm_create_joiner(comm, id, rank, config));
}

pk_result_t pk_comm_shrink(pk_comm_t *comm, int flags, const int *exclude, int exclude_count, pk_comm_t **newcomm,
                           const pk_comm_config_t *config)
{
    const int cancel = pki_cancel_hold();
    const int both = PK_SHRINK_KEEP_RANKS | PK_SHRINK_REPLACE;
    struct pki_where call = PKI_CALL("shrink");
    pk_result_t result = newcomm != NULL ? check_together(comm, &call) : pki_fail(PK_ERR_ARG, &call, "newcomm is null");

    if (result == PK_OK && ((flags & ~(PK_SHRINK_REVOKE | both)) != 0 || (flags & both) == both))
        result = pki_fail(PK_ERR_ARG, &call, "flags are %#x", (unsigned)flags);
    if (result == PK_OK)
        result = check_excluded(comm, exclude, exclude_count, &call);
    if (result == PK_OK && (flags & PK_SHRINK_REVOKE) != 0)
        pki_engine_revoke(comm->engine);
    return pki_leave(cancel, result != PK_OK ? result : pki_comm_shrink(comm, flags, exclude, exclude_count, newcomm, config));
}
