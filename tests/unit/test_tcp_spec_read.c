/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: payload that is read with a head not yet known, and acknowledgements on the connection that brought a chunk. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

#include "tcp_pair.h"

#define TIMEOUT_NS (20 * PKI_NS_PER_S)
#define GUARD 64 /* bytes behind each buffer that nobody may write */
#define BYTES 100000u

/* ---- What send does to an acknowledgement: the kernel takes so many bytes of it, or none ---- */

static ssize_t take_of_data_ack = -1; /* -1: as ever; 0: EAGAIN */
static unsigned cames, ctrl_acks;

ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    static ssize_t (*real)(int, const void *, size_t, int);
    const unsigned char *head = bytes;
    uint64_t frames;
    bool is_data_ack = count == PKI_TCP_DATA_HEAD_BYTES && pki_tcp_get_data_ack(head, &frames);

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "send");
    cames += is_data_ack;
    ctrl_acks += count == PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES && head[3] == PKI_TCP_ACK;
    if (!is_data_ack || take_of_data_ack < 0)
        return real(fd, bytes, count, flags);
    if (take_of_data_ack > 0)
        return real(fd, bytes, (size_t)take_of_data_ack, flags);
    errno = EAGAIN;
    return -1;
}

static void begin_with(struct tcp_pair *pair, const char *sockets, const char *chunk)
{
    tcp_params(sockets, "4", chunk);
    tcp_pair_new(pair);
    for (int rank = 0; rank < 2; rank++)
        tcp_pair_go(pair, rank, false);
}

static void begin(struct tcp_pair *pair)
{
    begin_with(pair, "1/0", "524288");
}

static unsigned char byte_of(uint64_t op, size_t at)
{
    return (unsigned char)(op * 61 + at * 7 + 1);
}

static void grant(struct tcp_pair *pair, uint64_t op, unsigned char *at, size_t bytes)
{
    const struct pki_msg msg = { .kind = PKI_MSG_CTS, .op = op, .sig = 5, .bytes = bytes, .offset = (uint64_t)(uintptr_t)at,
                                 .extra = PKI_CTS_LOCAL };

    cr_assert_eq(tcp()->msg(pair->ep[1], &msg, NULL), PK_OK);
}

static void put_eagerly(struct tcp_pair *pair, int from, struct pki_put *put, const void *bytes, size_t count, uint64_t op)
{
    *put = (struct pki_put){ .ep = pair->ep[from], .src = bytes, .bytes = count, .eager_put = true,
                             .about = { .kind = PKI_MSG_FIN, .op = op, .sig = 5, .bytes = count } };
    pki_list_init(&put->node);
    cr_assert_eq(tcp()->put(put), PK_OK);
}

/* ---- Streams that a peer may send, cut in two at every byte ---- */

struct piece {
    uint64_t op; /* 0: an acknowledgement of one chunk */
    size_t offset, bytes, eager_put;
};

struct stream {
    const char *what;
    bool puts;       /* the reader has sent a chunk */
    bool misses;     /* read at once, its first head is not the one that is guessed */
    uint64_t late;   /* granted when all of it has come */
    struct piece pieces[4];
};

#define OPS 10
static const size_t lengths[OPS] = { [3] = 100, [4] = 60, [9] = 50 };

static const struct stream streams[] = {
    { "as guessed", .pieces = { { 3, 0, 100, 100 }, { 4, 0, 60, 60 } } },
    { "two chunks of a transfer", .misses = true, .pieces = { { 3, 0, 30, 100 }, { 3, 30, 70, 100 }, { 4, 0, 60, 0 } } },
    { "an acknowledgement first", .puts = true, .misses = true, .pieces = { { 0 }, { 3, 0, 100, 100 }, { 4, 0, 60, 60 } } },
    { "another transfer first", .misses = true, .pieces = { { 4, 0, 60, 60 }, { 3, 0, 100, 100 } } },
    { "the end of a transfer first", .misses = true, .pieces = { { 3, 50, 50, 100 }, { 4, 0, 60, 60 }, { 3, 0, 50, 100 } } },
    { "a transfer that is not granted first", .misses = true, .late = 9, .pieces = { { 9, 0, 50, 50 }, { 3, 0, 100, 100 }, { 4, 0, 60, 60 } } },
};

