/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank has of its agreements: made with the first message or call. All locked. */
#ifndef PKI_ENGINE_SURVIVOR_H
#define PKI_ENGINE_SURVIVOR_H

#include <poll.h>

#include "engine/survive.h"

struct pki_kept { /* a message of an agreement that has not begun here, or one that could not be sent yet */
    struct pki_list node;
    int rank;
    size_t bytes;
    unsigned char data[];
};

struct pki_survivor {
    struct pki_agree agree;
    uint64_t *set; /* of the message that is being taken */
    struct pki_list later, unsent;
    struct pollfd *fds;         /* [size + PKI_IFACES_MAX]: those of peers on this host, then of transports */
    uint64_t *heard_ns;         /* [size]: when a rank has last spoken of an agreement */
    int awaited[3], nawaited;   /* whom this rank waits for; -1: not known yet */
    uint64_t waits_ns, said_ns; /* since when it waits for them; when it has last said that it is here */
    int left_out_by;            /* a rank for which this one counts as dead; -1: none */
    uint64_t left_out_in;       /* the first agreement in which it does */
    int refused_by, refusal;    /* the last message that the system did not take: to whom, errno; 0: there was none */
    bool running;
    pk_result_t ended; /* PK_OK, or why this rank ends without an answer: PK_ERR_ABORTED, PK_ERR_MEMORY */
};

/* PK_ERR_UNSUPPORTED, PK_ERR_MEMORY. There may be one. */
pk_result_t pki_survivor_open(struct pki_engine *engine);
/* False: no memory. */
bool pki_survivor_keep(struct pki_list *list, int rank, const unsigned char *bytes, size_t n);
/* Try again what could not be sent. In order, of each rank. */
void pki_survivor_send_unsent(struct pki_engine *engine);

#endif
