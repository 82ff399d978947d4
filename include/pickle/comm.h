/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm.h
 * Communicators: a fixed group of ranks that send to one another. Each rank is a thread or a process.
 *
 * Threads: different communicators may be used from different threads at once. One communicator is used by one thread at a
 * time, except pk_comm_abort, pk_comm_revoke, pk_comm_async_error and the calls of inspect.h, which any thread may make at any time
 * before pk_comm_destroy begins.
 *
 * Failure: after PK_ERR_TIMEOUT, PK_ERR_PEER, PK_ERR_SYSTEM, PK_ERR_ABORTED or PK_ERR_REVOKED the communicator is poisoned: every
 * later operation returns the first error (except behind a call that needs a hole: PK_SHRINK_KEEP_RANKS). The ranks that live can go
 * on in a communicator of their own (survive.h). When a failed operation has returned (in a host stream: when pk_stream_synchronize
 * has), its buffers in host memory belong to the caller again. No rank reads or writes them any more, with these exceptions:
 * - A rank of this host that stops in the middle of a copy of up to 8 MiB: the failed call waits 30 ms for that rank.
 * - Memory of pk_mem_alloc: reductions of other ranks may read it until those ranks hear of the failure. They do not end with PK_OK.
 * - An RDMA device that does not report within 30 ms that its queue pairs have ended: it may write what is in flight.
 * - A copy that has begun on a GPU of any rank, of GPU memory or of host memory (in an operation of both kinds, or in a CUDA stream):
 *   the copy runs to its end. pk_comm_abort and pk_comm_destroy wait up to 50 ms for copies of this rank.
 * The contents of the buffers are undefined. CUDA streams that waited are released, and what they read then is undefined. Where both
 * ranks have called an operation, one of them has put the copy into its stream. That copy runs when the stream reaches it, even after
 * the failure: if work of the program delays the stream, GPU memory of the other rank may be written as late as that. The memory is
 * free when the streams of both ranks have passed the operation.
 *
 * CPUs: a rank that waits polls at first, if there is a CPU for each rank of the communicator on its machine. A rank without a CPU of
 * its own yields at once, and a rank that waits long sleeps. Init reads which CPUs a rank may use: the CPUs of the calling thread
 * (taskset, numactl, cpusets, sched_setaffinity) and the quotas of its control groups (docker --cpus). Later changes are not noticed.
 * pk_topology_dump says which ranks share a CPU. The threads of the library (for host streams, for TCP and an aggregator where they
 * use threads, for GPUs) run on the CPUs that the main thread of the process has when the thread starts: the binding of the
 * program. The environment variable PK_THREAD_CPUS changes that for the whole process: "all" CPUs of its cpuset, or a list such as
 * 0-3,8 ("inherit" is the default). Init refuses any other value, and a list without a CPU that the process may use, with PK_ERR_ARG.
 * A program whose main thread is bound to one core, for example by OpenMP, may need a list.
 *
 * Fork: in a child of fork every call refuses the communicators and host streams of the parent with PK_ERR_UNSUPPORTED (pk_comm_destroy
 * too, which then frees nothing). The child may make its own, also in a pid namespace of its own. The parent is not disturbed. A child
 * of a bare clone, which runs no fork handlers, becomes such a child with its first pk_comm_init*, pk_get_unique_id or
 * pk_stream_create.
 *
 * The process: the library uses descriptors 3 and above, also where the program has closed 0, 1 and 2 (descriptors of drivers, such as
 * CUDA and RDMA devices, are not the library's). The threads of the library block all signals except faults (SIGSEGV, SIGBUS, SIGFPE,
 * SIGILL, SIGTRAP, SIGSYS): the handler of the program gets a fault in whichever thread has it. Where the kernel copies, between
 * processes or from a connection, a page that may not be accessed is an error instead, and no handler runs. A thread that is cancelled
 * (pthread_cancel) inside a call ends when the call ends: when the operation is done, the communicator is aborted, or the deadline has
 * passed.
 */
#ifndef PICKLE_COMM_H
#define PICKLE_COMM_H

#include "pickle/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A communicator. Opaque. */
typedef struct pk_comm pk_comm_t;

#define PK_UNIQUE_ID_BYTES 128

/** Names one communicator to be made: up to four addresses of rank 0 and a 128-bit secret. Send it to the other ranks over a private channel. */
typedef struct pk_unique_id {
    unsigned char bytes[PK_UNIQUE_ID_BYTES];
} pk_unique_id_t;

