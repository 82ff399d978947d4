/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank on another host ends in the middle of the work, without a word: the others' errors name it, have an errno and say what was seen.
 * "Hosts" are names on the loopback interface.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 3
#define VICTIM 1
#define COUNT 50000
#define ROUNDS 20

static pk_result_t work(pk_comm_t *comm, int rounds)
{
    static float in[COUNT], out[COUNT];
    pk_result_t result = PK_OK;

    for (int i = 0; i < rounds && result == PK_OK; i++)
        result = pk_allreduce(in, out, COUNT, PK_F32, PK_SUM, comm, PK_BLOCKING);
    return result;
}

static void rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL;
    int rank = ranks_rank();
    pk_result_t result;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 30000;
    if (!report(pk_comm_init(&comm, &config) == PK_OK && work(comm, ROUNDS) == PK_OK, "rank %d works", rank))
        return;
    if (rank == VICTIM)
        _exit(0);
    result = work(comm, 1 << 20);
    (void)pk_last_error(&info);
    report(result == PK_ERR_PEER && info.peer == VICTIM, "rank %d: %d, peer %d: %s", rank, (int)result, info.peer, info.text);
    report(strstr(info.text, "nobody listens at 127.0.0.1:") != NULL, "rank %d: the text has the address", rank);
    report(strstr(info.text, strerror(ECONNRESET)) != NULL, "rank %d: the text has the cause", rank);
    if (strstr(info.text, " reports: ") == NULL) /* else it is another rank's errno */
        report(info.sys_errno == ECONNRESET, "rank %d: errno %d", rank, info.sys_errno);
    (void)pk_comm_destroy(comm);
}

int main(void)
{
    if (ranks_role() != NULL) {
        rank_main();
        return report_end();
    }
    setenv("PICKLE_TEST_HOSTS", "3", 1); /* SIZE: a host each */
    ranks_drive(&(struct ranks_turn){ .role = "exit", .size = SIZE }, "a rank ends");
    return report_end();
}
