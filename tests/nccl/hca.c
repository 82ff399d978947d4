/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL_IB_HCA on a machine with devices: nccl/hca.c by itself. */
#include "hca.h"

#include "bed.h"

static char *const devices[] = { "mlx5_0", "mlx5_1", "mlx5_10", "rxe0" };

static void expect(const char *value, const char *expected)
{
    char out[64];

    pkn_hca_of(value, devices, 4, out, sizeof out);
    check(strcmp(out, expected) == 0, "NCCL_IB_HCA=%s: %s", value, out);
}

int main(void)
{
    char out[64];

    expect("mlx5", "mlx5_0,mlx5_1,mlx5_10");
    expect("mlx5_1", "mlx5_1,mlx5_10");
    expect("=mlx5_1", "mlx5_1");
    expect("=mlx5_1:2,rxe0", "mlx5_1:2,rxe0");
    expect("rxe,mlx5_0:1", "mlx5_0:1,rxe0");
    expect("^mlx5_1", "mlx5_0,rxe0");
    expect("^=mlx5_1,rxe0", "mlx5_0,mlx5_10");
    expect("hfi", "hfi");
    expect("^mlx5,rxe", "none");
    pkn_hca_of("mlx5_0", NULL, 0, out, sizeof out);
    check(strcmp(out, "mlx5_0") == 0, "on a machine without devices: %s", out);
    return bed_end();
}
