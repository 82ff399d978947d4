/* SPDX-License-Identifier: Apache-2.0 */
#include "rule.h"

#include "engine/stream/rule.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

struct out {
    struct step *steps;
    int count;
    struct channels *channels;
};

static struct step *add(struct out *out, enum step_kind kind, const struct part *p)
{
    struct step *step = &out->steps[out->count++];

    *step = (struct step){ .kind = kind };
    if (p != NULL)
        step->op = p->op;
    return step;
}

static bool take_channel(struct channels *channels)
{
    if (channels->held)
        return true;
    if (channels->left == 0)
        return false;
    channels->left--;
    channels->held = true;
    return true;
}

static void copy(struct out *out, const struct part *p)
{
    if (!p->seen)
        add(out, STEP_WAIT_READY, p);
    add(out, STEP_COPY, p);
    add(out, STEP_WRITE_DONE, p);
}

/* The parts that the peer alone moves, on this side. */
static void words(struct out *out, const struct part *parts, int n, enum step_kind kind)
{
    for (int i = 0; i < n; i++)
        if (!parts[i].moves)
            add(out, kind, &parts[i]);
}

/* Peers that are ready: nothing keeps these copies but the stream itself. */
static void copy_seen(struct out *out, const struct part *parts, int n, bool *placed)
{
    for (int i = 0; i < n; i++)
        if (parts[i].moves && parts[i].seen && !placed[i] && take_channel(out->channels)) {
            copy(out, &parts[i]);
            placed[i] = true;
        }
}

static bool may_follow(const struct part *first, const struct part *p, unsigned breaks)
{
    if ((breaks & BREAK_SERIAL) || (first->together && p->together))
        return true;
    if (breaks & BREAK_SAME_PEER)
        return p->peer == first->peer;
    return (breaks & BREAK_SAME_PAIR) && p->peer == first->peer && p->comm == first->comm && p->sends == first->sends;
}

static bool is_left(const struct part *p, bool placed, unsigned breaks)
{
    return p->moves && !placed && !((breaks & BREAK_UNSEEN_FIRST) && p->seen);
}

/* A single copy may wait in the stream for its peer. Several would stand behind one another's waits, and their peers may be behind one
 * another too, in another order: not even copies with one peer in one direction may, whose other ends lie in different streams. Those of a
 * collective may: no rank comes to it later because a part of it elsewhere has not ended. */
static void move_rest(struct out *out, const struct part *parts, int n, bool kernels, unsigned breaks, bool *placed)
{
    const struct part *first = NULL;
    struct step *together = NULL;
    bool in_a_row = true;
    int several = 0;

    for (int i = 0; i < n; i++)
        if (is_left(&parts[i], placed[i], breaks)) {
            first = several++ == 0 ? &parts[i] : first;
            in_a_row = in_a_row && (several == 1 || may_follow(first, &parts[i], breaks));
        }
    for (int i = 0; i < n; i++) {
        if (!is_left(&parts[i], placed[i], breaks))
            continue;
        placed[i] = true;
        if (in_a_row && take_channel(out->channels)) {
            copy(out, &parts[i]);
            continue;
        }
        out->channels->left -= !kernels;
        if (together == NULL)
            together = add(out, kernels ? STEP_KERNEL : STEP_SIDE, NULL);
        together->ops[together->count++] = parts[i].op;
    }
}

int rule_wants(const struct part *parts, int n)
{
    int waiting = 0;

    for (int i = 0; i < n; i++)
        waiting += parts[i].moves && !parts[i].seen && !parts[i].together;
    return waiting > 1 ? waiting : 0;
}

static bool is_beside(const struct step *steps, int count, uint8_t op)
{
    for (int s = 0; s < count; s++)
        for (int k = 0; k < steps[s].count; k++)
            if (steps[s].ops[k] == op)
                return true;
    return false;
}

/* The library's function decides the same of messages: a call has those, or the parts of one collective. */
static void compare_with_library(const struct part *parts, int n, struct channels before, const struct out *out)
{
    struct pki_rule_channels channels = { .left = before.left, .held = before.held };
    struct pki_rule_part moved[PARTS_MAX];
    enum pki_rule_place places[PARTS_MAX];
    uint8_t ops[PARTS_MAX];
    int m = 0;

    if (n > 0 && parts[0].together)
        return;
    for (int i = 0; i < n; i++)
        if (parts[i].moves) {
            ops[m] = parts[i].op;
            moved[m++] = (struct pki_rule_part){ .seen = parts[i].seen };
        }
    pki_rule(moved, m, true, &channels, places);
    for (int i = 0; i < m; i++)
        if ((places[i] == PKI_RULE_BESIDE) != is_beside(out->steps, out->count, ops[i])) {
            printf("FAILED: the library puts transfer %u elsewhere than the model's rule\n", ops[i]);
            exit(1);
        }
}

int rule_steps(const struct part *parts, int n, bool kernels, unsigned breaks, struct channels *channels,
               struct step steps[STEPS_MAX])
{
    struct out out = { .steps = steps, .channels = channels };
    const struct channels before = *channels;
    bool placed[PARTS_MAX] = { false };

    if (!(breaks & (BREAK_READY_LATE | BREAK_LEVELS)))
        words(&out, parts, n, STEP_WRITE_READY);
    if (breaks & BREAK_DONE_EARLY)
        words(&out, parts, n, STEP_WAIT_DONE);
    if (!(breaks & BREAK_UNSEEN_FIRST))
        copy_seen(&out, parts, n, placed);
    move_rest(&out, parts, n, kernels, breaks, placed);
    if (breaks & BREAK_UNSEEN_FIRST) {
        copy_seen(&out, parts, n, placed);
        move_rest(&out, parts, n, kernels, 0, placed);
    }
    if (breaks & BREAK_READY_LATE)
        words(&out, parts, n, STEP_WRITE_READY);
    if (!(breaks & BREAK_DONE_EARLY))
        words(&out, parts, n, STEP_WAIT_DONE);
    if (breaks == 0)
        compare_with_library(parts, n, before, &out);
    return out.count;
}
