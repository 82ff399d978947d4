/* SPDX-License-Identifier: Apache-2.0 */
/* pickle-aggregator: a software switch for in-network allreduces. docs/switchml.md. */
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/bootstrap/meeting.h"
#include "server.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/env.h"
#include "util/fd.h"
#include "util/listen.h"
#include "util/netif.h"
#include "util/resolve.h"

#define EVENTS 64
#define LOOK_NS PKI_NS_PER_MS /* between two looks at connections while packets come */
#define TURN_MS 200
#define YIELDS 20                /* before it sleeps: others may have the core, and then there is more to do at once */
#define BUFFER_BYTES (64u << 20) /* wanted; without privileges net.core.rmem_max counts */

static volatile sig_atomic_t stop, report;

static void on_signal(int signal)
{
    if (signal == SIGUSR1)
        report = 1;
    else
        stop = 1;
}

struct options {
    const char *address;
    long port, window, every_s;
    bool poll, plain, quiet;
};

static int usage(void)
{
    fputs("usage: pickle-aggregator [--address ADDRESS] [--port PORT] [--window PACKETS] [--poll] [--stats SECONDS] [--quiet] "
          "[--plain]\n"
          "  --address   where workers connect and send packets (127.0.0.1)\n"
          "  --port      TCP for connections and UDP for packets (48864); 0: any, the first line says which\n"
          "  --window    packets that a worker may have on its way at most (8191), but one for each of its threads\n"
          "  --poll      never sleep: a core for lower latency\n"
          "  --stats     a line of counts every SECONDS; SIGUSR1 gives one, and the end\n"
          "  --quiet     say nothing of workers that come and go\n"
          "  --plain     one datagram a packet, as it is on the wire, also where the kernel can cut and join them\n"
          "PK_SECRET_FILE names the file with the secret of the workers; without one only loopback is served, or PK_INSECURE=1 "
          "set.\n",
          stderr);
    return 2;
}

static bool number(const char *text, long least, long most, long *value)
{
    char *end;

    errno = 0;
    *value = strtol(text, &end, 10);
    if (errno == 0 && end != text && *end == '\0' && *value >= least && *value <= most)
        return true;
    fprintf(stderr, "pickle-aggregator: '%s' is no number from %ld to %ld\n", text, least, most);
    return false;
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option known[] = { { "address", required_argument, NULL, 'a' }, { "port", required_argument, NULL, 'p' },
                                           { "window", required_argument, NULL, 'w' },  { "poll", no_argument, NULL, 'l' },
                                           { "stats", required_argument, NULL, 's' },   { "quiet", no_argument, NULL, 'q' },
                                           { "plain", no_argument, NULL, 'n' },         { NULL, 0, NULL, 0 } };
    int c;

    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        bool fine = true;

        switch (c) {
        case 'a':
            o->address = optarg;
            break;
        case 'p':
            fine = number(optarg, 0, 65535, &o->port);
            break;
        case 'w':
            fine = number(optarg, 1, PKI_SWITCHML_SLOTS_MAX, &o->window);
            break;
        case 'l':
            o->poll = true;
            break;
        case 's':
            fine = number(optarg, 1, 86400, &o->every_s);
            break;
        case 'q':
            o->quiet = true;
            break;
        case 'n':
            o->plain = true;
            break;
        default:
            fine = false;
        }
        if (!fine)
            return false;
    }
    return optind == argc;
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void print_counts(const struct server *s)
{
    const struct counts *c = &s->counts;
    const uint64_t *v = c->verdicts;
    double cpu = cpu_seconds();

    server_print("packets %llu, replies %llu, sums complete %llu, asked again %llu, sent again %llu, stale %llu, disagree %llu, "
                 "outside %llu, malformed %llu, "
                 "strangers %llu, no descriptor %llu, unsent %llu, lost by test %llu, cpu %.3f s, packets per core second %.0f",
                 (unsigned long long)c->packets, (unsigned long long)c->replies, (unsigned long long)v[PKI_SWITCHML_TO_ALL],
                 (unsigned long long)v[PKI_SWITCHML_TO_ONE], (unsigned long long)v[PKI_SWITCHML_AGAIN],
                 (unsigned long long)v[PKI_SWITCHML_STALE], (unsigned long long)v[PKI_SWITCHML_DISAGREES],
                 (unsigned long long)v[PKI_SWITCHML_OUTSIDE], (unsigned long long)c->malformed, (unsigned long long)c->strangers,
                 (unsigned long long)c->refused, (unsigned long long)s->datagrams.unsent, (unsigned long long)s->datagrams.shed,
                 cpu, cpu > 0 ? (double)c->packets / cpu : 0);
}

static bool secret(struct server *s, const struct options *o, const struct sockaddr_storage *address)
{
    struct pki_secret found;
    enum pki_guard guard;

    memset(&found, 0, sizeof found);
    _Static_assert(PKI_SECRET_BYTES == PKI_SWITCHML_KEY_BYTES, "one is the other");
    if (pki_secret_find(&found, &guard) != PK_OK || pki_secret_allows(guard, o->address, pki_netif_is_loopback(address)) != PK_OK)
        return false;
    memcpy(s->key, found.key, sizeof s->key);
    return true;
}

