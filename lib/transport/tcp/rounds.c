/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of progress: what the kernel tells of, and what is looked at without being told. */
#include <sys/epoll.h>

#include "transport/tcp/conn/reach.h"
#include "tuning/tuning.h"
#include "util/clock.h"

#define AWAY_NS (50 * PKI_NS_PER_MS) /* without a look at the timers: the rank was not in the library */

static void link_event(struct pki_tcp_link *link, uint32_t events)
{
    if (link->state != PKI_TCP_UP) {
        pki_tcp_link_step(link);
        return;
    }
    link->hangup = link->hangup || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    link->readable = link->readable || (events & ~(uint32_t)EPOLLOUT) != 0;
    link->writable = link->writable || (events & EPOLLOUT) != 0;
    pki_tcp_link_ready(link);
}

static int gather_events(struct pki_tcp_iface *iface)
{
    struct epoll_event events[PKI_TCP_EVENTS];
    int n = epoll_wait(iface->epoll_fd, events, PKI_TCP_EVENTS, 0);

    for (int i = 0; i < n; i++) {
        struct pki_tcp_source *source = events[i].data.ptr;

        if (source->kind == PKI_TCP_LISTENER)
            pki_tcp_accept(iface, source);
        else if (source->kind == PKI_TCP_UNPROVEN)
            pki_tcp_unproven_step(iface, pki_container_of(source, struct pki_tcp_unproven, source));
        else
            link_event(pki_container_of(source, struct pki_tcp_link, source), events[i].events);
    }
    return n;
}

static void work(struct pki_tcp_link *link)
{
    if (link->state != PKI_TCP_UP)
        return;
    if (link->readable)
        link->user->readable(link);
    link->user->writable(link);
}

static bool work_all(struct pki_tcp_iface *iface)
{
    struct pki_list batch, *node;

    if (pki_list_empty(&iface->ready))
        return false;
    batch = iface->ready;
    batch.next->prev = &batch;
    batch.prev->next = &batch;
    pki_list_init(&iface->ready);
    while ((node = pki_list_pop(&batch)) != NULL)
        work(pki_container_of(node, struct pki_tcp_link, ready));
    return true;
}

static void timers(struct pki_tcp_iface *iface)
{
    uint64_t now = pki_now_ns(), away = now - iface->timers.looked_ns > AWAY_NS ? now - iface->timers.looked_ns : 0;

    if (now < iface->timers.next_ns)
        return;
    iface->timers.looked_ns = now;
    iface->trouble = pki_tcp_unproven_timers(iface, now, away);
    for (int i = 0; i < iface->size; i++) {
        for (uint32_t k = 0; iface->eps[i] != NULL && k < iface->eps[i]->nlinks; k++)
            pki_tcp_link_timers(&iface->eps[i]->links[k], now, away);
        if (iface->eps[i] != NULL)
            pki_tcp_say_connecting(iface->eps[i], now, away);
    }
    iface->timers.next_ns = now + pki_tuning.tcp.timers_ns;
}

static void look_at_health(struct pki_tcp_iface *iface)
{
    uint64_t now = pki_now_ns();

    if (now < iface->timers.health_ns)
        return;
    iface->timers.health_ns = now + iface->params.retry_ns / 16;
    for (int i = 0; i < iface->size; i++)
        for (uint32_t k = 0; iface->eps[i] != NULL && k < iface->eps[i]->nlinks; k++)
            pki_tcp_link_health(&iface->eps[i]->links[k]);
}

/*
 * Asking the kernel costs as much as a message through shared memory: the longer nothing has come, the less often. Where peek
 * looks at the control channels itself and nothing else is under way, there is hardly anything to ask for, and a message would
 * wait for the answer.
 */
static bool is_turn(const struct pki_tcp_iface *iface)
{
    if (iface->busy > 0 || iface->trouble)
        return true;
    if (iface->quiet < pki_tuning.tcp.quiet_rounds)
        return !pki_tcp_ctrls_are_polled(iface) || iface->round % PKI_TCP_ASK_POLLED == 0;
    return iface->round % (iface->quiet < pki_tuning.tcp.idle_rounds ? PKI_TCP_ASK_QUIET : PKI_TCP_ASK_IDLE) == 0;
}

/* What is left of a round, and what threads end, shows at no descriptor. */
bool pki_tcp_progress(struct pki_iface *base)
{
    struct pki_tcp_iface *iface = pki_tcp_iface_of(base);

    iface->round++;
    iface->quiet++;
    if (iface->trouble)
        timers(iface);
    if (iface->round % PKI_TCP_HEALTH_ROUNDS == 0)
        look_at_health(iface);
    if (!pki_list_empty(&iface->threads.jobs) && pki_tcp_take_back(iface))
        iface->quiet = 0;
    if (is_turn(iface) && gather_events(iface) > 0)
        iface->quiet = 0;
    if (work_all(iface))
        iface->quiet = 0;
    atomic_store_explicit(&base->in_kernel, iface->neps > 0, memory_order_relaxed);
    base->fd = pki_list_empty(&iface->ready) && pki_list_empty(&iface->threads.jobs) ? iface->epoll_fd : -1;
    return iface->quiet == 0;
}
