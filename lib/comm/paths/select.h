/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a path, as a pure function of what is known of two ranks. */
#ifndef PKI_SELECT_H
#define PKI_SELECT_H

#include "topology/topology.h"
#include "transport/transport.h"

#define PKI_SELECT_TRANSPORTS_MAX 4

/* Facts about this rank [0] and a peer [1]. */
struct pki_pair {
    bool same_rank, same_host, same_process;
    const char *apart;           /* why they do not share a host, where they do not; NULL: it is another one */
    bool has_gpu[2];
    bool same_gpu;
    enum pki_distance distance;  /* between the two GPUs */
    enum pki_distance p2p_level; /* PK_P2P_LEVEL: peer-to-peer up to this far; UNKNOWN: no limit */
    int ntransports;             /* in order of preference */
    const struct pki_transport *transports[PKI_SELECT_TRANSPORTS_MAX];
    struct pki_probe probes[PKI_SELECT_TRANSPORTS_MAX][2];
    bool connected[PKI_SELECT_TRANSPORTS_MAX]; /* an endpoint stands */
    bool can_put[PKI_SELECT_TRANSPORTS_MAX];   /* and it can put */
};

struct pki_path {
    const char *transport; /* "self", a transport's name, or NULL: no way */
    char device[32];       /* "cma", "ring", "copy engine", "copy" */
    double gbps;           /* expected, 1e9 bytes a second one way; 0 unknown */
    char reason[192];
};

/* Never fails: where there is no way, path->transport is NULL and the reason says what is missing. */
void pki_select(const struct pki_pair *pair, enum pki_mem_kind source, enum pki_mem_kind target, struct pki_path *path);

#endif
