/* SPDX-License-Identifier: Apache-2.0 */
/* Names of hosts: what is known without a resolver, and asking it without waiting for it. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util/netif.h"
#include "util/resolve.h"

/* "127.0.0.1 [::1]" */
static const char *literal(const char *host, int max)
{
    static char text[512];
    struct sockaddr_storage out[8];
    int count = pki_resolve_literal(host, out, max);

    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        char address[PKI_NETIF_TEXT];

        pki_netif_format(&out[i], address);
        *strrchr(address, ':') = '\0';
        strcat(text, i > 0 ? " " : "");
        strcat(text, address);
    }
    return text;
}

/* RFC 6761: nobody is asked, and /etc/hosts need not be there. */
Test(resolve, localhost_is_loopback)
{
    cr_expect_str_eq(literal("localhost", 8), "127.0.0.1 [::1]");
    cr_expect_str_eq(literal("LocalHost.", 8), "127.0.0.1 [::1]");
    cr_expect_str_eq(literal("node1.localhost", 8), "127.0.0.1 [::1]");
    cr_expect_str_eq(literal("localhost", 1), "127.0.0.1");
    cr_expect_str_eq(literal("notlocalhost", 8), "");
    cr_expect_str_eq(literal("localhost.example", 8), "");
    cr_expect_str_eq(literal("", 8), "");
    cr_expect_str_eq(literal(".", 8), "");
}

Test(resolve, digits)
{
    cr_expect_str_eq(literal("192.0.2.7", 8), "192.0.2.7");
    cr_expect_str_eq(literal("2001:db8::7", 8), "[2001:db8::7]");
    cr_expect_str_eq(literal("0.0.0.0", 8), "0.0.0.0");
    cr_expect_str_eq(literal("node1", 8), "");
}

/* The resolver is the test's, but for digits. */
static atomic_int hangs;
static int answer;

int slow_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                     struct addrinfo **found) __asm__("getaddrinfo");
int slow_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    int (*libcs)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");

    memcpy(&libcs, &symbol, sizeof libcs);
    if ((hints->ai_flags & AI_NUMERICHOST) != 0)
        return libcs(host, port, hints, found);
    while (atomic_load(&hangs))
        usleep(1000);
    return answer;
}

/* A lookup that hangs is left alone, and keeps nobody. */
Test(resolve, a_resolver_that_hangs, .timeout = 20)
{
    struct pki_lookup *lookup;

    atomic_store(&hangs, 1);
    lookup = pki_lookup_start("node1");
    cr_assert(lookup != NULL);
    usleep(20000);
    cr_expect_not(pki_lookup_is_done(lookup));
    pki_lookup_drop(lookup);
    atomic_store(&hangs, 0);
    usleep(20000); /* the thread ends and frees it: the address sanitizer sees whether it does */
}

Test(resolve, why_a_name_is_not_known, .timeout = 20)
{
    static const struct {
        int code;
        const char *why;
    } cases[] = { { EAI_NONAME, "Name or service not known" }, { EAI_AGAIN, "Temporary failure in name resolution" } };
    struct sockaddr_storage out[2];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char why[128] = "";
        struct pki_lookup *lookup;

        answer = cases[i].code;
        lookup = pki_lookup_start("node1");
        cr_assert(lookup != NULL);
        while (!pki_lookup_is_done(lookup))
            usleep(1000);
        cr_expect_eq(pki_lookup_result(lookup, out, 2, why), 0);
        cr_expect_str_eq(why, cases[i].why);
        pki_lookup_drop(lookup);
    }
}
