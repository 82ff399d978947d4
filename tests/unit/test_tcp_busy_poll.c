/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport: connections that are read without epoll, and what of a sender's memory the kernel keeps. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "tcp_pair.h"

#define TIMEOUT_NS (20 * PKI_NS_PER_S)
#define LONG_BYTES (4u << 20)

static char sent[LONG_BYTES], taken[LONG_BYTES];

static void begin_with(struct tcp_pair *pair, const char *sockets)
{
    setenv("PK_SOCKETS", sockets, 1);
    setenv("PK_RETRY_MS", "2000", 1);
    tcp_pair_new(pair);
}

static void begin(struct tcp_pair *pair)
{
    begin_with(pair, "1/0");
}

/* The kernel's own list. */
static bool is_watched(const struct tcp_pair *pair, int rank, uint32_t link)
{
    int fd = pki_tcp_ep_of(pair->ep[rank])->links[link].source.fd, watched;
    char path[64], line[256];
    bool found = false;
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pki_tcp_iface_of(pair->iface[rank])->epoll_fd);
    file = fopen(path, "r");
    cr_assert(file != NULL);
    while (fgets(line, sizeof line, file) != NULL)
        found = found || (sscanf(line, "tfd: %d", &watched) == 1 && watched == fd);
    (void)fclose(file);
    return found;
}

static void say(struct tcp_pair *pair, int from, uint64_t op)
{
    const struct pki_msg msg = { .kind = PKI_MSG_EAGER, .op = op, .sig = 5, .payload = 8 };

    cr_assert_eq(tcp()->msg(pair->ep[from], &msg, "8 bytes"), PK_OK);
}

/* The next message is this one. */
static bool hears(struct tcp_pair *pair, int rank, uint64_t op)
{
    uint64_t until = pki_now_ns() + TIMEOUT_NS;
    struct pki_msg msg;
    const void *payload;
    bool it;

    while (!tcp()->peek(pair->ep[rank], &msg, &payload) && pki_now_ns() < until && !pair->ep[rank]->dead)
        tcp_pair_progress(pair);
    if (pki_now_ns() >= until || pair->ep[rank]->dead)
        return false;
    it = msg.op == op && msg.payload == 8 && memcmp(payload, "8 bytes", 8) == 0;
    tcp()->pop(pair->ep[rank]);
    return it;
}

static void talk(struct tcp_pair *pair, int times)
{
    for (int i = 0; i < times; i++) {
        say(pair, 0, (uint64_t)i);
        say(pair, 1, (uint64_t)i);
        cr_assert(hears(pair, 0, (uint64_t)i) && hears(pair, 1, (uint64_t)i));
    }
}

Test(tcp_busy_poll, a_ctrl_that_is_read_anyway)
{
    struct tcp_pair pair;

    begin(&pair);
    cr_assert(is_watched(&pair, 0, 0) && is_watched(&pair, 1, 0));
    talk(&pair, 100);
    cr_assert(!is_watched(&pair, 0, 0) && !is_watched(&pair, 1, 0));
    cr_assert(is_watched(&pair, 0, 1) && is_watched(&pair, 1, 1), "no chunk has come");
    tcp_pair_free(&pair);
}

Test(tcp_busy_poll, is_put_back_before_a_sleep)
{
    struct tcp_pair pair;

    begin(&pair);
    talk(&pair, 100);
    atomic_fetch_add(&pair.iface[1]->sleepers, 1);
    while (tcp()->wait_fd(pair.iface[1]) < 0) /* something is left of the last round */
        tcp_pair_progress(&pair);
    cr_assert(is_watched(&pair, 1, 0));
    talk(&pair, 100);
    cr_assert(is_watched(&pair, 1, 0), "while somebody sleeps");
    atomic_fetch_sub(&pair.iface[1]->sleepers, 1);
    talk(&pair, 100);
    cr_assert(!is_watched(&pair, 1, 0));
    tcp_pair_free(&pair);
}

Test(tcp_busy_poll, is_put_back_when_nothing_comes)
{
    struct tcp_pair pair;

    begin(&pair);
    talk(&pair, 100);
    for (int i = 0; i < 5000; i++)
        tcp_pair_progress(&pair);
    cr_assert(is_watched(&pair, 0, 0) && is_watched(&pair, 1, 0));
    for (int i = 0; i < 20000; i++) {
        tcp_pair_progress(&pair);
        cr_assert(is_watched(&pair, 0, 0) && is_watched(&pair, 1, 0), "and stays there");
    }
    talk(&pair, 1);
    tcp_pair_free(&pair);
}

/* Who does not read what has come reads acknowledgements all the same: else nobody could write any more. */
Test(tcp_busy_poll, is_looked_after)
{
    struct tcp_pair pair;

    begin(&pair);
    talk(&pair, 100);
    cr_assert(!is_watched(&pair, 1, 0));
    say(&pair, 0, 7);
    for (int i = 0; i < 64; i++)
        tcp_pair_progress(&pair);
    cr_assert_gt(pki_tcp_ep_of(pair.ep[1])->ctrl[0].rx_scan, pki_tcp_ep_of(pair.ep[1])->ctrl[0].rx_head, "progress alone has read it");
    cr_assert(hears(&pair, 1, 7));
    tcp_pair_free(&pair);
}

