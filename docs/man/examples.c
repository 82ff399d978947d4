/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The examples of the manual pages: a page has the first function below that calls what the page is about. The test man.examples runs all
 * of them on two ranks, which are threads.
 */
#include <pickle/pickle.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- base.h ---- */

/* Say what went wrong last in this thread. */
static void explain_failure(const char *what, pk_result_t result)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    fprintf(stderr, "%s: %s %s\n", what, pk_strerror(result), info.text);
}

/* The version of the library, and its types with their sizes. */
static void list_types(void)
{
    int version = pk_version();

    printf("pickle %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
    for (int t = 0; t < PK_DTYPE_COUNT; t++)
        printf("%s: %zu bytes\n", pk_dtype_name((pk_dtype_t)t), pk_dtype_size((pk_dtype_t)t));
}

/* ---- comm.h ---- */

/* Join the job that mpirun, srun or torchrun has started, and leave it. */
static pk_result_t greet(void)
{
    pk_comm_t *comm;
    int rank, size;
    pk_result_t result = pk_comm_init(&comm, NULL);

    if (result != PK_OK)
        return result;
    pk_comm_rank(comm, &rank);
    pk_comm_size(comm, &size);
    printf("rank %d of %d\n", rank, size);
    return pk_comm_destroy(comm);
}

/* In the process of rank 0: make an id and hand it to the others, or give it back. */
static pk_result_t invite(bool (*hand_out)(const pk_unique_id_t *), pk_unique_id_t *id)
{
    pk_result_t result = pk_get_unique_id(id);

    if (result == PK_OK && !hand_out(id))
        result = pk_unique_id_release(id);
    return result;
}

/* In a process that need not be a rank. */
static pk_result_t invite_from_elsewhere(bool (*hand_out)(const pk_unique_id_t *), pk_unique_id_t *id)
{
    pk_result_t result = pk_get_unique_id_anywhere(id);

    if (result == PK_OK && !hand_out(id))
        result = pk_unique_id_release(id);
    return result;
}

/* On every rank: a communicator in host memory, with deadlines of 30 seconds. */
static pk_result_t accept_invitation(pk_comm_t **comm, int size, int rank, const pk_unique_id_t *id)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 30000;
    return pk_comm_init_rank(comm, size, rank, id, &config);
}

/* Communicators of the even and of the odd ranks, each in the old order. */
static pk_result_t split_by_parity(pk_comm_t *comm, pk_comm_t **half)
{
    int rank;

    pk_comm_rank(comm, &rank);
    return pk_comm_split(comm, rank % 2, rank, half, NULL);
}

/* ---- survive.h ---- */

/* After an error: a communicator of the ranks that live, and the number of the last collective that need not be repeated. */
static pk_result_t go_on_without_the_dead(pk_comm_t **comm, uint64_t *last_complete)
{
    pk_comm_t *smaller;
    uint64_t all;
    int dead, size;
    pk_result_t result;

    pk_comm_size(*comm, &size);
    pk_comm_revoke(*comm); /* the others may still wait in an operation */
    result = pk_comm_agree(*comm, UINT64_MAX, &all, NULL, &dead, last_complete);
    if (result == PK_OK)
        result = pk_comm_shrink(*comm, PK_SHRINK_DEFAULT, NULL, 0, &smaller, NULL);
    if (result != PK_OK)
        return result;
    printf("%d of %d ranks go on behind collective %llu\n", size - dead, size, (unsigned long long)*last_complete);
    pk_comm_destroy(*comm);
    *comm = smaller;
    return PK_OK;
}

/* On every rank: a communicator that one more rank joins. `hand_out` brings it the id. */
static pk_result_t take_one_in(pk_comm_t *comm, pk_comm_t **larger, bool (*hand_out)(const pk_unique_id_t *))
{
    pk_unique_id_t id;
    int rank;

    pk_comm_rank(comm, &rank);
    if (rank != 0)
        return pk_comm_grow(comm, 1, NULL, larger, NULL);
    if (pk_comm_get_unique_id(comm, &id) != PK_OK)
        return PK_ERR_SYSTEM; /* the others wait until their deadline */
    if (!hand_out(&id))
        return pk_unique_id_release(&id);
    return pk_comm_grow(comm, 1, &id, larger, NULL);
}

/* The rank that joins: it waits until the others take it in. */
static pk_result_t join_others(pk_comm_t **comm, const pk_unique_id_t *id)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    return pk_comm_join(comm, -1, id, &config);
}

