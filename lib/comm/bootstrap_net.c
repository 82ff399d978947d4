/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and listeners. */
#include "comm/bootstrap_int.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/auth.h"
#include "util/fd.h"
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

pk_result_t pki_address_choose(bool loopback, struct sockaddr_storage *address)
{
    struct pki_netif named;
    int count = 0;
    pk_result_t result = pki_netif_named(&named, 1, &count);

    if (result != PK_OK)
        return result;
    if (count > 0) {
        *address = named.address;
        return PK_OK;
    }
    if (!loopback)
        return pki_netif_any(address);
    pki_netif_loopback(address);
    return PK_OK;
}

/* Bind, listen, and learn the port. Returns 0 or errno. */
static int listen_at(int fd, struct sockaddr_storage *address)
{
    const int on = 1;
    socklen_t bytes = sizeof *address;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)address, pki_netif_bytes(address)) != 0)
        return errno;
    if (listen(fd, BACKLOG) != 0 || getsockname(fd, (struct sockaddr *)address, &bytes) != 0)
        return errno;
    return 0;
}

/* PK_IN_PROGRESS: this host does not have the address, or (`any`) somebody else does. */
static pk_result_t listen_on(struct sockaddr_storage *address, bool any, int *listener)
{
    char text[PKI_NETIF_TEXT];
    int error;
    int fd = pki_fd_keep(socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

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
    pki_netif_format(address, text);
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
    char text[PKI_NETIF_TEXT];

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
        pki_netif_format(&id->address[0], text);
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
        pki_auth_wipe(&found->id, sizeof found->id);
        free(found);
    }
    return count;
}
