/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random schedules of the in-network allreduce in virtual time: workers and the aggregator as pure functions, and between them a
 * network that loses, repeats and reorders what it carries, and keeps some of it until after the aggregator has started again, or
 * until the number of the job has come round. Ranks may have operations without elements, one of them also where the others have
 * some. Every sum is compared. Then each rule of the two machines is taken away in turn, and that has to be noticed.
 *
 * usage: schedules [COUNT]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "switchml/aggregator.h"
#include "switchml/marks.h"
#include "switchml/worker.h"

#define WORKERS 4
#define WINDOW 4
#define ELEMENTS 2
#define PACKETS 5
#define MESSAGES 256
#define STEPS_MAX 20000
#define LONG_STEPS_MAX 60000
#define SPOILED_STEPS 3000
#define LONG_JOBS 256 /* until their number comes round in a packet */
#define LONG_ONES 512 /* one schedule in so many */
#define MIXED_MOST 3
#define MUTANT_SCHEDULES 60000 /* a mutant is found long before */

enum rule {
    NONE,
    OLD_PACKETS_ARE_REFUSED,  /* aggregator: nothing older than what the worker has sent for the slot */
    OTHER_SET_IS_CLEARED,     /* aggregator */
    SENT_TWICE_COUNTS_ONCE,   /* aggregator: the bit of the worker */
    LOST_REPLIES_COME_AGAIN,  /* aggregator: complete sums are sent again to who asks */
    REPLIES_COUNT_ONCE,       /* worker */
    SLOTS_ARE_FREE,           /* worker: before they are used again */
    SHIFT_GOES_ON,            /* worker: from job to job */
    JOBS_ARE_TOLD_APART,      /* worker */
    RESENDS_ARE_THE_SAME,     /* worker: packet and slot of the first batch */
    SESSIONS_ARE_TOLD_APART,  /* both: by addresses */
    MARKS_COUNT,              /* worker */
    MARKS_OF_LATE_ONES_COUNT, /* worker: in LONG */
    MARKS_HAVE_NUMBERS,       /* worker: of the operation */
    MIXED_MARKS_ARE_TOLD,     /* aggregator: also to the rank with the largest */
    RULES
};

static const char *const names[RULES] = { "none",
                                          "old packets are refused",
                                          "the other set is cleared",
                                          "what is sent twice counts once",
                                          "lost replies come again",
                                          "replies count once",
                                          "slots are free before they are used again",
                                          "the shift goes on",
                                          "jobs are told apart",
                                          "resends are the same",
                                          "sessions are told apart",
                                          "marks count",
                                          "marks of late ones count",
                                          "marks have the operation's number",
                                          "mixed marks are told to all" };

enum kind {
    SHORT,  /* some operations */
    DIFFER, /* one rank has no elements where the others have some */
    LONG    /* so many jobs that their numbers come round; one message is kept for so long */
};

struct message {
    bool reply;
    uint8_t worker, session;
    struct pki_switchml_packet packet;
    uint32_t values[ELEMENTS];
};

struct world {
    enum rule without;
    uint64_t random, now;
    enum kind kind;
    unsigned char id[PKI_SWITCHML_ID_BYTES];
    uint32_t workers, packets, loss, session, jobs;
    uint32_t empty;           /* DIFFER: the operation without elements, of worker 0 */
    bool counted;             /* jobs without packets: there are other threads, which have some */
    uint32_t job_of[WORKERS]; /* operations ended, by worker */
    uint32_t mixed[WORKERS];  /* replies of the job */
    uint32_t marks[WORKERS];  /* what those of the operation are made of */
    bool mismatch;            /* a worker has said so */
    uint64_t got[WORKERS];    /* bit p: packet p of the job is there */
    bool wrong;
    struct pki_switchml_aggregator aggregator;
    struct pki_switchml_worker worker[WORKERS];
    struct message messages[MESSAGES];
    uint32_t nmessages, turn;
    struct message late; /* LONG: kept for so long */
    uint32_t late_job;
    enum { NOTHING_KEPT, KEPT, DELIVERED } late_state;
    bool spoiled; /* the aggregator has taken it for a packet of now */
};

static uint32_t pick(struct world *w, uint32_t n)
{
    w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(((w->random >> 33) * n) >> 31);
}

static uint32_t swapped(uint32_t v)
{
    return __builtin_bswap32(v);
}

