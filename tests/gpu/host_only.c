/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator that asks for no GPU leaves the driver alone: it would make threads and descriptors, and take its time. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pickle/pickle.h"
#include "ranks.h"

static bool driver_is_loaded(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[4096];
    bool found = false;

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        found = found || strstr(line, "/libcuda.so") != NULL;
    if (maps != NULL)
        fclose(maps);
    return found;
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    float mine = 1, sum = 0;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 30000;
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "rank %d: init", ranks_rank()))
        return report_end();
    report(pk_allreduce(&mine, &sum, 1, PK_F32, PK_SUM, comm, PK_BLOCKING) == PK_OK && sum == 2, "rank %d: the sum is %g",
           ranks_rank(), (double)sum);
    report(!driver_is_loaded(), "rank %d: the driver is not loaded", ranks_rank());
    report(pk_comm_destroy(comm) == PK_OK, "rank %d: destroy", ranks_rank());
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2 }, "two ranks without a GPU");
    return report_end();
}
