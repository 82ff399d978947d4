/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/agree.h"

#include <string.h>

static bool is_within(const struct pki_agree *a, const uint64_t *set, const uint64_t *other)
{
    for (size_t i = 0; i < pki_agree_words(a->size); i++)
        if ((set[i] & ~other[i]) != 0)
            return false;
    return true;
}

static bool is_this_view(const struct pki_agree *a, const struct pki_agree_msg *msg)
{
    return memcmp(msg->set, a->view, pki_agree_words(a->size) * sizeof *a->view) == 0;
}

static void send_one(const struct pki_agree *a, int to, enum pki_agree_kind kind)
{
    const struct pki_agree_msg msg = { .kind = kind, .number = a->number, .value = a->value, .set = a->view };

    if (to >= 0)
        a->send(a->arg, to, &msg);
}

static void send_down(const struct pki_agree *a, enum pki_agree_kind kind)
{
    for (int c = 0; c < 2; c++)
        send_one(a, a->child[c], kind);
}

static unsigned all_children(const struct pki_agree *a)
{
    return (a->child[0] >= 0) | (unsigned)(a->child[1] >= 0) << 1;
}

/* The k-th rank that is not dead has the (2k+1)-th and the (2k+2)-th below it; the first is the root. */
static void find_neighbours(struct pki_agree *a)
{
    int own = 0, k = 0;

    for (int r = 0; r < a->rank; r++)
        own += !pki_agree_has(a->view, r);
    a->parent = a->child[0] = a->child[1] = -1;
    for (int r = 0; r < a->size; r++) {
        if (pki_agree_has(a->view, r))
            continue;
        if (own > 0 && k == (own - 1) / 2)
            a->parent = r;
        if (k == 2 * own + 1)
            a->child[0] = r;
        if (k == 2 * own + 2)
            a->child[1] = r;
        k++;
    }
}

static void return_value(struct pki_agree *a)
{
    a->state = PKI_AGREE_RETURNED;
    send_down(a, PKI_AGREE_RETURN);
}

static void all_hold(struct pki_agree *a)
{
    if (a->parent < 0)
        return_value(a);
    else
        send_one(a, a->parent, PKI_AGREE_HELD);
}

static void hold(struct pki_agree *a)
{
    a->state = PKI_AGREE_HOLDS;
    send_down(a, PKI_AGREE_VALUE);
    if (all_children(a) == 0)
        all_hold(a);
}

static void collected(struct pki_agree *a)
{
    if (a->parent < 0)
        hold(a);
    else
        send_one(a, a->parent, PKI_AGREE_UP);
}

static void enter(struct pki_agree *a)
{
    uint64_t any = 0;

    memcpy(a->view, a->dead, pki_agree_words(a->size) * sizeof *a->view);
    for (size_t i = 0; i < pki_agree_words(a->size); i++)
        any |= a->view[i];
    find_neighbours(a);
    a->up = a->held = 0;
    a->value = a->mine;
    if (any != 0) {
        send_one(a, a->parent, PKI_AGREE_VIEW);
        send_down(a, PKI_AGREE_VIEW);
    }
    if (all_children(a) == 0)
        collected(a);
}

static void flood(struct pki_agree *a)
{
    for (int r = 0; r < a->size; r++)
        if (r != a->rank && !pki_agree_has(a->dead, r))
            send_one(a, r, PKI_AGREE_FLOOD);
    a->state = PKI_AGREE_RETURNED;
}

/* It may live: what it does from now on is not taken any more. */
static void leave_out(struct pki_agree *a, int rank)
{
    const struct pki_agree_msg msg = { .kind = PKI_AGREE_VIEW, .number = a->number, .set = a->dead };

    a->send(a->arg, rank, &msg);
}

static void add_dead(struct pki_agree *a, const uint64_t *set)
{
    uint64_t old, fresh;

    for (size_t i = 0; i < pki_agree_words(a->size); i++) {
        old = a->dead[i];
        a->dead[i] |= set[i];
        for (fresh = a->dead[i] & ~old; fresh != 0; fresh &= fresh - 1)
            leave_out(a, (int)(i * 64) + __builtin_ctzll(fresh));
    }
}

