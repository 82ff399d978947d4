/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How short an allreduce of two GPUs can be that is one kernel on each: no library, two processes and a GPU each (on one GPU: two threads of
 * one process). A kernel stores pairs of 4 bytes of data and 4 of flag into the other's memory, takes the other's from its own, adds f32
 * and stores the sum. Microseconds an operation:
 *   calls   rows of operations as a program calls them; the CPU's launches are in it
 *   cpu     what the calls alone took of the CPU
 *   queued  the same row behind a kernel that waits, until all calls are done: what the GPUs take
 *   graph   the row as a graph, replayed
 * What is varied: 8 or 512 bytes of parameters, and what the end of an operation tells the CPU.
 * nvcc -O3 -std=c++17 -arch=sm_90 one_shot.cu -o one-shot && ./one-shot
 * With -DWITH_PICKLE -lpickle the library's own allreduce comes last, in the same way.
 */
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>
#ifdef WITH_PICKLE
#include <pickle/pickle.h>
#endif

constexpr int row_ops = 32, samples = 60, warm = 10;
constexpr size_t half_bytes = (size_t)4 << 20;

/* the CPU: never; by a word in its memory at the end of each CTA; at the start of the next kernel */
enum tell { NOTHING, AT_END, AT_NEXT };
/* also: a word of the device is read before and counted up behind; and warps vote on what has come */
enum bound { NO_MORE, TURN, VOTE };

struct args {
    const float2 *in;
    float2 *out;
    char *near, *far;        /* inboxes, two halves */
    volatile uint32_t *done; /* the CPU's, one word a CTA */
    uint32_t *ended;
    const uint32_t *base; /* of graphs: added to the epoch */
    uint32_t pairs, epoch, ended_before;
    uint32_t unused;
    char padding[400];
};

struct small_args {
    const args *in_memory;
    uint32_t epoch;
};

__device__ __forceinline__ void store_pair(char *at, float2 data, uint32_t flag)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(__float_as_uint(data.x)), "r"(flag),
                 "r"(__float_as_uint(data.y)), "r"(flag)
                 : "memory");
}

__device__ __forceinline__ bool load_pair(const char *at, float2 *data, uint32_t flag)
{
    uint32_t low, a, high, b;

    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(low), "=r"(a), "=r"(high), "=r"(b)
                 : "l"(at)
                 : "memory");
    *data = make_float2(__uint_as_float(low), __uint_as_float(high));
    return a == flag && b == flag;
}

template <int Each, tell Tell, bound Bound> __device__ __forceinline__ void reduce(const args &a)
{
    const uint32_t threads = gridDim.x * blockDim.x, me = blockIdx.x * blockDim.x + threadIdx.x;
    float2 mine[Each], theirs[Each];
    uint32_t epoch;

    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
    epoch = a.epoch + (a.base != nullptr ? *(volatile const uint32_t *)a.base : 0);
    if (Tell == AT_NEXT && threadIdx.x == 0)
        a.done[blockIdx.x] = epoch - 1;
    if (Bound != NO_MORE)
        while ((int32_t)(*(volatile uint32_t *)a.ended - a.ended_before) < 0) {
        }
    char *far = a.far + (epoch & 1) * half_bytes, *near = a.near + (epoch & 1) * half_bytes;
    for (uint32_t first = me; first < a.pairs; first += Each * threads) {
#pragma unroll
        for (int i = 0; i < Each; i++)
            if (first + i * threads < a.pairs)
                mine[i] = a.in[first + i * threads];
#pragma unroll
        for (int i = 0; i < Each; i++)
            if (first + i * threads < a.pairs)
                store_pair(far + 16ull * (first + i * threads), mine[i], epoch);
    }
    for (uint32_t first = me; first < a.pairs; first += Each * threads) {
        bool all;

        do {
            all = true;
#pragma unroll
            for (int i = 0; i < Each; i++)
                if (first + i * threads < a.pairs)
                    all &= load_pair(near + 16ull * (first + i * threads), &theirs[i], epoch);
            if (Bound == VOTE)
                all = __all_sync(__activemask(), all);
        } while (!all);
#pragma unroll
        for (int i = 0; i < Each; i++)
            if (first + i * threads < a.pairs) {
                float2 own = a.in[first + i * threads];

                a.out[first + i * threads] = make_float2(own.x + theirs[i].x, own.y + theirs[i].y);
            }
    }
    if (Tell == AT_END || Bound != NO_MORE)
        __syncthreads();
    if (threadIdx.x == 0 && Tell == AT_END)
        a.done[blockIdx.x] = epoch;
    if (threadIdx.x == 0 && Bound != NO_MORE)
        asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(a.ended) : "memory");
}

