/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices this build has: the one place that knows whether CUDA is among them. */
#include "device/device.h"
#include "util/log.h"

#ifdef PICKLE_HAVE_CUDA
#include "device/cuda_entry.h"

const struct pki_device_ops *pki_device_cuda(void)
{
    return &pki_device_cuda_ops;
}

const char *pki_device_cuda_absent(void)
{
    return pki_cuda_absent();
}

enum pki_device_link pki_device_cuda_link(const char *bus_id_a, const char *bus_id_b)
{
    return pki_cuda_link(bus_id_a, bus_id_b);
}

pk_result_t pki_device_cuda_mem_alloc(int ordinal, size_t bytes, void **ptr)
{
    return pki_cuda_mem_alloc(ordinal, bytes, ptr);
}

pk_result_t pki_device_cuda_mem_free(void *ptr)
{
    return pki_cuda_mem_free(ptr);
}
#else
const struct pki_device_ops *pki_device_cuda(void)
{
    return NULL;
}

const char *pki_device_cuda_absent(void)
{
    return "this libpickle was built without CUDA";
}

enum pki_device_link pki_device_cuda_link(const char *bus_id_a, const char *bus_id_b)
{
    (void)bus_id_a, (void)bus_id_b;
    return PKI_LINK_UNKNOWN;
}

pk_result_t pki_device_cuda_mem_alloc(int ordinal, size_t bytes, void **ptr)
{
    (void)ordinal, (void)bytes, (void)ptr;
    return pki_fail(PK_ERR_UNSUPPORTED, NULL, "no memory of a GPU: %s", pki_device_cuda_absent());
}

pk_result_t pki_device_cuda_mem_free(void *ptr)
{
    (void)ptr;
    return PK_IN_PROGRESS;
}
#endif
