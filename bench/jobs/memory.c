/* SPDX-License-Identifier: Apache-2.0 */
#include "jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *jobs_alloc(struct jobs_run *run, size_t bytes)
{
    void *memory;

    bytes += bytes == 0;
    if (run->options.cuda)
        return gpu_alloc(bytes);
    if (posix_memalign(&memory, 4096, bytes) != 0) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(2);
    }
    memset(memory, 0, bytes);
    return memory;
}

void jobs_put(struct jobs_run *run, void *to, const void *host, size_t bytes)
{
    if (bytes == 0)
        return;
    if (run->options.cuda)
        gpu_copy(to, host, bytes);
    else
        memcpy(to, host, bytes);
}

void jobs_get(struct jobs_run *run, void *host, const void *from, size_t bytes)
{
    if (bytes == 0)
        return;
    if (run->options.cuda)
        gpu_copy(host, from, bytes);
    else
        memcpy(host, from, bytes);
    if (run->options.spoil)
        ((unsigned char *)host)[bytes / 2] ^= 0x41;
}
