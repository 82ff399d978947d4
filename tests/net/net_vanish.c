/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a job whose hosts lose one of them (hosts.sh -d): it adds numbers up until that fails. Right is PK_ERR_PEER, long before the
 * deadline (PK_RETRY_MS), on every rank, those on the lost host too.
 */
#include <stdio.h>
#include <stdlib.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define COUNT 100000
#define DEADLINE_MS 60000

int main(void)
{
    static float in[COUNT], out[COUNT];
    double last;
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t error = { .struct_size = sizeof error };
    pk_comm_t *comm;
    pk_result_t result;
    unsigned rounds = 0;

    config.timeout_ms = DEADLINE_MS;
    result = pk_comm_init(&comm, &config);
    if (result != PK_OK)
        return 1;
    do {
        last = monotonic_ms();
        result = pk_allreduce(in, out, COUNT, PK_F32, PK_SUM, comm, PK_BLOCKING);
        rounds += result == PK_OK;
    } while (result == PK_OK);
    (void)pk_last_error(&error);
    printf("%s after %u rounds and %.0f ms: %s\n", pk_strerror(result), rounds, monotonic_ms() - last, error.text);
    if (rounds == 0 || result != PK_ERR_PEER || monotonic_ms() - last > DEADLINE_MS / 2)
        return 1;
    (void)pk_comm_destroy(comm);
    return 0;
}
