/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's end in failure: the first one's record counts; which rank it is due to; which ranks have not heard of it. */
#include "engine/channel/channel.h"

/* The first one counts. */
static bool record(struct pki_engine *e, pk_result_t code)
{
    if (atomic_exchange(&e->failure.claimed, true))
        return false;
    e->failure.error = *pki_error_get();
    e->failure.error.code = code;
    e->failure.error.rank = e->config.rank;
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
    atomic_store(&e->failure.unsent, true);
    atomic_store(&e->failed, code);
}

/* What the endpoint failed with, and in which operation. Without a cause it is this rank's own trouble, which this thread has
 * just recorded. */
static void record_cause(pk_result_t code, const struct pki_where *where, const struct pki_ep *ep, size_t done, size_t bytes)
{
    const struct pki_cause *cause = ep != NULL && ep->cause.text[0] != '\0' ? &ep->cause : NULL;
    const pk_error_info_t *last = pki_error_get();

    if (cause != NULL && bytes > 0)
        (void)pki_fail_again(code, cause->sys_errno, where, "%s (%zu of %zu bytes done)", cause->text, done, bytes);
    else if (cause != NULL)
        (void)pki_fail_again(code, cause->sys_errno, where, "%s", cause->text);
    else if (code == PK_ERR_PEER || last->code != code)
        (void)pki_fail(code, where, "%s failed, %zu of %zu bytes done", ep != NULL ? ep->iface->transport->name : "a move", done,
                       bytes);
    else
        (void)pki_fail_again(code, last->sys_errno, where, "%s", last->text);
}

void pki_engine_attribute_failure(struct pki_engine *e, pk_result_t code, const struct pki_where *where, const struct pki_ep *ep,
                                  size_t done, size_t bytes)
{
    if (code == PK_ERR_PEER)
        for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++)
            if (e->peers[i].side_fd >= 0)
                pki_side_poll(e, &e->peers[i]);
    if (atomic_load(&e->failed) != PK_OK)
        return;
    record_cause(code, where, ep, done, bytes);
    pki_engine_poison(e, code, true);
}

void pki_failure_tell_rest(struct pki_engine *e)
{
    if (atomic_exchange(&e->failure.unsent, false))
        pki_side_tell_all(e);
    else if (atomic_load(&e->failure.unreported) > 0)
        pki_side_tell_again(e);
}

/* Of a poisoned communicator every call ends here, and no operation makes progress any more. */
static void tell_rest(struct pki_engine *e)
{
    if ((atomic_load(&e->failure.unreported) == 0 && !atomic_load(&e->failure.unsent)) || !pki_engine_trylock(e))
        return;
    pki_failure_tell_rest(e);
    pki_engine_unlock(e);
}

pk_result_t pki_engine_status(struct pki_engine *e)
{
    pk_result_t code = (pk_result_t)atomic_load(&e->failed); /* pairs with the store in poison: the record is complete */

    if (code != PK_OK) {
        tell_rest(e);
        pki_error_set(&e->failure.error);
    }
    return code;
}
