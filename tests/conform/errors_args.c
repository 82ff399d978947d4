/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong arguments: refused with PK_ERR_ARG (or what the header names), nothing happens, the communicator works on. */
#include "conform.h"

#include <stdio.h>
#include <string.h>

static float source[64], result[64 * 64];

static void wrong_communicator(struct rank *r)
{
    pk_path_t path = { .struct_size = sizeof path };
    pk_stats_t stats = { .struct_size = sizeof stats };
    pk_explanation_t explanation = { .struct_size = sizeof explanation };
    int number;

    expect(r, pk_send(source, 1, PK_F32, 0, NULL, PK_BLOCKING), PK_ERR_ARG, "pk_send(comm NULL)");
    expect(r, pk_recv(result, 1, PK_F32, 0, NULL, PK_BLOCKING), PK_ERR_ARG, "pk_recv(comm NULL)");
    expect(r, pk_allgather(source, result, 1, PK_F32, NULL, PK_BLOCKING), PK_ERR_ARG, "pk_allgather(comm NULL)");
    expect(r, pk_allreduce(source, result, 1, PK_F32, PK_SUM, NULL, PK_BLOCKING), PK_ERR_ARG, "pk_allreduce(comm NULL)");
    expect(r, pk_comm_rank(NULL, &number), PK_ERR_ARG, "pk_comm_rank(NULL)");
    expect(r, pk_comm_size(NULL, &number), PK_ERR_ARG, "pk_comm_size(NULL)");
    expect(r, pk_comm_rank(r->comm, NULL), PK_ERR_ARG, "pk_comm_rank(rank NULL)");
    expect(r, pk_comm_size(r->comm, NULL), PK_ERR_ARG, "pk_comm_size(size NULL)");
    expect(r, pk_comm_abort(NULL), PK_ERR_ARG, "pk_comm_abort(NULL)");
    expect(r, pk_comm_async_error(NULL), PK_ERR_ARG, "pk_comm_async_error(NULL)");
    expect(r, pk_comm_destroy(NULL), PK_OK, "pk_comm_destroy(NULL)");
    expect(r, pk_comm_path(NULL, 0, PK_MEM_HOST, PK_MEM_HOST, &path), PK_ERR_ARG, "pk_comm_path(NULL)");
    expect(r, pk_comm_stats(NULL, &stats), PK_ERR_ARG, "pk_comm_stats(NULL)");
    expect(r, pk_explain(NULL, PK_OP_ALLREDUCE, 1, PK_F32, PK_MEM_HOST, 0, 0, &explanation), PK_ERR_ARG, "pk_explain(NULL)");
}

