/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and listeners. */
#include "comm/bootstrap_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/env.h"
#include "util/fork.h"
#include "util/list.h"
#include "util/netif.h"

#define BACKLOG 4096

/* Listeners whose communicator has not been opened yet. Rank 0 finds its own by the id it was given. */
struct entry {
    struct pki_list link;
    pk_unique_id_t id;
    int count;
    int fds[PKI_ID_ADDRESSES];
};

static struct {
    pthread_mutex_t lock;
    struct pki_list entries;
    bool watched; /* start_over is called in children */
} table = { .lock = PTHREAD_MUTEX_INITIALIZER, .entries = { &table.entries, &table.entries } };

/* The listeners are the parent's, and closed here. */
static void start_over(void)
{
    pthread_mutex_init(&table.lock, NULL);
    pki_list_init(&table.entries);
}

void pki_address_format(const struct pki_address *address, char out[PKI_ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (address->storage.ss_family == AF_INET6) {
        memcpy(&v6, &address->storage, sizeof v6);
        inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
        snprintf(out, PKI_ADDRESS_TEXT, "[%s]:%u", host, ntohs(v6.sin6_port));
    } else {
        memcpy(&v4, &address->storage, sizeof v4);
        inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
        snprintf(out, PKI_ADDRESS_TEXT, "%s:%u", host, ntohs(v4.sin_port));
    }
}

bool pki_address_is_loopback(const struct pki_address *address)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (address->storage.ss_family == AF_INET6) {
        memcpy(&v6, &address->storage, sizeof v6);
        return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
    }
    memcpy(&v4, &address->storage, sizeof v4);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
}

void pki_address_any_port(const struct sockaddr_storage *storage, struct pki_address *address)
{
    memset(address, 0, sizeof *address);
    address->storage = *storage;
    pki_address_set_port(address, 0);
}

void pki_address_set_port(struct pki_address *address, uint16_t port)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (address->storage.ss_family == AF_INET6) {
        memcpy(&v6, &address->storage, sizeof v6);
        v6.sin6_port = htons(port);
        memcpy(&address->storage, &v6, sizeof v6);
        address->bytes = sizeof v6;
    } else {
        memcpy(&v4, &address->storage, sizeof v4);
        v4.sin_port = htons(port);
        memcpy(&address->storage, &v4, sizeof v4);
        address->bytes = sizeof v4;
    }
}

/* Is this an address that other hosts can be told? Link-local ones mean something else on each host. */
static bool usable(const struct ifaddrs *i, const char *name)
{
    struct sockaddr_in6 v6;

    if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0)
        return false;
    if (name != NULL ? !pki_netif_in_list(name, i->ifa_name) : (i->ifa_flags & (IFF_LOOPBACK | IFF_RUNNING)) != IFF_RUNNING)
        return false;
    if (i->ifa_addr->sa_family == AF_INET)
        return true;
    if (i->ifa_addr->sa_family != AF_INET6)
        return false;
    memcpy(&v6, i->ifa_addr, sizeof v6);
    return !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

static const struct ifaddrs *find_interface(const struct ifaddrs *all, const char *name)
{
    const struct ifaddrs *found = NULL;

    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (!usable(i, name))
            continue;
        if (i->ifa_addr->sa_family == AF_INET)
            return i;
        if (found == NULL)
            found = i;
    }
    return found;
}

static void set_loopback(struct pki_address *address)
{
    const struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };

    memset(address, 0, sizeof *address);
    memcpy(&address->storage, &v4, sizeof v4);
    address->bytes = sizeof v4;
}

pk_result_t pki_address_choose(bool loopback, struct pki_address *address)
{
    const char *name = pki_env_get("PK_IFNAME");
    const struct ifaddrs *found;
    struct ifaddrs *all;
    pk_result_t result = PK_OK;

    if (loopback && name == NULL) {
        set_loopback(address);
        return PK_OK;
    }
    if (getifaddrs(&all) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "getifaddrs");
    found = find_interface(all, name);
    if (found != NULL) {
        memset(address, 0, sizeof *address);
        address->bytes = found->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        memcpy(&address->storage, found->ifa_addr, address->bytes);
    } else if (name != NULL) {
        result = pki_fail(PK_ERR_ARG, NULL, "PK_IFNAME=%.32s is no interface that is up and has an address", name);
    } else {
        set_loopback(address);
    }
    freeifaddrs(all);
    return result;
}

