/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations in CUDA streams of two ranks of which one is early, and what may go wrong between them: many ahead, in groups, behind a stream that is
 * held up, declined, aborted, killed. MODE says which (rank_main); NO_SM=1 without kernels; the other variables are numbers of the modes.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"

#define TIMEOUT_MS 20000
#define BYTES ((size_t)number("KIB", 64) << 10)

enum { QUEUED = 1, GO = 2 };

static int number(const char *name, int usual)
{
    return getenv(name) != NULL ? atoi(getenv(name)) : usual;
}

static pk_result_t coll(const void *in, void *out, pk_comm_t *comm, pk_stream_t stream)
{
    switch (number("COLL", 0)) {
    case 0:
        return pk_allgather(in, out, BYTES, PK_UINT8, comm, stream);
    case 1:
        return pk_broadcast(out, out, BYTES, PK_UINT8, 0, comm, stream);
    case 2:
        return pk_alltoall(out, (char *)out + 2 * BYTES, BYTES, PK_UINT8, comm, stream);
    default:
        return pk_broadcast(out, out, BYTES, PK_UINT8, 1, comm, stream);
    }
}

static _Atomic int64_t *word(int w)
{
    return &ranks_shared()->words[w];
}

static void until(int w, int64_t v)
{
    double end = monotonic_ms() + 20000;

    while (atomic_load(word(w)) < v && monotonic_ms() < end)
        usleep(500);
}

static void say(struct gpu_rank *self, const char *what, pk_result_t result, double begun)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result != PK_OK)
        pk_last_error(&info);
    report(result == PK_OK, "rank %d: %s: %s after %.0f ms %.260s", self->rank, what, pk_strerror(result), monotonic_ms() - begun,
           result != PK_OK ? info.text : "");
}

static void let_go(const struct gpu_rank *self, gpu_stream_t other, uint32_t *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    report(stream_idle_within(other, 20000, NULL) && stream_idle_within(self->stream, 20000, NULL), "rank %d: streams are over",
           self->rank);
}

/* rank 0 queues n allgathers without rank 1 calling */
static void ahead(struct gpu_rank *self)
{
    int n = number("N", 100);
    char *in = gpu_alloc(BYTES), *out = gpu_alloc(4 * BYTES);
    double begun;
    pk_result_t result = PK_OK;

    ranks_meet();
    begun = monotonic_ms();
    if (self->rank == 1)
        until(QUEUED, 1);
    for (int i = 0; i < n && result == PK_OK; i++) {
        result = coll(in, out, self->comm, self->in_stream);
        if (result != PK_OK)
            printf("rank %d: stopped at %d\n", self->rank, i);
    }
    atomic_store(word(QUEUED), 1);
    say(self, "queued ahead", result, begun);
    report(stream_idle_within(self->stream, 20000, NULL), "rank %d: stream is over", self->rank);
}

static void group(struct gpu_rank *self)
{
    int n = number("N", 100);
    char *in = gpu_alloc(BYTES), *out = gpu_alloc(2 * BYTES * (size_t)(n + 2));
    double begun;
    pk_result_t result = PK_OK;

    ranks_meet();
    begun = monotonic_ms();
    if (self->rank == 1)
        usleep(300000);
    pk_group_start();
    for (int i = 0; i < n; i++)
        coll(in, out + 2 * BYTES * (size_t)i, self->comm, self->in_stream);
    result = pk_group_end();
    say(self, "group", result, begun);
    report(stream_idle_within(self->stream, 20000, NULL), "rank %d: stream is over", self->rank);
}

/* A barrier in a stream that is held up, and 64 in another. */
static void barriers(struct gpu_rank *self)
{
    int n = number("N", 64);
    gpu_stream_t other = gpu_stream_new();
    uint32_t *flag = gpu_host_alloc(sizeof *flag);
    gpu_kernel_t kernel = spin_kernel();
    bool over;

    *flag = 0;
    ranks_meet();
    if (self->rank == 0) {
        spin_launch(kernel, 1, 32, flag, self->stream);
        must_be_ok(pk_barrier(self->comm, self->in_stream), "held barrier");
        for (int i = 0; i < n; i++)
            must_be_ok(pk_barrier(self->comm, PK_CUDA_STREAM(other)), "barrier");
        usleep(500000); /* the last word is there now */
        __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
        usleep(500000);
        atomic_store(word(GO), 1);
    } else {
        must_be_ok(pk_barrier(self->comm, self->in_stream), "held barrier");
        for (int i = 0; i < n - 1; i++)
            must_be_ok(pk_barrier(self->comm, PK_CUDA_STREAM(other)), "barrier");
        spin_launch(kernel, 1, 32, flag, other);
        must_be_ok(pk_barrier(self->comm, PK_CUDA_STREAM(other)), "last barrier");
        until(GO, 1);
        __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    }
    over = stream_idle_within(other, 3000, NULL);
    report(over, "rank %d: other stream is over", self->rank);
    over = stream_idle_within(self->stream, 3000, NULL);
    report(over, "rank %d: held stream is over", self->rank);
    say(self, "state", pk_comm_async_error(self->comm), monotonic_ms());
    stream_idle_within(other, 20000, NULL);
}

