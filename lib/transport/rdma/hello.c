/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "transport/rdma/rdma.h"

_Static_assert(sizeof(struct pki_rdma_hello) <= sizeof((struct pki_blob *)0)->bytes, "a hello fits");

const char *pki_rdma_hello_parse(const struct pki_blob *blob, struct pki_rdma_hello *hello)
{
    if (blob->len != sizeof *hello)
        return "it has another length";
    memcpy(hello, blob->bytes, sizeof *hello);
    if (hello->magic != PKI_RDMA_MAGIC)
        return "it is none, or of a machine with another byte order";
    if (hello->version != PKI_RDMA_VERSION)
        return "its version is another one";
    if (hello->nqps < 1 || hello->nqps > PKI_RDMA_QPS_MAX || hello->nrails < 1 || hello->nrails > PKI_RDMA_RAILS_MAX)
        return "its numbers of queue pairs and rails cannot be";
    if (hello->piece_shift < PKI_RDMA_PIECE_SHIFT_MIN || hello->piece_shift > PKI_RDMA_PIECE_SHIFT)
        return "its pieces of memory cannot be";
    for (uint32_t i = 0; i < hello->nrails; i++)
        if (hello->rails[i].mtu < IBV_MTU_256 || hello->rails[i].mtu > IBV_MTU_4096 || hello->rails[i].ethernet > 1)
            return "it describes a port that cannot be";
    return NULL;
}
