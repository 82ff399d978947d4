/* SPDX-License-Identifier: Apache-2.0 */
/* One slice of an allreduce: units of the buffer into packets, sums out of replies. */
#include <errno.h>
#include <string.h>

#include "device/float_env.h"
#include "switchml/internal.h"
#include "switchml/marks.h"
#include "switchml/sums.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/netif.h"

/* ---- units ---- */

uint32_t pki_switchml_unit_length(const struct pki_switchml_slice *l, size_t u)
{
    const uint32_t elements = l->session->elements;
    const size_t left = l->count - u * elements;

    return left < elements ? (uint32_t)left : elements;
}

size_t pki_switchml_unit_at(const struct pki_switchml_slice *l, size_t u)
{
    return 4 * (l->first + u * l->session->elements);
}

bool pki_switchml_unit_fits(const struct pki_switchml_slice *l, size_t u)
{
    return pki_switchml_fits(l->session->job.exponents[l->unit + u], l->session->size);
}

static float scale_of(const struct pki_switchml_slice *l, size_t u)
{
    return pki_switchml_scale(l->session->job.exponents[l->unit + u], l->session->size);
}

/* The values of unit `u` for a packet; elements that it has not are zeros. */
static void fill(const struct pki_switchml_slice *l, size_t u, unsigned char *values)
{
    const struct pki_switchml_job *j = &l->session->job;
    const uint32_t n = pki_switchml_unit_length(l, u), elements = l->session->elements;
    const char *in = j->in + pki_switchml_unit_at(l, u);

    if (n < elements)
        memset(values + 4 * (size_t)n, 0, 4 * (size_t)(elements - n));
    if (!j->floats)
        pki_switchml_swap(values, in, n);
    else if (pki_switchml_unit_fits(l, u))
        pki_switchml_quantise(values, (const void *)in, n, scale_of(l, u));
    else
        memset(values, 0, 4 * (size_t)n);
}

static void keep_sums(struct pki_switchml_slice *l, size_t u, const unsigned char *values)
{
    const struct pki_switchml_job *j = &l->session->job;
    const uint32_t n = pki_switchml_unit_length(l, u);
    char *out = j->out + pki_switchml_unit_at(l, u);

    j->summed[l->unit + u] = !j->floats || pki_switchml_unit_fits(l, u);
    if (!j->floats)
        pki_switchml_swap(out, values, n);
    else if (j->summed[l->unit + u])
        pki_switchml_restore((void *)out, values, n, scale_of(l, u));
}

/* ---- packets ---- */

static bool has_exponent(const struct pki_switchml_slice *l, uint32_t id)
{
    return l->session->job.floats && id < l->units;
}

static void tell_error(struct pki_switchml_slice *l, int error)
{
    int none = 0;

    if (error != 0 && pki_datagrams_is_passing(error))
        atomic_store_explicit(&l->passing, error, memory_order_relaxed);
    else if (error != 0)
        (void)atomic_compare_exchange_strong(&l->error, &none, error);
}

/* Of floats packet p has the exponent of unit p, and the values of the unit whose exponent came back in the reply to packet p -
 * ahead. */
static void send_packet(struct pki_switchml_slice *l, uint32_t id)
{
    struct pki_switchml_packet packet = { .id = id, .index = pki_switchml_worker_index(&l->worker, id), .job = l->worker.job };
    const struct pki_switchml_job *j = &l->session->job;
    const uint32_t elements = l->session->elements;
    const size_t behind = j->floats ? l->worker.ahead : 0;
    unsigned char *bytes = pki_datagrams_add(&l->datagrams, NULL, pki_switchml_packet_bytes(elements));
    unsigned char *values = bytes + PKI_SWITCHML_HEADER_BYTES;

    pki_switchml_mark(j->operation, has_exponent(l, id), &packet);
    if (has_exponent(l, id))
        packet.exponents[0] = pki_switchml_exponent((const float *)(const void *)(j->in + pki_switchml_unit_at(l, id)),
                                                    pki_switchml_unit_length(l, id), l->session->size);
    if (id >= behind)
        fill(l, id - behind, values);
    else
        memset(values, 0, 4 * (size_t)elements);
    pki_switchml_pack(&packet, elements, bytes);
}

