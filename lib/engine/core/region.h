/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that peers may map: this rank's regions, the peers' as they are mapped here, and the host memory of pk_mem_alloc.
 * Locked. */
#ifndef PKI_ENGINE_REGION_H
#define PKI_ENGINE_REGION_H

#include "engine/engine.h"

struct pki_peer;
struct pki_xfer;

#define PKI_REGION_GENERATION (1u << 20) /* ids are an entry's number plus a multiple of this */
#define PKI_REGIONS_MAX (PKI_REGION_GENERATION - 2)
#define PKI_REGION_NOWHERE 1u        /* where a region is that a peer cannot map */
#define PKI_EXPORT_PIECES_MAX 65536u /* descriptors of one region */

struct pki_region { /* an allocation of this rank that peers may map */
    uint32_t id;    /* entry + 1, and the generation in the upper bits */
    uint32_t next;  /* entry + 1 of the next with this hash; 0: none */
    uint32_t busy;  /* transfers that have been granted in it; captured ones for good */
    uint64_t used;  /* when last; 0: the entry is free */
    struct pki_mem mem;
    struct pki_export exported;
    struct pki_iface *iface;
    uint64_t there[PKI_FUSED_RANKS]; /* where these ranks have it mapped, if they were asked to; 0: unknown */
};

struct pki_regions { /* all of this rank's (mem/region.c) */
    struct pki_region *at;
    uint32_t n, cap;
    uint32_t buckets[256];
    uint32_t looked; /* the next to be looked at whether it is still there */
    uint64_t clock;
    bool holes; /* some entry may be free */
};

struct pki_shm_alloc { /* memory of pk_mem_alloc */
    uintptr_t base;
    size_t bytes;
    uint64_t buffer_id;
    int fd;
};

struct pki_shm_allocs { /* all of it, by address (mem/shm_alloc.c) */
    struct pki_shm_alloc *at;
    uint32_t n, cap;
};

struct pki_import { /* a peer's region, mapped */
    uint32_t id;
    struct pki_export exported;
    uint32_t pieces_here; /* descriptors that have come */
    bool mapped;
    bool outlived; /* the peer has memory of another allocation there by now */
    uint64_t remote;
};

struct pki_mappings {        /* of peers' memory, whatever peer's it is (mem/import.c) */
    struct pki_list retired; /* to be closed when nothing is under way and they are many */
    uint32_t nretired, nretired_vmm;
    size_t retired_bytes;
    bool described; /* peers have described memory that is not mapped yet */
    bool blocked;   /* one of them, or one of another engine's, kept a peer's memory from being mapped */
};

struct pki_peer_regions { /* what one peer has told of its regions, and has been told of this rank's */
    struct pki_import *imports;
    uint32_t nimports, imports_cap;
    uint32_t *reported; /* [entry]: the id of our region there that the peer has been told of */
    uint32_t reported_cap;
    uint32_t exporting, exported_pieces; /* a description in the middle of being sent */
};

struct pki_registration {
    struct pki_list node;
    char *ptr;
    size_t bytes;
    struct pki_mem mem;
};

#endif
