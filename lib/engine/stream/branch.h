/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Branches: queues of the library's own beside callers' streams, for work on this GPU that a collective's copies need not wait
 * for. What is in a branch runs after what the caller's stream had when it was forked, and the stream goes on after it when it is
 * joined; no CPU is on the way. A branch serves one stream at a time. Locked.
 */
#ifndef PKI_ENGINE_STREAM_BRANCH_H
#define PKI_ENGINE_STREAM_BRANCH_H

#include "engine/stream/stream.h"

/* The one of this stream, or one that is free; NULL: none is. To be left by the task. */
struct pki_branch *pki_branch_take(struct pki_engine *engine, void *stream);
void pki_branch_leave(struct pki_task *task); /* both */

/* Without kernels: a copy that waits for its peer in a branch of its own, beside others. False: there is none, or no channel is
 * left. The stream is to be joined behind all copies of the call. */
bool pki_branch_put(struct pki_task *task);

pk_result_t pki_branch_fork(const struct pki_task *task, const struct pki_branch *branch);
pk_result_t pki_branch_join(const struct pki_task *task, const struct pki_branch *branch);
/* A COPY step inside the GPU without a kernel: through pinned memory, by copy engines. */
pk_result_t pki_branch_copy(struct pki_task *task, uint32_t step);

#endif
