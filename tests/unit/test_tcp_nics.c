/* SPDX-License-Identifier: Apache-2.0 */
/* Which interfaces the tcp transport's connections take, and what it does where somebody else answers. */
#include <criterion/criterion.h>
#include <net/if.h>
#include <stdio.h>
#include <unistd.h>

#include "tcp_pair.h"
#include "transport/tcp/conn/reach.h"
#include "util/text.h"

static struct sockaddr_storage ipv4(const char *text)
{
    struct sockaddr_in in = { .sin_family = AF_INET };
    struct sockaddr_storage out = { 0 };

    cr_assert_eq(inet_pton(AF_INET, text, &in.sin_addr), 1);
    memcpy(&out, &in, sizeof in);
    return out;
}

/* Rank after rank of connections, "own-theirs" by number. */
static void expect_pairs(const struct pki_tcp_nics *mine, const struct pki_tcp_nics *theirs, uint32_t attempt,
                         const char *expected)
{
    char got[64] = "";

    for (uint32_t turn = 0; turn < 4; turn++) {
        struct pki_tcp_nic_pair pair = pki_tcp_choose_pair(mine, theirs, turn, attempt);

        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%u-%u", turn > 0 ? " " : "", pair.mine, pair.theirs);
    }
    cr_expect_str_eq(got, expected, "attempt %u: %s", attempt, got);
}

Test(tcp, connections_are_spread_over_interfaces)
{
    const struct sockaddr_storage rails[] = { ipv4("10.0.1.1"), ipv4("10.0.2.1"), ipv4("10.0.3.1") };
    const struct sockaddr_storage over_there[] = { ipv4("10.0.2.9"), ipv4("10.0.1.9"), ipv4("10.0.3.9") };
    const int by_24[] = { 24, 24, 24 }, by_16[] = { 16, 16, 16 }, unknown[] = { 0, 0, 0 };

    /* Separate networks: those that can reach one another, whatever the order in which they are named. */
    expect_pairs(&(struct pki_tcp_nics){ 3, 3, rails, by_24 }, &(struct pki_tcp_nics){ 3, 3, over_there, NULL }, 0,
                 "0-1 1-0 2-2 0-1");
    /* The nearest first, if they can reach one another. */
    expect_pairs(&(struct pki_tcp_nics){ 3, 1, rails, by_24 }, &(struct pki_tcp_nics){ 3, 2, over_there, NULL }, 0,
                 "0-1 0-1 0-1 0-1");
    expect_pairs(&(struct pki_tcp_nics){ 3, 1, rails, by_24 }, &(struct pki_tcp_nics){ 3, 1, over_there, NULL }, 0,
                 "0-1 1-0 0-1 1-0");
    /* When an attempt has failed: another one, in reserve if need be. */
    expect_pairs(&(struct pki_tcp_nics){ 3, 1, rails, by_24 }, &(struct pki_tcp_nics){ 3, 2, over_there, NULL }, 1,
                 "1-0 2-2 0-1 1-0");
    /* One network: each with each, all in use as soon as there are as many connections. */
    expect_pairs(&(struct pki_tcp_nics){ 2, 2, rails, by_16 }, &(struct pki_tcp_nics){ 2, 2, over_there, NULL }, 0,
                 "0-0 1-1 0-1 1-0");
    /* Nothing known of networks. */
    expect_pairs(&(struct pki_tcp_nics){ 2, 1, rails, unknown }, &(struct pki_tcp_nics){ 2, 1, over_there, NULL }, 0,
                 "0-0 0-0 0-0 0-0");
    expect_pairs(&(struct pki_tcp_nics){ 2, 1, rails, unknown }, &(struct pki_tcp_nics){ 2, 1, over_there, NULL }, 1,
                 "1-1 0-1 1-0 0-0");
}

