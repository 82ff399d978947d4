/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As many graphs as an inference server has: each with four collectives, some with an exchange too, all alive at the same time,
 * captured and replayed in two streams that wait for nothing but what the library makes them wait for; then destroyed; all of
 * that several times. The data of every replay is right, and memory, mappings, descriptors and the driver's objects are as many
 * after the last round as after the first.
 *
 * graphs_many [GRAPHS [ROUNDS]]: 2500 3 is 30,000 captured collectives.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_rank.h"
#include "measure.h"

#define USUAL_GRAPHS 60
#define USUAL_ROUNDS 3
#define MOST ((size_t)1000) /* elements of a block */
#define BLOCKS 7     /* of results: allreduce, reduce_scatter, allgather of two, broadcast, exchange; one that nobody writes */
#define EXCHANGES 10 /* every so many graphs one has an exchange */
#define REPLAYS 2
#define LOOKS 2000 /* of 10 ms: that all is given back */
#define UNTOUCHED (-1.0f)

struct many {
    struct gpu_rank self;
    gpu_stream_t streams[2];
    int graphs;
    gpu_graph_t *all;
    float *in, *out, *host; /* of the GPU, a graph's behind the one before: 2 blocks and BLOCKS; of the host as long as `out` */
    unsigned long (*software)(const char *name); /* NULL: a real driver */
    int (*free_memory)(size_t *bytes, size_t *total);
};

static size_t elements(int graph)
{
    return 200 + (size_t)graph * 37 % (MOST - 200);
}

static float given(int rank, int graph, int key, size_t i)
{
    return (float)((i * 7 + (size_t)(rank * 13 + graph * 5 + key * 3)) % 64);
}

/* What element i of a block of the graph's results is. */
static float wanted(int rank, int graph, int key, int block, size_t i)
{
    const size_t n = elements(graph);

    if (i >= n || block >= 6 || (block == 5 && graph % EXCHANGES != 0))
        return UNTOUCHED;
    switch (block) {
    case 0:
        return given(0, graph, key, i) + given(1, graph, key, i);
    case 1:
        return given(0, graph, key, (size_t)rank * n + i) + given(1, graph, key, (size_t)rank * n + i);
    case 2:
    case 3:
        return given(block - 2, graph, key, i);
    case 4:
        return given(graph % 2, graph, key, i);
    default:
        return given(1 - rank, graph, key, i);
    }
}

static void operations(struct many *m, int graph)
{
    struct gpu_rank *self = &m->self;
    const float *in = m->in + (size_t)graph * 2 * MOST;
    float *out = m->out + (size_t)graph * BLOCKS * MOST;
    pk_stream_t stream = PK_CUDA_STREAM(m->streams[graph % 2]);
    size_t n = elements(graph);

    must_be_ok(pk_allreduce(in, out, n, PK_F32, PK_SUM, self->comm, stream), "pk_allreduce");
    must_be_ok(pk_reduce_scatter(in, out + MOST, n, PK_F32, PK_SUM, self->comm, stream), "pk_reduce_scatter");
    must_be_ok(pk_allgather(in, out + 2 * MOST, n, PK_F32, self->comm, stream), "pk_allgather");
    must_be_ok(pk_broadcast(in, out + 4 * MOST, n, PK_F32, graph % 2, self->comm, stream), "pk_broadcast");
    if (graph % EXCHANGES != 0)
        return;
    must_be_ok(pk_group_start(), "pk_group_start");
    must_be_ok(pk_send(in, n, PK_F32, 1 - self->rank, self->comm, stream), "pk_send");
    must_be_ok(pk_recv(out + 5 * MOST, n, PK_F32, 1 - self->rank, self->comm, stream), "pk_recv");
    must_be_ok(pk_group_end(), "pk_group_end");
}

static void capture_all(struct many *m)
{
    for (int g = 0; g < m->graphs; g++) {
        int code;

        gpu_capture_begin(m->streams[g % 2]);
        operations(m, g);
        code = gpu_capture_end(m->streams[g % 2], &m->all[g]);
        if (code == 0)
            continue;
        report(false, "rank %d: capture %d ended: %s", m->self.rank, g, gpu_error(code));
        exit(1);
    }
}

static void prepare(struct many *m, int key)
{
    size_t in = (size_t)m->graphs * 2 * MOST, out = (size_t)m->graphs * BLOCKS * MOST;

    for (size_t i = 0; i < in; i++)
        m->host[i] = given(m->self.rank, (int)(i / (2 * MOST)), key, i % (2 * MOST));
    gpu_copy(m->in, m->host, in * sizeof(float));
    for (size_t i = 0; i < out; i++)
        m->host[i] = UNTOUCHED;
    gpu_copy(m->out, m->host, out * sizeof(float));
}

