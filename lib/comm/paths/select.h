/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a path, as a pure function of what is known of two ranks. */
#ifndef PKI_SELECT_H
#define PKI_SELECT_H

#include "topology/topology.h"
#include "transport/transport.h"

#define PKI_SELECT_TRANSPORTS_MAX 4

/* How near two ranks are; who is nearer has what those farther apart have, too. */
enum pki_nearness {
    PKI_NEAR_NOT,     /* They share no host. */
    PKI_NEAR_HOST,    /* They share a host. */
    PKI_NEAR_PROCESS, /* They are of one process. */
    PKI_NEAR_SELF     /* They are one rank. */
};

/* What a transport has between two ranks. */
enum pki_joint {
    PKI_JOINT_NONE,   /* Nothing. */
    PKI_JOINT_STANDS, /* An endpoint. */
    PKI_JOINT_PUTS    /* An endpoint that can put. */
};

/* Facts about this rank [0] and a peer [1]. */
struct pki_pair {
    enum pki_nearness near;
    const char *apart; /* why they do not share a host, where they do not; NULL: it is another one */
    bool has_gpu[2];
    bool same_gpu;
    enum pki_distance distance;  /* between the two GPUs */
    enum pki_distance p2p_level; /* PK_P2P_LEVEL: peer-to-peer up to this far; UNKNOWN: no limit */
    int ntransports;             /* in order of preference */
    const struct pki_transport *transports[PKI_SELECT_TRANSPORTS_MAX];
    struct pki_probe probes[PKI_SELECT_TRANSPORTS_MAX][2];
    enum pki_joint joints[PKI_SELECT_TRANSPORTS_MAX];
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
