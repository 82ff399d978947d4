/* SPDX-License-Identifier: Apache-2.0 */
// A C++ user: a communicator of one rank, an allreduce in the call itself and one in a host stream.
#include <pickle/pickle.h>

#include <cstdio>
#include <vector>

namespace
{

bool ok(pk_result_t result, const char *what)
{
    if (result != PK_OK)
        std::printf("%s: %s\n", what, pk_strerror(result));
    return result == PK_OK;
}

} // namespace

int main()
{
    pk_unique_id_t id;
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = nullptr;
    pk_stream_t stream;
    std::vector<float> in(1000, 1.0f), out(1000), later(1000);

    config.device = PK_DEVICE_HOST;
    if (!ok(pk_get_unique_id(&id), "pk_get_unique_id") || !ok(pk_comm_init_rank(&comm, 1, 0, &id, &config), "pk_comm_init_rank"))
        return 1;
    if (!ok(pk_allreduce(in.data(), out.data(), in.size(), PK_F32, PK_SUM, comm, PK_BLOCKING), "pk_allreduce"))
        return 1;
    if (!ok(pk_stream_create(&stream), "pk_stream_create") ||
        !ok(pk_allgather(in.data(), later.data(), in.size(), PK_F32, comm, stream), "pk_allgather") ||
        !ok(pk_stream_destroy(stream), "pk_stream_destroy") || !ok(pk_comm_destroy(comm), "pk_comm_destroy"))
        return 1;
    if (out != in || later != in)
        return 1;
    std::printf("sum %g over 1 rank\n", static_cast<double>(out[999]));
    return 0;
}
