/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fused collectives: one kernel on each rank, in the caller's stream, that writes into the inboxes of the other ranks and waits
 * for no CPU. The protocol and its proof are in kernels/kernels.h. Here: which operations, their epochs, their turn, and what the
 * CPU still does: keeps the deadline, hears of disagreement, ends the task.
 *
 * A rank whose memory is of another kind does the operation by its ordinary plan. Its first message tells the others (ctrl.c),
 * whose kernels then stand by until their own CPUs have done the same.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/fused/fused.h"
#include "util/dtype.h"

#define EPOCHS_END 0xffff0000u /* from here on the inboxes are cleared and epochs start again */
#define EPOCHS_BEGIN PKI_FUSED_EPOCHS_BEGIN
#define FOLLOW_NS 1000000u      /* an operation whose end the next one's tells is over so much later, as far as deadlines go */
#define EPOCHS_FRESH (1u << 28) /* far less than the half of all, from which on an old one would look like one to come */

/* ---- memory ---- */

_Static_assert(PKI_FUSED_RELAY_RESULTS + 16 * PKI_FUSED_RELAY_PAIRS <= PKI_FUSED_PARTS,
               "what a relay has in cells lies among the cells");
_Static_assert(PKI_FUSED_PAIR_BYTES >= PKI_FUSED_BYTES, "so that there are cells for all that goes in cells");

static size_t others(const struct pki_engine *e)
{
    return (size_t)e->config.size - 1;
}

size_t pki_fused_inbox_bytes(const struct pki_engine *e)
{
    return e->config.fused && !e->fused.host.used ? others(e) * 2 * PKI_FUSED_HALF + PKI_FUSED_STATE_BYTES : 0;
}

static size_t words_bytes(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (sizeof(struct pki_fused_words) + page - 1) / page * page;
}

