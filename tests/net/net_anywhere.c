/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ids made by each rank in turn, of hosts that know one another's addresses from nowhere but the id: rank 0 is on the first
 * host. Started as ranks of a launcher, whose communicator carries the ids.
 */
#include <stdio.h>
#include <stdlib.h>

#include "pickle/pickle.h"

static int fail(const char *what, int maker)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    (void)pk_last_error(&info);
    printf("FAIL %s, made by %d: %s\n", what, maker, info.text);
    return 1;
}

static int meet(pk_comm_t *all, int rank, int size, int maker)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_unique_id_t id;
    pk_comm_t *comm;
    int mine = rank + 1, sum = 0;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    if (rank == maker && pk_get_unique_id_anywhere(&id) != PK_OK)
        return fail("pk_get_unique_id_anywhere", maker);
    if (pk_broadcast(&id, &id, sizeof id, PK_UINT8, maker, all, PK_BLOCKING) != PK_OK)
        return fail("pk_broadcast", maker);
    if (pk_comm_init_rank(&comm, size, rank, &id, &config) != PK_OK)
        return fail("pk_comm_init_rank", maker);
    if (pk_allreduce(&mine, &sum, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING) != PK_OK)
        return fail("pk_allreduce", maker);
    printf("%s rank %d: made by %d: the sum is %d\n", sum == size * (size + 1) / 2 ? "PASS" : "FAIL", rank, maker, sum);
    return pk_comm_destroy(comm) != PK_OK || sum != size * (size + 1) / 2;
}

int main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *all;
    int rank, size, failed = 0;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    if (pk_comm_init(&all, &config) != PK_OK || pk_comm_rank(all, &rank) != PK_OK || pk_comm_size(all, &size) != PK_OK)
        return fail("pk_comm_init", -1);
    for (int maker = 0; maker < size && failed == 0; maker++)
        failed = meet(all, rank, size, maker);
    return pk_comm_destroy(all) != PK_OK || failed != 0;
}