/** May the library use the GPU's multiprocessors? */
enum {
    PK_SM_DEFAULT = 0, /**< small kernels where they are faster, and where nothing else can do the work; a stream that waits for a
                            peer holds a warp, or the blocks of the small kernel that waits */
    PK_SM_NONE = 1,    /**< never: an operation that needs a kernel returns PK_ERR_NEEDS_SM; so does an operation for which one
                            more stream would have to wait than can wait without kernels (3 with 8 hardware queues) */
    PK_SM_BOUNDED = 2  /**< at most max_sms multiprocessors at a time */
};

/** Values of pk_comm_config_t.device. */
#define PK_DEVICE_AUTO 0                        /**< the device of the calling thread's current CUDA context, if there is one */
#define PK_DEVICE_HOST (-1)                     /**< no GPU: device memory is refused */
#define PK_DEVICE_CUDA(ordinal) ((ordinal) + 1) /**< the CUDA device with this ordinal */

/** How to make a communicator. Set every field with PK_COMM_CONFIG_INIT, then change some. Zero means the default. */
typedef struct pk_comm_config {
    size_t struct_size;  /**< sizeof(pk_comm_config_t) of the caller's header */
    int device;          /**< PK_DEVICE_AUTO, PK_DEVICE_HOST or PK_DEVICE_CUDA(n) */
    int sm_policy;       /**< PK_SM_*; environment PK_SM_POLICY=default|none|N when 0 */
    int max_sms;         /**< with PK_SM_BOUNDED: 1 and up */
    int nonblocking;     /**< 1: init returns PK_IN_PROGRESS with a handle to poll by pk_comm_async_error or to abort */
    uint64_t timeout_ms; /**< deadline of each operation and of init; default 600000, environment PK_TIMEOUT_MS */
} pk_comm_config_t;

/* clang-format off */
#define PK_COMM_CONFIG_INIT { sizeof(pk_comm_config_t), 0, 0, 0, 0, 0 }
/* clang-format on */

/**
 * Make a communicator of all processes of this job, found in the launcher's environment: PK_RANK, PK_SIZE and PK_ROOT
 * (host:port of rank 0) where set; else torchrun's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (rank 0 listens at MASTER_PORT + 1013,
 * + 2026 where that is taken, and not at torch's own port); else PMIx (mpirun, srun). All ranks make their communicators in the same
 * order.
 *
 * Ranks may know rank 0 by different names or addresses. With a secret (PK_SECRET_FILE) or PK_INSECURE=1 rank 0 listens at all
 * addresses of its machine, unless all ranks are known to be on that machine (LOCAL_WORLD_SIZE) or PK_ROOT is a numeric loopback
 * address. Without a secret, and with a numeric address or localhost in PK_ROOT, rank 0 listens at that address only. A name that
 * cannot be resolved yet, and an address where nobody listens yet, are tried again until the deadline. After 5 s rank 0, and each
 * rank that has not found rank 0, log what they wait for.
 *
 * @param comm    out: the communicator, the caller's until pk_comm_destroy; set only with PK_OK or PK_IN_PROGRESS
 * @param config  NULL for all defaults
 * @return PK_OK; PK_IN_PROGRESS (config->nonblocking); PK_ERR_ARG (a variable or field is invalid, named);
 *         PK_ERR_UNSUPPORTED (no launcher found; a field of `config` that this version does not know is not zero); PK_ERR_TIMEOUT
 *         (names the ranks that did not come, and says whether a process with an incompatible version of the library came);
 *         PK_ERR_AUTH; PK_ERR_PEER (a rank died; rank 0 had given up before this rank came);
 *         PK_ERR_MISMATCH (ranks disagree about the job, or run incompatible versions); PK_ERR_SYSTEM; PK_ERR_MEMORY;
 *         or the error of another rank that could not take part, which the record names
 * Collective: blocks until all ranks have called it, at most timeout_ms (a thread of its own asks the system's resolver; if no
 * thread can be made, the call lasts as long as the resolver does). With config->nonblocking the call returns at once, and several
 * inits may be in progress. Any thread. Since 0.1.
 */
PK_API pk_result_t pk_comm_init(pk_comm_t **comm, const pk_comm_config_t *config);

/**
 * Make the id of a new communicator. From now on the calling process listens for the ranks that will use the id, at the addresses
 * in the id: up to four addresses of interfaces that are up, container bridges and tunnels last (PK_IFNAME restricts and orders
 * them). The other ranks try all of them. Call this function in the process of rank 0, once for each communicator.
 *
 * @param id  out, the caller's: 128 bytes to give to every rank
 * @return PK_OK; PK_ERR_ARG (null; PK_IFNAME or PK_PORTS is wrong); PK_ERR_SYSTEM (no socket, no randomness); PK_ERR_MEMORY
 * Does not block. Any thread. Since 0.1.
 */
