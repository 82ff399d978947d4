/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values by libpickle: an allgather in the stream that belongs to the memory; the library carries it on by itself. */
#include "attention.h"

struct ours {
    const struct job *job;
    pk_stream_t stream;
};

static void gather(const struct ours *ours, void *parts, size_t elements, pk_stream_t stream)
{
    const struct job *job = ours->job;
    const char *own = (const char *)parts + (size_t)job->shape.rank * elements * job->compute->element_bytes;

    must(pk_allgather(own, parts, elements, job->compute->type, job->comm, stream), "pk_allgather");
}

static void end(void *state)
{
    struct ours *ours = state;

    must(ours->job->compute->stream_wait(ours->job->compute_state), "the stream of the communication");
}

static void begin(void *state, void *parts, size_t elements)
{
    struct ours *ours = state;

    gather(ours, parts, elements, ours->stream);
}

static void fetch(void *state, void *parts, size_t elements)
{
    gather(state, parts, elements, PK_BLOCKING);
}

static void nothing_to_close(void *state)
{
    (void)state;
}

void gather_pickle(struct gather *made, const struct job *job)
{
    static struct ours ours;

    ours = (struct ours){ job, job->compute->stream(job->compute_state) };
    *made = (struct gather){ "libpickle", "pk_allgather in a stream", &ours, fetch, begin, NULL, end, nothing_to_close };
}
