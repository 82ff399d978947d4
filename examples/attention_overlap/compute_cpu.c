/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on CPU threads, a tile of queries and keys at a time with a running maximum and sum, so that scores never leave the cache. A
 * task is one tile of queries of one head; threads take tasks from a counter, and the caller of `end` is one of them.
 */
#include "attention.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define QUERY_TILE 8
#define KEY_TILE 64
#define WIDTH_MAX 256

struct cpu {
    struct shape shape;
    pk_stream_t stream;
    pthread_t *threads;
    int started; /* besides the caller's */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned generation; /* of the attention that is wanted; guarded by lock */
    int busy;            /* threads that have yet to come back from it; guarded by lock */
    bool leaving;
    atomic_int next;
    const float *queries, *parts;
    float *output;
};

struct tile {
    float scores[KEY_TILE];
    float keys[WIDTH_MAX][KEY_TILE]; /* transposed: then scores of all keys grow side by side */
    float out[QUERY_TILE][WIDTH_MAX], highest[QUERY_TILE], total[QUERY_TILE];
};

/* One query against the keys of a tile; values lie `stride` apart. */
static void attend_query(struct tile *t, int q, const float *query, const float *values, size_t stride, int keys, int width)
{
    float highest = t->highest[q], scale;

    memset(t->scores, 0, sizeof t->scores);
    for (int c = 0; c < width; c++)
        for (int k = 0; k < KEY_TILE; k++)
            t->scores[k] += query[c] * t->keys[c][k];
    for (int k = 0; k < keys; k++)
        highest = fmaxf(highest, t->scores[k]);
    scale = expf(t->highest[q] - highest);
    t->highest[q] = highest;
    t->total[q] *= scale;
    for (int c = 0; c < width; c++)
        t->out[q][c] *= scale;
    for (int k = 0; k < keys; k++) {
        float weight = expf(t->scores[k] - highest);

        t->total[q] += weight;
        for (int c = 0; c < width; c++)
            t->out[q][c] += weight * values[(size_t)k * stride + (size_t)c];
    }
}

static void load_keys(struct tile *t, const float *keys, size_t stride, int count, int width)
{
    for (int k = 0; k < count; k++)
        for (int c = 0; c < width; c++)
            t->keys[c][k] = keys[(size_t)k * stride + (size_t)c];
}

static void attend_task(struct cpu *cpu, int task)
{
    const struct shape *s = &cpu->shape;
    int tiles = (s->queries + QUERY_TILE - 1) / QUERY_TILE, head = task / tiles, first = task % tiles * QUERY_TILE;
    int count = s->queries - first < QUERY_TILE ? s->queries - first : QUERY_TILE;
    size_t width = (size_t)s->width, offset = ((size_t)head * (size_t)s->queries + (size_t)first) * width;
    size_t stride = 2 * (size_t)s->heads * width; /* from a key to the next */
    int all = s->ranks * s->keys;
    struct tile t;

    memset(&t, 0, sizeof t);
    for (int q = 0; q < count; q++)
        t.highest[q] = -INFINITY;
    for (int k = 0; k < all; k += KEY_TILE) {
        int here = all - k < KEY_TILE ? all - k : KEY_TILE;
        const float *keys = cpu->parts + (size_t)k * stride + (size_t)head * width;

        load_keys(&t, keys, stride, here, s->width);
        for (int q = 0; q < count; q++)
            attend_query(&t, q, cpu->queries + offset + (size_t)q * width, keys + stride / 2, stride, here, s->width);
    }
    for (int q = 0; q < count; q++)
        for (size_t c = 0; c < width; c++)
            cpu->output[offset + (size_t)q * width + c] = t.out[q][c] / t.total[q];
}

static void attend_tasks(struct cpu *cpu, void (*poke)(void *), void *arg)
{
    int tasks = cpu->shape.heads * ((cpu->shape.queries + QUERY_TILE - 1) / QUERY_TILE);

    for (int task = atomic_fetch_add(&cpu->next, 1); task < tasks; task = atomic_fetch_add(&cpu->next, 1)) {
        attend_task(cpu, task);
        if (poke != NULL)
            poke(arg);
    }
}

