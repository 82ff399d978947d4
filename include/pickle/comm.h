/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file comm.h
 * Communicators: a fixed group of ranks, each a thread or process, that send to one another.
 *
 * Threads: different communicators may be used from different threads at once. One communicator is used by one thread at a
 * time, except pk_comm_abort, pk_comm_async_error and the calls of inspect.h, which any thread may make at any time before
 * pk_comm_destroy begins.
 *
 * Failure: after PK_ERR_TIMEOUT, PK_ERR_PEER, PK_ERR_SYSTEM or PK_ERR_ABORTED the communicator is poisoned. Every later operation returns the
 * first error. Buffers in host memory are the caller's again when the operation has returned an error (in a host stream: when
 * pk_stream_synchronize has): nothing reads or writes them any more, neither this rank nor, with these exceptions, another one. A rank
 * of this host that stands still in the middle of a copy of up to 8 MiB is waited for 30 ms. Memory from pk_mem_alloc may be read by
 * reductions of other ranks until they hear of the failure: they do not end with PK_OK. An RDMA device that does not say within 30 ms
 * that its queue pairs have ended may write what is on its way. A copy that has begun on any rank's GPU ends, of GPU memory and of host
 * memory (in an operation of both kinds, or in a CUDA stream); pk_comm_abort and pk_comm_destroy wait up to 50 ms for those of this
 * rank. What buffers hold is undefined. CUDA streams that were waiting are released; what they read then is undefined. Where both ranks
 * have called an operation, one of them has put the copy into its stream, and the copy runs when that stream comes to it, after the
 * failure too: if the program's own work holds that stream, GPU memory of the other rank may be written as late as that. It is
 * free when the streams of both ranks have come past the operation.
 *
 * CPUs: a rank that waits looks again and again, at first, while there is a CPU for each rank of the communicator on its machine; a rank without
 * one of its own yields at once, and whoever waits long sleeps. What a rank may use is read in init: the CPUs of the calling thread (taskset,
 * numactl, cpusets, sched_setaffinity) and the quotas of its control groups (docker --cpus). What is changed later is not noticed.
 * pk_topology_dump says which ranks share. The library's own threads - for host streams, for TCP where it has some, for GPUs - run on the
 * CPUs of the process's main thread, as these are when a thread is started: the program's binding. The environment's PK_THREAD_CPUS changes that for the
 * whole process: "all" that its cpuset has, or a list such as 0-3,8 ("inherit": the default); init refuses what is none of these, and a list of
 * which the process may use nothing, with PK_ERR_ARG. A program whose main thread is bound to one core, as by OpenMP, may want a list.
 *
 * Fork: in a child of fork, communicators and host streams of the parent are refused with PK_ERR_UNSUPPORTED by every call (pk_comm_destroy
 * too, which then frees nothing); the child may make its own, also in a pid namespace of its own. The parent goes on undisturbed. In a child of a
 * bare clone, which runs no handlers of fork, that begins with its first pk_comm_init*, pk_get_unique_id or
 * pk_stream_create.
 *
 * The process: descriptors that the library makes are 3 and above, also where the program has closed 0, 1 and 2 (those of drivers, as CUDA's and an
 * RDMA device's, are the driver's). The library's threads have all signals blocked but those of faults (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP,
 * SIGSYS), which the program's handler gets in whatever thread meets one. Where the system copies, between processes or from a connection, a page that
 * may not be touched is an error instead: no handler runs. A thread that is cancelled (pthread_cancel) inside a call ends when the call has: that goes
 * on until it is done, the communicator is aborted, or its deadline has passed.
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

/** Names one communicator to be made: up to four addresses of rank 0 and a 128-bit secret. Send it to the others by a private way. */
typedef struct pk_unique_id {
    unsigned char bytes[PK_UNIQUE_ID_BYTES];
} pk_unique_id_t;

