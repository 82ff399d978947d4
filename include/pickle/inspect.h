/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file inspect.h
 * What the library will do or has done, and why. Any thread may call these functions while the communicator exists; none waits for a
 * peer.
 */
#ifndef PICKLE_INSPECT_H
#define PICKLE_INSPECT_H

#include "pickle/base.h"
#include "pickle/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Kinds of memory. */
typedef enum pk_mem_kind {
    PK_MEM_HOST = 0,  /**< pageable or pinned memory of the host */
    PK_MEM_DEVICE = 1 /**< memory of the communicator's GPU */
} pk_mem_kind_t;

/** Operations, for pk_explain. */
typedef enum pk_op_kind {
    PK_OP_SEND = 0,
    PK_OP_RECV = 1,
    PK_OP_ALLGATHER = 2,
    PK_OP_ALLREDUCE = 3,
    PK_OP_REDUCE_SCATTER = 4,
    PK_OP_BROADCAST = 5,
    PK_OP_REDUCE = 6,
    PK_OP_ALLTOALL = 7,
    PK_OP_GATHER = 8,
    PK_OP_SCATTER = 9,
    PK_OP_BARRIER = 10,
    PK_OP_ALLGATHERV = 11,
    PK_OP_ALLTOALLV = 12,
    PK_OP_GATHERV = 13,
    PK_OP_SCATTERV = 14
} pk_op_kind_t;

/** The path from this rank to a peer. */
typedef struct pk_path {
    size_t struct_size;   /**< set by the caller */
    char transport[16];   /**< "self", "shm", "nvlink", "rdma", "tcp"; "none" where there is no path */
    char device[32];      /**< what carries the bytes: "cma", "ring", "copy engine", "socket", "host memory" (bounce buffers),
                                ... */
    double expected_gbps; /**< 1e9 bytes a second one way; 0 unknown */
    char reason[192];     /**< one sentence: why this path */
} pk_path_t;

/**
 * The path of bytes from memory of `source` kind here to memory of `target` kind on `peer`. It is fixed when the communicator is made.
 *
 * @param comm    the communicator
 * @param peer    0 to size - 1; this rank too
 * @param source  kind of memory here
 * @param target  kind of memory on `peer`
 * @param path    in: struct_size; out: as many fields as fit in it. Owned by the caller
 * @return PK_OK, also where there is no path ("none"); PK_ERR_ARG (null, no such rank or kind, struct_size, a communicator that is
 *         still being made); PK_ERR_UNSUPPORTED (in a child of fork, the parent's communicator); the error that poisoned the
 *         communicator
 * Since 0.1.
 */
PK_API pk_result_t pk_comm_path(const pk_comm_t *comm, int peer, pk_mem_kind_t source, pk_mem_kind_t target, pk_path_t *path);

/** How an operation would be done. */
typedef struct pk_explanation {
    size_t struct_size;  /**< set by the caller */
    char algorithm[32];  /**< "direct", "ring", "eager", "ll kernel", ... */
    char transports[64]; /**< names of the transports it uses, with commas */
    uint64_t steps;      /**< plan steps this rank executes; pk_comm_stats counts the same */
    int sms;             /**< most multiprocessors that it occupies at a time, with any reduction; 0 = copy engines and CPU
                                only */
    char reason[192];    /**< why this algorithm */
} pk_explanation_t;

/**
 * What this rank would do for an operation. Reductions are assumed to be PK_SUM, except for `sms`. V-forms do the same for all counts.
 *
 * @param comm         the communicator
 * @param op           which operation
 * @param count        the operation's argument of this name (of reduce_scatter recvcount), in elements
 * @param dtype        type of the elements
 * @param kind         the kind of memory that the buffers are
 * @param in_place     1: in place as the operation defines it; 0: not
 * @param peer         for SEND and RECV the other rank, for an operation with a root the root; else ignored
 * @param explanation  in: struct_size; out: as many fields as fit in it. Owned by the caller
 * @return PK_OK; PK_ERR_ARG (null, no such operation, type, kind or rank, more elements than memory can hold, struct_size, a
 *         communicator that is still being made); PK_ERR_NEEDS_SM (where the operation would return it); PK_ERR_UNSUPPORTED
 *         (where the operation would return it; in a child of fork, the parent's communicator); PK_ERR_MEMORY; the error that
 *         poisoned the communicator
 * Nothing is sent. Since 0.1.
 */