template <int Each, tell Tell, bound Bound> __global__ void __launch_bounds__(512, 1) whole(const __grid_constant__ args a)
{
    reduce<Each, Tell, Bound>(a);
}

__global__ void next_base(uint32_t *base, uint32_t by)
{
    *base += by;
}

__global__ void hold(const volatile uint32_t *word, uint32_t value)
{
    while ((int32_t)(*word - value) < 0) {
    }
}

__global__ void empty(const __grid_constant__ args a)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
    if (a.pairs == 0xffffffffu)
        a.out[0] = make_float2(0, 0);
}

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    _exit(1);
}

static double now_us()
{
    timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

struct common { /* of both ranks */
    std::atomic<int> arrived;
    cudaIpcMemHandle_t handles[2];
    char *inboxes[2];
#ifdef WITH_PICKLE
    pk_unique_id_t id;
#endif
};

struct rank {
    int number;
    bool alone; /* one process, one GPU */
    common *shared;
    int meetings = 0;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    args a;
    uint32_t *host; /* [0..63] done, [64] the word of hold */
    uint32_t held = 0, ended = 0, *base;
    int ctas = 1, threads = 512;
    bool early = true, counts = false; /* counts: its kernels count `ended` up */
};

static void meet(rank &r)
{
    r.meetings++;
    r.shared->arrived.fetch_add(1);
    while (r.shared->arrived.load() < 2 * r.meetings) {
    }
}

template <typename Kernel> static void launch(rank &r, Kernel kernel)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = r.ctas;
    config.blockDim = r.threads;
    config.stream = r.stream;
    config.attrs = &attribute;
    config.numAttrs = r.early;
    check(cudaLaunchKernelEx(&config, kernel, r.a), "launch");
}

template <typename Kernel> static void row(rank &r, Kernel kernel)
{
    for (int i = 0; i < row_ops; i++) {
        r.a.epoch++;
        r.a.ended_before = r.ended;
        launch(r, kernel);
        r.ended += r.counts ? r.ctas : 0;
    }
}

static double median(std::vector<double> &v)
{
    std::sort(v.begin() + warm, v.end());
    return v[warm + (v.size() - warm) / 2];
}

struct times {
    double calls, cpu, queued;
};

/* do_row: puts row_ops operations into the stream. */
template <typename Row> static times measure_rows(rank &r, Row do_row)
{
    std::vector<double> calls, cpu, queued;
    float ms;

    for (int s = 0; s < samples; s++) {
        meet(r);
        double t0 = now_us();
        do_row();
        double t1 = now_us();
        check(cudaStreamSynchronize(r.stream), "row");
        calls.push_back((now_us() - t0) / row_ops);
        cpu.push_back((t1 - t0) / row_ops);
        meet(r);
        hold<<<1, 1, 0, r.stream>>>(r.host + 64, ++r.held);
        check(cudaEventRecord(r.begin, r.stream), "record");
        do_row();
        check(cudaEventRecord(r.end, r.stream), "record");
        meet(r);
        *(volatile uint32_t *)&r.host[64] = r.held;
        check(cudaStreamSynchronize(r.stream), "queued");
        check(cudaEventElapsedTime(&ms, r.begin, r.end), "elapsed");
        queued.push_back(ms * 1e3 / row_ops);
    }
    return { median(calls), median(cpu), median(queued) };
}

template <typename Kernel> static times measure(rank &r, Kernel kernel)
{
    return measure_rows(r, [&]() { row(r, kernel); });
}

