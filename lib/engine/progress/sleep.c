/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last rung of waiting: sleep until a peer writes a message. A control channel within a machine has a wake word, a word
 * that both ends see. Who is about to sleep sets the wake words of all its control channels and looks at the control channels
 * once more; who writes a message and finds the wake word set clears it and wakes the sleeper. Transports between hosts have a
 * descriptor instead, which tells of messages and of puts that have ended. One cannot sleep at words and at descriptors
 * together: with both, one naps at the descriptors. A control channel with neither cannot wake anybody: then the caller naps
 * without.
 *
 * The writer has no fence between its message and its look at the wake word, for every message would pay for it. So its
 * processor may look first, and both may miss the other. That takes a message that lies in a store buffer all the time that
 * the sleeper waits before its last look, thousands of cycles; and what it costs then is the rest of one sleep.
 */
#include <poll.h>

#include "engine/progress/progress.h"
#include "util/futex.h"

#define FDS_MAX 64

/* Where to sleep: at the wake words and descriptors of all engines that are waited for. */
struct bed {
    _Atomic uint32_t *wake_words[PKI_FUTEX_WORDS];
    struct pollfd fds[FDS_MAX];
    int nwake_words, nfds;
    bool timers; /* what nothing shows: packets to an aggregator to be sent again, what other threads have ended */
};

/* The wake words of all control channels that have one. False: a message may come that neither rings nor shows at a
 * descriptor. */
static bool find_wake_words(const struct pki_engine *e, struct bed *bed)
{
    for (int i = 0; i < e->config.size; i++) {
        const struct pki_ep *ctrl = e->peers[i].ctrl;

        if (ctrl == NULL)
            continue;
        if (ctrl->wake_word == NULL && ctrl->iface->transport->between_hosts)
            continue;
        if (ctrl->wake_word == NULL || bed->nwake_words == PKI_FUTEX_WORDS)
            return false;
        bed->wake_words[bed->nwake_words++] = ctrl->wake_word;
    }
    return true;
}

/* Locked. Of all transports between hosts that carry. False: there is something to do, or one cannot tell. */
static bool find_fds(struct pki_engine *e, struct bed *bed)
{
    int aggregator = pki_switched_fd(e);

    if (aggregator >= 0 && bed->nfds == FDS_MAX)
        return false;
    if (aggregator >= 0)
        bed->fds[bed->nfds++] = (struct pollfd){ .fd = aggregator, .events = POLLIN };
    bed->timers |= aggregator >= 0;
    for (int i = 0; i < e->ifaces.n; i++) {
        struct pki_iface *iface = e->ifaces.at[i];

        if (!iface->carries || !iface->transport->between_hosts)
            continue;
        if (iface->transport->progress(iface) || iface->fd < 0 || bed->nfds == FDS_MAX)
            return false;
        bed->fds[bed->nfds++] = (struct pollfd){ .fd = iface->fd, .events = POLLIN };
    }
    return true;
}

/* Nothing but a message can move anything here, or a put that ends and shows it. With operations in streams other threads may be
 * at work too, and end what is awaited: is_over tells. */
static bool may_sleep(const struct pki_awaited *a)
{
    const struct pki_engine *e = a->engine;

    return e->gpu == NULL && pki_list_empty(&e->proto.active) &&
           (a->is_over != NULL || atomic_load(&e->service.async_tasks) == 0) && atomic_load(&e->service.watched) == 0 &&
           atomic_load(&e->failed) == PK_OK;
}

/* True: there are others. */
static bool count_sleeper(struct pki_engine *e, int n)
{
    bool others = false;

    for (int i = 0; i < e->ifaces.n; i++)
        others |= atomic_fetch_add_explicit(&e->ifaces.at[i]->sleepers, n, memory_order_relaxed) + n > 0;
    return others;
}

/* From the one numbered `first` on. */
static void set_wake_words(const struct bed *bed, int first, uint32_t value)
{
    for (int i = first; i < bed->nwake_words; i++)
        atomic_store_explicit(bed->wake_words[i], value, memory_order_relaxed);
}

static uint64_t nap_ns(unsigned naps)
{
    uint64_t ns = pki_tuning.wait.nap_ns * (1 + (uint64_t)naps / PKI_NAPS_ALIKE);

    return ns < pki_tuning.wait.nap_most_ns ? ns : pki_tuning.wait.nap_most_ns;
}

