/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking for rank 0 at all the addresses that it may have. Each is tried by itself, again and again, the likeliest first:
 * the next one begins when those before it have failed, or after a moment, so that an address that nothing answers from
 * delays nobody. A name is resolved again meanwhile: it may not be known yet, and its addresses may change.
 */
#include "comm/bootstrap/seek.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/netif.h"

#define TRY_NS (3 * PKI_NS_PER_S)      /* the kernel asks a silent host again and again, ever more seldom: start again */
#define ALONE_NS (2 * PKI_NS_PER_S)    /* nobody else is asked while one has so long for its proof: most likely a late rank 0 */
#define GONE_NS (100 * PKI_NS_PER_MS)  /* nobody listens for so long where somebody has: rank 0 has died, or given up */
#define FAR_NS (5 * PKI_NS_PER_S)      /* the same where a network of rank 0 cannot be reached now */
#define TIMEOUT_NS (30 * PKI_NS_PER_S) /* who says nothing for so long is tried again, and then after twice as long */
#define STRANGER_NS (1 * PKI_NS_PER_S)
#define QUIET_NS (10 * PKI_NS_PER_S) /* and so long later where somebody listens */

/* ---- addresses ---- */

static bool has(const struct pki_seek *s, const struct sockaddr_storage *address)
{
    for (int i = 0; i < s->count; i++)
        if (memcmp(&s->candidates[i].address, address, sizeof *address) == 0)
            return true;
    return false;
}

static void add(struct pki_seek *s, const struct sockaddr_storage *address)
{
    if (s->count == PKI_SEEK_CANDIDATES || has(s, address))
        return;
    if (s->count == 0)
        s->begun_ns = pki_now_ns();
    s->candidates[s->count++] =
        (struct pki_candidate){ .address = *address, .fd = -1, .pause_ns = pki_tuning.start.pause_ns, .timeout_ns = TIMEOUT_NS };
}

/* A link-local address of IPv6 means something on each of this host's links, and only this host knows their numbers: that of an
 * id is another host's. The user's names one of them. */
static void add_scoped(struct pki_seek *s, const struct sockaddr_storage *address)
{
    struct pki_netif netifs[PKI_NETIF_MAX];
    struct sockaddr_in6 v6, own;
    const int before = s->count;
    int count = 0;

    memcpy(&v6, address, sizeof v6);
    if (address->ss_family == AF_INET6 && pki_netif_is_link_local(address) && (s->meeting->listened || v6.sin6_scope_id == 0) &&
        pki_netif_is_known())
        (void)pki_netif_addresses(false, netifs, PKI_NETIF_MAX, &count);
    for (int i = 0; i < count; i++) {
        struct sockaddr_storage scoped = *address;

        memcpy(&own, &netifs[i].address, sizeof own);
        if (netifs[i].address.ss_family != AF_INET6 || own.sin6_scope_id == 0)
            continue;
        v6.sin6_scope_id = own.sin6_scope_id;
        memcpy(&scoped, &v6, sizeof v6);
        add(s, &scoped);
    }
    if (s->count == before)
        add(s, address);
}

/* The first port of all of them comes before the second. */
static void add_ports(struct pki_seek *s, const struct sockaddr_storage *addresses, int count)
{
    for (int p = 0; p < s->meeting->port_count; p++)
        for (int i = 0; i < count; i++) {
            struct sockaddr_storage address = addresses[i];

            pki_netif_set_port(&address, s->meeting->ports[p]);
            add(s, &address);
        }
}

static bool only_loopback(const struct sockaddr_storage *addresses, int count)
{
    for (int i = 0; i < count; i++)
        if (!pki_netif_is_loopback(&addresses[i]))
            return false;
    return true;
}

static pk_result_t take_answer(struct pki_seek *s)
{
    struct sockaddr_storage addresses[PKI_RESOLVE_MAX];
    int count = pki_lookup_result(s->lookup, addresses, PKI_RESOLVE_MAX, s->why);
    pk_result_t result = PK_OK;

    pki_lookup_drop(s->lookup);
    s->lookup = NULL;
    if (count == 0) {
        s->ask_ns = pki_now_ns() + s->ask_pause_ns;
        s->ask_pause_ns = 2 * s->ask_pause_ns < pki_tuning.start.ask_most_ns ? 2 * s->ask_pause_ns : pki_tuning.start.ask_most_ns;
        return PK_OK;
    }
    s->ask_ns = pki_now_ns() + s->known_pause_ns;
    s->known_pause_ns *= 2;
    if (s->known_pause_ns > pki_tuning.start.known_most_ns)
        s->known_pause_ns = pki_tuning.start.known_most_ns;
    s->why[0] = '\0';
    if (!s->allowed || s->meeting->guard == PKI_GUARD_LOOPBACK)
        result = pki_secret_allows(s->meeting->guard, s->meeting->what, only_loopback(addresses, count));
    s->allowed = true;
    if (result == PK_OK)
        add_ports(s, addresses, count);
    return result;
}

