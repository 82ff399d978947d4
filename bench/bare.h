/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bare copies on GPUs: cuMemcpyAsync into memory of another rank that gpu_ipc_open has mapped, and nothing else. They are the most that copy
 * engines can do, measured in the same run as what is compared with them.
 */
#ifndef BENCH_BARE_H
#define BENCH_BARE_H

#include "cuda_dl.h"

#define BARE_COPIES 16u /* behind one another, so that the launches overlap */

/* `n` copies, one behind the other: how long they took from the first call to the end of the last, in us. each[n], unless NULL: how long each
 * took on the GPU, between events; BARE_COPIES at most. Ends the program when one fails. */
double bare_copies_us(void *to, const void *from, size_t bytes, unsigned n, gpu_stream_t stream, double *each);

#endif