/** May the library use the GPU's multiprocessors? */
enum {
    PK_SM_DEFAULT = 0, /**< small kernels where they are faster, and where nothing else can do the work; a stream that waits for a peer holds a warp */
    PK_SM_NONE = 1,    /**< never: an operation that would need a kernel returns PK_ERR_NEEDS_SM; so does one for which a stream would wait
                            while as many wait as can without kernels (3 with 8 hardware queues) */
    PK_SM_BOUNDED = 2  /**< at most max_sms multiprocessors at a time */
};

/** Values of pk_comm_config_t.device. */
#define PK_DEVICE_AUTO 0              /**< the device of the calling thread's current CUDA context, if there is one */
#define PK_DEVICE_HOST (-1)           /**< no GPU: device memory is refused */
#define PK_DEVICE_CUDA(ordinal) ((ordinal) + 1) /**< the CUDA device with this ordinal */

/** How to make a communicator. Set every field with PK_COMM_CONFIG_INIT, then change some. Zero means the default. */
typedef struct pk_comm_config {
    size_t struct_size;    /**< sizeof(pk_comm_config_t) of the caller's header */
    int device;            /**< PK_DEVICE_AUTO, PK_DEVICE_HOST or PK_DEVICE_CUDA(n) */
    int sm_policy;         /**< PK_SM_*; environment PK_SM_POLICY=default|none|N when 0 */
    int max_sms;           /**< with PK_SM_BOUNDED: 1 and up */
    int nonblocking;       /**< 1: init returns PK_IN_PROGRESS with a handle to poll by pk_comm_async_error or to abort */
    uint64_t timeout_ms;   /**< deadline of each operation and of init; default 600000, environment PK_TIMEOUT_MS */
} pk_comm_config_t;

#define PK_COMM_CONFIG_INIT { sizeof(pk_comm_config_t), 0, 0, 0, 0, 0 }

/**
 * Make a communicator of all processes of this job, found in the launcher's environment: PK_RANK, PK_SIZE and PK_ROOT
 * (host:port of rank 0) where set; else torchrun's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (rank 0 listens at MASTER_PORT + 1013,
 * + 2026 where that is taken, and not at torch's own port); else PMIx (mpirun, srun). All ranks make their communicators in the same
 * order.
 *
 * Each rank may know rank 0 by another name or address: rank 0 listens at all addresses of its machine where there is a secret
 * (PK_SECRET_FILE) or PK_INSECURE=1 allows that, unless all ranks are known to be there (LOCAL_WORLD_SIZE) or PK_ROOT is an
 * address of loopback in digits; without a secret, where PK_ROOT is an address in digits or localhost, at that one alone. A
 * name that is not known yet, and one where nobody listens yet, are tried again until the deadline, and after 5 s rank 0 and
 * each rank that has not found it log what they wait for.
 *
 * @param comm    out: the communicator, the caller's until pk_comm_destroy; set only with PK_OK or PK_IN_PROGRESS
 * @param config  NULL for all defaults
 * @return PK_OK; PK_IN_PROGRESS (config->nonblocking); PK_ERR_ARG (a variable or field is invalid, named);
 *         PK_ERR_UNSUPPORTED (no launcher found; a field of `config` that this version does not know is not zero); PK_ERR_TIMEOUT
 *         (names the ranks that did not come, and says if a process came whose version of the library has another handshake);
 *         PK_ERR_AUTH; PK_ERR_PEER (one died; rank 0 had given up before this rank came);
 *         PK_ERR_MISMATCH (ranks disagree about the job, or run versions that do not understand one another); PK_ERR_SYSTEM; PK_ERR_MEMORY;
 *         or what kept another rank from taking part, which the record names
 * Collective: blocks until all ranks called it, at most timeout_ms (the system's resolver is asked on a thread of its own;
 * where none can be made, as long as it takes); with config->nonblocking it returns at once, and several may be begun before
 * one is made. Any thread. Since 0.1.
 */
PK_API pk_result_t pk_comm_init(pk_comm_t **comm, const pk_comm_config_t *config);