/* Most likely rank 0, which is late: name servers need be asked seldom. But it may be somebody who says nothing. */
static bool somebody_listens(const struct pki_seek *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->candidates[i].state == PKI_SEEK_PROVING)
            return true;
    return false;
}

/* Keep asking for the name. */
static pk_result_t resolve(struct pki_seek *s)
{
    const uint64_t now = pki_now_ns();

    if (s->meeting->host[0] == '\0')
        return PK_OK;
    if (s->lookup == NULL && now >= s->ask_ns + (somebody_listens(s) ? QUIET_NS : 0)) {
        s->lookup = pki_lookup_start(s->meeting->host);
        s->asked_ns = now;
        if (s->lookup == NULL)
            return pki_fail(PK_ERR_MEMORY, NULL, "no memory to resolve %s", s->meeting->what);
    }
    return s->lookup != NULL && pki_lookup_is_done(s->lookup) ? take_answer(s) : PK_OK;
}

struct pki_seek *pki_seek_open(struct pki_bootstrap *b, const struct pki_meeting *meeting)
{
    struct pki_seek *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    s->b = b;
    s->meeting = meeting;
    s->ask_pause_ns = pki_tuning.start.ask_ns;
    s->known_pause_ns = pki_tuning.start.known_ns;
    snprintf(s->why, sizeof s->why, "the resolver has not answered yet");
    for (int i = 0; i < meeting->address_count; i++)
        add_scoped(s, &meeting->address[i]);
    return s;
}

void pki_seek_close(struct pki_seek *s)
{
    if (s == NULL)
        return;
    pki_lookup_drop(s->lookup);
    for (int i = 0; i < s->count; i++)
        if (s->candidates[i].fd >= 0)
            close(s->candidates[i].fd);
    free(s);
}

/* ---- one address ---- */

static void rest(struct pki_candidate *c, enum pki_seek_outcome outcome, int error)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->state = PKI_SEEK_PAUSED;
    c->outcome = outcome;
    c->error = error;
    c->next_ns = pki_now_ns() + (outcome == PKI_SEEK_STRANGER ? STRANGER_NS : c->pause_ns);
    c->pause_ns = 2 * c->pause_ns < pki_tuning.start.pause_most_ns ? 2 * c->pause_ns : pki_tuning.start.pause_most_ns;
}

/* A connection from a port to itself: what connecting again and again to a free port of this host ends in by chance. It would
 * also keep rank 0 from that port. */
static bool is_self(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;

    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return getsockname(fd, (struct sockaddr *)&here, &here_bytes) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_bytes) == 0 && here_bytes == there_bytes &&
           memcmp(&here, &there, here_bytes) == 0;
}

/* This host does not have the family, or a sandbox denies it. */
static bool is_without_family(int error)
{
    return error == EAFNOSUPPORT || error == EPROTONOSUPPORT || error == EACCES || error == EPERM;
}

