/* SPDX-License-Identifier: Apache-2.0 */
/* Listening TCP sockets. */
#ifndef PKI_LISTEN_H
#define PKI_LISTEN_H

#include <stdbool.h>
#include <sys/socket.h>

#include "pickle/base.h"

/* A socket, non-blocking and close-on-exec, that listens at `address`; one of IPv6 takes no IPv4. Port 0: a free port is
 * chosen, of those that PK_PORTS=first-last allows where it is set, and filled in. PK_ERR_ARG: PK_PORTS is no range.
 * PK_ERR_SYSTEM, recorded; errno is EADDRINUSE where no port of PK_PORTS is free. PK_IN_PROGRESS (only if `optional`; nothing
 * is recorded, errno says which): this host does not have the address or its family, or denies it, or the given port is taken. */
pk_result_t pki_listen(struct sockaddr_storage *address, int backlog, bool optional, int *listener);

/* The same where the caller judges: PK_IN_PROGRESS for all that the system refuses; errno, and `address` is as it was. */
pk_result_t pki_listen_try(struct sockaddr_storage *address, int backlog, int *listener);
/* Record that. */
pk_result_t pki_listen_failed(const struct sockaddr_storage *address, int error);

#endif
