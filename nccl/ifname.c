/* SPDX-License-Identifier: Apache-2.0 */
#include "ifname.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>

#include "words.h"

#define ROOM 1024

static bool is_listed(const char *list, const char *name)
{
    const struct pkn_words exact = { .exact = true, .words = list };

    return pkn_words_take(&exact, name, NULL, NULL);
}

/* "All but these" does not mean loopback, which leads to no other host. */
static bool fits(const struct pkn_words *w, const struct ifaddrs *a)
{
    if (a->ifa_addr == NULL || (a->ifa_flags & IFF_UP) == 0)
        return false;
    if (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6)
        return false;
    if (w->others && (a->ifa_flags & IFF_LOOPBACK) != 0)
        return false;
    return pkn_words_take(w, a->ifa_name, NULL, NULL);
}

bool pkn_ifname(const char *value, char *out)
{
    const struct pkn_words w = pkn_words_parse(value);
    struct ifaddrs *all = NULL;
    size_t at = 0;

    out[0] = '\0';
    if (getifaddrs(&all) != 0)
        all = NULL;
    for (const struct ifaddrs *a = all; a != NULL && at < ROOM; a = a->ifa_next)
        if (fits(&w, a) && !is_listed(out, a->ifa_name))
            at += (size_t)snprintf(out + at, ROOM - at, "%s%s", at > 0 ? "," : "", a->ifa_name);
    if (all != NULL)
        freeifaddrs(all);
    if (at == 0 && w.others) /* nothing but loopback is left, and that is what libpickle takes then */
        return false;
    if (at == 0)
        snprintf(out, ROOM, "%s", w.words);
    return true;
}
