/* SPDX-License-Identifier: Apache-2.0 */
#include "ports.h"

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT_FIRST 10000
#define PORTS 10000 /* the kernel's own begin at 32768, those of scripts at 20000 */
#define STEP 7      /* has no factor in common with PORTS: all of them are tried */

static bool is_free(int port)
{
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_ANY) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    bool free;

    if (fd < 0)
        return false;
    free = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
           bind(fd, (const struct sockaddr *)&any, sizeof any) == 0 && listen(fd, 1) == 0;
    close(fd);
    return free;
}

int free_port(const int *offsets, int n)
{
    static atomic_uint asked; /* the next one of this process is another */

    for (int tries = 0; tries < PORTS; tries++) {
        unsigned at = (unsigned)getpid() * 131u + STEP * atomic_fetch_add(&asked, 1);
        int port = PORT_FIRST + (int)(at % PORTS);
        bool free = is_free(port);

        for (int i = 0; i < n; i++)
            free = free && is_free(port + offsets[i]);
        if (free)
            return port;
    }
    fprintf(stderr, "no port is free from %d to %d\n", PORT_FIRST, PORT_FIRST + PORTS - 1);
    exit(2);
}
