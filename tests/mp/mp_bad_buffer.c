/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A buffer that is not mapped, or that may not be written, in a transfer which the kernel copies between two processes: both ranks are told whose memory it
 * is and that the address is bad, the rank whose call of the kernel failed with its errno, and nobody is said to have died.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define BYTES ((size_t)40 << 20) /* so long that it is never copied twice */

struct bad {
    const char *name;
    int whose;   /* rank */
    size_t from; /* the first byte that is bad */
    int access;  /* of what follows */
    bool collective;
};

static const struct bad bads[] = {
    { "receive buffer not mapped", 1, 0, PROT_NONE, false },
    { "receive buffer not mapped in its second half", 1, BYTES / 2, PROT_NONE, false },
    { "receive buffer read-only", 1, 0, PROT_READ, false },
    { "send buffer not mapped", 0, 0, PROT_NONE, false },
    { "send buffer not mapped at its end", 0, BYTES - 4096, PROT_NONE, false },
    { "broadcast into what is not mapped", 1, 0, PROT_NONE, true },
};

#define BADS (sizeof bads / sizeof *bads)

static char *make_buffer(const struct bad *bad, int rank)
{
    char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED || (rank == bad->whose && mprotect(at + bad->from, BYTES - bad->from, bad->access) != 0))
        abort();
    return at;
}

static pk_result_t transfer(const struct bad *bad, char *buffer, int rank, pk_comm_t *comm)
{
    if (bad->collective)
        return pk_broadcast(buffer, buffer, BYTES, PK_UINT8, 0, comm, PK_BLOCKING);
    return rank == 0 ? pk_send(buffer, BYTES, PK_UINT8, 1, comm, PK_BLOCKING)
                     : pk_recv(buffer, BYTES, PK_UINT8, 0, comm, PK_BLOCKING);
}

static int rank_main(void)
{
    const struct bad *bad = &bads[ranks_shared()->words[0]];
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    int rank = ranks_rank();
    pk_comm_t *comm = NULL;
    pk_result_t result;
    char whose[64];

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 60000;
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "%s: rank %d: init", bad->name, rank))
        return report_end();
    result = transfer(bad, make_buffer(bad, rank), rank, comm);
    pk_last_error(&info);
    snprintf(whose, sizeof whose, "bytes of rank %d's buffer, at 0x", bad->whose);
    report(result == PK_ERR_SYSTEM && info.code == PK_ERR_SYSTEM, "%s: rank %d: result %d", bad->name, rank, (int)result);
    report(strstr(info.text, whose) != NULL && strstr(info.text, strerror(EFAULT)) != NULL, "%s: rank %d: %.300s", bad->name,
           rank, info.text);
    report(info.sys_errno == EFAULT || strstr(info.text, " reports: ") != NULL, "%s: rank %d: errno %d", bad->name, rank,
           info.sys_errno);
    (void)pk_comm_destroy(comm);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    unsetenv("PICKLE_TEST_TUNING");
    unsetenv("PK_HOST_ID");
    for (size_t i = 0; i < BADS; i++)
        ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2, .word = (int64_t)i }, "%s", bads[i].name);
    return report_end();
}
