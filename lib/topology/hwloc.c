/* SPDX-License-Identifier: Apache-2.0 */
/* A topology from hwloc: the only file that knows it. */
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topology/topology.h"
#include "util/log.h"

/* hwloc components that open whole runtimes, or move this thread from CPU to CPU, to tell what is not asked here; and
 * libpciaccess, which leaks and knows no more than sysfs does. NVML too: what joins two GPUs is the driver's to say, and
 * NVML sees nothing of it in a virtual machine. */
static const char *const unwanted[] = { "opencl", "gl", "cuda", "nvml", "levelzero", "rsmi", "x86", "pci" };

static bool is_gpu(unsigned class_id)
{
    return class_id == 0x0300 || class_id == 0x0302 || class_id == 0x1200;
}

static bool is_nic(unsigned class_id)
{
    return class_id >> 8 == 0x02 || class_id == 0x0c06; /* network; InfiniBand of old cards */
}

static bool wanted(hwloc_obj_t pci)
{
    return is_gpu(pci->attr->pcidev.class_id) || is_nic(pci->attr->pcidev.class_id);
}

static pk_result_t open_hwloc(const char *path, bool io, hwloc_topology_t *topology)
{
    hwloc_topology_t t = NULL;

    if (hwloc_topology_init(&t) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "hwloc_topology_init");
    for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
        (void)hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, unwanted[i]);
    (void)hwloc_topology_set_cache_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE);
    if (io)
        (void)hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (path != NULL && hwloc_topology_set_xml(t, path) != 0) {
        (void)pki_fail_errno(PK_ERR_ARG, NULL, "hwloc cannot read %s", path);
        hwloc_topology_destroy(t);
        return PK_ERR_ARG;
    }
    if (hwloc_topology_load(t) != 0) {
        pk_result_t result = path != NULL ? PK_ERR_ARG : PK_ERR_SYSTEM;

        (void)pki_fail_errno(result, NULL, "hwloc cannot load the topology of %s", path != NULL ? path : "this machine");
        hwloc_topology_destroy(t);
        return result;
    }
    *topology = t;
    return PK_OK;
}

static int count_objects(hwloc_topology_t t, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(t, type);

    return n < 0 ? 0 : n;
}

static int node_of_cpus(hwloc_topology_t t, hwloc_const_bitmap_t set)
{
    hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
    int node = -1;

    if (nodes == NULL)
        return -1;
    hwloc_cpuset_to_nodeset(t, set, nodes);
    if (hwloc_bitmap_weight(nodes) == 1)
        node = hwloc_bitmap_first(nodes);
    hwloc_bitmap_free(nodes);
    return node;
}

/* The CPUs this process may use; where it cannot be told, all of the machine. */
static pk_result_t read_cpus(hwloc_topology_t t, struct pki_topology *out)
{
    hwloc_bitmap_t set = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(t));
    int got;

    if (set == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for the set of CPUs");
    if (hwloc_topology_is_thissystem(t))
        (void)hwloc_get_cpubind(t, set, HWLOC_CPUBIND_PROCESS);
    out->cpus_allowed = hwloc_bitmap_weight(set);
    out->local_node = node_of_cpus(t, set);
    got = hwloc_bitmap_list_asprintf(&out->cpu_list, set);
    hwloc_bitmap_free(set);
    return got < 0 ? pki_fail(PK_ERR_MEMORY, NULL, "no memory for the list of CPUs") : PK_OK;
}

/* The name that the operating system gives it: an RDMA device's before a network interface's. */
static const char *os_name(hwloc_obj_t pci)
{
    const char *name = "";

    for (hwloc_obj_t child = pci->io_first_child; child != NULL; child = child->next_sibling) {
        if (child->type != HWLOC_OBJ_OS_DEVICE || child->name == NULL)
            continue;
        if (child->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)
            return child->name;
        if (name[0] == '\0')
            name = child->name;
    }
    return name;
}

static int numa_node_of(hwloc_obj_t local)
{
    return local->nodeset != NULL && hwloc_bitmap_weight(local->nodeset) == 1 ? hwloc_bitmap_first(local->nodeset) : -1;
}

static void describe_device(hwloc_topology_t t, hwloc_obj_t pci, struct pki_pci_device *device)
{
    const struct hwloc_pcidev_attr_s *attr = &pci->attr->pcidev;

    device->kind = is_gpu(attr->class_id) ? PKI_PCI_GPU : PKI_PCI_NIC;
    (void)snprintf(device->bus_id, sizeof device->bus_id, "%04x:%02x:%02x.%01x", attr->domain, attr->bus, attr->dev, attr->func);
    (void)snprintf(device->name, sizeof device->name, "%s", os_name(pci));
    device->numa_node = numa_node_of(hwloc_get_non_io_ancestor_obj(t, pci));
}

static int height(hwloc_obj_t object)
{
    int n = 0;

    for (; object->parent != NULL; object = object->parent)
        n++;
    return n;
}

/* The lowest object above both; hwloc's own function does not take devices. */
static hwloc_obj_t common_ancestor(hwloc_obj_t a, hwloc_obj_t b)
{
    int above_a = height(a), above_b = height(b);

    for (; above_a > above_b; above_a--)
        a = a->parent;
    for (; above_b > above_a; above_b--)
        b = b->parent;
    while (a != b) {
        a = a->parent;
        b = b->parent;
    }
    return a;
}

