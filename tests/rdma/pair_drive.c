/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct side sides[2];
unsigned failures;
bool notes_lost;

void check(bool good, const char *what)
{
    failures += !good;
    printf("%s %s\n", good ? "PASS" : "FAIL", what);
    fflush(stdout);
}

void must(pk_result_t result, const char *what)
{
    if (result == PK_OK)
        return;
    printf("FAIL %s: %d %s\n", what, (int)result, pki_error_get()->text);
    exit(1);
}

struct pki_rdma_ep *rdma_ep(int side)
{
    return pki_container_of(sides[side].ep, struct pki_rdma_ep, base);
}

void open_pair(uint32_t piece_shift)
{
    struct pki_iface_config config = { .size = 2 };

    for (int s = 0; s < 2; s++) {
        config.rank = s;
        sides[s].iface = calloc(1, T->iface_bytes);
        sides[s].ep = calloc(1, T->ep_bytes);
        sides[s].iface->transport = T;
        pki_list_init(&sides[s].iface->events);
        must(T->open(&config, sides[s].iface), "open");
        pki_rdma_iface_of(sides[s].iface)->piece_shift = piece_shift;
        sides[s].ep->iface = sides[s].iface;
        sides[s].ep->rank = s;
        sides[s].ep->peer = 1 - s;
        must(T->ep_init(sides[s].ep, &sides[s].blob), "ep_init");
        sides[s].ep->notes->carried = true;
    }
    must(T->ep_connect(sides[0].ep, &sides[1].blob), "ep_connect");
    must(T->ep_connect(sides[1].ep, &sides[0].blob), "ep_connect");
}

void close_pair(void)
{
    for (int s = 0; s < 2; s++) {
        T->ep_close(sides[s].ep);
        free(sides[s].ep);
    }
    for (int s = 0; s < 2; s++) {
        T->close(sides[s].iface);
        free(sides[s].iface);
    }
}

/* What carries notes between the two: straight from one to the other. */
static void carry(struct pki_note *out, struct pki_note *in)
{
    if (in->bytes > 0 && !notes_lost)
        return;
    if (out->bytes > 0 && !notes_lost)
        *in = *out;
    out->bytes = 0;
}

void progress(void)
{
    for (int s = 0; s < 2; s++) {
        sides[s].ep->notes->due = true;
        (void)T->progress(sides[s].iface);
        carry(&sides[s].ep->notes->out, &sides[1 - s].ep->notes->in);
    }
}

uint8_t byte_at(size_t i, unsigned seed)
{
    return (uint8_t)((i * 2654435761u + seed) >> 7);
}

void fill(uint8_t *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = byte_at(i, seed);
}

bool holds(const uint8_t *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != byte_at(i, seed))
            return false;
    return true;
}

bool next_message(int side, struct pki_msg *msg, const void **payload)
{
    uint64_t until = pki_now_ns() + WAIT_NS;

    while (!T->peek(sides[side].ep, msg, payload)) {
        progress();
        if (sides[side].ep->state == PKI_EP_DEAD || pki_now_ns() > until)
            return false;
    }
    return true;
}

bool next_news(struct pki_msg *msg)
{
    const void *payload;

    (void)T->peek(sides[1].ep, msg, &payload); /* what the other end's transport says is read there */
    return events_come(sides[1].iface, msg);
}

/* ---- Transfers ---- */

bool put_next(struct transfer *t)
{
    struct pki_put *put = &t->puts[t->n];
    pk_result_t result;

    if (t->issued == t->bytes)
        return true;
    *put = (struct pki_put){ .ep = sides[0].ep,
                             .src = t->source + t->issued,
                             .remote = t->grant.offset + t->issued,
                             .bytes = t->bytes - t->issued < t->piece ? t->bytes - t->issued : t->piece,
                             .about = { .kind = PKI_MSG_FIN, .op = t->grant.op, .bytes = t->bytes } };
    pki_list_init(&put->event.node);
    result = T->put(put);
    if (result == PK_OK) {
        t->n++;
        t->issued += put->bytes;
    }
    return result == PK_OK || result == PK_IN_PROGRESS;
}

/* They end in order. */
static bool take_ended(struct transfer *t)
{
    struct pki_put *put;
    bool right = true;

    while ((put = events_put(sides[0].iface)) != NULL) {
        right = right && put == &t->puts[t->ended++] && put->result == PK_OK;
        t->done += put->bytes;
    }
    return right;
}

bool is_granted(struct transfer *t)
{
    struct pki_msg msg;
    const void *payload;
    bool right;

    t->recv = events_recv(sides[1].ep, &t->grant);
    while (T->recv_post(&t->recv, &t->grant) == PK_IN_PROGRESS)
        progress();
    right = next_message(0, &msg, &payload) && memcmp(&msg, &t->grant, sizeof msg) == 0;
    if (right)
        T->pop(sides[0].ep);
    return right;
}

bool is_told(const struct transfer *t)
{
    uint64_t until = pki_now_ns() + WAIT_NS;
    struct pki_msg msg = { .offset = 0 };
    bool right = true;

    for (size_t reported = 0; right && reported < t->bytes; reported = msg.offset) {
        while (!next_news(&msg) && sides[1].ep->state != PKI_EP_DEAD && pki_now_ns() < until)
            progress();
        right = msg.kind == PKI_MSG_FIN && msg.op == t->grant.op && msg.bytes == t->bytes && msg.offset > reported &&
                msg.offset <= t->bytes;
    }
    return right;
}

bool transfer(size_t bytes, size_t offset, size_t piece, unsigned op, void (*disturb)(void))
{
    uint8_t *source = malloc(bytes + offset + 64), *target = calloc(1, bytes + offset + 128);
    struct transfer t = { .source = source + offset, .bytes = bytes, .piece = piece };
    uint64_t until = pki_now_ns() + WAIT_NS;
    bool right;

    t.grant = (struct pki_msg){ .kind = PKI_MSG_CTS, .op = op, .bytes = bytes, .offset = (uintptr_t)target + 64 + offset };
    fill(t.source, bytes, op);
    right = is_granted(&t);
    while (right && t.done < bytes && pki_now_ns() < until) {
        right = put_next(&t);
        if (disturb != NULL && t.issued >= bytes / 2) {
            disturb();
            disturb = NULL;
        }
        progress();
        right = take_ended(&t) && right;
    }
    right = right && t.done == bytes && is_told(&t) && holds(target + 64 + offset, bytes, op);
    if (!right)
        printf("     transfer %u: %zu of %zu bytes put, %zu ended; states %d and %d; %u and %u messages have come, "
               "%u sent\n",
               op, t.issued, bytes, t.done, (int)rdma_ep(0)->recover.state, (int)rdma_ep(1)->recover.state,
               rdma_ep(0)->ctrl.arrived, rdma_ep(1)->ctrl.arrived, rdma_ep(0)->ctrl.sent);
    for (size_t i = 0; i < 64; i++)
        right = right && target[offset + i] == 0 && target[offset + 64 + bytes + i] == 0;
    free(source);
    free(target);
    return right;
}