/* One send in a held stream, 1,024 more in another; the program lets the first go when it has called all. */
static void sends(struct gpu_rank *self)
{
    int n = number("N", 1030);
    gpu_stream_t other = gpu_stream_new();
    uint32_t *flag = gpu_host_alloc(sizeof *flag);
    gpu_kernel_t kernel = spin_kernel();
    char *buf = gpu_alloc(BYTES);
    pk_result_t result = PK_OK;
    double begun;

    *flag = 0;
    ranks_meet();
    begun = monotonic_ms();
    if (self->rank == 0) {
        spin_launch(kernel, 1, 32, flag, self->stream);
        must_be_ok(pk_send(buf, BYTES, PK_UINT8, 1, self->comm, self->in_stream), "held");
        atomic_store(word(GO), 1);
        usleep(100000);
    } else {
        until(GO, 1);
        must_be_ok(pk_recv(buf, BYTES, PK_UINT8, 0, self->comm, self->in_stream), "held");
    }
    for (int i = 0; i < n && result == PK_OK; i++) {
        if (self->rank == 1)
            usleep(200);
        result = self->rank == 0 ? pk_send(buf, BYTES, PK_UINT8, 1, self->comm, PK_CUDA_STREAM(other))
                                 : pk_recv(buf, BYTES, PK_UINT8, 0, self->comm, PK_CUDA_STREAM(other));
        if (result != PK_OK)
            printf("rank %d: stopped at %d\n", self->rank, i);
    }
    say(self, "all called", result, begun);
    let_go(self, other, flag);
}

/* One allgather in a held stream, 64 more in another. */
static void held_coll(struct gpu_rank *self)
{
    int n = number("N", 70);
    gpu_stream_t other = gpu_stream_new();
    uint32_t *flag = gpu_host_alloc(sizeof *flag);
    gpu_kernel_t kernel = spin_kernel();
    char *in = gpu_alloc(BYTES), *out = gpu_alloc(4 * BYTES), *out2 = gpu_alloc(4 * BYTES);
    pk_result_t result = PK_OK;
    double begun;

    *flag = 0;
    ranks_meet();
    begun = monotonic_ms();
    if (self->rank == 0) {
        spin_launch(kernel, 1, 32, flag, self->stream);
        must_be_ok(coll(in, out, self->comm, self->in_stream), "held");
        atomic_store(word(GO), 1);
    } else {
        until(GO, 1);
        must_be_ok(coll(in, out, self->comm, self->in_stream), "held");
    }
    for (int i = 0; i < n && result == PK_OK; i++) {
        if (self->rank == 1)
            usleep(1000);
        result = coll(in, out2, self->comm, PK_CUDA_STREAM(other));
        if (result != PK_OK)
            printf("rank %d: stopped at %d\n", self->rank, i);
    }
    say(self, "all called", result, begun);
    let_go(self, other, flag);
}

/* Rank 1 has host memory. */
static void declined(struct gpu_rank *self)
{
    int n = number("N", 100);
    char *in = gpu_alloc(BYTES), *out = gpu_alloc(4 * BYTES), *hin = calloc(1, BYTES), *hout = calloc(4, BYTES);
    pk_result_t result = PK_OK;
    double begun;

    ranks_meet();
    begun = monotonic_ms();
    for (int i = 0; i < n && result == PK_OK; i++) {
        result = self->rank == 0 ? coll(in, out, self->comm, self->in_stream) : coll(hin, hout, self->comm, PK_BLOCKING);
        if (result != PK_OK)
            printf("rank %d: stopped at %d\n", self->rank, i);
    }
    say(self, "mixed", result, begun);
    report(stream_idle_within(self->stream, 20000, NULL), "rank %d: stream is over", self->rank);
}