PK_API pk_result_t pk_explain(const pk_comm_t *comm, pk_op_kind_t op, size_t count, pk_dtype_t dtype, pk_mem_kind_t kind,
                              int in_place, int peer, pk_explanation_t *explanation);

/** Counters since the communicator was made. */
typedef struct pk_stats {
    size_t struct_size;  /**< set by the caller */
    uint64_t operations; /**< ended */
    uint64_t steps;      /**< plan steps executed */
    uint64_t bytes_sent;
    uint64_t bytes_received;
    uint64_t messages;         /**< messages sent on control channels */
    uint64_t copies;           /**< copies handed to copy engines */
    uint64_t kernels;          /**< kernels launched, of any kind */
    uint64_t waits_pending;    /**< stream waits that hold a hardware queue now */
    uint64_t waits_max;        /**< the highest value of waits_pending so far */
    uint64_t words;            /**< signals (32-bit words) written or waited for in streams, in batches or alone */
    uint64_t mappings_made;    /**< allocations of peers that were mapped */
    uint64_t mappings_found;   /**< CTS messages for an allocation that was mapped already */
    uint64_t device_bytes;     /**< GPU memory that the communicator holds: scratch, slots, graphs */
    uint64_t pinned_bytes;     /**< host memory that it has registered for bounce buffers, and for collectives where GPUs do not
                                   reach one another */
    uint64_t work_requests;    /**< RDMA: sends and writes handed to devices */
    uint64_t doorbells;        /**< RDMA: calls that handed them over, several requests in one call where possible */
    uint64_t completions;      /**< RDMA: entries read from completion queues, including receives */
    uint64_t registrations;    /**< RDMA: registrations of memory, one for each port; none in steady state */
    uint64_t mappings_blocked; /**< transfers that went through the host because a mapping of freed memory could not be closed
                                    yet */
    uint64_t kernels_reaching; /**< kernels of long collectives that used this rank's buffers directly, because all other ranks
                                    had mapped them */
    uint64_t captured_operations; /**< operations recorded into CUDA graphs. This counter and the next four count once, when an
                                       operation is captured; the counters above do not count it. Each replay of its graph does
                                       the same work again, without the library */
    uint64_t captured_steps;      /**< plan steps of captured operations */
    uint64_t captured_copies;     /**< copies by copy engines that captured operations do in each replay */
    uint64_t captured_kernels;    /**< kernels that captured operations launch in each replay; none under PK_SM_NONE */
    uint64_t captured_words;      /**< signals that captured operations write or wait for in each replay */
    uint64_t pushes;              /**< transfers between GPUs that this rank's streams moved by a copy engine, as sender */
    uint64_t pulls;               /**< the same as receiver, because the sender had called first */
    uint64_t moves;               /**< transfers between GPUs that a kernel moved, in either direction (`kernels` counts these
                                       kernels too) */
} pk_stats_t;

/**
 * Read the counters.
 *
 * @param comm   the communicator
 * @param stats  in: struct_size; out: as many fields as fit in it. Owned by the caller
 * @return PK_OK; PK_ERR_ARG (null, struct_size, a communicator that is not up); PK_ERR_UNSUPPORTED (in a child of fork, the
 *         parent's communicator)
 * Since 0.1.
 */
PK_API pk_result_t pk_comm_stats(const pk_comm_t *comm, pk_stats_t *stats);

