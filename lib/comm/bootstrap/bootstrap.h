/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap: how the ranks of a communicator find one another, prove that they know the secret, and exchange their first
 * bytes. A star: every rank holds one TCP connection to rank 0. Before a byte of any connection is believed, both ends have
 * proved by HMAC-SHA256 over fresh nonces that they know the secret of the id. Traffic behind the proof is neither encrypted nor
 * signed.
 *
 * Errors are recorded (util/log.h) and sticky: after the first one every call on the bootstrap returns it again, and the other
 * ranks are told, so that all of them name the same culprit. One thread at a time uses a bootstrap. All waits look at `cancel`
 * every 20 ms.
 */
#ifndef PKI_BOOTSTRAP_H
#define PKI_BOOTSTRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "pickle/base.h"
#include "pickle/comm.h"
#include "util/list.h"
#include "util/socket.h"

#define PKI_HOST_ID_BYTES 32
#define PKI_BOOTSTRAP_KEY_BYTES 32
#define PKI_RANKS_MAX 65536
#define PKI_BOOTSTRAP_GATHER_MAX (1u << 20)

struct pki_bootstrap;
struct pki_meeting; /* comm/bootstrap/meeting.h */

/* Make an id with a fresh secret, and listen from now on, in this process, at up to four addresses of PK_IFNAME's interfaces,
 * else of all that others are likely to reach, else of loopback. The listeners wait in a table of the process until
 * pki_bootstrap_open takes them. PK_ERR_ARG (PK_IFNAME names no usable interface); PK_ERR_SYSTEM; PK_ERR_MEMORY. Any thread. */
pk_result_t pki_bootstrap_id(pk_unique_id_t *id);

/* The same, and a thread of this process leads the ranks to rank 0, which may be in any process, until all have been led or the
 * id is released. */
pk_result_t pki_bootstrap_id_anywhere(pk_unique_id_t *id);

/* Bring all ranks together: rank 0 takes the id's listener and accepts, the others connect. Returns once all are in; the listener
 * is closed by then, whatever the outcome. `cancel` may be NULL; it must live as long as the bootstrap. Size 1 uses no socket.
 *
 * PK_ERR_ARG (size, rank, an id that is none, or that was not made in rank 0's process or is used up); PK_ERR_TIMEOUT (the text
 * names the missing ranks, on every rank that is in); PK_ERR_ABORTED; PK_ERR_AUTH (rank 0 has another secret); PK_ERR_MISMATCH
 * (sizes disagree, or a rank exists twice; names it); PK_ERR_PEER (a rank died meanwhile); PK_ERR_SYSTEM; PK_ERR_MEMORY. */
pk_result_t pki_bootstrap_open(struct pki_bootstrap **bootstrap, int size, int rank, const pk_unique_id_t *id,
                               uint64_t deadline_ns, struct pki_call_off *cancel);

/* The same for a communicator that grows: the last `joiners` ranks come by pki_bootstrap_open_joiner, numbered as they come. */
pk_result_t pki_bootstrap_open_grown(struct pki_bootstrap **bootstrap, int size, int rank, int joiners, const pk_unique_id_t *id,
                                     uint64_t deadline_ns, struct pki_call_off *cancel);

/* A rank that joins waits until the others have come, then *size and *rank are known. PK_ERR_PEER: nobody is there any more, or
 * all places are taken. */
pk_result_t pki_bootstrap_open_joiner(struct pki_bootstrap **bootstrap, int *size, int *rank, const pk_unique_id_t *id,
                                      uint64_t deadline_ns, struct pki_call_off *cancel);

/* Is it an id for ranks that join? */
bool pki_id_grows(const pk_unique_id_t *id);

/* The same at the meeting that a launcher has named; closes it. */
pk_result_t pki_bootstrap_open_at(struct pki_bootstrap **bootstrap, int size, int rank, struct pki_meeting *meeting,
                                  uint64_t deadline_ns, struct pki_call_off *cancel);

/* Give back an id that nobody has used: nobody listens for it any more. PK_ERR_ARG: this process did not make it, or it is used
 * up. */
pk_result_t pki_bootstrap_release(const pk_unique_id_t *id);

/* The same without an error: false where there is nothing to give back. */
bool pki_id_drop(const pk_unique_id_t *id);

/* Gather `bytes` (the same everywhere, 1 to PKI_BOOTSTRAP_GATHER_MAX, and below 4 GiB in all) from every rank, in rank order, on
 * every rank, through rank 0.
 * PK_ERR_MISMATCH when a rank contributes another length; PK_ERR_TIMEOUT names the ranks that did not come. */
pk_result_t pki_bootstrap_allgather(struct pki_bootstrap *bootstrap, const void *mine, size_t bytes, void *all,
                                    uint64_t deadline_ns);

/* mine[size]: what this rank has for each rank, `bytes` (as of a gather) each; theirs[size]: what each has for this one. A rank
 * gets what is for it alone: n * n entries go through rank 0, where a gather of all rows would bring each of n ranks as many.
 * Errors as of a gather. */
pk_result_t pki_bootstrap_alltoall(struct pki_bootstrap *bootstrap, const void *mine, size_t bytes, void *theirs,
                                   uint64_t deadline_ns);

pk_result_t pki_bootstrap_barrier(struct pki_bootstrap *bootstrap, uint64_t deadline_ns);

