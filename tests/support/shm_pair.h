/* SPDX-License-Identifier: Apache-2.0 */
/* Two endpoints of the shm transport in one process. */
#ifndef SHM_PAIR_H
#define SHM_PAIR_H

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "transport/shm/shm.h"

static inline const struct pki_transport *shm(void)
{
    return pki_transport_find("shm");
}

struct pair {
    struct pki_iface *iface[2];
    struct pki_ep *ep[2];
};

static inline struct pki_ep *ep_new(struct pki_iface **iface, int rank, bool same_process, int64_t peer_pid)
{
    struct pki_iface_config config = { .rank = rank, .size = 2 };
    struct pki_ep *ep = calloc(1, shm()->ep_bytes);

    *iface = calloc(1, shm()->iface_bytes);
    (*iface)->transport = shm();
    assert(shm()->open(&config, *iface) == PK_OK);
    *ep = (struct pki_ep){ .iface = *iface, .rank = rank, .peer = 1 - rank, .same_process = same_process, .peer_pid = peer_pid };
    return ep;
}

static inline void ep_free(struct pki_iface *iface, struct pki_ep *ep)
{
    shm()->ep_close(ep);
    shm()->close(iface);
    free(ep);
    free(iface);
}

/* Both ends in this process; unless same_process they treat each other as another process, which happens to have this one's pid. */
static inline struct pair pair_new(bool same_process)
{
    struct pair pair;
    struct pki_blob blob[2];

    for (int i = 0; i < 2; i++) {
        pair.ep[i] = ep_new(&pair.iface[i], i, same_process, getpid());
        assert(shm()->ep_init(pair.ep[i], &blob[i]) == PK_OK);
        blob[i].fd = fcntl(blob[i].fd, F_DUPFD_CLOEXEC, 0);
    }
    for (int i = 0; i < 2; i++)
        assert(shm()->ep_connect(pair.ep[i], &blob[1 - i]) == PK_OK);
    return pair;
}

static inline void pair_free(struct pair *pair)
{
    for (int i = 0; i < 2; i++)
        ep_free(pair->iface[i], pair->ep[i]);
}

#endif
