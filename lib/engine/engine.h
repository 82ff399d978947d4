/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of one communicator: matches sends with receives, runs plans, joins streams, keeps deadlines. Host and GPU alike:
 * what differs is the device's queue that does a copy or a reduction, and the transport that moves matched bytes.
 *
 * Every function locks the engine itself unless it says "locked".
 */
#ifndef PKI_ENGINE_H
#define PKI_ENGINE_H

#include <stdbool.h>

#include "coll/plan.h"
#include "device/device.h"
#include "pickle/pickle.h"
#include "transport/transport.h"
#include "util/list.h"

struct pki_engine;
struct pki_capture;
struct pki_switchml;
struct pki_wait;

/* The GPUs of a communicator's ranks. */
enum pki_gpus {
    PKI_GPUS_NONE,   /* No rank has one. */
    PKI_GPUS_SOME,   /* Some rank has one. */
    PKI_GPUS_KERNELS /* Every rank has one, and allows kernels. */
};

struct pki_engine_config {
    int rank, size;
    const struct pki_hosts *hosts; /* of the ranks, or NULL: one host; outlives the engine */
    int local_ranks;               /* ranks on this machine */
    bool shares_cpu;               /* this one has no CPU of its own: spinning would only take time from another */
    int cpus;                      /* whole ones that are this rank's */
    struct pki_device *device;     /* GPU or NULL; stays the caller's, outlives the engine */
    uint64_t timeout_ms;           /* 0: none */
    int sm_policy, max_sms;        /* PK_SM_* */
    bool unpack_kernel;            /* PK_UNPACK: what arrives in slots for GPU memory is fetched by a kernel */
    const struct pki_net *net;     /* of ranks on other hosts, or NULL; outlives the engine */
    enum pki_gpus gpus;
    bool fused;            /* every rank can take part in fused collectives: at most PKI_FUSED_RANKS, all on this host */
    int fused_ctas;        /* most CTAs of one fused kernel, the same on all ranks */
    uint32_t fused_always; /* bit c: collective c whatever its length, likewise */
    const struct pki_agreed *agreed; /* outlives the engine; NULL: as this process has it */
};

pk_result_t pki_engine_open(const struct pki_engine_config *config, struct pki_engine **engine);

/* Connection, by the communicator, before the first operation and unlocked. ep_open allocates an endpoint and runs ep_init. */
pk_result_t pki_engine_iface(struct pki_engine *engine, const struct pki_transport *transport, struct pki_iface **iface);
pk_result_t pki_engine_ep_open(struct pki_engine *engine, struct pki_iface *iface, int peer, bool same_process, int64_t pid,
                               struct pki_blob *mine, struct pki_ep **ep);
/* Close an endpoint that turned out to be of no use, before it is a control channel or a way. */
void pki_engine_ep_drop(struct pki_engine *engine, int peer, struct pki_ep *ep);
/* The control channel of a pair, its way for each (source, target) kind, and the unix socket beside the control channel (-1
 * between hosts), which the engine owns from then on. A missing way is NULL. */
void pki_engine_set_ctrl(struct pki_engine *engine, int peer, struct pki_ep *ctrl, int side_fd);
/* Nobody has this number: nothing is sent there, and for agreements it is dead. */
void pki_engine_set_hole(struct pki_engine *engine, int peer);
void pki_engine_set_path(struct pki_engine *engine, int peer, enum pki_mem_kind source, enum pki_mem_kind target,
                         struct pki_ep *ep);
/* A transport's map, for as long as it takes: may wait for all work of the GPU, so not where a stream waits for an operation. */
pk_result_t pki_engine_map(struct pki_engine *engine, struct pki_ep *path, const struct pki_export *in, uint64_t *remote);
/* Low-latency slots: this rank's memory for all peers (NULL without), and where a peer keeps those for this rank, mapped here. */
pk_result_t pki_engine_ll_export(struct pki_engine *engine, struct pki_export *out, uint64_t *offset);
pk_result_t pki_engine_ll_import(struct pki_engine *engine, int peer, const struct pki_export *in, uint64_t offset);
/* Inboxes of fused collectives in host memory: before the above, on all ranks or on none. Open says why it fails, and the
 * rank has none to give; swap gives it to one peer and maps that one's. */
