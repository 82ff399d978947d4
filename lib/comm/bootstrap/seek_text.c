/* SPDX-License-Identifier: Apache-2.0 */
/* Why rank 0 was not found: each address with its own error. */
#include "comm/bootstrap/seek.h"

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
        return "a process listens and does not answer";
    case PKI_SEEK_CLOSED:
        return "the process that listens there closed the connection";
    case PKI_SEEK_STRANGER:
        return "the process that listens there has another secret";
    }
    return c->state == PKI_SEEK_CONNECTING ? "no answer" : "not tried yet";
}

/* "192.0.2.1:7000, 192.0.2.1:8013: Connection refused; [2001:db8::1]:7000: Network is unreachable", of those that are not
 * `left_out` (or NULL). Returns the length, 0 where there are none. */
static size_t describe(const struct pki_seek *s, bool (*left_out)(const struct pki_candidate *), char *out, size_t room)
{
    const struct pki_candidate *shown[PKI_SEEK_CANDIDATES];
    int count = 0;
    size_t at = 0;

    out[0] = '\0';
    for (int i = 0; i < s->count; i++)
        if (left_out == NULL || !left_out(&s->candidates[i]))
            shown[count++] = &s->candidates[i];
    for (int i = 0; i < count && at < room; i++) {
        char where[PKI_NETIF_TEXT], reason[PKI_SEEK_WHY], next[PKI_SEEK_WHY];
        const char *why = reason_of(shown[i], reason, sizeof reason);
        const bool last = i == count - 1;
        const bool same = !last && strcmp(why, reason_of(shown[i + 1], next, sizeof next)) == 0;

        pki_netif_format(&shown[i]->address, where);
        if (at + strlen(where) + strlen(why) + sizeof ": ; and 64 more" > room)
            return at + (size_t)snprintf(out + at, room - at, "and %d more", count - i);
        at += (size_t)snprintf(out + at, room - at, same ? "%s, " : "%s: %s%s", where, why, last ? "" : "; ");
    }
    return at;
}

/* The name that is looked up, what the resolver says, and all addresses. */
static void describe_all(const struct pki_seek *s, char *out, size_t room)
{
    size_t at = 0;

    if (s->meeting->host[0] != '\0')
        at = (size_t)snprintf(out, room, "%.100s: ", s->meeting->what);
    if (s->meeting->host[0] != '\0' && s->why[0] != '\0' && at < room)
        at += (size_t)snprintf(out + at, room - at, "%s%s", s->why, s->count > 0 ? "; " : "");
    if (at < room)
        (void)describe(s, NULL, out + at, room - at);
}

/* "192.0.2.1:7000, [2001:db8::1]:7000" */
static void list_addresses(const struct pki_seek *s, bool (*wanted)(const struct pki_candidate *), char *out, size_t room)
{
    size_t at = 0;

    out[0] = '\0';
    for (int i = 0; i < s->count && at + PKI_NETIF_TEXT + 2 < room; i++) {
        char where[PKI_NETIF_TEXT];

        if (!wanted(&s->candidates[i]))
            continue;
        pki_netif_format(&s->candidates[i].address, where);
        at += (size_t)snprintf(out + at, room - at, "%s%s", at > 0 ? ", " : "", where);
    }
}

static bool is_stranger(const struct pki_candidate *c)
{
    return c->outcome == PKI_SEEK_STRANGER;
}

static bool gives_no_answer(const struct pki_candidate *c)
{
    return c->state == PKI_SEEK_PROVING;
}

const char *pki_seek_host_of(const struct pki_seek *s)
{
    return s->meeting->led ? "the process that made the id" : "rank 0";
}

static void explain_peer(const struct pki_seek *s, char *out, size_t room)
{
    char where[256], others[256];

    for (int i = 0; i < s->count; i++)
        if (pki_candidate_is_lost(&s->candidates[i])) {
            pki_netif_format(&s->candidates[i].address, where);
            (void)snprintf(out, room, "%s died or gave up: nobody listens at %s any more", pki_seek_host_of(s), where);
            return;
        }
    list_addresses(s, pki_candidate_refuses, where, sizeof where);
    (void)snprintf(out, room,
                   "nobody listens at %s (connection refused)%s%s: %s has ended or given up, or these addresses lead "
                   "elsewhere from here",
                   where, describe(s, pki_candidate_refuses, others, sizeof others) > 0 ? "; " : "", others, pki_seek_host_of(s));
}

static void explain_timeout(const struct pki_seek *s, char *out, size_t room)
{
    const unsigned long long waited_ms = pki_bootstrap_elapsed_ms(s->b);
    char text[300], others[300];

    list_addresses(s, gives_no_answer, text, sizeof text);
    if (text[0] != '\0') {
        (void)snprintf(out, room, "%s at %s did not admit this rank within %llu ms%s%s", pki_seek_host_of(s), text, waited_ms,
                       describe(s, gives_no_answer, others, sizeof others) > 0 ? "; " : "", others);
        return;
    }
    describe_all(s, text, sizeof text);
    (void)snprintf(out, room, "%s did not come within %llu ms: %s", pki_seek_host_of(s), waited_ms, text);
}

void pki_seek_explain(const struct pki_seek *s, pk_result_t code, char *out, size_t room)
{
    char where[256];

    if (code == PK_ERR_PEER) {
        explain_peer(s, out, room);
    } else if (code == PK_ERR_AUTH) {
        list_addresses(s, is_stranger, where, sizeof where);
        (void)snprintf(out, room, "the process that listens at %s does not know this rank's secret%s", where,
                       pki_seek_count_strangers(s) < s->count ? ", and nobody listens at rank 0's other addresses" : "");
    } else if (code == PK_ERR_TIMEOUT) {
        explain_timeout(s, out, room);
    } else {
        describe_all(s, out, room);
    }
}
