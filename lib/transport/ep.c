/* SPDX-License-Identifier: Apache-2.0 */
/* What the endpoints of all transports have: a state, why they have failed, and how long they try before that. */
#include <errno.h>
#include <stdio.h>

#include "transport/transport.h"
#include "util/clock.h"
#include "util/env.h"

void pki_ep_enter(struct pki_ep *ep, enum pki_ep_state state)
{
    if (ep->state < PKI_EP_LEFT || state == PKI_EP_DEAD)
        ep->state = state;
}

pk_result_t pki_ep_fail(struct pki_ep *ep, pk_result_t code, int error, const char *fmt, ...)
{
    struct pki_where where = { .rank = ep->rank, .peer = ep->peer };
    struct pki_cause cause = { .sys_errno = error };
    va_list args;

    va_start(args, fmt);
    vsnprintf(cause.text, sizeof cause.text, fmt, args);
    va_end(args);
    if (ep->cause.text[0] == '\0')
        ep->cause = cause;
    if (error == 0)
        return pki_fail(code, &where, "%s", cause.text);
    errno = error;
    return pki_fail_errno(code, &where, "%s", cause.text);
}

pk_result_t pki_transport_retry_ns(uint64_t *ns)
{
    int64_t ms;
    pk_result_t result = pki_env_int("PK_RETRY_MS", 100, 3600000, 10000, &ms);

    if (result == PK_OK)
        *ns = (uint64_t)ms * PKI_NS_PER_MS;
    return result;
}