PK_API pk_result_t pk_get_unique_id(pk_unique_id_t *id);

/**
 * As pk_get_unique_id, for a rank 0 in any process: the process that makes the id need not be a rank. Rank 0 listens at addresses of
 * its own, and a thread of this process tells them to the other ranks, until all ranks know them, the id is released, or the process
 * ends. Each rank needs one more connection.
 *
 * @param id  out, the caller's: 128 bytes to give to every rank
 * @return PK_OK; PK_ERR_ARG (null; PK_IFNAME or PK_PORTS is wrong); PK_ERR_SYSTEM (no socket, no randomness, no thread);
 *         PK_ERR_MEMORY
 * Does not block. Any thread. Since 0.2.
 */
PK_API pk_result_t pk_get_unique_id_anywhere(pk_unique_id_t *id);

/**
 * Give back an id that will not be used: the process that made the id stops listening for it. pk_comm_init_rank of rank 0 gives back
 * its id by itself, whatever it returns (except PK_ERR_ARG for an invalid rank or size). So does the end of the process.
 *
 * @param id  made by pk_get_unique_id or pk_get_unique_id_anywhere in this process, and not used yet
 * @return PK_OK; PK_ERR_ARG (null; this process did not make the id; the id is used up or released)
 * Ranks that use the id later get PK_ERR_PEER. Does not block. Any thread. Since 0.2.
 */
PK_API pk_result_t pk_unique_id_release(const pk_unique_id_t *id);

/**
 * Make a communicator of `size` ranks that all hold the same id.
 *
 * @param comm    out: the communicator, the caller's until pk_comm_destroy; set only with PK_OK or PK_IN_PROGRESS
 * @param size    number of ranks, 1 to 65536, the same everywhere
 * @param rank    this rank, 0 to size - 1; rank 0 must be in the process that made the id, except with
 *                pk_get_unique_id_anywhere
 * @param id      made by pk_get_unique_id or pk_get_unique_id_anywhere; used once
 * @param config  NULL for all defaults
 * @return as pk_comm_init; PK_ERR_ARG (a null communicator or id; an invalid rank or size; rank 0 in another process than the
 *         one that made the id; an id that is used up; a field of `config`)
 * Collective, blocking at most timeout_ms. Ranks may be threads of one process. Since 0.1.
 */
PK_API pk_result_t pk_comm_init_rank(pk_comm_t **comm, int size, int rank, const pk_unique_id_t *id,
                                     const pk_comm_config_t *config);

/**
 * Make communicators out of a communicator: one for each color, of the ranks that gave it.
 *
 * @param comm     the parent; stays usable, and must not be destroyed before the new communicators are made, or destroyed
 * @param color    0 and up: the communicator that this rank joins; negative: none
 * @param key      ranks are numbered by key; ranks with equal keys by their rank in the parent
 * @param newcomm  out: the new communicator, the caller's until pk_comm_destroy; NULL for a negative color; set only with PK_OK
 *         or PK_IN_PROGRESS
 * @param config   NULL: the parent's, blocking. Device and policy need not be the parent's.
 * @return as pk_comm_init; the error of the parent if it is or becomes poisoned; PK_ERR_ARG (null; a finalized parent; a group is
 *         open; a field of `config`: then this rank has not taken part, and may call again)
 * Collective over the parent, in the same order among its operations on all ranks. Blocks at most timeout_ms of the parent until all
 * ranks of the parent have called it, and then at most timeout_ms of `config`. With config->nonblocking the call blocks only for a
 * negative color; an abort of the init takes effect when all ranks of the parent have called. Nothing secret is sent. Since 0.2.
 */
PK_API pk_result_t pk_comm_split(pk_comm_t *comm, int color, int key, pk_comm_t **newcomm, const pk_comm_config_t *config);

/**
 * Give up: release everything that waits in this communicator, here and on the other ranks (they get PK_ERR_ABORTED). Afterwards
 * the buffers of its operations belong to the caller again, as described above. Only pk_comm_destroy may be called then. Another
 * thread may be inside an operation, or inside pk_comm_init_rank with `nonblocking`.
 *
 * A rank that has no unfinished operation and no captured graph only leaves, and nothing is logged. Another rank gets
 * PK_ERR_ABORTED, which names the rank that left, from the first operation that needs that rank, also from an operation that
 * already waits for it. Until then pk_comm_async_error of the other rank stays PK_OK, and operations among the remaining ranks
 * work. Replays of graphs are not operations in this sense: a replay that waits for a rank which has destroyed its own graphs and
 * left waits until its own rank aborts.
 *
 * @param comm  the communicator
 * @return PK_OK; PK_ERR_ARG (null); PK_ERR_UNSUPPORTED (in a child of fork, the parent's communicator)
 * Returns within 100 ms on a machine that is not overloaded. Any thread. Since 0.1.
 */
