/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by a kernel of the example's own, for machines without cuDNN. */
#ifndef ATTEND_H
#define ATTEND_H

#include "sdpa.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Put it into the stream: widths 64 and 128, strides that are multiples of 8. 0; a CUDA error; -1: it cannot do this shape. */
int attend_launch(const struct sdpa_shape *shape, const void *queries, const void *keys, const void *values, void *output,
                  void *stream);

#ifdef __cplusplus
}
#endif

#endif
