/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs that test libnccl.so.2 share: they are linked with it as a user's are, and see nothing else of the
 * library. */
#ifndef BED_H
#define BED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_dl.h"
#include "names.h"

#define BED_SKIPPED 77
#define BED_RANKS 8
#define BED_ONES ((size_t)5000)

/* PASS and FAIL lines; bed_end is main's return value. Any thread. */
bool check(bool passed, const char *format, ...) __attribute__((format(printf, 2, 3)));
int bed_end(void);

/* Ends the process unless the call gave PKN_SUCCESS. */
#define MUST(call) must_succeed((call), #call)
void must_succeed(pkn_result_t result, const char *call);

/* GPUs enough? Else says SKIPPED, and main returns BED_SKIPPED. */
bool bed_has_gpus(int gpus);

/* f32: device memory from host values, and back. */
float *bed_upload(const float *host, size_t count);
void bed_download(float *host, const float *device, size_t count);
/* BED_ONES ones in device memory; and whether their sum over the ranks, from `in` to `out`, is how many ranks there are. */
float *bed_ones(void);
bool bed_adds_up(pkn_comm_t comm, gpu_stream_t stream, const float *in, float *out, int size);

/* Until the stream is idle, at most a minute; false: it is not, or has failed. */
bool bed_idle(gpu_stream_t stream);
/* Until the communicator is not in progress any more, at most a minute. */
pkn_result_t bed_settled(pkn_comm_t comm);
double bed_now_ms(void);
/* A TCP port of loopback that nobody has just now. */
int bed_free_port(void);

/* Memory that this process and those that it starts share. */
struct bed_shared {
    pkn_id_t id;
    _Atomic int has_id;
    _Atomic int words[32];
};

/* Start this program again as `role`; it finds its role, number and the shared memory by bed_role. */
pid_t bed_start(const char *role, int number);
/* The exit code; -1: it did not end in a minute, or by a signal. */
int bed_wait(pid_t pid);
/* NULL in the process that was started first. */
const char *bed_role(int *number);
struct bed_shared *bed_shared(void);
/* Wait until the word is at least this, at most a minute. */
void bed_await(_Atomic int *word, int least);

#endif
