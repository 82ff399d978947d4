/* SPDX-License-Identifier: Apache-2.0 */
/* The messages, by libpickle: f32, whose values tell of the rank and the place that they come from. */
#include "overlap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD ((size_t)4 << 20)    /* values, after which they come again */
#define LOOKED_AT ((size_t)1 << 18) /* values at each of PLACES */
#define PLACES 5
#define LARGE_PAGE ((size_t)2 << 20)

/* Random fractions of numbers from 1 to 2: zeros would draw less power. */
static float value(int rank, size_t i)
{
    uint32_t x = (uint32_t)(i % PERIOD) * 2654435761u + (uint32_t)rank * 40503u + 7;
    float out;

    x = (x ^ x >> 15) * 2246822519u;
    x = 0x3f800000u | (x ^ x >> 13) >> 9;
    memcpy(&out, &x, sizeof out);
    return out;
}

bool overlap_is_zero(const struct overlap_case *c)
{
    return c->operation != OVERLAP_ALLREDUCE;
}

double overlap_leaving(const struct overlap_run *run, const struct overlap_case *c)
{
    double n = run->size, bytes = (double)c->bytes;

    switch (c->operation) {
    case OVERLAP_ALLGATHER:
        return (n - 1) * bytes;
    case OVERLAP_ALLREDUCE:
        return 2 * (n - 1) / n * bytes;
    default:
        return bytes;
    }
}

static void post(struct overlap_run *run, const struct overlap_case *c)
{
    size_t count = c->bytes / sizeof(float);
    pk_stream_t stream = PK_CUDA_STREAM(run->message_stream);
    int next = (run->rank + 1) % run->size, before = (run->rank + run->size - 1) % run->size;

    switch (c->operation) {
    case OVERLAP_ALLREDUCE:
        overlap_must(pk_allreduce(run->source, run->result, count, PK_F32, PK_SUM, run->some, stream), "pk_allreduce");
        return;
    case OVERLAP_ALLGATHER:
        overlap_must(pk_allgather(run->result + (size_t)run->rank * c->bytes, run->result, count, PK_F32, run->zero, stream),
                     "pk_allgather");
        return;
    default:
        break;
    }
    overlap_must(pk_group_start(), "pk_group_start");
    if (c->operation == OVERLAP_SENDRECV || run->rank == 0)
        overlap_must(pk_send(run->source, count, PK_F32, next, run->zero, stream), "pk_send");
    if (c->operation == OVERLAP_SENDRECV || run->rank == 1)
        overlap_must(pk_recv(run->result, count, PK_F32, before, run->zero, stream), "pk_recv");
    overlap_must(pk_group_end(), "pk_group_end");
}

void overlap_pickle(struct overlap_run *run, struct overlap_side *side, const struct overlap_case *c)
{
    static const pk_op_kind_t operations[OVERLAP_OPERATIONS] = { PK_OP_SEND, PK_OP_SEND, PK_OP_ALLGATHER, PK_OP_ALLREDUCE };
    pk_explanation_t e = { .struct_size = sizeof e };
    pk_comm_t *comm = overlap_is_zero(c) ? run->zero : run->some;
    pk_result_t result = pk_explain(comm, operations[c->operation], c->bytes / sizeof(float), PK_F32, PK_MEM_DEVICE,
                                    c->operation == OVERLAP_ALLGATHER, (run->rank + 1) % run->size, &e);

    *side = (struct overlap_side){ .name = "libpickle", .post = post };
    snprintf(side->how, sizeof side->how, "%.31s over %.31s, %d SMs", result == PK_OK ? e.algorithm : "?", e.transports, e.sms);
}

static void fill_source(struct overlap_run *run, char *to, size_t bytes)
{
    size_t once = PERIOD * sizeof(float) < bytes ? PERIOD * sizeof(float) : bytes;
    float *block = malloc(once);

    if (block == NULL)
        abort();
    for (size_t i = 0; i < once / sizeof *block; i++)
        block[i] = value(run->rank, i);
    for (size_t at = 0; at < bytes; at += once)
        gpu_copy(to + at, block, bytes - at < once ? bytes - at : once);
    free(block);
}

