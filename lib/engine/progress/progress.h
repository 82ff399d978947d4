/* SPDX-License-Identifier: Apache-2.0 */
/* What makes operations go on, waits for them, and sees to it that they end. Locked, unless it says otherwise. */
#ifndef PKI_ENGINE_PROGRESS_H
#define PKI_ENGINE_PROGRESS_H

#include "engine/plan/plan.h"

/* stragglers.c: look at deadlines; a WHO or HERE has come; the rank that holds up the oldest operation, -1 when there is none */
void pki_stragglers_check(struct pki_engine *engine, uint64_t now);
void pki_stragglers_message(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg);
int pki_engine_missing(struct pki_engine *engine);

/* progress.c */
/* Advance everything. True when something moved. */
bool pki_engine_progress(struct pki_engine *engine);
void pki_engine_free_ended(struct pki_engine *engine); /* transfers and tasks that have ended; the rest of progress does */
/* What transports have said by events so far. */
void pki_engine_take_events(struct pki_engine *engine);
/* Unlocked: progress until *done. */
void pki_engine_wait(struct pki_engine *engine, const atomic_bool *done);
/* Unlocked: progress until no operation is unfinished. */
void pki_engine_wait_all(struct pki_engine *engine);
/* Wait, 50 ms at most, until the library's own copies and kernels have ended. */
void pki_engine_drain(struct pki_engine *engine);

/* left.c: a peer that sent its shutdown message is still waited for */
void pki_engine_check_left(struct pki_engine *engine, struct pki_peer *peer);

/* wait.c. Unlocked: what a thread does that has found nothing to do `idle` times in a row. */
void pki_engine_backoff(struct pki_engine *engine, unsigned idle);
/* The same for who waits for a stream (is_over is set): it soon sleeps, for threads of the program compute beside it. */
void pki_engine_backoff_beside(const struct pki_awaited *awaited, unsigned idle);
void pki_service_rest(unsigned idle, bool spins); /* and the service thread, idle times in a row */
/* Who waits may keep the CPU: it is this rank's own, and nothing comes by way of the kernel, whose threads would want it. */
bool pki_engine_spins(const struct pki_engine *engine);

/* sleep.c. Unlocked: sleep until a message comes for any of these engines, 10 ms at most. `naps`: how often the caller has slept
 * in vain. False: it cannot be, or somebody else is at work. */
bool pki_engines_sleep(const struct pki_awaited *first, unsigned naps);
/* Wake the thread that does; locked or not, while the control channels are open. */
void pki_engine_wake(struct pki_engine *engine);

#define PKI_DRAIN_NS (50 * PKI_NS_PER_MS)
#define PKI_SETTLE_NS (5 * PKI_NS_PER_MS) /* how long what is over in a stream may take to be seen */
/* collapse.c */
void pki_engine_collapse(struct pki_engine *engine); /* of a failed one, once */
void pki_graphs_release(struct pki_engine *engine);  /* streams that wait in replayed graphs go on */

/* watchdog.c */
/* Unlocked too: waits for signal slots, in streams and in replays, go on; a replay's next one when this is called again. */
void pki_watchdog_open_slots(const struct pki_engine *engine);
/* Unlocked, the engine has failed: all streams and kernels that wait for peers or for this rank's CPU go on. */
void pki_watchdog_release(struct pki_engine *engine);
void pki_watchdog_check(struct pki_engine *engine, uint64_t now); /* unlocked, by one thread */

/* service.c: unlocked */
void pki_engine_leave(struct pki_engine *engine); /* a driver goes */
void pki_service_attach(struct pki_engine *engine);
void pki_service_detach(struct pki_engine *engine); /* the thread no longer touches it on return */
/* Each engine of the process, which stays meanwhile; or none, when the lock is not free within the time. */
void pki_service_each(void (*visit)(struct pki_engine *engine), uint64_t ns);
pk_result_t pki_service_wake(void);
pk_result_t pki_service_start(void); /* the thread exists from now on, while there are engines */
pk_result_t pki_service_hold(void);  /* or until it is let go */
void pki_service_let_go(void);

#endif
