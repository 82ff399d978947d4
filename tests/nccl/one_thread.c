/* SPDX-License-Identifier: Apache-2.0 */
/* One thread that drives several GPUs: communicators are made in groups, nested and mixed with others, split; operations over
 * all of them. Where there are fewer GPUs than ranks, some have two. */
#include "bed.h"

#define RANKS 4
#define LEAST 2 /* GPUs */
#define COUNT ((size_t)1000)
#define MANY 700 /* more collectives than a group of libpickle takes */

static gpu_stream_t streams[RANKS];
static float *in[RANKS], *out[RANKS], *from[RANKS];
static int devices[RANKS];

static float value(int rank, size_t i)
{
    return (float)(rank * 10 + (int)(i % 7));
}

static void use(int rank)
{
    gpu_use(devices[rank]);
}

static void open_gpus(int gpus)
{
    float host[COUNT];

    for (int g = 0; g < RANKS; g++) {
        devices[g] = g % gpus;
        use(g);
        streams[g] = gpu_stream_new();
        for (size_t i = 0; i < COUNT; i++)
            host[i] = value(g, i);
        in[g] = bed_upload(host, COUNT);
        out[g] = bed_upload(host, COUNT);
        from[g] = bed_upload(host, COUNT);
    }
}

/* `sum` of the ranks' first terms, over `n` of them. */
static bool is_sum(int gpu, int sum, int n)
{
    float host[COUNT];

    use(gpu);
    if (!bed_idle(streams[gpu]))
        return false;
    bed_download(host, out[gpu], COUNT);
    for (size_t i = 0; i < COUNT; i++)
        if (host[i] != (float)(sum * 10 + n * (int)(i % 7)))
            return false;
    return true;
}

static void clear(int gpu)
{
    use(gpu);
    gpu_fill(out[gpu], 0xee, COUNT * sizeof(float));
}

static void add(int gpu, pkn_comm_t comm)
{
    MUST(ncclAllReduce(in[gpu], out[gpu], COUNT, PKN_FLOAT32, PKN_SUM, comm, streams[gpu]));
}

/* ncclCommInitAll takes each GPU once. */
static void make_all(pkn_comm_t comms[RANKS])
{
    pkn_id_t id;

    if (devices[RANKS - 1] == RANKS - 1) {
        MUST(ncclCommInitAll(comms, RANKS, NULL));
        return;
    }
    MUST(ncclGetUniqueId(&id));
    MUST(ncclGroupStart());
    for (int g = 0; g < RANKS; g++) {
        use(g);
        MUST(ncclCommInitRank(&comms[g], RANKS, id, g));
    }
    MUST(ncclGroupEnd());
}

static void all_devices(pkn_comm_t comms[RANKS])
{
    int count, device, rank;
    bool right = true;

    make_all(comms);
    for (int g = 0; g < RANKS; g++) {
        MUST(ncclCommCount(comms[g], &count));
        MUST(ncclCommCuDevice(comms[g], &device));
        MUST(ncclCommUserRank(comms[g], &rank));
        right = right && count == RANKS && device == devices[g] && rank == g;
        clear(g);
    }
    check(right, "size, device and rank of all");
    MUST(ncclGroupStart());
    for (int g = 0; g < RANKS; g++)
        add(g, comms[g]);
    MUST(ncclGroupEnd());
    for (int g = 0; g < RANKS; g++)
        check(is_sum(g, 6, RANKS), "rank %d of %d in one thread: the sum", g, RANKS);
}

/* Two communicators of two GPUs each, begun in one group by ncclCommInitRank, one of them in an inner group. */
static void two_pairs(pkn_comm_t pairs[RANKS])
{
    pkn_id_t ids[2];

    for (int k = 0; k < 2; k++)
        MUST(ncclGetUniqueId(&ids[k]));
    MUST(ncclGroupStart());
    for (int g = 0; g < RANKS; g++) {
        use(g);
        MUST(ncclGroupStart());
        MUST(ncclCommInitRank(&pairs[g], 2, ids[g / 2], g % 2));
        MUST(ncclGroupEnd());
        check(pairs[g] != NULL, "the handle of %d is there before the group ends", g);
    }
    MUST(ncclGroupEnd());
}

static void nested_operations(pkn_comm_t all[RANKS], pkn_comm_t pairs[RANKS])
{
    for (int g = 0; g < RANKS; g++)
        clear(g);
    MUST(ncclGroupStart());
    for (int g = RANKS - 1; g >= 0; g--) {
        MUST(ncclGroupStart());
        add(g, pairs[g]);
        MUST(ncclGroupEnd());
        MUST(ncclSend(in[g], COUNT, PKN_FLOAT32, (g + 1) % RANKS, all[g], streams[g]));
        MUST(ncclRecv(NULL, 0, PKN_FLOAT32, (g + 1) % RANKS, all[g], streams[g]));
        MUST(ncclSend(NULL, 0, PKN_FLOAT32, (g + RANKS - 1) % RANKS, all[g], streams[g]));
        MUST(ncclRecv(from[g], COUNT, PKN_FLOAT32, (g + RANKS - 1) % RANKS, all[g], streams[g]));
    }
    MUST(ncclGroupEnd());
    for (int g = 0; g < RANKS; g++)
        check(bed_idle(streams[g]), "operations of two communicators in a group, messages of nothing among them: %d has ended",
              g);
}

