/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CPU implementation of the part of the CUDA driver that libpickle uses: a libcuda.so.1 for machines without a GPU.
 *
 * Every stream is a queue with a thread of its own. Device memory is a memfd seen twice: at the device pointer, where the CPU
 * may not touch it (as on a real GPU), and at an alias that only the threads of the streams use. One lock guards all state; work
 * itself is done without it. README.md says what is faithful and what is not, and lists the environment variables.
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include <cuda.h>
/* No longer in the header, still in the driver. */
CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                   CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out);
#pragma GCC visibility pop

#pragma GCC visibility push(hidden)

#define FC_MAX_DEVICES 16
#define FC_GRANULARITY ((size_t)2 << 20)

/* --- configuration and entry (fc_init.c) --- */

enum fc_need {
    FC_ANY = 0,     /* callable before cuInit */
    FC_INIT = 1,    /* after cuInit */
    FC_CTX = 3,     /* with a current context */
    FC_UNSAFE = 4,  /* forbidden while a capture that concerns the thread goes on */
    FC_CALLBACK = 8 /* legal inside a host function */
};

enum fc_stat {
    FC_KERNELS,
    FC_MEMSETS,
    FC_LOCAL_COPIES,
    FC_PEER_COPIES,
    FC_HOST_COPIES,
    FC_WAITS,
    FC_WRITES,
    FC_PENDING_WAITS,
    FC_PENDING_WAITS_MAX,
    FC_GRAPH_LAUNCHES,
    FC_IPC_OPENS,
    FC_ALLOCATIONS,
    FC_RANGES,
    FC_STREAMS,
    FC_EVENTS,
    FC_STATS
};

struct fc_ctx {
    int device;        /* ordinal */
    unsigned refs;     /* retains of the primary context */
    unsigned epoch;    /* counts re-creations */
    unsigned peers;    /* bit d: access to device d enabled */
    int pending_waits; /* streams of this context whose head is a pending wait */
    int held_sms;      /* by kernels that wait for other ranks */
    size_t bytes_used;
    struct fc_stream *legacy, *per_thread;
};

/* A hardware queue that several streams share: what they put into it goes one behind another, as it was submitted. */
struct fc_queue {
    uint64_t submitted, completed;
};

#define FC_QUEUES_MAX 32

struct fc_state {
    pthread_mutex_t lock;
    pthread_cond_t changed;                                    /* an operation ended, a wait began or ended */
    _Atomic enum fc_use { FC_UNUSED, FC_IN_USE, FC_LOST } use; /* since cuInit; lost in a forked process */
    int devices;
    int physical[FC_MAX_DEVICES]; /* of each ordinal, after CUDA_VISIBLE_DEVICES */
    struct fc_ctx contexts[FC_MAX_DEVICES];
    CUresult sticky; /* after an illegal address nothing works any more */
    int connections, pending_waits;
    enum { FC_QUEUES_OFF, FC_QUEUES_PROCESS, FC_QUEUES_CONTEXT } queues;
    bool trace, protect, corrupt;
    unsigned jitter_us, depth;
    struct fc_queue copy_queues[FC_QUEUES_MAX]; /* copies to other devices */
    unsigned ncopy_queues;                      /* 0: they do not wait for one another */
    struct fc_queue work_queues[FC_QUEUES_MAX]; /* kernels, memsets, words, copies inside a device */
    unsigned nwork_queues;                      /* 0: as above */
    unsigned stuck_s;                           /* how long a call waits for streams before it says so */
    const char *sync;                           /* names of entry points that wait for the context as freeing does */
    const char *hold;                           /* names of those that keep the other threads' calls out */
    struct fc_thread *holder;                   /* the thread that is in one of them */
    size_t memory_bytes;
    atomic_ulong stats[FC_STATS];
};

struct fc_thread {
    struct fc_ctx *stack[16];
    int depth;
    CUstreamCaptureMode mode;
    bool in_callback;
    const char *call;
};

extern struct fc_state fc;
extern _Thread_local struct fc_thread fc_self;

