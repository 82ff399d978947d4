/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the engine itself share. */
#ifndef PKI_ENGINE_LIFE_H
#define PKI_ENGINE_LIFE_H

#include "engine/inline/inline.h"
#include "engine/stream/stream.h"

/* abort.c */
bool pki_engine_lock_within(struct pki_engine *engine, uint64_t ns); /* false: somebody else has it all the time */
/* Locked: where nothing of this rank is unfinished the others are told that it leaves. */
bool pki_engine_send_shutdown(struct pki_engine *engine, enum pki_shutdown why);

/* shutdown.c */
/* Unlocked: what was sent is seen out, and a shutdown message behind it. */
void pki_engine_leave_peers(struct pki_engine *engine);
void pki_exit_matters(void); /* from now on a process that ends without pk_comm_destroy tells the others */

extern const struct pki_handlers pki_handlers; /* handlers.c */

#endif
