/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PKN_HCA_H
#define PKN_HCA_H

#include <stdbool.h>
#include <stddef.h>

/* NCCL_IB_HCA as PK_RDMA_DEVICES: of the machine's devices those whose names begin with one of the words, with = are one of
 * them, with ^ do and are neither; a word may end with :port. Where there is none: the words themselves. */
bool pkn_hca(const char *value, char *out);
/* The same of these devices. */
void pkn_hca_of(const char *value, char *const *devices, int n, char *out, size_t room);

#endif
