/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the bootstrap share. */
#ifndef PKI_BOOTSTRAP_INT_H
#define PKI_BOOTSTRAP_INT_H

#include <sys/un.h>

#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/meeting.h"
#include "comm/bootstrap/wire.h"
#include "util/log.h"
#include "util/socket.h"

/* A control connection, after its handshake. */
struct pki_conn {
    int fd;        /* -1: none */
    uint32_t life; /* rank 0: that it gave in its hello */
    bool left;     /* said BYE */
    bool ready;    /* `frame` and `payload` hold a whole frame */
    unsigned char header[PKI_FRAME_HEADER_BYTES];
    size_t have; /* of header, then of header and payload */
    struct pki_frame frame;
    unsigned char *payload;
};

#define PKI_JOINS (-1) /* a rank whose number and size are not known: size is as large as it may be */

struct pki_bootstrap {
    int size, rank;
    struct pki_call_off *cancel;
    struct pki_secret secret;
    unsigned char session[PKI_SESSION_BYTES]; /* made by rank 0 for this bootstrap alone */
    uint32_t sequence;                        /* of the next gather, or round of an all-to-all */
    uint32_t life;                            /* of the meeting */
    uint64_t began_ns;                        /* the call in progress, for texts */
    uint64_t report_ns;                       /* when it is due to say what it waits for */
    struct pki_conn *conns;                   /* by rank: on rank 0 all but itself, elsewhere rank 0 alone */
    int conn_count;
    int watch_fd;       /* rank 0: epoll over conns; else -1 */
    bool at_maker;      /* not rank 0: it asks the process that made the id where rank 0 is */
    bool asked;         /* rank 0: a rank's deadline passed, and it asks who is missing */
    pk_result_t failed; /* PK_OK, or the first error, described by `error` */
    pk_error_info_t error;
    struct pki_notice notice; /* what the others are told of it */
};

/* ---- bootstrap/conn.c ---- */

void pki_conn_close(struct pki_conn *c);

/* Go on reading a frame; never blocks. PK_OK: c->ready. PK_IN_PROGRESS. PK_ERR_PEER (broken; errno, or 0 for closed).
 * PK_ERR_INTERNAL (no frame). PK_ERR_MEMORY. None is recorded. */
pk_result_t pki_conn_read(struct pki_conn *c, size_t part_max, size_t all_max);
void pki_conn_release(struct pki_conn *c); /* forget the frame that was read */

/* Record an error, remember it as the bootstrap's, tell the other ranks. Returns `code`. */
pk_result_t pki_bootstrap_fail(struct pki_bootstrap *b, pk_result_t code, int peer, const char *fmt, ...) PKI_PRINTF(4, 5);

/* With an errno, which the text ends with. */
pk_result_t pki_bootstrap_fail_errno(struct pki_bootstrap *b, pk_result_t code, int peer, int error, const char *fmt, ...)
    PKI_PRINTF(5, 6);

/* Tell it to one more, who came too late to hear it; and tell something to one alone. */
void pki_bootstrap_notify(const struct pki_bootstrap *b, int fd);
void pki_conn_tell(int fd, uint32_t sequence, const struct pki_notice *notice);

/* The same for an error that a lower layer has recorded already. PK_OK passes through. */
pk_result_t pki_bootstrap_adopt(struct pki_bootstrap *b, pk_result_t code);

/* The first error again, recorded for this thread without another line; PK_OK when there is none. */
pk_result_t pki_bootstrap_check(const struct pki_bootstrap *b);

/* Read from rank r. PK_OK: a frame is ready. PK_IN_PROGRESS: none yet, or r left and nobody waits for it, or r asks who is
 * missing (b->asked). Errors (r died, r told of one) are the bootstrap's. */
pk_result_t pki_bootstrap_receive(struct pki_bootstrap *b, int r, bool needed);

pk_result_t pki_bootstrap_send(struct pki_bootstrap *b, int r, enum pki_frame_type type, const void *data, size_t bytes,
                               uint64_t deadline_ns);

/* Not rank 0: wait for the frame `type` from rank 0; at the deadline ask it who is missing. The caller releases the frame. */
pk_result_t pki_bootstrap_await(struct pki_bootstrap *b, enum pki_frame_type type, uint64_t deadline_ns);

