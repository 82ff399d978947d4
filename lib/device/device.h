/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory and queues of a device: the host itself, or a CUDA GPU. The rest of the library knows no other way to either.
 *
 * A device object belongs to one communicator; the driver's context behind it is the process's primary context. A queue is an
 * ordered sequence of work: a CUDA stream, or the host's, where every call does its work before it returns. Calls on one device
 * come from one thread at a time (the communicator's lock) unless a slot says otherwise. Every CUDA slot may be called from any
 * thread: it makes the context current and the thread's capture mode relaxed for its own duration (or once for many, see enter).
 */
#ifndef PKI_DEVICE_H
#define PKI_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/float_env.h"
#include "kernels/kernels.h"
#include "pickle/base.h"

struct pki_device;

enum pki_mem_kind { PKI_MEM_HOST, PKI_MEM_DEVICE }; /* the values of pk_mem_kind_t */

/* The allocation that a pointer lies in. Host memory: kind alone. */
struct pki_mem {
    enum pki_mem_kind kind;
    int ordinal;    /* device that owns it */
    bool shareable; /* export can work */
    bool vmm;       /* made by cuMemCreate + cuMemMap: may consist of several pieces */
    uintptr_t base; /* of the allocation; for VMM memory of all pieces that the classified range touches */
    size_t bytes;
    int memfd;          /* host memory: its descriptor where it has one (shareable), not to be closed */
    uint64_t buffer_id; /* never reused in a process: tells a new allocation at an old address from the old one */
};

/*
 * A signal: a 32-bit word that CPU and GPU of every process concerned see, and the value that opens it. Open when word -
 * value, as a signed 32-bit number, is not negative; so a word that has moved on to a later use still counts as open for an
 * earlier one.
 */
struct pki_signal {
    _Atomic uint32_t *word; /* NULL: open */
    uint32_t value;
};

static inline bool pki_signal_is_open(const struct pki_signal *signal)
{
    return signal->word == NULL || (int32_t)(atomic_load_explicit(signal->word, memory_order_acquire) - signal->value) >= 0;
}

static inline void pki_signal_open(const struct pki_signal *signal)
{
    atomic_store_explicit(signal->word, signal->value, memory_order_release);
}

/* One operation on a word in a queue. */
enum pki_signal_kind {
    PKI_SIGNAL_WRITE,  /* after all earlier work of the queue is visible everywhere: word = value */
    PKI_SIGNAL_WAIT,   /* until the signal is open */
    PKI_SIGNAL_WAIT_EQ /* until word == value: captured operations, whose words go back to 0 */
};

struct pki_signal_op {
    enum pki_signal_kind kind;
    struct pki_signal signal;
};

/* How a queue waits: by a stream memory operation, which holds one hardware queue of the process, or by a kernel of one warp. */
enum pki_wait_how {
    PKI_WAIT_VALUE,
    PKI_WAIT_KERNEL,
    PKI_WAIT_SERVE /* by a kernel that does orders meanwhile: queue->serving */
};

struct pki_queue {
    struct pki_device *device;
    void *handle;                      /* CUstream; NULL is the legacy default stream, or the host's queue */
    void *own;                         /* the device's, of one that queue_open made; else NULL */
    const struct pki_serving *serving; /* for waits by kernels that serve */
};

/* How to reach an allocation from another process. Descriptors are the caller's to close. */
#define PKI_EXPORT_HANDLE_BYTES 64
struct pki_export {
    enum { PKI_EXPORT_ADDRESS, PKI_EXPORT_IPC, PKI_EXPORT_VMM, PKI_EXPORT_MEMFD } kind; /* MEMFD: host memory, one piece */
    uint64_t base;                                                                      /* address in the owner's process */
    uint64_t bytes;                                                                     /* of the whole allocation */
    uint64_t buffer_id; /* the owner's: tells it from an earlier allocation at this address */
    uint64_t owner;     /* a random number of the owning process */
    uint8_t device_uuid[16];
    uint8_t handle[PKI_EXPORT_HANDLE_BYTES]; /* IPC */
    uint32_t pieces;                         /* VMM: consecutive pieces, one descriptor each */
    uint64_t piece_bytes_first, piece_bytes; /* of the first, and of each other; equal unless the range is odd */
    int *fds;                                /* [pieces], malloc'ed by export; import reads it, does not close */
};

/* A message of the low-latency kernel: one CTA, or several, move it through a slot in the receiver's GPU memory, whose 8-byte
 * cells carry 4 bytes of data and 4 of flag. Sender and receiver each launch one. The receiver has granted the slot while it was
 * empty, so the sender waits for nothing. */
struct pki_ll_op {
    bool send;
    void *user;        /* source or destination */
    uint32_t bytes;    /* up to PKI_LL_MAX_BYTES */
    uint32_t flag;     /* another one than any cell of the slot holds, and not 0 */
    uint64_t *slot;    /* send: the peer's, mapped here. recv: own */
    uint32_t ctas;     /* that move it; 0 is 1 */
    uint32_t *arrived; /* with several: 0 in this GPU's memory, for this message alone while it moves */
    /* host_registered word set to `flag` at the end (buffer free, or data there for what follows in the queue), or NULL */
    _Atomic uint32_t *done;
};

#define PKI_LL_SLOT_BYTES (2u * PKI_LL_MAX_BYTES)

/* A transfer of the moving kernel, from and to memory of GPUs: this one's, or a peer's that import has mapped. */
struct pki_move_op {
    const void *src;
    void *dst;
    size_t bytes;
    struct pki_signal start; /* open before a byte is moved; words are host_registered memory */
    struct pki_signal done;  /* opened behind the last byte; no word: nobody is told */
    uint32_t *arrived;       /* 0 in this GPU's memory, for this transfer alone while it moves, 0 again when it has moved; no need
                            * of it to wait for `start` alone: 0 bytes, and nobody is told */
};

enum pki_fused_kernel {
    PKI_FUSED_TURN,
    PKI_FUSED_EXCHANGE,
    PKI_FUSED_PUSH,
    PKI_FUSED_PUSH_SUM,
    PKI_FUSED_FOLD,
    PKI_FUSED_RELAY,
    PKI_FUSED_TWOSHOT,
    PKI_FUSED_PAIR_EXCHANGE,
    PKI_FUSED_PAIR_SUM
};

/* What a kernel that waits does meanwhile. */
struct pki_serving {
    const struct pki_queue *lanes; /* those of pki_orders_open */
    int ctas;
    const _Atomic uint32_t *abort_flag; /* host_registered; nonzero: what is in the lanes is done, and the kernel ends */
};

/* One element by which others are multiplied. */
struct pki_factor {
    const void *at; /* memory of the device, read when the queue comes to it; NULL: `value` */
    uint64_t value; /* the element, in the first bytes */
};

struct pki_device_info {
    char name[64];
    uint8_t uuid[16];
    char pci_bus_id[16];
    int ordinal;
    int sms;
    int reduce_ctas;      /* most CTAs of one reduction, unless max_ctas says less */
    int connections;      /* hardware queues of this process: CUDA_DEVICE_MAX_CONNECTIONS, 8 by default */
    int copy_connections; /* those for copies to and from peers: CUDA_DEVICE_MAX_COPY_CONNECTIONS, 4 by default */
    bool vmm;
};

struct pki_device_ops {
    const char *name; /* "host", "cuda" */

    /* Open the device with this ordinal (-1: the one of the calling thread's current context; PK_ERR_UNSUPPORTED and no log line
     * when there is none). Costs the context's creation if the process has none. */
    pk_result_t (*open)(int ordinal, struct pki_device **device);
    void (*close)(struct pki_device *device);

    /* Make the context current and captures relaxed until leave, for a thread that is about to make many calls. Nests. */
    void (*enter)(struct pki_device *device);
    void (*leave)(struct pki_device *device);

    /* What [ptr, ptr + bytes) is. Memory the device does not know is host memory. PK_ERR_ARG: a device range that runs past its
     * allocation, managed memory is treated as host memory. Fast: a cached lookup, checked against the buffer id. */
    pk_result_t (*classify)(struct pki_device *device, const void *ptr, size_t bytes, struct pki_mem *mem);

    pk_result_t (*alloc)(struct pki_device *device, size_t bytes, void **ptr); /* holds anything */
    /* memory of alloc. Waits for that, 10 s at most; not inside an operation */
    pk_result_t (*zero)(struct pki_device *device, void *ptr, size_t bytes);
    void (*free)(struct pki_device *device, void *ptr);

    /* Let queues of this device touch words and bytes in [ptr, ptr + bytes) of host memory, at the same address. */
    pk_result_t (*host_register)(struct pki_device *device, void *ptr, size_t bytes);
    void (*host_unregister)(struct pki_device *device, void *ptr);

    /* Describe an allocation to another process, and map one described. import verifies bytes; a mapping is read and written by
     * copies and kernels of this device, peer access included. The process that exported maps it too (its own address).
     * PK_IN_PROGRESS of import: a mapping of memory that its owner has freed stands in the way; drop_stale_mappings closes all
     * such, which waits for all work of the device, and so for whatever its streams wait for. */
    pk_result_t (*export)(struct pki_device *device, const struct pki_mem *mem, struct pki_export *out);
    pk_result_t (*import)(struct pki_device *device, const struct pki_export *in, bool same_process, void **base);
    void (*unimport)(struct pki_device *device, const struct pki_export *in, bool same_process, void *base);
    void (*drop_stale_mappings)(struct pki_device *device);

    /* For devices of others, such as a NIC, that read and write this device's memory themselves. dmabuf: a descriptor, the
     * caller's, of the pages that an allocation touches. PK_ERR_UNSUPPORTED and no log line: there is none. settle: what they
     * have written, as far as the CPU has been told, is there for work that is queued from now on. PK_ERR_UNSUPPORTED: that is
     * not possible. */
    pk_result_t (*dmabuf)(struct pki_device *device, const struct pki_mem *mem, int *fd);
    pk_result_t (*settle)(struct pki_device *device);

    /* A private queue that never synchronises with the legacy default stream. */
    pk_result_t (*queue_open)(struct pki_device *device, struct pki_queue *queue);
    void (*queue_close)(struct pki_queue *queue);
    /* Before anything is put into a queue that queue_open made: does it go on there now, though streams wait? `work`: kernels,
     * copies inside the device and short ones from and to the host (gpu.engine_copy_bytes), which alone may not. False: it does
     * not, or that has to be found out. Ask again soon, and put in at once what was asked for. May take up to 20 us, and put
     * another stream behind the queue: what was put into it has ended then. */
    bool (*clear)(struct pki_queue *queue, bool work);
    bool (*idle)(const struct pki_queue *queue); /* all work in it has ended; false when it cannot be told (capture) */
    /* What is put into `queue` from now on runs after all that is in `before` now; nothing waits on the CPU. Both of this device,
     * neither captured. */
    pk_result_t (*follow)(const struct pki_queue *queue, const struct pki_queue *before);
    /* Is the queue being captured into a graph? `id` is the capture's, never 0. PK_ERR_UNSUPPORTED: the legacy stream while
     * another captures. */
    pk_result_t (*capturing)(const struct pki_queue *queue, bool *yes, uint64_t *id);

    /* Of queues that are being captured; the host's device has none of these. graph_keep: gone(arg) is called once, when the
     * graph and all that was made of it have been destroyed and have ended, or because this returns an error; in any thread, and
     * nothing of the device may be called in it. */
    pk_result_t (*graph_keep)(const struct pki_queue *queue, void (*gone)(void *arg), void *arg);
    /* Until all launched graphs have ended, and all other work of the GPU's context. At once where a stream of it is captured. */
    void (*graphs_wait)(struct pki_device *device);
    /* A turn: what is captured between turn_begin and turn_end has it for itself, in each replay. It follows what the graphs that
     * were launched before have so, and in the same graph what was captured before: `last` is what the turn's last end in this
     * graph has given, NULL for none, in which case all that the queue does afterwards in this capture waits for the graphs
     * before. Close: no graph with it is left. */
    pk_result_t (*replay_lock_open)(struct pki_device *device, void **turn);
    void (*replay_lock_close)(struct pki_device *device, void *turn);
    pk_result_t (*replay_lock)(const struct pki_queue *queue, void *turn, void *last);
    pk_result_t (*replay_unlock)(const struct pki_queue *queue, void *turn, void **last);

    /* Work. All of it is queued and none of it waits on the CPU. Addresses are this process's, host_registered or imported or
     * own. */
    pk_result_t (*copy)(const struct pki_queue *queue, void *dst, const void *src, size_t bytes);
    /* All n fragments of `src`, host_registered memory, to their places in `dst`, memory of this device, in one launch. */
    pk_result_t (*unpack)(const struct pki_queue *queue, void *dst, const void *src, const struct pki_unpack_fragment *fragments,
                          int n);
    /* dst[i] = op over srcs[0..n-1][i] in that order, 2 <= n <= PKI_REDUCE_SOURCES, accumulated in f32 for 16- and 8-bit floats.
     * dst may equal a source. `op` is PK_SUM to PK_MAX or PKI_SUM_DIVIDED. */
    pk_result_t (*reduce)(const struct pki_queue *queue, void *dst, const void *const *srcs, int n, size_t count,
                          pk_dtype_t dtype, pk_op_t op);
    /* dst[i] = src[i] * factor, rounded once; integers wrap. dst and src do not overlap. */
    pk_result_t (*scale)(const struct pki_queue *queue, void *dst, const void *src, size_t count, pk_dtype_t dtype,
                         const struct pki_factor *factor);
    /* Up to 255 word operations, in order. Host queue: waits are not allowed (the engine polls). */
    pk_result_t (*signals)(const struct pki_queue *queue, const struct pki_signal_op *ops, int n, enum pki_wait_how how);
    /* All n messages in one launch of `ctas` CTAs at most, or of as many as the messages ask for (0). With fewer than they ask
     * for CTAs do one message behind another, in this order. `abort_flag`: host_registered word; nonzero makes the CTAs leave. */
    pk_result_t (*ll)(const struct pki_queue *queue, const struct pki_ll_op *ops, int n, int ctas,
                      const _Atomic uint32_t *abort_flag);

    /* Move all n transfers in one launch, each as soon as its start signal is open, whatever the order. It ends when all have
     * moved, or when *abort_flag (host_registered) is not 0: what has not moved by then opens no done signal, and its `arrived`
     * may hold anything. `ctas` CTAs; 0: the device's choice. They must all find a place at a time where one transfer's start
     * waits for another's done. */
    pk_result_t (*move)(const struct pki_queue *queue, const struct pki_move_op *ops, int n, int ctas,
                        const _Atomic uint32_t *abort_flag);

    /* One rank's part in a fused collective, in `ctas` CTAs. args: kernels/kernels.h. The kernel ends when all ranks have
     * launched theirs, or by args->abort_flag. PKI_FUSED_TURN: one warp, which waits for this rank's earlier ones. */
    pk_result_t (*fused)(const struct pki_queue *queue, enum pki_fused_kernel kernel, pk_dtype_t dtype, int ctas,
                         const struct pki_fused_args *args);

    /* Can `reduce` do this? PK_AVG stands for PK_SUM and PKI_SUM_DIVIDED. */
    bool (*reduces)(const struct pki_device *device, pk_dtype_t dtype, pk_op_t op);

    void (*info)(const struct pki_device *device, struct pki_device_info *info);
};

/* For `reduce`: the sum, divided by n before it is rounded to the element type. Integer sums wrap; their quotient is cut toward
 * 0. */
#define PKI_SUM_DIVIDED(n) (PK_AVG | (pk_op_t)(n) << 32)

/* The n of PKI_SUM_DIVIDED; 0 for other reductions. */
static inline uint32_t pki_op_divisor(pk_op_t op)
{
    return (uint32_t)op == PK_AVG ? (uint32_t)(op >> 32) : 0;
}

/* Every device starts with its table, so that callers write device->ops->copy(...). */
struct pki_device {
    const struct pki_device_ops *ops;
    int max_ctas;              /* most CTAs of one reduction; 0: the device's choice */
    uint64_t words;            /* written or waited for in queues so far */
    const atomic_int *waiting; /* streams of the process that wait on it for operations; NULL: nobody counts them */
};

/* The tables; cuda is NULL in a library built without CUDA. */
extern const struct pki_device_ops pki_device_host;
const struct pki_device_ops *pki_device_cuda(void);

/* Why no CUDA device can be used ("libcuda.so.1 not found", ...); NULL when one can. Opens the driver, makes no context. */
const char *pki_device_cuda_absent(void);

/* Memory of a GPU for the program, of the process and not of a device object: other processes can map it, and the other GPUs of
 * this one touch it. ordinal -1: the calling thread's current device, as the CUDA runtime has it. Any thread, also while a
 * stream is captured. */
pk_result_t pki_device_cuda_mem_alloc(int ordinal, size_t bytes, void **ptr);
/* PK_IN_PROGRESS and no record: ptr is none of it. */
pk_result_t pki_device_cuda_mem_free(void *ptr);

/* GPU memory that ranks of this process write to. They have no mapping of their own that would outlive its owner's, and their
 * copies and kernels write before they look whether the owner is still there: it is freed when the last of them has given it up.
 * Any thread. */
pk_result_t pki_retained_alloc(struct pki_device *device, size_t bytes, void **at); /* held by the caller */
pk_result_t pki_retained_alloc_mappable(int ordinal, size_t bytes, void **at);      /* as pki_device_cuda_mem_alloc */
bool pki_retained_take(void *at);                                                   /* by another rank; false: freed already */
void pki_retained_give(void *at);

/* What joins two GPUs, as the driver says. Unknown: no driver, or one of them is not visible to this process. */
enum pki_device_link { PKI_LINK_UNKNOWN, PKI_LINK_PCIE, PKI_LINK_NVLINK };
enum pki_device_link pki_device_cuda_link(const char *bus_id_a, const char *bus_id_b);

/*
 * Orders: queues of a device of their own, for which nothing is asked of the driver. What is put into a lane is done, one
 * behind another, by kernels with which other queues wait (PKI_WAIT_SERVE); while none is there it stands. Slots: copy,
 * unpack, reduce, scale, signals (writes, with which what was put in before is told), clear, idle. Addresses are such as a
 * kernel of `gpu` reaches: no pageable memory.
 */
enum pki_lane { PKI_LANE_OUT, PKI_LANE_IN, PKI_LANE_WORK, PKI_LANES };

pk_result_t pki_orders_open(struct pki_device *gpu, struct pki_queue lanes[PKI_LANES]);
void pki_orders_close(struct pki_queue lanes[PKI_LANES]); /* no kernel serves them any more */
/* One more kernel that serves them: what it has to know */
void pki_orders_launch(const struct pki_queue *lanes, struct pki_serve_args *args);

/* The host's reduction, for any thread: as the slot `reduce`. */
pk_result_t pki_reduce_host(void *dst, const void *const *srcs, int n, size_t count, pk_dtype_t dtype, pk_op_t op);
/* The same for who has called pki_float_env_enter, once for many: on some processors to read the environment between a message
 * and its sum takes as long as a short sum. */
pk_result_t pki_reduce_host_here(void *dst, const void *const *srcs, int n, size_t count, pk_dtype_t dtype, pk_op_t op);
/* As the slot `scale`. */
pk_result_t pki_scale_host(void *dst, const void *src, size_t count, pk_dtype_t dtype, const struct pki_factor *factor);

#endif