/* A PCIe switch is one bridge upstream and below it one bridge a port: through a single one, each device has its port alone
 * between itself and the common bridge. */
static bool one_switch_apart(hwloc_obj_t bridge, hwloc_obj_t a, hwloc_obj_t b)
{
    int above = height(bridge);

    return height(a) - above <= 2 && height(b) - above <= 2;
}

static enum pki_distance pcie_distance(hwloc_obj_t a, hwloc_obj_t b)
{
    hwloc_obj_t common = common_ancestor(a, b);

    if (a == b)
        return PKI_DIST_SELF;
    if (common->type == HWLOC_OBJ_PCI_DEVICE)
        return PKI_DIST_PIX;
    if (common->type == HWLOC_OBJ_BRIDGE && common->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI)
        return one_switch_apart(common, a, b) ? PKI_DIST_PIX : PKI_DIST_PXB;
    if (common->type == HWLOC_OBJ_BRIDGE)
        return PKI_DIST_PHB;
    return numa_node_of(common) >= 0 ? PKI_DIST_NODE : PKI_DIST_SYS;
}

/* The PCI device that an object of a distance matrix is, or is a face of. */
static int device_index(hwloc_obj_t object, const hwloc_obj_t *pci, int n)
{
    for (; object != NULL && object->type != HWLOC_OBJ_PCI_DEVICE; object = object->parent)
        ;
    for (int i = 0; i < n; i++)
        if (pci[i] == object)
            return i;
    return -1;
}

/* In a file from another machine: GPUs that NVML saw joined by NVLink are nearer than PCIe says. Bandwidth through NVSwitches
 * is made direct first. */
static void apply_nvlink(hwloc_topology_t t, const hwloc_obj_t *pci, struct pki_topology *out)
{
    struct hwloc_distances_s *links = NULL;
    unsigned n = 1;

    if (hwloc_distances_get_by_name(t, "NVLinkBandwidth", &n, &links, 0) != 0 || n == 0)
        return;
    (void)hwloc_distances_transform(t, links, HWLOC_DISTANCES_TRANSFORM_TRANSITIVE_CLOSURE, NULL, 0);
    for (unsigned i = 0; i < links->nbobjs; i++) {
        for (unsigned j = 0; j < links->nbobjs; j++) {
            int a = device_index(links->objs[i], pci, out->ndevices), b = device_index(links->objs[j], pci, out->ndevices);

            if (a >= 0 && b >= 0 && a != b && links->values[i * links->nbobjs + j] > 0)
                out->distances[a * out->ndevices + b] = PKI_DIST_NVL;
        }
    }
    hwloc_distances_release(t, links);
}

static pk_result_t read_devices(hwloc_topology_t t, struct pki_topology *out)
{
    size_t room = (size_t)count_objects(t, HWLOC_OBJ_PCI_DEVICE) + 1;
    hwloc_obj_t *pci = calloc(room, sizeof(hwloc_obj_t));

    out->devices = calloc(room, sizeof *out->devices);
    out->distances = calloc(room * room, 1);
    if (pci == NULL || out->devices == NULL || out->distances == NULL) {
        free(pci);
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for %zu PCI devices", room);
    }
    for (hwloc_obj_t o = hwloc_get_next_pcidev(t, NULL); o != NULL; o = hwloc_get_next_pcidev(t, o)) {
        if (wanted(o)) {
            describe_device(t, o, &out->devices[out->ndevices]);
            pci[out->ndevices++] = o;
        }
    }
    for (int a = 0; a < out->ndevices; a++)
        for (int b = 0; b < out->ndevices; b++)
            out->distances[a * out->ndevices + b] = (uint8_t)pcie_distance(pci[a], pci[b]);
    apply_nvlink(t, pci, out);
    free(pci);
    return PK_OK;
}

pk_result_t pki_topology_load(const char *path, bool io, struct pki_topology **topology)
{
    hwloc_topology_t t = NULL;
    struct pki_topology *out;
    pk_result_t result = open_hwloc(path, io, &t);

    if (result != PK_OK)
        return result;
    out = calloc(1, sizeof *out);
    if (out == NULL) {
        result = pki_fail(PK_ERR_MEMORY, NULL, "no memory for a topology");
        goto out_close;
    }
    out->packages = count_objects(t, HWLOC_OBJ_PACKAGE);
    out->numa_nodes = count_objects(t, HWLOC_OBJ_NUMANODE);
    out->cores = count_objects(t, HWLOC_OBJ_CORE);
    out->cpus = count_objects(t, HWLOC_OBJ_PU);
    out->io = io;
    result = read_cpus(t, out);
    if (result == PK_OK && io)
        result = read_devices(t, out);
    if (result != PK_OK) {
        pki_topology_free(out);
        goto out_close;
    }
    *topology = out;

out_close:
    hwloc_topology_destroy(t);
    return result;
}

void pki_topology_free(struct pki_topology *topology)
{
    if (topology == NULL)
        return;
    free(topology->cpu_list);
    free(topology->devices);
    free(topology->distances);
    free(topology);
}