static void *worker(void *arg)
{
    struct cpu *cpu = arg;
    unsigned seen = 0;

    pthread_mutex_lock(&cpu->lock);
    for (;;) {
        while (cpu->generation == seen && !cpu->leaving)
            pthread_cond_wait(&cpu->changed, &cpu->lock);
        if (cpu->leaving)
            break;
        seen = cpu->generation;
        pthread_mutex_unlock(&cpu->lock);
        attend_tasks(cpu, NULL, NULL);
        pthread_mutex_lock(&cpu->lock);
        if (--cpu->busy == 0)
            pthread_cond_broadcast(&cpu->changed);
    }
    pthread_mutex_unlock(&cpu->lock);
    return NULL;
}

static bool cpu_usable(const char **why)
{
    (void)why;
    return true;
}

static pk_stream_t cpu_stream(void *state)
{
    return ((struct cpu *)state)->stream;
}

static pk_result_t cpu_stream_wait(void *state)
{
    return pk_stream_synchronize(((struct cpu *)state)->stream);
}

static void cpu_close(void *state)
{
    struct cpu *cpu = state;

    if (cpu->stream.kind == PK_STREAM_KIND_HOST)
        must(pk_stream_destroy(cpu->stream), "pk_stream_destroy");
    pthread_mutex_lock(&cpu->lock);
    cpu->leaving = true;
    pthread_cond_broadcast(&cpu->changed);
    pthread_mutex_unlock(&cpu->lock);
    for (int i = 0; i < cpu->started; i++)
        pthread_join(cpu->threads[i], NULL);
    pthread_cond_destroy(&cpu->changed);
    pthread_mutex_destroy(&cpu->lock);
    free(cpu->threads);
    free(cpu);
}

static void *cpu_open(const struct shape *shape, const char **why)
{
    struct cpu *cpu = shape->width <= WIDTH_MAX ? calloc(1, sizeof *cpu) : NULL;

    *why = "a head may be 256 wide at most";
    if (cpu == NULL)
        return NULL;
    must(pk_stream_create(&cpu->stream), "pk_stream_create");
    cpu->shape = *shape;
    cpu->threads = calloc((size_t)shape->threads, sizeof *cpu->threads);
    pthread_mutex_init(&cpu->lock, NULL);
    pthread_cond_init(&cpu->changed, NULL);
    while (cpu->threads != NULL && cpu->started < shape->threads - 1) {
        if (pthread_create(&cpu->threads[cpu->started], NULL, worker, cpu) != 0)
            break;
        cpu->started++;
    }
    if (cpu->threads == NULL || cpu->started < shape->threads - 1) {
        *why = "the threads could not be started";
        cpu_close(cpu);
        return NULL;
    }
    return cpu;
}

static void *cpu_alloc(void *state, size_t elements)
{
    void *memory;

    (void)state;
    if (posix_memalign(&memory, 4096, elements * sizeof(float)) != 0)
        return NULL;
    memset(memory, 0, elements * sizeof(float));
    return memory;
}

static void cpu_free(void *state, void *memory)
{
    (void)state;
    free(memory);
}

static void cpu_begin(void *state, const void *queries, const void *parts, void *output)
{
    struct cpu *cpu = state;

    pthread_mutex_lock(&cpu->lock);
    cpu->queries = queries;
    cpu->parts = parts;
    cpu->output = output;
    atomic_store(&cpu->next, 0);
    cpu->busy = cpu->started;
    cpu->generation++;
    pthread_cond_broadcast(&cpu->changed);
    pthread_mutex_unlock(&cpu->lock);
}

static void cpu_end(void *state, void (*poke)(void *), void *arg)
{
    struct cpu *cpu = state;

    attend_tasks(cpu, poke, arg);
    pthread_mutex_lock(&cpu->lock);
    while (cpu->busy > 0)
        pthread_cond_wait(&cpu->changed, &cpu->lock);
    pthread_mutex_unlock(&cpu->lock);
}

static void cpu_put(void *state, void *to, const float *from, size_t elements)
{
    (void)state;
    memcpy(to, from, elements * sizeof *from);
}

static void cpu_get(void *state, float *to, const void *from, size_t elements)
{
    (void)state;
    memcpy(to, from, elements * sizeof *to);
}

const struct compute compute_cpu = {
    .name = "cpu",
    .type = PK_F32,
    .element_bytes = sizeof(float),
    .tolerance = 1e-4,
    .defaults = { .layers = 12, .heads = 8, .width = 64, .queries = 16, .keys = 1024 },
    .memory = PK_MEM_HOST,
    .usable = cpu_usable,
    .open = cpu_open,
    .close = cpu_close,
    .stream = cpu_stream,
    .stream_wait = cpu_stream_wait,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .begin = cpu_begin,
    .end = cpu_end,
    .put = cpu_put,
    .get = cpu_get,
};
