/* SPDX-License-Identifier: Apache-2.0 */
/* How long one waits, in init, for a peer of this host, and to whom one listens meanwhile. */
#include "comm/comm.h"

static pk_result_t hear(void *comm)
{
    return pki_bootstrap_poll(((struct pk_comm *)comm)->bootstrap);
}

/* The peer may itself wait for a rank that has died or given up, and rank 0 has to pass that on. */
struct pki_wait pki_comm_setup_timeout(struct pk_comm *comm)
{
    return (struct pki_wait){ .deadline_ns = comm->deadline_ns, .cancel = &comm->cancel, .listen = hear, .arg = comm };
}
