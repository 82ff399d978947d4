/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that peers may map: this rank's regions, the peers' as they are mapped here, and the host memory of pk_mem_alloc. Locked. */
#ifndef PKI_ENGINE_REGION_H
#define PKI_ENGINE_REGION_H

#include "engine/engine.h"

struct pki_peer;
struct pki_xfer;

#define PKI_REGION_GENERATION (1u << 20) /* ids are an entry's number plus a multiple of this */
#define PKI_REGIONS_MAX (PKI_REGION_GENERATION - 2)
#define PKI_REGION_NOWHERE 1u            /* where a region is that a peer cannot map */
#define PKI_EXPORT_PIECES_MAX 65536u     /* descriptors of one region */

struct pki_region { /* an allocation of this rank that peers may map */
    uint32_t id;      /* entry + 1, and the generation in the upper bits */
    uint32_t next;    /* entry + 1 of the next with this hash; 0: none */
    uint32_t busy;    /* transfers that have been granted in it; captured ones for good */
    uint64_t used;    /* when last; 0: the entry is free */
    struct pki_mem mem;
    struct pki_export exported;
    struct pki_iface *iface;
    uint64_t there[PKI_FUSED_RANKS]; /* where these ranks have it mapped, if they were asked to; 0: unknown */
};

struct pki_shm_alloc { /* memory of pk_mem_alloc */
    uintptr_t base;
    size_t bytes;
    uint64_t buffer_id;
    int fd;
};

struct pki_import { /* a peer's region, mapped */
    uint32_t id;
    struct pki_export exported;
    uint32_t pieces_here; /* descriptors that have come */
    bool mapped;
    bool outlived; /* the peer has memory of another allocation there by now */
    uint64_t remote;
};

struct pki_registration {
    struct pki_list node;
    char *ptr;
    size_t bytes;
    struct pki_mem mem;
};

#endif
