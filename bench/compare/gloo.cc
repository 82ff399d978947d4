// SPDX-License-Identifier: Apache-2.0
// The work through Gloo over TCP, its only transport on one machine. Two variants: "async", in which a thread of the device moves the
// data, and "poll", in which the caller polls its sockets; Gloo has the second for its older algorithms alone.
#include "compare.h"

#include <gloo/allgather.h>
#include <gloo/allgather_ring.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace
{

using gloo::AllreduceOptions;

constexpr int kTrials = 3;
constexpr uint32_t kPingpongTag = 1000;

struct State {
    std::shared_ptr<gloo::rendezvous::Context> context;
    bool poll = false;
    int allreduce = 0; // 0 ring, 1 bcube, 2 halving and doubling: the fastest for this size
    std::vector<std::unique_ptr<gloo::Algorithm>> algorithms; // of this operation and size, one a root
    std::unique_ptr<gloo::transport::Buffer> send, recv;
    std::unique_ptr<gloo::transport::UnboundBuffer> unbound_send, unbound_recv;
} state;

float *floats(char *memory)
{
    return reinterpret_cast<float *>(memory);
}

void add(void *out, const void *a, const void *b, size_t n)
{
    gloo::sum<float>(out, a, b, n);
}

void open_world(compare_rank *self, int, char **)
{
    // Named as libpickle's: the driver starts both in the same way.
    const char *rank = std::getenv("PK_RANK"), *size = std::getenv("PK_SIZE");
    gloo::transport::tcp::attr attr;
    const char *interface = std::getenv("GLOO_SOCKET_IFNAME");

    self->rank = std::atoi(rank != nullptr ? rank : "0");
    self->size = std::atoi(size != nullptr ? size : "1");
    if (interface != nullptr)
        attr.iface = interface;
    else
        attr.hostname = "127.0.0.1";
    state.poll = std::strcmp(self->variant, "poll") == 0;
    gloo::rendezvous::FileStore store(self->folder);
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attr);
    state.context = std::make_shared<gloo::rendezvous::Context>(self->rank, self->size);
    state.context->connectFullMesh(store, device);
    for (int peer = 0; state.poll && peer < self->size; peer++)
        if (peer != self->rank)
            state.context->getPair(peer)->setSync(true, true);
    std::snprintf(self->settings, sizeof self->settings, "Gloo %d.%d.%d, tcp %s, %s", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR,
                  GLOO_VERSION_PATCH, interface != nullptr ? interface : "127.0.0.1",
                  state.poll ? "callers poll (pair buffers, older algorithms)"
                             : "device thread; allreduce: fastest of ring, bcube, halving");
}

void close_world(compare_rank *)
{
    state.algorithms.clear();
    state.send.reset();
    state.recv.reset();
    state.unbound_send.reset();
    state.unbound_recv.reset();
    state.context->closeConnections();
    state.context.reset();
}

void barrier()
{
    gloo::BarrierOptions options(state.context);

    gloo::barrier(options);
}

void allreduce(compare_rank *self, const compare_work *work)
{
    if (state.allreduce == 2) {
        state.algorithms[0]->run();
        return;
    }
    AllreduceOptions options(state.context);

    options.setAlgorithm(state.allreduce == 0 ? AllreduceOptions::Algorithm::RING : AllreduceOptions::Algorithm::BCUBE);
    options.setOutput(floats(self->recv), work->count);
    options.setReduceFunction(add);
    gloo::allreduce(options);
}

// The same choice on all ranks: rank 0's.
void choose_allreduce(compare_rank *self, const compare_work *work)
{
    double best = 0;
    int32_t choice = 0;

    for (int algorithm = 0; algorithm < 3; algorithm++) {
        double least = 0;

        state.allreduce = algorithm;
        for (int trial = 0; trial <= kTrials; trial++) {
            auto begin = std::chrono::steady_clock::now();
            allreduce(self, work);
            double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            if (trial == 1 || (trial > 1 && took < least))
                least = took;
        }
        if (algorithm == 0 || least < best) {
            best = least;
            choice = algorithm;
        }
    }
    gloo::BroadcastOptions options(state.context);

    options.setOutput(&choice, 1);
    options.setRoot(0);
    gloo::broadcast(options);
    state.allreduce = choice;
}

template <typename Made, typename... Arguments> void make(Arguments &&...arguments)
{
    state.algorithms.push_back(std::unique_ptr<gloo::Algorithm>(new Made(state.context, std::forward<Arguments>(arguments)...)));
}

void prepare_polled(compare_rank *self, const compare_work *work)
{
    std::vector<float *> in_place{ floats(self->recv) };
    std::vector<const float *> in{ floats(self->send) };

    if (work->op == COMPARE_BARRIER)
        make<gloo::BarrierAllToAll>();
    if (work->op == COMPARE_ALLGATHER)
        make<gloo::AllgatherRing<float>>(in, floats(self->recv), static_cast<int>(work->block));
    for (int root = 0; work->op == COMPARE_BROADCAST && root < self->size; root++)
        make<gloo::BroadcastOneToAll<float>>(in_place, work->count, root);
    int slot = state.context->nextSlot(); // on all ranks, whoever needs it: they count together

    if (work->op == COMPARE_PINGPONG && self->rank < 2) {
        auto &pair = state.context->getPair(1 - self->rank);

        state.send = pair->createSendBuffer(slot, self->send, work->count * sizeof(float));
        state.recv = pair->createRecvBuffer(slot, self->recv, work->count * sizeof(float));
    }
}

