/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network that is long and nothing else: it joins two network namespaces by a device eth0 in each, holds every packet for so
 * many milliseconds, either way, and limits no bandwidth. It runs until it is ended.
 *
 * usage: net.far MILLISECONDS NAMESPACE NAMESPACE   (by name, as `ip netns` has them; root. 77: there is no /dev/net/tun)
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define PACKET_MAX 65536
#define HELD_MAX 16384u /* packets of one direction; what comes beyond is lost, as in any network */
#define A_TURN 64       /* packets of one direction that are read before the other one's turn */

struct packet {
    uint64_t until_ns;
    size_t bytes;
    char data[];
};

struct way { /* packets [head, end), the oldest first */
    int from, to;
    uint64_t head, end;
    struct packet *held[HELD_MAX];
};

static struct way ways[2];

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int device_in(const char *namespace)
{
    struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI };
    char path[256];
    int there, fd;

    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    there = open(path, O_RDONLY | O_CLOEXEC);
    if (there < 0 || setns(there, CLONE_NEWNET) != 0) {
        perror(path);
        exit(2);
    }
    close(there);
    strcpy(request.ifr_name, "eth0");
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0) {
        perror("/dev/net/tun");
        exit(77);
    }
    return fd;
}

static void take(struct way *way, uint64_t delay_ns)
{
    static char data[PACKET_MAX];

    for (int i = 0; i < A_TURN; i++) {
        ssize_t n = read(way->from, data, sizeof data);
        struct packet *packet;

        if (n <= 0)
            return;
        if (way->end - way->head == HELD_MAX)
            continue;
        packet = malloc(sizeof *packet + (size_t)n);
        if (packet == NULL)
            exit(2);
        packet->until_ns = now_ns() + delay_ns;
        packet->bytes = (size_t)n;
        memcpy(packet->data, data, packet->bytes);
        way->held[way->end++ % HELD_MAX] = packet;
    }
}

/* Returns how long the next one is still to be held; UINT64_MAX: there is none. */
static uint64_t let_go(struct way *way)
{
    while (way->head < way->end) {
        struct packet *packet = way->held[way->head % HELD_MAX];
        uint64_t now = now_ns();

        if (packet->until_ns > now)
            return packet->until_ns - now;
        (void)!write(way->to, packet->data, packet->bytes);
        free(packet);
        way->head++;
    }
    return UINT64_MAX;
}

int main(int argc, char **argv)
{
    uint64_t delay_ns = argc == 4 ? (uint64_t)(atof(argv[1]) * 1e6) : 0;

    if (delay_ns == 0) {
        fprintf(stderr, "usage: %s MILLISECONDS NAMESPACE NAMESPACE\n", argv[0]);
        return 2;
    }
    ways[0].from = ways[1].to = device_in(argv[2]);
    ways[1].from = ways[0].to = device_in(argv[3]);
    for (;;) {
        struct pollfd p[2] = { { .fd = ways[0].from, .events = POLLIN }, { .fd = ways[1].from, .events = POLLIN } };
        uint64_t a = let_go(&ways[0]), b = let_go(&ways[1]), next = a < b ? a : b;
        struct timespec wait = { .tv_sec = (time_t)(next / 1000000000u), .tv_nsec = (long)(next % 1000000000u) };

        if (ppoll(p, 2, next == UINT64_MAX ? NULL : &wait, NULL) < 0 && errno != EINTR)
            return 2;
        take(&ways[0], delay_ns);
        take(&ways[1], delay_ns);
    }
}
