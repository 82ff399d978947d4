/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreements among the ranks that live. The machine of coll/agree.h decides; here its messages come and go, also after a
 * failure, when nothing else reads what peers send, and here a rank is found dead: its connection has closed behind all that
 * it sent, it has left, or it has been waited for until a deadline.
 */
#include "engine/survivor.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tuning/tuning.h"

#define SENT_NS (PKI_NS_PER_S) /* how long this rank tries to tell ranks that count as dead so */

/* ---- In ---- */

static void note_left_out(struct pki_survivor *s, int by, uint64_t number)
{
    if (s->left_out_by >= 0 && s->left_out_in <= number)
        return;
    s->left_out_by = by;
    s->left_out_in = number;
}

/* Of a later agreement than this one: not yet. */
static bool is_left_out(const struct pki_survivor *s)
{
    return s->left_out_by >= 0 && s->left_out_in <= s->agree.number;
}

pk_result_t pki_survive_message(struct pki_engine *e, struct pki_peer *peer, const unsigned char *bytes, size_t n)
{
    struct pki_survivor *s;
    struct pki_agree_msg msg;
    pk_result_t result = pki_survivor_open(e);

    if (result != PK_OK)
        return result;
    s = e->survivor;
    if (!pki_agree_decode(bytes, n, e->config.size, &msg, s->set))
        return PK_ERR_INTERNAL;
    if (pki_agree_has(s->set, e->config.rank) && !pki_agree_has(s->agree.dead, peer->rank))
        note_left_out(s, peer->rank, msg.number);
    if (msg.number > s->agree.number)
        return pki_survivor_keep(&s->later, peer->rank, bytes, n) ? PK_OK
                                                                  : pki_fail(PK_ERR_MEMORY, NULL, "no memory for a message");
    if (s->running && msg.number == s->agree.number) {
        s->heard_ns[peer->rank] = pki_now_ns();
        pki_agree_take(&s->agree, peer->rank, &msg);
    }
    return PK_OK;
}

/* What has come before this agreement began here. */
static void take_kept(struct pki_engine *e)
{
    struct pki_survivor *s = e->survivor;
    struct pki_list all = s->later, *node;

    if (pki_list_empty(&s->later))
        return;
    all.next->prev = all.prev->next = &all;
    pki_list_init(&s->later);
    while ((node = pki_list_pop(&all)) != NULL) {
        struct pki_kept *kept = pki_container_of(node, struct pki_kept, node);

        (void)pki_survive_message(e, &e->peers[kept->rank], kept->data, kept->bytes);
        free(kept);
    }
}

/* ---- Who is dead ---- */

static void find_lost(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size; i++)
        if (i != e->config.rank && pki_side_is_lost(&e->peers[i]))
            pki_agree_lost(&e->survivor->agree, i);
}

/* This rank has waited for another until the deadline of an operation: it does not wait for it once more. Not so where nobody is
 * known to be late, as behind this rank's own work in a CUDA stream. */
static void lose_straggler(struct pki_engine *e)
{
    const pk_error_info_t *error = &e->failure.error;

    if (atomic_load(&e->failed) == PK_ERR_TIMEOUT && e->failure.accuser == 0 && error->peer >= 0 &&
        error->peer != e->config.rank && e->failure.straggler == error->peer + 1)
        pki_agree_lost(&e->survivor->agree, error->peer);
}

/* Does this rank wait for the same ranks as before? In another view it may wait for one that has never had to speak to it. */
static bool waits_on(struct pki_survivor *s, const int *awaited, int n, uint64_t now)
{
    if (n == s->nawaited && memcmp(awaited, s->awaited, (size_t)n * sizeof *awaited) == 0)
        return true;
    memcpy(s->awaited, awaited, (size_t)n * sizeof *awaited);
    s->nawaited = n;
    s->waits_ns = s->said_ns = now;
    return false;
}

/* Ranks that are awaited and have said nothing for half the time. Those that wait themselves say so in time. */
static void check_deadline(struct pki_engine *e)
{
    struct pki_survivor *s = e->survivor;
    const uint64_t span = e->config.timeout_ms * PKI_NS_PER_MS, now = pki_now_ns();
    int awaited[3], n = pki_agree_awaits(&s->agree, awaited);

    if (!waits_on(s, awaited, n, now) || span == 0)
        return;
    if (now - s->said_ns > span / 4) {
        s->said_ns = now;
        pki_agree_remind(&s->agree);
    }
    for (int i = 0; i < n && now - s->waits_ns > span; i++) {
        struct pki_where where = pki_engine_where(e, awaited[i], NULL);

        if (now - s->heard_ns[awaited[i]] < span / 2)
            continue;
        where.op = "agree";
        pki_log(PKI_LOG_WARN, &where, "counts as dead: it did not call within %llu ms", (unsigned long long)e->config.timeout_ms);
        pki_agree_lost(&s->agree, awaited[i]);
    }
}

