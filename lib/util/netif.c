/* SPDX-License-Identifier: Apache-2.0 */
#include "util/netif.h"

#include <arpa/inet.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"

static const char *word_end(const char *at)
{
    const char *comma = strchr(at, ',');

    return comma != NULL ? comma : at + strlen(at);
}

int pki_netif_place(const char *list, const char *name)
{
    int place = 0;

    for (const char *at = list, *end;; at = end + 1, place++) {
        end = word_end(at);
        if ((size_t)(end - at) == strlen(name) && memcmp(at, name, (size_t)(end - at)) == 0)
            return place;
        if (*end == '\0')
            return -1;
    }
}

bool pki_netif_in_list(const char *list, const char *name)
{
    return pki_netif_place(list, name) >= 0;
}

/* Where the address itself begins in a socket address, and how many bytes it has. */
static const unsigned char *bytes_of(const struct sockaddr *address, int family, int *count)
{
    *count = family == AF_INET ? 4 : 16;
    return (const unsigned char *)address +
           (family == AF_INET ? offsetof(struct sockaddr_in, sin_addr) : offsetof(struct sockaddr_in6, sin6_addr));
}

int pki_netif_prefix(const struct sockaddr *mask, int family)
{
    int bytes, bits = 0;
    const unsigned char *at;

    if (mask == NULL)
        return 0;
    at = bytes_of(mask, family, &bytes);
    while (bits < 8 * bytes && (at[bits / 8] >> (7 - bits % 8) & 1) != 0)
        bits++;
    return bits;
}

bool pki_netif_is_neighbour(const struct sockaddr_storage *own, int prefix, const struct sockaddr_storage *other)
{
    int bytes, whole = prefix / 8, rest = prefix % 8;
    const unsigned char *a, *b;

    if (own->ss_family != other->ss_family || prefix == 0)
        return false;
    a = bytes_of((const struct sockaddr *)own, own->ss_family, &bytes);
    b = bytes_of((const struct sockaddr *)other, own->ss_family, &bytes);
    return memcmp(a, b, (size_t)whole) == 0 && (rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0);
}

void pki_netif_bus_id(const char *name, char out[PKI_NETIF_BUS_ID])
{
    char path[64], real[PATH_MAX];
    unsigned domain, bus, device, function;

    out[0] = '\0';
    snprintf(path, sizeof path, "/sys/class/net/%.32s/device", name);
    if (name[0] == '\0' || realpath(path, real) == NULL)
        return;
    for (const char *at = strchr(real, '/'); at != NULL; at = strchr(at + 1, '/')) /* the last: drivers put /virtio2 below it */
        if (sscanf(at, "/%4x:%2x:%2x.%1x", &domain, &bus, &device, &function) == 4)
            snprintf(out, PKI_NETIF_BUS_ID, "%04x:%02x:%02x.%x", domain & 0xffff, bus & 0xff, device & 0xff, function & 0xf);
}

void pki_netif_loopback(struct sockaddr_storage *out)
{
    const struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };

    memset(out, 0, sizeof *out);
    memcpy(out, &v4, sizeof v4);
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

bool pki_netif_same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family == AF_INET && b->ss_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;

        return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
    }
    if (a->ss_family == AF_INET6 && b->ss_family == AF_INET6) {
        const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;

        return x->sin6_port == y->sin6_port && memcmp(&x->sin6_addr, &y->sin6_addr, sizeof x->sin6_addr) == 0;
    }
    return false;
}

uint16_t pki_netif_port(const struct sockaddr_storage *address)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    memcpy(&v6, address, sizeof v6);
    memcpy(&v4, address, sizeof v4);
    return ntohs(address->ss_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
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
    char host[INET6_ADDRSTRLEN] = "?", link[IF_NAMESIZE];
    bool scoped;
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (address->ss_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
        scoped = v6.sin6_scope_id != 0 && IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
        if (scoped && if_indextoname(v6.sin6_scope_id, link) == NULL)
            snprintf(link, sizeof link, "%u", v6.sin6_scope_id);
        snprintf(out, PKI_NETIF_TEXT, "[%s%s%s]:%u", host, scoped ? "%" : "", scoped ? link : "", ntohs(v6.sin6_port));
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
