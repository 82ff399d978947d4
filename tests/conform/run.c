/* SPDX-License-Identifier: Apache-2.0 */
/* One case of the list on one rank: buffers, the operations, what must be in the buffers afterwards. */
#include "conform.h"

#include <string.h>

#include "cuda_dl.h"

#define MESSAGES 24 /* of "many" */
#define MEMORY_MAX ((size_t)96 << 20)
#define ODD_BYTES 3

uint64_t work_key(const struct work *w, int rank, unsigned tag)
{
    /* Repeated reductions of the same data must give the same bits. */
    unsigned round = is_reduction(w->item->op) ? 0 : w->round;

    return data_key(w->rank->config->seed, w->item->number, round, rank, tag);
}

void work_verify(const struct work *w, const char *got, size_t bytes, int from, unsigned tag)
{
    size_t where;

    if (!data_equal(got, bytes, work_key(w, from, tag), &where))
        fail(w->rank, "round %u: message %u from rank %d (%zu bytes) is wrong from byte %zu on", w->round, tag, from, bytes,
             where);
}

static int next_rank(const struct work *w)
{
    return (w->rank->rank + 1) % w->rank->size;
}

static int previous_rank(const struct work *w)
{
    return (w->rank->rank + w->rank->size - 1) % w->rank->size;
}

pk_stream_t work_stream(const struct work *w)
{
    return w->rank->streams[w->item->ending];
}

static pk_result_t send_bytes(const struct work *w, const void *buffer, size_t bytes, int peer)
{
    return pk_send(buffer, bytes / pk_dtype_size(w->item->dtype), w->item->dtype, peer, w->rank->comm, work_stream(w));
}

static pk_result_t receive_bytes(const struct work *w, void *buffer, size_t bytes, int peer)
{
    return pk_recv(buffer, bytes / pk_dtype_size(w->item->dtype), w->item->dtype, peer, w->rank->comm, work_stream(w));
}

/* The first error of a list of calls that all have been made. */
static pk_result_t first_of(pk_result_t a, pk_result_t b)
{
    return a != PK_OK ? a : b;
}

static size_t one_message(const struct work *w)
{
    return w->bytes;
}

static size_t message_a_rank(const struct work *w)
{
    return w->bytes * (size_t)w->rank->size;
}

static void fill_message(const struct work *w, char *source, char *result)
{
    (void)result;
    data_fill(source, w->bytes, work_key(w, w->rank->rank, 0));
}

/* --- pingpong: even ranks send, their odd neighbours send back what came --- */

static int partner_of(const struct work *w)
{
    int partner = w->rank->rank ^ 1;

    return partner < w->rank->size ? partner : -1;
}

static pk_result_t post_pingpong(const struct work *w, char *source, char *result)
{
    int partner = partner_of(w);
    pk_result_t first;

    if (partner < 0)
        return PK_OK;
    if (w->rank->rank % 2 == 0) {
        first = send_bytes(w, source, w->bytes, partner);
        return first_of(first, receive_bytes(w, result, w->bytes, partner));
    }
    first = receive_bytes(w, result, w->bytes, partner);
    return first_of(first, send_bytes(w, result, w->bytes, partner));
}

static void verify_pingpong(const struct work *w, const char *source, const char *result)
{
    (void)source;
    if (partner_of(w) >= 0)
        work_verify(w, result, w->bytes, w->rank->rank & ~1, 0);
}

/* --- ring, and self: send and receive in one group --- */

static pk_result_t post_ring(const struct work *w, char *source, char *result)
{
    pk_result_t first = pk_group_start();

    first = first_of(first, send_bytes(w, source, w->bytes, next_rank(w)));
    first = first_of(first, receive_bytes(w, result, w->bytes, previous_rank(w)));
    return first_of(first, pk_group_end());
}

static void verify_ring(const struct work *w, const char *source, const char *result)
{
    (void)source;
    work_verify(w, result, w->bytes, previous_rank(w), 0);
}

static pk_result_t post_self(const struct work *w, char *source, char *result)
{
    pk_result_t first = pk_group_start();

    first = first_of(first, receive_bytes(w, result, w->bytes, w->rank->rank));
    first = first_of(first, send_bytes(w, source, w->bytes, w->rank->rank));
    return first_of(first, pk_group_end());
}

static void verify_self(const struct work *w, const char *source, const char *result)
{
    (void)source;
    work_verify(w, result, w->bytes, w->rank->rank, 0);
}

/* --- many: messages of different sizes in flight between the same two ranks --- */

static size_t many_bytes(const struct work *w, unsigned k)
{
    return w->item->count / (k % 7 + 1) / (k < 4 ? 1 : 16) * pk_dtype_size(w->item->dtype);
}

