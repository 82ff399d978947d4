/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of a session: one for each slice but the first, which is done by whoever polls. So a session of one slice has none.
 * The engine gives all slices their part of a job, and takes them back when they rest: with all sums, with an error that the
 * engine tells, or because it has told them to. In between a slice is its thread's alone. A thread waits for nothing but packets,
 * timers and the engine.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "switchml/internal.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/fork.h"
#include "util/futex.h"
#include "util/log.h"
#include "util/thread.h"

/* ---- the one function that changes a state; returns the one before ---- */

static enum pki_switchml_state enter(struct pki_switchml_slice *l, enum pki_switchml_state state)
{
    const uint32_t before = atomic_exchange(&l->state, state);

    pki_futex_wake(&l->state);
    return (enum pki_switchml_state)before;
}

static enum pki_switchml_state state_of(const struct pki_switchml_slice *l)
{
    return (enum pki_switchml_state)atomic_load_explicit(&l->state, memory_order_acquire);
}

static void sleep_while(struct pki_switchml_slice *l, enum pki_switchml_state state)
{
    _Atomic uint32_t *const words[] = { &l->state };

    while (state_of(l) == state)
        if (!pki_futex_wait(words, 1, state, pki_tuning.wait.thread_sleep_ns))
            sched_yield();
}

/* Eventfds count up to 2^64: a write never blocks in a program's life. */
static void ring(int fd)
{
    const uint64_t one = 1;

    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* Returns how often it has rung since the last time. */
static uint32_t quiet(int fd)
{
    uint64_t count = 0;

    while (read(fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
    return (uint32_t)count;
}

/* ---- a thread ---- */

/* Until a packet comes, a timer runs out, or it is to rest. */
static void sleep_for_packets(const struct pki_switchml_slice *l)
{
    struct pollfd fds[2] = { { .fd = l->datagrams.fd, .events = POLLIN }, { .fd = l->session->threads.stop, .events = POLLIN } };
    const uint64_t now = pki_now_ns(), due = pki_switchml_worker_due(&l->worker);
    const uint64_t most = pki_tuning.wait.thread_sleep_ns, ns = due <= now ? 0 : due - now < most ? due - now : most;
    const struct timespec limit = { .tv_sec = (time_t)(ns / PKI_NS_PER_S), .tv_nsec = (long)(ns % PKI_NS_PER_S) };

    (void)ppoll(fds, 2, &limit, NULL);
}

static void work(struct pki_switchml_slice *l)
{
    unsigned idle = 0;

    pki_switchml_slice_begin(l, pki_now_ns());
    while (!pki_switchml_slice_over(l) && state_of(l) == PKI_SWITCHML_WORKS) {
        if (pki_switchml_slice_step(l) > 0)
            idle = 0;
        else if (++idle < pki_tuning.switchml.thread_looks)
            sched_yield();
        else
            sleep_for_packets(l);
    }
}

static void *serve(void *arg)
{
    struct pki_switchml_slice *l = arg;

    for (;;) {
        sleep_while(l, PKI_SWITCHML_RESTS);
        if (state_of(l) == PKI_SWITCHML_ENDS)
            return NULL;
        work(l);
        (void)enter(l, PKI_SWITCHML_RESTS);
        ring(l->session->threads.ended); /* last, for a ring says that it rests */
    }
}

/* ---- the engine's side ---- */

static bool watch(int both, int fd)
{
    struct epoll_event event = { .events = EPOLLIN };

    return epoll_ctl(both, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool make_descriptors(struct pki_switchml *s)
{
    struct pki_switchml_threads *t = &s->threads;

    t->stop = pki_fd_keep(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    t->ended = pki_fd_keep(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    t->both = pki_fd_keep(epoll_create1(EPOLL_CLOEXEC));
    return t->stop >= 0 && t->ended >= 0 && t->both >= 0 && watch(t->both, s->slices[0].datagrams.fd) && watch(t->both, t->ended);
}

pk_result_t pki_switchml_threads_start(struct pki_switchml *s)
{
    struct pki_switchml_threads *t = &s->threads;

    if (s->nslices == 1)
        return PK_OK;
    if (!make_descriptors(s))
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "%s: descriptors for %u threads", s->name, s->nslices);
    t->stamp = pki_fork_stamp();
    for (t->started = 1; t->started < s->nslices; t->started++) {
        struct pki_switchml_slice *l = &s->slices[t->started];

        atomic_init(&l->state, PKI_SWITCHML_RESTS);
        if (pki_thread_start(&l->thread, serve, l) != 0)
            return pki_fail_errno(PK_ERR_SYSTEM, NULL, "%s: thread %u of num_worker_threads %u", s->name, t->started, s->nslices);
    }
    t->resting = s->nslices - 1;
    return PK_OK;
}

void pki_switchml_threads_end(struct pki_switchml *s)
{
    struct pki_switchml_threads *t = &s->threads;
    int *const fds[] = { &t->stop, &t->ended, &t->both };

    pki_switchml_threads_stop(s);
    for (uint32_t i = 1; i < t->started && pki_fork_is_ours(t->stamp); i++) {
        (void)enter(&s->slices[i], PKI_SWITCHML_ENDS);
        pthread_join(s->slices[i].thread, NULL);
    }
    t->started = 0;
    for (int i = 0; i < 3; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

void pki_switchml_threads_go(struct pki_switchml *s)
{
    s->threads.resting = 0;
    for (uint32_t i = 1; i < s->nslices; i++) {
        struct pki_switchml_slice *l = &s->slices[i];

        if (l->units > 0) {
            (void)enter(l, PKI_SWITCHML_WORKS);
            continue;
        }
        pki_switchml_slice_begin(l, pki_now_ns()); /* its thread need not wake up to count the job */
        s->threads.resting++;
    }
}

/* A thread counts when its ring has been heard, and each rings once a job. So no ring is lost, and none is left for the next job;
 * the states say, without a system call, that there is one to be heard. */
uint32_t pki_switchml_threads_resting(struct pki_switchml *s)
{
    uint32_t resting = 0;

    for (uint32_t i = 1; i < s->nslices; i++)
        resting += state_of(&s->slices[i]) == PKI_SWITCHML_RESTS;
    if (resting != s->threads.resting)
        s->threads.resting += quiet(s->threads.ended);
    return s->threads.resting;
}

void pki_switchml_threads_stop(struct pki_switchml *s)
{
    struct pki_switchml_threads *t = &s->threads;
    bool any = false;

    for (uint32_t i = 1; i < t->started && pki_fork_is_ours(t->stamp); i++) {
        uint32_t works = PKI_SWITCHML_WORKS;

        if (!atomic_compare_exchange_strong(&s->slices[i].state, &works, PKI_SWITCHML_STOPS))
            continue;
        any = true;
    }
    if (!any)
        return;
    ring(t->stop);
    for (uint32_t i = 1; i < t->started; i++)
        sleep_while(&s->slices[i], PKI_SWITCHML_STOPS);
    (void)quiet(t->stop);
}