/* Bind, listen, and learn the port. Returns 0 or errno. */
static int listen_at(int fd, struct pki_address *address)
{
    const int on = 1;
    socklen_t bytes = sizeof address->storage;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->storage.ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address->storage, address->bytes) != 0)
        return errno;
    if (listen(fd, BACKLOG) != 0 || getsockname(fd, (struct sockaddr *)&address->storage, &bytes) != 0)
        return errno;
    address->bytes = bytes;
    return 0;
}

/* PK_IN_PROGRESS: this host does not have the address, or (`any`) somebody else does. */
static pk_result_t listen_on(struct pki_address *address, bool any, int *listener)
{
    char text[PKI_ADDRESS_TEXT];
    int error;
    int fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 && errno == EAFNOSUPPORT)
        return PK_IN_PROGRESS;
    if (fd < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "socket");
    error = listen_at(fd, address);
    if (error == 0) {
        pki_fork_guard(fd);
        *listener = fd;
        return PK_OK;
    }
    close(fd);
    if (error == EADDRNOTAVAIL || (any && error == EADDRINUSE))
        return PK_IN_PROGRESS;
    pki_address_format(address, text);
    errno = error;
    return pki_fail_errno(PK_ERR_SYSTEM, NULL, "cannot listen at %s", text);
}

static void close_entry(struct entry *e)
{
    for (int i = 0; i < e->count; i++) {
        pki_fork_let_go(e->fds[i]);
        close(e->fds[i]);
    }
    free(e);
}

pk_result_t pki_listener_make(struct pki_id *id, bool any, pk_unique_id_t *out)
{
    struct entry *e = calloc(1, sizeof *e);
    char text[PKI_ADDRESS_TEXT];

    if (e == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a listener");
    for (int i = 0; i < id->address_count; i++) {
        pk_result_t result = listen_on(&id->address[i], any, &e->fds[e->count]);

        if (result == PK_OK)
            e->count++;
        if (result == PK_OK || result == PK_IN_PROGRESS)
            continue;
        close_entry(e);
        return result;
    }
    if (e->count == 0) {
        close_entry(e);
        pki_address_format(&id->address[0], text);
        return pki_fail(PK_ERR_SYSTEM, NULL, "this host does not have the address %s to listen at%s", text,
                        any ? ", or it and its alternatives are in use: set PK_RANK, PK_SIZE and PK_ROOT" : "");
    }
    pki_wire_put_id(&e->id, id);
    *out = e->id;
    pthread_mutex_lock(&table.lock);
    if (!table.watched)
        pki_fork_at_child(start_over);
    table.watched = true;
    pki_list_push(&table.entries, &e->link);
    pthread_mutex_unlock(&table.lock);
    return PK_OK;
}

int pki_listener_take(const pk_unique_id_t *id, int listeners[PKI_ID_ADDRESSES])
{
    struct entry *found = NULL;
    int count = 0;

    pthread_mutex_lock(&table.lock);
    for (struct pki_list *l = table.entries.next; l != &table.entries && found == NULL; l = l->next) {
        struct entry *e = pki_container_of(l, struct entry, link);

        if (memcmp(&e->id, id, sizeof *id) == 0)
            found = e;
    }
    if (found != NULL)
        pki_list_remove(&found->link);
    pthread_mutex_unlock(&table.lock);
    if (found != NULL) {
        count = found->count;
        memcpy(listeners, found->fds, sizeof found->fds);
        for (int i = 0; i < count; i++)
            pki_fork_let_go(listeners[i]);
        free(found);
    }
    return count;
}