pk_result_t pki_fused_open(struct pki_engine *e, char *inbox, char *state)
{
    struct pki_fused *f = &e->fused;
    void *words;
    pk_result_t result;

    words = mmap(NULL, words_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        return pki_fail_errno(PK_ERR_MEMORY, NULL, "mmap of %zu bytes", words_bytes());
    result = e->gpu->ops->host_register(e->gpu, words, words_bytes());
    if (result == PK_OK) {
        result = e->gpu->ops->queue_open(e->gpu, &f->queue);
        if (result != PK_OK)
            e->gpu->ops->host_unregister(e->gpu, words);
    }
    if (result != PK_OK) {
        munmap(words, words_bytes());
        return result;
    }
    f->words = words;
    f->inbox = inbox;
    f->state = state;
    f->epoch = EPOCHS_BEGIN - 1;
    return PK_OK;
}

void pki_fused_close(struct pki_engine *e)
{
    struct pki_fused *f = &e->fused;

    if (f->words != NULL) {
        e->gpu->ops->queue_close(&f->queue);
        e->gpu->ops->host_unregister(e->gpu, f->words);
        munmap(f->words, words_bytes());
        pki_waiting_return(e->limits.ordinal, f->places + f->replay_places);
        f->places = f->replay_places = 0;
        f->words = NULL;
        f->on = false;
    }
    pki_fused_host_close(e);
}

void pki_fused_reach(struct pki_engine *e, int peer, uint64_t inbox)
{
    unsigned here = (unsigned)(e->config.rank > peer ? e->config.rank - 1 : e->config.rank);

    e->fused.remote[peer] = inbox + 2ull * here * PKI_FUSED_HALF;
}

int pki_engine_fused_offer(struct pki_engine *e, int processes)
{
    if (e->fused.words == NULL)
        return 0;
    for (int i = 0; i < e->config.size; i++)
        if (i != e->config.rank && e->fused.remote[i] == 0)
            return 0;
    e->fused.share = e->limits.places / processes;
    e->fused.places = pki_waiting_reserve(e->limits.ordinal, e->fused.share, e->config.fused_ctas);
    return e->fused.places;
}

void pki_engine_fused_start(struct pki_engine *e, int ctas)
{
    pki_waiting_return(e->limits.ordinal, e->fused.places - ctas);
    e->fused.places = e->config.fused_ctas = ctas;
    e->fused.on = ctas > 0;
    if (!e->fused.on && e->fused.host.used)
        pki_fused_close(e); /* pinned memory that nobody uses */
}

/* ---- epochs and turns ---- */

/* The plans of the others let every rank hear of each that does an operation by one. Those of rooted ones do not: it has to be
 * said. */
static void meet_rooted(struct pki_task *task)
{
    struct pki_engine *e = task->engine;

    for (int i = 0; i < e->config.size; i++) {
        struct pki_list *n = e->peers[i].unexpected_queue.next, *next;

        for (; n != &e->peers[i].unexpected_queue; n = next) {
            struct pki_unexpected *unexpected = pki_container_of(n, struct pki_unexpected, node);

            next = n->next;
            if (unexpected->msg.kind != PKI_MSG_PLAN || unexpected->msg.op != task->number)
                continue;
            task->fused.heard_of = true;
            pki_list_remove(n);
            free(unexpected);
        }
    }
    if (!pki_task_is_fused(task)) {
        task->run.unreported = pki_fused_ranks(e, false);
        pki_plan_tell(task);
    }
}

static _Atomic uint32_t *entry_of(const struct pki_task *task, uint32_t *words)
{
    return (_Atomic uint32_t *)&words[task->fused.entry_number % PKI_FUSED_FALLS];
}

/* What an operation of long ago left there may say this one's epoch, which has come back since. */
static void take_entry(struct pki_task *task)
{
    struct pki_fused *f = &task->engine->fused;
    uint32_t *const words[] = { f->words->fall, f->words->came, f->words->release };

    task->fused.entry_number = f->entries++;
    for (int i = 0; i < 3; i++)
        if (atomic_load_explicit(entry_of(task, words[i]), memory_order_relaxed) == task->fused.epoch)
            atomic_store(entry_of(task, words[i]), 0);
}

/* Every rank counts alike, whether it takes part by a kernel or not. Near the end two epochs more are for clearing. */
void pki_fused_enroll(struct pki_task *task)
{
    struct pki_fused *f = &task->engine->fused;
    const struct pki_request *r = &task->request;

    if (!pki_engine_fuses(task->engine, r->algorithm->coll, pki_fused_bytes(r), r->dtype, r->op))
        return;
    task->fused.clear_epoch = 0;
    if (f->epoch >= EPOCHS_END) {
        task->fused.clear_epoch = f->epoch + 1;
        f->epoch = EPOCHS_BEGIN + (f->epoch + 2 - EPOCHS_BEGIN) % 2; /* the same parity as before the jump */
    }
    task->fused.epoch = f->epoch + 1;
    take_entry(task);
    f->epoch += pki_fused_epochs(task->engine, r);
    task->fused.last_epoch = f->epoch;
    task->fused.careful = f->skipped;
    f->skipped = !pki_task_is_fused(task);
    if (pki_task_is_fused(task))
        pki_list_push(&f->waiting, &task->fused.turn);
    if (pki_coll_shape(r->algorithm->coll)->rooted)
        meet_rooted(task);
}

static bool is_my_turn(const struct pki_task *task)
{
    return task->engine->fused.waiting.next == &task->fused.turn;
}

void pki_fused_forget(struct pki_task *task)
{
    task->engine->fused.indirect -= task->fused.stage == PKI_FUSED_BY_CPU;
    if (task->fused.stage != PKI_FUSED_LAUNCHED)
        task->fused.stage = PKI_FUSED_NOWHERE;
    pki_list_remove(&task->fused.turn);
}

bool pki_fused_all_direct(const struct pki_engine *e)
{
    return e->fused.indirect == 0;
}

static void fall(struct pki_task *task)
{
    struct pki_engine *e = task->engine;

    if (task->fused.fallen)
        return;
    task->fused.fallen = true;
    pki_task_set_cpu_driven(task);
    atomic_store(entry_of(task, e->fused.words->fall), task->fused.epoch);
}

/* ---- launch ---- */

static struct pki_fused_args begin_args(const struct pki_engine *e, uint32_t epoch)
{
    const struct pki_fused *f = &e->fused;
    struct pki_fused_args args = { .inbox = (uint64_t)(uintptr_t)f->inbox,
                                   .words = (uint64_t)(uintptr_t)f->words,
                                   .abort_flag = (uint64_t)(uintptr_t)e->signals.abort_word,
                                   .state = (uint64_t)(uintptr_t)f->state,
                                   .ended_before = f->ctas_launched,
                                   .epoch = epoch,
                                   .rank = (uint32_t)e->config.rank,
                                   .size = (uint32_t)e->config.size };

    memcpy(args.peers, f->remote, sizeof args.peers);
    return args;
}

static bool ctas_ended(const struct pki_engine *e, int ctas, uint32_t epoch)
{
    const struct pki_fused_words *words = e->fused.words;

    /* Each begins when those before it have ended: a later one speaks for them. */
    if ((int32_t)(atomic_load_explicit((const _Atomic uint32_t *)&words->done[0], memory_order_acquire) - epoch) > 0)
        return true;
    for (int c = 0; c < ctas; c++)
        if ((int32_t)(atomic_load_explicit((const _Atomic uint32_t *)&words->done[c], memory_order_acquire) - epoch) < 0)
            return false;
    return true;
}

/* What nothing has written for long would pass for an epoch to come. No kernel still runs that is as old as what `followed` then
 * becomes; the CTAs may all say the latest, and nobody is missing, while no kernel runs. */
static void freshen(struct pki_engine *e, uint32_t epoch)
{
    struct pki_fused *f = &e->fused;
    _Atomic uint32_t *followed = (_Atomic uint32_t *)&f->words->followed;

    if (epoch - atomic_load(followed) > 2 * EPOCHS_FRESH)
        atomic_store(followed, epoch - EPOCHS_FRESH);
    if (epoch - f->fresh_epoch < EPOCHS_FRESH || !ctas_ended(e, f->last_ctas, f->last_epoch))
        return;
    for (int c = 0; c < PKI_FUSED_CTAS; c++)
        atomic_store_explicit((_Atomic uint32_t *)&f->words->done[c], epoch - 1, memory_order_release);
    for (int p = 0; p < e->config.size; p++)
        atomic_store((_Atomic uint32_t *)&f->words->missing[p], 0);
    f->fresh_epoch = epoch;
}

/*
 * All that this communicator has on multiprocessors keeps to its places: the kernel whose turn it is, and one that has been
 * launched early behind it. Kernels in other streams come when it is their turn: a warp waits there before.
 */
static pk_result_t await_turn(struct pki_engine *e, const struct pki_queue *queue, int ctas, struct pki_fused_args *args)
{
    struct pki_fused *f = &e->fused;
    bool behind = f->last_stream == queue->handle;
    pk_result_t result;

    args->early = f->last_ctas + ctas <= f->places;
    if ((behind && args->early) || ctas_ended(e, f->last_ctas, f->last_epoch)) {
        args->early = 1;
        return PK_OK;
    }
    if (behind)
        return PK_OK;
    result = e->gpu->ops->fused(queue, PKI_FUSED_TURN, PK_UINT8, 1, args);
    e->stats.kernels += result == PK_OK;
    return result;
}

/* Those that need not tell the CPU of their end when another one follows at once. */
static bool is_quiet_kernel(enum pki_fused_kernel kernel)
{
    return kernel == PKI_FUSED_PAIR_EXCHANGE || kernel == PKI_FUSED_PAIR_SUM;
}

static pk_result_t start_kernel(struct pki_engine *e, const struct pki_queue *queue, enum pki_fused_kernel kernel,
                                pk_dtype_t dtype, int ctas, struct pki_fused_args *args)
{
    struct pki_fused *f = &e->fused;
    pk_result_t result;

    freshen(e, args->epoch);
    args->quiet = is_quiet_kernel(kernel) && args->fence == 0 && ++f->quiet % PKI_FUSED_TELL_EVERY != 0;
    result = await_turn(e, queue, ctas, args);
    if (result == PK_OK)
        result = e->gpu->ops->fused(queue, kernel, dtype, ctas, args);
    if (result != PK_OK)
        return result;
    if (f->soon && f->last_stream == queue->handle)
        atomic_store((_Atomic uint32_t *)&f->words->followed, f->last_epoch);
    f->ctas_launched += (uint32_t)ctas;
    f->last_stream = queue->handle;
    f->last_ctas = ctas;
    f->last_epoch = args->epoch + args->epochs - 1;
    e->stats.kernels++;
    return PK_OK;
}

/* Two rounds of nothing but headers, after each of which no cell holds a flag of that parity any more. */
static pk_result_t clear_inboxes(struct pki_task *task, const struct pki_queue *queue)
{
    struct pki_engine *e = task->engine;
    pk_result_t result = PK_OK;

    for (uint32_t i = 0; i < 2 && result == PK_OK; i++) {
        struct pki_fused_args args = begin_args(e, task->fused.clear_epoch + i);

        args.clear = args.epochs = 1;
        e->fused.soon = false;
        args.careful = task->fused.careful;
        result = start_kernel(e, queue, PKI_FUSED_EXCHANGE, PK_UINT8, e->config.fused_ctas, &args);
    }
    return result;
}

/* A rank has said already that it does this operation in another way. */
static bool was_heard_of(const struct pki_task *task)
{
    const struct pki_engine *e = task->engine;

    for (int i = 0; i < e->config.size && !task->fused.heard_of; i++)
        for (const struct pki_list *n = e->peers[i].unexpected_queue.next; n != &e->peers[i].unexpected_queue; n = n->next) {
            const struct pki_msg *msg = &pki_container_of(n, struct pki_unexpected, node)->msg;

            if (pki_msg_of_collective(msg) && msg->op == task->number)
                return true;
        }
    return task->fused.heard_of;
}

pk_result_t pki_fused_launch(struct pki_task *task, const struct pki_queue *queue)
{
    struct pki_engine *e = task->engine;
    const struct pki_request *r = &task->request;
    struct pki_fused_args args;
    pk_result_t result = task->fused.clear_epoch != 0 ? clear_inboxes(task, queue) : PK_OK;

    if (result == PK_OK)
        result = pki_scaled_queue(task, queue, &e->stats.kernels);
    if (result != PK_OK)
        return result;
    task->fused.ctas = pki_fused_ctas(e, r);
    if (was_heard_of(task))
        fall(task);
    args = begin_args(e, task->fused.epoch);
    pki_fused_fill(task, &args);
    args.sig = task->sig;
    args.entry = task->fused.entry_number % PKI_FUSED_FALLS;
    args.epochs = task->fused.last_epoch - task->fused.epoch + 1;
    args.fence = !pki_task_is_direct(task);
    args.careful = task->fused.careful;
    e->fused.soon = task->begun_ns - e->fused.begun_ns < FOLLOW_NS;
    e->fused.begun_ns = task->begun_ns;
    pki_claims_count(task); /* the kernel waits for other ranks, in whatever queue it is */
    result = start_kernel(e, queue, pki_fused_kernel(e, r), r->dtype, task->fused.ctas, &args);
    if (result != PK_OK)
        return result;
    e->stats.kernels_reaching += args.reach;
    e->stats.bytes_sent += args.bytes * (size_t)__builtin_popcount(args.send);
    pki_fused_forget(task);
    task->fused.stage = PKI_FUSED_LAUNCHED;
    return PK_OK;
}

static void look(struct pki_task *task)
{
    pk_result_t result;

    if (task->fused.stage == PKI_FUSED_LAUNCHED || !is_my_turn(task) ||
        !task->engine->gpu->ops->clear(&task->engine->fused.queue, true))
        return;
    result = pki_fused_launch(task, &task->engine->fused.queue);
    if (result != PK_OK)
        pki_engine_poison(task->engine, result, true);
}

/* ---- done in another way ---- */

/* The kernel stands by in the stream: now is the operation's time. */
static bool start_instead(struct pki_task *task)
{
    struct pki_engine *e = task->engine;

    if (atomic_load(entry_of(task, e->fused.words->came)) != task->fused.epoch)
        return false;
    pki_plan_release(task);
    task->request.algorithm = task->request.instead;
    if (pki_plan_prepare(task) != PK_OK) {
        pki_engine_poison(e, PK_ERR_MEMORY, true);
        return false;
    }
    task->run.executor = NULL;
    if (pki_task_is_direct(task))
        pki_task_enter(task, PKI_TASK_SIGNALLED); /* its signal is open: it may be started until it can be */
    task->started = pki_plan_run(task);
    return true;
}

void pki_fused_left(struct pki_task *task)
{
    if (task->fused.fallen)
        atomic_store(entry_of(task, task->engine->fused.words->release), task->fused.epoch);
    pki_reach_drop(task);
    pki_fused_forget(task);
}

/* ---- progress ---- */

static bool disagrees(struct pki_task *task)
{
    const struct pki_fused_words *words = task->engine->fused.words;

    for (int p = 0; p < task->engine->config.size; p++) {
        uint64_t differs = atomic_load_explicit((const _Atomic uint64_t *)&words->differs[p], memory_order_acquire);

        if (differs != 0 && (uint32_t)(differs >> 32) == task->fused.epoch) {
            pki_task_mismatch(task, p, (uint32_t)differs);
            return true;
        }
    }
    return false;
}

static bool waits_for(const struct pki_task *task, int peer)
{
    const struct pki_fused_words *words = task->engine->fused.words;
    uint32_t missing = atomic_load((const _Atomic uint32_t *)&words->missing[peer]);

    /* Or a later kernel does, which is to tell of this one's end. What an earlier one has left there is not to come. */
    return missing != 0 && (int32_t)(missing - task->fused.epoch) >= 0;
}

static bool poll(struct pki_task *task, bool *ended)
{
    *ended = false;
    if (task->fused.stage != PKI_FUSED_LAUNCHED) {
        if (!pki_task_is_direct(task))
            look(task);
        return task->fused.stage == PKI_FUSED_LAUNCHED;
    }
    if (task->fused.fallen)
        return start_instead(task);
    *ended = ctas_ended(task->engine, task->fused.ctas, task->fused.last_epoch);
    return *ended || disagrees(task);
}

static const struct pki_executor executor = { .look = look, .poll = poll, .waits_for = waits_for, .fall = fall };

void pki_fused_made(struct pki_task *task)
{
    enum pki_fused_kernel kernel = pki_fused_kernel(task->engine, &task->request);

    task->run.executor = &executor;
    if (kernel == PKI_FUSED_TWOSHOT || kernel == PKI_FUSED_PUSH)
        pki_reach_find(task);
    task->fused.stage = pki_task_is_direct(task) ? PKI_FUSED_BY_CALL : PKI_FUSED_BY_CPU;
    task->engine->fused.indirect += task->fused.stage == PKI_FUSED_BY_CPU;
}
