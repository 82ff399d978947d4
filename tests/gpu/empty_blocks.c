/* SPDX-License-Identifier: Apache-2.0 */
/* A sum of fewer elements than ranks by a plan: blocks without elements are messages without bytes, which may be there before a late rank calls. */
#include <stdlib.h>
#include <unistd.h>

#include "gpu_rank.h"

#define LATE_US 20000
#define TURNS 6

static int rank_main(void)
{
    struct gpu_rank self;
    float *x, given, sum;

    setenv("PK_ALGORITHM", "ring", 1);
    gpu_rank_open(&self, PK_SM_DEFAULT, 20000);
    x = gpu_alloc(sizeof *x);
    for (int turn = 0; turn < TURNS; turn++) {
        given = (float)(self.rank + turn);
        gpu_copy(x, &given, sizeof given);
        ranks_meet();
        if (self.rank == turn % 2)
            usleep(LATE_US);
        must_be_ok(pk_allreduce(x, x, 1, PK_F32, PK_SUM, self.comm, self.in_stream), "pk_allreduce");
        report(stream_idle_within(self.stream, 15000, NULL), "rank %d: turn %d: the stream has ended", self.rank, turn);
        gpu_copy(&sum, x, sizeof sum);
        report(sum == (float)(2 * turn + 1), "rank %d: turn %d: the sum is %g", self.rank, turn, (double)sum);
    }
    gpu_free(x);
    gpu_rank_close(&self); /* PK_OK: the library knows as well that all has ended */
    return report_end();
}

int main(void)
{
    return gpu_two_ranks(rank_main, "empty", 60000, "blocks without elements, one rank late");
}