/* ---- Waiting ---- */

/* Locked. What peers on this host have sent shows at the sockets. */
static void look(struct pki_engine *e)
{
    const bool works = atomic_load(&e->failed) == PK_OK;

    (void)pki_engine_progress(e);
    for (int i = 0; i < e->ifaces.n && !works; i++)
        (void)e->ifaces.at[i]->transport->progress(e->ifaces.at[i]);
    for (int i = 0; i < e->config.size; i++) {
        if (i == e->config.rank)
            continue;
        if (e->peers[i].side_fd >= 0 && e->survivor->fds[i].revents != 0)
            pki_side_drain(e, &e->peers[i]);
        else if (e->peers[i].side_fd < 0 && !works)
            pki_side_take_messages(e, &e->peers[i]); /* of a failed communicator nothing else takes them */
    }
}

/* Locked: where to wait. Returns how many descriptors there are. *moved: there is something to look at before. */
static nfds_t find_fds(struct pki_engine *e, bool *moved)
{
    struct pollfd *fds = e->survivor->fds;
    nfds_t n = (nfds_t)e->config.size;

    for (int i = 0; i < e->config.size; i++)
        fds[i] = (struct pollfd){ .fd = e->peers[i].gone ? -1 : e->peers[i].side_fd, .events = POLLIN };
    for (int i = 0; i < e->ifaces.n; i++) {
        struct pki_iface *iface = e->ifaces.at[i];

        atomic_fetch_add(&iface->sleepers, 1);
        fds[n] = (struct pollfd){ .fd = -1, .events = POLLIN };
        if (iface->transport->between_hosts) {
            *moved |= iface->transport->progress(iface);
            fds[n].fd = iface->fd;
        }
        n++;
    }
    return n;
}

/* Unlocked. */
static void rest(struct pki_engine *e, nfds_t n, int ms)
{
    (void)poll(e->survivor->fds, n, ms);
    for (int i = 0; i < e->ifaces.n; i++)
        atomic_fetch_sub(&e->ifaces.at[i]->sleepers, 1);
}

static void look_at_all(struct pki_engine *e, int ms)
{
    bool moved = false;
    nfds_t n;

    pki_engine_lock(e);
    n = find_fds(e, &moved);
    pki_engine_unlock(e);
    rest(e, n, moved ? 0 : ms);
    pki_engine_lock(e);
    look(e);
    pki_engine_unlock(e);
}

/* Locked: the answer is known for so long. Living ranks that have not been sent it would agree on another one among
 * themselves: this rank stays until they have. Who takes nothing until the deadline counts as dead for the agreements to come. */
static bool may_leave(struct pki_engine *e, uint64_t known_ns)
{
    struct pki_survivor *s = e->survivor;
    const bool late = e->config.timeout_ms > 0 && known_ns > e->config.timeout_ms * PKI_NS_PER_MS;

    for (const struct pki_list *n = s->unsent.next; n != &s->unsent; n = n->next) {
        const int rank = pki_container_of(n, struct pki_kept, node)->rank;
        struct pki_where where = pki_engine_where(e, rank, NULL);

        if (pki_agree_has(s->agree.dead, rank))
            continue;
        if (!late)
            return false;
        where.op = "agree";
        pki_log(PKI_LOG_WARN, &where, "counts as dead: it has taken no message for %llu ms",
                (unsigned long long)e->config.timeout_ms);
        pki_agree_lost(&s->agree, rank);
    }
    return pki_list_empty(&s->unsent) || known_ns > SENT_NS;
}

/* Locked. */
static bool is_over(struct pki_engine *e, uint64_t *returned_ns)
{
    struct pki_survivor *s = e->survivor;

    pki_survivor_send_unsent(e);
    if (e->failure.aborted && s->ended == PK_OK)
        s->ended = PK_ERR_ABORTED;
    if (s->ended != PK_OK || is_left_out(s))
        return true;
    if (s->agree.state != PKI_AGREE_RETURNED)
        return false;
    if (*returned_ns == 0)
        *returned_ns = pki_now_ns();
    return may_leave(e, pki_now_ns() - *returned_ns);
}

static void await(struct pki_engine *e)
{
    uint64_t returned_ns = 0;
    bool over = false;

    for (int ms = 0; !over; ms = pki_tuning.wait.survive_ms) {
        look_at_all(e, ms);
        pki_engine_lock(e);
        find_lost(e);
        check_deadline(e);
        over = is_over(e, &returned_ns);
        pki_engine_unlock(e);
    }
}

