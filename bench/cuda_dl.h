/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver, opened at run time: what the benchmark and the tests need of it, without its headers, so that every program
 * builds and starts on machines that have no CUDA at all. A call that fails says so on standard error and ends the program with code 2;
 * those that may fail in the ordinary run of things return the driver's code (0 is success).
 */
#ifndef CUDA_DL_H
#define CUDA_DL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void *gpu_stream_t;
typedef void *gpu_event_t;
typedef void *gpu_graph_t;
typedef void *gpu_kernel_t;

#define GPU_IPC_BYTES 64
typedef struct gpu_ipc {
    char bytes[GPU_IPC_BYTES];
} gpu_ipc_t;

#define GPU_NOT_READY 600

/* Why there is no GPU to be used ("libcuda.so.1 not found: ..."), NULL when there is one. Opens the driver on the first call. */
const char *gpu_absent(void);
int gpu_count(void);
const char *gpu_error(int code);

/* The device for this process, where each rank of a host takes one in turn: by what the launcher says of ranks. There must be one. */
int gpu_of_rank(void);
/* Make the primary context of a device current in the calling thread. */
void gpu_use(int ordinal);
/* Wait for all work of the calling thread's context. */
int gpu_context_sync(void);
/* The name of a device, terminated. */
void gpu_name(int ordinal, char *name, size_t bytes);
/* Where it sits ("0000:18:00.0"), as NVML knows it too. */
void gpu_bus_id(int ordinal, char *text, size_t bytes);
int gpu_multiprocessors(int ordinal);
int gpu_threads_per_multiprocessor(int ordinal);

void *gpu_alloc(size_t bytes);
void gpu_free(void *ptr);
/* Pinned host memory that kernels see at the same address. */
void *gpu_host_alloc(size_t bytes);
void gpu_host_free(void *ptr);
/* Copy between any two kinds of memory, ended on return. On a stream of its own: waits for nothing else. */
void gpu_copy(void *dst, const void *src, size_t bytes);
void gpu_copy_async(void *dst, const void *src, size_t bytes, gpu_stream_t stream);
void gpu_fill(void *dst, unsigned char value, size_t bytes);

/* A stream that does not synchronise with the legacy default stream. */
gpu_stream_t gpu_stream_new(void);
/* One whose kernels go before those of other streams that wait for multiprocessors. */
gpu_stream_t gpu_stream_new_first(void);
void gpu_stream_free(gpu_stream_t stream);
int gpu_stream_sync(gpu_stream_t stream);
int gpu_stream_query(gpu_stream_t stream);
void gpu_stream_wait(gpu_stream_t stream, gpu_event_t event);

gpu_event_t gpu_event_new(void);
void gpu_event_free(gpu_event_t event);
void gpu_event_record(gpu_event_t event, gpu_stream_t stream);
int gpu_event_query(gpu_event_t event);
double gpu_event_elapsed_us(gpu_event_t start, gpu_event_t end);

void gpu_ipc_export(const void *ptr, gpu_ipc_t *handle);
void *gpu_ipc_open(const gpu_ipc_t *handle);
void gpu_ipc_close(void *ptr);

/* Capture in mode "thread local". end: the executable graph, or the driver's code and NULL. A thread with several captures has to end all
 * (end_all) before it makes graphs executable: the driver forbids that while a capture of the thread goes on. */
void gpu_capture_begin(gpu_stream_t stream);
int gpu_capture_end(gpu_stream_t stream, gpu_graph_t *graph);
int gpu_capture_end_all(const gpu_stream_t *streams, int n, gpu_graph_t *graphs);
void gpu_graph_launch(gpu_graph_t graph, gpu_stream_t stream);
void gpu_graph_free(gpu_graph_t graph);

/* A kernel out of PTX text. Modules live as long as the context. */
gpu_kernel_t gpu_kernel_load(const char *ptx, const char *name);
int gpu_kernel_blocks_per_multiprocessor(gpu_kernel_t kernel, int threads);
void gpu_kernel_launch(gpu_kernel_t kernel, int blocks, int threads, void **params, gpu_stream_t stream);

#endif
