/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that serve while they wait (docs/design/0052). Locked. */
#ifndef PKI_ENGINE_SERVE_H
#define PKI_ENGINE_SERVE_H

#include "engine/stream/stream.h"

void pki_serve_open(struct pki_engine *engine); /* every peer's paths are known, nothing has begun */
void pki_serve_close(struct pki_engine *engine);
/* In the call, of a task that the engine does between two signals of its stream: the kernel that waits for it does its work,
 * if that is possible. */
void pki_serve_choose(struct pki_task *task);
/* Behind the beginning of all of a call's tasks, and before any of them waits in a stream. */
void pki_serve_beside(struct pki_engine *engine, struct pki_list *made);

#endif