static size_t write_stream(const struct stream *s, unsigned char *out)
{
    size_t at = 0;

    for (size_t i = 0; i < 4 && (s->pieces[i].bytes > 0 || (s->puts && i == 0)); i++) {
        const struct piece *p = &s->pieces[i];
        const struct pki_tcp_chunk chunk = { .op = p->op, .sig = 5, .offset = p->offset, .bytes = (uint32_t)p->bytes, .eager_put = (uint32_t)p->eager_put };

        if (p->op == 0)
            pki_tcp_put_data_ack(out + at, 1);
        else
            pki_tcp_put_chunk(out + at, &chunk);
        at += PKI_TCP_DATA_HEAD_BYTES;
        for (size_t k = 0; k < p->bytes; k++)
            out[at++] = byte_of(p->op, p->offset + k);
    }
    return at;
}

static unsigned chunks_of(const struct stream *s)
{
    unsigned n = 0;

    for (size_t i = 0; i < 4; i++)
        n += s->pieces[i].bytes > 0;
    return n;
}

/* Which transfers rank 1 has whole, a bit an operation. */
static unsigned hear(struct tcp_pair *pair, unsigned whole)
{
    struct pki_msg msg;
    const void *payload;

    (void)tcp()->progress(pair->iface[1]);
    while (tcp()->peek(pair->ep[1], &msg, &payload)) {
        if (msg.kind == PKI_MSG_FIN && msg.offset == msg.bytes)
            whole |= 1u << msg.op;
        tcp()->pop(pair->ep[1]);
    }
    return whole;
}

static void write_on(struct tcp_pair *pair, uint32_t link, const unsigned char *bytes, size_t count)
{
    if (count > 0)
        cr_assert_eq(write(pki_tcp_ep_of(pair->ep[0])->links[link].source.fd, bytes, count), (ssize_t)count);
}

static void write_all(struct tcp_pair *pair, const unsigned char *bytes, size_t count)
{
    write_on(pair, 1, bytes, count);
}

static void run_stream(const struct stream *s, size_t cut, size_t *length)
{
    static unsigned char buffers[OPS][256], own[70000];
    const struct pki_tcp_link *link;
    unsigned char bytes[512];
    unsigned whole = 0, all = 1u << 3 | 1u << 4;
    struct tcp_pair pair;
    struct pki_put put;

    begin(&pair);
    link = &pki_tcp_ep_of(pair.ep[1])->links[1];
    memset(buffers, 0, sizeof buffers);
    *length = write_stream(s, bytes);
    if (s->puts)
        put_eagerly(&pair, 1, &put, own, sizeof own, 1);
    grant(&pair, 3, buffers[3], lengths[3]);
    grant(&pair, 4, buffers[4], lengths[4]);
    write_all(&pair, bytes, cut);
    for (int i = 0; i < 3; i++)
        whole = hear(&pair, whole);
    write_all(&pair, bytes + cut, *length - cut);
    for (int i = 0; i < 3; i++)
        whole = hear(&pair, whole);
    if (cut == 0)
        cr_assert_eq(link->misses > 0, s->misses, "%s", s->what);
    for (uint64_t until = pki_now_ns() + TIMEOUT_NS; whole != all && pki_now_ns() < until && !pair.ep[1]->dead;)
        whole = hear(&pair, whole);
    if (s->late > 0) {
        all |= 1u << s->late;
        grant(&pair, s->late, buffers[s->late], lengths[s->late]);
        whole = hear(&pair, whole);
    }
    cr_assert_eq(whole, all, "%s, cut at %zu: transfers %x have come", s->what, cut, whole);
    for (unsigned op = 0; op < OPS; op++)
        for (size_t i = 0; i < lengths[op] + GUARD; i++)
            if ((whole >> op & 1) != 0 && buffers[op][i] != (i < lengths[op] ? byte_of(op, i) : 0))
                cr_assert_fail("%s, cut at %zu: byte %zu of transfer %u", s->what, cut, i, op);
    if (s->puts)
        cr_assert_eq(pki_list_pop(&pair.iface[1]->done), &put.node);
    cr_assert_eq(link->spilled, 0);
    cr_assert(link->spill == NULL);
    cr_assert_eq(link->received, chunks_of(s));
    tcp_pair_drop(&pair);
}

Test(tcp_spec_read, streams_cut_at_every_byte, .timeout = 120)
{
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        size_t length = 1;

        for (size_t cut = 0; cut < length; cut++)
            run_stream(&streams[i], cut, &length);
    }
}

