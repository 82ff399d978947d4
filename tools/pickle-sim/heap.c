/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "run.h"

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

void sim_push(struct sim_run *run, double time, uint32_t step, enum sim_what what)
{
    size_t at = run->events;

    if (run->events == run->heap_cap) {
        size_t cap = run->heap_cap * 2;
        struct sim_event *bigger = realloc(run->heap, cap * sizeof *bigger);

        if (bigger == NULL) {
            run->no_memory = true;
            return;
        }
        run->heap = bigger;
        run->heap_cap = cap;
    }
    run->events++;
    for (struct sim_event e = { time, run->order++, step, what };; at = (at - 1) / 2) {
        if (at == 0 || !before(&e, &run->heap[(at - 1) / 2])) {
            run->heap[at] = e;
            return;
        }
        run->heap[at] = run->heap[(at - 1) / 2];
    }
}

struct sim_event sim_pop(struct sim_run *run)
{
    struct sim_event first = run->heap[0], last = run->heap[--run->events];
    size_t at = 0;

    for (;;) {
        size_t child = 2 * at + 1;

        if (child + 1 < run->events && before(&run->heap[child + 1], &run->heap[child]))
            child++;
        if (child >= run->events || !before(&run->heap[child], &last))
            break;
        run->heap[at] = run->heap[child];
        at = child;
    }
    run->heap[at] = last;
    return first;
}