static pk_result_t begin(struct pki_candidate *c)
{
    const int on = 1;
    int fd = pki_fd_keep(socket(c->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "socket");
    c->fd = fd;
    c->since_ns = pki_now_ns();
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (fd < 0 || (connect(fd, (const struct sockaddr *)&c->address, pki_netif_bytes(&c->address)) != 0 && errno != EINPROGRESS &&
                   errno != EINTR))
        rest(c, PKI_SEEK_FAILED, errno);
    else
        c->state = PKI_SEEK_CONNECTING;
    return PK_OK;
}

/* The connection is there, or has failed. */
static pk_result_t begin_proof(struct pki_seek *s, struct pki_candidate *c)
{
    const struct pki_hello hello = { .kind = PKI_HELLO_CONTROL,
                                     .life = s->b->life,
                                     .from = (uint32_t)s->b->rank,
                                     .size = s->b->rank == PKI_JOINS ? 0 : (uint32_t)s->b->size };
    int error = 0;
    socklen_t bytes = sizeof error;
    pk_result_t result;

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    if (error == 0 && is_self(c->fd))
        error = ECONNREFUSED;
    if (error != 0) {
        rest(c, PKI_SEEK_FAILED, error);
        return PK_OK;
    }
    c->state = PKI_SEEK_PROVING;
    c->outcome = PKI_SEEK_ACCEPTED;
    c->since_ns = pki_now_ns();
    result = pki_handshake_connect(&c->handshake, c->fd, &s->b->secret, &hello);
    if (result == PK_ERR_PEER)
        rest(c, PKI_SEEK_CLOSED, 0);
    return result == PK_ERR_PEER ? PK_OK : result;
}

static pk_result_t go_on_proving(struct pki_seek *s, struct pki_candidate *c)
{
    pk_result_t result = pki_handshake_step(&c->handshake);

    if (result == PK_OK)
        s->found = (int)(c - s->candidates);
    else if (result == PK_ERR_PEER)
        rest(c, PKI_SEEK_CLOSED, 0);
    else if (result == PK_ERR_AUTH)
        rest(c, PKI_SEEK_STRANGER, 0);
    return result == PK_ERR_SYSTEM ? result : PK_OK;
}

/* ---- all of them ---- */

/* Another one has just been asked for its proof: this one waits for what comes of it. */
static bool must_wait(const struct pki_seek *s, int own, uint64_t now)
{
    for (int i = 0; i < s->count; i++)
        if (i != own && s->candidates[i].state == PKI_SEEK_PROVING && now - s->candidates[i].since_ns < ALONE_NS)
            return true;
    return false;
}

static bool may_begin(const struct pki_seek *s, int own, uint64_t now)
{
    const struct pki_candidate *c = &s->candidates[own];
    bool others_tried = true;

    if (c->state != PKI_SEEK_PAUSED || now < c->next_ns || must_wait(s, own, now))
        return false;
    for (int i = 0; i < own; i++)
        others_tried = others_tried && s->candidates[i].outcome != PKI_SEEK_UNTRIED;
    return c->outcome != PKI_SEEK_UNTRIED || others_tried || now - s->begun_ns >= (uint64_t)own * pki_tuning.start.stagger_ns;
}

static pk_result_t begin_some(struct pki_seek *s)
{
    pk_result_t result = PK_OK;

    for (int i = 0; i < s->count && result == PK_OK; i++) {
        struct pki_candidate *c = &s->candidates[i];
        const uint64_t now = pki_now_ns();

        if (c->state == PKI_SEEK_CONNECTING && now - c->since_ns >= TRY_NS && !must_wait(s, i, now))
            rest(c, PKI_SEEK_FAILED, ETIMEDOUT);
        if (c->state == PKI_SEEK_PROVING && now - c->since_ns >= c->timeout_ns) {
            c->timeout_ns *= 2;
            rest(c, PKI_SEEK_ACCEPTED, 0);
        }
        if (may_begin(s, i, now))
            result = begin(c);
    }
    return result;
}

/* When something is due that no descriptor tells of. */
static uint64_t next_look(const struct pki_seek *s, uint64_t now)
{
    uint64_t next = now + pki_tuning.start.tick_ns;

    for (int i = 0; i < s->count; i++) {
        const struct pki_candidate *c = &s->candidates[i];

        if (c->state == PKI_SEEK_PAUSED && c->outcome != PKI_SEEK_UNTRIED && c->next_ns > now && c->next_ns < next)
            next = c->next_ns;
    }
    if (s->lookup != NULL && now + pki_tuning.start.look_ns + (now - s->asked_ns) / 8 < next)
        next = now + pki_tuning.start.look_ns + (now - s->asked_ns) / 8;
    return next;
}

/* Wait for a descriptor, or until something else is due, and do what there is to do. PK_OK, or an error that ends it. */
static pk_result_t turn(struct pki_seek *s, uint64_t deadline_ns)
{
    const uint64_t now = pki_now_ns(), next = next_look(s, now);
    const struct pki_wait wait = { .deadline_ns = next < deadline_ns ? next : deadline_ns, .cancel = s->b->cancel };
    struct pollfd polls[PKI_SEEK_CANDIDATES];
    pk_result_t result;

    for (int i = 0; i < s->count; i++) {
        const struct pki_candidate *c = &s->candidates[i];

        polls[i] = (struct pollfd){ .fd = c->fd, .events = c->state == PKI_SEEK_PROVING ? POLLIN : POLLOUT };
        if (c->state == PKI_SEEK_CONNECTING && must_wait(s, i, now))
            polls[i].fd = -1;
    }
    result = pki_poll(polls, (size_t)s->count, &wait);
    if (result == PK_IN_PROGRESS)
        return PK_OK;
    for (int i = 0; i < s->count && result == PK_OK && s->found < 0; i++) {
        struct pki_candidate *c = &s->candidates[i];

        if (polls[i].fd < 0 || polls[i].revents == 0 || (c->state == PKI_SEEK_CONNECTING && must_wait(s, i, now)))
            continue;
        result = c->state == PKI_SEEK_PROVING ? go_on_proving(s, c) : begin_proof(s, c);
    }
    return result;
}

/* The one that was found is the caller's; the others are not needed any more, or not yet. */
static int take_found(struct pki_seek *s)
{
    int fd = s->candidates[s->found].fd;

    s->candidates[s->found].fd = -1;
    for (int i = 0; i < s->count; i++)
        if (s->candidates[i].state != PKI_SEEK_PAUSED)
            rest(&s->candidates[i], s->candidates[i].outcome, s->candidates[i].error);
    return fd;
}

bool pki_candidate_refuses(const struct pki_candidate *c)
{
    return c->outcome == PKI_SEEK_FAILED && c->error == ECONNREFUSED;
}

int pki_seek_count_strangers(const struct pki_seek *s)
{
    int count = 0;

    for (int i = 0; i < s->count; i++)
        count += s->candidates[i].outcome == PKI_SEEK_STRANGER;
    return count;
}

/* It cannot even be tried from here. */
static bool is_out_of_reach(const struct pki_candidate *c)
{
    return c->outcome == PKI_SEEK_FAILED && (c->error == ENETUNREACH || c->error == EADDRNOTAVAIL || is_without_family(c->error));
}

/* All that there is refuses connections, is somebody else, or is out of reach: for how long is that believed? 0: rank 0 may be
 * there. A network that is out of reach may be coming up. */
static uint64_t nowhere_after_ns(const struct pki_seek *s)
{
    uint64_t after = GONE_NS;
    int refusing = 0;

    for (int i = 0; i < s->count; i++) {
        const struct pki_candidate *c = &s->candidates[i];

        refusing += pki_candidate_refuses(c);
        if (is_out_of_reach(c))
            after = is_without_family(c->error) ? after : FAR_NS;
        else if (!pki_candidate_refuses(c) && c->outcome != PKI_SEEK_STRANGER)
            return 0;
    }
    return refusing > 0 ? after : 0;
}

bool pki_candidate_is_lost(const struct pki_candidate *c)
{
    return c->lost_ns != 0 && pki_candidate_refuses(c) && pki_now_ns() - c->lost_ns > GONE_NS;
}

static void report(const struct pki_seek *s)
{
    const struct pki_where where = { .rank = s->b->rank, .peer = s->meeting->led ? -1 : 0, .op = "init" };
    char text[400];

    if (!pki_bootstrap_report_is_due(s->b))
        return;
    pki_seek_explain(s, PK_IN_PROGRESS, text, sizeof text);
    pki_log(s->b->rank == PKI_JOINS ? PKI_LOG_INFO : PKI_LOG_WARN, &where, "has not found %s after %llu ms; trying again: %s",
            pki_seek_host_of(s), pki_bootstrap_elapsed_ms(s->b), text);
}

/* PK_IN_PROGRESS: rank 0 may still be found. */
static pk_result_t judge(struct pki_seek *s)
{
    const uint64_t now = pki_now_ns(), after = nowhere_after_ns(s);
    const int strangers = pki_seek_count_strangers(s);

    if (s->count > 0 && strangers == s->count)
        return PK_ERR_AUTH;
    for (int i = 0; i < s->count; i++)
        if (pki_candidate_is_lost(&s->candidates[i]))
            return PK_ERR_PEER;
    if (!s->meeting->listened || after == 0)
        s->nowhere_ns = 0;
    else if (s->nowhere_ns == 0)
        s->nowhere_ns = now;
    if (s->nowhere_ns == 0 || now - s->nowhere_ns <= after)
        return PK_IN_PROGRESS;
    return strangers > 0 ? PK_ERR_AUTH : PK_ERR_PEER;
}

pk_result_t pki_seek_next(struct pki_seek *s, uint64_t deadline_ns, int *fd)
{
    pk_result_t result = PK_IN_PROGRESS;

    s->found = -1;
    while (result == PK_IN_PROGRESS && pki_now_ns() < deadline_ns) {
        result = resolve(s);
        if (result == PK_OK)
            result = begin_some(s);
        if (result == PK_OK)
            result = turn(s, deadline_ns);
        if (result == PK_OK && s->found < 0)
            result = judge(s);
        if (result == PK_IN_PROGRESS)
            report(s);
    }
    if (result == PK_OK)
        *fd = take_found(s);
    return result;
}

bool pki_seek_is_answered(const struct pki_seek *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->candidates[i].state == PKI_SEEK_PROVING)
            return true;
    return false;
}

void pki_seek_lost(struct pki_seek *s)
{
    struct pki_candidate *c = &s->candidates[s->found];

    c->outcome = PKI_SEEK_CLOSED;
    c->pause_ns = pki_tuning.start.pause_ns;
    c->next_ns = pki_now_ns() + pki_tuning.start.pause_ns;
    c->lost_ns = pki_now_ns();
}
