/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded waiting, sending and receiving on non-blocking sockets, and frames that carry file descriptors. SIGPIPE is never
 * raised. */
#ifndef PKI_SOCKET_H
#define PKI_SOCKET_H

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pickle/base.h"
#include "util/log.h"

enum { PKI_GOES_ON, PKI_CALLED_OFF, PKI_CALLED_OFF_QUIETLY }; /* quietly: nobody need be told why */

/* What calls waits off. */
struct pki_call_off {
    atomic_int state;
    void (*look)(struct pki_call_off *self); /* NULL, or asked by waits every 20 ms: may set the state */
    uint64_t looked_ns;
};

bool pki_is_called_off(struct pki_call_off *cancel); /* or NULL */

/* How long to wait: until the deadline, or until it is called off (`cancel` may be NULL). */
struct pki_wait {
    uint64_t deadline_ns;
    struct pki_call_off *cancel;
    pk_result_t (*listen)(void *arg); /* NULL, or asked every 20 ms in which nothing came: other than PK_OK ends the wait */
    void *arg;
};

/* Wait until one of `fds` is ready. PK_OK: one is (revents are set). PK_IN_PROGRESS: the deadline has passed. PK_ERR_ABORTED:
 * it was called off. Neither of these two makes an error record: the caller knows what is missing.
 * PK_ERR_SYSTEM is recorded. And what wait->listen returns: PK_ERR_ABORTED of a wait that is not called off is recorded. */
pk_result_t pki_poll(struct pollfd *fds, size_t count, const struct pki_wait *wait);

/* Send exactly `bytes`. PK_ERR_TIMEOUT, PK_ERR_ABORTED, PK_ERR_PEER (closed or reset) or PK_ERR_SYSTEM, all recorded
 * for `where`; the stream is then in the middle of nowhere and of no further use. */
pk_result_t pki_send_all(int fd, const void *data, size_t bytes, const struct pki_wait *wait, const struct pki_where *where);

/*
 * Frames: up to PKI_FRAME_MAX bytes and PKI_FRAME_FDS descriptors over a connected unix stream socket.
 *
 * A frame goes whole or not at all, and frames neither merge nor split: the kernel queues a write of this size on a unix stream
 * as one piece when the send buffer is the default or larger (so do not shrink SO_SNDBUF), and the receiver reads exactly one
 * frame by the length in its header. The descriptors arrive with the bytes of their own frame. One thread sends and one thread
 * receives at a time on each end; do not mix frames with plain bytes unless both ends know where each begins.
 */
#define PKI_FRAME_MAX 4096
#define PKI_FRAME_FDS 250
#define PKI_FD_HEADER_BYTES 12 /* before the bytes of each, for who looks at them without taking them */

/* Never blocks. PK_OK: the frame is queued, and the descriptors stay the caller's (closing them now is fine). PK_IN_PROGRESS:
 * nothing was taken; poll for POLLOUT and offer it again. PK_ERR_PEER: the other end is gone (recorded, unless `where` is
 * NULL: for news that need not arrive). PK_ERR_ARG: too large. */
pk_result_t pki_fd_send(int fd, const void *data, size_t bytes, const int *fds, int fd_count, const struct pki_where *where);

struct pki_frame_in {
    void *data; /* in: room for `capacity` bytes */
    size_t capacity;
    size_t bytes; /* out */
    int *fds;     /* in: room for fd_capacity; out: the caller's, close-on-exec */
    int fd_capacity;
    int fd_count; /* out */
};

/* Never blocks. PK_OK: one frame is in `in`. PK_IN_PROGRESS: none has come. PK_ERR_PEER: the other end is gone. PK_ERR_SYSTEM:
 * descriptors were lost, usually because this process has too many open. PK_ERR_ARG: the frame is larger than `in` allows.
 * Errors are recorded, no descriptor stays open behind them, and the socket is of no further use. Outputs are set only with
 * PK_OK. */
pk_result_t pki_fd_recv(int fd, struct pki_frame_in *in, const struct pki_where *where);

/* The same, waiting. PK_ERR_TIMEOUT and PK_ERR_ABORTED (recorded) leave the socket as it was. */
pk_result_t pki_fd_send_wait(int fd, const void *data, size_t bytes, const int *fds, int fd_count, const struct pki_wait *wait,
                             const struct pki_where *where);
pk_result_t pki_fd_recv_wait(int fd, struct pki_frame_in *in, const struct pki_wait *wait, const struct pki_where *where);

#endif
