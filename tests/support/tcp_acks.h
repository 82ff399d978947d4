/* SPDX-License-Identifier: Apache-2.0 */
/* For one file of a program: counts acknowledgements that go as messages of their own, on whichever connection. */
#ifndef TCP_ACKS_H
#define TCP_ACKS_H

#include <dlfcn.h>
#include <sys/socket.h>

#include "transport/tcp/tcp.h"

static unsigned acks;

/* Over libc's. */
ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    static ssize_t (*real)(int, const void *, size_t, int);
    struct pki_tcp_frame frame;

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "send");
    acks += count >= PKI_TCP_DATA_HEAD_BYTES && pki_tcp_get_header(bytes, &frame) && (frame.type == PKI_TCP_ACK || frame.type == PKI_TCP_DATA_ACK);
    return real(fd, bytes, count, flags);
}

#endif
