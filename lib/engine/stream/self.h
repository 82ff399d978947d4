/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A message to the own rank with both ends in CUDA streams, in one call or two. Whichever end is called second copies in its
 * stream, behind the other's `ready`, and opens the other's `release`; the engine sees the end alone (engine/proto/self.c).
 * Locked.
 */
#ifndef PKI_ENGINE_STREAM_SELF_H
#define PKI_ENGINE_STREAM_SELF_H

#include "engine/stream/stream.h"

/* At the beginning of the task's call: true, its stream will copy (pki_stream_self_put). */
bool pki_stream_self_begin(struct pki_task *task);
/* When all ready words of the call have been put. */
void pki_stream_self_put(struct pki_task *task);

#endif
