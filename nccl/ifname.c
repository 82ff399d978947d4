/* SPDX-License-Identifier: Apache-2.0 */
#include "ifname.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>

#include "words.h"

static bool is_listed(const char *list, const char *name)
{
    const struct pkn_words exact = { .exact = true, .words = list };

    return pkn_words_take(&exact, name, NULL, NULL);
}

static bool fits(const struct pkn_words *w, const struct ifaddrs *a)
{
    if (a->ifa_addr == NULL || (a->ifa_flags & IFF_UP) == 0)
        return false;
    if (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6)
        return false;
    return pkn_words_take(w, a->ifa_name, NULL, NULL);
}

static void list(const struct pkn_words *w, const struct ifaddrs *all, bool with_loopback, char *out)
{
    size_t at = 0;

    for (const struct ifaddrs *a = all; a != NULL && at < PKN_VALUE_BYTES; a = a->ifa_next)
        if ((with_loopback || (a->ifa_flags & IFF_LOOPBACK) == 0) && fits(w, a) && !is_listed(out, a->ifa_name))
            at += (size_t)snprintf(out + at, PKN_VALUE_BYTES - at, "%s%s", at > 0 ? "," : "", a->ifa_name);
}

bool pkn_ifname(const char *value, char *out)
{
    const struct pkn_words w = pkn_words_parse(value);
    struct ifaddrs *all = NULL;

    out[0] = '\0';
    if (getifaddrs(&all) != 0)
        all = NULL;
    list(&w, all, !w.others, out); /* "all but these" does not mean loopback, which leads to no other host, */
    if (out[0] == '\0')
        list(&w, all, true, out); /* unless nothing else is left */
    if (all != NULL)
        freeifaddrs(all);
    if (out[0] == '\0')
        snprintf(out, PKN_VALUE_BYTES, "%s", w.words);
    return true;
}