static size_t many_total(const struct work *w)
{
    size_t total = 0;

    for (unsigned k = 0; k < MESSAGES; k++)
        total += many_bytes(w, k);
    return total;
}

static void fill_many(const struct work *w, char *source, char *result)
{
    (void)result;
    for (unsigned k = 0; k < MESSAGES; k++) {
        data_fill(source, many_bytes(w, k), work_key(w, w->rank->rank, k));
        source += many_bytes(w, k);
    }
}

static pk_result_t post_many(const struct work *w, char *source, char *result)
{
    pk_result_t first = pk_group_start();

    for (unsigned k = 0; k < MESSAGES; k++) {
        first = first_of(first, send_bytes(w, source, many_bytes(w, k), next_rank(w)));
        source += many_bytes(w, k);
    }
    for (unsigned k = 0; k < MESSAGES; k++) {
        first = first_of(first, receive_bytes(w, result, many_bytes(w, k), previous_rank(w)));
        result += many_bytes(w, k);
    }
    return first_of(first, pk_group_end());
}

static void verify_many(const struct work *w, const char *source, const char *result)
{
    (void)source;
    for (unsigned k = 0; k < MESSAGES; k++) {
        work_verify(w, result, many_bytes(w, k), previous_rank(w), k);
        result += many_bytes(w, k);
    }
}

/* --- exchange: every rank with every rank, itself too, in groups that nest --- */

static void fill_exchange(const struct work *w, char *source, char *result)
{
    (void)result;
    for (int peer = 0; peer < w->rank->size; peer++)
        data_fill(source + (size_t)peer * w->bytes, w->bytes, work_key(w, w->rank->rank, (unsigned)peer));
}

static pk_result_t post_exchange(const struct work *w, char *source, char *result)
{
    pk_result_t first = pk_group_start();

    for (int peer = 0; peer < w->rank->size; peer++) {
        size_t at = (size_t)peer * w->bytes;

        first = first_of(first, pk_group_start());
        first = first_of(first, send_bytes(w, source + at, w->bytes, peer));
        first = first_of(first, receive_bytes(w, result + at, w->bytes, peer));
        first = first_of(first, pk_group_end());
    }
    return first_of(first, pk_group_end());
}

static void verify_exchange(const struct work *w, const char *source, const char *result)
{
    (void)source;
    for (int peer = 0; peer < w->rank->size; peer++)
        work_verify(w, result + (size_t)peer * w->bytes, w->bytes, peer, (unsigned)w->rank->rank);
}

/* --- mixed: an allgather in a group with a ring --- */

static size_t mixed_result(const struct work *w)
{
    return message_a_rank(w) + w->bytes;
}

static pk_result_t post_mixed(const struct work *w, char *source, char *result)
{
    pk_result_t first = pk_group_start();

    first = first_of(first, send_bytes(w, source, w->bytes, next_rank(w)));
    first = first_of(first, pk_allgather(source, result, w->item->count, w->item->dtype, w->rank->comm, work_stream(w)));
    first = first_of(first, receive_bytes(w, result + message_a_rank(w), w->bytes, previous_rank(w)));
    return first_of(first, pk_group_end());
}

static void verify_mixed(const struct work *w, const char *source, const char *result)
{
    (void)source;
    for (int peer = 0; peer < w->rank->size; peer++)
        work_verify(w, result + (size_t)peer * w->bytes, w->bytes, peer, 0);
    work_verify(w, result + message_a_rank(w), w->bytes, previous_rank(w), 0);
}

static const struct kind kinds[] = {
    [OP_PINGPONG] = { one_message, one_message, fill_message, post_pingpong, verify_pingpong },
    [OP_RING] = { one_message, one_message, fill_message, post_ring, verify_ring },
    [OP_MANY] = { many_total, many_total, fill_many, post_many, verify_many },
    [OP_EXCHANGE] = { message_a_rank, message_a_rank, fill_exchange, post_exchange, verify_exchange },
    [OP_SELF] = { one_message, one_message, fill_message, post_self, verify_self },
    [OP_MIXED] = { one_message, mixed_result, fill_message, post_mixed, verify_mixed },
};

static const struct kind *kind_of(enum op op)
{
    return op < OP_BARRIER ? &kinds[op] : op == OP_BARRIER ? &barrier_kind : &coll_kind;
}

