/* SPDX-License-Identifier: Apache-2.0 */
#include "ifname.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define ROOM 1024

struct wanted {
    bool others, exact;
    const char *words; /* with commas between them */
};

static struct wanted parse(const char *value)
{
    struct wanted w = { .words = value };

    w.others = *w.words == '^';
    w.words += w.others;
    w.exact = *w.words == '=';
    w.words += w.exact;
    return w;
}

static bool is_named(const struct wanted *w, const char *name)
{
    for (const char *word = w->words; *word != '\0';) {
        size_t length = strcspn(word, ",");

        if (length > 0 && strncmp(name, word, length) == 0 && (!w->exact || name[length] == '\0'))
            return true;
        word += length + (word[length] == ',');
    }
    return false;
}

static bool is_listed(const char *list, const char *name)
{
    const struct wanted exact = { .exact = true, .words = list };

    return is_named(&exact, name);
}

/* "All but these" does not mean loopback, which leads to no other host. */
static bool fits(const struct wanted *w, const struct ifaddrs *a)
{
    if (a->ifa_addr == NULL || (a->ifa_flags & IFF_UP) == 0)
        return false;
    if (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6)
        return false;
    if (w->others && (a->ifa_flags & IFF_LOOPBACK) != 0)
        return false;
    return is_named(w, a->ifa_name) != w->others;
}

bool pkn_ifname(const char *value, char *out)
{
    const struct wanted w = parse(value);
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
    if (at == 0)
        snprintf(out, ROOM, "%s", w.words);
    return true;
}
