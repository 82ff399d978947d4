/* SPDX-License-Identifier: Apache-2.0 */
/* From the driver's word on NVLink, hwloc's on PCIe and PK_P2P_LEVEL to the path between two GPUs; and what the dumps say of it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"

/* Two ranks in this process, each with a GPU of the software driver. */
static pk_result_t open_pair(pk_comm_t *comms[2])
{
    pk_unique_id_t id;
    pk_result_t result = pk_get_unique_id(&id);

    for (int r = 0; r < 2 && (result == PK_OK || result == PK_IN_PROGRESS); r++) {
        pk_comm_config_t config = PK_COMM_CONFIG_INIT;

        config.device = PK_DEVICE_CUDA(r);
        config.nonblocking = 1;
        config.timeout_ms = 20000;
        result = pk_comm_init_rank(&comms[r], 2, r, &id, &config);
    }
    for (int r = 0; r < 2 && (result == PK_OK || result == PK_IN_PROGRESS); r++)
        while ((result = pk_comm_async_error(comms[r])) == PK_IN_PROGRESS)
            usleep(500);
    return result;
}

static void close_pair(pk_comm_t *comms[2])
{
    cr_expect_eq(pk_comm_destroy(comms[0]), PK_OK);
    cr_expect_eq(pk_comm_destroy(comms[1]), PK_OK);
}

static void set_machine(void)
{
    char path[1024];

    snprintf(path, sizeof path, "%s/support/hwloc/fakecuda2.xml", PICKLE_TESTS);
    cr_assert_eq(access(path, R_OK), 0, "%s", path);
    setenv("HWLOC_XMLFILE", path, 1);
}

static const struct level_case {
    const char *nvlink, *level, *transport, *reason;
} cases[] = {
    { "1", "", "nvlink", "joined by NVLink" },
    { "1", "NVL", "nvlink", "joined by NVLink" },
    { "1", "LOC", "shm", "through pinned memory of the host: the GPUs are NVL apart and PK_P2P_LEVEL allows no more than SELF" },
    { "0", "", "nvlink", "meet over PCIe (NODE)" },
    { "0", "SYS", "nvlink", "meet over PCIe (NODE)" },
    { "0", "node", "nvlink", "meet over PCIe (NODE)" },
    { "0", "PHB", "shm", "through pinned memory of the host: the GPUs are NODE apart and PK_P2P_LEVEL allows no more than PHB" },
};

static void expect_path(const pk_comm_t *comm, int peer, const struct level_case *c)
{
    pk_path_t path = { .struct_size = sizeof path };

    cr_expect_eq(pk_comm_path(comm, peer, PK_MEM_DEVICE, PK_MEM_DEVICE, &path), PK_OK);
    cr_expect_str_eq(path.transport, c->transport, "level %s: %s", c->level, path.reason);
    cr_expect_not_null(strstr(path.reason, c->reason), "level %s: %s", c->level, path.reason);
    cr_expect_eq(pk_comm_path(comm, peer, PK_MEM_HOST, PK_MEM_HOST, &path), PK_OK);
    cr_expect_str_eq(path.transport, "shm");
}

Test(cuda_level, paths)
{
    set_machine();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pk_comm_t *comms[2] = { NULL, NULL };

        setenv("FAKECUDA_NVLINK", cases[i].nvlink, 1);
        setenv("PK_P2P_LEVEL", cases[i].level, 1);
        cr_assert_eq(open_pair(comms), PK_OK);
        expect_path(comms[0], 1, &cases[i]);
        expect_path(comms[1], 0, &cases[i]);
        close_pair(comms);
    }
}

/* GPUs that claim to reach one another and change what is written are found out, and go through the host. */
Test(cuda_level, corrupting)
{
    pk_path_t path = { .struct_size = sizeof path };
    pk_comm_t *comms[2] = { NULL, NULL };

    setenv("PK_LOG", "none", 1);
    setenv("FAKECUDA_CORRUPT", "1", 1);
    cr_assert_eq(open_pair(comms), PK_OK);
    for (int r = 0; r < 2; r++) {
        cr_expect_eq(pk_comm_path(comms[r], 1 - r, PK_MEM_DEVICE, PK_MEM_DEVICE, &path), PK_OK);
        cr_expect_str_eq(path.transport, "shm", "%s", path.reason);
        cr_expect_not_null(strstr(path.reason, "through pinned memory of the host: nvlink: one GPU cannot reach"), "%s",
                           path.reason);
    }
    close_pair(comms);
}

Test(cuda_level, wrong_name)
{
    pk_comm_t *comm;
    pk_unique_id_t id;

    cr_assert_eq(pk_get_unique_id(&id), PK_OK);
    setenv("PK_LOG", "none", 1);
    setenv("PK_P2P_LEVEL", "NEAR", 1);
    cr_expect_eq(pk_comm_init_rank(&comm, 1, 0, &id, NULL), PK_ERR_ARG);
}

static void expect_text(const char *text, const char *part)
{
    cr_expect_not_null(strstr(text, part), "no '%s' in:\n%s", part, text);
}

Test(cuda_level, dumps)
{
    pk_comm_t *comms[2] = { NULL, NULL };
    char text[32768], small[20];
    size_t needed = 0, again = 0;

    set_machine();
    setenv("FAKECUDA_NVLINK", "0", 1);
    setenv("PK_P2P_LEVEL", "SYS", 1);
    cr_assert_eq(open_pair(comms), PK_OK);
    cr_expect_eq(pk_config_dump(comms[0], text, sizeof text, &needed), PK_OK);
    cr_expect_eq(needed, strlen(text) + 1);
    expect_text(text, "p2p_level      SYS                  environment (PK_P2P_LEVEL)");
    expect_text(text, "timeout_ms     20000                pk_comm_config_t");
    expect_text(text, "unpack         copy                 default");
    cr_expect_eq(pk_config_dump(comms[1], text, sizeof text, NULL), PK_OK);
    expect_text(text, "p2p_level      SYS                  rank 0");
    memset(small, 'x', sizeof small);
    cr_expect_eq(pk_config_dump(comms[1], small, sizeof small, &again), PK_OK);
    cr_expect_eq(again, strlen(text) + 1);
    cr_expect(small[sizeof small - 1] == '\0' && strncmp(small, text, sizeof small - 1) == 0);
    cr_expect_eq(pk_topology_dump(comms[1], text, sizeof text, &needed), PK_OK);
    expect_text(text, "machine: 1 packages, 1 NUMA nodes, 2 cores, 2 CPUs");
    expect_text(text, "0 GPU 0000:19:00.0 -        node  0  distances SELF NODE");
    expect_text(text, "transport shm    can be used: memfd");
    expect_text(text, "transport rdma   cannot be used: ");
    expect_text(text, "rank 0: this host");
    expect_text(text, "(NODE)");
    expect_text(text, "\nrank 1 (this one): this host");
    close_pair(comms);
    setenv("PK_LOG", "none", 1);
    cr_expect_eq(pk_config_dump(NULL, text, sizeof text, NULL), PK_ERR_ARG);
    cr_expect_eq(pk_topology_dump(NULL, NULL, 5, NULL), PK_ERR_ARG);
    cr_expect_eq(pk_topology_dump(NULL, NULL, 0, &needed), PK_OK);
    cr_expect(needed > 20);
}