/* More ranks are dead than this one knew. */
static void change_view(struct pki_agree *a)
{
    if (a->state == PKI_AGREE_COLLECTS)
        enter(a);
    else if (a->state == PKI_AGREE_HOLDS)
        flood(a);
}

void pki_agree_begin(struct pki_agree *a)
{
    a->state = PKI_AGREE_COLLECTS;
    enter(a);
}

void pki_agree_lost(struct pki_agree *a, int rank)
{
    if (pki_agree_has(a->dead, rank))
        return;
    pki_agree_add(a->dead, rank);
    leave_out(a, rank);
    change_view(a);
}

static void combine(struct pki_agree_value *value, const struct pki_agree_value *with)
{
    value->all &= with->all;
    value->calls |= with->calls;
    value->last = with->last < value->last ? with->last : value->last;
}

static void take_from_child(struct pki_agree *a, int child, const struct pki_agree_msg *msg)
{
    const unsigned bit = 1u << child, all = all_children(a);

    if (msg->kind == PKI_AGREE_UP && a->state == PKI_AGREE_COLLECTS && (a->up & bit) == 0) {
        combine(&a->value, &msg->value);
        a->up |= bit;
        if (a->up == all)
            collected(a);
    } else if (msg->kind == PKI_AGREE_HELD && a->state == PKI_AGREE_HOLDS && (a->held & bit) == 0) {
        a->held |= bit;
        if (a->held == all)
            all_hold(a);
    }
}

static void take_from_parent(struct pki_agree *a, const struct pki_agree_msg *msg)
{
    if (msg->kind == PKI_AGREE_VALUE && a->state == PKI_AGREE_COLLECTS) {
        a->value = msg->value;
        hold(a);
    } else if (msg->kind == PKI_AGREE_RETURN && a->state == PKI_AGREE_HOLDS) {
        return_value(a);
    }
}

static void take_flood(struct pki_agree *a, const struct pki_agree_msg *msg)
{
    a->value = msg->value;
    add_dead(a, msg->set);
    memcpy(a->view, msg->set, pki_agree_words(a->size) * sizeof *a->view);
    flood(a);
}

void pki_agree_take(struct pki_agree *a, int from, const struct pki_agree_msg *msg)
{
    if (a->state == PKI_AGREE_RETURNED || a->state == PKI_AGREE_LEFT_OUT || pki_agree_has(a->dead, from))
        return;
    if (pki_agree_has(msg->set, a->rank)) {
        a->state = PKI_AGREE_LEFT_OUT;
        return;
    }
    if (msg->kind == PKI_AGREE_FLOOD) {
        take_flood(a, msg);
        return;
    }
    if ((msg->kind == PKI_AGREE_VIEW || msg->kind == PKI_AGREE_UP) && !is_within(a, msg->set, a->dead)) {
        add_dead(a, msg->set);
        change_view(a);
    }
    if (!is_this_view(a, msg))
        return;
    if (from == a->parent)
        take_from_parent(a, msg);
    for (int c = 0; c < 2; c++)
        if (from == a->child[c])
            take_from_child(a, c, msg);
}

void pki_agree_remind(const struct pki_agree *a)
{
    send_one(a, a->parent, PKI_AGREE_VIEW);
    send_down(a, PKI_AGREE_VIEW);
}

int pki_agree_awaits(const struct pki_agree *a, int ranks[3])
{
    const unsigned all = all_children(a), have = a->state == PKI_AGREE_COLLECTS ? a->up : a->held;
    int n = 0;

    if (a->state == PKI_AGREE_RETURNED || a->state == PKI_AGREE_LEFT_OUT)
        return 0;
    for (int c = 0; c < 2; c++)
        if ((all & ~have & 1u << c) != 0)
            ranks[n++] = a->child[c];
    if (n == 0 && a->parent >= 0)
        ranks[n++] = a->parent;
    return n;
}
