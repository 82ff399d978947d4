/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's side of pki_bootstrap_open. */
#include "comm/bootstrap/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/bootstrap/accept.h"
#include "comm/bootstrap/meeting.h"
#include "util/auth.h"
#include "util/bytes.h"
#include "util/clock.h"

#define LINGER_NS (30 * PKI_NS_PER_MS) /* after a failure: for ranks that are at the door */

struct gathering {
    struct pki_bootstrap *b;
    const struct pki_meeting *meeting;
    struct pki_acceptor *acceptor;
    struct pollfd *polls;
    int joined;
};

static bool not_joined(const struct pki_bootstrap *b, int r)
{
    return r != 0 && b->conns[r].fd < 0;
}

/* A rank that does not fit ends it for all, and hears why. Its descriptor is closed here. */
static pk_result_t refuse(struct pki_bootstrap *b, int fd, const struct pki_hello *hello)
{
    const bool known = hello->from < (uint32_t)b->size;
    pk_result_t result;

    if (hello->size != (uint32_t)b->size)
        result = pki_bootstrap_fail(b, PK_ERR_MISMATCH, known ? (int)hello->from : -1,
                                    "rank %u says that there are %u ranks, rank 0 says %d", hello->from, hello->size, b->size);
    else if (!known)
        result = pki_bootstrap_fail(b, PK_ERR_MISMATCH, -1, "a process calls itself rank %u of %d", hello->from, b->size);
    else
        result = pki_bootstrap_fail(b, PK_ERR_MISMATCH, (int)hello->from, "two processes call themselves rank %u of %d",
                                    hello->from, b->size);
    pki_bootstrap_notify(b, fd);
    close(fd);
    return result;
}

/* A launcher that starts a job again may have left processes of an earlier life, which look for rank 0 as well. Its count tells
 * them apart where a rank comes twice or does not fit; no more than that, for torchrun counts on each node by itself. */
static bool is_of_another_life(const struct pki_bootstrap *b, uint32_t life)
{
    return b->life != 0 && life != 0 && life != b->life;
}

/* This one alone is told. Its descriptor is closed here. */
static void dismiss(const struct pki_bootstrap *b, int fd, uint32_t rank, uint32_t life)
{
    const struct pki_where where = { .rank = 0, .peer = -1, .op = "init" };
    struct pki_notice notice = { .code = PK_ERR_MISMATCH, .peer = 0 };

    snprintf(notice.text, sizeof notice.text,
             "a process of another start of this job called itself rank %u: its launcher counts %u restarts, rank 0's %u", rank,
             life - 1, b->life - 1);
    pki_log(PKI_LOG_WARN, &where, "dismissed %s", notice.text);
    pki_conn_tell(fd, b->sequence, &notice);
    close(fd);
}

/* Somebody has the place of this rank. False: both belong to this life, as far as anybody can tell. */
static bool settle(struct pki_bootstrap *b, int fd, const struct pki_hello *hello)
{
    struct pki_conn *holder = &b->conns[hello->from];

    if (is_of_another_life(b, hello->life) == is_of_another_life(b, holder->life))
        return false;
    if (is_of_another_life(b, hello->life)) {
        dismiss(b, fd, hello->from, hello->life);
        return true;
    }
    dismiss(b, holder->fd, hello->from, holder->life);
    pki_conn_release(holder);
    holder->fd = fd;
    holder->life = hello->life;
    return true;
}

static bool is_joiner(const struct gathering *g, const struct pki_hello *hello)
{
    return hello->from == PKI_HELLO_JOINER && hello->size == 0 && g->meeting->joiners > 0;
}

/* The ranks behind the others, in the order in which they come. Who finds no place is told so, and nobody else minds. */
static void admit_joiner(struct gathering *g, int fd)
{
    struct pki_bootstrap *b = g->b;
    struct pki_notice notice = { .code = PK_ERR_PEER, .peer = 0 };
    int rank = b->size - g->meeting->joiners;

    while (rank < b->size && b->conns[rank].fd >= 0)
        rank++;
    if (rank < b->size) {
        b->conns[rank].fd = fd;
        g->joined++;
        return;
    }
    snprintf(notice.text, sizeof notice.text, "the communicator grows by %d ranks, and others came first", g->meeting->joiners);
    pki_conn_tell(fd, b->sequence, &notice);
    close(fd);
}

