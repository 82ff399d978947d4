/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How soon a message can be in another GPU, with no library around it: two processes, a GPU each (both the same where there is one), memory
 * shared by IPC handles, up to 60 round trips in the stream ahead of the GPU. us are one way: half a round trip, or a window's time over its messages.
 * "CPU" is what the calls of one message cost the thread that makes them.
 * nvcc -O3 -std=c++17 -arch=sm_90 messages.cu -o messages -lcuda && ./messages
 */
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

constexpr int threads = 512, ahead = 60, turns = 15, row_most = 64;
constexpr size_t user_bytes = 16 << 20, slots_bytes = 16 << 20, all_bytes = user_bytes + slots_bytes + (1 << 20);

struct shared {
    cudaIpcMemHandle_t memory[2];
    std::atomic<int> met;
    std::atomic<uint32_t> posted[2]; /* receives, by rank */
    double us[2], cpu_us[2];
    alignas(4096) uint32_t words[4096]; /* 1 KiB of them a kind: done 0, done 1, start 0, start 1, ends of kernels */
};

static shared *both;
static int me;
static char *mine, *theirs; /* all_bytes: user memory, slots, words */
static cudaStream_t stream;
static cudaEvent_t begin_event, end_event;
static uint32_t sent, received; /* messages so far: their flags */

static void check(int code, const char *what)
{
    if (code == 0)
        return;
    fprintf(stderr, "rank %d: %s: %d\n", me, what, code);
    _exit(1);
}

static double now_us(void)
{
    timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void meet(void)
{
    int turn = both->met.fetch_add(1) / 2;

    while (both->met.load() / 2 <= turn)
        ;
}

/* ---- kernels: a message in cells of data and flag, as the library's ---- */

struct message {
    uint64_t user, slot, done, base; /* base: of a number that is added to the flag; 0: none */
    uint32_t bytes, flag, send, bump;
};

struct row {
    message all[row_most];
    uint32_t n, ctas_each;
};

__device__ void move(const message &m, uint32_t cta, uint32_t ctas)
{
    uint32_t flag = m.flag + (m.base != 0 ? *(volatile uint32_t *)m.base : 0);

    for (uint32_t pair = cta * threads + threadIdx.x; pair < m.bytes / 8; pair += ctas * threads) {
        uint64_t at = m.slot + 16ull * pair, *user = (uint64_t *)m.user + pair;
        uint32_t low, flag_low, high, flag_high;

        if (m.send) {
            uint64_t data = *user;

            asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"((uint32_t)data), "r"(flag),
                         "r"((uint32_t)(data >> 32)), "r"(flag)
                         : "memory");
            continue;
        }
        do {
            asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(low), "=r"(flag_low), "=r"(high), "=r"(flag_high)
                         : "l"(at)
                         : "memory");
        } while (flag_low != flag || flag_high != flag);
        *user = (uint64_t)high << 32 | low;
    }
    __syncthreads();
    if (threadIdx.x == 0 && cta == 0 && m.done != 0)
        *(volatile uint32_t *)m.done = flag;
    if (threadIdx.x == 0 && cta == 0 && m.bump != 0)
        *(volatile uint32_t *)m.base += m.bump;
}

__device__ void early(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
}

__global__ void __launch_bounds__(threads) one(const __grid_constant__ message m)
{
    early();
    move(m, blockIdx.x, gridDim.x);
}

__global__ void __launch_bounds__(threads) two(const __grid_constant__ message first, const __grid_constant__ message second)
{
    early();
    move(first, blockIdx.x, gridDim.x);
    __threadfence();
    move(second, blockIdx.x, gridDim.x);
}

__global__ void __launch_bounds__(threads)
    many(const __grid_constant__ message first, const __grid_constant__ message second, uint32_t rounds)
{
    message a = first, b = second;

    for (uint32_t i = 0; i < rounds; i++, a.flag++, b.flag++) {
        move(a, blockIdx.x, gridDim.x);
        __syncthreads();
        move(b, blockIdx.x, gridDim.x);
        __syncthreads();
    }
}

__global__ void __launch_bounds__(threads) many_rows(const __grid_constant__ row r)
{
    uint32_t groups = gridDim.x / r.ctas_each, group = blockIdx.x / r.ctas_each;

    early();
    for (uint32_t i = group; i < r.n; i += groups)
        move(r.all[i], blockIdx.x % r.ctas_each, r.ctas_each);
}

template <typename... Args> static void launch(void (*kernel)(Args...), int ctas, bool is_early, Args... args)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = ctas;
    config.blockDim = threads;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = is_early ? 1 : 0;
    check(cudaLaunchKernelEx(&config, kernel, args...), "launch");
}

/* ---- ways to send and to receive one message ---- */

struct way {
    const char *name;
    bool is_early, done, lockstep;
    int kernels; /* a round trip: 2 send and receive, 1 both in one, 0 none but copies and words */
    bool starts, gpu_words, copies;
};

static way how;
static size_t bytes;
static int ctas;

