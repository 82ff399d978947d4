/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that do not end: who is late, a line about it, and the deadline.
 *
 * A rank often waits for another that itself waits for the one that is late. So whoever has waited for a while asks everybody how
 * far they are and for whom they wait. Those who wait too answer; those who do not have stopped, or do something else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/progress/progress.h"

#define WARN_AFTER_NS (5 * PKI_NS_PER_S)
/* ranks that wait look at their control channels far more often, if the machine lets them */
#define ANSWER_NS (500 * PKI_NS_PER_MS)
#define SOON_NS (200 * PKI_NS_PER_MS)

static bool waits_for(const struct pki_task *task, const struct pki_peer *peer)
{
    const struct pki_list *lists[2] = { &peer->sends, &peer->recvs };

    for (int k = 0; k < 2; k++)
        for (const struct pki_list *n = lists[k]->next; n != lists[k]; n = n->next)
            if (pki_container_of(n, struct pki_xfer, match)->user.task == task)
                return true;
    return task->run.executor != NULL && task->run.executor->waits_for(task, peer->rank);
}

/* Before a question has been asked: by what the peer has said of the operation so far. */
static bool is_straggler(const struct pki_task *task, const struct pki_peer *peer)
{
    return task->plan != NULL && peer->heard.coll < task->number;
}

/* From a rank that is waited for to the one that causes the wait: -1 when all on the way do their part, as far as they know. */
static int follow(const struct pki_engine *e, const struct pki_task *task, int rank)
{
    for (int steps = 0; steps < e->config.size; steps++) {
        const struct pki_peer *peer = &e->peers[rank];

        if (rank == e->config.rank)
            return -1;
        if (peer->heard.answered < task->inquiry.asked)
            return rank;
        if (peer->heard.waits < 0)
            return task->plan != NULL && peer->heard.number < task->number ? rank : -1;
        rank = peer->heard.waits;
    }
    return -1;
}

static void add_name(char *text, size_t len, int rank)
{
    size_t used = strlen(text);
    char name[16];

    snprintf(name, sizeof name, "%d", rank);
    for (const char *at = text; (at = strstr(at, name)) != NULL; at++)
        if ((at == text || at[-1] == ' ') && (at[strlen(name)] == '\0' || at[strlen(name)] == ','))
            return; /* it is there */
    if (used + 16 < len)
        (void)snprintf(text + used, len - used, "%s%d", used > 0 ? ", " : "", rank);
}

/* Ranks to which a failure of the task is attributed. If nobody can be told from the others, those that it waits for; then it is
 * false. */
static bool name_missing(const struct pki_engine *e, const struct pki_task *task, char *text, size_t len)
{
    text[0] = '\0';
    for (int i = 0; i < e->config.size; i++) {
        int rank = -1;

        if (!waits_for(task, &e->peers[i]))
            continue;
        if (task->inquiry.asked != 0)
            rank = follow(e, task, i);
        else if (is_straggler(task, &e->peers[i]))
            rank = i;
        if (rank >= 0)
            add_name(text, len, rank);
    }
    if (text[0] != '\0' || pki_task_is_switched(task)) /* all may be there, and the aggregator is not */
        return text[0] != '\0';
    for (int i = 0; i < e->config.size; i++)
        if (waits_for(task, &e->peers[i]))
            add_name(text, len, i);
    return false;
}

/* Of a task that waits for no rank: what else. */
static void name_else(const struct pki_task *task, char *text, size_t len)
{
    if (!task->started)
        snprintf(text, len, "(none: this rank's stream has not reached the operation)");
    else if (pki_task_is_switched(task) && pki_switched_waits(task))
        snprintf(text, len, "(none: packets to or from %.120s)", pki_switched_name(task->engine));
    else
        snprintf(text, len,
                 task->kind == PKI_MEM_DEVICE ? "(none: what this rank has given to its gpu has not ended)"
                                              : "(none: this rank has work left)");
}

static int first_missing(const char *text)
{
    return text[0] == '\0' ? -1 : atoi(text);
}

int pki_engine_missing(struct pki_engine *e)
{
    char text[160];
    const struct pki_task *task;

    if (pki_list_empty(&e->tasks.all))
        return -1;
    task = pki_engine_first_task(e);
    (void)name_missing(e, task->switched.rest != NULL ? task->switched.rest : task, text, sizeof text);
    return first_missing(text);
}

static void ask(struct pki_engine *e, struct pki_task *task, uint64_t now)
{
    struct pki_msg msg = { .kind = PKI_MSG_WHO, .op = task->number, .offset = ++e->rounds.questions };

    if (task->plan != NULL) {
        msg.flags = PKI_MSG_FLAG_COLL;
        msg.sig = task->sig;
    }
    task->inquiry.asking = e->rounds.questions;
    task->inquiry.asking_ns = now;
    for (int i = 0; i < e->config.size && atomic_load(&e->failed) == PK_OK; i++)
        if (e->peers[i].ctrl != NULL && !e->peers[i].gone)
            (void)pki_ctrl_send(&e->peers[i], &msg, NULL, e); /* a full control channel is that of a rank that is late */
}

