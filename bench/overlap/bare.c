/* SPDX-License-Identifier: Apache-2.0 */
/* Bare copies: cuIpcOpenMemHandle once, then cuMemcpyAsync from the own buffer into the next rank's. */
#include "overlap.h"

#include <stdio.h>

static char *next_result; /* mapped here; NULL: not open */

static void post(struct overlap_run *run, const struct overlap_case *c)
{
    gpu_copy_async(next_result, run->source, c->bytes, run->message_stream);
}

void overlap_bare_open(struct overlap_run *run, struct overlap_side *side)
{
    gpu_ipc_t own, all[run->size];

    gpu_ipc_export(run->result, &own);
    overlap_share(run, &own, all, sizeof own);
    next_result = gpu_ipc_open(&all[(run->rank + 1) % run->size]);
    *side = (struct overlap_side){ .name = "bare copy", .post = post, .bare = true };
    snprintf(side->how, sizeof side->how, "cuMemcpyAsync into the next rank's buffer, which is mapped once");
}

/* Before anybody frees a buffer that is mapped elsewhere. */
void overlap_bare_close(struct overlap_run *run)
{
    if (next_result != NULL)
        gpu_ipc_close(next_result);
    next_result = NULL;
    overlap_share(run, "", NULL, 0);
}
