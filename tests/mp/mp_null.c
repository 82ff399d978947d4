/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every function of the library with NULL, and with numbers far out of range: refused, with nothing done and nothing crashed, before there
 * is a communicator, with one, and after. (tests/abi/all_called.sh holds the list of symbols against this file.)
 */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define COUNT 16

static float in[COUNT], out[COUNT];
static const size_t counts[1] = { 4 };
static const pk_stream_t no_stream = { PK_STREAM_KIND_HOST, NULL }, strange_stream = { UINTPTR_MAX, NULL };
static int calls, wrong;

/* PK_ERR_ARG with a text, and that is all. */
static void refused(pk_result_t got, const char *call)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    calls++;
    pk_last_error(&info);
    if (got == PK_ERR_ARG && info.code == PK_ERR_ARG && info.text[0] != '\0')
        return;
    wrong++;
    report(false, "%s returned %d; the record says %d '%.100s'", call, (int)got, (int)info.code, info.text);
}

#define REFUSED(call) refused(call, #call)

/* Every operation; without communicator or buffers. */
static void all_operations(const void *from, void *to, const size_t *lengths, pk_comm_t *c, pk_stream_t s)
{
    if (c == NULL) /* else no more is asked for than the communicator */
        REFUSED(pk_barrier(c, s));
    REFUSED(pk_broadcast(from, to, 4, PK_F32, 0, c, s));
    REFUSED(pk_reduce(from, to, 4, PK_F32, PK_SUM, 0, c, s));
    REFUSED(pk_allreduce(from, to, 4, PK_F32, PK_SUM, c, s));
    REFUSED(pk_reduce_scatter(from, to, 4, PK_F32, PK_SUM, c, s));
    REFUSED(pk_allgather(from, to, 4, PK_F32, c, s));
    REFUSED(pk_allgatherv(from, 4, to, lengths, NULL, PK_F32, c, s));
    REFUSED(pk_alltoall(from, to, 4, PK_F32, c, s));
    REFUSED(pk_alltoallv(from, lengths, NULL, to, lengths, NULL, PK_F32, c, s));
    REFUSED(pk_gather(from, to, 4, PK_F32, 0, c, s));
    REFUSED(pk_gatherv(from, 4, to, lengths, NULL, PK_F32, 0, c, s));
    REFUSED(pk_scatter(from, to, 4, PK_F32, 0, c, s));
    REFUSED(pk_scatterv(from, lengths, NULL, to, 4, PK_F32, 0, c, s));
    REFUSED(pk_send(from, 4, PK_F32, 0, c, s));
    REFUSED(pk_recv(to, 4, PK_F32, 0, c, s));
}

/* Without a communicator, or with no place for what is asked. */
static void others_without(pk_comm_t *none)
{
    pk_path_t path = { .struct_size = sizeof path };
    pk_explanation_t explanation = { .struct_size = sizeof explanation };
    pk_stats_t stats = { .struct_size = sizeof stats };
    pk_comm_t *made = NULL;
    void *memory = NULL;
    pk_op_t op = PK_OP_COUNT;
    int number;

    REFUSED(pk_comm_init(NULL, NULL));
    REFUSED(pk_get_unique_id(NULL));
    REFUSED(pk_get_unique_id_anywhere(NULL));
    REFUSED(pk_unique_id_release(NULL));
    REFUSED(pk_comm_init_rank(NULL, 1, 0, NULL, NULL));
    REFUSED(pk_comm_init_rank(&made, 1, 0, NULL, NULL));
    REFUSED(pk_comm_split(none, 0, 0, &made, NULL));
    REFUSED(pk_comm_split(none, 0, 0, NULL, NULL));
    REFUSED(pk_comm_abort(none));
    REFUSED(pk_comm_revoke(none));
    REFUSED(pk_comm_agree(none, 0, NULL, NULL, NULL, NULL));
    REFUSED(pk_comm_shrink(none, 0, NULL, 0, &made, NULL));
    REFUSED(pk_comm_get_unique_id(none, NULL));
    REFUSED(pk_comm_grow(none, 1, NULL, &made, NULL));
    REFUSED(pk_comm_join(NULL, -1, NULL, NULL));
    REFUSED(pk_comm_join(&made, -1, NULL, NULL));
    REFUSED(pk_comm_async_error(none));
    REFUSED(pk_comm_finalize(none));
    REFUSED(pk_comm_rank(none, &number));
    REFUSED(pk_comm_size(none, NULL));
    REFUSED(pk_comm_path(none, 0, PK_MEM_HOST, PK_MEM_HOST, &path));
    REFUSED(pk_explain(none, PK_OP_ALLREDUCE, 4, PK_F32, PK_MEM_HOST, 0, 0, &explanation));
    REFUSED(pk_comm_stats(none, &stats));
    REFUSED(pk_config_dump(none, NULL, 0, NULL));
    REFUSED(pk_pending_dump(none, NULL, 0, NULL));
    REFUSED(pk_register(none, in, sizeof in));
    REFUSED(pk_deregister(none, in, sizeof in));
    REFUSED(pk_mem_alloc(none, 4, &memory));
    REFUSED(pk_mem_alloc_device(none, 0, &memory));
    REFUSED(pk_mem_alloc_device(none, 4, NULL));
    REFUSED(pk_mem_free(none, in));
    REFUSED(pk_mem_free(none, NULL));
    REFUSED(pk_op_create_premul(none, PK_F32, in, 0, &op));
    REFUSED(pk_op_destroy(none, PK_SUM));
    REFUSED(pk_stream_create(NULL));
    REFUSED(pk_stream_synchronize(no_stream));
    REFUSED(pk_stream_query(no_stream));
    REFUSED(pk_stream_destroy(no_stream));
    REFUSED(pk_group_end());
    REFUSED(pk_last_error(NULL));
    report(pk_comm_destroy(none) == PK_OK, "pk_comm_destroy(NULL) does nothing");
    report(made == NULL && memory == NULL && op == PK_OP_COUNT, "no output was set");
}

