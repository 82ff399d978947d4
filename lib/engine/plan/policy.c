/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation needs of the GPU, and whether it may have that. */
#include "engine/plan/plan.h"
#include "util/dtype.h"

bool pki_task_is_to_self(const struct pki_task *task)
{
    return task->request.what != PKI_DO_COLL && task->request.peer == task->engine->config.rank;
}

bool pki_task_needs_kernel(const struct pki_task *task)
{
    if (task->plan == NULL)
        return pki_task_is_to_self(task);
    if (task->request.scaled)
        return true;
    if (pki_bounce_copies(task->engine, task->request.algorithm->coll, task->plan))
        return false;
    for (uint32_t i = 0; i < task->plan->nsteps; i++)
        if (task->plan->steps[i].kind != PKI_STEP_SEND && task->plan->steps[i].kind != PKI_STEP_RECV)
            return true;
    return false;
}

pk_result_t pki_task_check_policy(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    const struct pki_request *r = &task->request;

    if (r->what == PKI_DO_COLL && pki_coll_shape(r->algorithm->coll)->reduces) {
        struct pki_device *device = task->kind == PKI_MEM_DEVICE ? e->gpu : e->host;

        if (!device->ops->reduces(device, r->dtype, r->op))
            return pki_fail(PK_ERR_UNSUPPORTED, NULL, "%s of %s with reduction %u: not on a GPU in this version",
                            pki_task_name(task), pk_dtype_name(r->dtype), (unsigned)r->op);
    }
    if (task->kind != PKI_MEM_DEVICE || e->config.sm_policy != PK_SM_NONE)
        return PK_OK;
    if (!pki_task_needs_kernel(task))
        return PK_OK;
    if (r->what != PKI_DO_COLL)
        return pki_fail(PK_ERR_NEEDS_SM, NULL, "%s to the own rank copies inside the gpu, which runs as a kernel",
                        pki_task_name(task));
    return pki_fail(PK_ERR_NEEDS_SM, NULL, "%s %s by algorithm %s copies or reduces inside the gpu, which runs as a kernel",
                    pki_task_name(task), r->in_place ? "in place" : "out of place", r->algorithm->name);
}