template <typename Kernel> static double measure_graph(rank &r, Kernel kernel)
{
    std::vector<double> took;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    uint32_t epoch = r.a.epoch;

    epoch += epoch & 1;
    check(cudaMemcpy(r.base, &epoch, sizeof epoch, cudaMemcpyDefault), "base");
    r.a.base = r.base;
    r.a.epoch = 0;
    check(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal), "capture");
    row(r, kernel);
    next_base<<<1, 1, 0, r.stream>>>(r.base, row_ops);
    check(cudaStreamEndCapture(r.stream, &graph), "capture ends");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    check(cudaStreamSynchronize(r.stream), "base");
    for (int s = 0; s < samples; s++) {
        meet(r);
        double t0 = now_us();
        check(cudaGraphLaunch(exec, r.stream), "graph");
        check(cudaStreamSynchronize(r.stream), "graph");
        took.push_back((now_us() - t0) / row_ops);
    }
    check(cudaGraphExecDestroy(exec), "graph");
    check(cudaGraphDestroy(graph), "graph");
    r.a.base = nullptr;
    r.a.epoch = epoch + samples * row_ops + 2;
    return median(took);
}

template <int Each, tell Tell, bound Bound> static void line(rank &r, const char *name, size_t bytes, int ctas, bool graph)
{
    auto kernel = whole<Each, Tell, Bound>;
    double replayed = 0;

    r.ctas = ctas;
    r.counts = Bound != NO_MORE;
    r.a.pairs = (uint32_t)(bytes / 8);
    times t = measure(r, kernel);
    if (graph && Bound == NO_MORE)
        replayed = measure_graph(r, kernel);
    if (r.number == 0)
        printf("%-34s %7zu B %3d CTAs %7.2f %7.2f %7.2f %7.2f\n", name, bytes, ctas, t.calls, t.cpu, t.queued, replayed);
    fflush(stdout);
}

static void all_lines(rank &r)
{
    times t;

    if (r.number == 0)
        printf("%-53s %7s %7s %7s %7s\n", "us an operation", "calls", "cpu", "queued", "graph");
    r.ctas = 1;
    t = measure(r, empty);
    if (r.number == 0)
        printf("%-53s %7.2f %7.2f %7.2f\n", "a kernel that does nothing, launched early", t.calls, t.cpu, t.queued);
    r.early = false;
    t = measure(r, empty);
    if (r.number == 0)
        printf("%-53s %7.2f %7.2f %7.2f\n", "a kernel that does nothing", t.calls, t.cpu, t.queued);
    r.early = true;
    line<1, NOTHING, NO_MORE>(r, "bare", 8, 1, true);
    line<1, NOTHING, NO_MORE>(r, "bare", 4096, 1, true);
    line<1, NOTHING, NO_MORE>(r, "bare", 32768, 8, true);
    line<2, NOTHING, NO_MORE>(r, "bare, 2 pairs a thread", 32768, 4, false);
    line<1, NOTHING, NO_MORE>(r, "bare", 262144, 64, true);
    line<2, NOTHING, NO_MORE>(r, "bare, 2 pairs a thread", 262144, 32, true);
    line<4, NOTHING, NO_MORE>(r, "bare, 4 pairs a thread", 262144, 16, true);
    line<1, AT_END, NO_MORE>(r, "and a word to the CPU at the end", 8, 1, true);
    line<1, AT_END, NO_MORE>(r, "and a word to the CPU at the end", 4096, 1, true);
    line<1, AT_END, NO_MORE>(r, "and a word to the CPU at the end", 32768, 8, true);
    line<2, AT_END, NO_MORE>(r, "and a word to the CPU at the end", 262144, 32, true);
    line<1, AT_NEXT, NO_MORE>(r, "a word to the CPU by the next one", 8, 1, true);
    line<1, AT_NEXT, NO_MORE>(r, "a word to the CPU by the next one", 4096, 1, true);
    line<1, AT_NEXT, NO_MORE>(r, "a word to the CPU by the next one", 32768, 8, true);
    line<2, AT_NEXT, NO_MORE>(r, "a word to the CPU by the next one", 262144, 32, true);
    line<1, NOTHING, TURN>(r, "and a turn in device memory", 4096, 1, false);
    line<1, NOTHING, VOTE>(r, "and a turn, and votes", 4096, 1, false);
    line<1, AT_END, VOTE>(r, "turn, votes, a word at the end", 4096, 1, false);
    line<1, AT_END, VOTE>(r, "turn, votes, a word at the end", 32768, 8, false);
    line<1, AT_NEXT, VOTE>(r, "turn, votes, a word by the next", 32768, 8, false);
    r.early = false;
    line<1, NOTHING, NO_MORE>(r, "bare, not launched early", 8, 1, true);
    line<1, NOTHING, NO_MORE>(r, "bare, not launched early", 4096, 1, true);
    line<2, NOTHING, NO_MORE>(r, "bare, not launched early", 262144, 32, true);
    line<1, AT_END, NO_MORE>(r, "not early, a word to the CPU at the end", 4096, 1, true);
}

