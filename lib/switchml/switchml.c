/* SPDX-License-Identifier: Apache-2.0 */
/* The allreduces of one rank. How the session begins is in join.c, what becomes of units and packets in slice.c. */
#include "switchml/switchml.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "switchml/internal.h"
#include "switchml/marks.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/fork.h"
#include "util/log.h"

bool pki_switchml_sums(pk_dtype_t dtype, pk_op_t op)
{
    return op == PK_SUM && (dtype == PK_F32 || dtype == PK_INT32);
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

/* Which elements are whose. Returns how many units they make. */
static size_t cut(struct pki_switchml *s, size_t count)
{
    size_t units = 0;

    for (uint32_t i = 0; i < s->nslices; i++) {
        struct pki_switchml_slice *l = &s->slices[i];

        pki_switchml_share(count, s->nslices, i, &l->first, &l->count);
        l->unit = units;
        l->units = (l->count + s->elements - 1) / s->elements;
        units += l->units;
    }
    return units;
}

pk_result_t pki_switchml_begin(struct pki_switchml *s, const void *in, void *out, size_t count, pk_dtype_t dtype, uint64_t number,
                               uint32_t sig)
{
    const uint64_t now = pki_now_ns();
    const size_t units = cut(s, count);
    pk_result_t result = make_room(&s->job, units);

    if (result != PK_OK)
        return result;
    if (units > UINT32_MAX - s->window)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "%s: %zu packets are too many for one allreduce", s->name, units);
    s->job.in = in;
    s->job.out = out;
    s->job.units = units;
    s->job.floats = dtype == PK_F32;
    s->job.operation = pki_switchml_operation(s->id, number, sig);
    s->busy = units > 0 && s->connection >= 0;
    s->standing[0] = '\0';
    s->failing_since = 0;
    for (uint32_t i = 0; i < s->nslices; i++) {
        s->slices[i].unfit = 0;
        s->slices[i].mixed = 0;
        atomic_store_explicit(&s->slices[i].disagree, false, memory_order_relaxed);
        atomic_store_explicit(&s->slices[i].passing, 0, memory_order_relaxed);
        atomic_store_explicit(&s->slices[i].heard, now, memory_order_relaxed);
    }
    if (!s->busy)
        return PK_OK;
    pki_switchml_threads_go(s);
    pki_switchml_slice_begin(&s->slices[0], now);
    return PK_OK;
}

/* The aggregator says nothing on it: what shows is its end. */
static pk_result_t look_at_connection(struct pki_switchml *s)
{
    char byte;
    ssize_t n = recv(s->connection, &byte, 1, MSG_DONTWAIT | MSG_PEEK);

    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return PK_OK;
    if (n < 0)
        return pki_fail_errno(PK_ERR_PEER, NULL, "%s", s->name);
    return pki_fail(PK_ERR_PEER, NULL, "%s has closed the connection", s->name);
}

static bool disagree(const struct pki_switchml *s)
{
    for (uint32_t i = 0; i < s->nslices; i++)
        if (atomic_load_explicit(&s->slices[i].disagree, memory_order_relaxed))
            return true;
    return false;
}

/* All threads rest. */
static bool all_done(const struct pki_switchml *s)
{
    for (uint32_t i = 0; i < s->nslices; i++)
        if (!pki_switchml_worker_done(&s->slices[i].worker))
            return false;
    return true;
}

/* An error that may pass, of any slice, or 0. The connection may know more of it; if not, a deadline tells of it. */
static int take_passing(struct pki_switchml *s)
{
    char why[80];
    int last = 0;

    for (uint32_t i = 0; i < s->nslices; i++) {
        const int error = atomic_exchange_explicit(&s->slices[i].passing, 0, memory_order_relaxed);

        last = error != 0 ? error : last;
    }
    if (last != 0)
        (void)snprintf(s->standing, sizeof s->standing, "%s (its packets: %s)", s->name, strerror_r(last, why, sizeof why));
    return last;
}

/* Such errors for as long as a silent host takes to be gone, and no packet since the first: none comes through. */
static bool stays(struct pki_switchml *s, uint64_t now)
{
    if (s->failing_since == 0 || pki_switchml_idle_ns(s, now) < now - s->failing_since)
        s->failing_since = now;
    return now - s->failing_since >= pki_tuning.switchml.gone_ns;
}

static pk_result_t look_at_errors(struct pki_switchml *s, bool connection)
{
    uint32_t i = 0;
    int error = 0;

    while (i < s->nslices && (error = atomic_load_explicit(&s->slices[i].error, memory_order_relaxed)) == 0)
        i++;
    if (error != 0 || connection) {
        pk_result_t result = look_at_connection(s); /* it often knows better */

        if (result != PK_OK || error == 0)
            return result;
        errno = error;
        return s->nslices == 1 ? pki_fail_errno(PK_ERR_PEER, NULL, "%s", s->name)
                               : pki_fail_errno(PK_ERR_PEER, NULL, "%s, packets of thread %u", s->name, i);
    }
    return PK_OK;
}