PK_API pk_result_t pk_comm_abort(pk_comm_t *comm);

/**
 * The state of a communicator; the call also checks whether another rank has died or given up. A rank that has left in good order
 * with nothing unfinished is no error until an operation needs that rank. A rank leaves so by pk_comm_destroy, by pk_comm_abort as
 * described there, or by the end of its process (exit, or return from main; not _exit or a signal). An operation that needs it
 * returns PK_ERR_PEER (PK_ERR_ABORTED after pk_comm_abort) and names it. The call also reconnects hosts: a connection that broke
 * behind the last message is made again. A rank that makes no other call for long may call this function occasionally.
 *
 * @param comm  the communicator
 * @return PK_OK; PK_IN_PROGRESS (a nonblocking init is not done yet); PK_ERR_ARG (null); PK_ERR_UNSUPPORTED (in a child of fork, the
 *         parent's communicator); the error that poisoned it, whose record pk_last_error then returns
 * Never blocks. Any thread. Since 0.1.
 */
PK_API pk_result_t pk_comm_async_error(pk_comm_t *comm);

/**
 * End the operations of a communicator: wait until all operations that this rank has called have ended, including their parts in
 * CUDA and host streams. Afterwards no operation and no pk_comm_split may be called (PK_ERR_ARG), and no captured graph may be
 * launched. These calls remain: pk_comm_async_error, pk_comm_abort, inspect.h, the calls that give memory back (pk_deregister,
 * pk_mem_free, pk_op_destroy), and pk_comm_destroy.
 *
 * @param comm  the communicator
 * @return PK_OK (also when it was finalized before); PK_ERR_ARG (null, still being made, a group is open in this thread);
 *         PK_ERR_UNSUPPORTED (in a child of fork, the parent's communicator); the error that poisoned it
 * Local: other ranks may call it earlier, later or never. An operation of another rank that waits for this rank afterwards fails: at
 * once with PK_ERR_ABORTED if that rank is in pk_comm_finalize itself, otherwise after two seconds with PK_ERR_PEER. What another rank
 * fails with afterwards poisons this communicator, too, though this rank has lost nothing.
 * Blocks, with config->nonblocking too, no longer than the deadlines of the operations, and then like pk_comm_destroy. After this
 * call pk_comm_destroy only waits for data that TCP has not delivered to other hosts yet. Since 0.2.
 */
PK_API pk_result_t pk_comm_finalize(pk_comm_t *comm);

/**
 * End a communicator and free it. Waits for its unfinished operations first, unless the communicator is poisoned or aborted. The
 * handle is invalid afterwards, whatever the call returns, except in a child of fork. A null handle is legal and does nothing.
 *
 * @param comm  the communicator
 * @return PK_OK; PK_ERR_UNSUPPORTED (in a child of fork, the parent's communicator, which is left as it is); the error that
 *         poisoned it
 * Local: does not wait for other ranks to destroy their communicators. Between hosts it waits until what was sent has arrived, even if
 * the peer has not received it yet: at most PK_RETRY_MS for all peers of a transport together, while broken connections are made again.
 * Otherwise the deadlines of the operations bound it; where an init was aborted it takes three seconds at most, in which rank 0 is told.
 * Since 0.1.
 */
PK_API pk_result_t pk_comm_destroy(pk_comm_t *comm);

/**
 * This rank, 0 to size - 1.
 *
 * @param comm  the communicator
 * @param rank  out: the number of this rank
 * @return PK_OK; PK_ERR_ARG (null); PK_IN_PROGRESS (a nonblocking pk_comm_init has yet to learn it from the launcher);
 *         PK_ERR_UNSUPPORTED (in a child of fork, the parent's communicator)
 * Never blocks. Since 0.1.
 */
PK_API pk_result_t pk_comm_rank(const pk_comm_t *comm, int *rank);

/**
 * Number of ranks.
 *
 * @param comm  the communicator
 * @param size  out: the number of ranks
 * @return as pk_comm_rank
 * Never blocks. Since 0.1.
 */
PK_API pk_result_t pk_comm_size(const pk_comm_t *comm, int *size);

#ifdef __cplusplus
}
#endif

#endif
