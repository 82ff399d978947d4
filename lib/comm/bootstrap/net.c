/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners, and the ids that wait for their communicator with them. */
#include "comm/bootstrap/internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap/meeting.h"
#include "util/auth.h"
#include "util/env.h"
#include "util/fork.h"
#include "util/list.h"
#include "util/listen.h"
#include "util/netif.h"

#define BACKLOG 4096

/* Listeners whose communicator has not been opened yet. Rank 0 finds its own by the id it was given. */
struct entry {
    struct pki_list link;
    pk_unique_id_t id;
    int count;
    int fds[PKI_MEETING_LISTENERS];
};

static struct {
    pthread_mutex_t lock;
    struct pki_list entries;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER, .entries = { &table.entries, &table.entries } };

/* The listeners are the parent's, and closed here. */
static void start_over(void)
{
    pthread_mutex_init(&table.lock, NULL);
    pki_list_init(&table.entries);
}

/* ---- listening ---- */

static void close_listeners(const int *listeners, int count)
{
    for (int i = 0; i < count; i++) {
        pki_fork_let_go(listeners[i]);
        close(listeners[i]);
    }
}

/* The port of `at`, an any-address, is taken at some address of this host: listen at `instead`, if that is of the family. */
static pk_result_t listen_instead(struct sockaddr_storage *at, const struct sockaddr_storage *instead, int *listener)
{
    const struct sockaddr_storage any = *at;
    char text[PKI_NETIF_TEXT], other[PKI_NETIF_TEXT] = "the other family's addresses";
    pk_result_t result = PK_IN_PROGRESS;

    errno = EADDRINUSE;
    pki_netif_format(&any, text);
    if (instead->ss_family == any.ss_family) {
        *at = *instead;
        pki_netif_format(at, other);
        result = pki_listen_try(at, BACKLOG, listener);
        if (result == PK_IN_PROGRESS)
            return pki_listen_failed(errno == EADDRINUSE ? at : &any, EADDRINUSE);
    }
    if (result != PK_ERR_SYSTEM && result != PK_ERR_ARG)
        pki_log(PKI_LOG_WARN, NULL, "cannot listen at %s: another process has that port on this host; listening at %s only", text,
                other);
    errno = EADDRINUSE;
    return result;
}

/* PK_IN_PROGRESS: the address is left out; errno. */
static pk_result_t listen_at(struct sockaddr_storage *at, bool taken_ok, const struct sockaddr_storage *instead, int *listener)
{
    const bool given = pki_netif_port(at) != 0;
    pk_result_t result = pki_listen_try(at, BACKLOG, listener);

    if (result != PK_IN_PROGRESS || errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT)
        return result;
    if (errno == EADDRINUSE && (!given || taken_ok)) /* not `given`: PK_PORTS */
        return result;
    return errno == EADDRINUSE && instead != NULL ? listen_instead(at, instead, listener) : pki_listen_failed(at, errno);
}

pk_result_t pki_meeting_listen(struct sockaddr_storage *address, int *count, bool taken_ok,
                               const struct sockaddr_storage *instead, int *listeners)
{
    int kept = 0, error = 0;
    struct sockaddr_storage refused = *address;

    for (int i = 0; i < *count; i++) {
        struct sockaddr_storage at = address[i];
        pk_result_t result = listen_at(&at, taken_ok, instead, &listeners[kept]);

        if (result == PK_IN_PROGRESS) {
            refused = at;
            error = errno;
        }
        if (result != PK_OK && result != PK_IN_PROGRESS) {
            close_listeners(listeners, kept);
            return result;
        }
        if (result == PK_IN_PROGRESS)
            continue;
        pki_fork_guard(listeners[kept]);
        address[kept++] = at;
    }
    *count = kept;
    return kept > 0 ? PK_OK : pki_listen_failed(&refused, error);
}

void pki_meeting_where(const int *listeners, int count, char *out, size_t room)
{
    size_t at = 0;

    out[0] = '\0';
    for (int i = 0; i < count && at < room; i++) {
        struct sockaddr_storage address;
        socklen_t bytes = sizeof address;
        char text[PKI_NETIF_TEXT];

        memset(&address, 0, sizeof address);
        if (getsockname(listeners[i], (struct sockaddr *)&address, &bytes) != 0)
            continue;
        pki_netif_format(&address, text);
        at += (size_t)snprintf(out + at, room - at, "%s%s", at > 0 ? ", " : "", text);
    }
}

