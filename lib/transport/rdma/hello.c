/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "transport/rdma/rdma.h"

_Static_assert(sizeof(struct pki_rdma_hello) <= sizeof((struct pki_blob *)0)->bytes, "a hello fits");

void pki_rdma_hello_fill(const struct pki_rdma_ep *ep, struct pki_rdma_hello *hello)
{
    const struct pki_rdma_iface *iface = ep->iface;

    memset(hello, 0, sizeof *hello);
    *hello = (struct pki_rdma_hello){ .magic = PKI_RDMA_MAGIC,
                                      .version = PKI_RDMA_VERSION,
                                      .nqps = ep->nqps,
                                      .nrails = (uint32_t)iface->nrails,
                                      .psn = ep->psn,
                                      .piece_shift = iface->piece_shift,
                                      .credit_rkey = ep->ctrl.mr->rkey,
                                      .immediate = 1,
                                      .credit = (uintptr_t)&ep->ctrl.block->credit };
    for (uint32_t i = 0; i <= ep->nqps; i++) {
        hello->qpns[i] = ep->qps[i].qp->qp_num;
        hello->qp_rails[i] = (uint8_t)ep->qps[i].rail_here;
    }
    for (int i = 0; i < iface->nrails; i++) {
        const struct pki_rdma_rail *rail = &iface->rails[i];

        memcpy(hello->rails[i].gid, rail->gid.raw, sizeof hello->rails[i].gid);
        hello->rails[i].lid = rail->lid;
        hello->rails[i].mtu = (uint8_t)rail->mtu;
        hello->rails[i].ethernet = rail->ethernet;
        hello->immediate = hello->immediate && rail->context->device->transport_type == IBV_TRANSPORT_IB; /* iWARP cannot */
    }
}

const char *pki_rdma_hello_parse(const struct pki_blob *blob, struct pki_rdma_hello *hello)
{
    if (blob->len != sizeof *hello)
        return "it has another length";
    memcpy(hello, blob->bytes, sizeof *hello);
    return pki_rdma_hello_check(hello);
}

const char *pki_rdma_hello_check(const struct pki_rdma_hello *hello)
{
    if (hello->magic != PKI_RDMA_MAGIC)
        return "it is not a hello, or comes from a machine with another byte order";
    if (hello->version != PKI_RDMA_VERSION)
        return "it has another version";
    if (hello->nqps < 1 || hello->nqps > PKI_RDMA_QPS_MAX || hello->nrails < 1 || hello->nrails > PKI_RDMA_RAILS_MAX)
        return "its numbers of queue pairs and rails are invalid";
    if (hello->piece_shift < PKI_RDMA_PIECE_SHIFT_MIN || hello->piece_shift > PKI_RDMA_PIECE_SHIFT)
        return "its size of memory pieces is invalid";
    if (hello->immediate > 1)
        return "it does not say whether it writes with immediate data";
    for (uint32_t i = 0; i <= hello->nqps; i++)
        if (hello->qp_rails[i] >= hello->nrails)
            return "a queue pair is on no rail";
    for (uint32_t i = 0; i < hello->nrails; i++)
        if (hello->rails[i].mtu < IBV_MTU_256 || hello->rails[i].mtu > IBV_MTU_4096 || hello->rails[i].ethernet > 1)
            return "it describes an invalid port";
    return NULL;
}