/* Between steps: go on, or release whatever waits on any rank. */
static bool may_go_on(pk_comm_t *comm, bool enough)
{
    pk_result_t state = pk_comm_async_error(comm);

    if (state == PK_OK && !enough)
        return true;
    if (state != PK_OK)
        explain_failure("communicator", state);
    pk_comm_abort(comm); /* pk_comm_destroy is left to call */
    return false;
}

/* End all operations of this rank first, so that memory that they use can be freed before the communicator is. */
static pk_result_t finish(pk_comm_t *comm, float *buffer)
{
    pk_result_t result = pk_comm_finalize(comm), destroyed;

    free(buffer);
    destroyed = pk_comm_destroy(comm);
    return result != PK_OK ? result : destroyed;
}

/* ---- p2p.h ---- */

/* Hand a block on to the next rank and take that of the rank before. In a group neither waits for the other. */
static pk_result_t pass_on(pk_comm_t *comm, const float *mine, float *theirs, size_t count)
{
    int rank, size;

    pk_comm_rank(comm, &rank);
    pk_comm_size(comm, &size);
    pk_group_start();
    pk_send(mine, count, PK_F32, (rank + 1) % size, comm, PK_BLOCKING);
    pk_recv(theirs, count, PK_F32, (rank + size - 1) % size, comm, PK_BLOCKING);
    return pk_group_end(); /* the first error of the three */
}

/* ---- coll.h ---- */

/* A weighted sum: each rank gives its own weight. */
static pk_result_t weighted_sum(pk_comm_t *comm, const float *in, float *out, size_t count, float weight)
{
    pk_op_t op;
    pk_result_t result = pk_op_create_premul(comm, PK_F32, &weight, 0, &op);

    if (result != PK_OK)
        return result;
    result = pk_allreduce(in, out, count, PK_F32, op, comm, PK_BLOCKING);
    pk_op_destroy(comm, op);
    return result;
}

/* Every rank has written its file when this returns PK_OK. */
static pk_result_t after_all_files(pk_comm_t *comm)
{
    return pk_barrier(comm, PK_BLOCKING);
}

/* All ranks begin with the weights of rank 0, in place. */
static pk_result_t share_weights(pk_comm_t *comm, float *weights, size_t count)
{
    return pk_broadcast(weights, weights, count, PK_F32, 0, comm, PK_BLOCKING);
}

/* The largest value that any rank has; rank 0 learns it. */
static pk_result_t find_maximum(pk_comm_t *comm, const float *mine, float *largest)
{
    return pk_reduce(mine, largest, 1, PK_F32, PK_MAX, 0, comm, PK_BLOCKING);
}

/* Average gradients over the ranks, in place. */
static pk_result_t average_gradients(pk_comm_t *comm, float *gradients, size_t count)
{
    return pk_allreduce(gradients, gradients, count, PK_F32, PK_AVG, comm, PK_BLOCKING);
}

/* Each rank updates its share of the weights: sum the gradients of the share, then gather all shares in place. */
static pk_result_t step_of_shares(pk_comm_t *comm, const float *gradients, float *weights, float *sums, size_t share)
{
    int rank;
    pk_result_t result = pk_reduce_scatter(gradients, sums, share, PK_F32, PK_SUM, comm, PK_BLOCKING);

    if (result != PK_OK)
        return result;
    pk_comm_rank(comm, &rank);
    for (size_t i = 0; i < share; i++)
        weights[(size_t)rank * share + i] -= 0.01f * sums[i];
    return pk_allgather(weights + (size_t)rank * share, weights, share, PK_F32, comm, PK_BLOCKING);
}

/* Rows of different lengths: first how long each is, then the rows, one behind the other. */
static pk_result_t gather_rows(pk_comm_t *comm, const float *row, uint64_t length, float *rows, uint64_t *lengths, size_t *counts)
{
    int size;
    pk_result_t result = pk_allgather(&length, lengths, 1, PK_UINT64, comm, PK_BLOCKING);

    if (result != PK_OK)
        return result;
    pk_comm_size(comm, &size);
    for (int r = 0; r < size; r++)
        counts[r] = lengths[r];
    return pk_allgatherv(row, length, rows, counts, NULL, PK_F32, comm, PK_BLOCKING);
}

/* Tokens to the experts of other ranks: first how many go to whom, then the tokens, one block behind the other. */
static pk_result_t dispatch(pk_comm_t *comm, const float *tokens, const uint64_t *to, float *received, uint64_t *from,
                            size_t *sendcounts, size_t *recvcounts)
{
    int size;
    pk_result_t result = pk_alltoall(to, from, 1, PK_UINT64, comm, PK_BLOCKING);

    if (result != PK_OK)
        return result;
    pk_comm_size(comm, &size);
    for (int r = 0; r < size; r++) {
        sendcounts[r] = to[r];
        recvcounts[r] = from[r];
    }
    return pk_alltoallv(tokens, sendcounts, NULL, received, recvcounts, NULL, PK_F32, comm, PK_BLOCKING);
}

