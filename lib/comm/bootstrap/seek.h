/* SPDX-License-Identifier: Apache-2.0 */
/* What looking for rank 0 (bootstrap/seek.c) and telling of it (bootstrap/seek_text.c) share. */
#ifndef PKI_BOOTSTRAP_SEEK_H
#define PKI_BOOTSTRAP_SEEK_H

#include "comm/bootstrap/accept.h"
#include "comm/bootstrap/internal.h"
#include "comm/bootstrap/meeting.h"
#include "util/resolve.h"

#define PKI_SEEK_CANDIDATES 64
#define PKI_SEEK_WHY 128

enum pki_seek_state { PKI_SEEK_PAUSED, PKI_SEEK_CONNECTING, PKI_SEEK_PROVING };

/* How the last attempt at an address has ended, or how far it is. */
enum pki_seek_outcome { PKI_SEEK_UNTRIED, PKI_SEEK_FAILED, PKI_SEEK_ACCEPTED, PKI_SEEK_CLOSED, PKI_SEEK_STRANGER };

struct pki_candidate {
    struct sockaddr_storage address;
    enum pki_seek_state state;
    enum pki_seek_outcome outcome;
    int error; /* with PKI_SEEK_FAILED */
    int fd;    /* -1 while it rests */
    uint64_t since_ns, next_ns, pause_ns;
    uint64_t timeout_ns; /* for how long its silence is borne before it is tried again */
    uint64_t lost_ns;    /* when a connection broke that rank 0 had not admitted; 0: none has */
    struct pki_handshake handshake;
};

struct pki_seek {
    struct pki_bootstrap *b;
    const struct pki_meeting *meeting;
    struct pki_lookup *lookup; /* NULL: none is under way */
    uint64_t asked_ns, ask_ns, ask_pause_ns, known_pause_ns;
    bool allowed;           /* pki_secret_allows has been asked */
    char why[PKI_SEEK_WHY]; /* the name is not known; empty: it is */
    uint64_t begun_ns;      /* the first address came */
    uint64_t nowhere_ns;    /* since when an id's rank 0 is at none of its addresses; 0: it may be at one */
    int count, found;
    struct pki_candidate candidates[PKI_SEEK_CANDIDATES];
};

/* Nobody listens there. */
bool pki_candidate_refuses(const struct pki_candidate *c);
/* It accepted connections once, and refuses them now. */
bool pki_candidate_is_lost(const struct pki_candidate *c);
int pki_seek_count_strangers(const struct pki_seek *seek);
/* "rank 0", or "the process that made the id". */
const char *pki_seek_host_of(const struct pki_seek *seek);

#endif