/* Another number for each session, worker, job, packet and element. */
static uint32_t value(const struct world *w, uint32_t worker, uint32_t job, uint32_t packet, uint32_t k)
{
    uint32_t v = w->session * 7919 + worker * 104729 + job * 1299709 + packet * 15485863 + k * 32452843 + 1;

    return v * 2654435761u;
}

static void post(struct world *w, const struct message *m)
{
    uint32_t copies = pick(w, 100) < w->loss ? 0 : pick(w, 100) < w->loss ? 2 : 1;

    for (; copies > 0 && w->nmessages < MESSAGES; copies--)
        w->messages[w->nmessages++] = *m;
    if (w->kind == LONG && w->late_state == NOTHING_KEPT && pick(w, 8) == 0) {
        w->late = *m;
        w->late_job = w->job_of[m->worker];
        w->late_state = KEPT;
    }
}

/* Some operations have no elements on any rank. */
static uint32_t units_of(const struct world *w, uint32_t worker, uint32_t job)
{
    if ((w->kind == DIFFER && worker == 0 && job == w->empty) || (w->kind != DIFFER && (w->packets + job) % 11 == 7))
        return 0;
    return w->kind == LONG ? 1 : 1 + (w->packets + job * 5) % PACKETS;
}

/* Such a job has more packets, and may have fewer on their way than there are slots, and yet come back to one. */
static bool is_float(const struct world *w, uint32_t job)
{
    return w->kind == LONG ? w->packets % 2 == 1 : (w->packets / PACKETS + job) % 2 == 1;
}

static uint32_t operation(const struct world *w, uint32_t job)
{
    return pki_switchml_operation(w->id, w->without == MARKS_HAVE_NUMBERS ? 0 : 1 + 4 * (uint64_t)job, 7);
}

static bool has_exponent(const struct world *w, uint32_t worker, uint32_t job, uint32_t packet)
{
    return is_float(w, job) && packet < units_of(w, worker, job);
}

/* Eight bits are alike in one of 255 cases, which is known of them, and no matter of schedules. */
static bool marks_are_alike(const struct world *w, uint32_t job, uint32_t other, uint32_t packet)
{
    struct pki_switchml_packet a = { .id = packet }, b = { .id = packet };

    pki_switchml_mark(pki_switchml_operation(w->id, 1 + 4 * (uint64_t)job, 7), false, &a);
    pki_switchml_mark(pki_switchml_operation(w->id, 1 + 4 * (uint64_t)other, 7), false, &b);
    return a.exponents[1] == b.exponents[1];
}

static void send_packet(struct world *w, uint32_t worker, uint32_t id)
{
    const struct pki_switchml_worker *machine = &w->worker[worker];
    struct message m = { .worker = (uint8_t)worker, .session = (uint8_t)w->session };

    m.packet = (struct pki_switchml_packet){ .id = id,
                                             .index = pki_switchml_worker_index(machine, id),
                                             .job = machine->job,
                                             .exponents = { (int8_t)(worker * 3 + id), 0 } };
    pki_switchml_mark(w->marks[worker], has_exponent(w, worker, w->job_of[worker], id), &m.packet);
    for (uint32_t k = 0; k < ELEMENTS; k++)
        m.values[k] = swapped(value(w, worker, w->job_of[worker], id, k));
    post(w, &m);
}

static void begin(struct world *w, uint32_t i)
{
    uint32_t units, window = w->worker[i].window, ahead, packets;

    for (; w->job_of[i] < w->jobs && units_of(w, i, w->job_of[i]) == 0; w->job_of[i]++)
        if (w->counted)
            pki_switchml_worker_begin(&w->worker[i], 0, 0, w->now);
    if (w->job_of[i] == w->jobs)
        return;
    units = units_of(w, i, w->job_of[i]);
    ahead = units < window ? units : window;
    packets = is_float(w, w->job_of[i]) ? units + ahead : units;
    w->got[i] = 0;
    w->mixed[i] = 0;
    w->marks[i] = operation(w, w->job_of[i]);
    if (w->without == SHIFT_GOES_ON && w->job_of[i] > 0) /* where it will be 0 after the packets of the job that has ended */
        w->worker[i].shift = 2 * w->worker[i].window - w->worker[i].packets % (2 * w->worker[i].window);
    pki_switchml_worker_begin(&w->worker[i], packets, ahead, w->now);
    for (uint32_t id = 0; id < ahead; id++)
        send_packet(w, i, id);
}