/* The end of a transfer has come over another connection, whole or in part: no guess may write over it. */
Test(tcp_spec_read, what_has_come_over_another_connection)
{
    static const struct stream end_of_3 = { .pieces = { { 3, 50, 50, 100 } } };
    static const struct stream first = { .pieces = { { 4, 0, 60, 60 }, { 3, 0, 50, 100 } } };

    for (size_t part = 33; part <= PKI_TCP_DATA_HEAD_BYTES + 50; part += 7) { /* of the end, the rest of which comes last; all: 82 */
        static unsigned char three[100 + GUARD], four[60 + GUARD];
        unsigned char end[512], begin_of_it[512];
        size_t end_length = write_stream(&end_of_3, end), length = write_stream(&first, begin_of_it);
        unsigned whole = 0;
        struct tcp_pair pair;

        begin_with(&pair, "2/0", "524288");
        memset(three, 0, sizeof three);
        grant(&pair, 3, three, 100);
        grant(&pair, 4, four, 60);
        write_on(&pair, 2, end, part);
        for (int i = 0; i < 100; i++)
            whole = hear(&pair, whole);
        write_on(&pair, 1, begin_of_it, length);
        for (int i = 0; i < 100; i++)
            whole = hear(&pair, whole);
        write_on(&pair, 2, end + part, end_length - part);
        for (uint64_t until = pki_now_ns() + TIMEOUT_NS; whole != (1u << 3 | 1u << 4) && pki_now_ns() < until;)
            whole = hear(&pair, whole);
        cr_assert_eq(whole, 1u << 3 | 1u << 4);
        for (size_t i = 0; i < sizeof three; i++)
            cr_assert_eq(three[i], i < 100 ? byte_of(3, i) : 0, "byte %zu, %zu bytes of the end first", i, part);
        tcp_pair_drop(&pair);
    }
}

/* The connection breaks while bytes are put aside: they come again. */
Test(tcp_spec_read, a_cut_with_bytes_read_ahead)
{
    static unsigned char taken[BYTES + GUARD], sent[BYTES], late[64];
    const struct piece first = { 9, 0, 50, 50 };
    unsigned char bytes[512];
    struct tcp_pair pair;
    struct pki_put put;
    unsigned whole = 0;
    struct pki_tcp_link *link;
    size_t length = write_stream(&(struct stream){ .pieces = { first } }, bytes);

    for (size_t i = 0; i < BYTES; i++)
        sent[i] = byte_of(3, i);
    begin(&pair);
    link = &pki_tcp_ep_of(pair.ep[1])->links[1];
    grant(&pair, 3, taken, BYTES);
    write_all(&pair, bytes, length);
    while (link->spilled == 0)
        (void)tcp()->progress(pair.iface[1]);
    pki_tcp_link_broken(link, ECONNRESET);
    cr_assert(link->spill == NULL);
    put_eagerly(&pair, 0, &put, sent, BYTES, 3);
    for (uint64_t until = pki_now_ns() + TIMEOUT_NS; whole != 1u << 3 && pki_now_ns() < until;) {
        tcp_pair_progress(&pair);
        whole = hear(&pair, whole);
    }
    cr_assert_eq(whole, 1u << 3);
    cr_assert_eq(memcmp(taken, sent, BYTES), 0);
    grant(&pair, 9, late, 50); /* nobody has sent it */
    cr_assert_eq(hear(&pair, 0), 0);
    tcp_pair_free(&pair);
}

/* ---- Acknowledgements ---- */

/* The put ends; `ctrl`: because the control channel says so. */
static void exchange(struct tcp_pair *pair, size_t count, bool ctrl)
{
    static unsigned char taken[2 * BYTES], sent[2 * BYTES];
    const struct pki_tcp_ep *ep = pki_tcp_ep_of(pair->ep[0]);
    unsigned whole = 0;
    struct pki_put put;

    for (int i = 0; i < 100; i++) /* what they tell one another when they have met */
        tcp_pair_progress(pair);
    ctrl_acks = 0;
    for (size_t i = 0; i < count; i++)
        sent[i] = byte_of(3, i);
    memset(taken, 0, sizeof taken);
    grant(pair, 3, taken, count);
    put_eagerly(pair, 0, &put, sent, count, 3);
    for (uint64_t until = pki_now_ns() + TIMEOUT_NS; (whole == 0 || pki_list_empty(&pair->iface[0]->done)) && pki_now_ns() < until;) {
        whole = hear(pair, whole);
        (void)tcp()->progress(pair->iface[0]);
    }
    cr_assert_eq(whole, 1u << 3);
    cr_assert_eq(memcmp(taken, sent, count), 0);
    cr_assert_eq(pki_list_pop(&pair->iface[0]->done), &put.node);
    cr_assert_eq(put.result, PK_OK);
    cr_assert_eq(ctrl_acks > 0, ctrl, "%u acknowledgements on the lane", ctrl_acks);
    cr_assert_eq(ep->links[1].acked, ep->links[1].end);
}

Test(tcp_spec_read, acknowledged_where_it_came)
{
    struct tcp_pair pair;

    begin(&pair);
    for (int i = 0; i < 4; i++) /* lent, all of them */
        exchange(&pair, BYTES, false);
    cr_assert_eq(cames, 4);
    tcp_pair_free(&pair);
}