static bool lie_down(const struct bed *bed, unsigned naps)
{
    struct pollfd fds[FDS_MAX];
    struct timespec limit = { .tv_nsec = (long)(bed->nwake_words > 0 || bed->timers ? nap_ns(naps) : pki_tuning.wait.sleep_ns) };

    if (bed->nfds == 0)
        return pki_futex_wait(bed->wake_words, bed->nwake_words, 1, pki_tuning.wait.sleep_ns);
    for (int i = 0; i < bed->nfds; i++)
        fds[i] = bed->fds[i];
    (void)ppoll(fds, (nfds_t)bed->nfds, &limit, NULL);
    return true;
}

/* Locked: what this engine adds to the bed. What comes for it from now on rings, or shows at a descriptor. False: nothing
 * would. */
static bool make_bed(const struct pki_awaited *a, struct bed *bed)
{
    struct pki_engine *e = a->engine;
    int first_wake_word = bed->nwake_words, first_fd = bed->nfds;

    if (!may_sleep(a) || !find_wake_words(e, bed) || (bed->nwake_words > first_wake_word && e->proto.puts_out > 0))
        return false;
    set_wake_words(bed, first_wake_word, 1);
    /* Another thread may read what comes for this one, or begin what is due here, and wakes nobody who sleeps at descriptors. */
    bed->timers |= a->is_over != NULL && (atomic_load(&e->service.drivers) > 1 || atomic_load(&e->service.async_tasks) > 1);
    return find_fds(e, bed) && bed->nwake_words + bed->nfds > first_wake_word + first_fd;
}

enum { CANNOT_SLEEP, IS_AWAKE, MAY_SLEEP };

static int look(const struct pki_awaited *a)
{
    bool awake;

    if (!pki_engine_trylock(a->engine))
        return CANNOT_SLEEP; /* somebody else is at work */
    awake = pki_engine_progress(a->engine) || !may_sleep(a);
    pki_engine_unlock(a->engine);
    return awake || (a->is_over != NULL && a->is_over(a)) ? IS_AWAKE : MAY_SLEEP;
}

/* Has anything come that had been written when the wake words could be seen? */
static int look_at_all(const struct pki_awaited *first)
{
    uint64_t until = pki_now_ns() + pki_tuning.wait.settle_ns;
    bool last = false;
    int state = MAY_SLEEP;

    atomic_thread_fence(memory_order_seq_cst); /* wake words, then control channels; for the partner see above */
    while (state == MAY_SLEEP && !last) {
        last = pki_now_ns() >= until;
        for (const struct pki_awaited *a = first; a != NULL && state == MAY_SLEEP; a = a->next)
            state = look(a);
        pki_cpu_pause();
    }
    return state;
}

/* Its wake words are cleared with the lock alone, or another sleeper's might be; left as they are they cost one wake. */
static void rise(struct pki_engine *e)
{
    struct bed bed = { .nwake_words = 0 };
    const bool locked = pki_engine_trylock(e), others = count_sleeper(e, -1);

    if (!locked)
        return;
    if (!others) {
        (void)find_wake_words(e, &bed);
        set_wake_words(&bed, 0, 0);
    }
    pki_engine_unlock(e);
}

bool pki_engines_sleep(const struct pki_awaited *first, unsigned naps)
{
    struct bed bed = { .nwake_words = 0 };
    const struct pki_awaited *next = first; /* the first whose senders have not been told that somebody sleeps */
    bool can = true, slept = true;
    int state = CANNOT_SLEEP;

    for (; can && next != NULL && pki_engine_trylock(next->engine); next = next->next) {
        (void)count_sleeper(next->engine, 1);
        can = make_bed(next, &bed);
        pki_engine_unlock(next->engine);
    }
    if (can && next == NULL)
        state = look_at_all(first);
    if (state == MAY_SLEEP)
        slept = lie_down(&bed, naps);
    for (; first != next; first = first->next)
        rise(first->engine);
    return state != CANNOT_SLEEP && slept;
}

void pki_engine_wake(struct pki_engine *e)
{
    struct bed bed = { .nwake_words = 0 };

    (void)find_wake_words(e, &bed);
    for (int i = 0; i < bed.nwake_words; i++)
        if (atomic_exchange(bed.wake_words[i], 0) != 0)
            pki_futex_wake(bed.wake_words[i]);
}
