/* SPDX-License-Identifier: Apache-2.0 */
/* What captures need beside the work itself: something of the library's that lives as long as a graph, and an order among
 * replays. */
#include "device/cuda_device.h"

static CUstream stream_of(const struct pki_queue *queue)
{
    return (CUstream)queue->handle;
}

pk_result_t pki_cuda_graph_keep(const struct pki_queue *queue, void (*gone)(void *arg), void *arg)
{
    const struct pki_cuda *cuda = pki_cuda(queue->device);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUuserObject object;
    CUgraph graph = NULL;
    CUresult code;

    pki_cuda_enter(cuda->context);
    code = cuda->cu->stream_get_capture_info(stream_of(queue), &status, NULL, &graph, NULL, NULL);
    if (code == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        code = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (code == CUDA_SUCCESS)
        code = cuda->cu->user_object_create(&object, arg, gone, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (code != CUDA_SUCCESS) {
        gone(arg);
    } else {
        code = cuda->cu->graph_retain_user_object(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
        if (code != CUDA_SUCCESS)
            (void)cuda->cu->user_object_release(object, 1); /* which calls `gone` */
    }
    pki_cuda_leave(cuda->context);
    return code == CUDA_SUCCESS ? PK_OK : pki_cuda_fail(code, "an object of a graph that is being captured");
}

void pki_cuda_graphs_wait(struct pki_device *device)
{
    const struct pki_cuda *cuda = pki_cuda(device);

    pki_cuda_enter(cuda->context);
    (void)cuda->cu->ctx_synchronize();
    pki_cuda_leave(cuda->context);
}

pk_result_t pki_cuda_replay_lock_open(struct pki_device *device, void **turn)
{
    const struct pki_cuda *cuda = pki_cuda(device);
    CUevent event = NULL;
    CUresult code;

    pki_cuda_enter(cuda->context);
    code = cuda->cu->event_create(&event, CU_EVENT_DISABLE_TIMING);
    pki_cuda_leave(cuda->context);
    if (code != CUDA_SUCCESS)
        return pki_cuda_fail(code, "an event for the order of graphs");
    *turn = event;
    return PK_OK;
}

void pki_cuda_replay_lock_close(struct pki_device *device, void *turn)
{
    const struct pki_cuda *cuda = pki_cuda(device);

    pki_cuda_enter(cuda->context);
    (void)cuda->cu->event_destroy(turn);
    pki_cuda_leave(cuda->context);
}

/* A dependency that the stream has already must not be there twice. */
static bool depends_on(const struct pki_cuda *cuda, CUstream stream, CUgraphNode node)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode *nodes = NULL;
    size_t n = 0;

    if (cuda->cu->stream_get_capture_info(stream, &status, NULL, NULL, &nodes, &n) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return false;
    for (size_t i = 0; i < n; i++)
        if (nodes[i] == node)
            return true;
    return false;
}

pk_result_t pki_cuda_replay_lock(const struct pki_queue *queue, void *turn, void *last)
{
    const struct pki_cuda *cuda = pki_cuda(queue->device);
    CUgraphNode node = last;
    CUresult code = CUDA_SUCCESS;

    pki_cuda_enter(cuda->context);
    if (last == NULL)
        code = cuda->cu->stream_wait_event(stream_of(queue), turn, CU_EVENT_WAIT_EXTERNAL);
    else if (!depends_on(cuda, stream_of(queue), node))
        code = cuda->cu->stream_update_dependencies(stream_of(queue), &node, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
    pki_cuda_leave(cuda->context);
    return code == CUDA_SUCCESS ? PK_OK : pki_cuda_fail(code, "the order of graphs, at the start of an operation");
}

/* The event's node is all that the stream's next one depends on. */
pk_result_t pki_cuda_replay_unlock(const struct pki_queue *queue, void *turn, void **last)
{
    const struct pki_cuda *cuda = pki_cuda(queue->device);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode *nodes = NULL;
    size_t n = 0;
    CUresult code;

    pki_cuda_enter(cuda->context);
    code = cuda->cu->event_record_with_flags(turn, stream_of(queue), CU_EVENT_RECORD_EXTERNAL);
    if (code == CUDA_SUCCESS)
        code = cuda->cu->stream_get_capture_info(stream_of(queue), &status, NULL, NULL, &nodes, &n);
    if (code == CUDA_SUCCESS && (status != CU_STREAM_CAPTURE_STATUS_ACTIVE || n != 1))
        code = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (code == CUDA_SUCCESS)
        *last = nodes[0];
    pki_cuda_leave(cuda->context);
    return code == CUDA_SUCCESS ? PK_OK : pki_cuda_fail(code, "the order of graphs, at the end of an operation");
}
