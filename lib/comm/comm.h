/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator: configuration, the ranks' peer infos, the paths between them, and the engine that works on them. */
#ifndef PKI_COMM_H
#define PKI_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/wire.h"
#include "comm/choose.h"
#include "comm/paths/select.h"
#include "engine/engine.h"
#include "pickle/pickle.h"
#include "tuning/tuning.h"
#include "util/cpus.h"
#include "util/fork.h"
#include "util/log.h"
#include "util/socket.h"

#define PKI_TRANSPORTS_MAX 4

#define PKI_TOKEN_BYTES 16

/* What proves that two ranks are in one process (process.c). */
struct pki_token {
    struct pki_list node;
    uint64_t process; /* pki_process_number, when it was made */
    unsigned char bytes[PKI_TOKEN_BYTES];
    bool valid;
};

/* What every rank tells every other. Fixed size, no pointers. */
struct pki_peer_info {
    struct pki_host host;
    uint32_t user;   /* pki_bootstrap_user */
    char alone[96];  /* why it can share memory with no other rank; empty: it can */
    int32_t outside; /* it has met a rank over a network, not over loopback */
    int64_t pid;
    uint64_t process; /* pki_process_number: a pid alone is the same in two containers */
    unsigned char token[PKI_TOKEN_BYTES];
    int32_t has_gpu, kernels; /* kernels: it takes part in low-latency messages */
    int32_t fused_ctas;       /* most CTAs it has for a fused collective; 0: it takes part in none */
    unsigned char gpu_uuid[16];
    char gpu_pci[16];
    struct pki_probe probes[PKI_TRANSPORTS_MAX];
    struct pki_settings settings;
    struct pki_cpus cpus; /* of the thread that called init */
};

static inline bool pki_same_gpu(const struct pki_peer_info *a, const struct pki_peer_info *b)
{
    return a->has_gpu && b->has_gpu && memcmp(a->gpu_uuid, b->gpu_uuid, sizeof a->gpu_uuid) == 0;
}

/* Where a setting's value came from. */
enum pki_origin { PKI_FROM_DEFAULT, PKI_FROM_CONFIG, PKI_FROM_ENVIRONMENT, PKI_FROM_RANK_0 };

struct pki_origins {
    enum pki_origin device, sm_policy, nonblocking, timeout_ms, unpack;
};

struct pki_paths { /* to one peer, for each [source][target] kind */
    struct pki_path way[2][2];
};

/* A collective as it was called before; the API's. request.algorithm NULL: none. */
struct pki_call_memo {
    enum pki_coll coll;
    int root; /* as it was given */
    bool has_in, has_out;
    size_t in_bytes, out_bytes;
    size_t in_at, out_at;       /* which bytes are the same ones where the call is in place */
    struct pki_request request; /* with the buffers of the last time */
};

/* Reductions that the program has made (ops.c). */
struct pki_made_op {
    pk_op_t handle; /* 0: free */
    pk_dtype_t dtype;
    struct pki_factor factor;
};

struct pki_made_ops {
    struct pki_made_op *ops;
    uint32_t n; /* also of the free ones */
};

/* Which ranks there are. Ranks meet in the order of their numbers unless `ranks` says otherwise: where a number belongs to nobody
 * (a hole), or a rank that came later has a low one. */
struct pki_seats {
    int n;      /* how many meet */
    int *ranks; /* [n]: the number of the k-th that meets; NULL: k */
    int wish;   /* of a rank that joins: the number that it wants; -1: any */
};

/* For communicators made out of this one. */
struct pki_offspring {
    unsigned char key[PKI_BOOTSTRAP_KEY_BYTES]; /* for their secrets */
    struct sockaddr_storage address;            /* where their ranks listen, port 0 */
    uint64_t splits;
};

#define PKI_COMM_FINALIZED (-1)

struct pk_comm {
    /* what every operation needs */
    int rank, size;
    unsigned stamp;   /* pki_fork_is_ours: the process that made it */
    atomic_int state; /* PK_IN_PROGRESS until init has ended, then its result; or FINALIZED, where no operation may begin */
    struct pki_engine *engine; /* NULL until init is far enough */

