/* SPDX-License-Identifier: Apache-2.0 */
#include "util/netif.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "util/bytes.h"
#include "util/env.h"
#include "util/log.h"

static const char *word_end(const char *at)
{
    const char *comma = strchr(at, ',');

    return comma != NULL ? comma : at + strlen(at);
}

bool pki_netif_in_list(const char *list, const char *name)
{
    for (const char *at = list, *end; ; at = end + 1) {
        end = word_end(at);
        if ((size_t)(end - at) == strlen(name) && memcmp(at, name, (size_t)(end - at)) == 0)
            return true;
        if (*end == '\0')
            return false;
    }
}

/* Is this an address that other hosts can be told, of the interface `name` (NULL: of any but loopback)? Link-local ones mean something
 * else on each host. */
static bool usable(const struct ifaddrs *i, const char *name, int family)
{
    struct sockaddr_in6 v6;

    if (i->ifa_addr == NULL || i->ifa_addr->sa_family != family || (i->ifa_flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING))
        return false;
    if (name != NULL ? strcmp(i->ifa_name, name) != 0 : (i->ifa_flags & IFF_LOOPBACK) != 0)
        return false;
    if (family == AF_INET)
        return true;
    memcpy(&v6, i->ifa_addr, sizeof v6);
    return !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

static bool find(const struct ifaddrs *all, const char *name, struct sockaddr_storage *out)
{
    static const int families[] = { AF_INET, AF_INET6 };

    for (int f = 0; f < 2; f++)
        for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next)
            if (usable(i, name, families[f])) {
                memset(out, 0, sizeof *out);
                memcpy(out, i->ifa_addr, f == 0 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
                pki_netif_set_port(out, 0);
                return true;
            }
    return false;
}

pk_result_t pki_netif_named(struct sockaddr_storage *out, int max, int *count)
{
    const char *list = pki_env_get("PK_IFNAME");
    struct ifaddrs *all;
    int found = 0;

    *count = 0;
    if (list == NULL)
        return PK_OK;
    if (getifaddrs(&all) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "getifaddrs");
    for (const char *at = list, *end; found < max; at = end + 1) {
        char name[IF_NAMESIZE];

        end = word_end(at);
        if (end - at < (long)sizeof name) {
            memcpy(name, at, (size_t)(end - at));
            name[end - at] = '\0';
            found += find(all, name, &out[found]);
        }
        if (*end == '\0')
            break;
    }
    freeifaddrs(all);
    if (found == 0)
        return pki_fail(PK_ERR_ARG, NULL, "PK_IFNAME=%.64s: no such interface is up and has an address", list);
    *count = found;
    return PK_OK;
}

void pki_netif_loopback(struct sockaddr_storage *out)
{
    const struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };

    memset(out, 0, sizeof *out);
    memcpy(out, &v4, sizeof v4);
}

pk_result_t pki_netif_any(struct sockaddr_storage *out)
{
    struct ifaddrs *all;

    if (getifaddrs(&all) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "getifaddrs");
    if (!find(all, NULL, out))
        pki_netif_loopback(out);
    freeifaddrs(all);
    return PK_OK;
}

socklen_t pki_netif_bytes(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

bool pki_netif_is_loopback(const struct sockaddr_storage *address)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (address->ss_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
    }
    memcpy(&v4, address, sizeof v4);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
}

void pki_netif_set_port(struct sockaddr_storage *address, uint16_t port)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (address->ss_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        v6.sin6_port = htons(port);
        memcpy(address, &v6, sizeof v6);
    } else {
        memcpy(&v4, address, sizeof v4);
        v4.sin_port = htons(port);
        memcpy(address, &v4, sizeof v4);
    }
}

void pki_netif_format(const struct sockaddr_storage *address, char out[PKI_NETIF_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (address->ss_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
        snprintf(out, PKI_NETIF_TEXT, "[%s]:%u", host, ntohs(v6.sin6_port));
    } else {
        memcpy(&v4, address, sizeof v4);
        inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
        snprintf(out, PKI_NETIF_TEXT, "%s:%u", host, ntohs(v4.sin_port));
    }
}

/* ---- On the wire ---- */

void pki_netif_put(unsigned char out[PKI_NETIF_WIRE_BYTES], const struct sockaddr_storage *address)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    memset(out, 0, PKI_NETIF_WIRE_BYTES);
    if (address->ss_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        pki_put_u16(out, 6);
        pki_put_u16(out + 2, ntohs(v6.sin6_port));
        pki_put_u32(out + 4, v6.sin6_scope_id);
        memcpy(out + 8, &v6.sin6_addr, 16);
    } else {
        memcpy(&v4, address, sizeof v4);
        pki_put_u16(out, 4);
        pki_put_u16(out + 2, ntohs(v4.sin_port));
        memcpy(out + 8, &v4.sin_addr, 4);
    }
}

bool pki_netif_get(const unsigned char in[PKI_NETIF_WIRE_BYTES], struct sockaddr_storage *address)
{
    const uint16_t family = pki_get_u16(in), port = pki_get_u16(in + 2);
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_scope_id = pki_get_u32(in + 4) };
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };

    if (port == 0 || (family != 4 && family != 6))
        return false;
    if (family == 4 && (!pki_all_zero(in + 4, 4) || !pki_all_zero(in + 12, 12)))
        return false;
    memset(address, 0, sizeof *address);
    memcpy(&v6.sin6_addr, in + 8, 16);
    memcpy(&v4.sin_addr, in + 8, 4);
    if (family == 6)
        memcpy(address, &v6, sizeof v6);
    else
        memcpy(address, &v4, sizeof v4);
    return true;
}
