/* SPDX-License-Identifier: Apache-2.0 */
/* An init out of another communicator: where the parent fails, so does the init, with the parent's error. */
#include "comm/comm.h"

/* PK_OK, or the failure that its other ranks hear of, too: not an abort, of which nobody need hear while nothing is under way. */
static pk_result_t failure_of(struct pk_comm *parent)
{
    pk_result_t result;

    pki_engine_look_around(parent->engine);
    result = pki_engine_status(parent->engine);
    return result == PK_ERR_ABORTED ? PK_OK : result;
}

static void look_at_parent(struct pki_call_off *cancel)
{
    struct pk_comm *comm = pki_container_of(cancel, struct pk_comm, cancel);
    int goes_on = PKI_GOES_ON;

    if (failure_of(comm->parent) != PK_OK)
        (void)atomic_compare_exchange_strong(&cancel->state, &goes_on, PKI_CALLED_OFF_QUIETLY);
}

void pki_comm_watch_parent(struct pk_comm *comm, struct pk_comm *parent)
{
    comm->parent = parent;
    comm->cancel.look = look_at_parent;
}

/* The parent's failure is why the other ranks have given up, too. Behind an abort of this one the parent may be no more. */
pk_result_t pki_comm_leave_parent(struct pk_comm *comm, pk_result_t result)
{
    const pk_error_info_t kept = *pki_error_get();
    pk_result_t of_parent = PK_OK;

    if (comm->parent != NULL && result != PK_OK && atomic_load(&comm->cancel.state) != PKI_CALLED_OFF)
        of_parent = failure_of(comm->parent);
    comm->cancel.look = NULL;
    comm->parent = NULL;
    if (of_parent != PK_OK)
        return of_parent;
    pki_error_set(&kept);
    return result;
}