static void expect_peer_info(const char *met, uint32_t n, const char *expected)
{
    static const char *const texts[] = { "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4",
                                         "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8" };
    struct pki_tcp_peer_info peer_info = { .addresses = n, .near = 1 };
    struct sockaddr_storage first = { .ss_family = AF_INET6 };
    char got[PKI_TCP_ADDRESSES * PKI_NETIF_TEXT] = "", text[PKI_NETIF_TEXT];

    for (uint32_t i = 0; i < n; i++) {
        peer_info.address[i] = ipv4(texts[i]);
        pki_netif_set_port(&peer_info.address[i], 4000);
    }
    if (strchr(met, ':') == NULL)
        first = ipv4(met);
    pki_netif_set_port(&first, 55555);
    pki_tcp_put_met_first(&peer_info, &first);
    for (uint32_t i = 0; i < peer_info.addresses; i++) {
        pki_netif_format(&peer_info.address[i], text);
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i > 0 ? " " : "", text);
    }
    cr_expect_str_eq(got, expected, "met by %s: %s", met, got);
}

Test(tcp, where_two_have_met_comes_first)
{
    expect_peer_info("10.0.0.2", 3, "10.0.0.2:4000 10.0.0.1:4000 10.0.0.3:4000");
    expect_peer_info("10.0.0.1", 2, "10.0.0.1:4000 10.0.0.2:4000");
    expect_peer_info("10.0.9.9", 2, "10.0.9.9:4000 10.0.0.1:4000 10.0.0.2:4000");
    expect_peer_info(
        "10.0.9.9", 8,
        "10.0.9.9:4000 10.0.0.1:4000 10.0.0.2:4000 10.0.0.3:4000 10.0.0.4:4000 10.0.0.5:4000 10.0.0.6:4000 10.0.0.7:4000");
    expect_peer_info("127.0.1.1", 2, "10.0.0.1:4000 10.0.0.2:4000"); /* means something else there */
    expect_peer_info("::1", 1, "10.0.0.1:4000");                     /* nobody listens there by IPv6 */
}

/* The number of an interface means nothing on another host. */
Test(tcp, scopes_are_not_sent)
{
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(4000), .sin6_scope_id = 11 };
    struct pki_tcp_peer_info peer_info = { .sockets = 1,
                                           .window = 1,
                                           .chunk_bytes = PKI_TCP_CHUNK_MIN,
                                           .addresses = 1,
                                           .near = 1 },
                             got;
    struct pki_blob blob = { 0 };

    cr_assert_eq(inet_pton(AF_INET6, "fe80::1", &v6.sin6_addr), 1);
    memcpy(&peer_info.address[0], &v6, sizeof v6);
    pki_tcp_put_peer_info(&blob, &peer_info);
    cr_assert(pki_tcp_get_peer_info(&blob, &got));
    memcpy(&v6, &got.address[0], sizeof v6);
    cr_expect_eq(v6.sin6_scope_id, 0);
    blob.bytes[32 + 4] = 7; /* nor believed */
    cr_assert(pki_tcp_get_peer_info(&blob, &got));
    memcpy(&v6, &got.address[0], sizeof v6);
    cr_expect_eq(v6.sin6_scope_id, 0);
}

static void expect_text(const struct sockaddr_storage *address, const char *expected)
{
    struct pki_tcp_target target = { .address = *address };
    char text[2 * PKI_NETIF_TEXT] = "";
    struct pki_text out = { .start = text, .capacity = sizeof text };

    pki_netif_set_port(&target.address, 4000);
    pki_tcp_target_text(&target, &out);
    cr_expect_str_eq(text, expected, "%s", text);
}

Test(tcp, an_address_names_its_interface_once)
{
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_scope_id = if_nametoindex("lo") };
    struct sockaddr_storage address = ipv4("10.0.0.1");

    expect_text(&address, "10.0.0.1:4000");
    cr_assert_eq(inet_pton(AF_INET6, "fe80::1", &v6.sin6_addr), 1);
    memcpy(&address, &v6, sizeof v6);
    expect_text(&address, "[fe80::1%lo]:4000");
}