/**
 * Write the topology of this machine, as lines of text for people: packages, NUMA nodes and CPUs; GPUs and NICs with the distance between
 * each two of them, and the NICs nearest to each GPU; why RDMA can or cannot be used; with `comm`, what the transports found, where the
 * ranks are and which of them share a CPU (comm.h). Distances between devices:
 *
 *     SELF  one device
 *     NVL   NVLink, directly or through NVSwitches (as the GPU driver says)
 *     PIX   one PCIe switch
 *     PXB   several PCIe switches
 *     PHB   a PCIe host bridge, a part of the CPU
 *     NODE  host bridges of one NUMA node
 *     SYS   the link between NUMA nodes
 *
 * PK_P2P_LEVEL (rank 0's value holds for all ranks) names the farthest distance that copies from GPU to GPU may cross: two GPUs that are
 * known to be farther apart get no direct path, and pk_comm_path says so. LOC means SELF. Two ranks on one GPU, and GPUs at an unknown
 * distance, are not affected. Without PK_P2P_LEVEL GPUs copy directly as far as they reach.
 *
 * @param comm      NULL: the machine alone
 * @param text      [capacity] bytes, the caller's; cut where it is too short, always with a final null; NULL with capacity 0
 * @param capacity  bytes of `text`
 * @param needed    out, may be NULL: bytes that the whole text takes, with the null
 * @return PK_OK; PK_ERR_ARG (text null with a capacity, a communicator that is not up); PK_ERR_SYSTEM (the machine cannot
 *         be looked at); PK_ERR_MEMORY; PK_ERR_UNSUPPORTED (in a child of fork, the parent's communicator)
 * Takes tens of milliseconds. Since 0.2.
 */
PK_API pk_result_t pk_topology_dump(const pk_comm_t *comm, char *text, size_t capacity, size_t *needed);

/**
 * Write the settings of a communicator as lines of text: name, value, and where it came from (default, pk_comm_config_t,
 * environment, rank 0). Behind them follow the constants that decide how fast something is, as part.name, value, and "fixed" or
 * "default"; they are no promise, and may be others in the next version.
 *
 * @param comm      the communicator
 * @param text      [capacity] bytes, the caller's; cut where it is too short, always with a final null; NULL with capacity 0
 * @param capacity  bytes of `text`
 * @param needed    out, may be NULL: bytes that the whole text takes, with the null
 * @return PK_OK; PK_ERR_ARG (null communicator, text null with a capacity, a communicator that is not up); PK_ERR_UNSUPPORTED (in
 *         a child of fork, the parent's communicator)
 * Since 0.2.
 */
PK_API pk_result_t pk_config_dump(const pk_comm_t *comm, char *text, size_t capacity, size_t *needed);

/**
 * Write what the communicator's unfinished operations wait for, as lines of text: one line for each operation (name, number, how it is
 * done, how long it has run), below it one line for each step that has begun and not ended (which peer, how many bytes, which message
 * or signal it waits for); then one line for each control channel over RDMA, with its counters. For bug reports and for watchdogs; the
 * wording may change.
 *
 * @param comm      the communicator
 * @param text      [capacity] bytes, the caller's; cut where it is too short, always with a final null; NULL with capacity 0
 * @param capacity  bytes of `text`
 * @param needed    out, may be NULL: bytes that the whole text takes, with the null
 * @return PK_OK; PK_ERR_ARG (null communicator, text null with a capacity, a communicator that is not up); PK_ERR_UNSUPPORTED (in
 *         a child of fork, the parent's communicator)
 * Any thread, at any time before pk_comm_destroy. The call waits 100 ms at most; if another thread is inside the library for longer,
 * the text says so. Since 0.2.
 */
PK_API pk_result_t pk_pending_dump(const pk_comm_t *comm, char *text, size_t capacity, size_t *needed);

/** Receives one log line without newline. Called from any thread, must not call the library, must not keep `line`. */
typedef void (*pk_log_callback_t)(void *arg, int level, const char *line);

/**
 * Send log lines to `callback` instead of standard error. Operations wait for a callback that blocks, but not for standard error: a line
 * that the pipe, socket or terminal does not take at once is lost, and the next line says how many were lost. The library raises no
 * SIGPIPE.
 *
 * @param callback  gets each line, with its level: 1 error, 2 warn, 3 info, 4 debug; NULL: standard error again
 * @param arg       handed to `callback` as it is
 * Any thread. Since 0.1.
 */
PK_API void pk_log_set_callback(pk_log_callback_t callback, void *arg);

#ifdef __cplusplus
}
#endif

#endif