static void wrong_peer(struct rank *r)
{
    expect(r, pk_send(source, 1, PK_F32, r->size, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_send(peer = size)");
    expect(r, pk_send(source, 1, PK_F32, -1, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_send(peer = -1)");
    expect(r, pk_recv(result, 1, PK_F32, r->size + 7, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_recv(peer = size + 7)");
    expect(r, pk_recv(result, 1, PK_F32, -1, r->comm, r->streams[END_HOST]), PK_ERR_ARG, "pk_recv(peer = -1, stream)");
    expect(r, pk_send(source, 1, PK_F32, r->rank, r->comm, PK_BLOCKING), PK_ERR_ARG,
           "blocking pk_send to oneself outside a group");
    expect(r, pk_recv(result, 1, PK_F32, r->rank, r->comm, PK_BLOCKING), PK_ERR_ARG,
           "blocking pk_recv from oneself outside a group");
}

static void wrong_type(struct rank *r)
{
    pk_dtype_t none = (pk_dtype_t)PK_DTYPE_COUNT;
    int peer = (r->rank + 1) % r->size;

    expect(r, pk_send(source, 1, none, peer, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_send(dtype 12)");
    expect(r, pk_recv(result, 1, (pk_dtype_t)99, peer, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_recv(dtype 99)");
    expect(r, pk_allgather(source, result, 1, none, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_allgather(dtype 12)");
    expect(r, pk_allreduce(source, result, 1, none, PK_SUM, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_allreduce(dtype 12)");
    expect(r, pk_allreduce(source, result, 1, PK_F32, (pk_op_t)4711, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_allreduce(op 4711)");
    if (pk_dtype_size(none) != 0 || pk_dtype_size((pk_dtype_t)-1) != 0 || strcmp(pk_dtype_name(none), "?") != 0)
        fail(r, "pk_dtype_size and pk_dtype_name of no type");
}

static void wrong_buffer(struct rank *r)
{
    int peer = (r->rank + 1) % r->size;

    expect(r, pk_send(NULL, 1, PK_F32, peer, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_send(NULL)");
    expect(r, pk_recv(NULL, 1, PK_F32, peer, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_recv(NULL)");
    expect(r, pk_allgather(NULL, result, 1, PK_F32, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_allgather(sendbuf NULL)");
    expect(r, pk_allgather(source, NULL, 1, PK_F32, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_allgather(recvbuf NULL)");
    expect(r, pk_allreduce(NULL, result, 1, PK_F32, PK_SUM, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_allreduce(sendbuf NULL)");
    expect(r, pk_allreduce(source, NULL, 1, PK_F32, PK_SUM, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_allreduce(recvbuf NULL)");
    expect(r, pk_allreduce(source, source + 1, 8, PK_F32, PK_SUM, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_allreduce, overlapping");
    /* One element after the place of a rank is no rank's place. */
    expect(r, pk_allgather(result + 8 * r->rank + 1, result, 8, PK_F32, r->comm, PK_BLOCKING), PK_ERR_ARG,
           "pk_allgather, overlapping");
}

static void wrong_group(struct rank *r)
{
    pk_result_t inside;

    expect(r, pk_group_end(), PK_ERR_ARG, "pk_group_end without a group");
    expect(r, pk_group_start(), PK_OK, "pk_group_start");
    inside = pk_send(source, 1, PK_F32, r->size, r->comm, PK_BLOCKING);
    expect(r, inside, PK_ERR_ARG, "pk_send(peer = size) in a group");
    expect(r, pk_group_end(), PK_ERR_ARG, "pk_group_end after an error inside");
    expect(r, pk_group_end(), PK_ERR_ARG, "pk_group_end once too often");
    expect(r, pk_group_start(), PK_OK, "pk_group_start");
    expect(r, pk_group_start(), PK_OK, "pk_group_start, nested");
    expect(r, pk_group_end(), PK_OK, "pk_group_end, nested");
    expect(r, pk_group_end(), PK_OK, "pk_group_end of an empty group");
}

static void wrong_stream(struct rank *r)
{
    pk_stream_t strange = PK_STREAM_VALUE(77, 0);
    int peer = (r->rank + 1) % r->size;

    expect(r, pk_stream_create(NULL), PK_ERR_ARG, "pk_stream_create(NULL)");
    expect(r, pk_stream_synchronize(PK_BLOCKING), PK_ERR_ARG, "pk_stream_synchronize(PK_BLOCKING)");
    expect(r, pk_stream_query(PK_BLOCKING), PK_ERR_ARG, "pk_stream_query(PK_BLOCKING)");
    expect(r, pk_stream_destroy(PK_BLOCKING), PK_ERR_ARG, "pk_stream_destroy(PK_BLOCKING)");
    expect(r, pk_send(source, 1, PK_F32, peer, r->comm, strange), PK_ERR_ARG, "pk_send(stream of kind 77)");
    expect(r, pk_stream_query(r->streams[END_HOST]), PK_OK, "pk_stream_query of an idle stream");
}

static void wrong_structs(struct rank *r)
{
    pk_path_t path = { .struct_size = 1 };
    pk_stats_t stats = { .struct_size = 0 };
    pk_error_info_t info = { .struct_size = sizeof(size_t) };
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    pk_unique_id_t id = { { 0 } };

    expect(r, pk_last_error(NULL), PK_ERR_ARG, "pk_last_error(NULL)");
    expect(r, pk_last_error(&info), PK_ERR_ARG, "pk_last_error(struct_size 8)");
    expect(r, pk_comm_path(r->comm, r->rank, PK_MEM_HOST, PK_MEM_HOST, &path), PK_ERR_ARG, "pk_comm_path(struct_size 1)");
    path.struct_size = sizeof path;
    expect(r, pk_comm_path(r->comm, r->size, PK_MEM_HOST, PK_MEM_HOST, &path), PK_ERR_ARG, "pk_comm_path(peer = size)");
    expect(r, pk_comm_path(r->comm, 0, (pk_mem_kind_t)9, PK_MEM_HOST, &path), PK_ERR_ARG, "pk_comm_path(kind 9)");
    expect(r, pk_comm_stats(r->comm, &stats), PK_ERR_ARG, "pk_comm_stats(struct_size 0)");
    expect(r, pk_get_unique_id(NULL), PK_ERR_ARG, "pk_get_unique_id(NULL)");
    expect(r, pk_comm_init_rank(NULL, 1, 0, &id, NULL), PK_ERR_ARG, "pk_comm_init_rank(comm NULL)");
    expect(r, pk_comm_init_rank(&comm, 1, 0, NULL, NULL), PK_ERR_ARG, "pk_comm_init_rank(id NULL)");
    expect(r, pk_comm_init_rank(&comm, 0, 0, &id, NULL), PK_ERR_ARG, "pk_comm_init_rank(size 0)");
    expect(r, pk_comm_init_rank(&comm, 2, 2, &id, NULL), PK_ERR_ARG, "pk_comm_init_rank(rank = size)");
    config.sm_policy = 17;
    expect(r, pk_comm_init_rank(&comm, 1, 0, &id, &config), PK_ERR_ARG, "pk_comm_init_rank(sm_policy 17)");
    if (comm != NULL)
        fail(r, "an output was set by a call that failed");
}

static void wrong_registration(struct rank *r)
{
    expect(r, pk_register(NULL, source, 64), PK_ERR_ARG, "pk_register(comm NULL)");
    expect(r, pk_register(r->comm, NULL, 64), PK_ERR_ARG, "pk_register(NULL)");
    expect(r, pk_register(r->comm, source, 0), PK_ERR_ARG, "pk_register(0 bytes)");
    expect(r, pk_register(r->comm, source, SIZE_MAX), PK_ERR_ARG, "pk_register(SIZE_MAX bytes)");
    expect(r, pk_register(r->comm, source, UINTPTR_MAX - (uintptr_t)source + 1), PK_ERR_ARG,
           "pk_register up to where addresses begin again");
    expect(r, pk_deregister(r->comm, source, SIZE_MAX), PK_ERR_ARG, "pk_deregister of what was refused");
    expect(r, pk_deregister(r->comm, source, 64), PK_ERR_ARG, "pk_deregister of what was never registered");
    expect(r, pk_register(r->comm, source, 64), PK_OK, "pk_register of host memory");
    expect(r, pk_register(r->comm, source, 64), PK_OK, "pk_register, a second time");
    expect(r, pk_deregister(r->comm, source, 64), PK_OK, "pk_deregister");
    expect(r, pk_deregister(r->comm, source, 64), PK_OK, "pk_deregister, a second time");
    expect(r, pk_deregister(r->comm, source, 64), PK_ERR_ARG, "pk_deregister once too often");
}

static void error_record(struct rank *r)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    expect(r, pk_send(source, 1, PK_F32, r->size, r->comm, PK_BLOCKING), PK_ERR_ARG, "pk_send(peer = size)");
    expect(r, pk_last_error(&info), PK_OK, "pk_last_error");
    if (info.code != PK_ERR_ARG || info.text[0] == '\0' || info.rank != r->rank)
        fail(r, "the record says code %d, rank %d, '%s'", (int)info.code, info.rank, info.text);
    for (int code = PK_OK; code <= PK_ERR_INTERNAL; code++)
        if (pk_strerror((pk_result_t)code) == NULL || *pk_strerror((pk_result_t)code) == '\0')
            fail(r, "pk_strerror(%d) says nothing", code);
    if (pk_strerror((pk_result_t)1234) == NULL)
        fail(r, "pk_strerror(1234) is NULL");
    if (pk_version() != PK_VERSION_MAJOR * 10000 + PK_VERSION_MINOR * 100 + PK_VERSION_PATCH)
        fail(r, "pk_version is %d, not the header's", pk_version());
}

void run_argument_errors(struct rank *rank)
{
    static const struct special cases[] = {
        { "errors: null communicator", wrong_communicator },
        { "errors: peer", wrong_peer },
        { "errors: type and reduction", wrong_type },
        { "errors: buffers", wrong_buffer },
        { "errors: groups", wrong_group },
        { "errors: streams", wrong_stream },
        { "errors: structs and init", wrong_structs },
        { "errors: registration", wrong_registration },
        { "errors: the record", error_record },
    };

    run_special(rank, cases, sizeof cases / sizeof cases[0]);
}
