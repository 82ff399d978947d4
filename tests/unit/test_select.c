/* SPDX-License-Identifier: Apache-2.0 */
/* Distances on machines described by hwloc XML, and the path that follows from them and from other facts. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/paths/select.h"
#include "topology/topology.h"

static struct pki_topology *load(const char *file)
{
    struct pki_topology *topology = NULL;
    char path[1024];

    snprintf(path, sizeof path, "%s/support/hwloc/%s", PICKLE_TESTS, file);
    cr_assert_eq(pki_topology_load(path, true, &topology), PK_OK, "%s", path);
    return topology;
}

/* ---- Topology ---- */

struct pair_of_devices {
    const char *file, *a, *b;
    enum pki_distance expected;
};

static const struct pair_of_devices pairs[] = {
    { "nvlink8.xml", "0000:13:00.0", "0000:13:00.0", PKI_DIST_SELF },    /* GPU 0 and itself */
    { "nvlink8.xml", "0000:13:00.0", "0000:23:00.0", PKI_DIST_NVL },     /* GPU 0 and 1 */
    { "nvlink8.xml", "0000:13:00.0", "0000:83:00.0", PKI_DIST_NVL },     /* GPU 0 and 7, other package */
    { "nvlink8.xml", "0000:13:00.0", "0000:14:00.0", PKI_DIST_PIX },     /* GPU 0 and its NIC */
    { "nvlink8.xml", "0000:13:00.0", "0000:24:00.0", PKI_DIST_NODE },    /* GPU 0 and the NIC of 1 */
    { "nvlink8.xml", "0000:13:00.0", "0000:84:00.0", PKI_DIST_SYS },     /* GPU 0 and the NIC of 7 */
    { "nvlink8.xml", "0000:13:00.0", "0000:05:00.0", PKI_DIST_UNKNOWN }, /* an NVSwitch is no GPU */
    { "nvlink8.xml", "0000:13:00.0", "nonsense", PKI_DIST_UNKNOWN },
    { "pcie6.xml", "0000:13:00.0", "0000:14:00.0", PKI_DIST_PIX },
    { "pcie6.xml", "0000:13:00.0", "0000:18:00.0", PKI_DIST_PXB },
    { "pcie6.xml", "0000:18:00.0", "0000:15:00.0", PKI_DIST_PXB },
    { "pcie6.xml", "0000:13:00.0", "0000:19:00.0", PKI_DIST_PHB },
    { "pcie6.xml", "0000:13:00.0", "0000:21:00.0", PKI_DIST_NODE },
    { "pcie6.xml", "0000:13:00.0", "0000:81:00.0", PKI_DIST_SYS },
    { "pcie6.xml", "00000000:13:00.0", "14:00.0", PKI_DIST_PIX }, /* the same in other spellings */
    { "flat_vm.xml", "0000:00:05.0", "0000:00:08.0", PKI_DIST_PHB },
    { "flat_vm.xml", "0000:00:05.0", "0000:00:03.0", PKI_DIST_PHB },
};

Test(topology, distances)
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct pki_topology *t = load(pairs[i].file);
        enum pki_distance there = pki_topology_distance(t, pairs[i].a, pairs[i].b);
        enum pki_distance back = pki_topology_distance(t, pairs[i].b, pairs[i].a);

        cr_expect_eq(there, pairs[i].expected, "%s, %s to %s: %s", pairs[i].file, pairs[i].a, pairs[i].b,
                     pki_distance_name(there));
        cr_expect_eq(back, there);
        pki_topology_free(t);
    }
}

static const struct pki_pci_device *device_at(const struct pki_topology *t, const char *bus_id)
{
    for (int i = 0; i < t->ndevices; i++)
        if (strcmp(t->devices[i].bus_id, bus_id) == 0)
            return &t->devices[i];
    return NULL;
}