Test(tcp_busy_poll, is_made_anew)
{
    struct tcp_pair pair;

    begin(&pair);
    for (int i = 0; i < 5; i++) {
        talk(&pair, 100);
        cr_assert(!is_watched(&pair, 0, 0) && !is_watched(&pair, 1, 0));
        tcp_cut(pair.ep[i % 2], 0);
        talk(&pair, 1);
    }
    tcp_pair_free(&pair);
}

Test(tcp_busy_poll, is_put_back_when_there_is_no_room)
{
    static char payload[32 << 10];
    const struct pki_msg msg = { .kind = PKI_MSG_DATA, .op = 1, .sig = 5, .payload = sizeof payload };
    struct pki_tcp_link *link;
    struct tcp_pair pair;

    begin(&pair);
    talk(&pair, 100);
    link = &pki_tcp_ep_of(pair.ep[0])->links[0];
    cr_assert_eq(setsockopt(link->source.fd, SOL_SOCKET, SO_SNDBUF, &(int){ 4096 }, sizeof(int)), 0);
    for (int i = 0; i < 1000 && link->writable; i++)
        if (tcp()->msg(pair.ep[0], &msg, payload) != PK_OK)
            break;
    cr_assert(!link->writable && is_watched(&pair, 0, 0));
    tcp_pair_free(&pair);
}

/* By short transfers; a long one puts it back. */
Test(tcp_busy_poll, a_connection_for_chunks, .timeout = 60)
{
    static const size_t bytes[] = { 65536, LONG_BYTES };
    struct tcp_pair pair;

    begin(&pair);
    for (uint64_t op = 1; op <= 60; op++) {
        size_t n = bytes[op == 60];
        struct pki_put put = { .ep = pair.ep[0], .src = sent, .bytes = n, .about = { .kind = PKI_MSG_FIN, .op = op, .sig = 5, .bytes = n } };
        const struct pki_msg grant = { .kind = PKI_MSG_CTS, .op = op, .sig = 5, .bytes = n, .offset = (uint64_t)(uintptr_t)taken };
        struct pki_msg msg;
        const void *payload;

        memset(sent, (int)op, n);
        pki_list_init(&put.node);
        cr_assert_eq(tcp()->msg(pair.ep[1], &grant, NULL), PK_OK);
        while (!tcp()->peek(pair.ep[0], &msg, &payload))
            tcp_pair_progress(&pair);
        tcp()->pop(pair.ep[0]);
        cr_assert_eq(tcp()->put(&put), PK_OK);
        while (pki_list_empty(&pair.iface[0]->done)) {
            tcp_pair_progress(&pair);
            if (tcp()->peek(pair.ep[1], &msg, &payload))
                tcp()->pop(pair.ep[1]);
        }
        while (tcp()->peek(pair.ep[1], &msg, &payload))
            tcp()->pop(pair.ep[1]);
        cr_assert_eq(memcmp(sent, taken, n), 0);
        (void)pki_list_pop(&pair.iface[0]->done);
        if (op == 59)
            cr_assert(!is_watched(&pair, 1, 1));
    }
    cr_assert(is_watched(&pair, 1, 1));
    tcp_pair_free(&pair);
}

/* Chunks lie in the connection, their sender gives them up, leaves, and uses its memory for other things: the heads are still what they were. */
Test(tcp_busy_poll, heads_outlive_their_endpoint)
{
    const struct pki_msg grant = { .kind = PKI_MSG_CTS, .op = 3, .sig = 5, .bytes = LONG_BYTES, .offset = (uint64_t)(uintptr_t)taken };
    struct pki_put put = { .src = sent, .bytes = LONG_BYTES, .about = { .kind = PKI_MSG_FIN, .op = 3, .sig = 5, .bytes = LONG_BYTES } };
    void *used[512];
    struct tcp_pair pair;

    begin_with(&pair, "4/0");
    put.ep = pair.ep[0];
    pki_list_init(&put.node);
    cr_assert_eq(tcp()->msg(pair.ep[1], &grant, NULL), PK_OK);
    for (int i = 0; i < 20; i++)
        (void)tcp()->progress(pair.iface[0]);
    cr_assert_eq(tcp()->put(&put), PK_OK);
    for (int i = 0; i < 50; i++)
        (void)tcp()->progress(pair.iface[0]);
    tcp()->revoke(pair.iface[0]);
    tcp()->ep_close(pair.ep[0]);
    free(pair.ep[0]);
    pair.ep[0] = NULL;
    for (size_t i = 0; i < 512; i++)
        used[i] = memset(malloc(16 * (i + 1)), 0, 16 * (i + 1));
    pki_tcp_iface_of(pair.iface[1])->quiet = 1 << 20; /* has waited long: connections are read in the order of their events */
    for (int i = 0; i < 2000 && !pki_tcp_ep_of(pair.ep[1])->left; i++) {
        struct pki_msg msg;
        const void *payload;

        (void)tcp()->progress(pair.iface[1]);
        cr_assert(!pair.ep[1]->dead, "what was given up is not the peer's fault");
        while (tcp()->peek(pair.ep[1], &msg, &payload))
            tcp()->pop(pair.ep[1]);
    }
    cr_assert(pki_tcp_ep_of(pair.ep[1])->left);
    for (size_t i = 0; i < 512; i++)
        free(used[i]);
    tcp_pair_free(&pair);
}
