/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for the threads of a session sleeps at a descriptor: each thread that comes to rest has to show there. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "switchml/internal.h"

#define SLICES 4
#define JOBS 10000
#define LONG_MS 60000 /* no wait here ends by itself */

static const struct pki_switchml_timing timing = {
    .timeout_ns = 1000000000, .least_ns = 1000000, .threshold = 9, .increment = 9
};
static float in[SLICES], out[SLICES];

static void open_slice(struct pki_switchml *s, uint32_t i, const struct sockaddr_in *to)
{
    struct sockaddr_storage own = { .ss_family = AF_INET };
    struct pki_switchml_slice *l = &s->slices[i];

    *l = (struct pki_switchml_slice){ .session = s, .first = i, .count = 1, .unit = i, .units = 1 };
    ((struct sockaddr_in *)&own)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(pki_datagrams_open(&l->datagrams, &own, 4096, PKI_DATAGRAMS_ORDINARY), PK_OK);
    cr_assert_eq(connect(l->datagrams.fd, (const struct sockaddr *)to, sizeof *to), 0);
    cr_assert_eq(pki_switchml_worker_init(&l->worker, 0, 1, &timing), PK_OK);
}

/* Packets go to a socket that nobody reads. */
static struct pki_switchml *open_session(int *nobody)
{
    static int8_t exponents[SLICES];
    static bool summed[SLICES];
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof to;
    struct pki_switchml *s = calloc(1, sizeof *s);

    *nobody = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    cr_assert(*nobody >= 0 && bind(*nobody, (struct sockaddr *)&to, sizeof to) == 0);
    cr_assert_eq(getsockname(*nobody, (struct sockaddr *)&to, &length), 0);
    s->elements = 64;
    s->nslices = SLICES;
    s->connection = -1;
    s->threads.stop = s->threads.ended = s->threads.both = -1;
    s->job = (struct pki_switchml_job){ .in = (const char *)in, .out = (char *)out, .exponents = exponents, .summed = summed };
    for (uint32_t i = 0; i < SLICES; i++)
        open_slice(s, i, &to);
    cr_assert_eq(pki_switchml_threads_start(s), PK_OK);
    return s;
}

/* A job that each thread gives up as soon as it has begun, for a rank is said to have called something else. */
static void begin(struct pki_switchml *s)
{
    for (uint32_t i = 1; i < SLICES; i++) {
        struct pki_switchml_slice *l = &s->slices[i];

        pki_switchml_worker_close(&l->worker);
        cr_assert_eq(pki_switchml_worker_init(&l->worker, 0, 1, &timing), PK_OK);
        atomic_store(&l->disagree, true);
    }
    pki_switchml_threads_go(s);
}

Test(switchml_threads, each_that_rests_wakes_who_waits)
{
    int nobody;
    struct pki_switchml *s = open_session(&nobody);
    struct pollfd both = { .fd = s->threads.both, .events = POLLIN };

    for (int job = 0; job < JOBS; job++) {
        uint32_t rested;

        begin(s);
        while ((rested = pki_switchml_threads_resting(s)) < SLICES - 1)
            cr_assert_eq(poll(&both, 1, LONG_MS), 1, "job %d: %u of %d rest, and nothing shows", job, rested, SLICES - 1);
        cr_assert_eq(poll(&both, 1, 0), 0, "job %d: something is left for the next one", job);
    }
    pki_switchml_threads_end(s);
    for (uint32_t i = 0; i < SLICES; i++) {
        pki_datagrams_close(&s->slices[i].datagrams);
        pki_switchml_worker_close(&s->slices[i].worker);
    }
    close(nobody);
    free(s);
}