static void check(struct world *w, uint32_t i, const struct message *m)
{
    int8_t exponent = (int8_t)((w->workers - 1) * 3 + m->packet.id);

    w->wrong |= has_exponent(w, i, w->job_of[i], m->packet.id) && m->packet.exponents[0] != exponent;
    w->wrong |= (w->got[i] >> m->packet.id & 1) != 0;
    w->got[i] |= 1ull << m->packet.id;
    for (uint32_t k = 0; k < ELEMENTS; k++) {
        uint32_t sum = 0;

        for (uint32_t r = 0; r < w->workers; r++)
            sum += value(w, r, w->job_of[i], m->packet.id, k);
        w->wrong |= swapped(m->values[k]) != sum;
    }
}

/* A packet of the first batch that is sent again, as a worker does it whose timers hold the next packet's number with this one's
 * slot. */
static void resend(struct world *w, uint32_t i, uint32_t id)
{
    struct message m = { .worker = (uint8_t)i, .session = (uint8_t)w->session };

    send_packet(w, i, id);
    if (w->without != RESENDS_ARE_THE_SAME || id + 1 >= w->worker[i].packets || w->nmessages == 0)
        return;
    m = w->messages[w->nmessages - 1];
    m.packet.id++;
    for (uint32_t k = 0; k < ELEMENTS; k++)
        m.values[k] = swapped(value(w, i, w->job_of[i], id + 1, k));
    w->messages[w->nmessages - 1] = m;
}

/* As in slice.c. */
static bool is_of_this(struct world *w, const struct message *m)
{
    const uint32_t i = m->worker, job = w->job_of[i];
    const enum pki_switchml_marked marked = pki_switchml_marked(w->marks[i], has_exponent(w, i, job, m->packet.id), &m->packet);

    if (w->without == MARKS_COUNT || (w->without == MARKS_OF_LATE_ONES_COUNT && w->kind == LONG))
        return true;
    w->mismatch |= marked == PKI_SWITCHML_MIXED && ++w->mixed[i] >= MIXED_MOST;
    return marked == PKI_SWITCHML_OWN;
}

static void reach_worker(struct world *w, struct message *m)
{
    struct pki_switchml_worker *machine = &w->worker[m->worker];
    uint32_t next[2], again;

    if (w->job_of[m->worker] == w->jobs)
        return;
    if (w->without == JOBS_ARE_TOLD_APART && m->packet.id < machine->packets) {
        m->packet.job = machine->job;
        m->packet.index = pki_switchml_worker_index(machine, m->packet.id);
    }
    if (w->without == REPLIES_COUNT_ONCE && m->packet.job == machine->job && (w->got[m->worker] >> m->packet.id & 1) != 0)
        machine->replies++;
    if (!pki_switchml_worker_awaits(machine, &m->packet) || !is_of_this(w, m))
        return;
    pki_switchml_worker_reply(machine, &m->packet, w->now, next);
    check(w, m->worker, m);
    for (int k = 0; k < 2; k++)
        if (next[k] != PKI_SWITCHML_NONE)
            send_packet(w, m->worker, next[k]);
    while ((again = pki_switchml_worker_overtaken(machine, w->now)) != PKI_SWITCHML_NONE)
        resend(w, m->worker, again);
    if (w->without == SLOTS_ARE_FREE && m->packet.id + machine->ahead < machine->packets && next[1] == PKI_SWITCHML_NONE)
        send_packet(w, m->worker, m->packet.id + machine->ahead);
    w->wrong |= pki_switchml_worker_done(machine) && w->got[m->worker] + 1 != 1ull << machine->packets;
    if (pki_switchml_worker_done(machine) && ++w->job_of[m->worker] < w->jobs)
        begin(w, m->worker);
}

static enum pki_switchml_verdict aggregate(struct world *w, struct message *m, const uint32_t **sums)
{
    struct pki_switchml_aggregator *a = &w->aggregator;
    uint32_t slot = m->packet.index & ~PKI_SWITCHML_SET, which = m->packet.index >> 15, bit = 1u << m->worker;
    uint32_t other = a->sets[2 * slot + !which].has;
    int8_t before = a->sets[2 * slot + which].has != 0 ? a->sets[2 * slot + which].exponents[1] : INT8_MIN,
           mark = m->packet.exponents[1];
    enum pki_switchml_verdict verdict;