/* Somebody else answers at the first address of the card: a rank of another job, or no rank at all. The peer is found at the second. */
static void foreign_first(const struct sockaddr_storage *foreign, struct pki_iface *other)
{
    struct tcp_pair pair;
    struct pki_tcp_peer_info peer_info;
    struct pki_msg msg = { .kind = PKI_MSG_EAGER };
    const void *payload;

    tcp_pair_begin(&pair);
    cr_assert(pki_tcp_get_peer_info(&pair.blob[0], &peer_info));
    peer_info.address[1] = peer_info.address[0];
    peer_info.address[0] = *foreign;
    peer_info.addresses = 2;
    peer_info.near = 1;
    pki_tcp_put_peer_info(&pair.blob[0], &peer_info);
    cr_assert_eq(tcp()->ep_connect(pair.ep[0], &pair.blob[1]), PK_OK);
    cr_assert_eq(tcp()->ep_connect(pair.ep[1], &pair.blob[0]), PK_OK);
    for (uint64_t until = pki_now_ns() + 20 * PKI_NS_PER_S; pair.ep[1]->state == PKI_EP_CONNECTING && pki_now_ns() < until;) {
        tcp_pair_progress(&pair);
        if (other != NULL)
            (void)tcp()->progress(other);
    }
    cr_assert_not(pair.ep[1]->state == PKI_EP_CONNECTING);
    cr_assert_not(pair.ep[1]->state == PKI_EP_DEAD);
    for (uint32_t i = 0; i < pki_tcp_ep_of(pair.ep[1])->nlinks; i++) {
        struct sockaddr_storage there = { 0 };
        socklen_t bytes = sizeof there;

        cr_assert_eq(getpeername(pki_tcp_ep_of(pair.ep[1])->links[i].source.fd, (struct sockaddr *)&there, &bytes), 0);
        cr_assert_eq(memcmp(&there, &peer_info.address[1], sizeof(struct sockaddr_in)), 0,
                     "connection %u leads to the foreign address", i);
    }
    cr_assert_eq(tcp()->send(pair.ep[1], &msg, NULL), PK_OK);
    for (uint64_t until = pki_now_ns() + PKI_NS_PER_S; !tcp()->peek(pair.ep[0], &msg, &payload) && pki_now_ns() < until;)
        tcp_pair_progress(&pair);
    cr_assert(tcp()->peek(pair.ep[0], &msg, &payload), "the peer hears what is said");
    tcp_pair_free(&pair);
}

Test(tcp, foreign_address_is_refused)
{
    struct sockaddr_storage address = ipv4("127.0.0.1");
    struct pki_iface_config config = { .rank = 0, .size = 2 };
    struct pki_net net = { .key = { 1, 2, 3 }, .local = address };
    struct pki_iface *other = calloc(1, tcp()->iface_bytes);
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    setenv("PK_SOCKETS", "2", 1);
    other->transport = tcp();
    pki_list_init(&other->events);
    config.net = &net;
    cr_assert_eq(tcp()->open(&config, other), PK_OK);
    foreign_first(&pki_tcp_iface_of(other)->own.address[0], other); /* the rank of another job, with another key */
    cr_assert_geq(pki_tcp_iface_of(other)->accepting.dropped, 1);
    tcp()->close(other);
    free(other);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof(struct sockaddr_in)), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    foreign_first(&address, NULL); /* nobody listens */
    close(fd);
}

/* A listener that lets connections in until there are `room` more than one, and is not heard of afterwards. */
static int listener(struct sockaddr_storage *address, int room)
{
    socklen_t bytes = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *address = ipv4("127.0.0.1");
    cr_assert_eq(bind(fd, (struct sockaddr *)address, sizeof(struct sockaddr_in)), 0);
    cr_assert_eq(listen(fd, room), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)address, &bytes), 0);
    return fd;
}