/* Rank 1 has 1,030 receives without a CUDA stream pending, and then one in a stream. */
static void slots(struct gpu_rank *self)
{
    int n = number("N", 1030);
    pk_stream_t host;
    char *buf = gpu_alloc(BYTES);
    pk_result_t result = PK_OK;
    double begun;

    must_be_ok(pk_stream_create(&host), "pk_stream_create");
    ranks_meet();
    begun = monotonic_ms();
    if (self->rank == 1) {
        pk_group_start();
        for (int i = 0; i < n; i++)
            pk_recv(buf, BYTES, PK_UINT8, 0, self->comm, host);
        result = pk_group_end();
        say(self, "receives in a host stream", result, begun);
        begun = monotonic_ms();
        result = pk_recv(buf, BYTES, PK_UINT8, 0, self->comm, self->in_stream);
        atomic_store(word(GO), 1);
        say(self, "receive in a cuda stream", result, begun);
    } else {
        if (number("WAIT", 0))
            until(GO, 1);
        else
            usleep(1000000);
        for (int i = 0; i < n + 1 && result == PK_OK; i++)
            result = pk_send(buf, BYTES, PK_UINT8, 1, self->comm, i < n ? PK_BLOCKING : self->in_stream);
        say(self, "sends", result, begun);
    }
    report(stream_idle_within(self->stream, 20000, NULL), "rank %d: stream is over", self->rank);
    if (self->rank == 1)
        say(self, "host stream", pk_stream_synchronize(host), begun);
}

/* Rank 0 has offered, and its stream is held up; rank 1 has taken; rank 0 aborts. */
static void aborted(struct gpu_rank *self)
{
    pk_stream_t host;
    uint32_t *flag = gpu_host_alloc(sizeof *flag);
    gpu_kernel_t kernel = spin_kernel();
    char *buf = gpu_alloc(BYTES * 64);
    pk_result_t result = PK_OK;
    int blocking = number("BLOCKING", 0);
    double begun;

    *flag = 0;
    must_be_ok(pk_stream_create(&host), "pk_stream_create");
    ranks_meet();
    begun = monotonic_ms();
    if (self->rank == 0) {
        spin_launch(kernel, 1, 32, flag, self->stream);
        must_be_ok(pk_send(buf, BYTES * 64, PK_UINT8, 1, self->comm, self->in_stream), "held");
        atomic_store(word(GO), 1);
        until(QUEUED, 1);
        usleep(300000);
        pk_comm_abort(self->comm);
    } else {
        until(GO, 1);
        result = pk_recv(buf, BYTES * 64, PK_UINT8, 0, self->comm, blocking ? host : self->in_stream);
        atomic_store(word(QUEUED), 1);
        say(self, "called", result, begun);
        if (blocking) {
            result = pk_stream_synchronize(host);
            report(result != PK_OK, "rank %d: the receive whose sender aborted: %s", self->rank, pk_strerror(result));
        }
        report(stream_idle_within(self->stream, 5000, NULL), "rank %d: stream is let go", self->rank);
        result = pk_comm_async_error(self->comm);
        report(result != PK_OK, "rank %d: async error %s", self->rank, pk_strerror(result));
        report(stream_idle_within(self->stream, 3000, NULL), "rank %d: stream is let go once the error is known", self->rank);
    }
    ranks_meet();
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    report(stream_idle_within(self->stream, 5000, NULL), "rank %d: stream is let go in the end", self->rank);
    fflush(stdout);
    _exit(report_end());
}

/* Rank 1 receives without a CUDA stream; rank 0 aborts as soon as that has been called. PK_OK must mean that the bytes are there. */
static void false_ok(struct gpu_rank *self)
{
    pk_stream_t host;
    char *buf = gpu_alloc(BYTES * 64);
    pk_result_t result;

    must_be_ok(pk_stream_create(&host), "pk_stream_create");
    pattern_to_gpu(buf, BYTES * 64, (uint64_t)self->rank + 1);
    ranks_meet();
    if (self->rank == 0) {
        must_be_ok(pk_send(buf, BYTES * 64, PK_UINT8, 1, self->comm, self->in_stream), "send");
        atomic_store(word(GO), 1);
        until(QUEUED, 1);
        usleep((useconds_t)number("LATER_US", 100000));
        pk_comm_abort(self->comm);
    } else {
        until(GO, 1);
        must_be_ok(pk_recv(buf, BYTES * 64, PK_UINT8, 0, self->comm, host), "recv");
        atomic_store(word(QUEUED), 1);
        result = pk_stream_synchronize(host);
        report(result != PK_OK || pattern_wrong_on_gpu(buf, BYTES * 64, 1) == BYTES * 64,
               "rank 1: %s, and the first wrong byte is %zu", pk_strerror(result), pattern_wrong_on_gpu(buf, BYTES * 64, 1));
        report(stream_idle_within(self->stream, 5000, NULL), "rank %d: stream is let go", self->rank);
    }
    ranks_meet();
    fflush(stdout);
    _exit(report_end());
}