    if (w->without == OLD_PACKETS_ARE_REFUSED)
        a->newest[m->worker * a->slots + slot].any = false;
    if (w->without == SENT_TWICE_COUNTS_ONCE && a->sets[2 * slot + which].missing > 0)
        a->sets[2 * slot + which].has &= ~bit;
    verdict = pki_switchml_aggregate(a, m->worker, &m->packet, m->values, sums);
    if (w->without == MIXED_MARKS_ARE_TOLD && (verdict == PKI_SWITCHML_WAIT || verdict == PKI_SWITCHML_TO_ALL)) {
        a->sets[2 * slot + which].exponents[1] = before > mark ? before : mark;
        m->packet.exponents[1] = a->sets[2 * slot + which].exponents[1];
    }
    if (w->without == OTHER_SET_IS_CLEARED)
        a->sets[2 * slot + !which].has = other;
    if (w->without == LOST_REPLIES_COME_AGAIN && verdict == PKI_SWITCHML_TO_ONE)
        return PKI_SWITCHML_AGAIN;
    return verdict;
}

static void reach_aggregator(struct world *w, struct message *m)
{
    const uint32_t *sums;
    enum pki_switchml_verdict verdict = aggregate(w, m, &sums);

    if (verdict != PKI_SWITCHML_TO_ALL && verdict != PKI_SWITCHML_TO_ONE)
        return;
    m->reply = true;
    for (uint32_t k = 0; k < ELEMENTS; k++)
        m->values[k] = swapped(sums[k]);
    for (uint32_t i = 0; i < w->workers; i++)
        if (verdict == PKI_SWITCHML_TO_ALL || i == m->worker) {
            struct message one = *m;

            one.worker = (uint8_t)i;
            post(w, &one);
        }
}

/* The message that has been kept comes while its worker has a job of the same number; or never, where the mark is the same. */
static bool deliver_late(struct world *w)
{
    struct message m = w->late;
    const uint32_t i = m.worker;
    struct pki_switchml_set *set = &w->aggregator.sets[2 * (m.packet.index & ~PKI_SWITCHML_SET) + (m.packet.index >> 15)];
    uint32_t before;

    if (w->late_state != KEPT || w->job_of[i] == w->jobs || w->job_of[i] < w->late_job + LONG_JOBS / 2 ||
        w->worker[i].job != m.packet.job || pick(w, 4) != 0)
        return false;
    w->late_state = DELIVERED;
    if (marks_are_alike(w, w->late_job, w->job_of[i], m.packet.id))
        return false;
    before = set->has;
    if (m.reply)
        reach_worker(w, &m);
    else
        reach_aggregator(w, &m);
    w->spoiled = !w->late.reply && set->has != before;
    return true;
}

static void pass_time(struct world *w)
{
    uint64_t due = UINT64_MAX;

    for (uint32_t i = 0; i < w->workers; i++)
        if (pki_switchml_worker_due(&w->worker[i]) < due)
            due = pki_switchml_worker_due(&w->worker[i]);
    w->now = due == UINT64_MAX || due < w->now ? w->now + 1 : due;
    for (uint32_t i = 0; i < w->workers; i++) {
        uint32_t id;

        while ((id = pki_switchml_worker_late(&w->worker[i], w->now)) != PKI_SWITCHML_NONE)
            resend(w, i, id);
    }
}

static bool all_done(const struct world *w)
{
    for (uint32_t i = 0; i < w->workers; i++)
        if (w->job_of[i] < w->jobs)
            return false;
    return true;
}

/* One message of those that are under way, or the next timer. */
static void step(struct world *w)
{
    uint32_t at;
    struct message m;

    if (w->kind == LONG && deliver_late(w))
        return;
    if (w->nmessages == 0 || pick(w, 16) == 0) {
        pass_time(w);
        return;
    }
    at = pick(w, 4) != 0 ? w->turn++ % w->nmessages : pick(w, w->nmessages);
    m = w->messages[at];
    w->messages[at] = w->messages[--w->nmessages];
    w->now += pick(w, 8);
    if (m.session != (uint8_t)w->session && w->without != SESSIONS_ARE_TOLD_APART)
        return;
    if (m.reply)
        reach_worker(w, &m);
    else
        reach_aggregator(w, &m);
}