/**
 * Make the id of a communicator to be. The calling process listens from now on for the ranks that will use it, at the
 * addresses that the id holds: up to four, of the interfaces that are up, those of container bridges and tunnels last
 * (PK_IFNAME restricts and orders them). The other ranks try all. Call it where rank 0 will run, once a communicator.
 *
 * @param id  out, the caller's: 128 bytes to give to every rank
 * @return PK_OK; PK_ERR_ARG (null; PK_IFNAME or PK_PORTS is wrong); PK_ERR_SYSTEM (no socket, no randomness); PK_ERR_MEMORY
 * Does not block. Any thread. Since 0.1.
 */
PK_API pk_result_t pk_get_unique_id(pk_unique_id_t *id);

/**
 * As pk_get_unique_id, for a rank 0 that may be in any process: whoever makes the id need not be a rank. A thread of this process tells
 * the ranks where rank 0 is, which listens at addresses of its own, until all know it, the id is released, or the process ends. It
 * costs each rank one more connection.
 *
 * @param id  out, the caller's: 128 bytes to give to every rank
 * @return PK_OK; PK_ERR_ARG (null; PK_IFNAME or PK_PORTS is wrong); PK_ERR_SYSTEM (no socket, no randomness, no thread);
 *         PK_ERR_MEMORY
 * Does not block. Any thread. Since 0.2.
 */
PK_API pk_result_t pk_get_unique_id_anywhere(pk_unique_id_t *id);

/**
 * Give back an id that no communicator will be made with: the process that made it does not listen for it any more.
 * pk_comm_init_rank of rank 0 gives its id back by itself, whatever it returns (but for PK_ERR_ARG of a rank or size that
 * cannot be); so does the end of the process.
 *
 * @param id  made by pk_get_unique_id or pk_get_unique_id_anywhere in this process, and not used yet
 * @return PK_OK; PK_ERR_ARG (null; this process did not make it, or it is used up or released)
 * Ranks that use the id later find nobody: PK_ERR_PEER. Does not block. Any thread. Since 0.2.
 */
PK_API pk_result_t pk_unique_id_release(const pk_unique_id_t *id);

/**
 * Make a communicator of `size` ranks that all hold the same id.
 *
 * @param comm    out: the communicator, the caller's until pk_comm_destroy; set only with PK_OK or PK_IN_PROGRESS
 * @param size    number of ranks, 1 to 65536, the same everywhere
 * @param rank    this one, 0 to size - 1; rank 0 must be in the process that made the id, but for
 *                pk_get_unique_id_anywhere
 * @param id      made by pk_get_unique_id or pk_get_unique_id_anywhere; used once
 * @param config  NULL for all defaults
 * @return as pk_comm_init; PK_ERR_ARG (a null communicator or id; a rank or size that cannot be; rank 0 in another process than
 *         the one that made the id; an id that is used up; a field of `config`)
 * Collective, blocking at most timeout_ms. Ranks may be threads of one process. Since 0.1.
 */
PK_API pk_result_t pk_comm_init_rank(pk_comm_t **comm, int size, int rank, const pk_unique_id_t *id,
                                     const pk_comm_config_t *config);

/**
 * Make communicators out of a communicator: one for each color, of the ranks that gave it.
 *
 * @param comm     the parent; goes on as before, and must not be destroyed before the new ones are made
 * @param color    0 and up: which one this rank wants to be in; negative: in none
 * @param key      ranks are numbered by key, equal keys by their rank in the parent
 * @param newcomm  out: the new communicator, the caller's until pk_comm_destroy; NULL for a negative color; set only with PK_OK
 *         or PK_IN_PROGRESS
 * @param config   NULL: the parent's, blocking. Device and policy need not be the parent's.
 * @return as pk_comm_init; the error of the parent if it is or becomes poisoned; PK_ERR_ARG (null; a finalized parent; a group is
 *         open; a field of `config`: this rank's turn has not been taken then, and it may call again)
 * Collective over the parent, among its operations in the same order on all ranks. Blocking at most timeout_ms, the parent's until all
 * ranks of the parent have called it and then config's. With config->nonblocking it blocks with a negative color alone; an abort of the
 * init takes effect when the parent's ranks have called it. Nothing secret is sent. Since 0.2.
 */