    pk_unique_id_t id;
    struct pk_comm_config config; /* resolved: environment and defaults are in */
    bool unpack_kernel;
    struct pki_cpus cpus; /* of the thread that called init, which a nonblocking one leaves to another */
    struct pki_origins origins;
    struct pki_settings settings;
    struct pki_chooser chooser;
    struct pki_switchml *switchml; /* the aggregator, or NULL */
    uint64_t deadline_ns;          /* of init */
    bool from_launcher;
    struct pki_split *split; /* the first half of making this one out of another; NULL when it is over */
    struct pki_list turn;    /* of the launcher's communicators, while it waits for its turn and has it */
    atomic_bool placed;      /* rank and size are known */
    struct pki_bootstrap *bootstrap;
    struct pki_seats seats;
    struct pki_offspring offspring;
    struct pki_device *device;
    struct pki_call_memo memos[PKI_CALL_MEMOS];
    struct pki_made_ops made_ops;
    struct pki_peer_info *peer_infos;
    struct pki_paths *paths;
    uint8_t *gpu_distances; /* enum pki_distance between this rank's GPU and each rank's; UNKNOWN across hosts */
    struct pki_net net;
    struct sockaddr_storage *met; /* net's */
    bool has_net;                 /* net is known: there is another rank */
    int *side_fds;
    bool *local;
    struct pki_token token;
    /* [rank] the lowest rank of its process: proven of this rank's process, and what the others have proven */
    int32_t *homes;
    struct pki_hosts *hosts; /* of the ranks */
    struct pki_iface *ifaces[PKI_TRANSPORTS_MAX];
    struct pki_call_off cancel;
    struct pk_comm *parent; /* while this one is made out of it; its failure calls that off */
    pk_error_info_t error;  /* of init, written before state */
    bool has_thread;
    pthread_t thread;
};

/* Of its init. */
static inline pk_result_t pki_comm_outcome(const struct pk_comm *comm)
{
    int state = atomic_load(&comm->state);

    return state == PKI_COMM_FINALIZED ? PK_OK : (pk_result_t)state;
}

/* Up: nobody has this number. */
static inline bool pki_is_hole(const struct pk_comm *comm, int rank)
{
    return comm->peer_infos[rank].pid == 0;
}

static inline bool pki_has_holes(const struct pk_comm *comm)
{
    return comm->seats.ranks != NULL && comm->seats.n < comm->size;
}

static inline bool pki_same_process(const struct pk_comm *comm, int a, int b)
{
    return comm->homes[a] == comm->homes[b];
}

/* process.c. From show to hide other ranks of this process find the token: from before the peer infos are sent until all have
 * looked. */
void pki_token_show(struct pki_token *token);
void pki_token_hide(struct pki_token *token);
/* The peer infos are there: which ranks are in this process? All others are alone, */
void pki_homes_find(struct pk_comm *comm);
/* unless they say what they have found. */
void pki_homes_hear(struct pk_comm *comm, int rank, int32_t home);

/* config.c: fill `out` from the caller's struct (NULL: defaults) and the environment. */
pk_result_t pki_config_resolve(const pk_comm_config_t *config, struct pk_comm *comm);

/* The caller's struct, or defaults, as this version knows it. */
pk_result_t pki_config_copy(const pk_comm_config_t *in, pk_comm_config_t *out);
/* What a communicator made out of another one has where the caller names nothing: blocking. */
void pki_config_like(const struct pk_comm *parent, pk_comm_config_t *out);

/* seats.c: how many ranks meet, and the place of this one among them. */
int pki_seats_count(const struct pk_comm *comm);
int pki_seats_own(const struct pk_comm *comm);
/* The number of the one that the others look for when they meet. */
int pki_seats_first(const struct pk_comm *comm);
/* Nothing is kept of numbers that are in order. */
void pki_seats_simplify(struct pki_seats *seats, int size);
/* Up: the lowest number that somebody has, from `from` on; `size` where there is none; and the lowest hole. */
int pki_next_member(const struct pk_comm *comm, int from);
int pki_first_hole(const struct pk_comm *comm);
/* All have met, and some join: who gets which number? PK_ERR_MISMATCH: two want the same one, or one that there is not. */
pk_result_t pki_seats_settle(struct pk_comm *comm, bool joins);
/* As the bootstrap's, by the numbers of the ranks: what nobody gives is zero. */
pk_result_t pki_comm_gather(struct pk_comm *comm, const void *mine, size_t bytes, void *all);
/* mine[size], theirs[size]: likewise. */
pk_result_t pki_comm_alltoall(struct pk_comm *comm, const void *mine, size_t bytes, void *theirs);
pk_result_t pki_seats_connect_local(struct pk_comm *comm);
/* `met` has room for the size. Returns how many entries it has. */
int pki_seats_addresses(const struct pk_comm *comm, struct sockaddr_storage *met);

