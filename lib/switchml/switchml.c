/* SPDX-License-Identifier: Apache-2.0 */
/* The allreduces of one rank: units of the buffer into packets, sums out of replies. How the session begins is in join.c. */
#include "switchml/switchml.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/float_env.h"
#include "switchml/internal.h"
#include "switchml/sums.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/fork.h"
#include "util/log.h"

bool pki_switchml_sums(pk_dtype_t dtype, pk_op_t op)
{
    return op == PK_SUM && (dtype == PK_F32 || dtype == PK_INT32);
}

/* ---- units ---- */

/* How many elements unit `u` has; all others are zeros. */
static uint32_t length_of(const struct pki_switchml *s, size_t u)
{
    size_t left = s->job.count - u * s->elements;

    return left < s->elements ? (uint32_t)left : s->elements;
}

static bool fits(const struct pki_switchml *s, size_t u)
{
    return pki_switchml_fits(s->job.exponents[u], s->size);
}

/* The values of unit `u` for a packet. */
static void fill(struct pki_switchml *s, size_t u, unsigned char *values)
{
    const uint32_t n = length_of(s, u);
    const char *in = s->job.in + 4 * u * s->elements;

    if (n < s->elements)
        memset(values + 4 * (size_t)n, 0, 4 * (size_t)(s->elements - n));
    if (!s->job.floats)
        pki_switchml_swap(values, in, n);
    else if (fits(s, u))
        pki_switchml_quantise(values, (const void *)in, n, pki_switchml_scale(s->job.exponents[u], s->size));
    else
        memset(values, 0, 4 * (size_t)n);
}

static void keep_sums(struct pki_switchml *s, size_t u, const unsigned char *values)
{
    const uint32_t n = length_of(s, u);
    char *out = s->job.out + 4 * u * s->elements;

    s->job.summed[u] = !s->job.floats || fits(s, u);
    if (!s->job.floats)
        pki_switchml_swap(out, values, n);
    else if (fits(s, u))
        pki_switchml_restore((void *)out, values, n, pki_switchml_scale(s->job.exponents[u], s->size));
}

/* ---- packets ---- */

/* The second exponent is of no use to anybody, nor is the first where the packet has none; of both every rank learns the largest.
 * So one carries a mark and the other its complement: where the marks of two ranks differ, both see another largest than their
 * own. Eight bits of a hash of the signature, others in each packet. */
static int8_t mark(const struct pki_switchml *s, uint32_t id)
{
    return (int8_t)(uint8_t)(((s->job.sig ^ id * 0x9e3779b9u) * 0x85ebca6bu) >> 24);
}

static pk_result_t lost(struct pki_switchml *s, int error)
{
    errno = error;
    return pki_fail_errno(PK_ERR_PEER, NULL, "%s", s->name);
}

static void flush(struct pki_switchml *s)
{
    int error = pki_datagrams_flush(&s->datagrams);

    if (error != 0 && s->error == 0)
        s->error = error;
}

/* Of floats packet p has the exponent of unit p, and the values of the unit whose exponent came back in the reply to packet p -
 * ahead. */
static void send_packet(struct pki_switchml *s, uint32_t id)
{
    struct pki_switchml_packet packet = { .id = id,
                                          .index = pki_switchml_worker_index(&s->worker, id),
                                          .job = s->worker.job,
                                          .exponents = { (int8_t)~mark(s, id), mark(s, id) } };
    const size_t units = s->job.units, behind = s->job.floats ? s->worker.ahead : 0;
    unsigned char *bytes = pki_datagrams_add(&s->datagrams, NULL, pki_switchml_packet_bytes(s->elements));
    unsigned char *values = bytes + PKI_SWITCHML_HEADER_BYTES;

    if (s->job.floats && id < units)
        packet.exponents[0] =
            pki_switchml_exponent((const float *)(const void *)s->job.in + (size_t)id * s->elements, length_of(s, id), s->size);
    if (id >= behind)
        fill(s, id - behind, values);
    else
        memset(values, 0, 4 * (size_t)s->elements);
    pki_switchml_pack(&packet, s->elements, bytes);
}

