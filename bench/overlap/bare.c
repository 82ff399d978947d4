/* SPDX-License-Identifier: Apache-2.0 */
/* Bare copies: cuIpcOpenMemHandle once, then cuMemcpyAsync from the own buffer into the next rank's. */
#include "overlap.h"

#include <stdio.h>
#include <stdlib.h>

static char *next_result; /* mapped here; NULL: not open */

static void post(struct beside_run *run, const struct beside_case *c)
{
    gpu_copy_async(next_result, run->source, c->bytes, run->message_stream);
}

void beside_bare_open(struct beside_run *run, struct beside_side *side)
{
    gpu_ipc_t own, *all = calloc((size_t)run->size, sizeof *all);

    if (all == NULL)
        abort();
    gpu_ipc_export(run->result, &own);
    beside_share(run, &own, all, sizeof own);
    next_result = gpu_ipc_open(&all[(run->rank + 1) % run->size]);
    free(all);
    *side = (struct beside_side){ .name = "bare copy", .post = post, .bare = true };
    snprintf(side->how, sizeof side->how, "cuMemcpyAsync into the next rank's buffer, which is mapped once");
}

/* Before anybody frees a buffer that is mapped elsewhere. */
void beside_bare_close(struct beside_run *run)
{
    if (next_result != NULL)
        gpu_ipc_close(next_result);
    next_result = NULL;
    beside_share(run, "", NULL, 0);
}
