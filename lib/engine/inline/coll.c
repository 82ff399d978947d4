/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short blocking collectives of host memory: the same plan steps, one after another on the caller's thread, without a task, an
 * allocation or a clock. What a plan comes to for one count and type is kept beside it as a program: offsets instead of blocks.
 * A transfer is one EAGER message. When a peer is late, what is left of the plan becomes an ordinary operation.
 */
#include <sched.h>
#include <stdlib.h>

#include "engine/channel/eager.h"
#include "engine/inline/inline.h"
#include "engine/inline/program.h"
#include "tuning/tuning.h"
#include "util/copy.h"
#include "util/dtype.h"

static void consumed(struct pki_inline_run *run, const struct pki_program_step *step)
{
    struct pki_peer *peer = &run->e->peers[step->peer];

    peer->ctrl->iface->transport->pop(peer->ctrl);
    pki_ctrl_consumed(run->e, peer, step->bytes);
}

/* Before others look at the control channels. */
static void put_down(struct pki_inline_run *run)
{
    for (uint64_t left = run->held; left != 0; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left);
        const struct pki_program_step *step = &run->program->steps[i];

        pki_copy_short(pki_inline_at(run, step->dst), run->payloads[i], step->bytes);
        consumed(run, step);
    }
    run->held = 0;
}

static bool send_step(struct pki_inline_run *run, const struct pki_program_step *step)
{
    struct pki_engine *e = run->e;
    struct pki_peer *peer = &e->peers[step->peer];
    struct pki_msg msg;

    if (!pki_eager_has_credit(peer, step->bytes)) {
        put_down(run);
        (void)pki_ctrl_poll(e, peer); /* for CREDIT */
        return false;
    }
    if (step->bytes == 0 && run->e->config.gpus != PKI_GPUS_NONE)
        pki_barrier_arrive(peer, run->begun.number, step->index);
    msg.flags = PKI_MSG_FLAG_COLL;
    msg.index = step->index;
    msg.sig = run->program->sig;
    msg.op = run->begun.number;
    if (pki_eager_send(e, peer, &msg, pki_inline_at(run, step->src), step->bytes) != PK_OK)
        return false;
    e->stats.bytes_sent += step->bytes;
    return true;
}

static bool is_it(const struct pki_inline_run *run, const struct pki_program_step *step, const struct pki_msg *msg)
{
    return msg->kind == PKI_MSG_EAGER && msg->flags == PKI_MSG_FLAG_COLL && msg->op == run->begun.number &&
           msg->index == step->index && msg->sig == run->program->sig && msg->payload == step->bytes;
}

/* What came while an earlier operation was looked after the ordinary way. */
static bool take_unexpected(struct pki_inline_run *run, const struct pki_program_step *step, void *to)
{
    struct pki_peer *peer = &run->e->peers[step->peer];

    for (struct pki_list *n = peer->unexpected_queue.next; n != &peer->unexpected_queue; n = n->next) {
        struct pki_unexpected *unexpected = pki_container_of(n, struct pki_unexpected, node);

        if (!is_it(run, step, &unexpected->msg))
            continue;
        pki_copy_short(to, unexpected->payload, step->bytes);
        pki_list_remove(n);
        free(unexpected);
        return true;
    }
    return false;
}

static void reduce_step(struct pki_inline_run *run, const struct pki_program_step *step, const void *const *srcs, int n)
{
    const struct pki_request *r = run->request;

    run->result = pki_reduce_host_here(pki_inline_at(run, step->dst), srcs, n, step->count, r->dtype, step->op);
}

static void combine(struct pki_inline_run *run, const struct pki_program_step *step, const void *with)
{
    const void *const srcs[2] = { pki_inline_at(run, step->src), with };

    reduce_step(run, step, srcs, 2);
}

/* What came while an earlier operation was looked after the ordinary way. */
static bool recv_unexpected(struct pki_inline_run *run, const struct pki_program_step *step)
{
    bool combines = step->kind == PKI_STEP_RECV_REDUCE;
    char *to = pki_inline_at(run, combines ? step->landing : step->dst);

    if (!take_unexpected(run, step, to))
        return false;
    if (combines)
        combine(run, step, to);
    pki_ctrl_consumed(run->e, &run->e->peers[step->peer], step->bytes);
    return true;
}