void pki_meeting_stop_listening(struct pki_meeting *meeting)
{
    close_listeners(meeting->listeners, meeting->listener_count);
    meeting->listener_count = 0;
}

void pki_meeting_close(struct pki_meeting *meeting)
{
    pki_meeting_stop_listening(meeting);
    pki_auth_wipe(&meeting->secret, sizeof meeting->secret);
}

/* ---- ids ---- */

pk_result_t pki_listener_make(struct pki_id *id, pk_unique_id_t *out)
{
    struct entry *e = calloc(1, sizeof *e);
    pk_result_t result;

    if (e == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a listener");
    e->count = id->address_count;
    result = pki_meeting_listen(id->address, &e->count, false, NULL, e->fds);
    if (result != PK_OK) {
        free(e);
        return result;
    }
    id->address_count = e->count;
    pki_wire_put_id(&e->id, id);
    *out = e->id;
    pki_fork_at_child(start_over);
    pthread_mutex_lock(&table.lock);
    pki_list_push(&table.entries, &e->link);
    pthread_mutex_unlock(&table.lock);
    return PK_OK;
}

int pki_listener_take(const pk_unique_id_t *id, int listeners[PKI_MEETING_LISTENERS])
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
        pki_auth_wipe(&found->id, sizeof found->id);
        free(found);
    }
    return count;
}

bool pki_listener_drop(const pk_unique_id_t *id)
{
    int listeners[PKI_MEETING_LISTENERS];
    int count = pki_listener_take(id, listeners);

    close_listeners(listeners, count);
    return count > 0;
}

pk_result_t pki_meeting_of_id(const pk_unique_id_t *id, bool listens, struct pki_meeting *meeting)
{
    struct pki_id unpacked;

    memset(meeting, 0, sizeof *meeting);
    if (!pki_wire_get_id(id, &unpacked))
        return pki_fail(PK_ERR_ARG, NULL, "pk_get_unique_id did not make this id");
    meeting->secret = unpacked.secret;
    meeting->guard = PKI_GUARD_SECRET;
    meeting->listened = unpacked.listened;
    meeting->led = unpacked.led;
    meeting->address_count = unpacked.address_count;
    memcpy(meeting->address, unpacked.address, sizeof unpacked.address);
    pki_auth_wipe(&unpacked.secret, sizeof unpacked.secret);
    if (listens)
        meeting->listener_count = pki_listener_take(id, meeting->listeners);
    return PK_OK;
}

static bool is_listed(const struct pki_id *id, const struct sockaddr_storage *address)
{
    for (int i = 0; i < id->address_count; i++)
        if (memcmp(&id->address[i], address, sizeof *address) == 0)
            return true;
    return false;
}

static bool has_family(const struct pki_id *id, sa_family_t family)
{
    for (int i = 0; i < id->address_count; i++)
        if (id->address[i].ss_family == family)
            return true;
    return false;
}

/* When there is no room left the last place goes to a family that is missing so far: some may have no other. */
static void add_address(struct pki_id *id, const struct sockaddr_storage *address)
{
    if (is_listed(id, address))
        return;
    if (id->address_count < PKI_ID_ADDRESSES)
        id->address[id->address_count++] = *address;
    else if (!has_family(id, address->ss_family))
        id->address[PKI_ID_ADDRESSES - 1] = *address;
}

pk_result_t pki_id_addresses(bool loopback, const struct sockaddr_storage *first, struct pki_id *id)
{
    const bool named = pki_env_get("PK_IFNAME") != NULL;
    struct pki_netif netifs[PKI_NETIF_MAX];
    int count = 0;
    pk_result_t result = PK_OK;

    id->address_count = 0;
    if (first != NULL)
        id->address[id->address_count++] = *first;
    /* In a sandbox that does not tell of interfaces, `first` is all there is. */
    if (named || (!loopback && (first == NULL || pki_netif_is_known())))
        result = pki_netif_addresses(false, netifs, PKI_NETIF_MAX, &count);
    if (result != PK_OK)
        return result;
    /* Link-local ones only where there is nothing else: the others would have to try them on each of their links. */
    for (int i = 0; i < count; i++)
        if (id->address_count == 0 || !pki_netif_is_link_local(&netifs[i].address))
            add_address(id, &netifs[i].address);
    if (id->address_count == 0)
        pki_netif_loopback(&id->address[id->address_count++]);
    return PK_OK;
}
