/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that peers map: this rank's, theirs, and that of pk_mem_alloc. Locked. */
#ifndef PKI_ENGINE_MEM_H
#define PKI_ENGINE_MEM_H

#include "engine/channel/channel.h"

/* As pki_streams_wait and pki_streams_hold, and no graph of this engine's ever will wait (import.c). */
bool pki_streams_are_idle(const struct pki_engine *engine);
bool pki_streams_hold_idle(const struct pki_engine *engine);

/* region.c */
pk_result_t pki_region_tell(struct pki_engine *engine, struct pki_peer *peer, const void *addr, size_t bytes, uint32_t *id,
                            uint64_t *offset); /* PK_IN_PROGRESS: the socket is full */
/* The same; *id 0: peers cannot map this memory, as a warning says once. */
pk_result_t pki_region_tell_or_hide(struct pki_engine *engine, struct pki_peer *peer, const void *addr, size_t bytes,
                                    uint32_t *id, uint64_t *offset);
/* Can peers map this memory of the GPU at all? */
bool pki_region_is_shareable(struct pki_engine *engine, const void *addr, size_t bytes);
/* A transfer that this side moves: the peer will move the next one between these buffers if it comes second then. */
void pki_region_tell_soon(struct pki_xfer *xfer);
/* Where the peer has this memory mapped. 0: nowhere yet, but it has been asked to if it can be. *id: the region. */
uint64_t pki_region_there(struct pki_engine *engine, struct pki_peer *peer, const void *addr, size_t bytes, uint32_t *id);
void pki_region_mapped(struct pki_engine *engine, int peer, uint32_t id, uint64_t base); /* its answer */
/* Memory of pk_mem_alloc; and it is no more. */
pk_result_t pki_region_tell_host(struct pki_engine *engine, struct pki_peer *peer, const struct pki_mem *mem, uint32_t *id);
void pki_region_withdraw(struct pki_engine *engine, const struct pki_mem *mem);
/* A granted transfer keeps its region from being forgotten until it has ended. 0: none. */
void pki_region_hold(struct pki_engine *engine, uint32_t id);
void pki_region_drop(struct pki_engine *engine, uint32_t id);
static inline uint32_t pki_region_index(uint32_t id)
{
    return (id & (PKI_REGION_GENERATION - 1)) - 1;
}
void pki_region_close_all(struct pki_engine *engine); /* the peers' too */
void pki_export_release(struct pki_export *exported);

/* import.c: a peer's regions */
/* Where region `id` of the peer is mapped here; [offset, offset + bytes) must lie in it. PK_IN_PROGRESS: it cannot be mapped
 * before no stream waits. */
pk_result_t pki_region_map(struct pki_engine *engine, struct pki_peer *peer, uint32_t id, uint64_t offset, uint64_t bytes,
                           uint64_t *remote);
/* The same for the host memory that a CTS or OFFER names. `here`: where this process has it mapped, else its address at the
 * peer. */
pk_result_t pki_region_map_host(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg, bool here,
                                uint64_t *remote);
/* A description has come, or, without `exported`, more descriptors of it: kept until it is mapped. Takes them over if it
 * succeeds. */
pk_result_t pki_region_described(struct pki_engine *engine, struct pki_peer *peer, uint32_t id, const struct pki_export *exported,
                                 const int *fds, int n);
/* NULL: this region has not been described. */
struct pki_import *pki_region_import(struct pki_peer *peer, uint32_t id);
/* The peer's memory is gone, or it needs the entry. */
void pki_region_forgotten(struct pki_engine *engine, struct pki_peer *peer, uint32_t id);
void pki_region_close_retired(struct pki_engine *engine); /* nothing waits in a stream now */
void pki_region_tidy(struct pki_engine *engine);          /* close what is to be closed, if that is so */
void pki_region_close_imports(struct pki_peer *peer);

/* shm_alloc.c: let a CTS or OFFER name the transfer's memory as a region that the peer knows. PK_ERR_UNSUPPORTED, without a
 * record: it is not of pk_mem_alloc. */
pk_result_t pki_shm_alloc_describe(struct pki_xfer *xfer, struct pki_msg *msg);
/* s->bytes, rounded up to whole pages, that peers can map: s->fd. -1: here they cannot. */
pk_result_t pki_shm_alloc_map(struct pki_shm_alloc *s);
void pki_shm_alloc_close_all(struct pki_engine *engine);

#endif
