/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks on two "hosts" that want different sockets, windows and chunks; and one that takes its time to receive: every byte right, and the
 * memory of neither grows with what waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define WORDS_MAX ((1u << 20) + 1) /* of 4 bytes; the longest exchange, of round 13 */
#define ROUNDS 24
#define MESSAGES 96 /* for the slow reader, of a length each */
#define PAUSE_US 3000
#define GROWTH_KB_MAX (24l << 10)

static const struct {
    const char *sockets, *window, *chunk;
} wishes[] = { { "4", "16", "524288" }, { "2", "3", "65536" }, { "7", "1", "1048576" } };

static uint32_t word(int rank, unsigned round, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 97u + round * 31u;

    return (x ^ x >> 13) & 0xffffff;
}

static void fill(uint32_t *out, int rank, unsigned round, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = word(rank, round, i);
}

static bool holds(const uint32_t *in, int rank, unsigned round, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (in[i] != word(rank, round, i))
            return false;
    return true;
}

/* Both ways at once, then a sum; lengths around all limits. */
static bool exchange(pk_comm_t *comm, int rank, unsigned round, uint32_t *out, uint32_t *in)
{
    size_t count = round % 3 == 0 ? 1 + round * 4099u : round % 3 == 1 ? (16384u << round % 7) + round % 2 : 1 + round * 43691u;

    fill(out, rank, round, count);
    if (pk_group_start() != PK_OK || pk_send(out, count, PK_INT32, 1 - rank, comm, PK_BLOCKING) != PK_OK ||
        pk_recv(in, count, PK_INT32, 1 - rank, comm, PK_BLOCKING) != PK_OK || pk_group_end() != PK_OK ||
        !holds(in, 1 - rank, round, count))
        return false;
    if (pk_allreduce(out, in, count, PK_INT32, PK_SUM, comm, PK_BLOCKING) != PK_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        if (in[i] != word(0, round, i) + word(1, round, i))
            return false;
    return true;
}

static bool talk(pk_comm_t *comm, int rank, uint32_t *out, uint32_t *in)
{
    bool right = true;

    for (unsigned round = 0; round < ROUNDS && right; round++)
        right = exchange(comm, rank, round, out, in);
    return right;
}

static long resident_kb(void)
{
    long pages = 0, unused;
    FILE *file = fopen("/proc/self/statm", "r");

    if (file == NULL || fscanf(file, "%ld %ld", &unused, &pages) != 2)
        pages = -1;
    if (file != NULL)
        fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) >> 10);
}

/* All are sent at once, in a stream; rank 1 does something else between any two receives. */
static bool read_slowly(pk_comm_t *comm, int rank, uint32_t *out, uint32_t *in)
{
    long before = resident_kb(), most = before;
    bool right = before > 0;
    pk_stream_t stream;

    if (pk_stream_create(&stream) != PK_OK)
        return false;
    fill(out, 0, 1, WORDS_MAX);
    for (int i = 0; i < MESSAGES && right; i++) {
        size_t count = (size_t)8192 << i % 8; /* 32 KiB to 4 MiB */

        if (rank == 0) {
            right = pk_send(out, count, PK_INT32, 1, comm, stream) == PK_OK;
        } else {
            long now = resident_kb();

            usleep(PAUSE_US);
            right = pk_recv(in, count, PK_INT32, 0, comm, PK_BLOCKING) == PK_OK && holds(in, 0, 1, count);
            most = now > most ? now : most;
        }
    }
    right = pk_stream_synchronize(stream) == PK_OK && right;
    most = resident_kb() > most ? resident_kb() : most;
    printf("rank %d: %ld kB before, %ld kB at most\n", rank, before, most);
    (void)pk_stream_destroy(stream);
    return right && most - before < GROWTH_KB_MAX;
}

static int run_rank(void)
{
    int rank = ranks_rank();
    size_t wish = (size_t)(atomic_load(&ranks_shared()->words[0]) + rank) % (sizeof wishes / sizeof *wishes);
    uint32_t *out = malloc(WORDS_MAX * sizeof *out), *in = malloc(WORDS_MAX * sizeof *in);
    pk_comm_t *comm;
    bool right = out != NULL && in != NULL;

    setenv("PK_SOCKETS", wishes[wish].sockets, 1);
    setenv("PK_WINDOW", wishes[wish].window, 1);
    setenv("PK_CHUNK_BYTES", wishes[wish].chunk, 1);
    if (!right || pk_comm_init(&comm, NULL) != PK_OK)
        return 1;
    memset(out, 1, WORDS_MAX * sizeof *out);
    memset(in, 1, WORDS_MAX * sizeof *in);
    right = talk(comm, rank, out, in) && read_slowly(comm, rank, out, in);
    right = pk_comm_destroy(comm) == PK_OK && right;
    free(out);
    free(in);
    return right ? 0 : 1;
}

int main(void)
{
    if (ranks_role() != NULL)
        return run_rank();
    setenv("PICKLE_TEST_HOSTS", "2", 1);
    setenv("PK_LOG", "error", 1);
    for (int turn = 0; turn < (int)(sizeof wishes / sizeof *wishes); turn++)
        ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2, .word = turn }, "settings %d and %d", turn, (turn + 1) % 3);
    return report_end();
}