/* meet.c: open the device (if that has not been done), find the job's ranks, open the bootstrap. */
pk_result_t pki_comm_open_device(struct pk_comm *comm);
pk_result_t pki_comm_meet(struct pk_comm *comm);

/* split.c. While the bootstrap is open: keep what later splits need. */
pk_result_t pki_split_prepare(struct pk_comm *comm);
/* Wait for the other ranks of the parent; then size, rank and id are known, and how many ranks join. comm->split is gone then,
 * whatever the outcome. */
pk_result_t pki_split_meet(struct pk_comm *comm, int *joiners);
/* Tell the parent's ranks color and key, and begin to hear theirs. */
pk_result_t pki_split_begin(struct pk_comm *parent, int color, int key, struct pki_split **split);
/* This rank gets no communicator, but the others wait for its word. The split is gone then. */
pk_result_t pki_split_sit_out(struct pki_split *split);
void pki_split_release(struct pki_split *split); /* NULL is legal */
/* The secret of a communicator made out of this one; `label` (shorter than 32 bytes), number and color tell them apart. */
pk_result_t pki_split_secret(const struct pk_comm *parent, const char *label, uint64_t number, int32_t color,
                             struct pki_secret *secret);
/* Listen where the parent's ranks have been met before, and wherever else they may come. made->secret is set. */
pk_result_t pki_split_listen(const struct pk_comm *parent, struct pki_id *made, pk_unique_id_t *id);

/* grow.c. Rank 0: listen for ranks that join. */
pk_result_t pki_grow_id(const struct pk_comm *parent, pk_unique_id_t *id);
/* As pki_split_begin. `id`: rank 0's. PK_ERR_ARG: it is none of this communicator; then this rank has not called. */
pk_result_t pki_grow_begin(struct pk_comm *parent, int count, const pk_unique_id_t *id, struct pki_split **split);

/* shrink.c */
/* Which call an agreement is of: one bit, the same on all. */
enum { PKI_CALLS_AGREE = 1, PKI_CALLS_SHRINK = 2, PKI_CALLS_KEEP = 4, PKI_CALLS_REPLACE = 8 };
pk_result_t pki_comm_shrink(struct pk_comm *parent, int flags, const int *exclude, int nexclude, struct pk_comm **comm,
                            const pk_comm_config_t *config);
/* All ranks have called the same. PK_ERR_MISMATCH. */
pk_result_t pki_check_calls(const struct pk_comm *comm, uint32_t calls, const char *op);

/* init.c: everything until the engine works. */
pk_result_t pki_comm_bring_up(struct pk_comm *comm);
void pki_comm_say_protocols(const struct pk_comm *comm); /* protocols.c: at PK_LOG=info */
void pki_comm_tear_down(struct pk_comm *comm);

/* apart.c */
#define PKI_APART_TEXT 160
/* Behind the probes and the process: host, user, alone. */
void pki_peer_info_fill_host(struct pki_peer_info *peer_info, bool has_peers);
bool pki_same_machine(const struct pki_peer_info *a, const struct pki_peer_info *b);
/* Known to be on different machines. */
bool pki_other_machine(const struct pki_peer_info *a, const struct pki_peer_info *b);
/* They share memory: an equivalence, and the same on all ranks. */
bool pki_share_host(const struct pki_peer_info *a, const struct pki_peer_info *b);
/* Why two ranks do not, in one sentence. */
void pki_say_apart(const struct pki_peer_info *mine, const struct pki_peer_info *theirs, char out[PKI_APART_TEXT]);
/* Cards are known: a line where this rank shares no memory with another one that may be on its machine. */
void pki_warn_apart(const struct pk_comm *comm);
/* cpus.c: what a rank has of its machine's CPUs, by the peer infos. PK_ERR_MEMORY. */
pk_result_t pki_comm_cpus(const struct pk_comm *comm, int rank, struct pki_cpu_share *share);

/* locality.c: fill gpu_distances. All ranks of a host take part, over their side sockets, before endpoints use these. */
pk_result_t pki_comm_locate(struct pk_comm *comm);

/* dump.c: texts for people. At most `capacity` bytes with the final null; `needed` is what the whole takes. */
pk_result_t pki_topology_dump(const struct pk_comm *comm, char *text, size_t capacity, size_t *needed);
void pki_config_dump(const struct pk_comm *comm, char *text, size_t capacity, size_t *needed);