Test(topology, counts_and_devices)
{
    struct pki_topology *t = load("nvlink8.xml");
    const struct pki_pci_device *nic = device_at(t, "0000:54:00.0");
    int gpus = 0;

    cr_expect_eq(t->packages, 2);
    cr_expect_eq(t->numa_nodes, 2);
    cr_expect_eq(t->cores, 8);
    cr_expect_eq(t->cpus, 8);
    cr_expect_eq(t->cpus_allowed, 8);
    cr_expect_str_eq(t->cpu_list, "0-7");
    cr_expect_eq(t->ndevices, 16); /* neither the disk nor the switches */
    for (int i = 0; i < t->ndevices; i++)
        gpus += t->devices[i].kind == PKI_PCI_GPU;
    cr_expect_eq(gpus, 8);
    cr_assert_not_null(nic);
    cr_expect_eq(nic->kind, PKI_PCI_NIC);
    cr_expect_str_eq(nic->name, "mlx5_4");
    cr_expect_eq(nic->numa_node, 1);
    cr_expect_null(device_at(t, "0000:54:00.1"));
    pki_topology_free(t);
}

/* Each GPU of the NVLink server has a NIC of its own behind its switch; elsewhere the one card serves all. */
Test(topology, nearest_nics)
{
    static const struct {
        const char *file, *device, *nics;
    } cases[] = {
        { "nvlink8.xml", "0000:13:00.0", "mlx5_0" }, { "nvlink8.xml", "0000:23:00.0", "mlx5_1" },
        { "nvlink8.xml", "0000:53:00.0", "mlx5_4" }, { "nvlink8.xml", "0000:83:00.0", "mlx5_7" },
        { "nvlink8.xml", "0000:84:00.0", "mlx5_7" }, { "nvlink8.xml", "0000:ff:00.0", "" },
        { "pcie6.xml", "0000:13:00.0", "mlx5_0" },   { "pcie6.xml", "0000:81:00.0", "mlx5_0" },
        { "flat_vm.xml", "0000:00:08.0", "eth0" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pki_topology *t = load(cases[i].file);
        const struct pki_pci_device *nics[8] = { NULL };
        int n = pki_topology_nearest_nics(t, cases[i].device, nics, 8);

        cr_expect_eq(n, cases[i].nics[0] != '\0', "%s of %s: %d NICs", cases[i].device, cases[i].file, n);
        if (n == 1)
            cr_expect_str_eq(nics[0]->name, cases[i].nics);
        pki_topology_free(t);
    }
}

/* Of the interfaces somebody names, by the bus ids of their cards; '#' marks the near ones. */
Test(topology, mark_near)
{
    static const struct {
        const char *file, *gpu;
        int local_node;
        char peer_infos[4][16];
        const char *near;
    } cases[] = {
        { "nvlink8.xml", "0000:13:00.0", -1, { "0000:84:00.0", "0000:14:00.0", "0000:24:00.0" }, ".#." }, /* behind its switch */
        { "nvlink8.xml", "0000:13:00.0", -1, { "0000:84:00.0", "0000:24:00.0", "0000:34:00.0" }, ".##" }, /* of its node */
        { "nvlink8.xml", "0000:13:00.0", -1, { "0000:84:00.0", "0000:54:00.0" }, "##" },                  /* both far */
        /* nothing known of one */
        { "nvlink8.xml", "0000:13:00.0", -1, { "", "0000:14:00.0", "0000:84:00.0" }, "##." },
        { "nvlink8.xml", NULL, 1, { "0000:14:00.0", "0000:84:00.0", "0000:54:00.0" }, ".##" }, /* by the CPUs */
        /* a GPU not known here */
        { "nvlink8.xml", "0000:ff:00.0", 0, { "0000:14:00.0", "0000:84:00.0" }, "#." },
        { "nvlink8.xml", NULL, -1, { "0000:14:00.0", "0000:84:00.0" }, "##" },
        { "flat_vm.xml", NULL, 0, { "", "nonsense" }, "##" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pki_topology *t = load(cases[i].file);
        char peer_infos[4][16], got[5] = "";
        bool near[4];
        int n = (int)strlen(cases[i].near), count = 0, marked;

        memcpy(peer_infos, cases[i].peer_infos, sizeof peer_infos);
        t->local_node = cases[i].local_node;
        marked = pki_topology_mark_near(t, cases[i].gpu, peer_infos, n, near);
        for (int k = 0; k < n; k++)
            count += (got[k] = near[k] ? '#' : '.') == '#';
        cr_expect_str_eq(got, cases[i].near, "case %zu", i);
        cr_expect_eq(marked, count, "case %zu: %d said, %d marked", i, marked, count);
        pki_topology_free(t);
    }
}

/* All CPUs of a file are allowed: they are near to no one node of two, and to the only one of a small machine. */
Test(topology, local_nics)
{
    const struct pki_pci_device *nics[8];
    struct pki_topology *t = load("nvlink8.xml");

    cr_expect_eq(t->local_node, -1);
    cr_expect_eq(pki_topology_local_nics(t, nics, 8), 8);
    cr_expect_eq(pki_topology_local_nics(t, nics, 3), 3);
    t->local_node = 1;
    cr_assert_eq(pki_topology_local_nics(t, nics, 8), 4);
    cr_expect_str_eq(nics[0]->name, "mlx5_4");
    t->local_node = 7;
    cr_expect_eq(pki_topology_local_nics(t, nics, 8), 8);
    pki_topology_free(t);
    t = load("flat_vm.xml");
    cr_expect_eq(t->local_node, 0);
    cr_expect_eq(pki_topology_local_nics(t, nics, 8), 1);
    pki_topology_free(t);
}

Test(topology, this_machine_without_devices)
{
    struct pki_topology *t = NULL;

    cr_assert_eq(pki_topology_load(NULL, false, &t), PK_OK);
    cr_expect(t->cpus >= 1 && t->cpus_allowed >= 1 && t->cpus_allowed <= t->cpus);
    cr_expect_not_null(t->cpu_list);
    cr_expect_eq(t->ndevices, 0);
    cr_expect_eq(pki_topology_distance(t, "0000:00:05.0", "0000:00:05.0"), PKI_DIST_UNKNOWN);
    pki_topology_free(t);
    cr_expect_eq(pki_topology_load("/nonexistent/topology.xml", true, &t), PK_ERR_ARG);
}

Test(topology, names_of_distances)
{
    enum pki_distance d;

    for (int i = PKI_DIST_SELF; i <= PKI_DIST_SYS; i++) {
        cr_expect(pki_distance_parse(pki_distance_name((enum pki_distance)i), &d));
        cr_expect_eq((int)d, i);
    }
    cr_expect(pki_distance_parse("phb", &d) && d == PKI_DIST_PHB);
    cr_expect(pki_distance_parse("LOC", &d) && d == PKI_DIST_SELF);
    cr_expect_not(pki_distance_parse("", &d));
    cr_expect_not(pki_distance_parse("unknown", &d));
    cr_expect_not(pki_distance_parse("PHBX", &d));
}

/* ---- Paths ---- */

static const struct pki_transport nvlink = { .name = "nvlink", .reaches = { [PKI_MEM_DEVICE] = { [PKI_MEM_DEVICE] = true } } };
static const struct pki_transport shm = { .name = "shm", .reaches = { [PKI_MEM_HOST] = { [PKI_MEM_HOST] = true } } };

static const struct pki_transport tcp = {
    .name = "tcp", .link = "socket", .between_hosts = true, .reaches = { [PKI_MEM_HOST] = { [PKI_MEM_HOST] = true } }
};

enum { NVLINK, SHM, TCP };

/* Two ranks of one host, each with a GPU of its own, where everything works. */
static struct pki_pair good_pair(void)
{
    struct pki_pair pair = { .near = PKI_NEAR_HOST,
                             .has_gpu = { true, true },
                             .distance = PKI_DIST_NVL,
                             .ntransports = 3,
                             .transports = { &nvlink, &shm, &tcp },
                             .joints = { PKI_JOINT_PUTS, PKI_JOINT_PUTS } };

    for (int side = 0; side < 2; side++) {
        pair.probes[NVLINK][side] = (struct pki_probe){ true, 390, "copy engine, CUDA IPC" };
        pair.probes[SHM][side] = (struct pki_probe){ true, 8, "memfd and process_vm_writev" };
        pair.probes[TCP][side] = (struct pki_probe){ true, 0, "address 192.0.2.1" };
    }
    return pair;
}

static void same_rank(struct pki_pair *pair)
{
    *pair = (struct pki_pair){ .near = PKI_NEAR_SELF, .has_gpu = { true, true }, .same_gpu = true, .distance = PKI_DIST_SELF };
}

static void as_it_is(struct pki_pair *pair)
{
    (void)pair;
}

static void same_rank_without_gpu(struct pki_pair *pair)
{
    same_rank(pair);
    pair->has_gpu[0] = pair->has_gpu[1] = false;
}

static void other_host(struct pki_pair *pair)
{
    pair->near = PKI_NEAR_NOT;
    pair->joints[NVLINK] = pair->joints[SHM] = PKI_JOINT_NONE;
    pair->joints[TCP] = PKI_JOINT_PUTS;
}

static void other_host_without_network(struct pki_pair *pair)
{
    other_host(pair);
    pair->probes[TCP][1] = (struct pki_probe){ false, 0, "no address" };
}

static void other_host_without_transport(struct pki_pair *pair)
{
    other_host(pair);
    pair->ntransports = 2;
}

static void no_cma(struct pki_pair *pair)
{
    pair->joints[SHM] = PKI_JOINT_STANDS;
    snprintf(pair->probes[SHM][0].reason, sizeof pair->probes[SHM][0].reason, "memfd; process_vm_readv: Operation not permitted");
}

static void one_process(struct pki_pair *pair)
{
    pair->near = PKI_NEAR_PROCESS;
}

static void slow_peer(struct pki_pair *pair)
{
    pair->probes[NVLINK][1].gbps = 180;
    pair->probes[SHM][1].gbps = 3;
}

static void no_gpu_here(struct pki_pair *pair)
{
    pair->has_gpu[0] = false;
    pair->probes[NVLINK][0] = (struct pki_probe){ false, 0, "the communicator has no GPU" };
}

static void no_gpu_there(struct pki_pair *pair)
{
    pair->has_gpu[1] = false;
}

static void no_driver_there(struct pki_pair *pair)
{
    pair->probes[NVLINK][1] = (struct pki_probe){ false, 0, "libcuda.so.1 not found" };
}

static void gpus_apart(struct pki_pair *pair)
{
    pair->joints[NVLINK] = PKI_JOINT_STANDS;
    pair->distance = PKI_DIST_SYS;
}

static void not_connected(struct pki_pair *pair)
{
    pair->joints[NVLINK] = pair->joints[SHM] = PKI_JOINT_NONE;
}

static void pcie(struct pki_pair *pair)
{
    pair->distance = PKI_DIST_PHB;
}

static void pcie_and_level_phb(struct pki_pair *pair)
{
    pair->distance = PKI_DIST_PHB;
    pair->p2p_level = PKI_DIST_PHB;
}

static void pcie_and_level_pix(struct pki_pair *pair)
{
    pair->distance = PKI_DIST_PHB;
    pair->p2p_level = PKI_DIST_PIX;
}

static void unknown_and_level_nvl(struct pki_pair *pair)
{
    pair->distance = PKI_DIST_UNKNOWN;
    pair->p2p_level = PKI_DIST_NVL;
}

static void one_gpu(struct pki_pair *pair)
{
    pair->same_gpu = true;
    pair->distance = PKI_DIST_SELF;
    pair->p2p_level = PKI_DIST_PIX;
}

static void no_transports(struct pki_pair *pair)
{
    pair->ntransports = 0;
}

enum { H = PKI_MEM_HOST, D = PKI_MEM_DEVICE };

static const struct path_case {
    void (*change)(struct pki_pair *pair);
    int source, target;
    const char *transport; /* NULL: no way */
    const char *device;
    double gbps;
    const char *reason; /* part of it */
} paths[] = {
    { same_rank, H, H, "self", "copy", 0, "same rank" },
    { same_rank, D, D, "self", "copy", 0, "same rank" },
    { same_rank, H, D, "self", "copy", 0, "same rank" },
    { same_rank_without_gpu, H, H, "self", "copy", 0, "same rank" },
    { same_rank_without_gpu, D, D, NULL, "", 0, "this rank has no GPU" },
    { as_it_is, H, H, "shm", "cma", 8, "one copy from buffer to buffer (memfd and process_vm_writev)" },
    { as_it_is, D, D, "nvlink", "copy engine", 390, "joined by NVLink" },
    { as_it_is, H, D, "shm", "host memory", 0, "host memory here, device memory there: in pieces through pinned memory" },
    { as_it_is, D, H, "shm", "host memory", 0, "device memory here, host memory there: in pieces through pinned memory" },
    { no_gpu_there, D, H, "shm", "host memory", 0, "in pieces through pinned memory" },
    { no_gpu_there, H, D, NULL, "", 0, "the peer has no GPU" },
    { other_host, H, H, "tcp", "socket", 0, "ranks on different hosts; over tcp, this rank: address 192.0.2.1" },
    { other_host, D, D, "tcp", "host memory", 0, "no transport of this build moves device memory between hosts" },
    { other_host, H, D, "tcp", "host memory", 0, "in pieces through pinned memory" },
    { other_host_without_network, H, H, NULL, "", 0, "tcp does not work on the peer: no address" },
    { other_host_without_network, D, D, NULL, "", 0, "between hosts" },
    { other_host_without_transport, H, H, NULL, "", 0, "no transport of this build moves host memory between hosts" },
    { no_cma, H, H, "shm", "ring", 8,
      "two copies through shared memory, as a direct one is not possible (memfd; process_vm_readv: Oper" },
    { no_cma, D, D, "nvlink", "copy engine", 390, "" },
    { one_process, H, H, "shm", "cma", 8, "in one process" },
    { slow_peer, H, H, "shm", "cma", 3, "" },
    { slow_peer, D, D, "nvlink", "copy engine", 180, "" },
    { no_gpu_here, D, D, NULL, "", 0, "this rank has no GPU" },
    { no_gpu_here, H, H, "shm", "cma", 8, "" },
    { no_gpu_there, D, D, NULL, "", 0, "the peer has no GPU" },
    { no_driver_there, D, D, "shm", "host memory", 0,
      "through pinned memory of the host: nvlink does not work on the peer: libcuda.so.1 not found" },
    { gpus_apart, D, D, "shm", "host memory", 0,
      "through pinned memory of the host: nvlink: one GPU cannot reach the other's memory (SYS apart)" },
    { not_connected, D, D, NULL, "", 0, "did not connect" },
    { not_connected, H, H, NULL, "", 0, "did not connect" },
    { pcie, D, D, "nvlink", "copy engine", 0, "meet over PCIe (PHB)" },
    { pcie_and_level_phb, D, D, "nvlink", "copy engine", 0, "meet over PCIe (PHB)" },
    { pcie_and_level_pix, D, D, "shm", "host memory", 0,
      "through pinned memory of the host: the GPUs are PHB apart and PK_P2P_LEVEL allows no more than PIX" },
    { pcie_and_level_pix, H, H, "shm", "cma", 8, "" },
    { unknown_and_level_nvl, D, D, "nvlink", "copy engine", 390, "two GPUs of one host, one copy" },
    { one_gpu, D, D, "nvlink", "local copy", 0, "one GPU" },
    { no_transports, H, H, NULL, "", 0, "no transport of this build moves host memory" },
    { no_transports, D, D, NULL, "", 0, "no transport of this build moves device memory" },
};

Test(select, table)
{
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        const struct path_case *c = &paths[i];
        struct pki_pair pair = good_pair(), before;
        struct pki_path path;

        c->change(&pair);
        before = pair;
        memset(&path, 0x5a, sizeof path);
        pki_select(&pair, (enum pki_mem_kind)c->source, (enum pki_mem_kind)c->target, &path);
        cr_expect(memcmp(&before, &pair, sizeof pair) == 0);
        if (c->transport == NULL)
            cr_expect_null(path.transport, "case %zu: %s", i, path.reason);
        else
            cr_expect(path.transport != NULL && strcmp(path.transport, c->transport) == 0, "case %zu: %s", i, path.reason);
        cr_expect_str_eq(path.device, c->device, "case %zu: %s", i, path.device);
        cr_expect_eq(path.gbps, c->gbps, "case %zu: %g", i, path.gbps);
        cr_expect(strlen(path.reason) > 5 && strstr(path.reason, c->reason) != NULL, "case %zu: %s", i, path.reason);
    }
}

/* From the XML of a machine to the path: what two ranks on two of its GPUs get. */
Test(select, on_real_machines)
{
    static const struct {
        const char *file, *a, *b;
        enum pki_distance level;
        bool way;
        double gbps;
    } cases[] = {
        { "nvlink8.xml", "0000:13:00.0", "0000:83:00.0", PKI_DIST_UNKNOWN, true, 390 },
        { "nvlink8.xml", "0000:13:00.0", "0000:83:00.0", PKI_DIST_NVL, true, 390 },
        { "pcie6.xml", "0000:13:00.0", "0000:14:00.0", PKI_DIST_UNKNOWN, true, 0 },
        { "pcie6.xml", "0000:13:00.0", "0000:14:00.0", PKI_DIST_NVL, false, 0 },
        { "pcie6.xml", "0000:13:00.0", "0000:18:00.0", PKI_DIST_PIX, false, 0 },
        { "pcie6.xml", "0000:13:00.0", "0000:21:00.0", PKI_DIST_NODE, true, 0 },
        { "pcie6.xml", "0000:13:00.0", "0000:81:00.0", PKI_DIST_NODE, false, 0 },
        { "flat_vm.xml", "0000:00:05.0", "0000:00:06.0", PKI_DIST_PXB, false, 0 },
        { "flat_vm.xml", "0000:00:05.0", "0000:00:06.0", PKI_DIST_SYS, true, 0 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pki_topology *t = load(cases[i].file);
        struct pki_pair pair = good_pair();
        struct pki_path path;

        pair.distance = pki_topology_distance(t, cases[i].a, cases[i].b);
        pair.p2p_level = cases[i].level;
        pki_select(&pair, PKI_MEM_DEVICE, PKI_MEM_DEVICE, &path);
        cr_expect_eq(path.transport != NULL && strcmp(path.transport, "nvlink") == 0, cases[i].way, "case %zu: %s", i,
                     path.reason);
        cr_expect_eq(path.gbps, cases[i].gbps, "case %zu: %g", i, path.gbps);
        pki_topology_free(t);
    }
}

/* Reasons of any length are cut, never overrun. */
Test(select, long_reasons)
{
    struct pki_pair pair = good_pair();
    struct pki_path path;

    memset(pair.probes[SHM][0].reason, 'x', sizeof pair.probes[SHM][0].reason - 1);
    pair.probes[SHM][0].reason[sizeof pair.probes[SHM][0].reason - 1] = '\0';
    for (int usable = 0; usable < 2; usable++) {
        for (int put = 0; put < 2; put++) {
            pair.probes[SHM][0].usable = usable;
            pair.joints[SHM] = put ? PKI_JOINT_PUTS : PKI_JOINT_STANDS;
            pki_select(&pair, PKI_MEM_HOST, PKI_MEM_HOST, &path);
            cr_expect(memchr(path.reason, '\0', sizeof path.reason) != NULL);
            cr_expect_not_null(strstr(path.reason, "xxxx"));
        }
    }
}
