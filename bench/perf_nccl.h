/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL beside the library: the same operations on the same buffers in the same run. Its shared object is opened at run time. Every
 * error ends the program with NCCL's text. NVLink multicast (NVLS) is always off.
 */
#ifndef PERF_NCCL_H
#define PERF_NCCL_H

#include <stddef.h>

struct perf_run;
struct perf_library;

/* What NCCL is allowed to know beforehand. Each needs a newer NCCL than the one before. */
enum perf_nccl_setting {
    PERF_NCCL_OFF,
    PERF_NCCL_DEFAULT,    /* plain buffers */
    PERF_NCCL_REGISTERED, /* buffers of ncclMemAlloc, known by ncclCommRegister */
    PERF_NCCL_ZERO_CTA    /* buffers of ncclMemAlloc in symmetric windows, NCCL_CTA_POLICY_ZERO: NCCL's own zero-SM way */
};

/* Posts in run->stream through NCCL. */
extern const struct perf_library perf_nccl;

/* Why this program cannot use NCCL at all (built without its header), or NULL. */
const char *perf_nccl_absent(void);
const char *perf_nccl_setting_name(enum perf_nccl_setting setting);
/* Open the shared object: $PERF_NCCL_LIBRARY, or libnccl.so.2 where the loader or Python packages have it. Sets an environment variable:
 * call it while there is one thread. */
void perf_nccl_load(enum perf_nccl_setting setting);
/* Device memory of the settings above PERF_NCCL_DEFAULT, which the library is measured on as well. */
void *perf_nccl_alloc(size_t bytes);
void perf_nccl_free(void *buffer);
/* Collective: NCCL's communicator, the buffers registered in it. Wants run->comm, the GPU and the buffers. */
void perf_nccl_open(struct perf_run *run);
void perf_nccl_close(struct perf_run *run);
/* "2.28.9": what was loaded, and from where. */
const char *perf_nccl_version(void);
const char *perf_nccl_path(void);

#endif