bool pki_engine_may_fuse(const struct pki_engine *engine); /* the same on all ranks */
void pki_engine_host_inbox_open(struct pki_engine *engine);
pk_result_t pki_engine_host_inbox_swap(struct pki_engine *engine, int peer, const struct pki_wait *wait);
void pki_engine_host_inbox_ready(struct pki_engine *engine); /* all have been swapped */
/* Does this rank's GPU write to the memory of all other ranks itself? */
bool pki_engine_reaches_all(const struct pki_engine *engine);
/* Fused collectives, for all ranks or for none: the next two. */
/* CTAs of its kernels that this GPU has room for whatever else waits there; `processes` share it. 0: none, or this rank is not
 * ready. */
int pki_engine_fused_offer(struct pki_engine *engine, int processes);
void pki_engine_fused_start(struct pki_engine *engine, int ctas); /* the least that any rank has offered; 0: without */
/* Is a collective with this argument fused where all ranks have it in device memory? The same on all ranks. */
bool pki_engine_fuses(const struct pki_engine *engine, enum pki_coll coll, size_t bytes, pk_dtype_t dtype, pk_op_t op);
/* The aggregator of the communicator, which outlives the engine. `fallback`: where it is lost operations go on without it. */
void pki_engine_set_aggregator(struct pki_engine *engine, struct pki_switchml *switchml, bool fallback);
bool pki_engine_lost_aggregator(const struct pki_engine *engine); /* all ranks know it */
void pki_engine_start(struct pki_engine *engine);

/* Wait for the unfinished, send the shutdown message, and until what was sent to other hosts has arrived as far as its
 * transport can tell before close. */
pk_result_t pki_engine_finalize(struct pki_engine *engine);

/* Wait for the unfinished, send the shutdown message, free everything. Returns the error that poisoned it, if one did. */
pk_result_t pki_engine_close(struct pki_engine *engine);

/* Init failed when it had come so far that others may be through with theirs: they are told the calling thread's error. To be
 * closed. */
void pki_engine_give_up(struct pki_engine *engine, pk_result_t code);

/* Poison: release every waiting thread and stream, tell the peers. Any thread. The first one counts. */
void pki_engine_abort(struct pki_engine *engine);
/* The same, and the ranks may agree and shrink afterwards. */
void pki_engine_revoke(struct pki_engine *engine);

/* survive.c: an agreement of the ranks that live. One thread at a time. */
struct pki_agreement {
    uint64_t all;          /* in: this rank's; out: bits of all */
    uint32_t calls;        /* in: this rank's; out: bits of any */
    unsigned char id[128]; /* in: this rank's, if it may be the first that lives; out: that rank's */
    const int *exclude;    /* ranks that count as dead from now on */
    int nexclude;
    uint64_t last;        /* out: the last collective that has ended with PK_OK on all */
    const uint64_t *dead; /* out: ranks, in bits; until the next agreement */
};

static inline bool pki_counts_as_dead(const struct pki_agreement *agreement, int rank)
{
    return (agreement->dead[rank / 64] >> (rank % 64) & 1) != 0;
}

/* PK_ERR_PEER: this rank counts as dead for the others. PK_ERR_ABORTED; PK_ERR_UNSUPPORTED; PK_ERR_MEMORY. */
pk_result_t pki_engine_agree(struct pki_engine *engine, struct pki_agreement *agreement);
/* How many have begun here: the same on all ranks. */
uint64_t pki_engine_agreements(struct pki_engine *engine);
/* All ranks before this one are known to be dead, or are excluded. */
bool pki_engine_is_first(struct pki_engine *engine, const int *exclude, int nexclude);
/* Behind an agreement: wait `ms` at most. True: a rank outside `dead` has died, or this one is left out or aborted. */
bool pki_engine_lost_more(struct pki_engine *engine, const uint64_t *dead, int ms);

/* PK_OK, or the first error, whose record becomes the calling thread's. Any thread. */
pk_result_t pki_engine_status(struct pki_engine *engine);
/* See whether a rank has died or given up, though no operation waits. Never blocks. Any thread. */
void pki_engine_look_around(struct pki_engine *engine);

/* An operation as the API describes it. */
struct pki_request {
    enum { PKI_DO_SEND, PKI_DO_RECV, PKI_DO_COLL } what;
    int peer;
    int root;                              /* 0 where the collective has none */
    const struct pki_algorithm *algorithm; /* PKI_DO_COLL */
    const struct pki_algorithm *instead;   /* of a fused one: what a rank with another kind of memory does */
    bool in_place;
    bool scaled;    /* a PK_SUM of elements that are first multiplied, each rank's by its own `factor`; not in place */
    const void *in; /* NULL where the rank has none */
    void *out;
    size_t in_count, out_count; /* elements of the buffers from their first byte on; 0 where the rank has none */
    size_t count;               /* the API's argument, for fingerprint and texts; v-forms: 0 */
    struct pki_layout layout;   /* PKI_DO_COLL; its arrays are the caller's and copied */
    pk_dtype_t dtype;
    pk_op_t op;
    pk_stream_t stream;
    uint64_t timeout_ms;        /* the deadline of this one; 0: the communicator's */
    bool classified;            /* pki_engine_classify has been here: */
    enum pki_mem_kind kinds[2]; /* of IN and OUT */
    struct pki_factor factor;
};

