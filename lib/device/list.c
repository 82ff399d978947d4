/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices this build has: the one place that knows whether CUDA is among them. */
#include "device/device.h"

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
#endif
