/* SPDX-License-Identifier: Apache-2.0 */
/* Capture, graphs, and the rules that captures impose on everybody else. */
#include "selftest.h"

#include <pthread.h>

#define REPLAYS 100

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec;

    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

static CUevent event_new(void)
{
    CUevent event;

    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

/* Stream `to` goes on behind what `from` has now. */
static void link_streams(CUstream from, CUstream to)
{
    CUevent event = event_new();

    OK(cuEventRecord(event, from));
    OK(cuStreamWaitEvent(to, event, 0));
    OK(cuEventDestroy(event));
}

/* a: += 1, fork; b: waits for a word, resets it, += 10; a meanwhile writes the word that b waits for; join; += 100 each. */
static void test_fork_join(void)
{
    struct st_words words = st_words_new();
    CUstream a = st_stream(), b = st_stream();
    CUdeviceptr memory = st_alloc(4096);
    CUstreamCaptureStatus status;
    CUgraphExec exec;
    CUgraph graph;
    cuuint64_t id = 0;
    size_t n = 0;

    OK(cuMemsetD32Async(memory, 0, 1024, a));
    OK(cuStreamSynchronize(a));
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
    st_add(a, memory, 1024, 1);
    link_streams(a, b);
    OK(cuStreamGetCaptureInfo(b, &status, &id, NULL, NULL, NULL, &n));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0 && n == 1);
    OK(cuStreamWaitValue32(b, st_word(&words, 0), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamWriteValue32(b, st_word(&words, 0), 0, 0));
    st_add(b, memory, 512, 10);
    OK(cuStreamWriteValue32(a, st_word(&words, 0), 1, 0));
    st_add(a, memory + 2048, 512, 10);
    link_streams(b, a);
    st_add(a, memory, 1024, 100);
    OK(cuStreamEndCapture(a, &graph));
    OK(cuStreamIsCapturing(b, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuGraphGetNodes(graph, NULL, &n));
    CHECK(n == 7);
    CHECK(st_read(memory) == 0); /* nothing has run */
    exec = instantiate(graph);
    for (int i = 0; i < REPLAYS; i++)
        OK(cuGraphLaunch(exec, i % 2 ? a : b)); /* launches of one graph follow one another in any streams */
    OK(cuGraphExecDestroy(exec));               /* they run to their end */
    OK(cuStreamSynchronize(a));
    OK(cuStreamSynchronize(b));
    for (int i = 0; i < 1024; i += 511)
        CHECK(st_read(memory + (CUdeviceptr)i * 4) == 111 * REPLAYS);
    OK(cuMemFree(memory));
    OK(cuStreamDestroy(a));
    OK(cuStreamDestroy(b));
    st_words_free(&words);
}

/* A branch that waits holds up neither its sibling nor other streams; the launch ends when the branch does. */
static void test_parallel_branches(void)
{
    struct st_words words = st_words_new();
    CUstream a = st_stream(), b = st_stream();
    CUgraphExec exec;
    CUgraph graph;

    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    link_streams(a, b);
    OK(cuStreamWaitValue32(a, st_word(&words, 0), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue32(b, st_word(&words, 1), 1, 0));
    link_streams(b, a);
    OK(cuStreamWriteValue32(a, st_word(&words, 2), 1, 0));
    OK(cuStreamEndCapture(a, &graph));
    exec = instantiate(graph);
    OK(cuGraphLaunch(exec, a));
    for (int i = 0; i < 1000 && atomic_load(&words.at[1]) == 0; i++)
        st_sleep_ms(2);
    CHECK(atomic_load(&words.at[1]) == 1 && atomic_load(&words.at[2]) == 0);
    CHECK(!st_done(a, 10));
    atomic_store(&words.at[0], 1);
    CHECK(st_done(a, 5000) && atomic_load(&words.at[2]) == 1);
    OK(cuGraphExecDestroy(exec));
    OK(cuStreamDestroy(a));
    OK(cuStreamDestroy(b));
    st_words_free(&words);
}

/* Adds 1 to the words behind what any graph captured so has begun before, and a word that the launch waits for. */
static CUgraphExec in_turn(CUstream stream, CUevent turn, CUdeviceptr word, CUdeviceptr memory, unsigned by)
{
    CUgraph graph;

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamWaitEvent(stream, turn, CU_EVENT_WAIT_EXTERNAL));
    if (word != 0)
        OK(cuStreamWaitValue32(stream, word, 1, CU_STREAM_WAIT_VALUE_EQ));
    st_add(stream, memory, 1024, by);
    OK(cuEventRecordWithFlags(turn, stream, CU_EVENT_RECORD_EXTERNAL));
    st_add(stream, memory + 4096, 1024, by);
    OK(cuEventRecordWithFlags(turn, stream, CU_EVENT_RECORD_EXTERNAL));
    OK(cuStreamEndCapture(stream, &graph));
    return instantiate(graph);
}

/* Graphs in different streams, with event nodes: each launch follows the one before, whichever graph that was of. */
static void test_event_nodes(void)
{
    struct st_words words = st_words_new();
    CUstream a = st_stream(), b = st_stream();
    CUdeviceptr memory = st_alloc(8192);
    CUevent turn = event_new();
    CUgraphExec first, second;

    OK(cuMemsetD32Async(memory, 0, 2048, a));
    OK(cuStreamSynchronize(a));
    EXPECT(cuEventRecordWithFlags(turn, a, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuStreamWaitEvent(a, turn, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
    first = in_turn(a, turn, st_word(&words, 0), memory, 1);
    second = in_turn(b, turn, 0, memory, 10);
    OK(cuGraphLaunch(second, b)); /* nothing has recorded the event */
    CHECK(st_done(b, 5000) && st_read(memory + 4096) == 10);
    OK(cuGraphLaunch(first, a));
    OK(cuGraphLaunch(second, b));
    CHECK(!st_done(b, 50));
    atomic_store(&words.at[0], 1);
    CHECK(st_done(b, 5000) && st_read(memory) == 21 && st_read(memory + 4096) == 21);
    OK(cuStreamSynchronize(a));
    OK(cuEventDestroy(turn)); /* the nodes hold it */
    OK(cuGraphLaunch(second, a));
    CHECK(st_done(a, 5000) && st_read(memory) == 31);
    OK(cuGraphExecDestroy(first));
    OK(cuGraphExecDestroy(second));
    OK(cuMemFree(memory));
    OK(cuStreamDestroy(a));
    OK(cuStreamDestroy(b));
    st_words_free(&words);
}

static void count_down(void *data)
{
    atomic_fetch_sub((_Atomic int *)data, 1);
}

static void expect_invalid(CUstream stream)
{
    CUstreamCaptureStatus status;
    CUgraph graph = (CUgraph)(void *)&status;

    OK(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT(cuLaunchHostFunc(stream, count_down, NULL), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == NULL);
    OK(cuStreamQuery(stream));
}

/* A graph may be made executable, and such a one freed, only when no capture of the thread goes on, whichever stream that is in. */
static void test_unsafe_graphs(void)
{
    const CUresult no = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUstream first = st_stream(), second = st_stream();
    CUgraphExec exec, other;
    CUgraph graph;

    for (int i = 0; i < 2; i++) {
        OK(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        OK(cuStreamEndCapture(first, &graph));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        OK(cuStreamBeginCapture(second, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        if (i == 0)
            EXPECT(cuGraphInstantiateWithFlags(&other, graph, 0), no);
        else
            EXPECT(cuGraphExecDestroy(exec), no);
        expect_invalid(second);
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
    }
}

/* What each mode forbids the thread that captures. */
static void test_unsafe_here(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstream s = st_stream(), other = st_stream();
    CUevent outside = event_new(), inside = event_new();
    CUdeviceptr memory = 0;
    CUgraph graph;

    OK(cuEventRecord(outside, other));
    for (int i = 0; i < 4; i++) {
        OK(cuStreamBeginCapture(s, i % 2 ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        if (i < 2)
            EXPECT(cuMemAlloc(&memory, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        else
            EXPECT(cuEventQuery(outside), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        expect_invalid(s);
    }
    /* Relaxed, by the capture or by the thread: all but what conflicts with the capture itself. */
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAlloc(&memory, 4));
    OK(cuStreamSynchronize(other));
    OK(cuEventQuery(outside));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemFree(memory));
    OK(cuEventRecord(inside, s));
    EXPECT(cuEventQuery(inside), CUDA_ERROR_CAPTURED_EVENT);
    expect_invalid(s);
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(cuStreamQuery(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalid(s);
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalid(s);
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cuEventDestroy(inside));
    OK(cuEventDestroy(outside));
    OK(cuStreamDestroy(s));
    OK(cuStreamDestroy(other));
}

struct elsewhere {
    CUcontext context;
    CUstream stream;
    CUstreamCaptureMode mode;
    CUresult alloc, end;
};

static void *use_elsewhere(void *argument)
{
    struct elsewhere *e = argument;
    CUdeviceptr memory;
    CUgraph graph;

    OK(cuCtxSetCurrent(e->context));
    OK(cuThreadExchangeStreamCaptureMode(&e->mode));
    e->end = cuStreamEndCapture(e->stream, &graph);
    e->alloc = cuMemAlloc(&memory, 4);
    if (e->alloc == CUDA_SUCCESS)
        OK(cuMemFree(memory));
    return NULL;
}

static CUresult alloc_elsewhere(CUstreamCaptureMode capture, CUstreamCaptureMode thread_mode)
{
    struct elsewhere e = { .stream = st_stream(), .mode = thread_mode };
    pthread_t thread;
    CUgraph graph;

    OK(cuCtxGetCurrent(&e.context));
    OK(cuStreamBeginCapture(e.stream, capture));
    CHECK(pthread_create(&thread, NULL, use_elsewhere, &e) == 0);
    pthread_join(thread, NULL);
    CHECK(e.end == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    if (e.alloc == CUDA_SUCCESS) {
        OK(cuStreamEndCapture(e.stream, &graph));
        OK(cuGraphDestroy(graph));
    } else {
        expect_invalid(e.stream);
    }
    OK(cuStreamDestroy(e.stream));
    return e.alloc;
}

static void test_unsafe_elsewhere(void)
{
    const CUresult no = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

    EXPECT(alloc_elsewhere(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL), no);
    OK(alloc_elsewhere(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(alloc_elsewhere(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(alloc_elsewhere(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static void test_structure(void)
{
    CUstream a = st_stream(), b = st_stream();
    CUevent event = event_new();
    CUdeviceptr memory = st_alloc(64);
    CUgraph graph;

    /* A fork that does not come back. */
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    link_streams(a, b);
    st_add(b, memory, 1, 1);
    EXPECT(cuStreamEndCapture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    expect_invalid(a);
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    link_streams(a, b);
    st_add(b, memory, 1, 1);
    EXPECT(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    OK(cuStreamQuery(b));
    /* Waiting for work outside. */
    OK(cuEventRecord(event, b));
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(cuStreamWaitEvent(a, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    expect_invalid(a);
    /* Two captures cannot meet. */
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuEventRecord(event, a));
    EXPECT(cuStreamWaitEvent(b, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    EXPECT(cuStreamEndCapture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    expect_invalid(a);
    EXPECT(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT(cuStreamEndCapture(a, &graph), CUDA_ERROR_ILLEGAL_STATE);
    OK(cuEventDestroy(event));
    OK(cuMemFree(memory));
    OK(cuStreamDestroy(a));
    OK(cuStreamDestroy(b));
}

static void test_legacy_implicit(void)
{
    CUdeviceptr memory = st_alloc(64);
    CUstreamCaptureStatus status;
    CUstream blocking;
    CUgraph graph;

    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    OK(cuStreamEndCapture(blocking, &graph)); /* asking did no harm */
    OK(cuGraphDestroy(graph));
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(cuMemsetD8Async(memory, 0, 64, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamDestroy(blocking));
    OK(cuMemFree(memory));
}

/* A user object lives as long as the last of graph and executable graph, launches that run included. */
static void test_user_object(void)
{
    struct st_words words = st_words_new();
    _Atomic int alive = 1;
    CUuserObject object;
    CUstreamCaptureStatus status;
    CUstream s = st_stream();
    CUgraph building, graph;
    CUgraphExec exec;

    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamWaitValue32(s, st_word(&words, 0), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuUserObjectCreate(&object, &alive, count_down, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuStreamGetCaptureInfo(s, &status, NULL, &building, NULL, NULL, NULL));
    OK(cuGraphRetainUserObject(building, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuStreamEndCapture(s, &graph));
    CHECK(graph == building);
    exec = instantiate(graph);
    OK(cuGraphLaunch(exec, s));
    OK(cuGraphExecDestroy(exec));
    st_sleep_ms(20);
    CHECK(atomic_load(&alive) == 1);
    atomic_store(&words.at[0], 1);
    OK(cuStreamSynchronize(s));
    for (int i = 0; i < 1000 && atomic_load(&alive) == 1; i++)
        st_sleep_ms(2);
    CHECK(atomic_load(&alive) == 0);
    OK(cuStreamDestroy(s));
    st_words_free(&words);
}

void st_capture_tests(void)
{
    test_fork_join();
    test_parallel_branches();
    test_unsafe_graphs();
    test_unsafe_here();
    test_unsafe_elsewhere();
    test_structure();
    test_legacy_implicit();
    test_user_object();
    test_event_nodes();
}
