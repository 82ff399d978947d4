/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"

pk_result_t pk_comm_init(pk_comm_t **comm, const pk_comm_config_t *config)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = comm != NULL ? PK_OK : pki_fail(PK_ERR_ARG, NULL, "pk_comm_init: comm is null");

    return pki_leave(cancel, result != PK_OK ? result : pki_comm_create(comm, 0, 0, NULL, config));
}

pk_result_t pk_get_unique_id(pk_unique_id_t *id)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = id != NULL ? PK_OK : pki_fail(PK_ERR_ARG, NULL, "pk_get_unique_id: id is null");

    return pki_leave(cancel, result != PK_OK ? result : pki_bootstrap_id(id));
}

pk_result_t pk_get_unique_id_anywhere(pk_unique_id_t *id)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = id != NULL ? PK_OK : pki_fail(PK_ERR_ARG, NULL, "pk_get_unique_id_anywhere: id is null");

    return pki_leave(cancel, result != PK_OK ? result : pki_bootstrap_id_anywhere(id));
}

pk_result_t pk_unique_id_release(const pk_unique_id_t *id)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = id == NULL ? pki_fail(PK_ERR_ARG, NULL, "pk_unique_id_release: id is null") : PK_OK;

    return pki_leave(cancel, result != PK_OK ? result : pki_bootstrap_release(id));
}

pk_result_t pk_comm_init_rank(pk_comm_t **comm, int size, int rank, const pk_unique_id_t *id, const pk_comm_config_t *config)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = PK_OK;

    if (comm == NULL || id == NULL)
        result = pki_fail(PK_ERR_ARG, NULL, "pk_comm_init_rank: %s is null", comm == NULL ? "comm" : "id");
    else if (size < 1 || size > PKI_RANKS_MAX || rank < 0 || rank >= size)
        result = pki_fail(PK_ERR_ARG, NULL, "pk_comm_init_rank: rank %d of size %d (1 to %d)", rank, size, PKI_RANKS_MAX);
    else if (pki_id_grows(id))
        result = pki_fail(PK_ERR_ARG, NULL, "pk_comm_init_rank: the id is for ranks that join a communicator (pk_comm_join)");
    return pki_leave(cancel, result != PK_OK ? result : pki_comm_create(comm, size, rank, id, config));
}

pk_result_t pk_comm_split(pk_comm_t *comm, int color, int key, pk_comm_t **newcomm, const pk_comm_config_t *config)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("split");
    pk_result_t result = newcomm != NULL ? pki_check_open(comm, &call) : pki_fail(PK_ERR_ARG, &call, "newcomm is null");

    if (result == PK_OK && pki_in_group())
        result = pki_fail(PK_ERR_ARG, &call, "a group is open in this thread");
    return pki_leave(cancel, result != PK_OK ? result : pki_comm_split(comm, color, key, newcomm, config));
}

pk_result_t pk_comm_abort(pk_comm_t *comm)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = pki_check_own(comm, &(struct pki_where)PKI_CALL("comm_abort"));

    return pki_leave(cancel, result != PK_OK ? result : pki_comm_abort(comm));
}

pk_result_t pk_comm_finalize(pk_comm_t *comm)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("comm_finalize");
    pk_result_t result = pki_check_comm(comm, &call);

    if (result == PK_OK && pki_in_group())
        result = pki_fail(PK_ERR_ARG, &call, "a group is open in this thread");
    return pki_leave(cancel, result != PK_OK ? result : pki_comm_finalize(comm));
}

pk_result_t pk_comm_async_error(pk_comm_t *comm)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = pki_check_own(comm, &(struct pki_where)PKI_CALL("comm_async_error"));

    return pki_leave(cancel, result != PK_OK ? result : pki_comm_look(comm));
}

pk_result_t pk_comm_destroy(pk_comm_t *comm)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = comm == NULL ? PK_OK : pki_check_own(comm, &(struct pki_where)PKI_CALL("comm_destroy"));

    if (comm != NULL && result == PK_OK) {
        pki_group_forgo(comm, NULL);
        result = pki_comm_destroy(comm);
    }
    return pki_leave(cancel, result);
}

static pk_result_t check_question(const pk_comm_t *comm, const int *answer, const char *name)
{
    const struct pki_where call = PKI_CALL(name);
    pk_result_t result = pki_check_own(comm, &call);

    if (result == PK_OK && answer == NULL)
        result = pki_fail(PK_ERR_ARG, &call, "no place for the answer");
    if (result == PK_OK && !pki_comm_placed(comm))
        result = PK_IN_PROGRESS;
    return result;
}

pk_result_t pk_comm_rank(const pk_comm_t *comm, int *rank)
{
    pk_result_t result = check_question(comm, rank, "comm_rank");

    if (result == PK_OK)
        *rank = comm->rank;
    return result;
}

pk_result_t pk_comm_size(const pk_comm_t *comm, int *size)
{
    pk_result_t result = check_question(comm, size, "comm_size");

    if (result == PK_OK)
        *size = comm->size;
    return result;
}
