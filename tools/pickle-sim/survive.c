/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks run the library's machine (coll/agree.h): each message costs its sender and its receiver a socket call of their
 * core, and the receiver is woken. The new communicator is counted, not run: rank 0 proves itself to each rank, passes on what
 * each tells all others, and each two ranks connect. What these cost is measured on the machine of machines/host-2-cores.json
 * (docs/design/0047).
 */
#include "survive.h"

#include <stdlib.h>
#include <string.h>

#include "coll/agree.h"
#include "comm/comm.h"
#include "run.h"

#define SOCKET_US 4.0  /* to send or to read a message of an agreement */
#define WAKE_US 20.0   /* from the message to the receiver that reads it */
#define PROOF_US 150.0 /* of rank 0, to accept one rank and to check its proof */
#define PAIR_US 250.0  /* of each of two ranks that connect */
#define TELLS 4        /* times that all tell all something short */

struct rank {
    struct pki_agree agree;
    struct world *world;
    double messages;
};

struct message {
    int from, to;
    struct pki_agree_msg msg;
    uint64_t *set;
};

struct world {
    const struct sim_machine *machine;
    struct sim_run run; /* the events */
    struct rank *ranks;
    double *cores; /* when each is free */
    double now;    /* of the rank that is at it */
    struct message *messages;
    uint32_t count, cap;
    int size, cores_per_node;
    bool no_memory;
};

static double *core_of(const struct world *w, int rank)
{
    const int node = rank / w->machine->ranks_per_node;

    return &w->cores[node * w->cores_per_node + rank % w->machine->ranks_per_node % w->cores_per_node];
}

static double way_us(const struct world *w, int from, int to)
{
    const int each = w->machine->ranks_per_node;

    return WAKE_US + (from / each == to / each ? 0 : w->machine->inter.latency_us);
}

static struct message *new_message(struct world *w, const struct pki_agree_msg *msg)
{
    const size_t bytes = pki_agree_words(w->size) * sizeof *msg->set;
    struct message *m;

    if (w->count == w->cap) {
        const uint32_t cap = w->cap == 0 ? 1024 : 2 * w->cap;
        struct message *more = realloc(w->messages, cap * sizeof *more);

        if (more == NULL)
            return NULL;
        w->messages = more;
        w->cap = cap;
    }
    m = &w->messages[w->count];
    m->set = malloc(bytes);
    if (m->set == NULL)
        return NULL;
    memcpy(m->set, msg->set, bytes);
    m->msg = *msg;
    w->count++;
    return m;
}

static void send_message(void *arg, int to, const struct pki_agree_msg *msg)
{
    struct rank *from = arg;
    struct world *w = from->world;
    struct message *m = new_message(w, msg);

    if (m == NULL) {
        w->no_memory = true;
        return;
    }
    m->from = from->agree.rank;
    m->to = to;
    from->messages++;
    w->now += SOCKET_US;
    sim_push(&w->run, w->now + way_us(w, m->from, to), w->count - 1, SIM_PACKET);
}

/* The rank's core does it when it is free. */
static void take(struct world *w, const struct sim_event *event)
{
    const struct message m = w->messages[event->step];
    double *core = core_of(w, m.to);
    struct pki_agree_msg msg = m.msg;

    msg.set = m.set;
    w->now = (*core > event->time ? *core : event->time) + SOCKET_US;
    if (!pki_agree_has(w->ranks[m.to].agree.dead, m.to))
        pki_agree_take(&w->ranks[m.to].agree, m.from, &msg);
    *core = w->now;
}

static bool make(struct world *w, int dead)
{
    const size_t words = pki_agree_words(w->size);
    const int nodes = (w->size + w->machine->ranks_per_node - 1) / w->machine->ranks_per_node;

    w->ranks = calloc((size_t)w->size, sizeof *w->ranks);
    w->cores = calloc((size_t)nodes * (size_t)w->cores_per_node, sizeof *w->cores);
    w->run.heap_cap = 1024;
    w->run.heap = malloc(w->run.heap_cap * sizeof *w->run.heap);
    if (w->ranks == NULL || w->cores == NULL || w->run.heap == NULL)
        return false;
    for (int r = 0; r < w->size; r++) {
        struct pki_agree *a = &w->ranks[r].agree;

        w->ranks[r].world = w;
        *a = (struct pki_agree){ .rank = r, .size = w->size, .number = 1, .send = send_message, .arg = &w->ranks[r] };
        a->dead = calloc(2 * words, sizeof *a->dead);
        if (a->dead == NULL)
            return false;
        a->view = a->dead + words;
        if (dead >= 0)
            pki_agree_add(a->dead, dead);
    }
    return true;
}

