/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values by libpickle: an allgather in a host stream, which the library carries on by itself. */
#include "attention.h"

struct ours {
    pk_comm_t *comm;
    pk_stream_t stream;
};

static void fetch(void *state, const float *part, float *parts, size_t elements)
{
    must(pk_allgather(part, parts, elements, PK_F32, ((struct ours *)state)->comm, PK_BLOCKING), "pk_allgather");
}

static void begin(void *state, const float *part, float *parts, size_t elements)
{
    struct ours *ours = state;

    must(pk_allgather(part, parts, elements, PK_F32, ours->comm, ours->stream), "pk_allgather");
}

static void end(void *state)
{
    must(pk_stream_synchronize(((struct ours *)state)->stream), "pk_stream_synchronize");
}

static void close_stream(void *state)
{
    must(pk_stream_destroy(((struct ours *)state)->stream), "pk_stream_destroy");
}

void gather_pickle(struct gather *gather, pk_comm_t *comm)
{
    static struct ours ours;

    ours.comm = comm;
    must(pk_stream_create(&ours.stream), "pk_stream_create");
    *gather = (struct gather){ "libpickle", "pk_allgather in a host stream", &ours, fetch, begin, NULL, end, close_stream };
}
