/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One of two ranks on a host that send, and sum, a MiB of host memory. ways.py runs rank 0 under a debugger, which reads the four variables at
 * way_begin, and looks from then on at each system call that takes an address in a buffer.
 * usage: PK_RANK=0|1 PK_SIZE=2 PK_ROOT=host:port ways.program
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "pickle/pickle.h"

#define BYTES ((size_t)1 << 20)
#define ROUNDS 20

static unsigned char from[BYTES], to[BYTES];

/* Of both ranks, by rank: the buffers, which are one range where one begins behind the other. */
uint64_t way_from[2], way_to[2];
size_t way_bytes = BYTES;
const char *way_call;

__attribute__((noinline)) void way_begin(const char *call);

__attribute__((noinline)) void way_begin(const char *call)
{
    way_call = call;
    __asm__ volatile("" : : : "memory");
}

static pk_result_t tell_addresses(pk_comm_t *comm)
{
    const uint64_t mine[2] = { (uint64_t)(uintptr_t)from, (uint64_t)(uintptr_t)to };
    uint64_t all[4];
    pk_result_t result = pk_allgather(mine, all, 2, PK_UINT64, comm, PK_BLOCKING);

    for (int rank = 0; rank < 2; rank++) {
        way_from[rank] = all[2 * rank];
        way_to[rank] = all[2 * rank + 1];
    }
    return result;
}

static pk_result_t run(pk_comm_t *comm, int rank)
{
    pk_result_t result = tell_addresses(comm);

    way_begin("pk_send");
    for (int i = 0; i < ROUNDS && result == PK_OK; i++)
        result = rank == 0 ? pk_send(from, BYTES, PK_UINT8, 1, comm, PK_BLOCKING) : pk_recv(to, BYTES, PK_UINT8, 0, comm, PK_BLOCKING);
    way_begin("pk_allreduce");
    for (int i = 0; i < ROUNDS && result == PK_OK; i++)
        result = pk_allreduce(from, to, BYTES / sizeof(int32_t), PK_INT32, PK_SUM, comm, PK_BLOCKING);
    way_begin("");
    return result;
}

int main(void)
{
    pk_comm_config_t config = { .struct_size = sizeof config };
    pk_error_info_t error = { .struct_size = sizeof error };
    pk_comm_t *comm;
    int rank;
    pk_result_t result;

    memset(from, 1, sizeof from);
    config.device = PK_DEVICE_HOST;
    result = pk_comm_init(&comm, &config);
    if (result == PK_OK)
        result = pk_comm_rank(comm, &rank);
    if (result == PK_OK)
        result = run(comm, rank);
    if (result != PK_OK) {
        pk_last_error(&error);
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    return pk_comm_destroy(comm) == PK_OK ? 0 : 1;
}
