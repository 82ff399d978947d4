/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operation between two ranks with GPU memory, by number: its call, and the right bytes afterwards. Elements are PK_F32; a block is the
 * operation's `count`, which an operation with uneven counts takes as the longest.
 */
#ifndef GPU_OPS_H
#define GPU_OPS_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu_rank.h"

struct gpu_ops {
    struct gpu_rank *self;
    size_t most;     /* elements of the longest block */
    size_t shift;    /* where the data of the present operation begins */
    float *in, *out; /* of the GPU */
    float *given[2]; /* what each rank has in `in`; whole numbers, so that sums are exact */
    float *host;
};

int gpu_ops_count(void);
const char *gpu_ops_name(int op);
/* A barrier moves nothing: one length is enough. */
bool gpu_ops_has_lengths(int op);
bool gpu_ops_sums(int op);

void gpu_ops_open(struct gpu_ops *ops, struct gpu_rank *self, size_t most);
void gpu_ops_close(struct gpu_ops *ops);

/* What the library says of the operation beforehand: PK_ERR_NEEDS_SM where it would refuse it on this rank. */
pk_result_t gpu_ops_explain(const struct gpu_ops *ops, int op, size_t n);
/* Fill the buffers: other data and other places with each turn. Then call; then, when the stream has ended it, look at every byte. */
void gpu_ops_prepare(struct gpu_ops *ops, int op, size_t n, int turn);
pk_result_t gpu_ops_call(struct gpu_ops *ops, int op, size_t n);
bool gpu_ops_right(const struct gpu_ops *ops, int op, size_t n);

#endif