/* One loss of each rank to rank 0, which has room for all of them; the others may pass NULL. */
static pk_result_t collect_losses(pk_comm_t *comm, const float *loss, float *losses)
{
    return pk_gather(loss, losses, 1, PK_F32, 0, comm, PK_BLOCKING);
}

/* Rank r contributes r + 1 elements; rank 0 puts them one behind the other. */
static pk_result_t collect_triangle(pk_comm_t *comm, const float *mine, float *all, size_t *counts)
{
    int rank, size;

    pk_comm_rank(comm, &rank);
    pk_comm_size(comm, &size);
    for (int r = 0; r < size; r++)
        counts[r] = (size_t)r + 1;
    return pk_gatherv(mine, (size_t)rank + 1, all, counts, NULL, PK_F32, 0, comm, PK_BLOCKING);
}

/* A batch that rank 0 has read, in equal parts. */
static pk_result_t deal(pk_comm_t *comm, const float *batch, float *part, size_t count)
{
    return pk_scatter(batch, part, count, PK_F32, 0, comm, PK_BLOCKING);
}

/* A batch of any length: the first ranks get one element more than the others. */
static pk_result_t deal_unevenly(pk_comm_t *comm, const float *batch, size_t total, float *part, size_t *counts)
{
    int rank, size;

    pk_comm_rank(comm, &rank);
    pk_comm_size(comm, &size);
    for (size_t r = 0; r < (size_t)size; r++)
        counts[r] = total / (size_t)size + (r < total % (size_t)size);
    return pk_scatterv(batch, counts, NULL, part, counts[rank], PK_F32, 0, comm, PK_BLOCKING);
}

/* ---- mem.h ---- */

/* Declare a buffer before operations on it are captured into a CUDA graph, and take that back after the last launch. */
static pk_result_t with_registered(pk_comm_t *comm, float *buffer, size_t count,
                                   pk_result_t (*capture_and_launch)(float *, size_t))
{
    pk_result_t result = pk_register(comm, buffer, count * sizeof *buffer);

    if (result != PK_OK)
        return result;
    result = capture_and_launch(buffer, count);
    pk_deregister(comm, buffer, count * sizeof *buffer);
    return result;
}

/* Sum in memory that the ranks of this host map: no copy through the kernel. */
static pk_result_t sum_in_shared_memory(pk_comm_t *comm, size_t count)
{
    void *memory;
    pk_result_t result = pk_mem_alloc(comm, count * sizeof(float), &memory);

    if (result != PK_OK)
        return result;
    result = pk_allreduce(memory, memory, count, PK_F32, PK_SUM, comm, PK_BLOCKING);
    pk_mem_free(comm, memory);
    return result;
}

/* Memory of the GPU that every GPU of the machine can reach. */
static pk_result_t sum_in_gpu_memory(pk_comm_t *comm, size_t count)
{
    void *memory;
    pk_result_t result = pk_mem_alloc_device(comm, count * sizeof(float), &memory);

    if (result != PK_OK)
        return result; /* PK_ERR_UNSUPPORTED: there is no GPU */
    result = pk_allreduce(memory, memory, count, PK_F32, PK_SUM, comm, PK_BLOCKING);
    pk_mem_free(comm, memory);
    return result;
}

/* ---- stream.h ---- */

/* Sum two buffers while this thread computes. */
static pk_result_t sum_beside(pk_comm_t *comm, float *a, float *b, size_t count, void (*compute_a_little)(void))
{
    pk_stream_t stream;
    pk_result_t result = pk_stream_create(&stream), destroyed;

    if (result != PK_OK)
        return result;
    result = pk_allreduce(a, a, count, PK_F32, PK_SUM, comm, stream); /* returns at once */
    if (result == PK_OK)
        result = pk_allreduce(b, b, count, PK_F32, PK_SUM, comm, stream);
    if (result == PK_OK)
        while ((result = pk_stream_query(stream)) == PK_IN_PROGRESS)
            compute_a_little();
    destroyed = pk_stream_destroy(stream);
    return result != PK_OK ? result : destroyed;
}