static bool recv_message(struct pki_inline_run *run, const struct pki_program_step *step)
{
    struct pki_peer *peer = &run->e->peers[step->peer];
    const struct pki_transport *transport = peer->ctrl->iface->transport;
    unsigned i = (unsigned)(step - run->program->steps);
    struct pki_msg msg;
    const void *payload;

    if (!pki_list_empty(&peer->unexpected_queue) && recv_unexpected(run, step))
        return true;
    peer->ctrl->expected = step->bytes;
    if (!transport->peek(peer->ctrl, &msg, &payload))
        return false;
    if (!is_it(run, step, &msg)) {
        (void)pki_ctrl_poll(run->e, peer); /* keeps what nobody waits for */
        return recv_unexpected(run, step);
    }
    pki_credit_arrived(peer, &msg);
    if (step->by_ctrl) {
        run->payloads[i] = payload;
        run->held |= 1ull << i;
        return true;
    }
    if (step->kind == PKI_STEP_RECV_REDUCE)
        combine(run, step, payload);
    else
        pki_copy_short(pki_inline_at(run, step->dst), payload, step->bytes);
    consumed(run, step);
    return true;
}

static bool recv_step(struct pki_inline_run *run, const struct pki_program_step *step)
{
    struct pki_peer *peer = &run->e->peers[step->peer];

    if (!recv_message(run, step))
        return false;
    if (run->begun.number > peer->heard.coll)
        peer->heard.coll = run->begun.number;
    run->e->stats.bytes_received += step->bytes;
    return true;
}

static void reduce_all(struct pki_inline_run *run, const struct pki_program_step *step)
{
    const void *srcs[PKI_REDUCE_SOURCES];
    uint64_t read = 0;

    for (int k = 0; k < step->operands; k++) {
        unsigned from = run->program->received_by[step->first_operand + k];
        bool held = from > 0 && (run->held >> (from - 1) & 1) != 0;

        srcs[k] = held ? run->payloads[from - 1] : pki_inline_at(run, run->program->operands[step->first_operand + k]);
        read |= held ? 1ull << (from - 1) : 0;
    }
    reduce_step(run, step, srcs, step->operands);
    run->held &= ~read;
    for (; read != 0; read &= read - 1)
        consumed(run, &run->program->steps[__builtin_ctzll(read)]);
}

/* False: not yet. */
static bool try_step(struct pki_inline_run *run, const struct pki_program_step *step)
{
    switch ((enum pki_step_kind)step->kind) {
    case PKI_STEP_SEND:
        return send_step(run, step);
    case PKI_STEP_RECV:
    case PKI_STEP_RECV_REDUCE:
        return recv_step(run, step);
    case PKI_STEP_COPY:
        pki_copy_short(pki_inline_at(run, step->dst), pki_inline_at(run, step->src), step->bytes);
        return true;
    case PKI_STEP_REDUCE:
        reduce_all(run, step);
        return true;
    case PKI_STEP_FUSED:
    case PKI_STEP_SWITCH:
        break;
    }
    return false;
}

static void look_at(struct pki_inline_run *run, uint64_t steps)
{
    for (uint64_t left = steps & ~run->begun.done; left != 0; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left);
        const struct pki_program_step *step = &run->program->steps[i];

        if ((step->deps & ~run->begun.done) == 0 && try_step(run, step))
            run->begun.done |= 1ull << i;
    }
}

/* Try every step whose turn has come. True: all are done. */
static bool look_at_all(struct pki_inline_run *run)
{
    uint64_t all = run->program->n == PKI_PROGRAM_STEPS ? UINT64_MAX : (1ull << run->program->n) - 1;

    look_at(run, all & ~run->program->deferred);
    if (run->program->deferred != 0)
        look_at(run, run->program->deferred);
    return run->begun.done == all;
}