/* Every entry point begins and ends with these. enter: may the call go on? leave: traces, returns its argument. */
CUresult fc_enter(const char *name, unsigned need);
CUresult fc_leave(const char *name, CUresult result);
const char *fc_call(void); /* the entry point that the thread is in */
void fc_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct fc_ctx *fc_current(void);
void fc_lock(void);
void fc_unlock(void);
void fc_count(enum fc_stat stat, long by);
void fc_max(enum fc_stat stat, unsigned long value);
/* A stream touched memory it may not touch: says so, and poisons the process as the driver does. */
void fc_fault(const char *what, uintptr_t address, size_t bytes);
void fc_device_uuid(int physical, CUuuid *uuid);
bool fc_has_dmabuf(void); /* fc_dmabuf.c */
bool fc_ctx_valid(const struct fc_ctx *ctx);

/* --- memory (fc_range.c, fc_mem.c, fc_pool.c, fc_ipc.c, fc_vmm.c) --- */

enum fc_kind {
    FC_PAGEABLE,  /* no range: ordinary host memory */
    FC_DEVICE,    /* cuMemAlloc */
    FC_POOL,      /* cuMemAllocAsync, out of the device's default pool */
    FC_IPC,       /* mapped from another process by cuIpcOpenMemHandle */
    FC_VMM,       /* cuMemMap */
    FC_PINNED,    /* cuMemHostAlloc */
    FC_REGISTERED /* cuMemHostRegister */
};

struct fc_range {
    enum fc_kind kind;
    uintptr_t base;
    size_t bytes;        /* as asked for */
    size_t mapped_bytes; /* rounded up to pages */
    char *alias;         /* where the threads of the streams see base */
    int fd;              /* memfd; -1 for host memory */
    int device;          /* ordinal, or -1: on a device that CUDA_VISIBLE_DEVICES hides */
    int physical;
    uint64_t id; /* unique, increasing */
    struct fc_ctx *ctx;
    unsigned access; /* VMM: bit d, device d may touch it */
    unsigned refs;   /* IPC: times opened; of a pool: its free is in a stream */
    unsigned sync_memops;
    struct fc_handle *handle; /* VMM */
    CUipcMemHandle ipc;       /* IPC: what it was opened from */
    uint64_t block;           /* cuMemAlloc, pool: it lies in; 0: none */
};

/* What an address is, for an operation of `bytes` bytes. */
struct fc_place {
    enum fc_kind kind;
    char *alias;
    int device, physical;
    unsigned access;
    bool on_device;
};

/* Lock held. CUDA_ERROR_INVALID_VALUE: begins inside a range and leaves it. */
CUresult fc_resolve(uintptr_t address, size_t bytes, struct fc_place *place);
/* Where a kernel, a memset or a memory operation of `ctx` may touch the bytes; NULL: it may not. Lock held. */
char *fc_access(const struct fc_ctx *ctx, uintptr_t address, size_t bytes);
struct fc_range *fc_range_find(uintptr_t address);
struct fc_range *fc_range_overlap(uintptr_t address, size_t bytes);
struct fc_range *fc_range_at(size_t index);
int fc_range_add(struct fc_range *range);
void fc_range_remove(struct fc_range *range);
/* Map `fd` for device memory: the pointer's side and the alias. fd -1: reserve both sides only. */
int fc_map(int fd, size_t bytes, size_t alignment, uintptr_t *base, char **alias);
void fc_unmap(uintptr_t base, char *alias, size_t bytes);
/* The same at an address that was reserved; it stays so when it is unmapped. */
int fc_map_at(int fd, size_t bytes, uintptr_t base, char **alias);
void fc_unmap_at(uintptr_t base, char *alias, size_t bytes);
uintptr_t fc_reserve(size_t bytes, size_t alignment); /* 0: none */
/* Where in which block an allocation is to lie; 0: it has none. Of a pool all lie in one. */
uintptr_t fc_block_place(int device, size_t bytes, bool pool, uint64_t *block);
size_t fc_round(size_t bytes, size_t to);
void fc_wait_before_free(struct fc_ctx *ctx); /* drops the lock meanwhile */
void fc_ipc_drop(struct fc_range *range);
void fc_ctx_free_memory(struct fc_ctx *ctx);
CUresult fc_device_alloc(enum fc_kind kind, struct fc_ctx *ctx, size_t bytes, CUdeviceptr *pointer); /* takes the lock */
void fc_device_drop(struct fc_range *range);

