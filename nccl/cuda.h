/* SPDX-License-Identifier: Apache-2.0 */
/* The little that is wanted of the CUDA driver: which device a thread uses, and how many there are. */
#ifndef PKN_CUDA_H
#define PKN_CUDA_H

#include "abi.h"

/* The device of the calling thread: of its current context, else device 0, as the CUDA runtime has it. PKN_CUDA_ERROR: there
 * is no driver, or no device. */
pkn_result_t pkn_cuda_device(int *device);
pkn_result_t pkn_cuda_count(int *count);

#endif
