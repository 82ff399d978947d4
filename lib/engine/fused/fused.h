/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives that are one kernel a rank. Locked. */
#ifndef PKI_ENGINE_FUSED_H
#define PKI_ENGINE_FUSED_H

#include "engine/progress/progress.h"

#define PKI_FUSED_STATE_BYTES 256u /* room for struct pki_fused_state */

/* fused.c */
size_t pki_fused_inbox_bytes(const struct pki_engine *engine); /* in memory of the GPU, with the state; 0: there is none there */
pk_result_t pki_fused_open(struct pki_engine *engine, char *inbox, char *state);
void pki_fused_close(struct pki_engine *engine);
void pki_fused_reach(struct pki_engine *engine, int peer, uint64_t inbox); /* the peer's inbox is mapped here */

/* host.c */
void pki_fused_host_close(struct pki_engine *engine);

/* args.c */
uint32_t pki_fused_ranks(const struct pki_engine *engine, bool own);           /* a bit for each, this rank's too or not */
void pki_fused_fill(const struct pki_task *task, struct pki_fused_args *args); /* of its buffers, all that args say */

/* rules.c: of a request that is fused */
/* By a kernel that graphs can replay? The same on all ranks. */
bool pki_fused_is_replayed(const struct pki_engine *engine, const struct pki_request *request);
size_t pki_fused_bytes(const struct pki_request *request); /* of a block */
enum pki_fused_kernel pki_fused_kernel(const struct pki_engine *engine, const struct pki_request *request);
int pki_fused_ctas(const struct pki_engine *engine, const struct pki_request *request);
uint32_t pki_fused_epochs(const struct pki_engine *engine, const struct pki_request *request);

/* fused.c */
void pki_fused_made(struct pki_task *task);   /* a fused one: will the call itself launch it (direct)? */
void pki_fused_forget(struct pki_task *task); /* it waits for no turn any more */
bool pki_fused_all_direct(const struct pki_engine *engine);
void pki_fused_enroll(struct pki_task *task); /* any collective */
pk_result_t pki_fused_launch(struct pki_task *task, const struct pki_queue *queue);
void pki_fused_left(struct pki_task *task); /* the task ends */

/* reach.c */
void pki_reach_find(struct pki_task *task); /* of a fused one */
void pki_reach_drop(struct pki_task *task);
void pki_reach_message(struct pki_engine *engine, struct pki_peer *peer, const struct pki_msg *msg);

#endif
