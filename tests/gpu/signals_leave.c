/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank leaves, with nothing unfinished, while another's stream waits for it in a collective that it never comes to: by
 * pk_comm_abort, by pk_comm_destroy, and by the end of its process. The stream is let go long before the deadline, and the
 * error says how the rank has left. Collectives of one kernel a rank exchange no messages: what the rank had come to when it
 * left tells.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_rank.h"

#define TIMEOUT_MS 120000
#define NOTICE_MS 10000

static const size_t lengths[] = { 2, 60000, 5000000 };

#define LONGEST ((size_t)5000000)

static const struct way {
    const char *role;
    pk_result_t wanted;
    const char *text;
} ways[] = { { "aborts", PK_ERR_ABORTED, "has aborted" },
             { "destroys", PK_ERR_PEER, "has destroyed" },
             { "ends", PK_ERR_PEER, "has ended" } };

static const struct way *path_of(const char *role)
{
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (strncmp(role, ways[i].role, strlen(ways[i].role)) == 0)
            return &ways[i];
    exit(2);
}

/* The library has seen it too: nothing is unfinished. */
static bool have_ended(pk_comm_t *comm, uint64_t operations)
{
    pk_stats_t stats = { .struct_size = sizeof stats };
    double until = monotonic_ms() + NOTICE_MS * test_slack();

    while (stats.operations < operations && monotonic_ms() < until && pk_comm_async_error(comm) == PK_OK)
        must_be_ok(pk_comm_stats(comm, &stats), "pk_comm_stats");
    return stats.operations >= operations;
}

static int rank_main(const char *role)
{
    const struct way *way = path_of(role);
    size_t n = lengths[atoi(strchr(role, ' ') + 1)];
    pk_error_info_t info = { .struct_size = sizeof info };
    struct gpu_rank self;
    double took_ms;
    float *memory;

    gpu_rank_open(&self, PK_SM_DEFAULT, TIMEOUT_MS);
    memory = gpu_alloc(LONGEST * sizeof(float));
    for (int i = 0; i < 3; i++)
        must_be_ok(pk_allreduce(memory, memory, n, PK_F32, PK_SUM, self.comm, self.in_stream), "pk_allreduce");
    report(stream_idle_within(self.stream, NOTICE_MS, NULL) && have_ended(self.comm, 3), "rank %d: works", self.rank);
    ranks_meet();
    if (self.rank == 1) {
        if (way->wanted == PK_ERR_ABORTED)
            must_be_ok(pk_comm_abort(self.comm), "pk_comm_abort");
        if (strcmp(way->role, "destroys") == 0)
            must_be_ok(pk_comm_destroy(self.comm), "pk_comm_destroy");
        if (strcmp(way->role, "ends") == 0)
            return report_end();
        ranks_meet();
        return report_end();
    }
    must_be_ok(pk_allreduce(memory, memory, n, PK_F32, PK_SUM, self.comm, self.in_stream), "pk_allreduce that nobody answers");
    report(stream_idle_within(self.stream, NOTICE_MS * test_slack(), &took_ms), "rank 0: the stream is let go after %.0f ms",
           took_ms);
    report(pk_comm_async_error(self.comm) == way->wanted, "rank 0: the communicator knows");
    pk_last_error(&info);
    report(info.peer == 1 && strstr(info.text, way->text) != NULL, "rank 0: peer %d: %s", info.peer, info.text);
    (void)pk_comm_destroy(self.comm);
    if (strcmp(way->role, "ends") != 0)
        ranks_meet();
    gpu_free(memory);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main(ranks_role());
    if (!gpu_enough(2))
        return GPU_SKIPPED;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            char role[32];

            snprintf(role, sizeof role, "%s %zu", ways[i].role, k);
            ranks_drive(&(struct ranks_turn){ .role = role, .size = 2, .timeout_ms = 60000 }, "the rank %s; %zu elements",
                        ways[i].role, lengths[k]);
        }
    return report_end();
}
