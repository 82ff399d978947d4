/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the library's own.
 *
 * They are made when a communicator is, and kept for the next one: every 43rd cuStreamCreate of a process waits for all work of
 * the GPU, also for a stream that waits for the very thread that makes the call (H200, driver 580).
 *
 * All streams of a process on a GPU share its hardware queues. A kernel that waits leaves its queue to others, until something is
 * put behind it: then the queue stands still. The driver puts the work of an idle stream into a queue that goes on while few
 * stand still, and later into any. So where several streams wait a word goes ahead: once it is there the queue goes on, and what
 * follows the word is put into the same one. Where it does not come another stream takes the place of this one (measured:
 * docs/design/0024). One more at once, others by and by: where the GPU is another process's just now no word comes, and words in
 * many streams would take all queues that go on.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "device/cuda_device.h"
#include "tuning/tuning.h"
#include "util/clock.h"

#define WORD_STRIDE 16u
#define SAY_NS (100 * PKI_NS_PER_MS)

/* With the context current. */
static pk_result_t stream_new(struct pki_cuda_context *context, struct pki_cuda_stream **out)
{
    struct pki_cuda_stream *s = calloc(1, sizeof *s);
    unsigned place;
    CUresult code;

    if (s == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a stream");
    code = context->cu->stream_create(&s->handle, CU_STREAM_NON_BLOCKING);
    if (code != CUDA_SUCCESS) {
        free(s);
        return pki_cuda_fail(code, "cuStreamCreate on device %d", context->ordinal);
    }
    place = atomic_fetch_add(&context->words_used, 1);
    s->timeout_ns = pki_tuning.gpu.word_replace_ns;
    if (place < PKI_STREAM_WORDS_BYTES / WORD_STRIDE)
        s->word = (_Atomic uint32_t *)(void *)(context->words + place * WORD_STRIDE);
    *out = s;
    return PK_OK;
}

void pki_cuda_pool_close(struct pki_cuda_context *context)
{
    struct pki_list *node;

    while ((node = pki_list_pop(&context->spare)) != NULL) {
        struct pki_cuda_stream *s = pki_container_of(node, struct pki_cuda_stream, node);

        context->cu->stream_destroy(s->handle); /* work that is still in it runs to its end */
        free(s);
    }
    context->cu->host_unregister(context->words); /* and the word in front of it is written */
    munmap(context->words, PKI_STREAM_WORDS_BYTES);
    pthread_mutex_destroy(&context->spare_lock);
}

static void give_spare(struct pki_cuda_context *context, struct pki_cuda_stream *s)
{
    pthread_mutex_lock(&context->spare_lock);
    pki_list_push(&context->spare, &s->node);
    context->nspare++;
    pthread_mutex_unlock(&context->spare_lock);
}

/* A stream that is destroyed leaves its place. So the program makes its next ones without waiting for the GPU, though the
 * library has taken places. */
static void leave_places(const struct pki_cuda_driver *cu)
{
    CUstream made[PKI_STREAM_PLACES];
    int n = 0;

    while (n < PKI_STREAM_PLACES && cu->stream_create(&made[n], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS)
        n++;
    while (n > 0)
        cu->stream_destroy(made[--n]);
}

pk_result_t pki_cuda_pool_open(struct pki_cuda_context *context)
{
    void *words = mmap(NULL, PKI_STREAM_WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pk_result_t result = PK_OK;
    CUresult code;

    pki_list_init(&context->spare);
    if (words == MAP_FAILED)
        return pki_fail_errno(PK_ERR_MEMORY, NULL, "mmap of %zu bytes for words of streams", (size_t)PKI_STREAM_WORDS_BYTES);
    code = context->cu->host_register(words, PKI_STREAM_WORDS_BYTES, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (code != CUDA_SUCCESS) {
        munmap(words, PKI_STREAM_WORDS_BYTES);
        return pki_cuda_fail(code, "cuMemHostRegister of %zu bytes for words of streams", (size_t)PKI_STREAM_WORDS_BYTES);
    }
    context->words = words;
    pthread_mutex_init(&context->spare_lock, NULL);
    for (int i = 0; i < PKI_SPARE_STREAMS && result == PK_OK; i++) {
        struct pki_cuda_stream *s = NULL;

        result = stream_new(context, &s);
        if (result == PK_OK)
            give_spare(context, s);
    }
    if (result != PK_OK)
        pki_cuda_pool_close(context);
    else
        leave_places(context->cu);
    return result;
}

static bool has_come(const struct pki_cuda_stream *s)
{
    return atomic_load_explicit(s->word, memory_order_acquire) == s->asked;
}

static bool is_idle(const struct pki_cuda_context *context, const struct pki_cuda_stream *s)
{
    /* any other error is of a context that is broken or gone */
    return context->cu->stream_query(s->handle) != CUDA_ERROR_NOT_READY;
}

/* One with nothing in it, if more than `more_than` are there, or NULL. With the context current. */
static struct pki_cuda_stream *take_spare(struct pki_cuda_context *context, int more_than)
{
    struct pki_cuda_stream *found = NULL;

    pthread_mutex_lock(&context->spare_lock);
    for (struct pki_list *node = context->spare.next; node != &context->spare && found == NULL && context->nspare > more_than;
         node = node->next) {
        struct pki_cuda_stream *s = pki_container_of(node, struct pki_cuda_stream, node);

        if (is_idle(context, s))
            found = s;
    }
    if (found != NULL) {
        pki_list_remove(&found->node);
        context->nspare--;
        found->pending = false;
        found->cleared_ns = 0;
        found->timeout_ns = pki_tuning.gpu.word_replace_ns;
    }
    pthread_mutex_unlock(&context->spare_lock);
    return found;
}

static void put_behind(struct pki_queue *queue, struct pki_cuda_stream *s)
{
    queue->own = s;
    queue->handle = s->handle;
}

pk_result_t pki_cuda_queue_open(struct pki_device *device, struct pki_queue *queue)
{
    struct pki_cuda_context *context = pki_cuda(device)->context;
    struct pki_cuda_stream *s;
    pk_result_t result = PK_OK;

    pki_cuda_enter(context);
    s = take_spare(context, PKI_SPARE_STREAMS);
    if (s == NULL)
        result = stream_new(context, &s);
    pki_cuda_leave(context);
    if (result != PK_OK)
        return result;
    queue->device = device;
    put_behind(queue, s);
    return PK_OK;
}

void pki_cuda_queue_close(struct pki_queue *queue)
{
    if (queue->own == NULL)
        return;
    give_spare(pki_cuda(queue->device)->context, queue->own);
    *queue = (struct pki_queue){ .device = NULL };
}

/* ---- does its hardware queue go on? ---- */

static bool is_crowded(const struct pki_cuda *cuda)
{
    const atomic_int *waiting = cuda->base.waiting;

    return waiting != NULL && cuda->info.connections > PKI_FEW_QUEUES &&
           atomic_load_explicit(waiting, memory_order_relaxed) * pki_tuning.gpu.held_share >= cuda->info.connections;
}

static void ask(const struct pki_cuda_context *context, struct pki_cuda_stream *s)
{
    s->pending = true;
    if (context->cu->stream_write_value(s->handle, (CUdeviceptr)(uintptr_t)s->word, ++s->asked, CU_STREAM_WRITE_VALUE_DEFAULT) !=
        CUDA_SUCCESS)
        atomic_store(s->word, s->asked); /* what follows fails too, and says why */
    s->asked_ns = pki_now_ns();
}

/* True: the word has come. It is waited for only where it may be on the way. */
static bool look(struct pki_cuda_stream *s)
{
    uint64_t until = s->asked_ns + pki_tuning.gpu.word_ns;

    while (!has_come(s)) {
        if (pki_now_ns() > until)
            return false;
        pki_cpu_pause();
    }
    s->pending = false;
    s->cleared_ns = pki_now_ns();
    s->timeout_ns = pki_tuning.gpu.word_replace_ns;
    return true;
}

static void say_stuck(const struct pki_cuda *cuda, const struct pki_cuda_stream *s)
{
    static atomic_bool said;

    if (pki_now_ns() - s->asked_ns > SAY_NS && !atomic_exchange(&said, true))
        pki_log(PKI_LOG_WARN, NULL,
                "device %d: every stream of the library is behind a stream that waits: %d streams wait for operations, "
                "and the process has %d hardware queues; CUDA_DEVICE_MAX_CONNECTIONS=32 makes more",
                cuda->info.ordinal, atomic_load(cuda->base.waiting), cuda->info.connections);
}

static void replace(struct pki_cuda *cuda, struct pki_queue *queue)
{
    struct pki_cuda_stream *old = queue->own, *s = take_spare(cuda->context, 0);

    if (s == NULL) {
        say_stuck(cuda, old);
        return;
    }
    s->timeout_ns = pki_tuning.gpu.word_later_ns;
    put_behind(queue, s);
    give_spare(cuda->context, old);
}

bool pki_cuda_clear(struct pki_queue *queue, bool work)
{
    struct pki_cuda *cuda = pki_cuda(queue->device);
    struct pki_cuda_stream *s = queue->own;
    bool clear;

    if (s == NULL || s->word == NULL)
        return true;
    if (!s->pending && (!work || !is_crowded(cuda) || pki_now_ns() - s->cleared_ns < pki_tuning.gpu.word_fresh_ns))
        return true;
    pki_cuda_enter(cuda->context);
    if (!s->pending && is_idle(cuda->context, s)) /* what is in it goes on: it was asked about too */
        ask(cuda->context, s);
    clear = s->pending && look(s);
    if (!clear && s->pending && pki_now_ns() - s->asked_ns > s->timeout_ns)
        replace(cuda, queue);
    pki_cuda_leave(cuda->context);
    return clear;
}