static message message_of(bool send, uint32_t number)
{
    size_t slot = 2 * bytes * (number % (slots_bytes / 2 / bytes < 64 ? slots_bytes / 2 / bytes : 64));
    message m = {};

    m.user = (uint64_t)mine + (send ? 0 : user_bytes / 2);
    m.slot = (uint64_t)(send ? theirs : mine) + user_bytes + slot;
    m.done = how.done ? (uint64_t)&both->words[2048 + (2 * me + send) * 256 + number % 16 * 16] : 0;
    m.bytes = (uint32_t)bytes;
    m.flag = number;
    m.send = send;
    return m;
}

/* done: 0, start: 1; of messages to `rank`. */
static CUdeviceptr word_of(int kind, int rank)
{
    if (how.gpu_words) /* the waiting GPU's: done with the receiver, start with the sender */
        return (CUdeviceptr)((rank == me) == (kind == 0) ? mine : theirs) + user_bytes + slots_bytes + 4096 * kind + 256;
    return (CUdeviceptr)&both->words[1024 * kind + 256 * rank];
}

static void send_by_copy(void)
{
    sent++;
    if (how.starts)
        check(cuStreamWaitValue32(stream, word_of(1, 1 - me), sent, CU_STREAM_WAIT_VALUE_GEQ), "wait");
    if (how.copies)
        check(cuMemcpyDtoDAsync((CUdeviceptr)theirs + user_bytes / 2, (CUdeviceptr)mine, bytes, stream), "copy");
    check(cuStreamWriteValue32(stream, word_of(0, 1 - me), sent, 0), "write");
}

static void receive_by_copy(void)
{
    received++;
    if (how.starts)
        check(cuStreamWriteValue32(stream, word_of(1, me), received, 0), "write");
    check(cuStreamWaitValue32(stream, word_of(0, me), received, CU_STREAM_WAIT_VALUE_GEQ), "wait");
}

static void send_one(void)
{
    if (how.kernels == 0)
        return send_by_copy();
    sent++;
    while (how.lockstep && (int32_t)(both->posted[1 - me].load(std::memory_order_acquire) - sent) < 0)
        ;
    launch(one, ctas, how.is_early, message_of(true, sent));
}

static void receive_one(void)
{
    if (how.kernels == 0)
        return receive_by_copy();
    received++;
    both->posted[me].store(received, std::memory_order_release);
    launch(one, ctas, how.is_early, message_of(false, received));
}

static void round_trip(void)
{
    if (how.kernels == 1) {
        message first = message_of(me == 0, me == 0 ? ++sent : ++received),
                second = message_of(me == 1, me == 1 ? ++sent : ++received);

        return launch(two, ctas, how.is_early, first, second);
    }
    if (me == 0)
        send_one();
    receive_one();
    if (me == 1)
        send_one();
}

/* ---- measured ---- */

template <typename Post> static void measure(const char *name, int messages, Post post)
{
    std::vector<double> gpu, cpu;

    for (int turn = 0; turn < turns; turn++) {
        float ms;
        double began;

        check(cudaStreamSynchronize(stream), name);
        meet();
        began = now_us();
        check(cudaEventRecord(begin_event, stream), "record");
        post();
        check(cudaEventRecord(end_event, stream), "record");
        cpu.push_back((now_us() - began) / messages);
        check(cudaStreamSynchronize(stream), name);
        check(cudaEventElapsedTime(&ms, begin_event, end_event), "elapsed");
        gpu.push_back(ms * 1e3 / messages);
    }
    std::sort(gpu.begin(), gpu.end());
    std::sort(cpu.begin(), cpu.end());
    both->us[me] = gpu[turns / 2];
    both->cpu_us[me] = cpu[turns / 2];
    meet();
    if (me == 0)
        printf("%-62s %8zu B %7.2f us (min %.2f)  CPU %.2f / %.2f us\n", name, bytes, both->us[0], gpu[0], both->cpu_us[0],
               both->cpu_us[1]);
    fflush(stdout);
    meet();
}

static void ping_pong(const way &w, size_t length, int grid)
{
    how = w;
    bytes = length;
    ctas = grid;
    measure(w.name, 2 * ahead, [] {
        for (int i = 0; i < ahead; i++)
            round_trip();
    });
}

static void one_kernel(size_t length)
{
    how = {};
    bytes = length;
    ctas = 1;
    measure("one kernel for all 60 round trips", 2 * ahead, [] {
        message to = message_of(true, 0), from = message_of(false, 0);

        to.flag = sent + 1;
        from.flag = received + 1;
        launch(many, 1, false, me == 0 ? to : from, me == 0 ? from : to, (uint32_t)ahead);
        sent += ahead;
        received += ahead;
    });
}

