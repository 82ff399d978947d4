/* SPDX-License-Identifier: Apache-2.0 */
/* What joins two GPUs, asked of the driver: it knows of NVSwitches, and of what a virtual machine hides. */
#include "device/cuda_driver.h"
#include "device/cuda_entry.h"

/* Atomics on a peer's memory work as the hardware's own over NVLink alone. */
enum pki_device_link pki_cuda_link(const char *bus_id_a, const char *bus_id_b)
{
    const struct pki_cuda_driver *cu = pki_cuda_driver(NULL);
    CUdevice a, b;
    int reaches = 0, atomics = 0;

    if (cu == NULL || cu->device_get_by_bus_id(&a, bus_id_a) != CUDA_SUCCESS ||
        cu->device_get_by_bus_id(&b, bus_id_b) != CUDA_SUCCESS)
        return PKI_LINK_UNKNOWN;
    if (cu->device_get_p2p_attribute(&reaches, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, a, b) != CUDA_SUCCESS ||
        cu->device_get_p2p_attribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, a, b) != CUDA_SUCCESS)
        return PKI_LINK_UNKNOWN;
    return reaches && atomics ? PKI_LINK_NVLINK : PKI_LINK_PCIE;
}