/* --- streams and events (fc_stream.c, fc_streamapi.c, fc_exec.c) --- */

/* A place in a stream's order that others wait for. */
struct fc_point {
    unsigned refs;
    bool done;
    int64_t ns; /* when */
};

enum fc_op_kind {
    FC_OP_COPY,
    FC_OP_SET,
    FC_OP_WAIT,
    FC_OP_WRITE,
    FC_OP_KERNEL,
    FC_OP_HOST,
    FC_OP_RECORD,
    FC_OP_JOIN,
    FC_OP_GRAPH,
    FC_OP_EMPTY,
    FC_OP_EVENT_RECORD, /* nodes of graphs alone: of an event that others see, too */
    FC_OP_EVENT_WAIT
};

struct fc_kernel; /* an entry of the table of emulated kernels */

struct fc_dims {
    unsigned x, y, z;
};

struct fc_op {
    enum fc_op_kind kind;
    unsigned refs;
    struct fc_ctx *ctx;
    struct fc_queue *queue; /* that it stands in, NULL: in none; and where */
    uint64_t place;
    union {
        struct {
            uintptr_t dst, src;
            size_t bytes;
            bool dst_pageable, src_pageable;
            bool crosses;   /* from one device to another */
            bool local;     /* inside one */
            void *snapshot; /* of a small pageable source, taken at the call */
        } copy;
        struct {
            uintptr_t dst;
            uint32_t value;
            unsigned width; /* bytes of an element */
            size_t count;
        } set;
        struct {
            uintptr_t address;
            uint64_t value;
            unsigned flags, width;
        } word;
        struct {
            const struct fc_kernel *kernel;
            void **params;
            struct fc_dims grid, block;
        } launch;
        struct {
            CUhostFn fn;
            void *data;
        } host;
        struct fc_point *point;
        struct {
            struct fc_exec *exec;
            struct fc_point *before, *done; /* launches of one graph follow one another */
            struct fc_point **external;     /* [nodes] what the launch's event nodes record or wait for; NULL: it has none */
        } graph;
        struct fc_event *event;
    };
};

struct fc_item {
    struct fc_item *next;
    struct fc_op *op;
};

struct fc_stream {
    struct fc_stream *next;
    struct fc_ctx *ctx;
    unsigned flags, epoch;
    int priority;
    uint64_t id;
    bool internal; /* a chain of a graph, or the library's own: no handle for the user */
    bool started, closing;
    bool by_copy_engine; /* the last that was put into it but words: a copy that leaves the device or comes to it */
    unsigned pins;       /* waiters that still look at it */
    pthread_cond_t work;
    struct fc_item *head, *tail;
    uint64_t submitted, completed;
    struct fc_capture *capture;
    struct fc_node **deps; /* what the next captured operation depends on */
    size_t ndeps;
};

struct fc_event {
    struct fc_event *next;
    unsigned refs; /* the handle, and nodes of graphs */
    struct fc_ctx *ctx;
    unsigned flags;
    struct fc_point *point;     /* NULL: never recorded */
    struct fc_capture *capture; /* last recorded in a capturing stream */
    struct fc_node **deps;
    size_t ndeps;
};

/* All with the lock held. */
struct fc_stream *fc_stream_new(struct fc_ctx *ctx, unsigned flags, int priority, bool internal);
void fc_stream_close(struct fc_stream *stream);
CUresult fc_stream_get(CUstream handle, struct fc_stream **stream);
struct fc_stream *fc_stream_first(void);
struct fc_op *fc_op_new(enum fc_op_kind kind, struct fc_ctx *ctx);
void fc_op_put(struct fc_op *op);
/* Give op to the stream, or to the graph it is being captured into. Takes over the reference. */
CUresult fc_submit(struct fc_stream *stream, struct fc_op *op);
void fc_push(struct fc_stream *stream, struct fc_op *op); /* takes over the reference; no capture, no legacy order */
void fc_wait_done(struct fc_stream *stream);              /* for everything submitted so far */
void fc_wait_ctx(struct fc_ctx *ctx);
struct fc_point *fc_point_new(void);
void fc_point_put(struct fc_point *point);
void fc_point_wait(struct fc_point *point);
void fc_reap(CUhostFn fn, void *data); /* run fn later, on a thread of the driver's */

