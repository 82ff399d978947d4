// SPDX-License-Identifier: Apache-2.0
// libpickle from C++: results as exceptions, a communicator that ends itself, containers as buffers. Collects the longest word of all.
//     c++ user.cc $(pkg-config --cflags --libs pickle) -o user && mpirun --oversubscribe -n 4 ./user
#include <pickle/pickle.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace
{

void must(pk_result_t result)
{
    pk_error_info_t info{};

    info.struct_size = sizeof info;
    if (result == PK_OK)
        return;
    pk_last_error(&info);
    throw std::runtime_error(std::string(pk_strerror(result)) + ": " + info.text);
}

struct Destroy {
    void operator()(pk_comm_t *comm) const
    {
        pk_comm_destroy(comm);
    }
};
using Communicator = std::unique_ptr<pk_comm_t, Destroy>;

Communicator join()
{
    pk_comm_t *comm = nullptr;
    pk_result_t result = pk_comm_init(&comm, nullptr);

    if (result == PK_ERR_UNSUPPORTED) { // started alone
        pk_unique_id_t id;
        must(pk_get_unique_id(&id));
        result = pk_comm_init_rank(&comm, 1, 0, &id, nullptr);
    }
    must(result);
    return Communicator(comm);
}

// Everybody's string, in rank order: lengths first, then characters.
std::vector<std::string> gather(pk_comm_t *comm, int size, const std::string &mine)
{
    std::vector<size_t> lengths(size), offsets(size);
    size_t length = mine.size(), total = 0;

    must(pk_allgather(&length, lengths.data(), 1, PK_UINT64, comm, PK_BLOCKING));
    for (int r = 0; r < size; r++) {
        offsets[r] = total;
        total += lengths[r];
    }
    std::vector<char> all(total + 1);
    must(pk_allgatherv(mine.data(), length, all.data(), lengths.data(), offsets.data(), PK_UINT8, comm, PK_BLOCKING));
    std::vector<std::string> words;
    for (int r = 0; r < size; r++)
        words.emplace_back(all.data() + offsets[r], lengths[r]);
    return words;
}

} // namespace

int main()
{
    try {
        Communicator comm = join();
        int rank = 0, size = 0;

        must(pk_comm_rank(comm.get(), &rank));
        must(pk_comm_size(comm.get(), &size));
        std::vector<std::string> words = gather(comm.get(), size, "w" + std::string(rank, 'o') + "rd");
        for (int r = 0; r < size; r++)
            if (words[r] != "w" + std::string(r, 'o') + "rd")
                throw std::runtime_error("rank " + std::to_string(r) + " said " + words[r]);
        std::printf("user: rank %d of %d: right, the longest word is %s\n", rank, size, words.back().c_str());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "user: %s\n", error.what());
        return 1;
    }
    return 0;
}
