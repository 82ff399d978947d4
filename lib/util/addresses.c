/* SPDX-License-Identifier: Apache-2.0 */
/* Which addresses of this process the others may be told, the likeliest first. */
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util/env.h"
#include "util/fd.h"
#include "util/log.h"
#include "util/netif.h"

/* Of each address the class is compared first. */
enum class { GLOBAL, LINK_LOCAL, VIRTUAL, LOOPBACK, UNUSABLE };

/* Bridges of container engines and hypervisors have the same address on every machine; ends of tunnels reach the tunnel alone. */
static const char *const virtual_names[] = { "docker", "podman", "virbr", "vnet", "veth",      "br-",  "cni",   "flannel",
                                             "cali",   "cilium", "weave", "lxc",  "lxd",       "kube", "vmnet", "vbox",
                                             "tun",    "tap",    "wg",    "zt",   "tailscale", "vpn",  "ppp",   "dummy" };

static bool is_virtual(const struct ifaddrs *i)
{
    for (size_t n = 0; n < sizeof virtual_names / sizeof virtual_names[0]; n++)
        if (strncmp(i->ifa_name, virtual_names[n], strlen(virtual_names[n])) == 0)
            return true;
    return (i->ifa_flags & (IFF_POINTOPOINT | IFF_LOOPBACK)) != 0;
}

bool pki_netif_is_link_local(const struct sockaddr_storage *address)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (address->ss_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        return IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
    }
    memcpy(&v4, address, sizeof v4);
    return ntohl(v4.sin_addr.s_addr) >> 16 == 0xa9fe; /* 169.254.0.0/16 */
}

static bool has_address(const struct ifaddrs *i)
{
    return i->ifa_addr != NULL && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

static void copy_address(const struct ifaddrs *i, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out, i->ifa_addr, i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    pki_netif_set_port(out, 0);
}

static enum class classify(const struct ifaddrs *i, const char *names, bool loopback) {
    struct sockaddr_storage address;

    if (!has_address(i) || (i->ifa_flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING)) return UNUSABLE;
    if (names != NULL && !pki_netif_in_list(names, i->ifa_name)) return UNUSABLE;
    copy_address(i, &address);
    if (names == NULL && pki_netif_is_loopback(&address)) return loopback ? LOOPBACK : UNUSABLE;
    /* what leads to no other machine and is on each of many interfaces takes no place of others */
    if (names == NULL && is_virtual(i)) return address.ss_family == AF_INET6 && pki_netif_is_link_local(&address) ? UNUSABLE
                                                                                                                  : VIRTUAL;
    return pki_netif_is_link_local(&address) ? LINK_LOCAL : GLOBAL;
}

/* How many addresses of the same kind the interface has before this one: the second of one comes after the first of all. */
static unsigned nth(const struct ifaddrs *all, const struct ifaddrs *i, enum class class, const char *names, bool loopback)
{
    unsigned before = 0;

    for (const struct ifaddrs *j = all; j != i; j = j->ifa_next)
        before += has_address(j) && strcmp(j->ifa_name, i->ifa_name) == 0 && j->ifa_addr->sa_family == i->ifa_addr->sa_family &&
                  classify(j, names, loopback) == class;
    return before < 255 ? before : 255;
}

/* The smallest comes first. Without names IPv4 of all interfaces comes before IPv6; with names their order counts more. */
static uint32_t key_of(const struct ifaddrs *all, const struct ifaddrs *i, enum class class, const char *names, bool loopback)
{
    const unsigned family = i->ifa_addr->sa_family == AF_INET6;
    const unsigned place = names != NULL ? (unsigned)pki_netif_place(names, i->ifa_name) & 127 : 0;

    return (uint32_t) class << 24 | nth(all, i, class, names, loopback) << 16 | place << 8 | family;
}

int pki_netif_order(const struct ifaddrs *all, const char *names, bool loopback, struct pki_netif *out, int max)
{
    uint32_t keys[PKI_NETIF_MAX];
    int count = 0;

    max = max < PKI_NETIF_MAX ? max : PKI_NETIF_MAX;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        const enum class class = classify(i, names, loopback);
        const uint32_t key = class == UNUSABLE ? 0 : key_of(all, i, class, names, loopback);
        int at = count;

        while (at > 0 && class != UNUSABLE && keys[at - 1] > key)
            at--;
        if (class == UNUSABLE || at == max)
            continue;
        count += count < max;
        memmove(&keys[at + 1], &keys[at], (size_t)(count - 1 - at) * sizeof keys[0]);
        memmove(&out[at + 1], &out[at], (size_t)(count - 1 - at) * sizeof out[0]);
        keys[at] = key;
        memset(&out[at], 0, sizeof out[at]);
        copy_address(i, &out[at].address);
        out[at].prefix = pki_netif_prefix(i->ifa_netmask, i->ifa_addr->sa_family);
        snprintf(out[at].name, sizeof out[at].name, "%.15s", i->ifa_name);
    }
    return count;
}

bool pki_netif_is_known(void)
{
    int fd = pki_fd_keep(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

pk_result_t pki_netif_addresses(bool loopback, struct pki_netif *out, int max, int *count)
{
    const char *names = pki_env_get("PK_IFNAME");
    struct ifaddrs *all;

    if (getifaddrs(&all) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "getifaddrs");
    *count = pki_netif_order(all, names, loopback, out, max);
    freeifaddrs(all);
    if (*count == 0 && names != NULL)
        return pki_fail(PK_ERR_ARG, NULL, "PK_IFNAME=%.64s: no such interface is up and has an address", names);
    return PK_OK;
}