/* The address that has led to the peer answers nothing any more; at another one of its card somebody else lets connections in. */
Test(tcp, a_stranger_does_not_show_that_the_peer_lives)
{
    struct sockaddr_storage silent, foreign;
    int full = listener(&silent, 0), stranger = listener(&foreign, 100), filler = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct tcp_pair pair;
    struct pki_tcp_ep *ep;

    tcp_params("1", "4", "65536");
    tcp_pair_new(&pair);
    ep = pki_tcp_ep_of(pair.ep[1]);
    cr_assert_eq(connect(filler, (struct sockaddr *)&silent, sizeof(struct sockaddr_in)), 0);
    cr_assert(ep->targets.count == 1 && ep->targets.reached == 0);
    ep->targets.target[0].address = silent;
    ep->targets.target[1] = (struct pki_tcp_target){ .address = foreign };
    ep->targets.count = 2;
    for (uint32_t i = 0; i < ep->nlinks; i++)
        tcp_cut(pair.ep[1], i);
    for (uint64_t until = pki_now_ns() + 20 * PKI_NS_PER_S; pair.ep[1]->state != PKI_EP_DEAD && pki_now_ns() < until;)
        (void)tcp()->progress(pair.iface[1]);
    cr_expect(pair.ep[1]->state == PKI_EP_DEAD, "whoever connects gives up after PK_RETRY_MS");
    cr_expect(ep->targets.target[1].state != PKI_TCP_UNTRIED, "the stranger has been tried");
    tcp_pair_drop(&pair);
    close(filler);
    close(stranger);
    close(full);
}

#define TARGETS 4

static struct pki_tcp_iface some_iface = { .own.how = PKI_TCP_ALL, .params.retry_ns = 8 * PKI_NS_PER_S };

/* A link that broke `ago` ns ago, to a peer with four addresses, of which the third has led to it; here nobody listens. */
static void some_link(struct pki_tcp_ep *ep, struct pki_tcp_link *link, uint64_t ago)
{
    *ep = (struct pki_tcp_ep){ .iface = &some_iface,
                               .theirs = { .addresses = TARGETS, .near = 1 },
                               .targets = { .count = TARGETS, .near = 1, .reached = 2 } };
    *link = (struct pki_tcp_link){ .ep = ep, .index = 1, .attempt.broken_ns = pki_now_ns() - ago };
    for (int i = 0; i < TARGETS; i++) {
        ep->targets.target[i].address = ipv4("127.0.0.1");
        pki_netif_set_port(&ep->targets.target[i].address, 1);
    }
}

/* Which address each attempt tries. */
static void expect_targets(struct pki_tcp_link *link, const char *expected)
{
    char got[32] = "";

    for (link->attempt.count = 0; link->attempt.count < 12; link->attempt.count++) {
        int fd = pki_tcp_target_socket(link);

        snprintf(got + strlen(got), sizeof got - strlen(got), "%u", link->attempt.target);
        if (fd >= 0)
            close(fd);
    }
    cr_expect_str_eq(got, expected, "%s", got);
}

Test(tcp, where_the_peer_was_is_tried_every_second_time)
{
    struct pki_tcp_link link;
    struct pki_tcp_ep ep;

    some_link(&ep, &link, PKI_NS_PER_S);
    expect_targets(&link, "222222222222");
    some_link(&ep, &link, 4 * PKI_NS_PER_S);
    expect_targets(&link, "232021232021");
    ep.targets.count = 3;
    expect_targets(&link, "202120212021");
    ep.targets.count = 1;
    ep.targets.reached = 0;
    expect_targets(&link, "000000000000");
    some_link(&ep, &link, 4 * PKI_NS_PER_S);
    ep.base.state = PKI_EP_CONNECTING; /* other connections to it have yet to be made */
    expect_targets(&link, "230123012301");
    ep.targets.reached = -1;
    expect_targets(&link, "012301230123");
}

/* A link-local address of a peer, by each of this host's interfaces: first the one by which ranks have met. */
Test(tcp, link_local_addresses_are_tried_by_each_interface)
{
    struct pki_tcp_iface iface = { .own = { .how = PKI_TCP_ALL, .nscopes = 3, .scopes = { 5, 7, 9 } } };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(4000), .sin6_scope_id = 777777 };
    struct pki_tcp_ep ep = { .iface = &iface, .theirs = { .addresses = 2, .near = 1 } };
    struct pki_net net = { 0 };
    char got[64] = "";

    iface.net = &net;
    cr_assert_eq(inet_pton(AF_INET6, "fe80::1", &v6.sin6_addr), 1);
    memcpy(&ep.theirs.address[0], &v6, sizeof v6);
    ep.theirs.address[1] = ipv4("10.0.0.1");
    v6.sin6_scope_id = 7;
    memcpy(&net.local, &v6, sizeof v6);
    pki_tcp_targets_fill(&ep);
    for (uint32_t i = 0; i < ep.targets.count; i++) {
        memcpy(&v6, &ep.targets.target[i].address, sizeof v6);
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%u", i > 0 ? " " : "",
                 v6.sin6_family == AF_INET6 ? v6.sin6_scope_id : 0);
    }
    cr_expect_str_eq(got, "7 5 9 0", "%s", got);
    cr_expect_eq(ep.targets.near, 3);
}