/* allgather's two blocks lie one behind the other in what is read. */
static size_t place(int graph, int block, size_t i)
{
    size_t at = (size_t)graph * BLOCKS * MOST;

    return block == 2 || block == 3 ? at + 2 * MOST + (size_t)(block - 2) * elements(graph) + i : at + (size_t)block * MOST + i;
}

static unsigned count_wrong(struct many *m, int key)
{
    unsigned wrong = 0;

    gpu_copy(m->host, m->out, (size_t)m->graphs * BLOCKS * MOST * sizeof(float));
    for (int g = 0; g < m->graphs; g++)
        for (int block = 0; block < BLOCKS; block++)
            for (size_t i = 0; i < elements(g); i++) {
                if (m->host[place(g, block, i)] == wanted(m->self.rank, g, key, block, i))
                    continue;
                if (wrong++ < 3)
                    report(false, "rank %d: key %d, graph %d, block %d, element %zu of %zu is %g, not %g", m->self.rank, key, g,
                           block, i, elements(g), (double)m->host[place(g, block, i)],
                           (double)wanted(m->self.rank, g, key, block, i));
                break;
            }
    return wrong;
}

static unsigned replay_all(struct many *m, int key)
{
    prepare(m, key);
    ranks_meet(); /* a peer may write as soon as this rank replays */
    for (int g = 0; g < m->graphs; g++)
        gpu_graph_launch(m->all[g], m->streams[g % 2]);
    for (int s = 0; s < 2; s++) {
        if (stream_idle_within(m->streams[s], 120000, NULL))
            continue;
        report(false, "rank %d: key %d: the replays in stream %d do not end", m->self.rank, key, s);
        gpu_show_pending(m->self.comm);
        exit(1);
    }
    return count_wrong(m, key);
}

struct counts {
    unsigned long device_bytes, descriptors, mappings, ranges, events, streams;
    long free_mib;
};

static unsigned long count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned long n = 0;

    while (folder != NULL && readdir(folder) != NULL)
        n++;
    if (folder != NULL)
        closedir(folder);
    return n;
}

static uint64_t device_bytes(const struct many *m)
{
    pk_stats_t stats = { .struct_size = sizeof stats };

    must_be_ok(pk_comm_stats(m->self.comm, &stats), "pk_comm_stats");
    return stats.device_bytes;
}

static struct counts count(const struct many *m)
{
    struct counts now = { .device_bytes = device_bytes(m), .descriptors = count_descriptors(), .mappings = mappings_here() };
    size_t bytes = 0, total = 0;

    if (m->free_memory(&bytes, &total) == 0)
        now.free_mib = (long)(bytes >> 20);
    if (m->software == NULL)
        return now;
    now.ranges = m->software("ranges");
    now.events = m->software("events");
    now.streams = m->software("streams");
    return now;
}

/* The driver says in a thread of its own that a graph is gone, and the next call gives back what it had. */
static void destroy_all(struct many *m, uint64_t before)
{
    float *word = m->in, holds = 1;

    ranks_meet();
    for (int g = 0; g < m->graphs; g++)
        gpu_graph_free(m->all[g]);
    for (int looks = 0; holds > 0 && looks < LOOKS; looks++) { /* until no rank holds anything, so as often on both */
        usleep(10000);
        holds = device_bytes(m) > before ? 1 : 0;
        gpu_copy(word, &holds, sizeof holds);
        must_be_ok(pk_allreduce(word, word, 1, PK_F32, PK_MAX, m->self.comm, m->self.in_stream), "pk_allreduce");
        if (!stream_idle_within(m->self.stream, 20000, NULL))
            exit(1);
        gpu_copy(&holds, word, sizeof holds);
        ranks_meet();
    }
    report(device_bytes(m) <= before, "rank %d: %llu bytes of GPU memory held, %llu before the captures", m->self.rank,
           (unsigned long long)device_bytes(m), (unsigned long long)before);
}

static void show(const struct many *m, const char *when, const struct counts *c)
{
    printf("rank %d: %s: device_bytes %lu, descriptors %lu, mappings %lu, free %ld MiB; software: ranges %lu, events %lu, "
           "streams %lu\n",
           m->self.rank, when, c->device_bytes, c->descriptors, c->mappings, c->free_mib, c->ranges, c->events, c->streams);
}