/* Join this rank and every other rank r with local[r] by an authenticated unix stream socket (a name made from randomness,
 * abstract or in PK_RUN_DIR; both ends must run as the same user). fds[size] gets connected, non-blocking, close-on-exec sockets,
 * the caller's, and -1 elsewhere; set only with PK_OK. PK_ERR_UNSUPPORTED: another rank runs as another user. They are guarded
 * (util/fork.h): let them go before closing them. Every rank calls it, those without local peers too, and local[] must be
 * symmetric. */
pk_result_t pki_bootstrap_connect_local(struct pki_bootstrap *bootstrap, const bool *local, int *fds, uint64_t deadline_ns);

/* A key that the ranks of this communicator alone can make, another one for every label (shorter than 32 bytes), from the secret
 * and the session. PK_ERR_SYSTEM. */
pk_result_t pki_bootstrap_derive(const struct pki_bootstrap *bootstrap, const char *label,
                                 unsigned char key[PKI_BOOTSTRAP_KEY_BYTES]);

/* The address of this host that a control connection uses, with some port: it reaches rank 0, or on rank 0 some other rank. One
 * that is not of loopback, if there is any. False: there is no connection (size 1). */
bool pki_bootstrap_local_address(const struct pki_bootstrap *bootstrap, struct sockaddr_storage *address);
/* Of each control connection, by the number of the rank at its other end; family 0 where there is none. Returns how many there
 * are: none, one (rank 0's), or the size. `address` has room for them. */
int pki_bootstrap_local_addresses(const struct pki_bootstrap *bootstrap, struct sockaddr_storage *address);

/* Look, without blocking, whether some rank reported an error or died without pki_bootstrap_close. PK_OK, or the error, recorded.
 * Rank 0 tells the others. Errors of a rank that closed in good order are none. */
pk_result_t pki_bootstrap_poll(struct pki_bootstrap *bootstrap);

/* Something went wrong between this rank and another, most likely because of an error that is on its way here, which is the one
 * to return: wait a moment for it. PK_OK: none came. */
pk_result_t pki_bootstrap_news(struct pki_bootstrap *bootstrap);

/* Tell every other rank that this one gives up, and why. Their next call or pki_bootstrap_poll returns `code` naming `peer` (-1:
 * none) with this text. Best effort, never blocks. Only the first error of a bootstrap is told. */
void pki_bootstrap_tell(struct pki_bootstrap *bootstrap, pk_result_t code, int peer, const char *text);

/* NULL is legal. Local: other ranks see that this one left in good order. */
void pki_bootstrap_close(struct pki_bootstrap *bootstrap);

enum pki_host_by { PKI_HOST_BY_NAME, PKI_HOST_BY_DIRECTORY, PKI_HOST_BY_NETWORK, PKI_HOST_UNKNOWN };

struct pki_host {
    /* Two ranks with equal ones can reach each other by unix sockets. Made from PK_HOST_ID when set, else from the boot id and,
     * with PK_RUN_DIR, that directory, wherever it is mounted, else the network namespace. */
    unsigned char host_id[PKI_HOST_ID_BYTES];
    /* ranks with equal ones share its CPUs, whatever host they take themselves to be on */
    unsigned char machine_id[PKI_HOST_ID_BYTES];
    bool machine_known; /* else that is this process's alone */
    enum pki_host_by by;
    char why[96]; /* UNKNOWN, and then host_id is this process's alone: "/proc/...: No such file or directory" */
};

void pki_bootstrap_host(uint64_t process, struct pki_host *host); /* `process`: a random number of this process */

/* The effective user of this process, by its number outside of the user namespace that the process is in: the same user has the
 * same number in all containers of a machine, but in namespaces within namespaces. */
uint32_t pki_bootstrap_user(void);

/* Can this process make unix sockets and connect them? False: `why` says what was denied. Having too many open files is no
 * denial. */
bool pki_bootstrap_unix_works(char *why, size_t room);

/* Size, rank and meeting of the job this process belongs to: PK_RANK, PK_SIZE and PK_ROOT (host:port of rank 0), else torchrun's
 * RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, else PMIx. To be called once for each communicator, in the same order on all
 * ranks: between pki_launcher_wait and _leave. The caller closes the meeting, on rank 0 with its listeners, or hands it on.
 * `cancel` may be NULL.
 *
 * The launcher's port is torch's own: rank 0 listens, and the others look for it, at MASTER_PORT + 1013 and + 2026 (above 65535:
 * on from 1024). With PK_ROOT and torchrun the secret is PK_SECRET_FILE's; without one only loopback addresses are served unless
 * PK_INSECURE=1. Rank 0 listens at every address of its machine, however it is written there (docs/design/0036), unless all
 * ranks are known to be here (LOCAL_WORLD_SIZE), there is no secret, or PK_ROOT is an address of loopback.
 * PK_ERR_UNSUPPORTED (no launcher); PK_ERR_ARG (a variable is wrong, named); PK_ERR_TIMEOUT; PK_ERR_ABORTED; PK_ERR_SYSTEM. */
pk_result_t pki_launcher_find(int *size, int *rank, struct pki_meeting *meeting, uint64_t deadline_ns,
                              struct pki_call_off *cancel);

/* All communicators that a launcher brings together meet at one place, so they come one after the other: a communicator enters
 * when it is made, waits until those before it have left, finds and opens, and leaves, whatever the outcome. */
void pki_launcher_enter(struct pki_list *turn);
pk_result_t pki_launcher_wait(const struct pki_list *turn, uint64_t deadline_ns, struct pki_call_off *cancel);
void pki_launcher_leave(struct pki_list *turn); /* legal without enter if `turn` was initialised, and twice */

#endif
