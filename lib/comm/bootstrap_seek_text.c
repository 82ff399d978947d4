/* SPDX-License-Identifier: Apache-2.0 */
/* Why rank 0 was not found: each address with its own error. */
#include "comm/bootstrap_seek.h"

#include <stdio.h>
#include <string.h>

#include "util/netif.h"

static const char *reason_of(const struct pki_candidate *c, char *text, size_t room)
{
    switch (c->outcome) {
    case PKI_SEEK_UNTRIED:
        break;
    case PKI_SEEK_FAILED:
        return strerror_r(c->error, text, room);
    case PKI_SEEK_ACCEPTED:
        return "somebody listens and does not answer";
    case PKI_SEEK_CLOSED:
        return "closed by whoever listens there";
    case PKI_SEEK_STRANGER:
        return "whoever listens there has another secret";
    }
    return c->state == PKI_SEEK_CONNECTING ? "no answer" : "not tried yet";
}

/* "192.0.2.1:7000, 192.0.2.1:8013: Connection refused; [2001:db8::1]:7000: Network is unreachable" */
static void describe(const struct pki_seek *s, char *out, size_t room)
{
    size_t at = 0;

    if (s->meeting->host[0] != '\0')
        at = (size_t)snprintf(out, room, "%.100s: ", s->meeting->what);
    if (s->meeting->host[0] != '\0' && s->why[0] != '\0' && at < room)
        at += (size_t)snprintf(out + at, room - at, "%s%s", s->why, s->count > 0 ? "; " : "");
    for (int i = 0; i < s->count && at < room; i++) {
        char where[PKI_NETIF_TEXT], reason[PKI_SEEK_WHY], next[PKI_SEEK_WHY];
        const char *why = reason_of(&s->candidates[i], reason, sizeof reason);
        const bool last = i == s->count - 1;
        const bool same = !last && strcmp(why, reason_of(&s->candidates[i + 1], next, sizeof next)) == 0;

        pki_netif_format(&s->candidates[i].address, where);
        if (at + strlen(where) + strlen(why) + sizeof ": ; and 64 more" > room) {
            (void)snprintf(out + at, room - at, "and %d more", s->count - i);
            return;
        }
        at += (size_t)snprintf(out + at, room - at, same ? "%s, " : "%s: %s%s", where, why, last ? "" : "; ");
    }
}

static void list_addresses(const struct pki_seek *s, enum pki_seek_outcome outcome, char *out, size_t room)
{
    size_t at = 0;

    out[0] = '\0';
    for (int i = 0; i < s->count && at + PKI_NETIF_TEXT + 2 < room; i++) {
        char where[PKI_NETIF_TEXT];

        if (s->candidates[i].outcome != outcome)
            continue;
        pki_netif_format(&s->candidates[i].address, where);
        at += (size_t)snprintf(out + at, room - at, "%s%s", at > 0 ? ", " : "", where);
    }
}

static void explain_peer(const struct pki_seek *s, char *out, size_t room)
{
    char where[256];

    for (int i = 0; i < s->count; i++)
        if (pki_candidate_is_lost(&s->candidates[i])) {
            pki_netif_format(&s->candidates[i].address, where);
            (void)snprintf(out, room, "rank 0 died or gave up: nobody listens at %s any more", where);
            return;
        }
    list_addresses(s, PKI_SEEK_FAILED, where, sizeof where);
    (void)snprintf(out, room, "nobody listens at %s (connection refused): rank 0 has ended or given up, or these addresses lead "
                              "elsewhere from here", where);
}

static void explain_timeout(const struct pki_seek *s, char *out, size_t room)
{
    const unsigned long long waited_ms = pki_bootstrap_elapsed_ms(s->b);
    char text[300];

    for (int i = 0; i < s->count; i++)
        if (s->candidates[i].state == PKI_SEEK_PROVING) {
            pki_netif_format(&s->candidates[i].address, text);
            (void)snprintf(out, room, "rank 0 at %s did not let this rank in within %llu ms", text, waited_ms);
            return;
        }
    describe(s, text, sizeof text);
    (void)snprintf(out, room, "rank 0 did not come within %llu ms: %s", waited_ms, text);
}

void pki_seek_explain(const struct pki_seek *s, pk_result_t code, char *out, size_t room)
{
    char where[256];

    if (code == PK_ERR_PEER) {
        explain_peer(s, out, room);
    } else if (code == PK_ERR_AUTH) {
        list_addresses(s, PKI_SEEK_STRANGER, where, sizeof where);
        (void)snprintf(out, room, "who listens at %s does not know this rank's secret%s", where,
                       pki_seek_count_strangers(s) < s->count ? ", and nobody listens at rank 0's other addresses" : "");
    } else if (code == PK_ERR_TIMEOUT) {
        explain_timeout(s, out, room);
    } else {
        describe(s, out, room);
    }
}