static void take_reply(void *arg, const unsigned char *data, size_t bytes, const struct sockaddr_storage *from)
{
    struct pki_switchml *s = arg;
    struct pki_switchml_packet packet;
    const size_t behind = s->job.floats ? s->worker.ahead : 0;
    uint32_t next[2];

    (void)from; /* the socket is connected */
    if (!s->busy || !pki_switchml_unpack(data, bytes, s->elements, &packet) ||
        !pki_switchml_worker_reply(&s->worker, &packet, s->now, next))
        return;
    s->job.disagree |= packet.exponents[1] != mark(s, packet.id);
    if (!s->job.floats || packet.id >= s->job.units) {
        s->job.disagree |= packet.exponents[0] != (int8_t)~mark(s, packet.id);
    } else {
        s->job.exponents[packet.id] = packet.exponents[0];
        s->job.unfit += !fits(s, packet.id);
    }
    if (packet.id >= behind)
        keep_sums(s, packet.id - behind, data + PKI_SWITCHML_HEADER_BYTES);
    for (int i = 0; i < 2; i++)
        if (next[i] != PKI_SWITCHML_NONE)
            send_packet(s, next[i]);
}

/* ---- jobs ---- */

static pk_result_t make_room(struct pki_switchml_job *j, size_t units)
{
    if (units > j->room) {
        free(j->exponents);
        free(j->summed);
        j->exponents = malloc(units);
        j->summed = malloc(units * sizeof *j->summed);
        j->room = j->exponents != NULL && j->summed != NULL ? units : 0;
        if (j->room == 0)
            return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the state of %zu packets", units);
    }
    if (units > 0)
        memset(j->summed, 0, units * sizeof *j->summed);
    return PK_OK;
}

pk_result_t pki_switchml_begin(struct pki_switchml *s, const void *in, void *out, size_t count, pk_dtype_t dtype, uint32_t sig)
{
    const size_t units = (count + s->elements - 1) / s->elements;
    const uint32_t ahead = units < s->window ? (uint32_t)units : s->window;
    pk_result_t result = make_room(&s->job, units);

    if (result != PK_OK)
        return result;
    if (units > UINT32_MAX - s->window)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "%s: %zu packets are too many for one allreduce", s->name, units);
    s->job.in = in;
    s->job.out = out;
    s->job.count = count;
    s->job.units = units;
    s->job.unfit = 0;
    s->job.floats = dtype == PK_F32;
    s->job.sig = sig;
    s->job.disagree = false;
    s->busy = units > 0 && s->connection >= 0;
    s->now = s->heard = pki_now_ns();
    if (!s->busy)
        return PK_OK;
    pki_switchml_worker_begin(&s->worker, (uint32_t)units + (s->job.floats ? ahead : 0), ahead, s->now);
    for (uint32_t id = 0; id < ahead; id++) /* of floats these have exponents alone */
        send_packet(s, id);
    flush(s);
    return PK_OK;
}

/* Where packets have just come others may lie behind them, and no timer counts. */
static void send_again(struct pki_switchml *s, bool timers)
{
    uint32_t id;

    while ((id = timers ? pki_switchml_worker_late(&s->worker, s->now)
                        : pki_switchml_worker_overtaken(&s->worker, s->now)) != PKI_SWITCHML_NONE)
        send_packet(s, id);
}

/* The aggregator says nothing on it: what shows is its end. */
static pk_result_t look_at_connection(struct pki_switchml *s)
{
    char byte;
    ssize_t n = recv(s->connection, &byte, 1, MSG_DONTWAIT | MSG_PEEK);

    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return PK_OK;
    if (n < 0)
        return lost(s, errno);
    return pki_fail(PK_ERR_PEER, NULL, "%s has closed the connection", s->name);
}