/* Fail with PK_ERR_TIMEOUT and a text that names the ranks of which missing(b, r) is true; `tail` is appended. */
pk_result_t pki_bootstrap_missing(struct pki_bootstrap *b, bool (*missing)(const struct pki_bootstrap *b, int r),
                                  const char *tail);
/* "rank 3" or "ranks 1, 4-6"; returns the first, -1 when there is none. */
int pki_bootstrap_name_missing(const struct pki_bootstrap *b, bool (*missing)(const struct pki_bootstrap *b, int r), char *out,
                               size_t room);

/* Has the call taken 5 s, and three times as long since the last line? Then the caller says what it waits for. */
bool pki_bootstrap_report_is_due(struct pki_bootstrap *b);

/* Whole milliseconds since the call in progress began. */
unsigned long long pki_bootstrap_elapsed_ms(const struct pki_bootstrap *b);

/* ---- bootstrap/root.c, bootstrap/join.c: the two sides of pki_bootstrap_open ---- */

/* Rank 0: accept until every rank is in, then welcome them all. Nobody listens at the meeting afterwards, whatever happens. */
pk_result_t pki_bootstrap_gather_ranks(struct pki_bootstrap *b, struct pki_meeting *meeting, uint64_t deadline_ns);

/* Others: connect, prove, and wait for the welcome. */
pk_result_t pki_bootstrap_join(struct pki_bootstrap *b, const struct pki_meeting *meeting, uint64_t deadline_ns);

/* ---- bootstrap/lead.c: ids whose rank 0 may be anywhere ---- */

/* Rank 0 of such an id: listen, and tell the process that made the id where. */
pk_result_t pki_bootstrap_come_forward(struct pki_bootstrap *b, struct pki_meeting *meeting, uint64_t deadline_ns);

/* The other ranks: where the frame PKI_FRAME_WHERE, which is released, says that rank 0 listens. */
pk_result_t pki_bootstrap_follow(struct pki_bootstrap *b, const struct pki_meeting *meeting, struct pki_meeting *there);

/* Lead nobody any more. False: this process does not lead for the id. */
bool pki_lead_drop(const pk_unique_id_t *id);

/* ---- bootstrap/net.c: ids and their listeners ---- */

/* Where to listen for an id, ports 0: at loopback, or (not `loopback`, or PK_IFNAME is set) at the likeliest addresses that
 * others reach this process at. `first` (or NULL) is known to be good, and alone where the system does not tell of interfaces.
 * PK_ERR_ARG (PK_IFNAME), PK_ERR_SYSTEM. */
pk_result_t pki_id_addresses(bool loopback, const struct sockaddr_storage *first, struct pki_id *id);

/* Listen at id's addresses, of which those that do not exist are left out and ports are filled in, write the id, and keep the
 * listeners in the process's table. */
pk_result_t pki_listener_make(struct pki_id *id, pk_unique_id_t *out);

/* Take the listeners of an id out of the table: the caller closes them (pki_meeting_close). Returns how many, 0 when this
 * process has none for it. */
int pki_listener_take(const pk_unique_id_t *id, int listeners[PKI_MEETING_LISTENERS]);

/* Close them. False: there are none. */
bool pki_listener_drop(const pk_unique_id_t *id);

/* ---- bootstrap/place.c: unix sockets ---- */

/* The name of a rank's socket. Nobody can guess it before it exists, and sessions do not meet. */
pk_result_t pki_place_name(const struct pki_bootstrap *b, int rank, struct sockaddr_un *name, socklen_t *bytes);
pk_result_t pki_place_bind(const struct pki_bootstrap *b, int fd); /* to this rank's own name */
void pki_place_leave(const struct pki_bootstrap *b);               /* everybody has connected: remove it */
const char *pki_place_hint(void);                                  /* for the text of a connection that failed */

/* ---- launch/pmix.c ---- */

/* Was this process started under PMIx? Looks at the environment only. */
bool pki_pmix_present(void);
pk_result_t pki_pmix_find(int *size, int *rank, pk_unique_id_t *id, uint64_t deadline_ns, struct pki_call_off *cancel);

/* ---- bootstrap.c ---- */

/* An id on the given interface with a fresh secret. */
pk_result_t pki_bootstrap_id_on(bool loopback, pk_unique_id_t *id);

#endif
