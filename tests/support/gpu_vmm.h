/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the current device made of pieces by cuMemCreate and cuMemMap, as torch's expandable segments are. */
#ifndef GPU_VMM_H
#define GPU_VMM_H

#include <stddef.h>

struct gpu_vmm {
    char *ptr;             /* NULL: this driver cannot */
    size_t bytes, piece;   /* that are mapped; of one piece */
    unsigned pieces, most; /* mapped; there are addresses for */
    int ordinal;
    unsigned long long *handles;
    int is_private;
};

/* At least `bytes` in pieces of the smallest size there is, exportable as descriptors, for device `ordinal`. */
struct gpu_vmm gpu_vmm_alloc(int ordinal, size_t bytes);
/* One that no other process can map: made without descriptors. */
struct gpu_vmm gpu_vmm_alloc_private(int ordinal, size_t bytes);
/* With addresses for at least `most` bytes: gpu_vmm_grow maps one piece more, and returns 0 where all are mapped. */
struct gpu_vmm gpu_vmm_alloc_growing(int ordinal, size_t bytes, size_t most);
int gpu_vmm_grow(struct gpu_vmm *memory);
/* Unmap the last piece and map a new one in its place. */
void gpu_vmm_replace_last(struct gpu_vmm *memory, int ordinal);
void gpu_vmm_free(struct gpu_vmm *memory);

#endif