void overlap_fill(struct overlap_run *run, const struct overlap_case *c)
{
    bool gathers = c->operation == OVERLAP_ALLGATHER;

    gpu_fill(run->result, 0xff, gathers ? (size_t)run->size * c->bytes : c->bytes); /* not numbers */
    fill_source(run, gathers ? run->result + (size_t)run->rank * c->bytes : run->source, c->bytes);
    if (gathers)
        fill_source(run, run->source, c->bytes); /* for who does it out of place */
    overlap_share(run, "", NULL, 0);
}

static double expected(const struct overlap_run *run, const struct overlap_case *c, int block, size_t i)
{
    double all = 0;

    if (c->operation == OVERLAP_ALLGATHER)
        return (double)value(block, i);
    if (c->operation != OVERLAP_ALLREDUCE)
        return (double)value((run->rank + run->size - 1) % run->size, i);
    for (int r = 0; r < run->size; r++)
        all += (double)value(r, i);
    return all;
}

static uint64_t check_place(struct overlap_run *run, const struct overlap_case *c, int block, size_t first, size_t count)
{
    float *got = malloc(count * sizeof *got);
    uint64_t wrong = 0;

    if (got == NULL)
        abort();
    gpu_copy(got, run->result + (size_t)block * c->bytes + first * sizeof *got, count * sizeof *got);
    if (run->options.spoil)
        got[count / 2] = -1;
    for (size_t i = 0; i < count; i++)
        wrong += !(fabs((double)got[i] - expected(run, c, block, first + i)) <= (c->operation == OVERLAP_ALLREDUCE ? 1e-5 : 0));
    free(got);
    return wrong;
}

uint64_t overlap_check(struct overlap_run *run, const struct overlap_case *c)
{
    int blocks = c->operation == OVERLAP_ALLGATHER ? run->size : 1;
    size_t count = c->bytes / sizeof(float), here = count < LOOKED_AT ? count : LOOKED_AT;
    uint64_t wrong = 0;

    if (c->operation == OVERLAP_ONEWAY && run->rank != 1)
        return 0;
    for (int b = 0; b < blocks; b++)
        for (size_t place = 0; place < PLACES; place++)
            wrong += check_place(run, c, b, (count - here) / (PLACES - 1) * place, here);
    return wrong;
}

void overlap_message_wait(struct overlap_run *run, const char *what)
{
    int code = gpu_stream_sync(run->message_stream);

    if (code != 0)
        overlap_fail("%s: the stream failed: %s", what, gpu_error(code));
    overlap_must(pk_comm_async_error(run->zero), what);
    overlap_must(pk_comm_async_error(run->some), what);
}

/* Whole large pages: a GPU maps what is left over in small ones, and copies both ways at once are then slower. */
static size_t whole_pages(size_t bytes)
{
    return (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
}

void overlap_messages_open(struct overlap_run *run)
{
    const struct overlap_options *o = &run->options;
    size_t largest = 0, all_parts = 0;

    for (int i = 0; i < o->case_count; i++) {
        size_t all = o->cases[i].operation == OVERLAP_ALLGATHER ? (size_t)run->size * o->cases[i].bytes : o->cases[i].bytes;

        largest = o->cases[i].bytes > largest ? o->cases[i].bytes : largest;
        all_parts = all > all_parts ? all : all_parts;
    }
    run->message_stream = o->first ? gpu_stream_new_first() : gpu_stream_new();
    run->source_bytes = whole_pages(largest);
    run->result_bytes = whole_pages(all_parts);
    run->source = overlap_message_alloc(run->source_bytes);
    run->result = overlap_message_alloc(run->result_bytes);
}

void overlap_messages_close(struct overlap_run *run)
{
    overlap_message_free(run->source);
    overlap_message_free(run->result);
    gpu_stream_free(run->message_stream);
}
