/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on a GPU by cuDNN 9, which is opened at run time; bf16, softmax(scale Q K') V, no mask. */
#ifndef SDPA_H
#define SDPA_H

#include <stdbool.h>
#include <stdint.h>

/* Strides count elements: of a batch, a head and a token; a head's numbers lie side by side. The output lies as the queries do. */
struct sdpa_shape {
    int64_t batch, heads, queries, keys, width;
    int64_t query_strides[3], key_strides[3];
    float scale;
};

struct sdpa;

/* Is cuDNN here? `why` as below. */
bool sdpa_present(const char **why);
/* For the GPU whose context is current. `stream`: a CUDA stream. NULL: it cannot be done here, and `why` (static) says so. */
struct sdpa *sdpa_open(const struct sdpa_shape *shape, void *stream, const char **why);
/* Memory of the GPU that it needs while it computes; 0: none. */
int64_t sdpa_workspace_bytes(const struct sdpa *sdpa);
/* Put it into the stream. 0, or cuDNN's code. */
int sdpa_launch(struct sdpa *sdpa, const void *queries, const void *keys, const void *values, void *output, void *workspace);
void sdpa_close(struct sdpa *sdpa);
/* "cuDNN 9.19.0" */
const char *sdpa_name(void);

#endif