static void compare(const struct many *m, const struct counts *first, const struct counts *last)
{
    show(m, "after the first round", first);
    show(m, "after the last round", last);
    report(last->device_bytes == first->device_bytes, "rank %d: device_bytes stay", m->self.rank);
    /* A rank may not have heard yet of the last memory that its peer has freed; the software driver has a descriptor for it. */
    report(last->descriptors <= first->descriptors + 1, "rank %d: descriptors stay", m->self.rank);
    report(last->mappings <= first->mappings + 40, "rank %d: mappings stay", m->self.rank);
    report(last->ranges <= first->ranges + 6 && last->events <= first->events && last->streams <= first->streams,
           "rank %d: the software driver's objects stay", m->self.rank);
    report(last->free_mib >= first->free_mib - 64, "rank %d: the GPU's free memory stays", m->self.rank);
}

static void open_all(struct many *m)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    m->graphs = atoi(getenv("GRAPHS"));
    gpu_rank_open(&m->self, PK_SM_DEFAULT, 60000);
    if (library == NULL)
        exit(2);
    *(void **)&m->software = dlsym(library, "fakecuda_stat");
    *(void **)&m->free_memory = dlsym(library, "cuMemGetInfo_v2");
    m->streams[0] = m->self.stream;
    m->streams[1] = gpu_stream_new();
    m->all = calloc((size_t)m->graphs, sizeof *m->all);
    m->in = gpu_alloc((size_t)m->graphs * 2 * MOST * sizeof(float));
    m->out = gpu_alloc((size_t)m->graphs * BLOCKS * MOST * sizeof(float));
    m->host = malloc((size_t)m->graphs * BLOCKS * MOST * sizeof(float));
    if (m->all == NULL || m->host == NULL || m->free_memory == NULL)
        exit(2);
}

/* What the first capture makes, once for the communicator. */
static void warm_up(struct many *m)
{
    int graphs = m->graphs;

    m->graphs = 1;
    capture_all(m);
    destroy_all(m, UINT64_MAX);
    m->graphs = graphs;
}

static int rank_main(void)
{
    int rounds = atoi(getenv("ROUNDS"));
    struct counts first = { 0 }, last = { 0 };
    struct many m;
    unsigned wrong = 0;

    open_all(&m);
    warm_up(&m);
    for (int round = 0; round < rounds; round++) {
        uint64_t before = device_bytes(&m);
        double begun = monotonic_ms(), captured;

        capture_all(&m);
        captured = monotonic_ms();
        printf("rank %d: round %d: %d graphs captured in %.0f ms, %llu bytes of GPU memory held\n", m.self.rank, round, m.graphs,
               captured - begun, (unsigned long long)device_bytes(&m));
        report(device_bytes(&m) < before + ((uint64_t)8 << 20), "rank %d: the graphs share their scratch memory", m.self.rank);
        for (int turn = 0; turn < REPLAYS; turn++)
            wrong += replay_all(&m, round * REPLAYS + turn);
        printf("rank %d: round %d: %d replays of all in %.0f ms\n", m.self.rank, round, REPLAYS, monotonic_ms() - captured);
        destroy_all(&m, before);
        last = count(&m);
        if (round == 0)
            first = last;
    }
    report(wrong == 0, "rank %d: %d rounds of %d graphs with 4 collectives: %u blocks wrong", m.self.rank, rounds, m.graphs,
           wrong);
    compare(&m, &first, &last);
    free(m.host);
    free(m.all);
    ranks_meet();
    gpu_free(m.in);
    gpu_free(m.out);
    gpu_rank_close(&m.self);
    return report_end();
}

static void tell(const char *name, int argc, char **argv, int at, int usual)
{
    char text[16];

    snprintf(text, sizeof text, "%d", argc > at ? atoi(argv[at]) : usual);
    setenv(name, text, 1);
}

int main(int argc, char **argv)
{
    if (ranks_role() != NULL)
        return rank_main();
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    tell("GRAPHS", argc, argv, 1, USUAL_GRAPHS);
    tell("ROUNDS", argc, argv, 2, USUAL_ROUNDS);
    ranks_drive(&(struct ranks_turn){ .role = "many graphs", .size = 2, .timeout_ms = 280000 },
                "%s graphs, %s rounds, collectives of one kernel", getenv("GRAPHS"), getenv("ROUNDS"));
    setenv("PK_ALGORITHM", "direct", 1);
    ranks_drive(&(struct ranks_turn){ .role = "many graphs", .size = 2, .timeout_ms = 280000 },
                "%s graphs, %s rounds, collectives by plans", getenv("GRAPHS"), getenv("ROUNDS"));
    return report_end();
}
