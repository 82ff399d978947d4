/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch memory of collectives: kept from one to the next, and never freed where the driver's free could wait for a waiting
 * stream. */
#include <stdlib.h>

#include "engine/plan/plan.h"

/* With the engine. Without memory for that it stays until the process ends. */
static void keep(struct pki_engine *e, void *ptr, size_t bytes)
{
    struct pki_unfreed *memory = malloc(sizeof *memory);

    if (memory == NULL)
        return;
    *memory = (struct pki_unfreed){ .ptr = ptr, .bytes = bytes };
    pki_list_push(&e->plans.unfreed, &memory->node);
}

void pki_scratch_close(struct pki_engine *e)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&e->plans.unfreed)) != NULL) {
        struct pki_unfreed *memory = pki_container_of(node, struct pki_unfreed, node);

        e->gpu->ops->free(e->gpu, memory->ptr);
        free(memory);
    }
}

/* The driver's free waits for all work of the GPU, which may wait for this very thread: then it is put off. */
static void drop(struct pki_engine *e, void *ptr, size_t bytes)
{
    if (!pki_streams_hold_idle(e)) {
        keep(e, ptr, bytes);
        return;
    }
    e->gpu->ops->free(e->gpu, ptr);
    pki_streams_release();
}

/* *fits: it is long enough; else an entry to be filled again, one that was too short where nothing keeps that from being freed.
 * NULL: all are in use. */
static struct pki_scratch *free_scratch(struct pki_engine *e, enum pki_mem_kind kind, size_t bytes, bool *fits)
{
    struct pki_scratch *empty = NULL, *too_short = NULL;

    *fits = true;
    for (int i = 0; i < PKI_SCRATCH_MAX; i++) {
        struct pki_scratch *s = &e->plans.scratch[i];

        if (s->busy)
            continue;
        if (s->ptr != NULL && s->kind == kind && s->bytes >= bytes)
            return s;
        if (s->ptr == NULL)
            empty = empty == NULL ? s : empty; /* the first ones, which are found soonest */
        else if (too_short == NULL || s->bytes > too_short->bytes)
            too_short = s;
    }
    *fits = false;
    return too_short != NULL && (empty == NULL || too_short->kind == PKI_MEM_HOST || pki_streams_are_idle(e)) ? too_short : empty;
}

/* Lengths in steps of a quarter or less, so that what is kept serves the next one too. */
static size_t scratch_length(size_t bytes)
{
    size_t step = 4096;

    while (step * 8 <= bytes)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

static pk_result_t fill_scratch(struct pki_engine *e, struct pki_scratch *s, enum pki_mem_kind kind, size_t bytes)
{
    struct pki_device *device = kind == PKI_MEM_DEVICE ? e->gpu : e->host;
    void *ptr;
    pk_result_t result;

    if (s->ptr != NULL && s->kind == PKI_MEM_DEVICE)
        drop(e, s->ptr, s->bytes);
    else if (s->ptr != NULL)
        e->host->ops->free(e->host, s->ptr);
    s->ptr = NULL;
    result = device->ops->alloc(device, bytes, &ptr);
    if (result == PK_OK)
        *s = (struct pki_scratch){ .ptr = ptr, .bytes = bytes, .kind = kind };
    return result;
}

size_t pki_scratch_bytes(const struct pki_task *task)
{
    return task->run.scratch_stride * task->plan->scratch_blocks + pki_mixed_bytes(task) + pki_scaled_bytes(task);
}

/*
 * A collective keeps its memory until it has ended, and may stand in its stream behind one that has none yet, here or on another
 * rank. So the last block is for the oldest collective that has none: it can always go on. Number 0: the youngest, in its call.
 */
static bool is_for_an_older_one(const struct pki_task *task)
{
    const struct pki_engine *e = task->engine;
    int left = 0;

    for (int i = 0; i < PKI_SCRATCH_MAX && left < 2; i++)
        left += !e->plans.scratch[i].busy;
    if (left == 2)
        return false;
    for (const struct pki_list *n = e->tasks.all.next; n != &e->tasks.all; n = n->next) {
        const struct pki_task *other = pki_container_of(n, struct pki_task, node);

        if (other->plan != NULL && other->run.scratch == NULL && pki_scratch_bytes(other) > 0 &&
            (task->number == 0 || other->number < task->number))
            return true;
    }
    return false;
}

pk_result_t pki_scratch_take(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    size_t bytes = pki_scratch_bytes(task);
    struct pki_scratch *s;
    bool fits;
    pk_result_t result = PK_OK;

    if (task->run.scratch != NULL || bytes == 0)
        return PK_OK;
    s = is_for_an_older_one(task) ? NULL : free_scratch(e, task->kind, bytes, &fits);
    if (s == NULL)
        return PK_IN_PROGRESS;
    if (!fits)
        result = fill_scratch(e, s, task->kind, scratch_length(bytes));
    if (result != PK_OK)
        return result;
    s->busy = true;
    task->run.scratch = s->ptr;
    return PK_OK;
}

void pki_scratch_take_inline(struct pki_task *task)
{
    struct pki_engine *e = task->engine;

    if (pki_scratch_bytes(task) == 0)
        return;
    task->run.scratch = e->inlined.scratch;
    e->inlined.scratch = NULL;
    e->inlined.bytes = 0;
}

void pki_scratch_give(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    void *scratch = task->run.scratch;

    task->run.scratch = NULL;
    for (int i = 0; i < PKI_SCRATCH_MAX && scratch != NULL; i++) {
        if (e->plans.scratch[i].ptr != scratch)
            continue;
        e->plans.scratch[i].busy = false;
        return;
    }
    free(scratch); /* that of an inline call */
}
