/* SPDX-License-Identifier: Apache-2.0 */
/* What unfinished operations wait for, in words: for bug reports. */
#include <unistd.h>

#include "engine/life.h"
#include "engine/proto/bounce.h"
#include "tuning/tuning.h"
#include "util/text.h"

#define LOCK_TURNS 100 /* looks at a lock that somebody else has */

static void add_signal(struct pki_text *out, const char *name, const struct pki_signal *signal)
{
    if (signal->word == NULL)
        return;
    pki_text_add(out, ", %s %s (word %u, opens at %u)", name, pki_signal_is_open(signal) ? "open" : "shut",
                 atomic_load_explicit(signal->word, memory_order_relaxed), signal->value);
}

static void add_pieces(struct pki_text *out, const struct pki_bounce *bounce_state)
{
    static const char *const states[] = {
        [PKI_BOUNCE_EMPTY] = "",         [PKI_BOUNCE_PACKING] = " copying",          [PKI_BOUNCE_FILLED] = " filled",
        [PKI_BOUNCE_MOVING] = " moving", [PKI_BOUNCE_UNPACKING] = " filled copying", [PKI_BOUNCE_ENDED] = " ended"
    };

    for (unsigned i = bounce_state->tail; i != bounce_state->head; i++) {
        const struct pki_piece *piece = &bounce_state->pieces[i % (2 * PKI_BOUNCE_PIECES)];

        pki_text_add(out, ", piece of %zu at %zu: slot %d%s%s%s", piece->len, piece->offset, piece->slot,
                     piece->asked ? " asked" : "", piece->placed ? " placed" : "", states[piece->state]);
    }
}

static void add_xfer(struct pki_text *out, const struct pki_xfer *xfer)
{
    static const char *const states[] = { [PKI_XFER_UNPOSTED] = "not posted",
                                          [PKI_XFER_LOOK] = "looks for its grant",
                                          [PKI_XFER_SAY] = "has a message to send",
                                          [PKI_XFER_WAIT] = "waits for the peer",
                                          [PKI_XFER_LOCAL] = "waits for an eager put",
                                          [PKI_XFER_ASK] = "has to ask for data",
                                          [PKI_XFER_MOVE] = "moves",
                                          [PKI_XFER_EAGER_PUT] = "moves by eager puts",
                                          [PKI_XFER_DATA] = "moves by messages",
                                          [PKI_XFER_COOP] = "is moved by both ends",
                                          [PKI_XFER_GET] = "is read by the receiver",
                                          [PKI_XFER_STREAM] = "the stream moves it",
                                          [PKI_XFER_DONE] = "done" };
    static const char *const kinds[] = { "host", "device" };

    pki_text_add(out, "%s rank %d, %zu bytes of %s memory, %s; ready %zu, issued %zu, done %zu",
                 xfer->is_send ? "send to" : "receive from", xfer->peer->rank, xfer->bytes, kinds[xfer->kind],
                 states[xfer->state], xfer->ready, xfer->issued, xfer->done);
    pki_text_add(out, "%s%s%s%s%s%s%s", xfer->path != NULL ? ", by " : "",
                 xfer->path != NULL ? xfer->path->iface->transport->name : "", xfer->signals.ll ? ", low-latency slot" : "",
                 pki_xfer_slots_there(xfer) ? ", by bounce buffers" : "",
                 pki_xfer_slots_here(xfer) ? ", by own bounce buffers" : "", xfer->opened ? ", buffer free" : "",
                 xfer->rts_seen ? ", rts" : "");
    add_signal(out, "start", &xfer->signals.start);
    add_signal(out, "finish", &xfer->signals.finish);
    if (xfer->bounce.state != NULL)
        add_pieces(out, xfer->bounce.state);
    pki_text_add(out, "\n");
}

