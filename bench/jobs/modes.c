/* SPDX-License-Identifier: Apache-2.0 */
#include "jobs.h"

#include <string.h>

static const struct jobs_mode modes[] = {
    { "allreduce", "sums one after another: a line a job, then their statistics", jobs_allreduce, NULL },
    { "data", "data parallel: gradients reduced in buckets while the layers before are computed", jobs_train, &jobs_data },
    { "sharded", "sharded data parallel: parameters gathered, gradients scattered, layer by layer", jobs_train, &jobs_sharded },
    { "tensor", "tensor parallel: two sums of the activations a layer, each waited for", jobs_train, &jobs_tensor },
    { "sequence", "sequence parallel: keys and values go round the ring while attention is computed", jobs_train,
      &jobs_sequence },
    { "pipeline", "pipeline of stages, one forward one backward: activations and their gradients", jobs_train, &jobs_pipeline },
    { "expert", "experts: tokens go to theirs and come back, uneven", jobs_train, &jobs_expert },
    { "product", "tensor parallel in pairs times data parallel over the pairs", jobs_train, &jobs_product },
    { "beside", "what computing loses while messages of a size are exchanged all the time", jobs_beside, NULL },
    { "copies", "copies between two processes and what opening the other's memory costs", jobs_copies, NULL },
};

const struct jobs_mode *jobs_mode_at(int i)
{
    return i < (int)(sizeof modes / sizeof modes[0]) ? &modes[i] : NULL;
}

const struct jobs_mode *jobs_find_mode(const char *name)
{
    for (int i = 0; jobs_mode_at(i) != NULL; i++)
        if (strcmp(modes[i].name, name) == 0)
            return &modes[i];
    return NULL;
}