/* Without the lock. */
void fc_execute(const struct fc_op *op, uint64_t *random);
bool fc_word_open(uint64_t word, uint64_t value, unsigned flags, unsigned width);

/* --- capture and graphs (fc_capture.c, fc_graph.c); lock held --- */

struct fc_node {
    struct fc_op *op;
    struct fc_node **deps;
    size_t ndeps, index;
    bool has_successor;
};

struct fc_graph {
    struct fc_graph *next;
    struct fc_node **nodes;
    size_t n, capacity;
    struct fc_user_ref *users;
};

struct fc_capture {
    struct fc_capture *next;
    unsigned refs;
    uint64_t id;
    CUstreamCaptureMode mode;
    enum { FC_CAPTURE_ACTIVE, FC_CAPTURE_INVALID, FC_CAPTURE_ENDED } state;
    pthread_t thread;
    struct fc_stream *origin;
    struct fc_graph *graph;
};

CUresult fc_capture_unsafe(void); /* CUDA_SUCCESS, or what a potentially unsafe call returns now */
CUresult fc_capture_add(struct fc_stream *stream, struct fc_op *op);
CUresult fc_capture_implicit(const struct fc_ctx *ctx);
bool fc_capture_in_ctx(const struct fc_ctx *ctx, bool invalidate);
CUresult fc_capture_check(struct fc_stream *stream); /* for calls that are illegal on a capturing stream */
CUresult fc_capture_record(struct fc_stream *stream, struct fc_event *event);
CUresult fc_capture_wait(struct fc_stream *stream, struct fc_event *event);
CUresult fc_capture_event(struct fc_event *event); /* for calls that are illegal on a captured event */
void fc_capture_forget_event(struct fc_event *event);
void fc_capture_put(struct fc_capture *capture);

struct fc_graph *fc_graph_new(void);
struct fc_node *fc_graph_add(struct fc_graph *graph, struct fc_op *op, struct fc_node *const *deps, size_t ndeps);
void fc_graph_free(struct fc_graph *graph);
struct fc_graph *fc_graph_get(CUgraph handle);
void fc_exec_run(struct fc_exec *exec, struct fc_point *const *external);
void fc_external_free(const struct fc_exec *exec, struct fc_point **external);
void fc_event_put(struct fc_event *event);
void fc_exec_put(struct fc_exec *exec);

struct fc_user_ref {
    struct fc_user_ref *next;
    struct fc_user *user;
    unsigned count;
};
struct fc_user_ref *fc_users_copy(const struct fc_user_ref *users);
void fc_users_free(struct fc_user_ref *users);

/* --- kernels (fc_module.c, fc_kernels.c) --- */

/* One launch, as an emulated kernel sees it. */
struct fc_launch {
    struct fc_ctx *ctx;
    void **params;
    struct fc_dims grid, block;
};

#define FC_SMS 132

struct fc_kernel;

/* fc_exec.c: one of those that wait for other ranks; of them, one that on a GPU waits for what is before it in its stream itself. */
bool fc_waits_for_ranks(const struct fc_kernel *kernel);
bool fc_waits_for_stream(const struct fc_kernel *kernel);

struct fc_kernel {
    const char *name; /* as cuModuleGetFunction is asked for it */
    size_t nparams;
    const size_t *param_bytes;
    void (*run)(const struct fc_launch *launch);
};

extern const struct fc_kernel fc_kernels[];
/* A pointer that a kernel may follow; NULL after a fault, then the kernel leaves. */
void *fc_ptr(const struct fc_launch *launch, uintptr_t address, size_t bytes);
void fc_relax(unsigned *round); /* between two looks at a word */

/* fc_bytes.c: memmove and memset of what may be long. */
void fc_bytes_copy(void *dst, const void *src, size_t bytes);
void fc_bytes_set(void *dst, unsigned char value, size_t bytes);

int64_t fc_now_ns(void);

#pragma GCC visibility pop

#endif