/* What kind of memory the buffers of a request are. PK_ERR_ARG: of different kinds, or another device's. */
pk_result_t pki_engine_classify(struct pki_engine *engine, struct pki_request *request, enum pki_mem_kind *kind);

/* PK_ERR_ARG: it is not memory of the communicator's GPU, aligned to elements of `dtype`. */
pk_result_t pki_engine_check_factor(struct pki_engine *engine, const void *factor, pk_dtype_t dtype);

/* inline.c: a short blocking send or receive of host memory, to or from another rank, at once. Arguments are legal. False:
 * nothing has happened, and pki_engine_run says what is the matter. */
bool pki_engine_send_inline(struct pki_engine *engine, int peer, const void *in, size_t bytes);
bool pki_engine_recv_inline(struct pki_engine *engine, int peer, void *out, size_t bytes);
/* Start one operation; if it blocks it has ended on return. */
pk_result_t pki_engine_run(struct pki_engine *engine, const struct pki_request *request);
/* The two halves, for groups over several engines: start all, then finish (wait for) the blocking ones. `group` tells the groups
 * of the process apart: operations of one group in a host stream do not wait for one another. */
pk_result_t pki_engine_start_all(struct pki_engine *engine, const struct pki_request *requests, int n, uint64_t group,
                                 struct pki_list *blocking, struct pki_capture **capture);
/* Requests in streams that are being captured into graphs are only checked by start_all: *capture is not NULL then. Now post
 * tells the peers, for all engines that the thread drives, and then record meets them, for each. The last frees it, and drop does
 * in its stead. */
pk_result_t pki_engine_capture_post(struct pki_engine *engine, struct pki_capture *capture);
pk_result_t pki_engine_capture_record(struct pki_engine *engine, struct pki_capture *capture);
void pki_engine_capture_drop(struct pki_engine *engine, struct pki_capture *capture);
uint64_t pki_engine_new_group(void);
/* The blocking operations of one engine, of several that a thread waits for. */
struct pki_awaited {
    struct pki_engine *engine;
    struct pki_list blocking;
    struct pki_awaited *next;
    bool (*is_over)(const struct pki_awaited *); /* asked before it sleeps, for others may have ended it; NULL: 10 ms too late */
};
/* Before finish, with several: until all have ended. Ranks that one thread drives wait for one another. */
void pki_engines_wait(struct pki_awaited *first);
pk_result_t pki_engine_finish(struct pki_engine *engine, struct pki_list *blocking);

/* What a request would do, without doing it. */
pk_result_t pki_engine_explain(struct pki_engine *engine, const struct pki_request *request, enum pki_mem_kind kind,
                               pk_explanation_t *out);
/* By what a message of so long goes to another rank whose memory is of the same kind. */
const char *pki_engine_protocol(struct pki_engine *engine, int peer, enum pki_mem_kind kind, size_t bytes);
void pki_engine_stats(struct pki_engine *engine, pk_stats_t *stats);
/* What unfinished operations wait for, as text (pk_pending_dump). */
void pki_engine_pending(struct pki_engine *engine, char *text, size_t capacity, size_t *needed);

pk_result_t pki_engine_register(struct pki_engine *engine, void *ptr, size_t bytes);
pk_result_t pki_engine_deregister(struct pki_engine *engine, void *ptr, size_t bytes);

pk_result_t pki_engine_mem_alloc(struct pki_engine *engine, size_t bytes, void **ptr);
pk_result_t pki_engine_mem_free(struct pki_engine *engine, void *ptr);

/* Host streams. */
struct pki_host_stream;
pk_result_t pki_host_stream_open(struct pki_host_stream **stream);
bool pki_host_stream_is_ours(const struct pki_host_stream *stream); /* no: it was made before a fork */
bool pki_host_stream_idle(struct pki_host_stream *stream);
pk_result_t pki_host_stream_wait(struct pki_host_stream *stream);  /* the first error since the last wait */
pk_result_t pki_host_stream_error(struct pki_host_stream *stream); /* takes it */
void pki_host_stream_close(struct pki_host_stream *stream);        /* idle */

#endif
