/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values by libpickle: an allgather in the stream that belongs to the memory; the library carries it on by itself. */
#include "attention.h"

struct ours {
    pk_comm_t *comm;
    const struct compute *compute;
    void *compute_state;
    pk_stream_t stream;
};

static void end(void *state)
{
    struct ours *ours = state;

    must(ours->compute->stream_wait(ours->compute_state), "the stream of the communication");
}

static void begin(void *state, const float *part, float *parts, size_t elements)
{
    struct ours *ours = state;

    must(pk_allgather(part, parts, elements, PK_F32, ours->comm, ours->stream), "pk_allgather");
}

static void fetch(void *state, const float *part, float *parts, size_t elements)
{
    must(pk_allgather(part, parts, elements, PK_F32, ((struct ours *)state)->comm, PK_BLOCKING), "pk_allgather");
}

static void nothing_to_close(void *state)
{
    (void)state;
}

void gather_pickle(struct gather *gather, pk_comm_t *comm, const struct compute *compute, void *compute_state)
{
    static struct ours ours;

    ours = (struct ours){ comm, compute, compute_state, compute->stream(compute_state) };
    *gather = (struct gather){ "libpickle", "pk_allgather in a stream", &ours, fetch, begin, NULL, end, nothing_to_close };
}