/* Wait for a stream before its buffers are read. */
static pk_result_t sum_later(pk_comm_t *comm, pk_stream_t stream, float *buffer, size_t count)
{
    pk_result_t result = pk_allreduce(buffer, buffer, count, PK_F32, PK_SUM, comm, stream);

    return result != PK_OK ? result : pk_stream_synchronize(stream);
}

/* ---- inspect.h ---- */

/* How bytes reach another rank, and how an allreduce would be done. */
static pk_result_t show_ways(pk_comm_t *comm, int peer, size_t count)
{
    pk_path_t path = { .struct_size = sizeof path };
    pk_explanation_t how = { .struct_size = sizeof how };
    pk_result_t result = pk_comm_path(comm, peer, PK_MEM_HOST, PK_MEM_HOST, &path);

    if (result != PK_OK)
        return result;
    printf("to rank %d: %s, %s\n", peer, path.transport, path.reason);
    result = pk_explain(comm, PK_OP_ALLREDUCE, count, PK_F32, PK_MEM_HOST, 0, 0, &how);
    if (result == PK_OK)
        printf("allreduce: %s, because %s\n", how.algorithm, how.reason);
    return result;
}

/* What this rank has done and sent so far. */
static pk_result_t show_traffic(pk_comm_t *comm)
{
    pk_stats_t stats = { .struct_size = sizeof stats };
    pk_result_t result = pk_comm_stats(comm, &stats);

    if (result == PK_OK)
        printf("%llu operations, %llu bytes sent\n", (unsigned long long)stats.operations, (unsigned long long)stats.bytes_sent);
    return result;
}

/* A text is cut where it is too long: ask for its length first. */
static pk_result_t show_machine(pk_comm_t *comm)
{
    size_t bytes;
    pk_result_t result = pk_topology_dump(comm, NULL, 0, &bytes);
    char *text = result == PK_OK ? malloc(bytes) : NULL;

    if (text != NULL && pk_topology_dump(comm, text, bytes, NULL) == PK_OK)
        fputs(text, stdout);
    free(text);
    return result;
}

/* For a bug report: the settings, and what is unfinished. */
static pk_result_t show_state(pk_comm_t *comm)
{
    char text[8192];
    pk_result_t result = pk_config_dump(comm, text, sizeof text, NULL);

    if (result != PK_OK)
        return result;
    fputs(text, stderr);
    result = pk_pending_dump(comm, text, sizeof text, NULL);
    if (result == PK_OK)
        fputs(text, stderr);
    return result;
}

static void write_line(void *file, int level, const char *line)
{
    fprintf(file, "pickle, level %d: %s\n", level, line);
}

/* Log into a file of the program's own: write_line(void *file, int level, const char *line) gets each line, and prints it there. */
static void log_into(FILE *file)
{
    pk_log_set_callback(write_line, file);
}

/* ---- the test ---- */

#define RANKS 2
#define COUNT 6

static pk_unique_id_t id, other_id;
static _Atomic int wrong;

static void expect(bool truth, const char *what)
{
    if (truth)
        return;
    wrong++;
    fprintf(stderr, "wrong: %s\n", what);
}

#define WORKS(call) expect((call) == PK_OK, #call)

static pthread_barrier_t both;

static bool keep(const pk_unique_id_t *made)
{
    (void)made;
    return true;
}

static bool refuse(const pk_unique_id_t *made)
{
    (void)made;
    return false;
}

static pk_result_t launch(float *buffer, size_t count)
{
    return buffer != NULL && count == COUNT ? PK_OK : PK_ERR_INTERNAL;
}

static void compute(void)
{
}

static void collectives(pk_comm_t *comm, int rank)
{
    float in[COUNT] = { 1, 2, 3, 4, 5, 6 }, out[COUNT] = { 0 }, loss = (float)rank;
    size_t counts[RANKS], from_counts[RANKS];
    uint64_t to[RANKS] = { 1, 2 }, from[RANKS];

    WORKS(weighted_sum(comm, in, out, COUNT, (float)(rank + 1)));
    expect(out[1] == 6.0f, "2 * (1 + 2)");
    WORKS(after_all_files(comm));
    WORKS(share_weights(comm, in, COUNT));
    WORKS(find_maximum(comm, &loss, out));
    expect(rank != 0 || out[0] == 1.0f, "the maximum of 0 and 1");
    WORKS(average_gradients(comm, in, COUNT));
    expect(in[5] == 6.0f, "the average of 6 and 6");
    memset(out, 0, sizeof out);
    WORKS(step_of_shares(comm, in, in, out, COUNT / RANKS));
    expect(in[5] < 6.0f && in[0] < 1.0f, "all shares were updated");
    WORKS(gather_rows(comm, in, (uint64_t)rank + 1, out, to, counts));
    expect(to[1] == 2 && counts[0] == 1 && out[2] == in[1], "rows of 1 and 2");
    to[0] = 1, to[1] = 2;
    WORKS(dispatch(comm, in, to, out, from, counts, from_counts));
    expect(from_counts[0] == (size_t)rank + 1 && from_counts[1] == (size_t)rank + 1, "from both as many");
    WORKS(collect_losses(comm, &loss, out));
    WORKS(collect_triangle(comm, in, out, counts));
    expect(rank != 0 || (out[0] == in[0] && out[2] == in[1]), "1 and 2 elements");
    WORKS(deal(comm, in, out, COUNT / RANKS));
    expect(out[0] == in[rank * COUNT / RANKS], "an equal part");
    WORKS(deal_unevenly(comm, in, 5, out, counts));
    expect(counts[0] == 3 && out[0] == in[rank * 3], "3 and 2 elements");
}

