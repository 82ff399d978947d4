/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks are killed and replaced (support/grow.h), in host memory.
 * usage: mp.grow [ROUNDS [SEED]]
 */
#include "grow.h"

static int no_device(void)
{
    return PK_DEVICE_HOST;
}

static pk_result_t sum(pk_comm_t *comm, const float *in, float *out, size_t count)
{
    return pk_allreduce(in, out, count, PK_F32, PK_SUM, comm, PK_BLOCKING);
}

int main(int argc, char **argv)
{
    /* mappings: neighbours are one now and two then; one more each round would be more */
    const struct grow_memory memory = { no_device, sum, { { 4, 0 }, { 4, 3 }, { 4, 0 }, { 4, 0 }, { 4, 2 << 20 } } };

    return grow_main(argc, argv, &memory);
}
