/* SPDX-License-Identifier: Apache-2.0 */
#include "bare.h"

#include <stdio.h>
#include <stdlib.h>

#include "timing.h"

double bare_copies_us(void *to, const void *from, size_t bytes, unsigned n, gpu_stream_t stream, double *each)
{
    gpu_event_t events[BARE_COPIES + 1];
    double us;
    int code;

    for (unsigned i = 0; each != NULL && i <= n; i++)
        events[i] = gpu_event_new();
    us = now_us();
    if (each != NULL)
        gpu_event_record(events[0], stream);
    for (unsigned i = 0; i < n; i++) {
        gpu_copy_async(to, from, bytes, stream);
        if (each != NULL)
            gpu_event_record(events[i + 1], stream);
    }
    code = gpu_stream_sync(stream);
    us = now_us() - us;
    if (code != 0) {
        fprintf(stderr, "bare copy: %s\n", gpu_error(code));
        exit(1);
    }
    for (unsigned i = 0; each != NULL && i < n; i++)
        each[i] = gpu_event_elapsed_us(events[i], events[i + 1]);
    for (unsigned i = 0; each != NULL && i <= n; i++)
        gpu_event_free(events[i]);
    return us;
}
