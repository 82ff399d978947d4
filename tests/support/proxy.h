/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A proxy for the connections that this process makes between "hosts": it splits, merges, delays and cuts what goes through. A test
 * program that has its own connect() calls proxy_connect in it; the bootstrap's connections go through as they are.
 */
#ifndef PROXY_H
#define PROXY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct proxy_rules {
    size_t life_bytes;           /* a connection is cut after up to so many; 0: never by itself */
    _Atomic int64_t *made, *cut; /* counted, of all ranks */
    unsigned seed;
};

/* Before the first connection. */
void proxy_rule(const struct proxy_rules *rules);
/* In place of libc's connect. */
int proxy_connect(int fd, const struct sockaddr *address, socklen_t bytes);
/* Cut every connection that goes through this process's proxy now. With `hold`, those made from now on lead nowhere until
 * proxy_let_through. */
void proxy_cut_all(int hold);
void proxy_let_through(void);
/* From now on it accepts and hangs up, as where nobody is behind it. (Somebody else may have the port of who has died.) */
void proxy_accept_and_close(void);
/* As proxy_cut_all, holding, as soon as so many bytes more have gone through: at that byte, not at a time. */
void proxy_cut_behind(size_t bytes);

#endif
