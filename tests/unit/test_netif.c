/* SPDX-License-Identifier: Apache-2.0 */
/* Which addresses the others are told, in which order; and listening at a free port. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/listen.h"
#include "util/log.h"
#include "util/netif.h"

#define UP (IFF_UP | IFF_RUNNING)
#define MOST 12

/* ---- the order ---- */

struct line {
    const char *name, *address;
    unsigned flags;
};

struct machine {
    struct ifaddrs all[MOST + 1];
    struct sockaddr_storage address[MOST], mask[MOST];
};

static void put(struct sockaddr_storage *out, const char *text)
{
    struct sockaddr_in v4 = { .sin_family = AF_INET };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };

    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
        memcpy(out, &v4, sizeof v4);
        return;
    }
    cr_assert_eq(inet_pton(AF_INET6, text, &v6.sin6_addr), 1, "%s", text);
    v6.sin6_scope_id = IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) ? 777777 : 0; /* no card here has it */
    memcpy(out, &v6, sizeof v6);
}

static const struct ifaddrs *make(struct machine *m, const struct line *lines)
{
    memset(m, 0, sizeof *m);
    for (int i = 0; lines[i].name != NULL; i++) {
        put(&m->address[i], lines[i].address);
        put(&m->mask[i], strchr(lines[i].address, ':') != NULL ? "ffff:ffff:ffff:ffff::" : "255.255.255.0");
        m->all[i] = (struct ifaddrs){ .ifa_name = (char *)(uintptr_t)lines[i].name,
                                      .ifa_flags = lines[i].flags,
                                      .ifa_addr = (struct sockaddr *)&m->address[i],
                                      .ifa_netmask = (struct sockaddr *)&m->mask[i],
                                      .ifa_next = lines[i + 1].name != NULL ? &m->all[i + 1] : NULL };
    }
    return lines[0].name != NULL ? m->all : NULL;
}

/* "eth0 192.0.2.1, eth0 2001:db8::1" */
static const char *order(const struct line *lines, const char *names, bool loopback, int max)
{
    static char text[1024];
    struct machine m;
    struct pki_netif out[PKI_NETIF_MAX];
    int count = pki_netif_order(make(&m, lines), names, loopback, out, max);
    size_t at = 0;

    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        char address[PKI_NETIF_TEXT];

        pki_netif_format(&out[i].address, address);
        cr_expect_eq(pki_netif_port(&out[i].address), 0);
        *strrchr(address, ':') = '\0';
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s %s/%d", i > 0 ? ", " : "", out[i].name, address, out[i].prefix);
    }
    return text;
}

Test(netif, bridges_of_containers_come_last)
{
    static const struct line lines[] = { { "lo", "127.0.0.1", UP | IFF_LOOPBACK },
                                         { "docker0", "172.17.0.1", UP },
                                         { "virbr0", "192.168.122.1", UP },
                                         { "veth12ab", "169.254.3.4", UP },
                                         { "tun0", "10.8.0.6", UP | IFF_POINTOPOINT },
                                         { "corp", "10.9.0.6", UP | IFF_POINTOPOINT },
                                         { "br-0a1b2c", "172.18.0.1", UP },
                                         { "eth0", "192.0.2.1", UP },
                                         { NULL, NULL, 0 } };

    cr_expect_str_eq(order(lines, NULL, false, 1), "eth0 192.0.2.1/24");
    cr_expect_str_eq(order(lines, NULL, true, MOST),
                     "eth0 192.0.2.1/24, docker0 172.17.0.1/24, virbr0 192.168.122.1/24, veth12ab 169.254.3.4/24, "
                     "tun0 10.8.0.6/24, corp 10.9.0.6/24, br-0a1b2c 172.18.0.1/24, lo 127.0.0.1/24");
}

Test(netif, the_first_of_every_interface_then_link_local)
{
    static const struct line lines[] = { { "lo", "::1", UP | IFF_LOOPBACK }, { "eth0", "fe80::1", UP },
                                         { "eth0", "192.0.2.1", UP },        { "eth0", "192.0.2.2", UP },
                                         { "eth0", "2001:db8::1", UP },      { "eth1", "198.51.100.1", UP },
                                         { "eth2", "203.0.113.1", IFF_UP }, /* no cable */
                                         { "eth1", "2001:db8:1::1", UP },    { NULL, NULL, 0 } };

    cr_expect_str_eq(order(lines, NULL, false, MOST),
                     "eth0 192.0.2.1/24, eth1 198.51.100.1/24, eth0 [2001:db8::1]/64, eth1 [2001:db8:1::1]/64, "
                     "eth0 192.0.2.2/24, eth0 [fe80::1%777777]/64");
    cr_expect_str_eq(order(lines, NULL, false, 3), "eth0 192.0.2.1/24, eth1 198.51.100.1/24, eth0 [2001:db8::1]/64");
}

Test(netif, link_local_of_containers_is_left_out)
{
    static const struct line lines[] = { { "docker0", "172.17.0.1", UP },
                                         { "docker0", "fe80::1", UP },
                                         { "veth12ab", "fe80::2", UP },
                                         { "cali34cd", "fe80::3", UP },
                                         { "docker0", "2001:db8::1", UP },
                                         { "eth0", "fe80::4", UP },
                                         { NULL, NULL, 0 } };

    cr_expect_str_eq(order(lines, NULL, false, MOST),
                     "eth0 [fe80::4%777777]/64, docker0 172.17.0.1/24, docker0 [2001:db8::1]/64");
    cr_expect_str_eq(order(lines, "veth12ab", false, MOST), "veth12ab [fe80::2%777777]/64");
}