void prepare(compare_rank *self, const compare_work *work)
{
    std::vector<float *> in_place{ floats(self->recv) };

    state.algorithms.clear();
    state.send.reset();
    state.recv.reset();
    if (state.poll)
        prepare_polled(self, work);
    else {
        state.unbound_send = state.context->createUnboundBuffer(self->send, work->count * sizeof(float));
        state.unbound_recv = state.context->createUnboundBuffer(self->recv, work->count * sizeof(float));
    }
    if (work->op == COMPARE_ALLREDUCE)
        make<gloo::AllreduceHalvingDoubling<float>>(in_place, static_cast<int>(work->count));
    if (work->op == COMPARE_REDUCE_SCATTER)
        make<gloo::ReduceScatterHalvingDoubling<float>>(in_place, static_cast<int>(work->block * self->size),
                                                        std::vector<int>(self->size, static_cast<int>(work->block)));
    state.allreduce = 2;
    if (work->op == COMPARE_ALLREDUCE && !state.poll)
        choose_allreduce(self, work);
}

void pingpong(compare_rank *self)
{
    int peer = 1 - self->rank;

    for (int turn = 0; turn < 2; turn++) {
        bool sends = turn == self->rank;

        if (state.poll && sends) {
            state.send->send();
            state.send->waitSend();
        } else if (state.poll)
            state.recv->waitRecv();
        else if (sends) {
            state.unbound_send->send(peer, kPingpongTag);
            state.unbound_send->waitSend();
        } else {
            state.unbound_recv->recv(peer, kPingpongTag);
            state.unbound_recv->waitRecv();
        }
    }
}

void allgather(compare_rank *self, const compare_work *work)
{
    gloo::AllgatherOptions options(state.context);

    options.setInput(floats(self->send), work->block);
    options.setOutput(floats(self->recv), work->block * self->size);
    gloo::allgather(options);
}

void alltoall(compare_rank *self, const compare_work *work)
{
    gloo::AlltoallOptions options(state.context);

    options.setInput(floats(self->send), work->block * self->size);
    options.setOutput(floats(self->recv), work->block * self->size);
    gloo::alltoall(options);
}

void broadcast(compare_rank *self, const compare_work *work)
{
    gloo::BroadcastOptions options(state.context);

    options.setOutput(floats(self->recv), work->count);
    options.setRoot(work->root);
    gloo::broadcast(options);
}

void reduce(compare_rank *self, const compare_work *work)
{
    gloo::ReduceOptions options(state.context);

    options.setInput(floats(self->send), work->count);
    options.setOutput(floats(self->recv), work->count);
    options.setRoot(work->root);
    options.setReduceFunction(add);
    gloo::reduce(options);
}

void run_one(compare_rank *self, const compare_work *work)
{
    if (work->op == COMPARE_PINGPONG)
        pingpong(self);
    else if (work->op == COMPARE_ALLREDUCE)
        allreduce(self, work);
    else if (!state.algorithms.empty())
        state.algorithms[state.algorithms.size() > 1 ? work->root : 0]->run();
    else if (work->op == COMPARE_ALLGATHER)
        allgather(self, work);
    else if (work->op == COMPARE_ALLTOALL)
        alltoall(self, work);
    else if (work->op == COMPARE_BROADCAST)
        broadcast(self, work);
    else if (work->op == COMPARE_REDUCE)
        reduce(self, work);
    else if (work->op == COMPARE_BARRIER)
        barrier();
}

// No exception crosses the C code that called.
template <void (*function)(compare_rank *, const compare_work *)> void guarded(compare_rank *self, const compare_work *work)
{
    try {
        function(self, work);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "gloo, rank %d: %s\n", self->rank, error.what());
        std::exit(1);
    }
}

void guarded_open(compare_rank *self, int argc, char **argv)
{
    try {
        open_world(self, argc, argv);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "gloo: %s\n", error.what());
        std::exit(1);
    }
}

void explain(compare_rank *, const compare_work *work, char note[COMPARE_NOTE_BYTES])
{
    static const char *const names[] = { "ring", "bcube", "halving and doubling" };

    if (work->op == COMPARE_ALLREDUCE)
        std::snprintf(note, COMPARE_NOTE_BYTES, "%s", names[state.allreduce]);
}

} // namespace

int main(int argc, char **argv)
{
    const unsigned all = (1u << COMPARE_WAKE) - 1;
    bool poll = argc > 5 && std::strcmp(argv[5], "poll") == 0;
    compare_library library{};

    library.operations = poll ? all & ~(1u << COMPARE_ALLTOALL | 1u << COMPARE_REDUCE) : all;
    library.in_place = 1;
    library.open = guarded_open;
    library.close = close_world;
    library.prepare = guarded<prepare>;
    library.run = guarded<run_one>;
    library.explain = explain;
    return compare_main(argc, argv, &library);
}