static void add_steps(struct pki_text *out, const struct pki_task *task)
{
    static const char *const names[] = { "send", "recv", "recv_reduce", "copy", "reduce", "fused", "by the aggregator" };
    unsigned idle = 0;

    for (uint32_t i = 0; i < task->plan->nsteps; i++) {
        const struct pki_step_state *state = &task->run.steps[i];

        if (state->progress == PKI_STEP_COMPLETE)
            continue;
        if (state->progress == PKI_STEP_WAITS && state->finish_bytes <= state->done && !state->starved) {
            idle++;
            continue;
        }
        pki_text_add(out, "    step %u, %s: %zu of %zu bytes%s", i, names[task->plan->steps[i].kind], state->done, state->bytes,
                     state->starved ? ", there was no word, time or hardware queue left for it" : "");
        if (state->finish_bytes > state->done)
            add_signal(out, "the gpu's work", &state->finish);
        pki_text_add(out, state->xfer != NULL ? "; " : "\n");
        if (state->xfer != NULL)
            add_xfer(out, state->xfer);
    }
    pki_text_add(out, "    %u steps left, %u of them not begun\n", task->run.remaining, idle);
}

static void add_task(struct pki_text *out, const struct pki_task *task)
{
    static const char *const modes[] = { [PKI_TASK_CPU] = "by the engine",
                                         [PKI_TASK_AFTER_STREAM] = "by the engine, within the call",
                                         [PKI_TASK_SIGNALLED] = "by the engine between two signals of a cuda stream",
                                         [PKI_TASK_BARRIER] = "by the engine behind a signal of a cuda stream",
                                         [PKI_TASK_STREAM] = "by a cuda stream itself" };

    pki_text_add(out, "%s %llu, %s, for %llu ms%s%s", pki_task_name(task), (unsigned long long)task->number, modes[task->mode],
                 (unsigned long long)((pki_now_ns() - task->begun_ns) / PKI_NS_PER_MS), task->started ? "" : ", not started",
                 atomic_load(&task->host.may_start) ? "" : ", behind another of its host stream");
    if (task->cuda.ready_slot >= 0)
        add_signal(out, "ready", &task->cuda.ready);
    if (task->cuda.release_slot >= 0)
        add_signal(out, "release", &task->cuda.release);
    if (task->plan != NULL)
        pki_text_add(out, ", algorithm %s, scratch %s\n", task->request.algorithm->name,
                     task->run.scratch != NULL ? "taken" : "none");
    else
        pki_text_add(out, "\n");
    if (task->plan != NULL && task->run.steps != NULL)
        add_steps(out, task);
    if (task->xfer != NULL) {
        pki_text_add(out, "    ");
        add_xfer(out, task->xfer);
    }
}

/* What its transport says that keeps it. */
static void add_report(struct pki_text *out, const struct pki_ep *ctrl)
{
    if (ctrl != NULL && ctrl->report != NULL && ctrl->report[0] != '\0')
        pki_text_add(out, "rank %d over %s: %s\n", ctrl->peer, ctrl->iface->transport->name, ctrl->report);
}

static bool lock_in_time(struct pki_engine *e)
{
    for (int turn = 0; turn < LOCK_TURNS; turn++) {
        if (pki_engine_trylock(e))
            return true;
        usleep(pki_tuning.wait.turn_us);
    }
    return false;
}

void pki_engine_pending(struct pki_engine *e, char *text, size_t capacity, size_t *needed)
{
    struct pki_text out = { .start = text, .capacity = capacity };

    pki_text_add(&out, "rank %d of %d, result %d, %d operations in streams, %d drivers\n", e->config.rank, e->config.size,
                 (int)atomic_load(&e->failed), (int)atomic_load(&e->service.async_tasks), (int)atomic_load(&e->service.drivers));
    if (lock_in_time(e)) {
        for (const struct pki_list *n = e->tasks.all.next; n != &e->tasks.all; n = n->next)
            add_task(&out, pki_container_of(n, struct pki_task, node));
        for (int i = 0; i < e->config.size; i++)
            add_report(&out, e->peers[i].ctrl);
        pki_engine_unlock(e);
    } else {
        pki_text_add(&out, "a thread has been inside the library, or in a driver call that it made, for more than %u ms\n",
                     LOCK_TURNS * pki_tuning.wait.turn_us / 1000);
    }
    if (needed != NULL)
        *needed = out.length + 1;
}
