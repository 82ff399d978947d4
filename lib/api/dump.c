/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"

static pk_result_t check(const pk_comm_t *comm, const char *text, size_t capacity, struct pki_where *call)
{
    if (text == NULL && capacity > 0)
        return pki_fail(PK_ERR_ARG, call, "text is null and capacity %zu", capacity);
    if (comm != NULL && !pki_fork_is_ours(comm->stamp))
        return pki_check_own(comm, call);
    if (comm != NULL && pki_comm_outcome(comm) != PK_OK)
        return pki_fail(PK_ERR_ARG, call, "the communicator is not up");
    return PK_OK;
}

/* For what is of a communicator alone. */
static pk_result_t check_own(const pk_comm_t *comm, const char *text, size_t capacity, const char *name)
{
    struct pki_where call = PKI_CALL(name);

    return comm == NULL ? pki_fail(PK_ERR_ARG, &call, "comm is null") : check(comm, text, capacity, &call);
}

pk_result_t pk_topology_dump(const pk_comm_t *comm, char *text, size_t capacity, size_t *needed)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("topology_dump");
    pk_result_t result = check(comm, text, capacity, &call);

    return pki_leave(cancel, result == PK_OK ? pki_topology_dump(comm, text, capacity, needed) : result);
}

pk_result_t pk_pending_dump(const pk_comm_t *comm, char *text, size_t capacity, size_t *needed)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = check_own(comm, text, capacity, "pending_dump");

    if (result == PK_OK)
        pki_engine_pending(comm->engine, text, capacity, needed);
    return pki_leave(cancel, result);
}

pk_result_t pk_config_dump(const pk_comm_t *comm, char *text, size_t capacity, size_t *needed)
{
    const int cancel = pki_cancel_hold();
    pk_result_t result = check_own(comm, text, capacity, "config_dump");

    if (result == PK_OK)
        pki_config_dump(comm, text, capacity, needed);
    return pki_leave(cancel, result);
}