pk_result_t pki_switchml_poll(struct pki_switchml *s, bool *moved, bool *done)
{
    pki_float_env was;
    int n;

    *moved = *done = false;
    if (!s->busy) {
        *moved = *done = true;
        return PK_OK;
    }
    s->now = pki_now_ns();
    was = pki_float_env_enter();
    n = pki_datagrams_receive(&s->datagrams, take_reply, s);
    if (n < 0)
        s->error = errno;
    if (n > 0)
        s->heard = s->now;
    send_again(s, n <= 0);
    pki_float_env_leave(was);
    flush(s);
    *moved = n > 0;
    if (s->job.disagree)
        return pki_fail(PK_ERR_MISMATCH, NULL,
                        "%s: another rank sends packets of another operation: other count, type or reduction", s->name);
    s->busy = !pki_switchml_worker_done(&s->worker);
    *done = !s->busy;
    if (*done)
        return PK_OK;
    if (s->error != 0 || (n <= 0 && ++s->looks % PKI_SWITCHML_POLLS == 0)) {
        pk_result_t result = look_at_connection(s); /* it often knows better */

        return result == PK_OK && s->error != 0 ? lost(s, s->error) : result;
    }
    return PK_OK;
}

/* ---- units that do not fit ---- */

size_t pki_switchml_unit(const struct pki_switchml *s)
{
    return s->elements;
}

size_t pki_switchml_unfit(const struct pki_switchml *s)
{
    return s->job.floats ? s->job.unfit : 0;
}

void pki_switchml_gather(const struct pki_switchml *s, float *units)
{
    for (size_t u = 0; u < s->job.units; u++) {
        const uint32_t n = length_of(s, u);

        if (fits(s, u))
            continue;
        memcpy(units, s->job.in + 4 * u * s->elements, 4 * (size_t)n);
        memset(units + n, 0, 4 * (size_t)(s->elements - n));
        units += s->elements;
    }
}

void pki_switchml_scatter(const struct pki_switchml *s, const float *units)
{
    for (size_t u = 0; u < s->job.units; u++) {
        if (fits(s, u))
            continue;
        memcpy(s->job.out + 4 * u * s->elements, units, 4 * (size_t)length_of(s, u));
        units += s->elements;
    }
}

/* ---- what others have to finish ---- */

size_t pki_switchml_units(const struct pki_switchml *s)
{
    return s->job.units;
}

void pki_switchml_owners(const struct pki_switchml *s, int rank, int32_t *owners)
{
    for (size_t u = 0; u < s->job.units; u++)
        owners[u] = s->job.summed[u] ? rank : PKI_SWITCHML_NOBODY;
}

void pki_switchml_contribute(const struct pki_switchml *s, int rank, const int32_t *owners)
{
    for (size_t u = 0; u < s->job.units; u++) {
        const size_t bytes = 4 * (size_t)length_of(s, u);
        char *out = s->job.out + 4 * u * s->elements;

        if (owners[u] == PKI_SWITCHML_NOBODY && s->job.in != s->job.out)
            memcpy(out, s->job.in + 4 * u * s->elements, bytes);
        else if (owners[u] != PKI_SWITCHML_NOBODY && owners[u] != rank)
            memset(out, 0, bytes);
    }
}

/* ---- the rest ---- */

void pki_switchml_leave(struct pki_switchml *s)
{
    s->busy = false;
    pki_datagrams_close(&s->datagrams);
    if (s->connection < 0)
        return;
    pki_fork_let_go(s->connection);
    close(s->connection);
    s->connection = -1;
}

uint64_t pki_switchml_silence(const struct pki_switchml *s, uint64_t now)
{
    return now > s->heard ? now - s->heard : 0;
}

void pki_switchml_close(struct pki_switchml *s)
{
    if (s == NULL)
        return;
    pki_switchml_leave(s);
    pki_switchml_worker_close(&s->worker);
    free(s->job.exponents);
    free(s->job.summed);
    free(s);
}

int pki_switchml_fd(const struct pki_switchml *s)
{
    return s->datagrams.fd;
}

const char *pki_switchml_name(const struct pki_switchml *s)
{
    return s->name;
}
