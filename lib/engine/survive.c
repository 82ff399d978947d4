/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreements among the ranks that live. The machine of coll/agree.h decides; here its messages come and go, also after a
 * failure, when nothing else reads what peers send, and here a rank is found dead: its connection has closed behind all that
 * it sent, it has left, or it has been waited for until a deadline.
 */
#include "engine/survive.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "tuning/tuning.h"

#define SENT_NS (PKI_NS_PER_S) /* how long the last messages may wait for room before this rank returns */

struct kept { /* a message of an agreement that has not begun here, or one without room to go */
    struct pki_list node;
    int rank;
    size_t bytes;
    unsigned char data[];
};

struct pki_survivor {
    struct pki_agree agree;
    uint64_t *set;             /* of the message that is being taken */
    struct pki_list later, unsent;
    struct pollfd *fds;        /* [size + PKI_IFACES_MAX]: those of peers on this host, then of transports */
    uint64_t *heard_ns;        /* [size]: when a rank has last spoken of an agreement */
    uint64_t waits_ns, said_ns; /* since when this rank waits for the same ranks; when it has last said that it is here */
    int left_out_by;           /* a rank for which this one counts as dead; -1: none */
    bool running;
    bool aborted;
};

/* ---- The survivor, made with the first message or call ---- */

static bool allocate(struct pki_survivor *s, int size)
{
    const size_t words = pki_agree_words(size);

    s->agree.dead = calloc(3 * words, sizeof *s->agree.dead);
    s->fds = calloc((size_t)size + PKI_IFACES_MAX, sizeof *s->fds);
    s->heard_ns = calloc((size_t)size, sizeof *s->heard_ns);
    if (s->agree.dead == NULL || s->fds == NULL || s->heard_ns == NULL)
        return false;
    s->agree.view = s->agree.dead + words;
    s->set = s->agree.view + words;
    return true;
}

static void release(struct pki_survivor *s)
{
    struct pki_list *lists[2] = { &s->later, &s->unsent }, *node;

    for (int i = 0; i < 2; i++)
        while ((node = pki_list_pop(lists[i])) != NULL)
            free(pki_container_of(node, struct kept, node));
    free(s->agree.dead);
    free(s->fds);
    free(s->heard_ns);
    free(s);
}

bool pki_survive_is_dead(const struct pki_engine *e, int rank)
{
    return e->survivor != NULL && pki_agree_has(e->survivor->agree.dead, rank);
}

void pki_survive_close(struct pki_engine *e)
{
    if (e->survivor != NULL)
        release(e->survivor);
    e->survivor = NULL;
}

static bool keep(struct pki_list *list, int rank, const unsigned char *bytes, size_t n)
{
    struct kept *kept = malloc(sizeof *kept + n);

    if (kept == NULL)
        return false;
    kept->rank = rank;
    kept->bytes = n;
    memcpy(kept->data, bytes, n);
    pki_list_push(list, &kept->node);
    return true;
}

/* ---- Out ---- */

static bool waits_for_room(const struct pki_survivor *s, int rank)
{
    for (const struct pki_list *n = s->unsent.next; n != &s->unsent; n = n->next)
        if (pki_container_of(n, struct kept, node)->rank == rank)
            return true;
    return false;
}

/* The machine's. Without memory for it, it is as if this rank had died here: the others go on without it. */
static void send_message(void *arg, int to, const struct pki_agree_msg *msg)
{
    struct pki_engine *e = arg;
    struct pki_survivor *s = e->survivor;
    unsigned char bytes[PKI_AGREE_WIRE_MAX];
    const size_t n = pki_agree_encode(msg, e->config.size, bytes);

    if (!waits_for_room(s, to) && pki_side_send_agree(&e->peers[to], bytes, n) != PK_IN_PROGRESS)
        return;
    if (!keep(&s->unsent, to, bytes, n))
        s->aborted = true;
}

/* In order, of each rank. True: none is left. */
static bool send_unsent(struct pki_engine *e)
{
    struct pki_survivor *s = e->survivor;
    struct pki_list left, *node;

    pki_list_init(&left);
    while ((node = pki_list_pop(&s->unsent)) != NULL) {
        struct kept *kept = pki_container_of(node, struct kept, node);

        if (pki_side_send_agree(&e->peers[kept->rank], kept->data, kept->bytes) == PK_IN_PROGRESS)
            pki_list_push(&left, node);
        else
            free(kept);
    }
    while ((node = pki_list_pop(&left)) != NULL)
        pki_list_push(&s->unsent, node);
    return pki_list_empty(&s->unsent);
}

/* ---- In ---- */

static void begin_to_wait(struct pki_survivor *s)
{
    s->waits_ns = s->said_ns = pki_now_ns();
}

static void take(struct pki_survivor *s, int from, const struct pki_agree_msg *msg)
{
    const enum pki_agree_state before = s->agree.state;

    s->heard_ns[from] = pki_now_ns();
    pki_agree_take(&s->agree, from, msg);
    if (s->agree.state != before)
        begin_to_wait(s);
}

