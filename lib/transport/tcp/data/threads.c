/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few threads that read and write long chunks, where the machine has CPUs to spare: what limits a connection within a machine,
 * or a fast network, is the copy out of the kernel, which one thread does at 10 GB/s. Not a thread a connection: a bounded
 * number, for all peers.
 *
 * One half of a connection, what comes in or what goes out, is given to a thread for the rest of one chunk. Until that has
 * ended, nobody else touches this half. Which transfer a chunk is of, where it goes, acknowledgements and all messages stay
 * with who makes progress.
 *
 * A thread that is asleep is woken for the next time, not for this: waking it costs as much as reading 512 KiB.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "transport/tcp/tcp.h"
#include "util/clock.h"
#include "util/fork.h"
#include "util/futex.h"
#include "util/thread.h"

/* ---- Whose a half is ---- */

/* What was done with the half is seen by who sees the state. */
static void set_state(struct pki_tcp_job *job, enum pki_tcp_job_state state)
{
    atomic_store_explicit(&job->state, state, memory_order_release);
}

static bool has_ended(const struct pki_tcp_job *job)
{
    return atomic_load_explicit(&job->state, memory_order_acquire) == PKI_TCP_JOB_ENDED;
}

/* ---- A thread ---- */

/* What one system call of this job may give: bytes moved, 0 at the end of the stream, or -1 and errno. */
static ssize_t move_some(struct pki_tcp_job *job)
{
    ssize_t n = job->out ? pki_tcp_chunk_send(job->link) : pki_tcp_chunk_receive(job->link, job->moved);

    if (n > 0)
        job->moved += (size_t)n;
    return n;
}

static void do_job(struct pki_tcp_job *job)
{
    uint64_t moved_ns = 0;

    while (job->moved < job->bytes && !atomic_load_explicit(&job->recalled, memory_order_relaxed)) {
        ssize_t n = move_some(job);

        if (n > 0 || (n < 0 && errno == EINTR)) {
            moved_ns = 0;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            uint64_t now = pki_now_ns();

            moved_ns = moved_ns > 0 ? moved_ns : now;
            if (now - moved_ns > pki_tuning.tcp.thread_blocked_ns) {
                job->how = PKI_TCP_JOB_BLOCKED;
                return;
            }
            sched_yield();
        } else {
            job->how = PKI_TCP_JOB_FAILED;
            job->error = n < 0 ? errno : 0;
            return;
        }
    }
}

static struct pki_tcp_job *await_job(struct pki_tcp_thread *thread)
{
    uint64_t until = pki_now_ns() + pki_tuning.tcp.thread_awake_ns;
    struct pki_tcp_job *job;

    while ((job = atomic_load_explicit(&thread->job, memory_order_acquire)) == NULL) {
        _Atomic uint32_t *const words[] = { &thread->asleep };

        if (atomic_load(&thread->all->over))
            return NULL;
        for (int i = 0; i < pki_tuning.tcp.thread_polls && atomic_load_explicit(&thread->job, memory_order_relaxed) == NULL; i++)
            pki_cpu_pause();
        if (pki_now_ns() < until) {
            sched_yield(); /* to whoever brings the job, should they share a core */
            continue;
        }
        atomic_store(&thread->asleep, 1); /* before the last look, as the job is put there before the look at this */
        if (atomic_load(&thread->job) == NULL && !atomic_load(&thread->all->over))
            (void)pki_futex_wait(words, 1, 1, pki_tuning.wait.thread_sleep_ns);
        atomic_store(&thread->asleep, 0);
        until = pki_now_ns() + pki_tuning.tcp.thread_awake_ns;
    }
    return job;
}

static void *serve(void *arg)
{
    struct pki_tcp_thread *thread = arg;
    struct pki_tcp_job *job;

    while ((job = await_job(thread)) != NULL) {
        do_job(job);
        atomic_store_explicit(&thread->job, NULL, memory_order_relaxed);
        set_state(job, PKI_TCP_JOB_ENDED); /* from here on it is not the thread's */
    }
    return NULL;
}