static void open_work(struct work *w, const struct kind *kind)
{
    const struct item *item = w->item;
    size_t width = pk_dtype_size(item->dtype);
    size_t source_bytes, result_bytes, misalign;

    w->bytes = item->count * width;
    w->rounds = is_reduction(item->op) && item->rounds < 2 ? 2 : item->rounds;
    source_bytes = kind->source_bytes(w);
    result_bytes = kind->result_bytes(w);
    /* By what the rank with most needs: a root has more than the others, and all have to do as many rounds. */
    while (w->rounds > 2 && w->rounds * (w->bytes + message_a_rank(w)) > MEMORY_MAX)
        w->rounds--;
    misalign = item->misalign == BY_ELEMENT ? width : item->misalign == BY_BYTES ? ODD_BYTES : 0;
    for (w->round = 0; w->round < w->rounds; w->round++) {
        struct buffer *source = &w->sources[w->round];
        struct buffer *result = &w->results[w->round];

        buffer_open(source, item->place, source_bytes, misalign);
        buffer_open(result, item->place, result_bytes, misalign);
        memset(buffer_view(source), POISON, source_bytes);
        memset(buffer_view(result), POISON, result_bytes);
        kind->fill(w, buffer_view(source), buffer_view(result));
        buffer_push(source);
        buffer_push(result);
    }
}

/* This rank's, where every other case wants it in the GPU's memory. */
static void open_factor(struct work *w)
{
    bool on_gpu = w->rank->config->cuda && w->item->number % 2 == 0;

    if (w->item->reduction != REDUCTION_PREMUL)
        return;
    buffer_open(&w->factor, on_gpu ? PLACE_DEVICE : PLACE_HOST, pk_dtype_size(w->item->dtype), 0);
    data_factor(buffer_view(&w->factor), w->item->dtype, w->rank->rank);
    buffer_push(&w->factor);
}

static void close_work(struct work *w)
{
    if (w->item->reduction == REDUCTION_PREMUL)
        buffer_close(&w->factor);
    for (unsigned i = 0; i < w->rounds; i++) {
        buffer_close(&w->sources[i]);
        buffer_close(&w->results[i]);
    }
}

/* Freeing GPU memory waits for every stream of the process, and keeps other threads out of the driver meanwhile: also the one that does for another
 * rank of this process what its stream waits for. */
static void await_others(struct rank *rank)
{
    uint8_t own = 0, all[RANKS_MAX];

    share(rank, &own, all, sizeof own);
}

static void finish_stream(struct rank *rank, enum ending ending)
{
    if (ending == END_HOST)
        expect(rank, pk_stream_synchronize(rank->streams[END_HOST]), PK_OK, "pk_stream_synchronize");
    if (ending == END_CUDA) {
        int code = gpu_stream_sync(rank->streams[END_CUDA].handle);

        if (code != 0)
            fail(rank, "cuStreamSynchronize: %s", gpu_error(code));
        expect(rank, pk_comm_async_error(rank->comm), PK_OK, "pk_comm_async_error after the stream");
    }
}

static void verify_round(struct work *w, const struct kind *kind)
{
    struct buffer *source = &w->sources[w->round];
    struct buffer *result = &w->results[w->round];

    buffer_pull(source);
    buffer_pull(result);
    if (!buffer_guards(source) || !buffer_guards(result))
        fail(w->rank, "round %u: bytes around a buffer were written", w->round);
    kind->verify(w, buffer_view(source), buffer_view(result));
}

static void post_all(struct work *w, const struct kind *kind)
{
    struct rank *rank = w->rank;

    if (w->item->grouped)
        expect(rank, pk_group_start(), PK_OK, "pk_group_start");
    for (w->round = 0; w->round < w->rounds; w->round++)
        expect(rank, kind->post(w, w->sources[w->round].data, w->results[w->round].data), PK_OK, "the operation");
    if (w->item->grouped)
        expect(rank, pk_group_end(), PK_OK, "pk_group_end");
}

void run_item(struct rank *rank, const struct item *item)
{
    const struct kind *kind = kind_of(item->op);
    struct work w = { .rank = rank, .item = item };
    char what[WHAT_BYTES];
    uint64_t sent[ROUNDS_MAX];
    uint64_t digest = 0;

    describe(item, what);
    if (!selected(rank, what))
        return;
    begin_case(rank, what);
    open_work(&w, kind);
    for (w.round = 0; w.round < w.rounds; w.round++)
        sent[w.round] = data_digest(buffer_view(&w.sources[w.round]), w.sources[w.round].bytes);
    open_factor(&w);
    post_all(&w, kind);
    finish_stream(rank, item->ending);
    for (w.round = 0; w.round < w.rounds && rank->ok; w.round++) {
        verify_round(&w, kind);
        if (data_digest(buffer_view(&w.sources[w.round]), w.sources[w.round].bytes) != sent[w.round])
            fail(rank, "round %u: the send buffer was written", w.round);
    }
    if (is_same_everywhere(item->op))
        digest = data_digest(buffer_view(&w.results[0]), w.results[0].bytes);
    if (item->place == PLACE_DEVICE)
        await_others(rank);
    close_work(&w);
    end_case(rank, what, true, digest);
}