static void ring_is_right(void)
{
    float host[COUNT];

    for (int g = 0; g < RANKS; g++) {
        size_t wrong = 0;

        use(g);
        bed_download(host, from[g], COUNT);
        for (size_t i = 0; i < COUNT; i++)
            wrong += host[i] != value((g + RANKS - 1) % RANKS, i);
        check(wrong == 0, "rank %d: %zu of the ring's elements are wrong", g, wrong);
    }
}

/* The second and third rank are in the new one, in reverse order; the others get none. */
static void split(pkn_comm_t all[RANKS])
{
    pkn_comm_t made[RANKS], again[RANKS];
    int rank, size;

    memset(made, 0x55, sizeof made);
    MUST(ncclGroupStart());
    for (int g = 0; g < RANKS; g++) {
        int color = g == 1 || g == 2 ? 7 : PKN_NOCOLOR;

        MUST(ncclCommSplit(all[g], color, -g, &made[g], NULL));
        MUST(ncclCommSplit(all[g], g / 2, g, &again[g], NULL)); /* in the same group, after one that waits for all */
    }
    MUST(ncclGroupEnd());
    check(made[0] == NULL && made[3] == NULL, "no communicator where there is no color");
    MUST(ncclCommUserRank(made[1], &rank));
    MUST(ncclCommCount(made[2], &size));
    check(rank == 1 && size == 2, "the key turned the order: rank %d of %d", rank, size);
    for (int g = 0; g < RANKS; g++)
        clear(g);
    MUST(ncclGroupStart());
    for (int g = 1; g <= 2; g++)
        add(g, made[g]);
    MUST(ncclGroupEnd());
    check(is_sum(1, 3, 2) && is_sum(2, 3, 2), "the sum of the split communicator");
    MUST(ncclGroupStart());
    for (int g = 0; g < RANKS; g++)
        add(g, again[g]);
    MUST(ncclGroupEnd());
    check(is_sum(0, 1, 2) && is_sum(3, 5, 2), "the sums of the second split of the group");
    MUST(ncclGroupStart());
    for (int g = 0; g < RANKS; g++) {
        if (made[g] != NULL)
            MUST(ncclCommFinalize(made[g]));
        MUST(ncclCommDestroy(again[g]));
    }
    MUST(ncclGroupEnd());
    for (int g = 1; g <= 2; g++)
        MUST(ncclCommDestroy(made[g]));
}

/* Two ranks on one GPU, which NCCL refuses. */
static void one_gpu(void)
{
    pkn_comm_t both[2];
    pkn_id_t id;
    float *buffers[2], host[COUNT];
    gpu_stream_t own[2];
    size_t wrong = 0;

    use(3);
    for (size_t i = 0; i < COUNT; i++)
        host[i] = 2;
    MUST(ncclGetUniqueId(&id));
    MUST(ncclGroupStart());
    for (int r = 0; r < 2; r++) {
        own[r] = gpu_stream_new();
        buffers[r] = bed_upload(host, COUNT);
        MUST(ncclCommInitRank(&both[r], 2, id, r));
    }
    MUST(ncclGroupEnd());
    MUST(ncclGroupStart());
    for (int r = 0; r < 2; r++)
        MUST(ncclAllReduce(buffers[r], buffers[r], COUNT, PKN_FLOAT32, PKN_PROD, both[r], own[r]));
    MUST(ncclGroupEnd());
    check(bed_idle(own[0]) && bed_idle(own[1]), "two ranks on one GPU, each in a stream of its own");
    bed_download(host, buffers[1], COUNT);
    for (size_t i = 0; i < COUNT; i++)
        wrong += host[i] != 4;
    check(wrong == 0, "of their products %zu are wrong", wrong);
    MUST(ncclCommDestroy(both[0]));
    MUST(ncclCommDestroy(both[1]));
}

static void many(pkn_comm_t all[RANKS])
{
    for (int g = 0; g < RANKS; g++)
        clear(g);
    MUST(ncclGroupStart());
    for (int k = 0; k < MANY; k++)
        for (int g = 0; g < 2; g++)
            MUST(ncclAllReduce(in[g] + k, out[g] + k, 1, PKN_FLOAT32, PKN_SUM, all[g], streams[g]));
    for (int g = 0; g < 2; g++)
        MUST(ncclAllReduce(in[g] + MANY, out[g] + MANY, COUNT - MANY, PKN_FLOAT32, PKN_SUM, all[g], streams[g]));
    MUST(ncclGroupEnd());
    check(is_sum(0, 1, 2) && is_sum(1, 1, 2), "%d collectives in a group", MANY + 1);
}

