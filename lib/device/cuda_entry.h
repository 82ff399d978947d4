/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device as list.c sees it, without cuda.h. */
#ifndef PKI_CUDA_ENTRY_H
#define PKI_CUDA_ENTRY_H

#include "device/device.h"

extern const struct pki_device_ops pki_device_cuda_ops;

/* As pki_device_cuda_absent. */
const char *pki_cuda_absent(void);

/* As pki_device_cuda_mem_alloc and _free. */
pk_result_t pki_cuda_mem_alloc(int ordinal, size_t bytes, void **ptr);
pk_result_t pki_cuda_mem_free(void *ptr);

/* As pki_device_cuda_link. */
enum pki_device_link pki_cuda_link(const char *bus_id_a, const char *bus_id_b);

#endif
