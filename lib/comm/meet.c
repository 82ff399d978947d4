/* SPDX-License-Identifier: Apache-2.0 */
/* The first half of bringing a communicator up: this rank's device, who the ranks are, and the bootstrap that joins them. */
#include "comm/bootstrap/internal.h"
#include "comm/comm.h"
#include "util/auth.h"
#include "util/clock.h"

/* How long a rank that cannot take part looks for the others, to tell them why. */
#define SHUTDOWN_NS (10 * PKI_NS_PER_S)

pk_result_t pki_comm_open_device(struct pk_comm *comm)
{
    const struct pki_device_ops *cuda = pki_device_cuda();
    int ordinal = comm->config.device - 1;
    pk_result_t result;

    if (comm->config.device == PK_DEVICE_HOST || comm->device != NULL)
        return PK_OK;
    if (comm->config.device == PK_DEVICE_AUTO) {
        if (cuda == NULL)
            return PK_OK;
        result = cuda->open(-1, &comm->device);
        return result == PK_ERR_UNSUPPORTED ? PK_OK : result;
    }
    if (cuda == NULL || pki_device_cuda_absent() != NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "cuda device %d: %s", ordinal,
                        cuda == NULL ? "this library was built without cuda" : pki_device_cuda_absent());
    return cuda->open(ordinal, &comm->device);
}

static uint64_t earliest(const struct pk_comm *comm, uint64_t most_ns)
{
    uint64_t now = pki_now_ns();

    return comm->deadline_ns <= now || comm->deadline_ns - now < most_ns ? comm->deadline_ns : now + most_ns;
}

/* A rank that joins has its place when it has met the others. */
static pk_result_t open_bootstrap(struct pk_comm *comm, int joiners, uint64_t deadline_ns)
{
    const bool joins = comm->rank == PKI_JOINS;
    pk_result_t result;

    if (joins)
        result = pki_bootstrap_open_joiner(&comm->bootstrap, &comm->size, &comm->rank, &comm->id, deadline_ns, &comm->cancel);
    else
        result = pki_bootstrap_open_grown(&comm->bootstrap, pki_seats_count(comm), pki_seats_own(comm), joiners, &comm->id,
                                          deadline_ns, &comm->cancel);
    if (result == PK_OK && (joins || joiners > 0))
        result = pki_seats_settle(comm, joins);
    if (result == PK_OK && joins)
        atomic_store_explicit(&comm->placed, true, memory_order_release);
    return result;
}

/* Everything about the launcher happens in the communicators' order, which is the same on all ranks. When the ranks of a split
 * have met it takes so long at most. */
static pk_result_t find_and_open(struct pk_comm *comm, uint64_t most_ns)
{
    struct pki_meeting meeting = { .listener_count = 0 };
    pk_result_t result = PK_OK;
    uint64_t deadline_ns;
    int joiners = 0;

    if (comm->split != NULL)
        result = pki_split_meet(comm, &joiners);
    deadline_ns = earliest(comm, most_ns);
    if (comm->from_launcher) {
        result = pki_launcher_wait(&comm->turn, deadline_ns, &comm->cancel);
        if (result == PK_OK)
            result = pki_launcher_find(&comm->size, &comm->rank, &meeting, deadline_ns, &comm->cancel);
    }
    if (result == PK_OK && comm->rank != PKI_JOINS)
        atomic_store_explicit(&comm->placed, true, memory_order_release); /* pairs with the load in pki_comm_placed */
    if (result == PK_OK && comm->from_launcher)
        result = pki_bootstrap_open_at(&comm->bootstrap, comm->size, comm->rank, &meeting, deadline_ns, &comm->cancel);
    else if (result == PK_OK)
        result = open_bootstrap(comm, joiners, deadline_ns);
    pki_launcher_leave(&comm->turn);
    pki_auth_wipe(&comm->id, sizeof comm->id);
    return result;
}

/* The others would wait for this rank until their deadline. */
static pk_result_t send_shutdown(struct pk_comm *comm, pk_result_t result)
{
    const pk_error_info_t kept = *pki_error_get();

    if (comm->rank == PKI_JOINS) /* another one may take its place */
        return result;
    if (find_and_open(comm, SHUTDOWN_NS) == PK_OK)
        pki_bootstrap_tell(comm->bootstrap, result, -1, kept.text);
    pki_error_set(&kept);
    return result;
}

pk_result_t pki_comm_meet(struct pk_comm *comm)
{
    pk_result_t result = pki_comm_open_device(comm);

    return result == PK_OK ? find_and_open(comm, UINT64_MAX) : send_shutdown(comm, result);
}
