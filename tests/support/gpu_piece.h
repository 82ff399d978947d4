/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of memory of any kind that programs hand to the library. What fails in making it ends the process. */
#ifndef GPU_PIECE_H
#define GPU_PIECE_H

#include "gpu_rank.h"
#include "gpu_vmm.h"

enum gpu_kind {
    GPU_DEVICE,     /* cudaMalloc */
    GPU_POOL,       /* cudaMallocAsync, in the rank's stream */
    GPU_EXPANDABLE, /* as torch's expandable segments */
    GPU_HIDDEN,     /* made of pieces too, without descriptors for others */
    GPU_OWN,        /* pk_mem_alloc_device */
    GPU_PINNED,
    GPU_PAGEABLE,
    GPU_KINDS
};
#define GPU_KINDS_ON_GPU GPU_PINNED /* those before it */

struct gpu_piece {
    enum gpu_kind kind;
    size_t bytes; /* at least as many as asked for */
    char *at;
    struct gpu_vmm vmm;
};

const char *gpu_kind_name(enum gpu_kind kind);
/* Where the driver has no pool, which is said once, such memory is cudaMalloc's. */
void gpu_piece_make(struct gpu_piece *piece, struct gpu_rank *self, enum gpu_kind kind, size_t bytes);
void gpu_piece_unmake(struct gpu_piece *piece, struct gpu_rank *self);
/* Of an expandable one: one more part of memory behind it, if asked for and possible; else another in the place of the last. */
void gpu_piece_change(struct gpu_piece *piece, bool grow);
/* Into or out of it. */
void gpu_piece_copy(const struct gpu_piece *piece, void *dst, const void *src, size_t bytes);

#endif
