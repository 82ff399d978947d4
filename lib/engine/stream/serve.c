/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine does between two signals of a CUDA stream needs the GPU too: bytes to and from bounce buffers, sums, copies.
 * The kernel with which the stream waits does that, by orders (device/orders.c), so that nothing is asked of the driver when
 * the call has returned. Any such kernel does the orders of all operations of its communicator; there is one for as long as an
 * operation is under way whose stream has come to it.
 *
 * In a group of several operations such a kernel may stand behind others of the same stream that wait for peers, and these for
 * what it has to do. There one more runs beside the streams.
 *
 * Not served: operations with host memory at one end, which a kernel may not reach; and all of them under sm_policy NONE.
 */
#include "engine/proto/bounce.h"
#include "engine/stream/serve.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/dtype.h"
#include "util/log.h"

static bool is_wanted(const struct pki_engine *e)
{
    if (e->gpu == NULL || e->config.sm_policy == PK_SM_NONE)
        return false;
    for (int i = 0; i < e->config.size; i++)
        if (!e->peers[i].gone && pki_bounce_receives(e, &e->peers[i]))
            return true;
    return false;
}

void pki_serve_open(struct pki_engine *e)
{
    pk_result_t result;

    if (!is_wanted(e))
        return;
    result = e->gpu->ops->queue_open(e->gpu, &e->proto.beside);
    if (result == PK_OK)
        result = pki_orders_open(e->gpu, e->proto.lanes);
    if (result != PK_OK)
        pki_log(PKI_LOG_WARN, NULL,
                "no memory for orders to kernels: operations through the host in CUDA streams call the driver later");
}

void pki_serve_close(struct pki_engine *e)
{
    if (e->proto.beside.device != NULL)
        e->gpu->ops->queue_close(&e->proto.beside);
    pki_orders_close(e->proto.lanes); /* which waits for kernels that have yet to leave */
}

static bool suits(const struct pki_task *task)
{
    if (task->engine->proto.lanes[0].device == NULL || task->mode != PKI_TASK_SIGNALLED || task->cuda.how != PKI_WAIT_KERNEL)
        return false;
    if (task->kind != PKI_MEM_DEVICE || pki_task_is_mixed(task))
        return false;
    return task->plan != NULL || (task->xfer != NULL && task->xfer->bytes > 0);
}

/* What else the engine would ask the driver for when the stream has come to this point. */
static bool prepare(struct pki_task *task)
{
    struct pki_engine *e = task->engine;
    const pk_error_info_t kept = *pki_error_get();

    if (pki_bounce_queue(e, true) == NULL || pki_bounce_queue(e, false) == NULL)
        return false;
    for (int i = 0; i < e->config.size; i++)
        if (task->plan != NULL || i == task->xfer->peer->rank)
            (void)pki_bounce_fills_slots_of(e, &e->peers[i]);
    if (task->plan == NULL || pki_scratch_take(task) == PK_OK)
        return true;
    pki_error_set(&kept); /* it is tried again when the stream has come */
    return false;
}

static size_t bytes_of(const struct pki_task *task)
{
    const struct pki_request *r = &task->request;

    if (task->plan == NULL)
        return task->xfer->bytes;
    return (r->in_count > r->out_count ? r->in_count : r->out_count) * pki_dtype_bytes(r->dtype);
}

/* 0: the GPU has no place. */
static int ctas_of(const struct pki_task *task)
{
    const struct pki_engine *e = task->engine;
    const size_t bytes = bytes_of(task);
    int most = pki_tuning.gpu.serve_ctas, ctas;

    if (e->gpu->max_ctas > 0 && e->gpu->max_ctas < most)
        most = e->gpu->max_ctas;
    if (bytes / pki_tuning.gpu.serve_least_bytes < (size_t)most)
        most = (int)(bytes / pki_tuning.gpu.serve_least_bytes) + 1;
    for (ctas = most; ctas > 0 && !pki_claims_kernel(task, ctas); ctas /= 2)
        ;
    return ctas;
}

void pki_serve_choose(struct pki_task *task)
{
    if (!suits(task) || !prepare(task))
        return;
    task->cuda.ctas = ctas_of(task);
    if (task->cuda.ctas > 0)
        task->cuda.how = PKI_WAIT_SERVE;
}

static void launch_beside(struct pki_engine *e, const struct pki_signal_op *ops, int n)
{
    const int most = pki_tuning.gpu.serve_beside_ctas, limit = e->gpu->max_ctas;
    const struct pki_serving serving = { e->proto.lanes, limit > 0 && limit < most ? limit : most, e->signals.abort_word };
    const uint64_t until = pki_now_ns() + PKI_ROOM_NS;
    pk_result_t result;

    while (!e->gpu->ops->clear(&e->proto.beside, true) && pki_now_ns() < until)
        pki_cpu_pause();
    e->proto.beside.serving = &serving;
    result = e->gpu->ops->signals(&e->proto.beside, ops, n, PKI_WAIT_SERVE);
    e->proto.beside.serving = NULL;
    if (result != PK_OK)
        pki_engine_poison(e, result, true);
    e->stats.kernels++;
}

/* Other operations of the call in CUDA streams, which may wait in front of those that are served. */
static bool has_others(const struct pki_list *made)
{
    bool others = false, served = false;

    for (const struct pki_list *n = made->next; n != made; n = n->next) {
        const struct pki_task *task = pki_container_of(n, struct pki_task, waiting);

        others = others || (pki_task_in_cuda_stream(task) && task->cuda.how != PKI_WAIT_SERVE);
        served = served || task->cuda.how == PKI_WAIT_SERVE;
    }
    return others && served;
}

void pki_serve_beside(struct pki_engine *e, struct pki_list *made)
{
    struct pki_signal_op ops[PKI_WAIT_WORDS_MAX];
    int n = 0;

    if (e->proto.lanes[0].device == NULL || !has_others(made))
        return;
    for (struct pki_list *node = made->next; node != made; node = node->next) {
        const struct pki_task *task = pki_container_of(node, struct pki_task, waiting);

        if (task->cuda.how != PKI_WAIT_SERVE || pki_signal_is_open(&task->cuda.release))
            continue;
        ops[n++] = (struct pki_signal_op){ PKI_SIGNAL_WAIT, task->cuda.release };
        if (n == PKI_WAIT_WORDS_MAX) {
            launch_beside(e, ops, n);
            n = 0;
        }
    }
    if (n > 0)
        launch_beside(e, ops, n);
}