void pki_stragglers_message(struct pki_engine *e, struct pki_peer *peer, const struct pki_msg *msg)
{
    struct pki_msg here = { .kind = PKI_MSG_HERE, .op = e->colls.number, .offset = msg->offset };

    if (msg->kind == PKI_MSG_WHO) {
        /* Ranks that disagree on the root may all wait for one another, and nothing else is ever sent. */
        if ((msg->flags & PKI_MSG_FLAG_COLL) != 0 && pki_task_contradicts(e, peer->rank, msg->op, msg->sig))
            return;
        here.bytes = (uint64_t)((int64_t)pki_engine_missing(e) + 1);
        (void)pki_ctrl_send(peer, &here, NULL, e);
    } else if (msg->offset <= e->rounds.questions) {
        peer->heard.answered = msg->offset;
        peer->heard.number = msg->op;
        peer->heard.waits = msg->bytes <= (uint64_t)e->config.size ? (int)msg->bytes - 1 : -1;
    }
}

/* Soon in a collective, for the ranks may disagree about it; before the line in the log; and before the deadline, when others may
 * have come. */
static void ask_in_time(struct pki_engine *e, struct pki_task *task, uint64_t now, uint64_t warn_ns, uint64_t answer_ns)
{
    unsigned due = now + answer_ns >= task->deadline_ns ? 3 : now + answer_ns >= warn_ns ? 2 : 0;

    if (due == 0 && task->plan != NULL && now >= task->begun_ns + (answer_ns < SOON_NS ? answer_ns : SOON_NS))
        due = 1;
    if (!task->started || due <= task->inquiry.questions)
        return;
    task->inquiry.questions = due;
    ask(e, task, now);
}

static void warn(struct pki_engine *e, struct pki_task *task, uint64_t waited_ms)
{
    struct pki_where where;
    char missing[160];

    (void)name_missing(e, task, missing, sizeof missing);
    where = pki_engine_where(e, first_missing(missing), task);
    if (missing[0] == '\0')
        name_else(task, missing, sizeof missing);
    task->inquiry.warned = true;
    pki_log(PKI_LOG_WARN, &where, "has waited %llu ms for rank %s", (unsigned long long)waited_ms, missing);
}

static void time_out(struct pki_engine *e, const struct pki_task *task, uint64_t waited_ms)
{
    struct pki_where where;
    char missing[160];

    e->failure.straggler = name_missing(e, task, missing, sizeof missing) ? first_missing(missing) + 1 : 0;
    where = pki_engine_where(e, first_missing(missing), task);
    if (missing[0] == '\0')
        name_else(task, missing, sizeof missing);
    (void)pki_fail(PK_ERR_TIMEOUT, &where, "timed out after %llu ms; waiting for rank %s", (unsigned long long)waited_ms,
                   missing);
    pki_engine_poison(e, PK_ERR_TIMEOUT, true);
}

/* Nobody is late, and the sums do not come. */
static bool goes_on_otherwise(const struct pki_engine *e, struct pki_task *task, uint64_t now, uint64_t span)
{
    char missing[160];

    if (!pki_task_is_switched(task) || task->inquiry.asked != task->inquiry.asking)
        return false;
    (void)name_missing(e, task, missing, sizeof missing);
    return missing[0] == '\0' && pki_switched_gives_up(task, now, span);
}

void pki_stragglers_check(struct pki_engine *e, uint64_t now)
{
    for (struct pki_list *node = e->tasks.all.next; node != &e->tasks.all && atomic_load(&e->failed) == PK_OK;
         node = node->next) {
        struct pki_task *task = pki_container_of(node, struct pki_task, node);
        const uint64_t span = task->deadline_ns - task->begun_ns;
        const uint64_t answer_ns = span / 4 < ANSWER_NS ? span / 4 : ANSWER_NS;
        const uint64_t warn_ns = task->begun_ns + (span / 2 < WARN_AFTER_NS ? span / 2 : WARN_AFTER_NS);
        const uint64_t waited_ms = (now - task->begun_ns) / PKI_NS_PER_MS;

        if (now - task->inquiry.asking_ns >= answer_ns / 2)
            task->inquiry.asked = task->inquiry.asking;
        if (task->switched.rest != NULL) /* which is in the list, with the same deadline */
            continue;
        ask_in_time(e, task, now, warn_ns, answer_ns);
        if (now >= warn_ns && goes_on_otherwise(e, task, now, span))
            continue;
        if (now >= task->deadline_ns)
            time_out(e, task, waited_ms);
        else if (now >= warn_ns && !task->inquiry.warned && task->inquiry.asked == task->inquiry.asking)
            warn(e, task, waited_ms);
    }
}