static pk_result_t open_once(struct pki_engine *e)
{
    struct pki_where where = pki_engine_where(e, -1, NULL);
    struct pki_survivor *s;

    if (e->survivor != NULL)
        return PK_OK;
    if (e->config.size > PKI_AGREE_RANKS_MAX)
        return pki_fail(PK_ERR_UNSUPPORTED, &where, "ranks can agree in communicators of up to %d ranks", PKI_AGREE_RANKS_MAX);
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return pki_fail(PK_ERR_MEMORY, &where, "no memory for an agreement of %d ranks", e->config.size);
    pki_list_init(&s->later);
    pki_list_init(&s->unsent);
    if (!allocate(s, e->config.size)) {
        release(s);
        return pki_fail(PK_ERR_MEMORY, &where, "no memory for an agreement of %d ranks", e->config.size);
    }
    s->left_out_by = -1;
    s->agree.rank = e->config.rank;
    s->agree.size = e->config.size;
    s->agree.send = send_message;
    s->agree.arg = e;
    e->survivor = s;
    return PK_OK;
}

pk_result_t pki_survive_message(struct pki_engine *e, struct pki_peer *peer, const unsigned char *bytes, size_t n)
{
    struct pki_survivor *s;
    struct pki_agree_msg msg;
    pk_result_t result = open_once(e);

    if (result != PK_OK)
        return result;
    s = e->survivor;
    if (!pki_agree_decode(bytes, n, e->config.size, &msg, s->set))
        return PK_ERR_INTERNAL;
    if (pki_agree_has(s->set, e->config.rank) && !pki_agree_has(s->agree.dead, peer->rank))
        s->left_out_by = peer->rank;
    if (msg.number > s->agree.number)
        return keep(&s->later, peer->rank, bytes, n) ? PK_OK : pki_fail(PK_ERR_MEMORY, NULL, "no memory for a message");
    if (s->running && msg.number == s->agree.number)
        take(s, peer->rank, &msg);
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
        struct kept *kept = pki_container_of(node, struct kept, node);

        (void)pki_survive_message(e, &e->peers[kept->rank], kept->data, kept->bytes);
        free(kept);
    }
}

/* ---- Who is dead ---- */

static void lose(struct pki_survivor *s, int rank)
{
    if (pki_agree_has(s->agree.dead, rank))
        return;
    pki_agree_lost(&s->agree, rank);
    begin_to_wait(s);
}

static void find_lost(struct pki_engine *e)
{
    for (int i = 0; i < e->config.size; i++)
        if (i != e->config.rank && pki_side_is_lost(&e->peers[i]))
            lose(e->survivor, i);
}

/* This rank has waited for another until the deadline of an operation: it does not wait for it once more. */
static void lose_straggler(struct pki_engine *e)
{
    const pk_error_info_t *error = &e->failure.error;

    if (atomic_load(&e->failed) == PK_ERR_TIMEOUT && e->failure.accuser == 0 && error->peer >= 0 &&
        error->peer < e->config.size && error->peer != e->config.rank)
        lose(e->survivor, error->peer);
}

/* Ranks that are awaited and have said nothing for half the time. Those that wait themselves say so in time. */
static void check_deadline(struct pki_engine *e)
{
    struct pki_survivor *s = e->survivor;
    const uint64_t span = e->config.timeout_ms * PKI_NS_PER_MS, now = pki_now_ns();
    int awaited[3], n = pki_agree_awaits(&s->agree, awaited);

    if (span == 0)
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
        lose(s, awaited[i]);
    }
}

/* ---- Waiting ---- */

/* Locked. What peers on this host have sent shows at the sockets. */
static void look(struct pki_engine *e)
{
    const bool works = atomic_load(&e->failed) == PK_OK;

    (void)pki_engine_progress(e);
    for (int i = 0; i < e->nifaces && !works; i++)
        (void)e->ifaces[i]->transport->progress(e->ifaces[i]);
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
    for (int i = 0; i < e->nifaces; i++) {
        struct pki_iface *iface = e->ifaces[i];

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
    for (int i = 0; i < e->nifaces; i++)
        atomic_fetch_sub(&e->ifaces[i]->sleepers, 1);
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

/* Locked. */
static bool is_over(struct pki_engine *e, uint64_t *returned_ns)
{
    struct pki_survivor *s = e->survivor;
    const bool sent = send_unsent(e);

    s->aborted |= e->failure.aborted;
    if (s->aborted || s->left_out_by >= 0)
        return true;
    if (s->agree.state != PKI_AGREE_RETURNED)
        return false;
    if (*returned_ns == 0)
        *returned_ns = pki_now_ns();
    return sent || pki_now_ns() - *returned_ns > SENT_NS;
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
    uint64_t last = e->coll_number;

    if (e->failure.coll > 0 && e->failure.coll <= last)
        last = e->failure.coll - 1;
    for (const struct pki_list *n = e->tasks.next; n != &e->tasks; n = n->next) {
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
    begin_to_wait(s);
    pki_agree_begin(&s->agree);
    find_lost(e);
    lose_straggler(e);
    for (int i = 0; i < a->nexclude; i++)
        lose(s, a->exclude[i]);
    take_kept(e);
}

static pk_result_t outcome(struct pki_engine *e, struct pki_agreement *a)
{
    const struct pki_survivor *s = e->survivor;
    struct pki_where where = pki_engine_where(e, s->left_out_by, NULL);

    where.op = "agree";
    if (s->aborted)
        return pki_fail(PK_ERR_ABORTED, &where, "aborted by this rank");
    if (s->left_out_by >= 0)
        return pki_fail(PK_ERR_PEER, &where, "this rank counts as dead for rank %d and others, which go on without it",
                        s->left_out_by);
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
    result = open_once(e);
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
    if (open_once(e) == PK_OK) {
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