/* What cannot fail, has to answer. */
static void answers(void)
{
    pk_log_set_callback(NULL, NULL);
    report(pk_dtype_size((pk_dtype_t)-1) == 0 && pk_dtype_size((pk_dtype_t)INT_MAX) == 0, "no type has a size");
    report(strcmp(pk_dtype_name((pk_dtype_t)-1), "?") == 0 && strcmp(pk_dtype_name((pk_dtype_t)INT_MAX), "?") == 0, "nor a name");
    report(pk_strerror((pk_result_t)INT_MIN) != NULL && pk_strerror((pk_result_t)INT_MAX) != NULL,
           "pk_strerror always says something");
    report(pk_version() > 0, "pk_version");
}

static void null_outputs(pk_comm_t *c)
{
    pk_comm_t *made = NULL;
    pk_op_t op;
    int own = 0;

    REFUSED(pk_op_create_premul(c, PK_F32, in, 0, NULL));
    REFUSED(pk_op_create_premul(c, PK_F32, NULL, 0, &op));
    REFUSED(pk_op_create_premul(c, PK_F32, in, 1, &op)); /* no GPU, no memory of it */
    REFUSED(pk_comm_split(c, 0, 0, NULL, NULL));
    REFUSED(pk_comm_shrink(c, 0, NULL, 0, NULL, NULL));
    REFUSED(pk_comm_shrink(c, 8, NULL, 0, &made, NULL));
    REFUSED(pk_comm_shrink(c, PK_SHRINK_KEEP_RANKS | PK_SHRINK_REPLACE, NULL, 0, &made, NULL));
    REFUSED(pk_comm_shrink(c, 0, NULL, 1, &made, NULL));
    REFUSED(pk_comm_shrink(c, 0, &own, 1, &made, NULL));
    REFUSED(pk_comm_shrink(c, 0, &own, -1, &made, NULL));
    REFUSED(pk_comm_get_unique_id(c, NULL));
    REFUSED(pk_comm_grow(c, 0, NULL, &made, NULL));
    REFUSED(pk_comm_grow(c, INT_MAX, NULL, &made, NULL));
    REFUSED(pk_comm_grow(c, 1, NULL, NULL, NULL));
    REFUSED(pk_comm_rank(c, NULL));
    REFUSED(pk_comm_size(c, NULL));
    REFUSED(pk_comm_path(c, 0, PK_MEM_HOST, PK_MEM_HOST, NULL));
    REFUSED(pk_explain(c, PK_OP_ALLREDUCE, 4, PK_F32, PK_MEM_HOST, 0, 0, NULL));
    REFUSED(pk_comm_stats(c, NULL));
    REFUSED(pk_topology_dump(c, NULL, 4, NULL));
    REFUSED(pk_config_dump(c, NULL, 4, NULL));
    REFUSED(pk_pending_dump(c, NULL, 4, NULL));
    REFUSED(pk_register(c, NULL, 4));
    REFUSED(pk_deregister(c, NULL, 4));
    REFUSED(pk_mem_alloc(c, 4, NULL));
    REFUSED(pk_mem_alloc_device(c, 4, NULL));
    report(pk_mem_free(c, NULL) == PK_OK, "pk_mem_free(NULL) does nothing");
}