/* Lengths that do not match, the sender first. */
static void mismatch(struct gpu_rank *self)
{
    char *buf = gpu_alloc(BYTES * 64);
    pk_result_t result;

    ranks_meet();
    if (self->rank == 0) {
        result = pk_send(buf, BYTES, PK_UINT8, 1, self->comm, self->in_stream);
        say(self, "send", result, monotonic_ms());
        atomic_store(word(GO), 1);
    } else {
        until(GO, 1);
        result = pk_recv(buf, BYTES * 2, PK_UINT8, 0, self->comm, self->in_stream);
        say(self, "recv", result, monotonic_ms());
    }
    report(stream_idle_within(self->stream, 3000, NULL), "rank %d: stream is let go", self->rank);
    say(self, "state", pk_comm_async_error(self->comm), monotonic_ms());
    ranks_meet();
    fflush(stdout);
    _exit(report_end());
}

/* One of the two dies; the other's stream is let go. VICTIM 0: the sender, whose stream is held up; 1: the receiver, whose stream is. */
static void killed(struct gpu_rank *self)
{
    uint32_t *flag = gpu_host_alloc(sizeof *flag);
    gpu_kernel_t kernel = spin_kernel();
    char *buf = gpu_alloc(BYTES);
    int victim = number("VICTIM", 0);

    *flag = 0;
    ranks_meet();
    if (self->rank == victim)
        spin_launch(kernel, 1, 32, flag, self->stream);
    if (self->rank == 0) {
        must_be_ok(pk_send(buf, BYTES, PK_UINT8, 1, self->comm, self->in_stream), "send");
        atomic_store(word(GO), 1);
    } else {
        until(GO, 1);
        must_be_ok(pk_recv(buf, BYTES, PK_UINT8, 0, self->comm, self->in_stream), "recv");
        atomic_store(word(QUEUED), 1);
    }
    until(QUEUED, 1);
    usleep(200000);
    if (self->rank == victim)
        kill(getpid(), SIGKILL);
    report(stream_idle_within(self->stream, 3000, NULL), "rank %d: stream is let go", self->rank);
    say(self, "state", pk_comm_async_error(self->comm), monotonic_ms());
    fflush(stdout);
    _exit(report_end());
}

/* Rank 0: an allgather, then a send, in one stream. Rank 1: both in one group, in one stream, after rank 0 has called. */
static void fused_group(struct gpu_rank *self)
{
    char *in = gpu_alloc(BYTES), *out = gpu_alloc(2 * BYTES), *buf = gpu_alloc(BYTES * 16);

    ranks_meet();
    if (self->rank == 0) {
        must_be_ok(number("BARRIER", 0) ? pk_barrier(self->comm, self->in_stream)
                                        : pk_allgather(in, out, BYTES, PK_UINT8, self->comm, self->in_stream),
                   "allgather");
        must_be_ok(pk_send(buf, BYTES * 16, PK_UINT8, 1, self->comm, self->in_stream), "send");
        atomic_store(word(GO), 1);
    } else {
        until(GO, 1);
        pk_group_start();
        must_be_ok(number("BARRIER", 0) ? pk_barrier(self->comm, self->in_stream)
                                        : pk_allgather(in, out, BYTES, PK_UINT8, self->comm, self->in_stream),
                   "allgather");
        must_be_ok(pk_recv(buf, BYTES * 16, PK_UINT8, 0, self->comm, self->in_stream), "recv");
        must_be_ok(pk_group_end(), "group");
    }
    report(stream_idle_within(self->stream, 3000, NULL), "rank %d: stream is over", self->rank);
}