/* Locked on entry and return; let go in between, so that an abort gets through. */
static bool run_for_a_while(struct pki_inline_run *run)
{
    struct pki_engine *e = run->e;
    int turns = 0;

    do {
        int polls = 0;

        do {
            if (look_at_all(run))
                return true;
        } while (!e->config.shares_cpu && ++polls < pki_tuning.wait.inline_polls);
        put_down(run);
        e->inlined.running = true;
        pki_engine_unlock(e);
        if (!pki_engine_spins(e))
            sched_yield();
        pki_engine_lock(e);
        e->inlined.running = false;
        if (run->result != PK_OK || atomic_load_explicit(&e->failed, memory_order_relaxed) != PK_OK)
            return false;
    } while (++turns < pki_tuning.wait.inline_turns);
    return false;
}

static bool may_be_inline(const struct pki_engine *e, const struct pki_request *r)
{
    return r->stream.kind == PK_STREAM_KIND_BLOCKING && e->gpu == NULL && r->layout.in_counts == NULL &&
           r->layout.out_counts == NULL && pki_request_bytes(r) <= PKI_INLINE_BYTES && e->config.size > 1 && !r->scaled &&
           r->algorithm != &pki_switchml_algorithm;
}

static bool scratch_is_there(struct pki_engine *e, size_t bytes)
{
    if (bytes <= e->inlined.bytes)
        return true;
    free(e->inlined.scratch);
    e->inlined.scratch = aligned_alloc(4096, PKI_INLINE_BYTES);
    e->inlined.bytes = e->inlined.scratch == NULL ? 0 : PKI_INLINE_BYTES;
    return e->inlined.scratch != NULL;
}

static enum pki_inline run_program(struct pki_engine *e, const struct pki_program *program, const struct pki_request *r,
                                   struct pki_list *blocking)
{
    const void *payloads[PKI_PROGRAM_STEPS];
    struct pki_inline_run run = { .e = e, .program = program, .request = r, .payloads = payloads };
    bool ended;

    run.begun = (struct pki_begun){ .number = ++e->colls.number };
    e->colls.seen[e->colls.number % PKI_SEEN_MAX] = (struct pki_coll_seen){ e->colls.number, program->sig, r->count };
    run.base[PKI_BUF_IN] = (uintptr_t)r->in;
    run.base[PKI_BUF_OUT] = (uintptr_t)r->out;
    run.base[PKI_BUF_SCRATCH] = (uintptr_t)e->inlined.scratch;
    if (program->reduces)
        run.before = pki_float_env_enter();
    ended = run_for_a_while(&run);
    if (program->reduces)
        pki_float_env_leave(run.before);
    pki_engine_free_ended(e);
    e->stats.steps += ended ? program->n : (uint64_t)__builtin_popcountll(run.begun.done);
    if (run.result == PK_OK && ended) {
        e->stats.operations++;
        return PKI_INLINE_DONE;
    }
    if (run.result == PK_OK && atomic_load_explicit(&e->failed, memory_order_relaxed) == PK_OK) {
        run.result = pki_task_resume(e, r, &run.begun, blocking);
        if (run.result == PK_OK)
            return PKI_INLINE_BEGUN;
    }
    pki_engine_coll_failed(e, run.begun.number);
    if (run.result != PK_OK)
        pki_engine_poison(e, run.result, true);
    return PKI_INLINE_BEGUN;
}

/* Nothing else may be under way: while this runs nobody looks after it. */
enum pki_inline pki_inline_coll(struct pki_engine *e, const struct pki_request *r, struct pki_list *blocking)
{
    enum pki_inline how = PKI_INLINE_NOT;
    struct pki_plan_entry *entry;
    const struct pki_program *program;

    if (!may_be_inline(e, r))
        return PKI_INLINE_NOT;
    pki_engine_lock(e);
    if (!pki_list_empty(&e->tasks.all) || atomic_load_explicit(&e->failed, memory_order_relaxed) != PK_OK ||
        pki_plan_take(e, r, &entry) != PK_OK)
        goto out;
    program = pki_program_of(e, entry, r);
    if (program != NULL && scratch_is_there(e, program->scratch_bytes))
        how = run_program(e, program, r, blocking);
    pki_plan_give(e, entry);
out:
    pki_engine_unlock(e);
    return how;
}
