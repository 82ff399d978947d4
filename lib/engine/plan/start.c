/* SPDX-License-Identifier: Apache-2.0 */
/* Operations begin: their first messages go out. */
#include "engine/plan/plan.h"

bool pki_task_start(struct pki_task *task)
{
    task->started = true;
    if (task->plan != NULL) {
        task->started = pki_plan_run(task);
        return task->started;
    }
    task->xfer->ready = task->xfer->bytes;
    if (!pki_list_empty(&task->xfer->match)) { /* posted when the stream's operation was called */
        if (task->xfer->is_send)
            pki_send_advance(task->xfer);
        else
            pki_recv_open(task->xfer);
    } else {
        task->xfer->opened = true;
        pki_xfer_post(task->xfer);
    }
    return true;
}

pk_result_t pki_task_resume(struct pki_engine *e, const struct pki_request *r, const struct pki_begun *begun,
                            struct pki_list *blocking)
{
    struct pki_task *task;
    pk_result_t result = pki_task_make(e, r, &task);

    if (result != PK_OK)
        return result;
    task->number = begun->number;
    task->started = true;
    pki_list_push(&e->tasks.all, &task->node);
    pki_list_push(blocking, &task->waiting);
    pki_plan_resume(task, begun);
    return PK_OK;
}
