/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the current device made of pieces by cuMemCreate and cuMemMap, as torch's expandable segments are. */
#ifndef GPU_VMM_H
#define GPU_VMM_H

#include <stddef.h>

struct gpu_vmm {
    char *ptr; /* NULL: this driver cannot */
    size_t bytes, piece;
    unsigned pieces;
    unsigned long long *handles;
    int is_private;
};

/* At least `bytes` in pieces of the smallest size there is, exportable as descriptors, for device `ordinal`. */
struct gpu_vmm gpu_vmm_alloc(int ordinal, size_t bytes);
/* One that no other process can map: made without descriptors. */
struct gpu_vmm gpu_vmm_alloc_private(int ordinal, size_t bytes);
/* Unmap the last piece and map a new one in its place. */
void gpu_vmm_replace_last(struct gpu_vmm *memory, int ordinal);
void gpu_vmm_free(struct gpu_vmm *memory);

#endif
