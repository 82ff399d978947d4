/* SPDX-License-Identifier: Apache-2.0 */
#include "util/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util/thread.h"

#define WHY_BYTES 128

/* Whoever is last, the thread or the one who asked, frees it. */
struct pki_lookup {
    atomic_int owners;
    atomic_bool done;
    char host[PKI_RESOLVE_HOST];
    int error, sys_errno, count;
    struct sockaddr_storage address[PKI_RESOLVE_MAX];
};

static int copy_addresses(const struct addrinfo *found, struct sockaddr_storage *out, int max)
{
    int count = 0;

    for (const struct addrinfo *a = found; a != NULL && count < max; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        memset(&out[count], 0, sizeof out[count]);
        memcpy(&out[count++], a->ai_addr, a->ai_addrlen);
    }
    return count;
}

static bool is_localhost(const char *host)
{
    static const char name[] = "localhost";
    const size_t length = sizeof name - 1;
    size_t bytes = strlen(host);

    bytes -= bytes > 0 && host[bytes - 1] == '.';
    if (bytes < length || strncasecmp(host + bytes - length, name, length) != 0)
        return false;
    return bytes == length || host[bytes - length - 1] == '.';
}

int pki_resolve_literal(const char *host, struct sockaddr_storage *out, int max)
{
    static const char *const loopback[] = { "127.0.0.1", "::1" };
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST };
    const bool local = is_localhost(host);
    int count = 0;

    for (int i = 0; i < (local ? 2 : 1); i++) {
        struct addrinfo *found = NULL;

        if (getaddrinfo(local ? loopback[i] : host, NULL, &hints, &found) != 0)
            continue;
        count += copy_addresses(found, out + count, max - count);
        freeaddrinfo(found);
    }
    return count;
}

void pki_lookup_drop(struct pki_lookup *lookup)
{
    if (lookup != NULL && atomic_fetch_sub_explicit(&lookup->owners, 1, memory_order_acq_rel) == 1)
        free(lookup);
}

static void *look_up(void *arg)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct pki_lookup *lookup = arg;
    struct addrinfo *found = NULL;

    lookup->error = getaddrinfo(lookup->host, NULL, &hints, &found);
    lookup->sys_errno = errno;
    if (lookup->error == 0) {
        lookup->count = copy_addresses(found, lookup->address, PKI_RESOLVE_MAX);
        freeaddrinfo(found);
    }
    atomic_store_explicit(&lookup->done, true, memory_order_release); /* pairs with the load in pki_lookup_is_done */
    pki_lookup_drop(lookup);
    return NULL;
}

struct pki_lookup *pki_lookup_start(const char *host)
{
    struct pki_lookup *lookup = calloc(1, sizeof *lookup);
    pthread_t thread;

    if (lookup == NULL)
        return NULL;
    atomic_init(&lookup->owners, 2);
    snprintf(lookup->host, sizeof lookup->host, "%s", host);
    if (pki_thread_start(&thread, look_up, lookup) == 0)
        pthread_detach(thread);
    else
        look_up(lookup);
    return lookup;
}

bool pki_lookup_is_done(const struct pki_lookup *lookup)
{
    return atomic_load_explicit(&lookup->done, memory_order_acquire); /* pairs with the store in look_up */
}

int pki_lookup_result(const struct pki_lookup *lookup, struct sockaddr_storage *out, int max, char *why)
{
    const int count = lookup->count < max ? lookup->count : max;
    char reason[WHY_BYTES];

    memcpy(out, lookup->address, (size_t)count * sizeof out[0]);
    if (lookup->error == EAI_SYSTEM)
        snprintf(why, WHY_BYTES, "%s", strerror_r(lookup->sys_errno, reason, sizeof reason));
    else
        snprintf(why, WHY_BYTES, "%s", lookup->error != 0 ? gai_strerror(lookup->error) : "it has no address");
    return count;
}