/* The flags of a replay are counted on the GPU. */
static void graph(const char *name, bool is_early, size_t length)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    uint64_t base = (uint64_t)mine + user_bytes + slots_bytes;

    how = {};
    bytes = length;
    ctas = 1;
    check(cudaMemcpy((void *)base, &sent, 4, cudaMemcpyHostToDevice), "base");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
    for (int i = 0; i < ahead; i++) {
        message to = message_of(true, (uint32_t)i + 1), from = message_of(false, (uint32_t)i + 1);
        message first = me == 0 ? to : from, second = me == 0 ? from : to;

        first.base = second.base = base;
        second.bump = i == ahead - 1 ? ahead : 0;
        launch(one, 1, is_early, first);
        launch(one, 1, is_early, second);
    }
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    measure(name, 2 * ahead, [&] { check(cudaGraphLaunch(exec, stream), "graph"); });
    sent = received = sent + turns * ahead;
    check(cudaGraphExecDestroy(exec), "destroy");
    check(cudaGraphDestroy(graph), "destroy");
}

static void answer(void)
{
    size_t length = bytes;

    bytes = 8;
    ctas = 1;
    if (me == 0)
        receive_one();
    else
        send_one();
    bytes = length;
}

static void window_of_rows(int window, int each)
{
    static row r;
    int groups = std::max(1, std::min(window, 16 / each));

    r.n = (uint32_t)window;
    r.ctas_each = (uint32_t)each;
    for (int i = 0; i < window; i++)
        r.all[i] = message_of(me == 0, me == 0 ? ++sent : ++received);
    launch(many_rows, groups * each, true, r);
}

/* A window of messages from rank 0, then 8 bytes back. */
static void one_way(const char *name, const way &w, size_t length, bool rows)
{
    int window = length <= 64 << 10 ? 64 : 16, each = (int)std::max<size_t>(1, std::min<size_t>(16, length / 4096));

    how = w;
    bytes = length;
    if (rows && 2 * length * window > slots_bytes)
        return;
    measure(name, window, [&] {
        ctas = each;
        if (rows)
            window_of_rows(window, each);
        else
            for (int i = 0; i < window; i++) {
                if (me == 0)
                    send_one();
                else if (how.kernels > 0 || i == window - 1)
                    receive_one();
                else
                    received++;
            }
        answer();
    });
}

static void all(void)
{
    static const way ways[] = {
        { "a kernel for both ends of a round trip, early", true, false, false, 1, false, false, false },
        { "two kernels", false, false, false, 2, false, false, false },
        { "two kernels, early", true, false, false, 2, false, false, false },
        { "two kernels, early, each writes a host word at its end", true, true, false, 2, false, false, false },
        { "two kernels, early, sent when the receive has been called", true, false, true, 2, false, false, false },
        { "the same with host words: what the library does", true, true, true, 2, false, false, false },
    };
    static const way zero[] = {
        { "a word in the peer's GPU, wait for one", false, false, false, 0, false, true, false },
        { "copy, word in the peer's GPU", false, false, false, 0, false, true, true },
        { "copy, word in host memory", false, false, false, 0, false, false, true },
        { "copy between words start and done in the GPUs", false, false, false, 0, true, true, true },
        { "copy between words in host memory: what the library does", false, false, false, 0, true, false, true },
    };
    const way plain = ways[2], copies = zero[2];

    one_kernel(8);
    one_kernel(4096);
    graph("a graph of two kernels a round trip", false, 4096);
    graph("a graph of two kernels a round trip, early", true, 4096);
    for (const way &w : ways)
        ping_pong(w, 4096, 1);
    ping_pong(ways[5], 8, 1);
    ping_pong(ways[2], 65536, 16);
    ping_pong(ways[5], 65536, 16);
    for (const way &w : zero)
        ping_pong(w, 4096, 1);
    for (size_t length = 4096; length <= 256 << 10; length *= 4) {
        one_way("one way, a kernel a message, early", plain, length, false);
        one_way("one way, one kernel a window", plain, length, true);
        one_way("one way, copies, a word behind each", copies, length, false);
    }
}

static void open_all(void)
{
    int n = 0;

    check(cudaGetDeviceCount(&n), "devices");
    check(cudaSetDevice(me % n), "device");
    check(cudaMalloc(&mine, all_bytes), "malloc");
    check(cudaMemset(mine, 0, all_bytes), "memset");
    check(cudaDeviceSynchronize(), "synchronize");
    check(cudaHostRegister(both, sizeof *both, cudaHostRegisterDefault), "register");
    check(cudaIpcGetMemHandle(&both->memory[me], mine), "handle");
    meet();
    check(cudaIpcOpenMemHandle((void **)&theirs, both->memory[1 - me], cudaIpcMemLazyEnablePeerAccess), "open");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaEventCreate(&begin_event), "event");
    check(cudaEventCreate(&end_event), "event");
}

int main(void)
{
    pid_t child;
    int status = 0;

    both = (shared *)mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (both == MAP_FAILED)
        return 1;
    child = fork();
    me = child == 0;
    open_all();
    all();
    meet();
    if (child == 0)
        _exit(0);
    waitpid(child, &status, 0);
    return status != 0;
}
