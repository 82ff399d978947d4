/* SPDX-License-Identifier: Apache-2.0 */
/* Short calls that are done on the spot. Unlocked. */
#ifndef PKI_ENGINE_INLINE_H
#define PKI_ENGINE_INLINE_H

#include "engine/progress/progress.h"

/* coll.c (with inline/program.c), unlocked: a short blocking collective of host memory without a task. NOT: nothing has happened.
 * BEGUN: it goes on as a task in `blocking`, or, where that is empty, has failed. */
enum pki_inline { PKI_INLINE_NOT, PKI_INLINE_DONE, PKI_INLINE_BEGUN };
enum pki_inline pki_inline_coll(struct pki_engine *engine, const struct pki_request *request, struct pki_list *blocking);

#endif