static void far_out(pk_comm_t *c, pk_stream_t s)
{
    static const int ints[] = { INT_MIN, -1, 12, INT_MAX };

    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        pk_explanation_t explanation = { .struct_size = sizeof explanation };
        pk_path_t path = { .struct_size = sizeof path };
        pk_dtype_t dtype = (pk_dtype_t)ints[i];
        pk_op_t op = (pk_op_t)(uint64_t)(int64_t)ints[i], made;

        REFUSED(pk_op_create_premul(c, dtype, in, 0, &made));
        REFUSED(pk_op_destroy(c, op));
        REFUSED(pk_broadcast(in, out, 4, PK_F32, ints[i], c, s));
        REFUSED(pk_broadcast(in, out, 4, dtype, 0, c, s));
        REFUSED(pk_reduce(in, out, 4, PK_F32, PK_SUM, ints[i], c, s));
        REFUSED(pk_reduce(in, out, 4, PK_F32, op, 0, c, s));
        REFUSED(pk_allreduce(in, out, 4, dtype, PK_SUM, c, s));
        REFUSED(pk_allreduce(in, out, 4, PK_F32, op, c, s));
        REFUSED(pk_reduce_scatter(in, out, 4, PK_F32, op, c, s));
        REFUSED(pk_allgather(in, out, 4, dtype, c, s));
        REFUSED(pk_gather(in, out, 4, PK_F32, ints[i], c, s));
        REFUSED(pk_scatter(in, out, 4, PK_F32, ints[i], c, s));
        REFUSED(pk_send(in, 4, PK_F32, ints[i], c, s));
        REFUSED(pk_recv(out, 4, PK_F32, ints[i], c, s));
        REFUSED(pk_recv(out, 4, dtype, 0, c, s));
        REFUSED(pk_comm_path(c, ints[i], PK_MEM_HOST, PK_MEM_HOST, &path));
        REFUSED(pk_comm_path(c, 0, (pk_mem_kind_t)ints[i], PK_MEM_HOST, &path));
        REFUSED(pk_explain(c, PK_OP_SEND, 4, PK_F32, PK_MEM_HOST, 0, ints[i], &explanation));
        REFUSED(pk_explain(c, (pk_op_kind_t)(ints[i] == 12 ? 99 : ints[i]), 4, PK_F32, PK_MEM_HOST, 0, 0, &explanation));
        REFUSED(pk_explain(c, PK_OP_ALLREDUCE, 4, dtype, PK_MEM_HOST, 0, 0, &explanation));
    }
}

static void too_long(pk_comm_t *c, pk_stream_t s)
{
    const size_t huge[1] = { SIZE_MAX };
    pk_explanation_t explanation = { .struct_size = sizeof explanation };

    REFUSED(pk_allreduce(in, out, SIZE_MAX, PK_F32, PK_SUM, c, s));
    REFUSED(pk_allgather(in, out, SIZE_MAX / 2, PK_F64, c, s));
    REFUSED(pk_alltoallv(in, huge, NULL, out, huge, NULL, PK_F64, c, s));
    REFUSED(pk_allgatherv(in, SIZE_MAX, out, huge, NULL, PK_F64, c, s));
    REFUSED(pk_send(in, SIZE_MAX, PK_F64, 0, c, s));
    REFUSED(pk_explain(c, PK_OP_ALLREDUCE, SIZE_MAX / 4 + 2, PK_F32, PK_MEM_HOST, 0, 0, &explanation));
    REFUSED(pk_explain(c, PK_OP_SEND, SIZE_MAX, PK_F64, PK_MEM_HOST, 0, 0, &explanation));
    REFUSED(pk_allreduce(in, out, 4, PK_F32, PK_SUM, c, no_stream));
    REFUSED(pk_barrier(c, strange_stream));
    REFUSED(pk_register(c, in, 0));
    REFUSED(pk_mem_free(c, in));
}