PK_API pk_result_t pk_comm_split(pk_comm_t *comm, int color, int key, pk_comm_t **newcomm, const pk_comm_config_t *config);

/**
 * Give up: release everything that waits in this communicator, here and on the other ranks (they get PK_ERR_ABORTED). Afterwards
 * the buffers of its operations are the caller's again, as said above. Only pk_comm_destroy is left to call. May be called while
 * another thread is inside an operation or inside pk_comm_init_rank with `nonblocking`.
 *
 * Where nothing of this rank is unfinished, operations and captured graphs, the rank only leaves, and nothing is logged: other
 * ranks get PK_ERR_ABORTED, which names it, with the first operation that needs it, one that waits for it now too; until then
 * pk_comm_async_error stays PK_OK there, and operations among others go on. A replay of a graph is no operation in this sense:
 * one that waits for a rank which has destroyed its own graphs and left goes on waiting, until its own rank aborts.
 *
 * @param comm  the communicator
 * @return PK_OK; PK_ERR_ARG (null); PK_ERR_UNSUPPORTED (in a child of fork, the parent's communicator)
 * Returns within 100 ms on a machine that is not overloaded. Any thread. Since 0.1.
 */
PK_API pk_result_t pk_comm_abort(pk_comm_t *comm);

/**
 * The state of a communicator, with a look at whether another rank has died or given up. A rank that has left in good order,
 * with nothing unfinished, is no error before an operation needs it: by pk_comm_destroy, by pk_comm_abort as said there, or by
 * the end of its process (exit, or return from main, without either; not _exit, nor by a signal). Who needs it gets PK_ERR_PEER
 * (PK_ERR_ABORTED), and its name. A connection between hosts that broke behind a message that was sent is made again here too:
 * a rank that has nothing else to call for long may call this now and then.
 *
 * @param comm  the communicator
 * @return PK_OK; PK_IN_PROGRESS (a nonblocking init goes on); PK_ERR_ARG (null); PK_ERR_UNSUPPORTED (in a child of fork, the
 *         parent's communicator); the error that poisoned it, whose record pk_last_error then returns
 * Never blocks. Any thread. Since 0.1.
 */
PK_API pk_result_t pk_comm_async_error(pk_comm_t *comm);

/**
 * End the operations of a communicator: wait until all that this rank has called have ended, their parts in CUDA and host
 * streams too. None may be called afterwards (PK_ERR_ARG), nor pk_comm_split, nor may captured graphs be launched. What is
 * left: pk_comm_async_error, pk_comm_abort, inspect.h, what gives memory back (pk_deregister, pk_mem_free, pk_op_destroy), and
 * pk_comm_destroy.
 *
 * @param comm  the communicator
 * @return PK_OK (also when it was finalized before); PK_ERR_ARG (null, still being made, a group is open in this thread);
 *         PK_ERR_UNSUPPORTED (in a child of fork, the parent's communicator); the error that poisoned it
 * Local: other ranks may call it sooner, later or never. Operations of theirs that wait for this rank afterwards get PK_ERR_PEER: at once in
 * pk_comm_finalize, else two seconds later.
 * Blocks, with config->nonblocking too, no longer than the deadlines of the operations, and then as pk_comm_destroy, which need
 * not wait any more except for what TCP has yet to bring to other hosts. Since 0.2.
 */
PK_API pk_result_t pk_comm_finalize(pk_comm_t *comm);

/**
 * End a communicator and free it. Waits for its unfinished operations first, unless it is poisoned or aborted. The handle is
 * gone whatever is returned, except in a child of fork. A null handle is legal and does nothing.
 *
 * @param comm  the communicator
 * @return PK_OK; PK_ERR_UNSUPPORTED (in a child of fork, the parent's communicator, which is left as it is); the error that
 *         poisoned it
 * Local: does not wait for other ranks to destroy theirs; but between hosts until what was sent has arrived, though nobody may have received it
 * yet: PK_RETRY_MS at most for all peers of a transport together, while broken connections are made again. Else bounded by the operations' deadlines. Since 0.1.
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
