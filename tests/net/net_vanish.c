/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a job whose hosts lose one of them (hosts.sh -d): it adds numbers up until that fails. Right is PK_ERR_PEER, long before the
 * deadline (PK_RETRY_MS), on every rank, those on the lost host too. Then the ranks that reach each other go on: two together, and the one on
 * the lost host by itself.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define COUNT 100000
#define DEADLINE_MS 60000

/* Returns whether those that should have gone on. */
static bool go_on(pk_comm_t *comm)
{
    pk_comm_t *smaller = NULL;
    int32_t one = 1, sum = 0;
    uint64_t last = 0;
    int rank, size, dead = 0;
    const double begin = monotonic_ms();
    pk_result_t result;

    pk_comm_rank(comm, &rank);
    pk_comm_size(comm, &size);
    (void)pk_comm_revoke(comm);
    result = pk_comm_agree(comm, 0, NULL, NULL, &dead, &last);
    if (result == PK_OK)
        result = pk_comm_shrink(comm, 0, NULL, 0, &smaller, NULL);
    if (result == PK_OK)
        result = pk_allreduce(&one, &sum, 1, PK_INT32, PK_SUM, smaller, PK_BLOCKING);
    printf("%s %d of %d ranks are dead, %d go on behind collective %llu, after %.0f ms\n", pk_strerror(result), dead, size,
           (int)sum, (unsigned long long)last, monotonic_ms() - begin);
    if (smaller != NULL)
        (void)pk_comm_destroy(smaller);
    return result == PK_OK && sum == (rank == size - 1 ? 1 : size - 1) && dead == size - sum;
}

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
    if (!go_on(comm))
        return 1;
    (void)pk_comm_destroy(comm);
    return 0;
}