static void wake_thread(struct pki_tcp_thread *thread)
{
    if (atomic_exchange(&thread->asleep, 0) != 0)
        pki_futex_wake(&thread->asleep);
}

/* One more, if there may be more. */
static void start_one(struct pki_tcp_threads *all)
{
    struct pki_tcp_thread *thread = &all->thread[all->n];

    if (all->n == all->max)
        return;
    if (all->n == 0)
        all->stamp = pki_fork_stamp();
    thread->all = all;
    if (pki_thread_start(&thread->id, serve, thread) == 0)
        all->n++;
    else
        all->max = all->n; /* it goes without */
}

void pki_tcp_threads_close(struct pki_tcp_threads *all)
{
    atomic_store(&all->over, true);
    for (int i = 0; i < all->n && pki_fork_is_ours(all->stamp); i++) {
        wake_thread(&all->thread[i]);
        pthread_join(all->thread[i].id, NULL);
    }
    all->n = 0;
}

/* ---- Who makes progress ---- */

/* A short transfer by itself is done sooner than handed over, and while a thread is at it the caller has nothing else to do. */
static bool pays(const struct pki_tcp_iface *iface, size_t bytes, size_t whole)
{
    return bytes >= pki_tuning.tcp.offload_bytes &&
           (whole > pki_tuning.tcp.offload_whole_bytes || iface->busy > pki_tuning.tcp.exchange);
}

bool pki_tcp_offload(struct pki_tcp_link *link, bool out, size_t bytes, size_t whole)
{
    struct pki_tcp_threads *all = &link->ep->iface->threads;
    struct pki_tcp_job *job = out ? &link->out->job : &link->in->job;

    if (all->max == 0 || !pays(link->ep->iface, bytes, whole))
        return false;
    for (int i = 0; i < all->n; i++) {
        struct pki_tcp_thread *thread = &all->thread[i];

        if (atomic_load_explicit(&thread->job, memory_order_relaxed) != NULL)
            continue;
        if (atomic_load(&thread->asleep) != 0) {
            wake_thread(thread);
            return false;
        }
        job->link = link;
        job->out = out;
        job->bytes = bytes;
        job->moved = 0;
        job->how = PKI_TCP_JOB_STOPPED;
        atomic_store_explicit(&job->recalled, false, memory_order_relaxed);
        set_state(job, PKI_TCP_JOB_OFFLOADED);
        pki_list_init(&job->node);
        pki_list_push(&link->ep->iface->threads.jobs, &job->node);
        atomic_store(&thread->job, job);
        wake_thread(thread);
        return true;
    }
    start_one(all);
    return false;
}

/* It has ended. */
static void take(struct pki_tcp_job *job)
{
    pki_list_remove(&job->node);
    set_state(job, PKI_TCP_JOB_NONE);
    if (job->out)
        pki_tcp_chunk_sent(job->link);
}

bool pki_tcp_take_back(struct pki_tcp_iface *iface)
{
    struct pki_list *node = iface->threads.jobs.next;
    bool some = false;

    while (node != &iface->threads.jobs) {
        struct pki_tcp_job *job = pki_container_of(node, struct pki_tcp_job, node);

        node = node->next;
        if (!has_ended(job))
            continue;
        some = true;
        take(job);
        if (!pki_tcp_data_returned(job))
            return true;                 /* links went */
        node = iface->threads.jobs.next; /* what came along may have ended others */
    }
    return some;
}

/* A thread looks at `recalled` after each of its system calls, none of which waits. */
static void recall(struct pki_tcp_job *job)
{
    if (!pki_tcp_job_is_offloaded(job))
        return;
    atomic_store(&job->recalled, true);
    while (!has_ended(job))
        sched_yield();
    take(job);
}

void pki_tcp_recall(struct pki_tcp_link *link)
{
    recall(&link->in->job);
    recall(&link->out->job);
}

void pki_tcp_settle_out(struct pki_tcp_link *link)
{
    struct pki_tcp_job *job = &link->out->job;

    if (!pki_tcp_job_is_offloaded(job))
        return;
    recall(job);
    (void)pki_tcp_data_returned(job);
}