static void open_session(struct world *w, uint32_t window)
{
    const struct pki_switchml_timing timing = { .timeout_ns = 1000, .least_ns = 10, .threshold = 8, .increment = 8 };

    w->session++;
    if (pki_switchml_aggregator_init(&w->aggregator, w->workers, window, ELEMENTS) != PK_OK)
        abort();
    for (uint32_t i = 0; i < w->workers; i++) {
        if (pki_switchml_worker_init(&w->worker[i], 0, window, &timing) != PK_OK)
            abort();
        w->job_of[i] = 0;
    }
    for (uint32_t i = 0; i < w->workers; i++)
        begin(w, i);
}

static void close_session(struct world *w)
{
    pki_switchml_aggregator_close(&w->aggregator);
    for (uint32_t i = 0; i < w->workers; i++)
        pki_switchml_worker_close(&w->worker[i]);
}

static void choose(struct world *w)
{
    w->workers = 1 + pick(w, WORKERS);
    w->packets = pick(w, 2 * PACKETS);
    w->loss = pick(w, 4) == 0 ? pick(w, 30) : pick(w, 4);
    w->jobs = 1 + pick(w, 2);
    w->counted = pick(w, 2) == 0;
    for (size_t k = 0; k < sizeof w->id; k++)
        w->id[k] = (unsigned char)pick(w, 256);
    w->kind = pick(w, LONG_ONES) == 0 ? LONG : pick(w, 16) == 0 ? DIFFER : SHORT;
    if (w->kind == SHORT)
        return;
    w->workers = 2 + pick(w, WORKERS - 1);
    if (w->kind == LONG) {
        w->jobs = LONG_JOBS + 20;
        w->workers = 2;
        w->loss = pick(w, 2);
        return;
    }
    w->counted = false;
    w->jobs = 3;
    w->empty = pick(w, 2);
    for (uint32_t p = 0; p < 2 * PACKETS; p++)
        if (marks_are_alike(w, w->empty, w->empty + 1, p)) {
            w->id[0]++;
            p = UINT32_MAX;
        }
}

/* Until all jobs have ended or something is known. */
static void play(struct world *w, uint32_t most)
{
    for (uint32_t steps = 0; !all_done(w) && !w->wrong && !w->mismatch && steps < most; steps++) {
        step(w);
        if (w->spoiled && most > steps + SPOILED_STEPS)
            most = steps + SPOILED_STEPS;
    }
}

/* Did all jobs end, with the right sums? Or with an error where there is a reason for one: ranks differ, or the aggregator has
 * taken a packet from long ago. */
static bool run(uint64_t seed, enum rule without)
{
    static struct world w;
    uint32_t window, sessions;
    bool ended = false;

    memset(&w, 0, offsetof(struct world, messages));
    w.nmessages = w.turn = 0;
    w.late_state = NOTHING_KEPT;
    w.spoiled = false;
    w.without = without;
    w.random = seed * 0x9e3779b97f4a7c15ull + 1;
    choose(&w);
    window = w.kind == LONG ? 1u << pick(&w, 3) : 1 + pick(&w, WINDOW);
    sessions = w.kind == SHORT && pick(&w, 8) == 0 ? 2 : 1;
    for (uint32_t s = 0; s < sessions && !w.wrong; s++) {
        const bool last = s + 1 == sessions;

        open_session(&w, window);
        play(&w, !last ? pick(&w, 40) : w.kind == LONG ? LONG_STEPS_MAX : STEPS_MAX);
        ended = w.spoiled || (w.kind == DIFFER ? w.mismatch : all_done(&w) && !w.mismatch);
        close_session(&w);
    }
    return ended && !w.wrong;
}

static int mutants(void)
{
    int missed = 0;

    for (int r = NONE + 1; r < RULES; r++) {
        uint32_t seed = 0;

        while (seed < MUTANT_SCHEDULES && run(seed, (enum rule)r))
            seed++;
        printf("without the rule that %s: %s %u schedules\n", names[r],
               seed < MUTANT_SCHEDULES ? "noticed after" : "NOT noticed in", seed);
        missed += seed == MUTANT_SCHEDULES;
    }
    return missed;
}

int main(int argc, char **argv)
{
    const unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000000;
    unsigned long wrong = 0;
    int missed = mutants();

    for (unsigned long seed = 0; seed < count; seed++)
        if (!run(seed, NONE) && wrong++ < 3)
            printf("schedule %lu: a wrong sum, or no end\n", seed);
    printf("%lu schedules, %lu wrong; %d rules that nothing missed\n", count, wrong, missed);
    return wrong > 0 || missed > 0;
}