static void unmake(struct world *w)
{
    for (int r = 0; w->ranks != NULL && r < w->size; r++)
        free(w->ranks[r].agree.dead);
    for (uint32_t i = 0; i < w->count; i++)
        free(w->messages[i].set);
    free(w->messages);
    free(w->run.heap);
    free(w->cores);
    free(w->ranks);
}

/* All begin at once. */
static void agree(struct world *w, int dead, struct sim_recovery *out)
{
    double end = 0;

    for (int r = 0; r < w->size; r++) {
        w->now = *core_of(w, r);
        if (r != dead)
            pki_agree_begin(&w->ranks[r].agree);
        *core_of(w, r) = w->now;
    }
    while (w->run.events > 0 && !w->no_memory && !w->run.no_memory) {
        const struct sim_event event = sim_pop(&w->run);

        take(w, &event);
        end = w->now > end ? w->now : end;
    }
    out->agree_us = end;
    for (int r = 0; r < w->size; r++) {
        w->no_memory = w->no_memory || (r != dead && w->ranks[r].agree.state != PKI_AGREE_RETURNED);
        out->messages += w->ranks[r].messages;
        out->most_messages = w->ranks[r].messages > out->most_messages ? w->ranks[r].messages : out->most_messages;
    }
}

static double through_root_us(const struct sim_machine *m, double ranks, double bytes)
{
    const double gbps = m->nodes > 1 ? m->inter.gbps.memory : m->copy.gbps.memory;

    return 2 * ranks * SOCKET_US + 2 * WAKE_US + bytes / (gbps * 1e3);
}

/* Through rank 0 goes what each tells, to each. */
static double gather_us(const struct sim_machine *m, double ranks, double bytes)
{
    return through_root_us(m, ranks, ranks * (ranks + 1) * bytes);
}

/* What each tells each alone, to rank 0 and from there. */
static double alltoall_us(const struct sim_machine *m, double ranks, double bytes)
{
    return through_root_us(m, ranks, 2 * ranks * ranks * bytes);
}

/* Ranks of several hosts tell each other where they can be reached, and by what (paths/connect.c). */
static double offers_us(const struct sim_machine *m, double ranks)
{
    double us = alltoall_us(m, ranks, 1);

    for (const struct pki_transport *const *t = pki_transports(); *t != NULL; t++)
        if ((*t)->between_hosts)
            us += alltoall_us(m, ranks, 8 + sizeof((struct pki_blob *)0)->bytes);
    return us;
}

static double meet_us(const struct sim_machine *m, double ranks, int cores_per_node)
{
    const double turns = (double)m->ranks_per_node / cores_per_node; /* ranks that one core has to serve */

    return ranks * PROOF_US + gather_us(m, ranks, sizeof(struct pki_peer_info)) + (m->nodes > 1 ? offers_us(m, ranks) : 0) +
           TELLS * gather_us(m, ranks, 64) + ranks * PAIR_US * turns;
}

bool sim_recover(const struct sim_machine *machine, int ranks, int dead, struct sim_recovery *out)
{
    const int each = machine->ranks_per_node;
    struct world w = { .machine = machine, .size = ranks };
    bool good;

    w.cores_per_node = machine->cores_per_node > 0 && machine->cores_per_node < each ? machine->cores_per_node : each;
    *out = (struct sim_recovery){ 0 };
    good = make(&w, dead);
    if (good)
        agree(&w, dead, out);
    good = good && !w.no_memory && !w.run.no_memory;
    unmake(&w);
    out->meet_us = meet_us(machine, ranks - (dead >= 0), w.cores_per_node);
    out->shrink_us = 2 * out->agree_us + out->meet_us;
    return good;
}
