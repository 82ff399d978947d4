/* SPDX-License-Identifier: Apache-2.0 */
/* A rank sends 2.5 GiB to one on another "host" that receives nothing: the memory of neither grows with it, and both can still leave. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define LONG_BYTES (512u << 10)
#define LONG_SENDS 5120u
#define SHORT_SENDS 5000u
#define GROWTH_KB_MAX (24l << 10)
#define LOOKS 80 /* at the communicator, once all has been posted */
#define LOOK_US 50000
#define LIMIT_MS 240000 /* of a machine that is busy with other things */

/* Words of the shared memory. */
enum { POSTED };

static long resident_kb(void)
{
    char line[256];
    long kb = -1;
    FILE *status = fopen("/proc/self/status", "r");

    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        (void)sscanf(line, "VmRSS: %ld", &kb);
    if (status != NULL)
        fclose(status);
    return kb;
}

static bool send_all(pk_comm_t *comm, const char *bytes, pk_stream_t stream)
{
    for (unsigned i = 0; i < SHORT_SENDS + LONG_SENDS; i++)
        if (pk_send(bytes, i < SHORT_SENDS ? 1000 : LONG_BYTES, PK_INT8, 1, comm, stream) != PK_OK)
            return false;
    return true;
}

static int run_rank(void)
{
    char *bytes = calloc(1, LONG_BYTES);
    bool right = bytes != NULL;
    pk_stream_t stream;
    pk_comm_t *comm;
    long before, after;

    if (!right || pk_comm_init(&comm, NULL) != PK_OK || pk_stream_create(&stream) != PK_OK)
        return 1;
    memset(bytes, 1, LONG_BYTES);
    before = resident_kb();
    if (ranks_rank() == 0)
        right = send_all(comm, bytes, stream);
    if (ranks_rank() == 0)
        atomic_store(&ranks_shared()->words[POSTED], 1);
    for (int i = 0; i < LOOKS && right; i += atomic_load(&ranks_shared()->words[POSTED]) != 0) {
        right = pk_comm_async_error(comm) == PK_OK; /* rank 1 looks after its connections, but asks for nothing */
        usleep(LOOK_US);
    }
    after = resident_kb();
    printf("rank %d: %ld kB before, %ld kB after\n", ranks_rank(), before, after);
    right = right && before > 0 && after - before < GROWTH_KB_MAX;
    ranks_meet();
    (void)pk_comm_abort(comm);
    (void)pk_comm_destroy(comm);
    (void)pk_stream_destroy(stream);
    free(bytes);
    return right ? 0 : 1;
}

int main(void)
{
    if (ranks_role() != NULL)
        return run_rank();
    setenv("PICKLE_TEST_HOSTS", "2", 1);
    setenv("PK_LOG", "error", 1);
    setenv("PK_RETRY_MS", "1000", 1); /* not receiving is no silence */
    ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2, .timeout_ms = LIMIT_MS },
                "2.5 GiB to a rank that does not receive");
    return report_end();
}