pk_result_t pki_switchml_poll(struct pki_switchml *s, bool *moved, bool *done)
{
    const uint32_t rested = s->threads.resting;
    uint32_t resting;
    pk_result_t result;
    int n, passing;

    *moved = *done = false;
    if (!s->busy) {
        *moved = *done = true;
        return PK_OK;
    }
    n = pki_switchml_slice_step(&s->slices[0]);
    resting = pki_switchml_threads_resting(s);
    *moved = n > 0 || resting != rested;
    if (disagree(s))
        return pki_fail(PK_ERR_MISMATCH, NULL,
                        "%s: another rank sends packets of another operation: the order of its calls, or a count, type or "
                        "reduction, differs",
                        s->name);
    s->busy = resting < s->nslices - 1 || !all_done(s);
    *done = !s->busy;
    if (*done)
        return PK_OK;
    passing = take_passing(s);
    result = look_at_errors(s, passing != 0 || (n == 0 && ++s->looks % PKI_SWITCHML_POLLS == 0));
    if (result != PK_OK || passing == 0 || !stays(s, s->slices[0].now))
        return result;
    errno = passing;
    return pki_fail_errno(PK_ERR_PEER, NULL, "%s: no packet comes through", s->name);
}

void pki_switchml_stop(struct pki_switchml *s)
{
    pki_switchml_threads_stop(s);
}

/* ---- units that do not fit ---- */

size_t pki_switchml_unit(const struct pki_switchml *s)
{
    return s->elements;
}

size_t pki_switchml_unfit(const struct pki_switchml *s)
{
    size_t unfit = 0;

    for (uint32_t i = 0; i < s->nslices && s->job.floats; i++)
        unfit += s->slices[i].unfit;
    return unfit;
}

/* The next unit of the job, in order, that no scale fits: unit *u of slice *i, or of one behind it. False: there is none. */
static bool next_unfit(const struct pki_switchml *s, uint32_t *i, size_t *u)
{
    for (; *i < s->nslices; ++*i, *u = 0)
        for (; *u < s->slices[*i].units; ++*u)
            if (!pki_switchml_unit_fits(&s->slices[*i], *u))
                return true;
    return false;
}

void pki_switchml_gather(const struct pki_switchml *s, float *units)
{
    uint32_t i = 0;

    for (size_t u = 0; next_unfit(s, &i, &u); u++) {
        const uint32_t n = pki_switchml_unit_length(&s->slices[i], u);

        memcpy(units, s->job.in + pki_switchml_unit_at(&s->slices[i], u), 4 * (size_t)n);
        memset(units + n, 0, 4 * (size_t)(s->elements - n));
        units += s->elements;
    }
}

void pki_switchml_scatter(const struct pki_switchml *s, const float *units)
{
    uint32_t i = 0;

    for (size_t u = 0; next_unfit(s, &i, &u); u++) {
        const struct pki_switchml_slice *l = &s->slices[i];

        memcpy(s->job.out + pki_switchml_unit_at(l, u), units, 4 * (size_t)pki_switchml_unit_length(l, u));
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

static void contribute(const struct pki_switchml_slice *l, size_t u, int rank, int32_t owner)
{
    const struct pki_switchml_job *j = &l->session->job;
    const size_t bytes = 4 * (size_t)pki_switchml_unit_length(l, u);
    char *out = j->out + pki_switchml_unit_at(l, u);

    if (owner == PKI_SWITCHML_NOBODY && j->in != j->out)
        memcpy(out, j->in + pki_switchml_unit_at(l, u), bytes);
    else if (owner != PKI_SWITCHML_NOBODY && owner != rank)
        memset(out, 0, bytes);
}

void pki_switchml_contribute(const struct pki_switchml *s, int rank, const int32_t *owners)
{
    for (uint32_t i = 0; i < s->nslices; i++)
        for (size_t u = 0; u < s->slices[i].units; u++)
            contribute(&s->slices[i], u, rank, owners[s->slices[i].unit + u]);
}

/* ---- the rest ---- */

void pki_switchml_leave(struct pki_switchml *s)
{
    uint64_t strangers = 0;

    s->busy = false;
    pki_switchml_threads_stop(s);
    for (uint32_t i = 0; i < s->nslices; i++) {
        pki_datagrams_close(&s->slices[i].datagrams);
        strangers += s->slices[i].strangers;
    }
    if (s->connection < 0)
        return;
    if (strangers > 0)
        pki_log(PKI_LOG_INFO, NULL, "%s: %llu packets of others had come to the ports of this rank", s->name,
                (unsigned long long)strangers);
    pki_fork_let_go(s->connection);
    close(s->connection);
    s->connection = -1;
}

uint64_t pki_switchml_idle_ns(const struct pki_switchml *s, uint64_t now)
{
    uint64_t last = 0;

    for (uint32_t i = 0; i < s->nslices; i++) {
        const uint64_t heard = atomic_load_explicit(&s->slices[i].heard, memory_order_relaxed);

        last = heard > last ? heard : last;
    }
    return now > last ? now - last : 0;
}

void pki_switchml_close(struct pki_switchml *s)
{
    if (s == NULL)
        return;
    pki_switchml_leave(s);
    pki_switchml_threads_end(s);
    for (uint32_t i = 0; i < s->nslices; i++)
        pki_switchml_worker_close(&s->slices[i].worker);
    free(s->job.exponents);
    free(s->job.summed);
    free(s);
}

int pki_switchml_fd(const struct pki_switchml *s)
{
    if (s->nslices == 1 || s->connection < 0)
        return s->slices[0].datagrams.fd;
    return s->threads.both;
}

const char *pki_switchml_name(const struct pki_switchml *s)
{
    return s->standing[0] != '\0' ? s->standing : s->name;
}
