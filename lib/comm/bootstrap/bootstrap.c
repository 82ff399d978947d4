/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/bootstrap/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tuning/tuning.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/fork.h"
#include "util/netif.h"

#define NEWS_NS (200 * PKI_NS_PER_MS)
#define REPORT_NS (5 * PKI_NS_PER_S) /* the first line about who is missing; the next ones after twice the time */

pk_result_t pki_bootstrap_id_on(bool loopback, pk_unique_id_t *id)
{
    struct pki_id made = { .listened = true };
    pk_result_t result = pki_auth_random(&made.secret, sizeof made.secret);

    pki_fork_look(); /* before there is a descriptor that is this process's */
    if (result == PK_OK)
        result = pki_id_addresses(loopback, NULL, &made);
    if (result == PK_OK)
        result = pki_listener_make(&made, id);
    pki_auth_wipe(&made.secret, sizeof made.secret);
    return result;
}

pk_result_t pki_bootstrap_id(pk_unique_id_t *id)
{
    return pki_bootstrap_id_on(false, id);
}

bool pki_id_drop(const pk_unique_id_t *id)
{
    return pki_listener_drop(id) || pki_lead_drop(id);
}

pk_result_t pki_bootstrap_release(const pk_unique_id_t *id)
{
    if (pki_id_drop(id))
        return PK_OK;
    return pki_fail(PK_ERR_ARG, NULL, "this process did not make the id, or it is used up or released");
}

/* One descriptor that stands for all connections of rank 0. It says once what has come (exchange.c). */
static pk_result_t watch_all(struct pki_bootstrap *b)
{
    b->watch_fd = pki_fd_keep(epoll_create1(EPOLL_CLOEXEC));
    if (b->watch_fd < 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "epoll_create");
    for (int r = 1; r < b->size; r++) {
        struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u32 = (uint32_t)r };

        if (epoll_ctl(b->watch_fd, EPOLL_CTL_ADD, b->conns[r].fd, &event) != 0)
            return pki_fail_errno(PK_ERR_SYSTEM, NULL, "epoll_ctl");
    }
    return PK_OK;
}

static pk_result_t open_root(struct pki_bootstrap *b, struct pki_meeting *meeting, uint64_t deadline_ns)
{
    pk_result_t result = PK_OK;

    if (b->size == 1)
        return pki_auth_random(b->session, sizeof b->session);
    if (meeting->led)
        result = pki_bootstrap_come_forward(b, meeting, deadline_ns);
    else if (meeting->listener_count == 0)
        return pki_fail(PK_ERR_ARG, NULL, "rank 0 must run in the process that made the id, and an id serves one communicator");
    if (result == PK_OK)
        result = pki_bootstrap_gather_ranks(b, meeting, deadline_ns);
    return result == PK_OK ? pki_bootstrap_adopt(b, watch_all(b)) : result;
}

/* The state of a rank that has no connection yet. */
static struct pki_bootstrap *create(int size, int rank, const struct pki_meeting *meeting, struct pki_call_off *cancel)
{
    struct pki_bootstrap *b = calloc(1, sizeof *b);

    if (b == NULL)
        return NULL;
    b->size = size;
    b->rank = rank;
    b->cancel = cancel;
    b->secret = meeting->secret;
    b->life = meeting->life;
    b->began_ns = pki_now_ns();
    b->report_ns = b->began_ns + REPORT_NS;
    b->watch_fd = -1;
    b->conn_count = size == 1 ? 0 : rank == 0 ? size : 1;
    b->conns = calloc((size_t)b->conn_count + 1, sizeof b->conns[0]);
    if (b->conns == NULL) {
        free(b);
        return NULL;
    }
    for (int r = 0; r < b->conn_count; r++)
        b->conns[r].fd = -1;
    return b;
}