/* ---- The calls ---- */

/* Locked. Collectives up to this one have ended here with PK_OK. */
static uint64_t last_complete(const struct pki_engine *e)
{
    uint64_t last = e->colls.number;

    if (e->failure.coll > 0 && e->failure.coll <= last)
        last = e->failure.coll - 1;
    for (const struct pki_list *n = e->tasks.all.next; n != &e->tasks.all; n = n->next) {
        const struct pki_task *task = pki_container_of(n, struct pki_task, node);

        if (task->request.what == PKI_DO_COLL && task->number > 0 && task->number <= last)
            last = task->number - 1;
    }
    return last;
}

static void begin(struct pki_engine *e, const struct pki_agreement *a)
{
    struct pki_survivor *s = e->survivor;

    s->agree.number++;
    s->agree.mine = (struct pki_agree_value){ .all = a->all, .last = last_complete(e), .calls = a->calls };
    memcpy(s->agree.mine.id, a->id, sizeof a->id);
    s->running = true;
    s->nawaited = -1;
    pki_agree_begin(&s->agree);
    find_lost(e);
    lose_straggler(e);
    for (int i = 0; i < a->nexclude; i++)
        pki_agree_lost(&s->agree, a->exclude[i]);
    take_kept(e);
}

static pk_result_t left_out(const struct pki_survivor *s, const struct pki_where *where)
{
    char why[128] = "", reason[64];

    if (s->refusal != 0)
        snprintf(why, sizeof why, "; messages to rank %d were not sent: %s", s->refused_by,
                 strerror_r(s->refusal, reason, sizeof reason));
    return pki_fail(PK_ERR_PEER, where, "this rank counts as dead for rank %d and others, which go on without it%s",
                    s->left_out_by, why);
}

static pk_result_t outcome(struct pki_engine *e, struct pki_agreement *a)
{
    const struct pki_survivor *s = e->survivor;
    struct pki_where where = pki_engine_where(e, s->left_out_by, NULL);

    where.op = "agree";
    if (s->ended != PK_OK)
        return pki_fail(s->ended, &where,
                        s->ended == PK_ERR_MEMORY ? "no memory for a message to the others" : "aborted by this rank");
    if (is_left_out(s))
        return left_out(s, &where);
    a->all = s->agree.value.all;
    a->last = s->agree.value.last;
    a->calls = s->agree.value.calls;
    a->dead = s->agree.view;
    memcpy(a->id, s->agree.value.id, sizeof a->id);
    return PK_OK;
}

pk_result_t pki_engine_agree(struct pki_engine *e, struct pki_agreement *a)
{
    pk_result_t result;

    pki_engine_lock(e);
    result = pki_survivor_open(e);
    pki_engine_unlock(e);
    if (result != PK_OK)
        return result;
    look_at_all(e, 0);
    pki_engine_lock(e);
    begin(e, a);
    pki_engine_unlock(e);
    await(e);
    pki_engine_lock(e);
    e->survivor->running = false;
    result = outcome(e, a);
    pki_engine_unlock(e);
    return result;
}

uint64_t pki_engine_agreements(struct pki_engine *e)
{
    uint64_t number;

    pki_engine_lock(e);
    number = e->survivor != NULL ? e->survivor->agree.number : 0;
    pki_engine_unlock(e);
    return number;
}

static bool is_among(const int *ranks, int n, int rank)
{
    for (int i = 0; i < n; i++)
        if (ranks[i] == rank)
            return true;
    return false;
}

bool pki_engine_is_first(struct pki_engine *e, const int *exclude, int nexclude)
{
    bool first = true;

    pki_engine_lock(e);
    if (pki_survivor_open(e) == PK_OK) {
        pki_engine_unlock(e);
        look_at_all(e, 0);
        pki_engine_lock(e);
    }
    for (int i = 0; i < e->config.rank && first; i++)
        first = pki_side_is_lost(&e->peers[i]) || is_among(exclude, nexclude, i) ||
                (e->survivor != NULL && pki_agree_has(e->survivor->agree.dead, i));
    pki_engine_unlock(e);
    return first;
}

bool pki_engine_lost_more(struct pki_engine *e, const uint64_t *dead, int ms)
{
    bool lost = false;

    look_at_all(e, ms);
    pki_engine_lock(e);
    for (int i = 0; i < e->config.size; i++)
        lost = lost || (i != e->config.rank && !pki_agree_has(dead, i) && pki_side_is_lost(&e->peers[i]));
    lost = lost || e->survivor->left_out_by >= 0 || e->failure.aborted;
    pki_engine_unlock(e);
    return lost;
}