static pk_comm_t *alone(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;

    config.device = PK_DEVICE_HOST;
    if (pk_get_unique_id(&id) == PK_OK)
        (void)pk_comm_init_rank(&comm, 1, 0, &id, &config);
    return comm;
}

/* Neither crashes nor starts anything of the group: what an operation in it needs is gone before its end. */
static void gone_in_a_group(pk_comm_t *c)
{
    pk_comm_t *other = alone();
    pk_stream_t stream;

    if (!report(other != NULL && pk_stream_create(&stream) == PK_OK, "another communicator and stream"))
        return;
    in[0] = 7;
    out[0] = 0;
    report(pk_group_start() == PK_OK && pk_allreduce(in, out, 1, PK_F32, PK_SUM, c, stream) == PK_OK &&
               pk_stream_destroy(stream) == PK_OK,
           "a stream destroyed in a group");
    REFUSED(pk_group_end());
    report(pk_group_start() == PK_OK && pk_allreduce(in, out, 1, PK_F32, PK_SUM, c, PK_BLOCKING) == PK_OK &&
               pk_allreduce(in, out, 1, PK_F32, PK_SUM, other, PK_BLOCKING) == PK_OK && pk_comm_destroy(other) == PK_OK,
           "a communicator destroyed in a group");
    REFUSED(pk_group_end());
    report(out[0] == 0, "nothing of these groups was done");
}

/* A config as a later version's program has it. */
static void later_config(void)
{
    struct {
        pk_comm_config_t known;
        uint64_t later;
    } config = { .known = PK_COMM_CONFIG_INIT, .later = 1 };
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;

    config.known.struct_size = sizeof config;
    config.known.device = PK_DEVICE_HOST;
    report(pk_get_unique_id(&id) == PK_OK && pk_comm_init_rank(&comm, 1, 0, &id, &config.known) == PK_ERR_UNSUPPORTED &&
               comm == NULL,
           "a field that this version does not know is not ignored");
    config.later = 0;
    report(pk_comm_init_rank(&comm, 1, 0, &id, &config.known) == PK_OK && pk_comm_destroy(comm) == PK_OK,
           "where it is zero it does not matter");
}

/* The record is the init's, though another thread made it. */
static void failed_unasked(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;
    pk_result_t result;

    config.device = PK_DEVICE_HOST;
    config.nonblocking = 1;
    config.timeout_ms = 50;
    report(pk_get_unique_id(&id) == PK_OK && pk_comm_init_rank(&comm, 2, 0, &id, &config) == PK_IN_PROGRESS,
           "an init that will fail");
    result = pk_comm_destroy(comm);
    pk_last_error(&info);
    report(result == PK_ERR_TIMEOUT && info.code == PK_ERR_TIMEOUT && info.peer == 1,
           "destroy returns %d, the record says %d: %.100s", (int)result, (int)info.code, info.text);
    REFUSED(pk_comm_init_rank(&comm, 65537, 0, &id, NULL));
    REFUSED(pk_comm_init_rank(&comm, INT_MAX, 0, &id, NULL));
}

int main(void)
{
    pk_stream_t stream;
    pk_comm_t *comm;

    answers();
    all_operations(in, out, counts, NULL, PK_BLOCKING);
    others_without(NULL);
    comm = alone();
    if (!report(comm != NULL && pk_stream_create(&stream) == PK_OK, "a communicator of one rank"))
        return report_end();
    all_operations(in, out, counts, NULL, stream);
    all_operations(NULL, NULL, NULL, comm, PK_BLOCKING);
    all_operations(NULL, NULL, NULL, comm, stream);
    all_operations(NULL, NULL, counts, comm, stream);
    null_outputs(comm);
    far_out(comm, PK_BLOCKING);
    far_out(comm, stream);
    too_long(comm, PK_BLOCKING);
    too_long(comm, stream);
    gone_in_a_group(comm);
    later_config();
    failed_unasked();
    report(pk_group_start() == PK_OK && pk_group_end() == PK_OK && pk_stream_synchronize(stream) == PK_OK,
           "no group and no error is left");
    in[0] = 7;
    report(pk_allreduce(in, out, 1, PK_F32, PK_SUM, comm, PK_BLOCKING) == PK_OK && out[0] == 7, "the communicator works");
    report(pk_stream_destroy(stream) == PK_OK && pk_comm_destroy(comm) == PK_OK, "and ends");
    report(wrong == 0, "%d calls were refused as they should, %d not", calls - wrong, wrong);
    return report_end();
}