/* Rank 0 closes its listeners before it welcomes anybody; whatever is still open, the caller does. */
static pk_result_t open_at(struct pki_bootstrap **bootstrap, int size, int rank, struct pki_meeting *meeting,
                           uint64_t deadline_ns, struct pki_call_off *cancel)
{
    struct pki_bootstrap *b;
    pk_result_t result;

    if (size < 1 || rank < 0 || rank >= size)
        return pki_fail(PK_ERR_ARG, NULL, "rank %d of %d does not exist", rank, size);
    b = create(size, rank, meeting, cancel);
    if (b == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d ranks", size);
    result = rank == 0 ? open_root(b, meeting, deadline_ns) : pki_bootstrap_join(b, meeting, deadline_ns);
    if (result != PK_OK) {
        pki_bootstrap_close(b);
        return result;
    }
    *bootstrap = b;
    return PK_OK;
}

pk_result_t pki_bootstrap_open_at(struct pki_bootstrap **bootstrap, int size, int rank, struct pki_meeting *meeting,
                                  uint64_t deadline_ns, struct pki_call_off *cancel)
{
    pk_result_t result = open_at(bootstrap, size, rank, meeting, deadline_ns, cancel);

    pki_meeting_close(meeting);
    return result;
}

pk_result_t pki_bootstrap_open(struct pki_bootstrap **bootstrap, int size, int rank, const pk_unique_id_t *id,
                               uint64_t deadline_ns, struct pki_call_off *cancel)
{
    return pki_bootstrap_open_grown(bootstrap, size, rank, 0, id, deadline_ns, cancel);
}

pk_result_t pki_bootstrap_open_grown(struct pki_bootstrap **bootstrap, int size, int rank, int joiners, const pk_unique_id_t *id,
                                     uint64_t deadline_ns, struct pki_call_off *cancel)
{
    struct pki_meeting meeting;
    pk_result_t result;

    if (size < 1 || rank < 0 || rank >= size)
        return pki_fail(PK_ERR_ARG, NULL, "rank %d of %d does not exist", rank, size);
    result = pki_meeting_of_id(id, rank == 0, &meeting);
    if (result != PK_OK)
        return result;
    meeting.joiners = joiners;
    if (size > 1 && meeting.address_count == 0) {
        pki_meeting_close(&meeting);
        return pki_fail(PK_ERR_ARG, NULL, "pk_get_unique_id did not make this id");
    }
    result = pki_bootstrap_open_at(bootstrap, size, rank, &meeting, deadline_ns, cancel);
    if (meeting.led && rank == 0 && (result != PK_OK || size == 1))
        (void)pki_lead_drop(id); /* there is nobody to be led, or nowhere to lead to */
    return result;
}

pk_result_t pki_bootstrap_open_joiner(struct pki_bootstrap **bootstrap, int *size, int *rank, const pk_unique_id_t *id,
                                      uint64_t deadline_ns, struct pki_call_off *cancel)
{
    struct pki_meeting meeting;
    struct pki_bootstrap *b;
    pk_result_t result = pki_meeting_of_id(id, false, &meeting);

    if (result != PK_OK)
        return result;
    b = create(PKI_RANKS_MAX, PKI_JOINS, &meeting, cancel);
    result = b != NULL ? pki_bootstrap_join(b, &meeting, deadline_ns) : pki_fail(PK_ERR_MEMORY, NULL, "no memory to join");
    pki_meeting_close(&meeting);
    if (result != PK_OK) {
        pki_bootstrap_close(b);
        return result;
    }
    *size = b->size;
    *rank = b->rank;
    *bootstrap = b;
    return PK_OK;
}

bool pki_id_grows(const pk_unique_id_t *id)
{
    struct pki_id unpacked;
    const bool grows = pki_wire_get_id(id, &unpacked) && unpacked.grows;

    pki_auth_wipe(&unpacked.secret, sizeof unpacked.secret);
    return grows;
}

pk_result_t pki_bootstrap_barrier(struct pki_bootstrap *b, uint64_t deadline_ns)
{
    const unsigned char here = 1;
    unsigned char *all = malloc((size_t)b->size);
    pk_result_t result;

    if (all == NULL)
        return pki_bootstrap_fail(b, PK_ERR_MEMORY, -1, "no memory for a barrier of %d ranks", b->size);
    result = pki_bootstrap_allgather(b, &here, 1, all, deadline_ns);
    free(all);
    return result;
}

pk_result_t pki_bootstrap_derive(const struct pki_bootstrap *b, const char *label, unsigned char key[PKI_BOOTSTRAP_KEY_BYTES])
{
    unsigned char text[PKI_SESSION_BYTES + 32] = { 0 };

    memcpy(text, b->session, PKI_SESSION_BYTES);
    (void)snprintf((char *)text + PKI_SESSION_BYTES, sizeof text - PKI_SESSION_BYTES, "%s", label);
    return pki_auth_mac(b->secret.key, PKI_SECRET_BYTES, text, sizeof text, key);
}

static bool address_of(const struct pki_conn *c, struct sockaddr_storage *address)
{
    socklen_t bytes = sizeof *address;

    memset(address, 0, sizeof *address);
    return c->fd >= 0 && getsockname(c->fd, (struct sockaddr *)address, &bytes) == 0;
}

bool pki_bootstrap_local_address(const struct pki_bootstrap *b, struct sockaddr_storage *address)
{
    struct sockaddr_storage found;
    bool any = false;

    for (int r = 0; r < b->conn_count; r++) {
        if (!address_of(&b->conns[r], &found) || (any && pki_netif_is_loopback(&found)))
            continue;
        *address = found;
        any = true;
        if (!pki_netif_is_loopback(&found))
            break;
    }
    return any;
}

int pki_bootstrap_local_addresses(const struct pki_bootstrap *b, struct sockaddr_storage *address)
{
    for (int r = 0; r < b->conn_count; r++)
        if (!address_of(&b->conns[r], &address[r]))
            memset(&address[r], 0, sizeof address[r]);
    return b->conn_count;
}

pk_result_t pki_bootstrap_poll(struct pki_bootstrap *b)
{
    pk_result_t result = pki_bootstrap_check(b);

    for (int r = b->rank == 0 ? 1 : 0; r < b->conn_count && result == PK_OK; r++) {
        if (b->conns[r].fd < 0)
            continue;
        result = pki_bootstrap_receive(b, r, false);
        if (result == PK_IN_PROGRESS)
            result = PK_OK;
    }
    if (result == PK_OK && b->asked)
        result = pki_bootstrap_fail(b, PK_ERR_TIMEOUT, 0, "another rank timed out while it waited for rank 0");
    return result;
}

pk_result_t pki_bootstrap_news(struct pki_bootstrap *b)
{
    const uint64_t until = pki_now_ns() + NEWS_NS;
    const struct pki_wait moment = { .deadline_ns = 0, .cancel = b->cancel };
    pk_result_t result = PK_OK;

    while (result == PK_OK && pki_now_ns() < until) {
        result = pki_bootstrap_poll(b);
        if (result == PK_OK && pki_poll(NULL, 0, &moment) == PK_ERR_ABORTED)
            return pki_bootstrap_fail(b, PK_ERR_ABORTED, -1, "aborted");
        if (result == PK_OK)
            usleep(pki_tuning.wait.turn_us);
    }
    return result;
}

void pki_bootstrap_close(struct pki_bootstrap *b)
{
    const struct pki_frame shutdown = { .type = PKI_FRAME_SHUTDOWN };
    unsigned char bytes[PKI_FRAME_HEADER_BYTES];

    if (b == NULL)
        return;
    pki_wire_put_frame(bytes, &shutdown);
    for (int r = 0; r < b->conn_count; r++) {
        if (b->conns[r].fd >= 0 && b->failed == PK_OK)
            (void)send(b->conns[r].fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        pki_conn_close(&b->conns[r]);
    }
    if (b->watch_fd >= 0)
        close(b->watch_fd);
    pki_auth_wipe(&b->secret, sizeof b->secret);
    free(b->conns);
    free(b);
}