static pk_result_t admit(struct gathering *g)
{
    struct pki_bootstrap *b = g->b;
    struct pki_hello hello;
    int fd;

    while (pki_acceptor_take(g->acceptor, &fd, &hello)) {
        const bool fits =
            hello.size == (uint32_t)b->size && hello.from != 0 && hello.from < (uint32_t)(b->size - g->meeting->joiners);

        if (is_joiner(g, &hello)) {
            admit_joiner(g, fd);
            continue;
        }

        if (!fits && is_of_another_life(b, hello.life)) {
            dismiss(b, fd, hello.from, hello.life);
            continue;
        }
        if (fits && b->conns[hello.from].fd >= 0 && settle(b, fd, &hello))
            continue;
        if (!fits || b->conns[hello.from].fd >= 0)
            return refuse(b, fd, &hello);
        b->conns[hello.from].fd = fd;
        b->conns[hello.from].life = hello.life;
        g->joined++;
    }
    return PK_OK;
}

static size_t fill_polls(struct gathering *g)
{
    size_t count = pki_acceptor_polls(g->acceptor, g->polls);

    for (int r = 1; r < g->b->size; r++)
        if (g->b->conns[r].fd >= 0)
            g->polls[count++] = (struct pollfd){ .fd = g->b->conns[r].fd, .events = POLLIN };
    return count;
}

/* Ranks that are in have nothing to say yet, except that they give up. `polls` are those of fill_polls behind the acceptor's. */
static pk_result_t hear_joined(struct pki_bootstrap *b, const struct pollfd *polls)
{
    for (int r = 1; r < b->size; r++) {
        pk_result_t result;

        if (b->conns[r].fd < 0 || polls++->revents == 0)
            continue;
        result = pki_bootstrap_receive(b, r, true);
        if (result == PK_OK)
            return pki_bootstrap_fail(b, PK_ERR_PEER, r, "rank %d sent a message before it was admitted", r);
        if (result != PK_IN_PROGRESS)
            return result;
    }
    return PK_OK;
}

/* "; rank 0 listens at 192.0.2.1:7000" */
static void say_where(const struct gathering *g, char *out, size_t room)
{
    char where[200];

    pki_meeting_where(g->meeting->listeners, g->meeting->listener_count, where, sizeof where);
    snprintf(out, room, "; rank 0 listens at %s%s", where,
             g->meeting->guard == PKI_GUARD_LOOPBACK ? ", for ranks of this machine alone: there is no PK_SECRET_FILE" : "");
}

static pk_result_t give_up(const struct gathering *g)
{
    const size_t strangers = g->acceptor->dropped + g->acceptor->pending_count;
    char where[300], tail[440];

    say_where(g, where, sizeof where);
    if (strangers > 0)
        snprintf(tail, sizeof tail, "; %zu connections came and did not prove the secret%s%s", strangers,
                 g->acceptor->other_version ? "; a process with another version of the library came" : "", where);
    else
        snprintf(tail, sizeof tail, "%s", where);
    return pki_bootstrap_missing(g->b, not_joined, tail);
}

static void report(struct gathering *g)
{
    const struct pki_where who = { .rank = 0, .peer = -1, .op = "init" };
    char names[200], where[300];

    if (g->joined == g->b->size - 1 || !pki_bootstrap_report_is_due(g->b))
        return;
    pki_bootstrap_name_missing(g->b, not_joined, names, sizeof names);
    say_where(g, where, sizeof where);
    pki_log(PKI_LOG_WARN, &who, "still waiting for %s of %d after %llu ms%s", names, g->b->size, pki_bootstrap_elapsed_ms(g->b),
            where);
}