/* verify.c: write to the GPU memory behind each of `eps` (NULL: none to look at) and let the peers look; an endpoint over which
 * data comes out wrong can no longer put. All ranks. */
pk_result_t pki_comm_verify(struct pk_comm *comm, struct pki_ep *const *eps);

/* aggregate.c: join the aggregator, where PK_ALGORITHM asks for it. *joined: it has been, or need not be. With
 * PK_SWITCHML_FALLBACK a refusal is no error. */
pk_result_t pki_aggregate_join(struct pk_comm *comm, bool *joined);
/* What all ranks have found: has each joined? */
void pki_aggregate_agree(struct pk_comm *comm, bool all);
/* An allreduce of such elements: choose the aggregator, or say why not. */
pk_result_t pki_aggregate_choose(const struct pk_comm *comm, pk_dtype_t dtype, pk_op_t op, struct pki_choice *choice);

/* connect.c: endpoints of all pairs. */
pk_result_t pki_comm_connect(struct pk_comm *comm);
pk_result_t pki_comm_place_inboxes(struct pk_comm *comm); /* of fused collectives, behind connect */
/* setup.c. For what goes over the side sockets in init: it listens to the bootstrap too. */
struct pki_wait pki_comm_setup_timeout(struct pk_comm *comm);

/* parent.c. Within its init, until that ends: where the parent fails, the init ends with the parent's error. */
void pki_comm_watch_parent(struct pk_comm *comm, struct pk_comm *parent);
/* The init has ended with `result`. Returns what it ends with then. */
pk_result_t pki_comm_leave_parent(struct pk_comm *comm, pk_result_t result);

/* comm.c */
/* A null id: size, rank and id are the launcher's to say. */
pk_result_t pki_comm_create(struct pk_comm **comm, int size, int rank, const pk_unique_id_t *id, const pk_comm_config_t *config);
/* Collective over `parent`, unless `config` is refused: then it has not been called. Color below 0: *comm is NULL. config NULL:
 * the parent's. */
pk_result_t pki_comm_split(struct pk_comm *parent, int color, int key, struct pk_comm **comm, const pk_comm_config_t *config);
/* The same. `id`: pki_grow_begin. config NULL: the parent's. */
pk_result_t pki_comm_create_grown(struct pk_comm **comm, struct pk_comm *parent, int count, const pk_unique_id_t *id,
                                  const pk_comm_config_t *config);
/* One that this rank joins: it hears size and rank. `wish`: the number that it wants, or -1. */
pk_result_t pki_comm_create_joiner(struct pk_comm **comm, const pk_unique_id_t *id, int wish, const pk_comm_config_t *config);
/* One of ranks that have their numbers, as seats->ranks says, which is the communicator's or freed, whatever the outcome. */
pk_result_t pki_comm_create_seated(struct pk_comm **comm, int size, int rank, struct pki_seats *seats, const pk_unique_id_t *id,
                                   const pk_comm_config_t *config);
pk_result_t pki_comm_abort(struct pk_comm *comm);
pk_result_t pki_comm_finalize(struct pk_comm *comm); /* one that is up */
pk_result_t pki_comm_state(struct pk_comm *comm);
/* The same after a look at the other ranks. */
pk_result_t pki_comm_look(struct pk_comm *comm);
/* Are rank and size known? A nonblocking init learns them from the launcher. */
bool pki_comm_placed(const struct pk_comm *comm);
void pki_comm_join(struct pk_comm *comm); /* the thread of a nonblocking init */
pk_result_t pki_comm_destroy(struct pk_comm *comm);

/* ops.c. Find: NULL: it is not one of these. */
pk_result_t pki_op_make(struct pki_made_ops *ops, pk_dtype_t dtype, const struct pki_factor *factor, pk_op_t *op);
struct pki_made_op *pki_op_find(const struct pki_made_ops *ops, pk_op_t op);
void pki_op_forget(struct pki_made_op *op);

/* algorithm.c: the algorithm of a collective whose argument is `bytes` long, in memory of `kind`, and why that one. The same on
 * all ranks. */
pk_result_t pki_comm_choose(const struct pk_comm *comm, enum pki_coll coll, size_t bytes, pk_dtype_t dtype, pk_op_t op,
                            enum pki_mem_kind kind, struct pki_choice *choice);

#endif