static void memory_and_streams(pk_comm_t *comm)
{
    float a[COUNT] = { 1 }, b[COUNT] = { 2 };
    pk_stream_t stream;

    WORKS(with_registered(comm, a, COUNT, launch));
    WORKS(sum_in_shared_memory(comm, COUNT));
    expect(sum_in_gpu_memory(comm, COUNT) == PK_ERR_UNSUPPORTED, "this communicator has no GPU");
    WORKS(sum_beside(comm, a, b, COUNT, compute));
    expect(a[0] == 2 && b[0] == 4, "two sums beside");
    WORKS(pk_stream_create(&stream));
    WORKS(sum_later(comm, stream, a, COUNT));
    expect(a[0] == 4, "a sum later");
    WORKS(pk_stream_destroy(stream));
}

static pk_unique_id_t joins_with;

static bool hand_to_other_thread(const pk_unique_id_t *made)
{
    joins_with = *made;
    pthread_barrier_wait(&both);
    return true;
}

/* Rank 0, by itself in `alone`, takes rank 1 in. */
static void grow_and_join(pk_comm_t *alone, int rank)
{
    pk_comm_t *together = NULL;
    float one = 1, sum = 0;

    if (rank != 0)
        pthread_barrier_wait(&both);
    WORKS(rank == 0 ? take_one_in(alone, &together, hand_to_other_thread) : join_others(&together, &joins_with));
    WORKS(pk_allreduce(&one, &sum, 1, PK_F32, PK_SUM, together, PK_BLOCKING));
    expect(sum == RANKS, "two ranks together");
    WORKS(pk_comm_destroy(together));
}

static void *rank_main(void *arg)
{
    int rank = *(int *)arg;
    float mine = (float)rank, theirs = -1;
    uint64_t last = 0;
    pk_comm_t *comm, *half;

    if (accept_invitation(&comm, RANKS, rank, &id) != PK_OK) {
        expect(false, "a communicator");
        return NULL;
    }
    WORKS(pass_on(comm, &mine, &theirs, 1));
    expect(theirs == (float)(1 - rank), "the other's number");
    collectives(comm, rank);
    memory_and_streams(comm);
    WORKS(show_ways(comm, 1 - rank, COUNT));
    WORKS(show_traffic(comm));
    WORKS(show_machine(comm));
    WORKS(show_state(comm));
    pthread_barrier_wait(&both); /* what was called before has ended on both */
    WORKS(go_on_without_the_dead(&comm, &last));
    expect(last == 19, "the last collective");
    WORKS(split_by_parity(comm, &half));
    grow_and_join(half, rank);
    expect(may_go_on(half, false), "goes on");
    expect(!may_go_on(half, true), "has enough");
    pk_comm_destroy(half);
    WORKS(finish(comm, malloc(16)));
    return NULL;
}

int main(void)
{
    int ranks[RANKS] = { 0, 1 };
    pthread_t thread;
    pk_result_t result;

    log_into(stderr);
    list_types();
    explain_failure("nothing", PK_OK);
    result = greet();
    expect(result == PK_OK || result == PK_ERR_UNSUPPORTED, "greet()"); /* no launcher is there */
    WORKS(invite(refuse, &other_id));
    WORKS(invite_from_elsewhere(refuse, &other_id));
    WORKS(invite(keep, &id));
    if (pthread_barrier_init(&both, NULL, RANKS) != 0 || pthread_create(&thread, NULL, rank_main, &ranks[1]) != 0)
        return 1;
    rank_main(&ranks[0]);
    pthread_join(thread, NULL);
    return wrong > 0;
}