#ifdef WITH_PICKLE
static void must(pk_result_t result, const char *what)
{
    if (result == PK_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, pk_strerror(result));
    _exit(1);
}

static void library_lines(rank &r)
{
    static const size_t sizes[] = { 8, 4096, 32768, 65536, 131072, 262144, 524288, 1048576 };
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm;

    config.device = PK_DEVICE_CUDA(r.number);
    if (r.number == 0)
        must(pk_get_unique_id(&r.shared->id), "pk_get_unique_id");
    meet(r);
    must(pk_comm_init_rank(&comm, 2, r.number, &r.shared->id, &config), "pk_comm_init_rank");
    for (size_t bytes : sizes) {
        times t = measure_rows(r, [&]() {
            for (int i = 0; i < row_ops; i++)
                must(pk_allreduce(r.a.in, r.a.out, bytes / 4, PK_F32, PK_SUM, comm, PK_CUDA_STREAM(r.stream)), "pk_allreduce");
        });

        if (r.number == 0)
            printf("%-34s %7zu B          %7.2f %7.2f %7.2f\n", "libpickle", bytes, t.calls, t.cpu, t.queued);
        fflush(stdout);
    }
    must(pk_comm_destroy(comm), "pk_comm_destroy");
}
#endif

static void open_rank(rank &r, int gpus)
{
    char *inbox, *far;
    int other = 1 - r.number;

    check(cudaSetDevice(r.number % gpus), "device");
    check(cudaMalloc(&inbox, 2 * half_bytes), "inbox");
    check(cudaMemset(inbox, 0, 2 * half_bytes), "inbox");
    check(cudaMalloc((void **)&r.a.in, half_bytes), "in");
    check(cudaMemset((void *)r.a.in, 0, half_bytes), "in");
    check(cudaMalloc((void **)&r.a.out, half_bytes), "out");
    check(cudaMalloc((void **)&r.a.ended, 64), "ended");
    check(cudaMemset(r.a.ended, 0, 64), "ended");
    check(cudaMalloc((void **)&r.base, 64), "base");
    check(cudaHostAlloc((void **)&r.host, 4096, cudaHostAllocMapped | cudaHostAllocPortable), "host");
    r.host[64] = 0;
    check(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking), "stream");
    check(cudaEventCreate(&r.begin), "event");
    check(cudaEventCreate(&r.end), "event");
    check(cudaDeviceSynchronize(), "memory");
    r.shared->inboxes[r.number] = inbox;
    if (!r.alone)
        check(cudaIpcGetMemHandle(&r.shared->handles[r.number], inbox), "handle");
    meet(r);
    if (r.alone)
        far = r.shared->inboxes[other];
    else
        check(cudaIpcOpenMemHandle((void **)&far, r.shared->handles[other], cudaIpcMemLazyEnablePeerAccess), "the other's inbox");
    r.a.near = inbox;
    r.a.far = far;
    r.a.done = r.host;
    r.a.epoch = 1;
}

static void run(int number, int gpus, common *shared)
{
    rank r = {};

    r.number = number;
    r.alone = gpus < 2;
    r.shared = shared;
    open_rank(r, gpus);
    all_lines(r);
#ifdef WITH_PICKLE
    if (!r.alone)
        library_lines(r);
#endif
    meet(r);
}

static int gpus_here()
{
    int n = 0, status = 1;
    pid_t pid = fork(); /* the driver must not be used before the ranks are forked */

    if (pid == 0) {
        if (cudaGetDeviceCount(&n) != cudaSuccess)
            n = 0;
        _exit(n);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

int main()
{
    common *shared = (common *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int gpus = gpus_here(), status = 0;

    if (gpus == 0 || shared == MAP_FAILED) {
        fprintf(stderr, "needs a GPU\n");
        return 77;
    }
    if (gpus < 2) {
        printf("one GPU: both ranks are threads on it\n");
        std::thread other(run, 1, 1, shared);
        run(0, 1, shared);
        other.join();
        return 0;
    }
    fflush(stdout);
    pid_t pid = fork();

    run(pid == 0 ? 1 : 0, gpus, shared);
    if (pid == 0)
        _exit(0);
    waitpid(pid, &status, 0);
    return status == 0 ? 0 : 1;
}
