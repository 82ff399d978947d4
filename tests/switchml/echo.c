/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the aggregator is measured beside: a server that only sends back what it gets, by recvmmsg and sendmmsg alone, and clients
 * that have as many packets on their way as workers have. Prints packets a second of the server's processor time. No test.
 *
 * usage: switchml-echo CLIENTS VALUES PACKETS WINDOW plain|joined
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "switchml/datagrams.h"
#include "util/netif.h"

#define BATCH 64
#define ROOM 65536
#define LOST_MS 30000 /* a client that gets nothing for so long has lost a packet; on a crowded machine many go by */

static struct mmsghdr messages[BATCH];
static struct iovec vectors[BATCH];
static struct sockaddr_storage from[BATCH];
static char control[BATCH][CMSG_SPACE(sizeof(int))];
static volatile sig_atomic_t stop;

static void on_signal(int signal)
{
    (void)signal;
    stop = 1;
}

static void prepare(char *memory)
{
    for (int i = 0; i < BATCH; i++) {
        vectors[i] = (struct iovec){ .iov_base = memory + (size_t)i * ROOM, .iov_len = ROOM };
        messages[i].msg_hdr = (struct msghdr){ .msg_name = &from[i],
                                               .msg_namelen = sizeof from[i],
                                               .msg_iov = &vectors[i],
                                               .msg_iovlen = 1,
                                               .msg_control = control[i],
                                               .msg_controllen = sizeof control[i] };
    }
}

/* The message goes back as it has come: its length, and how the kernel is to cut it. Returns how many packets it is. */
static unsigned turn_round(int i)
{
    struct msghdr *m = &messages[i].msg_hdr;
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    unsigned bytes = messages[i].msg_len;
    int length = (int)bytes;
    uint16_t cut;

    vectors[i].iov_len = bytes;
    if (c != NULL && c->cmsg_level == IPPROTO_UDP)
        memcpy(&length, CMSG_DATA(c), sizeof length);
    m->msg_controllen = 0;
    if (length >= (int)bytes)
        return 1;
    m->msg_controllen = CMSG_SPACE(sizeof cut);
    c = CMSG_FIRSTHDR(m);
    c->cmsg_level = IPPROTO_UDP;
    c->cmsg_type = 103; /* UDP_SEGMENT */
    c->cmsg_len = CMSG_LEN(sizeof cut);
    cut = (uint16_t)length;
    memcpy(CMSG_DATA(c), &cut, sizeof cut);
    return (bytes + (unsigned)length - 1) / (unsigned)length;
}

static void serve(const struct pki_datagrams *d)
{
    char *memory = malloc((size_t)BATCH * ROOM);
    unsigned long packets = 0;
    struct rusage u;
    double cpu;

    while (!stop) {
        int n;

        prepare(memory);
        n = recvmmsg(d->fd, messages, BATCH, MSG_DONTWAIT, NULL);
        if (n <= 0) {
            (void)poll(&(struct pollfd){ .fd = d->fd, .events = POLLIN }, 1, 100);
            continue;
        }
        for (int i = 0; i < n; i++)
            packets += turn_round(i);
        for (int done = 0; done < n;) {
            int sent = sendmmsg(d->fd, messages + done, (unsigned)(n - done), 0);

            done += sent > 0 ? sent : 1;
        }
    }
    getrusage(RUSAGE_SELF, &u);
    cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    printf("echo: %lu packets, cpu %.3f s, packets per core second %.0f\n", packets, cpu, (double)packets / cpu);
    free(memory);
}

struct client {
    struct pki_datagrams d;
    unsigned long sent, packets;
    size_t bytes;
};

static void send_one(struct client *c)
{
    if (c->sent == c->packets)
        return;
    c->sent++;
    memset(pki_datagrams_add(&c->d, NULL, c->bytes), 0, c->bytes);
}

static void take(void *arg, const unsigned char *packet, size_t bytes, const struct sockaddr_storage *sender)
{
    (void)packet;
    (void)bytes;
    (void)sender;
    send_one(arg);
}

/* 0: all packets came back. */
static int client(const struct sockaddr_storage *server, unsigned long packets, unsigned window, size_t bytes, bool plain)
{
    static struct client c;
    struct sockaddr_storage own;
    unsigned long got = 0;

    pki_netif_loopback(&own);
    c.packets = packets;
    c.bytes = bytes;
    if (pki_datagrams_open(&c.d, &own, 4 << 20, plain ? PKI_DATAGRAMS_PLAIN : PKI_DATAGRAMS_ORDINARY) != PK_OK ||
        connect(c.d.fd, (const struct sockaddr *)server, pki_netif_bytes(server)) != 0)
        return 1;
    for (unsigned i = 0; i < window; i++)
        send_one(&c);
    while (got < packets) {
        int n;

        (void)pki_datagrams_flush(&c.d);
        n = pki_datagrams_receive(&c.d, take, &c);
        got += n > 0 ? (unsigned long)n : 0;
        if (n <= 0 && poll(&(struct pollfd){ .fd = c.d.fd, .events = POLLIN }, 1, LOST_MS) == 0) {
            fprintf(stderr, "echo: %lu of %lu packets did not come back within %d s\n", packets - got, packets, LOST_MS / 1000);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_storage address;
    struct pki_datagrams d;
    int clients, failed = 0, status;
    pid_t server;
    bool plain;

    if (argc != 6)
        return 2;
    clients = atoi(argv[1]);
    plain = strcmp(argv[5], "plain") == 0;
    pki_netif_loopback(&address);
    signal(SIGTERM, on_signal);
    if (pki_datagrams_open(&d, &address, 64 << 20, plain ? PKI_DATAGRAMS_PLAIN : PKI_DATAGRAMS_ORDINARY) != PK_OK)
        return 1;
    server = fork();
    if (server == 0) {
        serve(&d);
        return 0;
    }
    for (int i = 0; i < clients; i++)
        if (fork() == 0)
            return client(&address, strtoul(argv[3], NULL, 10), (unsigned)atoi(argv[4]),
                          pki_switchml_packet_bytes((uint32_t)atoi(argv[2])), plain);
    for (int i = 0; i < clients; i++) {
        (void)waitpid(-1, &status, 0); /* the server does not end before it is told */
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    kill(server, SIGTERM);
    (void)waitpid(server, &status, 0);
    return failed > 0;
}
