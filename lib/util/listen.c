/* SPDX-License-Identifier: Apache-2.0 */
#include "util/listen.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/env.h"
#include "util/fd.h"
#include "util/log.h"
#include "util/netif.h"

struct range {
    unsigned first, count; /* count 0: any port */
};

static bool parse_range(const char *text, struct range *range)
{
    unsigned first, last;
    int all = 0;

    if (strspn(text, "0123456789-") != strlen(text) || sscanf(text, "%5u-%5u%n", &first, &last, &all) != 2 || text[all] != '\0')
        return false;
    if (first < 1 || last > 65535 || first > last)
        return false;
    *range = (struct range){ .first = first, .count = last - first + 1 };
    return true;
}

static pk_result_t read_range(struct range *range)
{
    const char *text = pki_env_get("PK_PORTS");

    *range = (struct range){ .count = 0 };
    if (text == NULL || parse_range(text, range))
        return PK_OK;
    return pki_fail(PK_ERR_ARG, NULL, "PK_PORTS=%.64s is not a range of ports, first-last, from 1 to 65535", text);
}

/* This host does not have the family, or a sandbox denies it. */
static bool is_without_family(int error)
{
    return error == EAFNOSUPPORT || error == EPROTONOSUPPORT || error == EACCES || error == EPERM;
}

/* One attempt at the address and its port. Returns 0 or errno; EAFNOSUPPORT: there are no sockets of this family. */
static int listen_at(struct sockaddr_storage *address, int backlog, int *listener)
{
    const int on = 1;
    socklen_t bytes = sizeof *address;
    int error, fd = pki_fd_keep(socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

    if (fd < 0)
        return is_without_family(errno) ? EAFNOSUPPORT : errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    /* Two that share an address before either listens are told only when the second one does. */
    if (bind(fd, (const struct sockaddr *)address, pki_netif_bytes(address)) == 0 && listen(fd, backlog) == 0 &&
        getsockname(fd, (struct sockaddr *)address, &bytes) == 0) {
        *listener = fd;
        return 0;
    }
    error = errno;
    close(fd);
    return error;
}

/* Ranks that start at the same time begin at different ports. */
static int listen_in(const struct range *range, struct sockaddr_storage *address, int backlog, int *listener)
{
    const unsigned begin = (unsigned)(((uint64_t)getpid() * 2654435761u + pki_now_ns()) % range->count);
    int error = EADDRINUSE;

    for (unsigned i = 0; i < range->count && (error == EADDRINUSE || error == EACCES); i++) {
        pki_netif_set_port(address, (uint16_t)(range->first + (begin + i) % range->count));
        error = listen_at(address, backlog, listener);
    }
    return error;
}

pk_result_t pki_listen_try(struct sockaddr_storage *address, int backlog, int *listener)
{
    struct range range;
    pk_result_t result = read_range(&range);
    bool within;
    int error;

    if (result != PK_OK)
        return result;
    within = pki_netif_port(address) == 0 && range.count > 0;
    error = within ? listen_in(&range, address, backlog, listener) : listen_at(address, backlog, listener);
    if (error == 0)
        return PK_OK;
    if (within)
        pki_netif_set_port(address, 0);
    errno = error;
    return PK_IN_PROGRESS;
}

pk_result_t pki_listen_failed(const struct sockaddr_storage *address, int error)
{
    struct range range;
    char text[PKI_NETIF_TEXT];
    pk_result_t result = read_range(&range);

    if (result != PK_OK)
        return result;
    pki_netif_format(address, text);
    errno = error;
    if (pki_netif_port(address) == 0 && range.count > 0 && error == EADDRINUSE)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "cannot listen at %s: none of the ports PK_PORTS=%u-%u is free", text,
                              range.first, range.first + range.count - 1);
    return pki_fail_errno(PK_ERR_SYSTEM, NULL, "cannot listen at %s", text);
}

pk_result_t pki_listen(struct sockaddr_storage *address, int backlog, bool optional, int *listener)
{
    const bool chosen = pki_netif_port(address) == 0;
    pk_result_t result = pki_listen_try(address, backlog, listener);

    if (result != PK_IN_PROGRESS)
        return result;
    if (optional && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT || (errno == EADDRINUSE && !chosen)))
        return PK_IN_PROGRESS;
    return pki_listen_failed(address, errno);
}
