/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often two hosts wait for one another, counted as trips: times over a network that holds every packet for so long and does
 * nothing else (hosts.sh -f), divided by that. One and a half is one: who waits once more takes two. What the machine is busy
 * with makes single times longer and none shorter, so the least of several counts.
 *
 * usage: net.trips MILLISECONDS [TIMES]   demand what is promised; with TIMES, print all as well
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pickle/pickle.h"

#define MOST ((size_t)4 << 20)
#define BURST 8
#define TIMES_MOST 60
#define NONE 1e9

static struct {
    pk_comm_t *comm;
    int rank;
    double delay_ms;
    char *in, *out;
} me;

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void need(pk_result_t result, const char *what)
{
    if (result == PK_OK)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", me.rank, what, pk_strerror(result));
    exit(1);
}

/* Both ranks leave at the same time, behind all that is on its way; both clocks are one. Returns when. */
static double start(void)
{
    double at = now_ms() + 4 * me.delay_ms;
    struct timespec until;

    need(pk_barrier(me.comm, PK_BLOCKING), "barrier");
    need(pk_broadcast(&at, &at, 1, PK_F64, 0, me.comm, PK_BLOCKING), "broadcast");
    until.tv_sec = (time_t)(at / 1e3);
    until.tv_nsec = (long)((at - (double)until.tv_sec * 1e3) * 1e6);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    return at;
}

/* Of both. */
static double later(double ms)
{
    need(pk_allreduce(&ms, &ms, 1, PK_F64, PK_MAX, me.comm, PK_BLOCKING), "allreduce");
    return ms;
}

static void message(size_t bytes)
{
    need(me.rank == 0 ? pk_send(me.in, bytes, PK_UINT8, 1, me.comm, PK_BLOCKING)
                      : pk_recv(me.out, bytes, PK_UINT8, 0, me.comm, PK_BLOCKING),
         "message");
}

static void burst(size_t bytes)
{
    for (int i = 0; i < BURST; i++)
        message(bytes);
}

static void sum(size_t bytes)
{
    need(pk_allreduce(me.in, me.out, bytes / sizeof(float), PK_F32, PK_SUM, me.comm, PK_BLOCKING), "allreduce");
}

/* Of `times`, or of more while they are not as few as promised. */
static double trips_of(void (*what)(size_t bytes), size_t bytes, int times, double most)
{
    double least = 1e9;

    /* the connections' windows open with the first two */
    for (int i = 0; i < times + 2 || (least / me.delay_ms > most && i < TIMES_MOST); i++) {
        double began = start(), took;

        what(bytes);
        took = later(now_ms() - began);
        if (i >= 2 && took < least)
            least = took;
    }
    return least / me.delay_ms;
}

static const struct {
    const char *name;
    void (*what)(size_t bytes);
    size_t bytes;
    double most; /* that are promised; NONE: nothing is */
} cases[] = {
    { "message", message, 8, 1.5 },         { "message", message, 4 << 10, 1.5 },     { "message", message, 32 << 10, 1.5 },
    { "message", message, 64 << 10, 2.5 }, /* the sender has its buffer back when it hears that all has come */
    { "message", message, 256 << 10, 2.5 }, { "message", message, 1 << 20, 3.5 },     { "message", message, 4 << 20, NONE },
    { "8 messages", burst, 4 << 10, 1.5 },  { "8 messages", burst, 128 << 10, NONE }, { "allreduce", sum, 8, 1.5 },
    { "allreduce", sum, 1 << 10, 1.5 },     { "allreduce", sum, 64 << 10, 1.5 },      { "allreduce", sum, 128 << 10, 2.5 },
    { "allreduce", sum, 256 << 10, 2.5 },   { "allreduce", sum, 1 << 20, 2.5 },       { "allreduce", sum, 4 << 20, NONE },
};

int main(int argc, char **argv)
{
    int times = argc > 2 ? atoi(argv[2]) : 2;
    bool right = true;

    me.delay_ms = argc > 1 ? atof(argv[1]) : 0;
    me.in = calloc(1, MOST);
    me.out = calloc(1, MOST);
    if (me.delay_ms <= 0 || me.in == NULL || me.out == NULL)
        return 2;
    need(pk_comm_init(&me.comm, NULL), "init");
    need(pk_comm_rank(me.comm, &me.rank), "rank");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double trips;

        if (argc <= 2 && cases[i].most >= NONE)
            continue;
        trips = trips_of(cases[i].what, cases[i].bytes, times, cases[i].most);
        right = right && trips <= cases[i].most;
        if (me.rank == 0 && (argc > 2 || !right))
            printf("%-10s %8zu bytes: %5.2f trips%s\n", cases[i].name, cases[i].bytes, trips,
                   trips > cases[i].most ? ": too many" : "");
    }
    need(pk_comm_destroy(me.comm), "destroy");
    return right ? 0 : 1;
}
