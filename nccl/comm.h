/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators as programs hold them. A handle has references: the program's own, until it destroys or aborts the
 * communicator, and one of each call and job that is under way, for an abort comes from other threads during calls. The last
 * one destroys libpickle's communicator. Handles are kept for later communicators instead of being freed: one that is used
 * too long is refused.
 */
#ifndef PKN_COMM_H
#define PKN_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "abi.h"
#include "config.h"
#include "table.h"

struct pkn_reduction; /* reduction.h */

struct pkn_comm {
    atomic_int references;
    atomic_bool owned; /* the program's reference is there */
    atomic_bool ready; /* rank and size are known, operations may be called */
    atomic_bool finalized;
    atomic_bool revoked;   /* by the program, here */
    atomic_int end;        /* a pkn_result_t: what came of that; PKN_IN_PROGRESS: not yet */
    atomic_int background; /* a pkn_result_t: PKN_IN_PROGRESS while a thread works for this handle, then what came of it */
    pthread_mutex_t lock;  /* of the next seven */
    pk_comm_t *pk;         /* NULL until the init has begun */
    bool aborted;
    struct pkn_comm *parent; /* held while it is split off: the parent must live until this one is made */
    struct pkn_registration *registrations;
    struct pkn_reduction *reductions;
    pk_unique_id_t grow_id; /* ncclCommGetUniqueId has made it, and nobody has used it */
    bool has_grow_id;
    int rank, size, device;
    bool blocking;
    struct pkn_settings settings; /* that a split inherits */
    int operations;               /* in the group that ends */
    struct pkn_comm *next_spare;
};

/* A handle with the program's reference. NULL: no memory, recorded. */
struct pkn_comm *pkn_comm_new(int device, const struct pkn_settings *settings);

/* Take a reference. PKN_INVALID_ARGUMENT, recorded: NULL, or no communicator any more. */
pkn_result_t pkn_comm_hold(struct pkn_comm *comm);
/* The same, and it must be ready and not finalized: what operations want. */
pkn_result_t pkn_comm_use(struct pkn_comm *comm);
void pkn_comm_release(struct pkn_comm *comm);

/* The program gives its handle up; legal twice. */
void pkn_comm_disown(struct pkn_comm *comm);

/* libpickle's communicator is there: an abort that came before is carried out. `parent`: out of which it is made, or NULL. */
void pkn_comm_set(struct pkn_comm *comm, pk_comm_t *pk, struct pkn_comm *parent);
/* Has an abort come? Then no init need begin. */
bool pkn_comm_is_aborted(struct pkn_comm *comm);

/* PKN_SUCCESS: made, and in order. PKN_IN_PROGRESS: being made, or a thread works for it. Else what is wrong with it,
 * recorded. Never blocks. */
pkn_result_t pkn_comm_state(struct pkn_comm *comm);

/* Let a thread call run(comm, arg): the state is PKN_IN_PROGRESS until it has returned, and then what it returned. */
pkn_result_t pkn_comm_in_background(struct pkn_comm *comm, pkn_result_t (*run)(struct pkn_comm *comm, void *arg), void *arg);

/* grow.c: an id for ranks that join is given back if it was not used. */
void pkn_grow_forget(struct pkn_comm *comm);

/* Release what waits in it, here and on the others. Any thread. */
void pkn_comm_stop(struct pkn_comm *comm);

#endif
