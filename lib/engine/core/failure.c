/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's end in failure: the first one's record counts. */
#include "engine/core/internal.h"

/* The first one counts. */
static bool record(struct pki_engine *e, pk_result_t code)
{
    if (atomic_exchange(&e->claimed, true))
        return false;
    e->error = *pki_error_get();
    e->error.code = code;
    e->error.rank = e->config.rank;
    return true;
}

void pki_engine_poison(struct pki_engine *e, pk_result_t code, bool tell)
{
    if (!record(e, code))
        return;
    atomic_store(&e->failed, code);
    if (tell)
        pki_side_tell_all(e);
}

void pki_engine_poison_unlocked(struct pki_engine *e, pk_result_t code)
{
    if (!record(e, code))
        return;
    atomic_store(&e->failure_unsent, true);
    atomic_store(&e->failed, code);
}