/* A reply with other marks is not taken, so its packet goes again. The network may have kept it since long ago; but where such
 * replies come again and again the ranks do not call the same. */
static bool is_of_this(struct pki_switchml_slice *l, const struct pki_switchml_packet *reply)
{
    const enum pki_switchml_marked marked = pki_switchml_marked(l->session->job.operation, has_exponent(l, reply->id), reply);

    if (marked == PKI_SWITCHML_MIXED && ++l->mixed >= pki_tuning.switchml.mixed_most)
        atomic_store_explicit(&l->disagree, true, memory_order_relaxed);
    return marked == PKI_SWITCHML_OWN;
}

void pki_switchml_slice_take(void *arg, const unsigned char *data, size_t bytes, const struct sockaddr_storage *from)
{
    struct pki_switchml_slice *l = arg;
    struct pki_switchml_job *j = &l->session->job;
    struct pki_switchml_packet packet;
    const size_t behind = j->floats ? l->worker.ahead : 0;
    uint32_t next[2];

    if (!pki_netif_same(from, &l->session->peer)) { /* it came before the socket was connected */
        l->strangers++;
        return;
    }
    if (!pki_switchml_unpack(data, bytes, l->session->elements, &packet) || !pki_switchml_worker_awaits(&l->worker, &packet) ||
        !is_of_this(l, &packet))
        return;
    pki_switchml_worker_reply(&l->worker, &packet, l->now, next);
    if (has_exponent(l, packet.id)) {
        j->exponents[l->unit + packet.id] = packet.exponents[0];
        l->unfit += !pki_switchml_unit_fits(l, packet.id);
    }
    if (packet.id >= behind)
        keep_sums(l, packet.id - behind, data + PKI_SWITCHML_HEADER_BYTES);
    for (int i = 0; i < 2; i++)
        if (next[i] != PKI_SWITCHML_NONE)
            send_packet(l, next[i]);
}

/* ---- what a thread does ---- */

void pki_switchml_slice_begin(struct pki_switchml_slice *l, uint64_t now)
{
    const uint32_t units = (uint32_t)l->units, ahead = units < l->worker.window ? units : l->worker.window;

    l->now = now;
    pki_switchml_worker_begin(&l->worker, units + (l->session->job.floats ? ahead : 0), ahead, now);
    for (uint32_t id = 0; id < ahead; id++) /* of floats these have exponents alone */
        send_packet(l, id);
    tell_error(l, pki_datagrams_flush(&l->datagrams));
}

/* Where packets have just come others may lie behind them, and no timer counts. */
static void send_again(struct pki_switchml_slice *l, bool timers)
{
    uint32_t id;

    while ((id = timers ? pki_switchml_worker_late(&l->worker, l->now) : pki_switchml_worker_overtaken(&l->worker, l->now)) !=
           PKI_SWITCHML_NONE)
        send_packet(l, id);
}

int pki_switchml_slice_step(struct pki_switchml_slice *l)
{
    pki_float_env was;
    int n;

    l->now = pki_now_ns();
    was = pki_float_env_enter();
    n = pki_datagrams_receive(&l->datagrams, pki_switchml_slice_take, l);
    if (n < 0)
        tell_error(l, errno);
    if (n > 0)
        atomic_store_explicit(&l->heard, l->now, memory_order_relaxed);
    send_again(l, n <= 0);
    pki_float_env_leave(was);
    tell_error(l, pki_datagrams_flush(&l->datagrams));
    return n > 0 ? n : 0;
}

bool pki_switchml_slice_over(const struct pki_switchml_slice *l)
{
    return pki_switchml_worker_done(&l->worker) || atomic_load_explicit(&l->error, memory_order_relaxed) != 0 ||
           atomic_load_explicit(&l->disagree, memory_order_relaxed);
}
