/* SPDX-License-Identifier: Apache-2.0 */
/* What the GPU programs share that use the public API alone: one process and one GPU a rank, data, a kernel that spins. */
#ifndef GPU_RANK_H
#define GPU_RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_dl.h"
#include "pickle/pickle.h"
#include "ranks.h"

#define GPU_SKIPPED 77

struct gpu_rank {
    int rank, size;
    pk_comm_t *comm;
    gpu_stream_t stream; /* the rank's own, and as the library takes it */
    pk_stream_t in_stream;
};

/* In the driver: enough GPUs? If not, prints SKIPPED, and main returns GPU_SKIPPED. */
bool gpu_enough(int gpus);
/* The driver that emulates GPUs on CPUs: everything is right and nothing fast. */
bool gpu_is_software(void);

/* All of main, where two ranks on a GPU each do the same once: rank_main in a rank; else starts them, or prints SKIPPED. Returns main's value. */
int gpu_two_ranks(int (*rank_main)(void), const char *role, int timeout_ms, const char *what);

/* In a rank: use GPU number `rank`, make the communicator and a stream. Ends the process when that fails. */
void gpu_rank_open(struct gpu_rank *self, int sm_policy, uint64_t timeout_ms);
/* Meets the others first. */
void gpu_rank_close(struct gpu_rank *self);
/* Another communicator of the same ranks. */
pk_comm_t *gpu_rank_another(struct gpu_rank *self, uint64_t timeout_ms);

/* Print what the library says of a communicator that does not go on. */
void gpu_show_pending(const pk_comm_t *comm);
/* Ends the process with the library's text unless PK_OK. */
void must_be_ok(pk_result_t result, const char *what);

/* Pseudo-random bytes that depend on the key; the second returns the first wrong position, or `bytes`. */
void pattern_fill(void *host, size_t bytes, uint64_t key);
size_t pattern_wrong(const void *host, size_t bytes, uint64_t key);
/* The same for device memory, by way of the host. */
void pattern_to_gpu(void *device, size_t bytes, uint64_t key);
size_t pattern_wrong_on_gpu(const void *device, size_t bytes, uint64_t key);

/* A kernel of one parameter, uint32_t *flag (pinned host memory): every block stays until *flag is not 0. */
gpu_kernel_t spin_kernel(void);
void spin_launch(gpu_kernel_t kernel, int blocks, int threads, uint32_t *flag, gpu_stream_t stream);

/* Poll until the stream is idle. True when it was within the time; milliseconds taken in *took_ms unless NULL. */
bool stream_idle_within(gpu_stream_t stream, double limit_ms, double *took_ms);
/* GPUs here that a test with `most` ranks at the most can use. */
int gpu_ranks(int most);

#endif