/* A scatterv, in place, of which rank 0, the root, sends nothing. */
static void empty(struct gpu_rank *self)
{
    char *buf = gpu_alloc(BYTES);
    const size_t counts[2] = { BYTES, 0 }, offsets[2] = { 0, BYTES };

    ranks_meet();
    must_be_ok(pk_scatterv(self->rank == 0 ? buf : NULL, counts, offsets, buf, counts[self->rank], PK_UINT8, 0, self->comm,
                           self->in_stream),
               "scatterv");
    report(stream_idle_within(self->stream, 3000, NULL), "rank %d: stream is over", self->rank);
    must_be_ok(pk_barrier(self->comm, PK_BLOCKING), "barrier");
    report(true, "rank %d: goes on", self->rank);
}

/* Alltoall in place, by the plan; the copies into scratch take a while. */
static void in_place(struct gpu_rank *self)
{
    char *buf = gpu_alloc(4 * BYTES), *host = malloc(2 * BYTES);
    int wrong = 0;

    for (int turn = 0; turn < 60; turn++) {
        memset(host, turn * 4 + self->rank * 2, BYTES);
        memset(host + BYTES, turn * 4 + self->rank * 2 + 1, BYTES);
        gpu_copy(buf, host, 2 * BYTES);
        ranks_meet();
        if (turn % 3 != 0 && turn % 2 == self->rank)
            usleep(2000);
        must_be_ok(pk_alltoall(buf, buf, BYTES, PK_UINT8, self->comm, self->in_stream), "alltoall");
        report(stream_idle_within(self->stream, 3000, NULL), "rank %d: turn %d is over", self->rank, turn);
        gpu_copy(host, buf, 2 * BYTES);
        for (int p = 0; p < 2; p++)
            if ((unsigned char)host[(size_t)p * BYTES] != (unsigned char)(turn * 4 + p * 2 + self->rank))
                wrong++;
    }
    report(wrong == 0, "rank %d: %d blocks are wrong", self->rank, wrong);
}

static void *abort_soon(void *arg)
{
    struct gpu_rank *self = arg;
    double begun;

    until(GO, 1);
    usleep(1000000);
    begun = monotonic_ms();
    pk_comm_abort(self->comm);
    report(monotonic_ms() - begun < 100, "rank %d: abort took %.0f ms", self->rank, monotonic_ms() - begun);
    return NULL;
}

static void abort_ahead(struct gpu_rank *self)
{
    char *in = gpu_alloc(BYTES), *out = gpu_alloc(4 * BYTES);
    pthread_t thread;
    double begun;
    pk_result_t result = PK_OK;

    ranks_meet();
    if (self->rank == 1) {
        until(QUEUED, 1);
    } else {
        pthread_create(&thread, NULL, abort_soon, self);
        begun = monotonic_ms();
        atomic_store(word(GO), 1);
        for (int i = 0; i < 200 && result == PK_OK; i++)
            result = coll(in, out, self->comm, self->in_stream);
        report(monotonic_ms() - begun < 1300, "rank 0: the call ended after %.0f ms, %s", monotonic_ms() - begun,
               pk_strerror(result));
        pthread_join(thread, NULL);
        report(stream_idle_within(self->stream, 1000, NULL), "rank %d: stream is let go", self->rank);
        atomic_store(word(QUEUED), 1);
    }
    ranks_meet();
    fflush(stdout);
    _exit(report_end());
}

static const struct {
    const char *name;
    void (*run)(struct gpu_rank *self);
} modes[] = {
    { "ahead", ahead },       { "group", group },         { "barriers", barriers },
    { "sends", sends },       { "held_coll", held_coll }, { "declined", declined },
    { "slots", slots },       { "aborted", aborted },     { "fused_group", fused_group },
    { "empty", empty },       { "in_place", in_place },   { "false_ok", false_ok },
    { "mismatch", mismatch }, { "killed", killed },       { "abort_ahead", abort_ahead },
};

static int rank_main(void)
{
    const char *mode = getenv("MODE");
    struct gpu_rank self;
    bool found = false;

    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu_rank_open(&self, number("NO_SM", 0) ? PK_SM_NONE : PK_SM_DEFAULT, (uint64_t)number("TIMEOUT", TIMEOUT_MS));
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(mode != NULL ? mode : modes[0].name, modes[i].name) == 0) {
            modes[i].run(&self);
            found = true;
        }
    report(found, "there is a mode of this name");
    fflush(stdout);
    ranks_meet();
    _exit(report_end());
}

int main(void)
{
    return gpu_two_ranks(rank_main, "rank", 60000, "cells");
}
