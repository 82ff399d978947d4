/* SPDX-License-Identifier: Apache-2.0 */
/* Agreements of the ranks of a communicator, whether it has failed or not (coll/agree.h). Messages go as frames of side.c. */
#ifndef PKI_ENGINE_SURVIVE_H
#define PKI_ENGINE_SURVIVE_H

#include "coll/agree.h"
#include "engine/life.h"

/* A message on the wire: number, all, last u64, calls u32, kind u32, id; then the set, u64 for each 64 ranks. */
size_t pki_agree_encode(const struct pki_agree_msg *msg, int size, unsigned char *bytes);
/* `set` has room for `size` ranks. False: it is no such message. */
bool pki_agree_decode(const unsigned char *bytes, size_t n, int size, struct pki_agree_msg *msg, uint64_t *set);

/* A message has come. PK_ERR_INTERNAL: it is none. */
pk_result_t pki_survive_message(struct pki_engine *engine, struct pki_peer *peer, const unsigned char *bytes, size_t n);
/* By an agreement: nobody is there for whom anything need be sent. */
bool pki_survive_is_dead(const struct pki_engine *engine, int rank);
void pki_survive_close(struct pki_engine *engine);

#endif