/* One round of poll and what follows from it. */
static pk_result_t turn(struct gathering *g, uint64_t deadline_ns)
{
    const size_t count = fill_polls(g);
    const size_t acceptor_count = (size_t)g->acceptor->listener_count + g->acceptor->pending_count;
    uint64_t due = pki_acceptor_due_ns(g->acceptor);
    struct pki_wait wait = { .cancel = g->b->cancel };
    pk_result_t result;

    due = due < g->b->report_ns ? due : g->b->report_ns;
    wait.deadline_ns = due < deadline_ns ? due : deadline_ns;
    result = pki_poll(g->polls, count, &wait);
    if (result == PK_ERR_ABORTED)
        return pki_bootstrap_fail(g->b, PK_ERR_ABORTED, -1, "aborted");
    if (result == PK_OK)
        result = hear_joined(g->b, g->polls + acceptor_count);
    if (result == PK_OK || result == PK_IN_PROGRESS)
        result = pki_acceptor_step(g->acceptor, g->polls);
    if (result == PK_OK)
        result = admit(g);
    if (result != PK_OK)
        return pki_bootstrap_adopt(g->b, result);
    report(g);
    if (g->joined < g->b->size - 1 && (g->b->asked || pki_now_ns() >= deadline_ns))
        return give_up(g);
    return PK_OK;
}

/* Whoever is in the middle of joining hears why nobody is welcome; later ones find nobody. */
static void turn_away(struct gathering *g)
{
    const uint64_t until = pki_now_ns() + LINGER_NS;
    struct pki_hello hello;
    int fd;

    do {
        const struct pki_wait wait = { .deadline_ns = g->acceptor->pending_count > 0 ? until : 0 };
        size_t count = pki_acceptor_polls(g->acceptor, g->polls);
        pk_result_t result = pki_poll(g->polls, count, &wait);

        if ((result != PK_OK && result != PK_IN_PROGRESS) || pki_acceptor_step(g->acceptor, g->polls) != PK_OK)
            return;
        while (pki_acceptor_take(g->acceptor, &fd, &hello)) {
            pki_bootstrap_notify(g->b, fd);
            close(fd);
        }
    } while (g->acceptor->pending_count > 0 && pki_now_ns() < until);
}

static pk_result_t welcome(struct pki_bootstrap *b, int joiners, uint64_t deadline_ns)
{
    unsigned char place[PKI_PLACE_BYTES];
    pk_result_t result = PK_OK;

    for (int r = 1; r < b->size && result == PK_OK; r++) {
        pki_put_u32(place, (uint32_t)r);
        pki_put_u32(place + 4, (uint32_t)b->size);
        if (r >= b->size - joiners)
            result = pki_bootstrap_send(b, r, PKI_FRAME_PLACE, place, sizeof place, deadline_ns);
        if (result == PK_OK)
            result = pki_bootstrap_send(b, r, PKI_FRAME_WELCOME, b->session, sizeof b->session, deadline_ns);
    }
    return result;
}

pk_result_t pki_bootstrap_gather_ranks(struct pki_bootstrap *b, struct pki_meeting *meeting, uint64_t deadline_ns)
{
    struct gathering g = { .b = b, .meeting = meeting };
    pk_result_t result = pki_auth_random(b->session, sizeof b->session);

    g.acceptor = pki_acceptor_open(&b->secret, PKI_HELLO_CONTROL, 0, meeting->listeners, meeting->listener_count);
    g.polls = calloc(PKI_ACCEPT_POLLS + (size_t)b->size, sizeof g.polls[0]);
    if (result == PK_OK && (g.acceptor == NULL || g.polls == NULL))
        result = pki_bootstrap_fail(b, PK_ERR_MEMORY, -1, "no memory to accept %d ranks", b->size);
    while (result == PK_OK && g.joined < b->size - 1)
        result = turn(&g, deadline_ns);
    if (result != PK_OK && g.acceptor != NULL && g.polls != NULL)
        turn_away(&g);
    pki_acceptor_close(g.acceptor);
    free(g.polls);
    /* A rank that is welcome may start its next communicator at once, at the same address: nobody must listen here by then. */
    pki_meeting_stop_listening(meeting);
    return result == PK_OK ? welcome(b, meeting->joiners, deadline_ns) : result;
}