/* More than a stream's launch queue holds, and all of one communicator before any of the other. */
static void many_in_turn(pkn_comm_t all[RANKS])
{
    enum { LOTS = 1300 };

    for (int g = 0; g < RANKS; g++)
        clear(g);
    MUST(ncclGroupStart());
    for (int g = 0; g < 2; g++)
        for (int k = 0; k < LOTS; k++)
            MUST(ncclAllReduce(in[g], out[g], COUNT, PKN_FLOAT32, PKN_SUM, all[g], streams[g]));
    MUST(ncclGroupEnd());
    check(is_sum(0, 1, 2) && is_sum(1, 1, 2), "%d collectives of one communicator, then those of the other", LOTS);
}

/* The same of an operation that waits for its peer by words in the stream, of which a group of libpickle has so many. */
static void many_gathers(pkn_comm_t all[RANKS])
{
    float host[COUNT];
    size_t wrong = 0;

    clear(0);
    MUST(ncclGroupStart());
    for (size_t k = 0; k < MANY; k++)
        for (int g = 0; g < 2; g++)
            MUST(ncclGather(in[g] + k % 500, out[g] + k % 500 * 2, 1, PKN_FLOAT32, 0, all[g], streams[g]));
    MUST(ncclGroupEnd());
    for (int g = 0; g < 2; g++)
        check(bed_idle(streams[g]), "%d gathers in a group: rank %d has ended", MANY, g);
    use(0);
    bed_download(host, out[0], COUNT);
    for (size_t i = 0; i < COUNT; i++)
        wrong += host[i] != value((int)(i % 2), i / 2);
    check(wrong == 0, "of their elements %zu are wrong", wrong);
}

/* A message of nothing is one: who receives it waits until it has been sent. */
static void nothing_is_sent(pkn_comm_t all[RANKS])
{
    use(1);
    MUST(ncclRecv(NULL, 0, PKN_FLOAT32, 0, all[1], streams[1]));
    usleep(50000);
    check(gpu_stream_query(streams[1]) == GPU_NOT_READY, "a receive of nothing waits");
    MUST(ncclSend(NULL, 0, PKN_FLOAT32, 1, all[0], streams[0]));
    check(bed_idle(streams[0]) && bed_idle(streams[1]), "for what is sent");
}

/* Nothing happens, and the communicators are as before. */
static void simulated(pkn_comm_t all[RANKS])
{
    pkn_simulation_t simulation = {
        .size = sizeof simulation, .magic = PKN_SIMULATION_MAGIC, .version = PKN_VERSION, .estimated_time = 5
    };

    for (int g = 0; g < RANKS; g++)
        clear(g);
    MUST(ncclGroupStart());
    for (int g = 0; g < RANKS; g++)
        add(g, all[g]);
    MUST(ncclGroupSimulateEnd(&simulation));
    check(!is_sum(0, 6, RANKS) && simulation.size == 24 && simulation.estimated_time == -1.0F, "a simulated group moves nothing");
    simulation.magic = 1;
    MUST(ncclGroupStart());
    check(ncclGroupSimulateEnd(&simulation) == PKN_INVALID_ARGUMENT, "the magic of the simulation is looked at");
    check(ncclGroupEnd() == PKN_INVALID_USAGE, "no group is open behind it");
}

int main(void)
{
    pkn_comm_t all[RANKS], pairs[RANKS], two[RANKS];
    static const int list[] = { 1, 0 };
    int device;

    if (!bed_has_gpus(LEAST))
        return BED_SKIPPED;
    open_gpus(gpu_count());
    all_devices(all);
    two_pairs(pairs);
    nested_operations(all, pairs);
    check(is_sum(0, 1, 2) && is_sum(1, 1, 2) && is_sum(2, 5, 2) && is_sum(3, 5, 2), "the sums of both pairs");
    ring_is_right();
    split(all);
    simulated(all);
    MUST(ncclCommInitAll(two, 2, list));
    MUST(ncclCommCuDevice(two[0], &device));
    check(device == 1, "devices by a list");
    MUST(ncclCommDestroy(two[0]));
    MUST(ncclCommDestroy(two[1]));
    MUST(ncclGroupStart());
    for (int g = 0; g < RANKS; g++)
        MUST(ncclCommDestroy(all[g]));
    MUST(ncclGroupEnd());
    MUST(ncclCommInitAll(all, 2, NULL));
    one_gpu();
    many(all);
    many_in_turn(all);
    many_gathers(all);
    nothing_is_sent(all);
    for (int g = 0; g < RANKS; g++)
        MUST(ncclCommDestroy(pairs[g]));
    for (int g = 0; g < 2; g++)
        MUST(ncclCommDestroy(all[g]));
    return bed_end();
}