static bool watch(const struct server *s, int fd, const void *what)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = (void *)(uintptr_t)what };

    return epoll_ctl(s->events, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool is_any(const struct sockaddr_storage *address)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;

    return address->ss_family == AF_INET ? v4->sin_addr.s_addr == INADDR_ANY : IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}

static bool serve_at(struct server *s, const struct options *o)
{
    const enum pki_datagrams_how how = o->plain ? PKI_DATAGRAMS_PLAIN : PKI_DATAGRAMS_ORDINARY;
    struct sockaddr_storage address, packets;
    char text[PKI_NETIF_TEXT];

    if (pki_resolve_literal(o->address, &address, 1) != 1) {
        fprintf(stderr, "pickle-aggregator: '%s' is no address in digits\n", o->address);
        return false;
    }
    if (is_any(&address)) {
        fprintf(stderr, "pickle-aggregator: '%s' is all addresses: name the one that workers use, which replies come from\n",
                o->address);
        return false;
    }
    pki_netif_set_port(&address, (uint16_t)o->port);
    packets = address;
    if (!secret(s, o, &address) || pki_datagrams_open(&s->datagrams, &packets, BUFFER_BYTES, how) != PK_OK)
        return false;
    s->port = pki_netif_port(&packets); /* with --port 0 another one than that of connections */
    if (pki_listen(&address, 128, false, &s->listener) != PK_OK)
        return false;
    s->events = pki_fd_keep(epoll_create1(EPOLL_CLOEXEC));
    if (s->events < 0 || !watch(s, s->listener, &s->listener) || !watch(s, s->datagrams.fd, &s->datagrams)) {
        perror("pickle-aggregator: epoll");
        return false;
    }
    pki_netif_format(&address, text);
    server_print("pickle-aggregator at %s, packets at port %u", text, (unsigned)s->port);
    return true;
}

/* What connections have; packets are looked at anyway. */
static void look(struct server *s, int wait_ms)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(s->events, events, EVENTS, wait_ms);
    bool knocks = false;

    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &s->listener)
            knocks = true;
        else if (events[i].data.ptr != &s->datagrams)
            visitor_step(s, events[i].data.ptr);
    }
    for (int i = 0; knocks && i < EVENTS; i++) /* last: it may drop a stranger of whom these tell */
        knocks = server_accept(s);
}

static int serve(struct server *s, const struct options *o)
{
    uint64_t now = pki_now_ns(), next = now + (uint64_t)o->every_s * PKI_NS_PER_S, look_at = now;
    unsigned idle = 0;

    while (!stop) {
        int n = server_packets(s);
        bool rests;

        if (n < 0) {
            perror("pickle-aggregator: receive");
            return 1;
        }
        idle = n == 0 ? idle + 1 : 0;
        rests = idle > YIELDS && !o->poll;
        now = pki_now_ns();
        if (rests || now >= look_at) {
            look(s, rests ? TURN_MS : 0);
            now = pki_now_ns();
            server_turn(s, now);
            look_at = now + LOOK_NS;
        } else if (idle > 0) {
            sched_yield();
        }
        if (report || (o->every_s > 0 && now >= next)) {
            report = 0;
            next += (uint64_t)o->every_s * PKI_NS_PER_S;
            print_counts(s);
        }
    }
    print_counts(s);
    return 0;
}

/* A connection for each worker of all jobs, and strangers. */
static void allow_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* As the library does it: tests let packets be lost. */
static bool tune(void)
{
    const char *text = pki_env_get("PICKLE_TEST_TUNING");
    const char *bad = text != NULL ? pki_tuning_override(text) : NULL;

    if (bad != NULL)
        fprintf(stderr, "pickle-aggregator: PICKLE_TEST_TUNING: '%s' begins with no value of lib/tuning/table.h and a number\n",
                bad);
    return bad == NULL;
}

static struct server server; /* the only one */

int main(int argc, char **argv)
{
    struct options o = { .address = "127.0.0.1", .port = PKI_SWITCHML_PORT, .window = PKI_SWITCHML_SLOTS_MAX };
    struct sigaction action = { .sa_handler = on_signal };
    int rc = 1;

    if (!parse(argc, argv, &o))
        return usage();
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* nobody reads standard output any more, */
    signal(SIGXFSZ, SIG_IGN); /* or its file is as long as it may be */
    allow_descriptors();
    server.window_most = (uint32_t)o.window;
    server.quiet = o.quiet;
    server.listener = server.events = server.datagrams.fd = -1;
    pki_list_init(&server.jobs);
    pki_list_init(&server.visitors);
    if (tune() && serve_at(&server, &o))
        rc = serve(&server, &o);
    server_close_visitors(&server);
    pki_datagrams_close(&server.datagrams);
    if (server.listener >= 0)
        close(server.listener);
    if (server.events >= 0)
        close(server.events);
    return rc;
}
