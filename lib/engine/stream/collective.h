/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives in the caller's CUDA stream (collective.c), and barriers (barrier.c). Locked. */
#ifndef PKI_ENGINE_STREAM_COLLECTIVE_H
#define PKI_ENGINE_STREAM_COLLECTIVE_H

#include "coll/order.h"
#include "engine/stream/stream.h"

/* The plan in the order of a queue, kept with it. False: no memory. */
bool pki_plan_has_moments(const struct pki_task *task);

/* May this barrier be done by words? On all ranks of the host alike. */
bool pki_stream_barrier_suits(const struct pki_task *task);
void pki_stream_barrier_put(const struct pki_task *task); /* all of it */

#endif
