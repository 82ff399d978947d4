/* SPDX-License-Identifier: Apache-2.0 */
/* The place where the ranks of a communicator meet, as one of them knows it: from an id, or from its launcher. */
#ifndef PKI_BOOTSTRAP_MEETING_H
#define PKI_BOOTSTRAP_MEETING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "comm/bootstrap/wire.h"

#define PKI_MEETING_LISTENERS 8
#define PKI_MEETING_PORTS 2
#define PKI_MEETING_TEXT 288

/* What keeps strangers away. */
enum pki_guard {
    PKI_GUARD_SECRET,   /* the secret */
    PKI_GUARD_LOOPBACK, /* there is none, and nothing but loopback is served */
    PKI_GUARD_NOTHING   /* there is none, and PK_INSECURE=1 allows that */
};

struct pki_meeting {
    struct pki_secret secret;
    enum pki_guard guard;
    uint32_t life; /* how often this rank's launcher has started the job again, and one; 0: it does not say */

    /* Rank 0: how many of the last ranks have no number yet; and where it listens. */
    int joiners;
    int listener_count;
    int listeners[PKI_MEETING_LISTENERS]; /* guarded (util/fork.h) */

    /* The others: where they look for it. */
    bool listened;               /* rank 0 did before anybody was told */
    bool led;                    /* there is the process that made the id, which leads to rank 0 */
    char what[PKI_MEETING_TEXT]; /* "PK_ROOT=node1:7000", for texts; empty for an id */
    char host[PKI_HOST_BYTES];   /* the name to be resolved; empty: the addresses are known */
    int port_count;              /* of host: in turn */
    uint16_t ports[PKI_MEETING_PORTS];
    int address_count; /* with their ports */
    struct sockaddr_storage address[PKI_MEETING_LISTENERS];
};

/* The meeting of an id. Rank 0 (`listens`) takes its listeners out of the process's table. PK_ERR_ARG: it is no id; unrecorded
 * is whether there are listeners. */
pk_result_t pki_meeting_of_id(const pk_unique_id_t *id, bool listens, struct pki_meeting *meeting);

/* Close the listeners; and forget the secret too. */
void pki_meeting_stop_listening(struct pki_meeting *meeting);
void pki_meeting_close(struct pki_meeting *meeting);

/* Listen at `count` addresses, at most PKI_MEETING_LISTENERS; ports are filled in. Left out of the list are addresses that this
 * host does not have, those of a family that it does not have or a sandbox denies, and those without a free port of PK_PORTS;
 * where a given port is taken, if `taken_ok`. Else, for an any-address whose port is taken: at `instead` (or NULL), if that is of
 * its family; an any-address of the other family is left out. PK_ERR_SYSTEM: none is left. PK_ERR_ARG (PK_PORTS). Nothing stays
 * open then. */
pk_result_t pki_meeting_listen(struct sockaddr_storage *address, int *count, bool taken_ok,
                               const struct sockaddr_storage *instead, int *listeners);

/* "192.0.2.1:7000, [2001:db8::1]:7000" */
void pki_meeting_where(const int *listeners, int count, char *out, size_t room);

/* ---- bootstrap/secret.c ---- */

/* The secret of PK_SECRET_FILE; zeros without. PK_ERR_ARG, PK_ERR_MEMORY, PK_ERR_SYSTEM. */
pk_result_t pki_secret_find(struct pki_secret *secret, enum pki_guard *guard);

/* May `what` be served, or be gone to? PK_ERR_ARG (recorded): it is not loopback, and nothing keeps strangers away. */
pk_result_t pki_secret_allows(enum pki_guard guard, const char *what, bool loopback);

/* ---- bootstrap/seek.c ---- */

struct pki_bootstrap;

/* Looks for rank 0 at all the addresses that it may have, which are resolved again and again, side by side. */
struct pki_seek;

struct pki_seek *pki_seek_open(struct pki_bootstrap *b, const struct pki_meeting *meeting); /* NULL: no memory */
void pki_seek_close(struct pki_seek *seek);

/* PK_OK: *fd is connected to rank 0, and both have proved themselves. PK_IN_PROGRESS: not before the deadline. PK_ERR_ABORTED.
 * PK_ERR_AUTH: whoever is there has another secret. PK_ERR_PEER: rank 0 was there, and is not any more. None of these is
 * recorded: pki_seek_explain says more. PK_ERR_ARG (pki_secret_allows), PK_ERR_SYSTEM: recorded. */
pk_result_t pki_seek_next(struct pki_seek *seek, uint64_t deadline_ns, int *fd);

/* Some address has accepted a connection, and proof is awaited there. */
bool pki_seek_is_answered(const struct pki_seek *seek);

/* The last connection broke before rank 0 admitted this rank. */
void pki_seek_lost(struct pki_seek *seek);

/* Why pki_seek_next returned `code`: each address with its own error. */
void pki_seek_explain(const struct pki_seek *seek, pk_result_t code, char *out, size_t room);

#endif