Test(netif, names_restrict_and_order)
{
    static const struct line lines[] = { { "lo", "127.0.0.1", UP | IFF_LOOPBACK },
                                         { "docker0", "172.17.0.1", UP },
                                         { "eth0", "fe80::1", UP },
                                         { "eth0", "192.0.2.1", UP },
                                         { "eth1", "198.51.100.1", UP },
                                         { NULL, NULL, 0 } };

    cr_expect_str_eq(order(lines, "eth1,eth0", false, MOST), "eth1 198.51.100.1/24, eth0 192.0.2.1/24, eth0 [fe80::1%777777]/64");
    cr_expect_str_eq(order(lines, "docker0", false, MOST), "docker0 172.17.0.1/24");
    cr_expect_str_eq(order(lines, "lo", false, MOST), "lo 127.0.0.1/24");
    cr_expect_str_eq(order(lines, "eth9", true, MOST), "");
}

Test(netif, the_scope_stays)
{
    static const struct line lines[] = { { "eth0", "fe80::1", UP }, { NULL, NULL, 0 } };
    struct machine m;
    struct pki_netif out;
    struct sockaddr_in6 v6;

    cr_assert_eq(pki_netif_order(make(&m, lines), NULL, false, &out, 1), 1);
    memcpy(&v6, &out.address, sizeof v6);
    cr_expect_eq(v6.sin6_scope_id, 777777);
    cr_expect(pki_netif_is_link_local(&out.address));
}

Test(netif, of_this_process)
{
    struct pki_netif out[4];
    pk_error_info_t info = { .struct_size = sizeof info };
    int count = 0;

    setenv("PK_IFNAME", "lo", 1);
    cr_assert_eq(pki_netif_addresses(false, out, 4, &count), PK_OK);
    cr_expect_geq(count, 1);
    cr_expect(pki_netif_is_loopback(&out[0].address));
    setenv("PK_IFNAME", "none7", 1);
    cr_expect_eq(pki_netif_addresses(true, out, 4, &count), PK_ERR_ARG);
    cr_expect_eq(pk_last_error(&info), PK_OK);
    cr_expect(strstr(info.text, "PK_IFNAME=none7") != NULL, "%s", info.text);
}

/* ---- listening ---- */

static pk_result_t listen_somewhere(int *fd, uint16_t *port)
{
    struct sockaddr_storage address;
    pk_result_t result;

    pki_netif_loopback(&address);
    result = pki_listen(&address, 8, false, fd);
    *port = pki_netif_port(&address);
    return result;
}

Test(listen, in_the_range_until_it_is_full)
{
    pk_error_info_t info = { .struct_size = sizeof info };
    int fds[4];
    uint16_t port, seen = 0;

    setenv("PK_PORTS", "23851-23853", 1);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(listen_somewhere(&fds[i], &port), PK_OK);
        cr_assert(port >= 23851 && port <= 23853, "port %u", port);
        seen |= (uint16_t)(1u << (port - 23851));
    }
    cr_expect_eq(seen, 7);
    cr_expect_eq(listen_somewhere(&fds[3], &port), PK_ERR_SYSTEM);
    cr_expect_eq(pk_last_error(&info), PK_OK);
    cr_expect_eq(info.sys_errno, EADDRINUSE);
    cr_expect(strstr(info.text, "PK_PORTS=23851-23853") != NULL && strstr(info.text, "127.0.0.1") != NULL, "%s", info.text);
    close(fds[1]);
    cr_expect_eq(listen_somewhere(&fds[1], &port), PK_OK, "a port that was given back is taken again");
}

Test(listen, ranges_that_are_none)
{
    static const char *const wrong[] = { "4000",       "4000-", "-4000",       "5000-4000", "0-10",          "4000-70000",
                                         "4000-5000x", "a-b",   "4000 - 5000", "+1-5",      "4000-5000-6000" };
    pk_error_info_t info = { .struct_size = sizeof info };
    uint16_t port;
    int fd;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char named[64];

        setenv("PK_PORTS", wrong[i], 1);
        cr_expect_eq(listen_somewhere(&fd, &port), PK_ERR_ARG, "%s", wrong[i]);
        cr_expect_eq(pk_last_error(&info), PK_OK);
        snprintf(named, sizeof named, "PK_PORTS=%s ", wrong[i]);
        cr_expect(strstr(info.text, named) != NULL, "%s", info.text);
    }
}

Test(listen, what_may_be_missing)
{
    struct sockaddr_storage taken, elsewhere;
    int fd, other;

    unsetenv("PK_PORTS");
    pki_netif_loopback(&taken);
    cr_assert_eq(pki_listen(&taken, 8, false, &fd), PK_OK);
    cr_assert_neq(pki_netif_port(&taken), 0);
    cr_expect_eq(pki_listen(&taken, 8, true, &other), PK_IN_PROGRESS);
    cr_expect_eq(errno, EADDRINUSE);
    cr_expect_eq(pki_listen(&taken, 8, false, &other), PK_ERR_SYSTEM);
    put(&elsewhere, "192.0.2.77");
    cr_expect_eq(pki_listen(&elsewhere, 8, true, &other), PK_IN_PROGRESS);
    cr_expect_eq(errno, EADDRNOTAVAIL);
}