static void expect_timeout(struct pki_tcp_link *link, unsigned attempts, uint64_t connecting_ms, uint64_t connected_ms)
{
    link->attempt.count = attempts;
    link->attempt.shows_ns = 0;
    cr_expect_eq(pki_tcp_target_ns(link), connecting_ms * PKI_NS_PER_MS, "attempt %u: %g ms", attempts,
                 (double)pki_tcp_target_ns(link) / 1e6);
    link->attempt.shows_ns = 1;
    cr_expect_eq(pki_tcp_target_ns(link), connected_ms * PKI_NS_PER_MS, "attempt %u, connected: %g ms", attempts,
                 (double)pki_tcp_target_ns(link) / 1e6);
}

Test(tcp, timeout_grows_with_the_attempts_at_one_address)
{
    struct pki_tcp_link link;
    struct pki_tcp_ep ep;

    some_link(&ep, &link, 0);
    ep.base.state = PKI_EP_CONNECTING;
    ep.targets.reached = -1;
    expect_timeout(&link, 0, 500, 5000);
    expect_timeout(&link, 3, 500, 5000);
    expect_timeout(&link, 4, 1000, 10000);
    expect_timeout(&link, 1000, 5000, 320000);
    ep.base.state = PKI_EP_UP;
    ep.targets.reached = 2; /* and tried every second time, */
    link.attempt.target = 2;
    expect_timeout(&link, 1, 500, 5000);
    expect_timeout(&link, 2, 1000, 10000);
    link.attempt.target = 1; /* the others in turn in between */
    expect_timeout(&link, 5, 500, 5000);
    expect_timeout(&link, 6, 1000, 10000);
    ep.targets.count = 1;
    ep.targets.reached = link.attempt.target = 0;
    expect_timeout(&link, 0, 5000, 5000);
    expect_timeout(&link, 1, 5000, 10000);
}

/* Connections for data, and chunks, of a rank whose network has this address, by default. */
static void expect_defaults(const char *address, bool one_machine, uint32_t sockets, uint32_t chunk_bytes)
{
    struct pki_net net = { .key = { 1 }, .local = ipv4(address), .one_machine = one_machine };
    struct pki_iface_config config = { .rank = 0, .size = 2, .net = &net };
    struct pki_iface *iface = calloc(1, tcp()->iface_bytes);

    iface->transport = tcp();
    pki_list_init(&iface->events);
    cr_assert_eq(tcp()->open(&config, iface), PK_OK);
    cr_expect_eq(pki_tcp_iface_of(iface)->params.sockets, sockets, "%s, one machine %d: %u connections", address, one_machine,
                 pki_tcp_iface_of(iface)->params.sockets);
    cr_expect_eq(pki_tcp_iface_of(iface)->params.chunk_bytes, chunk_bytes, "%s, one machine %d: chunks of %u bytes", address,
                 one_machine, pki_tcp_iface_of(iface)->params.chunk_bytes);
    cr_expect_eq(pki_tcp_iface_of(iface)->threads.max, 0, "there are no CPUs for threads");
    tcp()->close(iface);
    free(iface);
}

Test(tcp, one_connection_within_a_machine)
{
    expect_defaults("127.0.0.1", false, 1, 4 << 20);
    expect_defaults("0.0.0.0", true, 1, 4 << 20); /* hosts of one machine, by whatever card */
    expect_defaults("0.0.0.0", false, 4, 512 << 10);
    setenv("PK_SOCKETS", "2", 1);
    expect_defaults("0.0.0.0", true, 2, 512 << 10);
}
