/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library built with CUDA on a machine without its driver: everything on the host works, and who asks for a GPU hears what is missing. The
 * driver that this machine may have is hidden behind a file of its name that is no library.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL, *none = NULL;
    float sum = (float)(1 + ranks_rank());
    size_t needed = 0;
    pk_result_t result;

    config.timeout_ms = 20000;
    result = pk_comm_init(&comm, &config);
    report(result == PK_OK, "rank %d: a communicator on the host (%d)", ranks_rank(), (int)result);
    if (result != PK_OK)
        return report_end();
    result = pk_allreduce(&sum, &sum, 1, PK_F32, PK_SUM, comm, PK_BLOCKING);
    report(result == PK_OK && sum == 3, "rank %d: allreduce (%d): %g", ranks_rank(), (int)result, (double)sum);
    report(pk_topology_dump(comm, NULL, 0, &needed) == PK_OK && needed > 1, "rank %d: topology", ranks_rank());
    report(pk_comm_destroy(comm) == PK_OK, "rank %d: destroyed", ranks_rank());
    config.device = PK_DEVICE_CUDA(0);
    result = pk_comm_init(&none, &config);
    pk_last_error(&info);
    report(result == PK_ERR_UNSUPPORTED && strstr(info.text, "libcuda") != NULL, "rank %d: on a GPU: %d, %.150s", ranks_rank(),
           (int)result, info.text);
    return report_end();
}

static void hide(int rank, void *arg)
{
    (void)rank;
    setenv("LD_LIBRARY_PATH", arg, 1);
}

int main(void)
{
    char folder[] = "/tmp/pickle-no-driver-XXXXXX", file[64], path[4096];
    const char *before = getenv("LD_LIBRARY_PATH");
    struct ranks_hooks hooks = { .before = hide, .arg = path };
    FILE *f;

    if (ranks_role() != NULL)
        return rank_main();
    if (mkdtemp(folder) == NULL)
        return 2;
    snprintf(file, sizeof file, "%s/libcuda.so.1", folder);
    snprintf(path, sizeof path, "%s:%s", folder, before != NULL ? before : "");
    f = fopen(file, "w");
    if (f == NULL || fputs("not a library\n", f) == EOF || fclose(f) != 0)
        return 2;
    ranks_drive(&(struct ranks_turn){ .role = "host", .hooks = &hooks, .size = 2 }, "without a driver");
    unlink(file);
    rmdir(folder);
    return report_end();
}