Test(tcp_spec_read, acknowledged_on_ctrl_where_the_kernel_has_no_room)
{
    struct tcp_pair pair;

    begin(&pair);
    take_of_data_ack = 0;
    exchange(&pair, BYTES, true);
    cr_assert_eq(cames, 1);
    tcp_pair_free(&pair);
}

Test(tcp_spec_read, an_acknowledgement_in_parts)
{
    struct tcp_pair pair;

    begin(&pair);
    for (take_of_data_ack = 1; take_of_data_ack < (ssize_t)PKI_TCP_DATA_HEAD_BYTES; take_of_data_ack += 16) { /* few enough for all to be lent */
        cames = 0;
        exchange(&pair, BYTES, false);
        cr_assert_eq(cames, 1);
    }
    tcp_pair_free(&pair);
}

/* Of several connections the first, while there is no more than an exchange with one peer. */
Test(tcp_spec_read, acknowledged_on_the_first_of_several)
{
    static unsigned char other[8];
    struct tcp_pair pair;

    begin_with(&pair, "3/0", "524288");
    exchange(&pair, BYTES, false);
    cr_assert_eq(cames, 1);
    for (uint64_t op = 7; op < 9; op++) /* which nobody sends */
        grant(&pair, op, other, sizeof other);
    exchange(&pair, BYTES, true);
    cr_assert_eq(cames, 1);
    tcp_pair_free(&pair);
}

/* Two chunks, and with threads: on the control channel, as ever. */
Test(tcp_spec_read, others_are_acknowledged_on_ctrl)
{
    struct tcp_pair pair;

    begin_with(&pair, "1/1", "524288");
    exchange(&pair, BYTES, true);
    tcp_pair_free(&pair);
    begin_with(&pair, "1/0", "65536");
    exchange(&pair, BYTES, true);
    tcp_pair_free(&pair);
    cr_assert_eq(cames, 0);
}

/* The acknowledgement does not get through before the peer hears that this rank leaves: word of it is on the control channel as well, behind the shutdown message. */
Test(tcp_spec_read, acknowledged_and_left)
{
    static unsigned char taken[BYTES], sent[BYTES];
    unsigned char came[PKI_TCP_DATA_HEAD_BYTES];
    struct pki_tcp_link *link;
    struct tcp_pair pair;
    struct pki_put put;

    begin(&pair);
    link = &pki_tcp_ep_of(pair.ep[0])->links[1];
    grant(&pair, 3, taken, BYTES);
    put_eagerly(&pair, 0, &put, sent, BYTES, 3);
    while (hear(&pair, 0) == 0)
        continue;
    cr_assert_eq(cames, 1);
    cr_assert_eq(recv(link->source.fd, came, sizeof came, 0), (ssize_t)sizeof came); /* it is read by nobody else */
    tcp()->ep_close(pair.ep[1]);
    free(pair.ep[1]);
    pair.ep[1] = NULL;
    for (uint64_t until = pki_now_ns() + TIMEOUT_NS; pki_list_empty(&pair.iface[0]->done) && pki_now_ns() < until;) {
        struct pki_msg msg;
        const void *payload;

        (void)tcp()->progress(pair.iface[0]);
        (void)tcp()->peek(pair.ep[0], &msg, &payload);
    }
    cr_assert_eq(pki_list_pop(&pair.iface[0]->done), &put.node);
    cr_assert_eq(put.result, PK_OK);
    tcp_pair_free(&pair);
}

static bool kills(uint32_t on_link, uint64_t frames)
{
    unsigned char came[PKI_TCP_DATA_HEAD_BYTES];
    struct tcp_pair pair;
    bool dead;

    begin(&pair);
    pki_tcp_put_data_ack(came, frames);
    cr_assert_eq(write(pki_tcp_ep_of(pair.ep[0])->links[on_link].source.fd, came, sizeof came), (ssize_t)sizeof came);
    for (uint64_t until = pki_now_ns() + PKI_NS_PER_S / 5; !pair.ep[1]->dead && pki_now_ns() < until;)
        (void)tcp()->progress(pair.iface[1]);
    dead = pair.ep[1]->dead;
    tcp_pair_drop(&pair);
    return dead;
}

Test(tcp_spec_read, acknowledgements_that_may_not_be)
{
    cr_assert(kills(1, 1), "of a chunk that was never sent");
    cr_assert(kills(1, UINT64_MAX));
    cr_assert(!kills(1, 0), "of none");
    cr_assert(kills(0, 0), "on the lane");
}
