/* SPDX-License-Identifier: Apache-2.0 */
/* The machine and the settings, for people to read. */
#include <inttypes.h>
#include <string.h>

#include "comm/comm.h"
#include "util/env.h"
#include "util/text.h"

static void dump_machine(const struct pki_topology *t, struct pki_text *out)
{
    pki_text_add(out, "machine: %d packages, %d NUMA nodes, %d cores, %d CPUs; this process may use %d (%s)", t->packages,
                 t->numa_nodes, t->cores, t->cpus, t->cpus_allowed, t->cpu_list);
    if (t->local_node >= 0)
        pki_text_add(out, " of NUMA node %d", t->local_node);
    pki_text_add(out, "\n");
}

/* The driver before hwloc, as for paths. */
static enum pki_distance distance(const struct pki_topology *t, int a, int b)
{
    const struct pki_pci_device *one = &t->devices[a], *other = &t->devices[b];

    if (a != b && one->kind == PKI_PCI_GPU && other->kind == PKI_PCI_GPU &&
        pki_device_cuda_link(one->bus_id, other->bus_id) == PKI_LINK_NVLINK)
        return PKI_DIST_NVL;
    return pki_topology_distance(t, one->bus_id, other->bus_id);
}

static void dump_device(const struct pki_topology *t, int index, struct pki_text *out)
{
    const struct pki_pci_device *device = &t->devices[index];
    const struct pki_pci_device *nics[4];
    int n = device->kind == PKI_PCI_GPU ? pki_topology_nearest_nics(t, device->bus_id, nics, 4) : 0;

    pki_text_add(out, "%2d %s %s %-8s node %2d  distances", index, device->kind == PKI_PCI_GPU ? "GPU" : "NIC", device->bus_id,
                 device->name[0] != '\0' ? device->name : "-", device->numa_node);
    for (int i = 0; i < t->ndevices; i++)
        pki_text_add(out, " %-4s", pki_distance_name(distance(t, index, i)));
    for (int i = 0; i < n; i++)
        pki_text_add(out, "%s%s", i == 0 ? "  nearest NIC " : ", ", nics[i]->name[0] != '\0' ? nics[i]->name : nics[i]->bus_id);
    pki_text_add(out, "\n");
}

/* What each transport found when the communicator was made; without one, whether RDMA could be used. */
static void dump_transports(const struct pk_comm *comm, struct pki_text *out)
{
    const struct pki_transport *const *transports = pki_transports();
    struct pki_iface_config config = { .size = 1 };

    for (int i = 0; transports[i] != NULL; i++) {
        struct pki_probe probe;

        if (comm != NULL)
            probe = comm->peer_infos[comm->rank].probes[i];
        else if (strcmp(transports[i]->name, "rdma") == 0)
            transports[i]->probe(&config, &probe);
        else
            continue;
        pki_text_add(out, "transport %-6s %s: %.95s\n", transports[i]->name, probe.usable ? "can be used" : "cannot be used",
                     probe.reason);
    }
    if (pki_transport_find("rdma") == NULL)
        pki_text_add(out, "transport rdma   cannot be used: not in this build\n");
}

static void dump_ranks(const struct pk_comm *comm, struct pki_text *out)
{
    for (int i = 0; i < comm->size; i++) {
        const struct pki_peer_info *peer_info = &comm->peer_infos[i];
        struct pki_cpu_share share = { .own = true };

        if (pki_is_hole(comm, i)) {
            pki_text_add(out, "rank %d: none has this number (PK_SHRINK_KEEP_RANKS)\n", i);
            continue;
        }
        (void)pki_comm_cpus(comm, i, &share);
        pki_text_add(out, "rank %d%s: %s, process %" PRId64, i, i == comm->rank ? " (this one)" : "",
                     comm->local[i] ? "this host" : "another host", peer_info->pid);
        if (peer_info->has_gpu)
            pki_text_add(out, ", GPU %.15s", peer_info->gpu_pci);
        if (peer_info->has_gpu && i != comm->rank && comm->gpu_distances[i] != PKI_DIST_UNKNOWN)
            pki_text_add(out, " (%s)", pki_distance_name((enum pki_distance)comm->gpu_distances[i]));
        pki_text_add(out, share.own ? "\n" : ", shares its CPU\n");
    }
}

pk_result_t pki_topology_dump(const struct pk_comm *comm, char *text, size_t capacity, size_t *needed)
{
    struct pki_text out = { .start = text, .capacity = capacity };
    struct pki_topology *topology = NULL;
    pk_result_t result = pki_topology_load(NULL, true, &topology);

    if (result != PK_OK)
        return result;
    dump_machine(topology, &out);
    for (int i = 0; i < topology->ndevices; i++)
        dump_device(topology, i, &out);
    pki_topology_free(topology);
    dump_transports(comm, &out);
    if (comm != NULL)
        dump_ranks(comm, &out);
    if (needed != NULL)
        *needed = out.length + 1;
    return PK_OK;
}

static void line(struct pki_text *out, const char *name, const char *value, enum pki_origin origin, const char *variable)
{
    static const char *const origins[] = { "default", "pk_comm_config_t", "environment", "rank 0" };

    pki_text_add(out, "%-14s %-20s %s", name, value, origins[origin]);
    if (origin == PKI_FROM_ENVIRONMENT && variable != NULL)
        pki_text_add(out, " (%s)", variable);
    pki_text_add(out, "\n");
}

static void number(struct pki_text *out, const char *name, uint64_t value, enum pki_origin origin, const char *variable)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%" PRIu64, value);
    line(out, name, text, origin, variable);
}

static void dump_device_setting(const struct pk_comm *comm, struct pki_text *out)
{
    char text[32] = "host";

    if (comm->config.device == PK_DEVICE_AUTO)
        (void)snprintf(text, sizeof text, "auto: %s", comm->device != NULL ? "current GPU" : "host");
    else if (comm->config.device > 0)
        (void)snprintf(text, sizeof text, "cuda %d", comm->config.device - 1);
    line(out, "device", text, comm->origins.device, NULL);
}

/* Rank 0 decides for all; on rank 0 itself the value is its environment's. */
static enum pki_origin decided(const struct pk_comm *comm, bool is_set)
{
    if (!is_set)
        return PKI_FROM_DEFAULT;
    return comm->rank == 0 ? PKI_FROM_ENVIRONMENT : PKI_FROM_RANK_0;
}

/* What has no place in a communicator: read where it is used, from the environment alone. */
static void dump_variables(struct pki_text *out)
{
    static const char *const variables[] = { "PK_LOG",      "PK_THREAD_CPUS", "PK_SOCKETS",   "PK_CHUNK_BYTES", "PK_WINDOW",
                                             "PK_RETRY_MS", "PK_QPS",         "PK_GID_INDEX", "PK_IFNAME",      "PK_PORTS",
                                             "PK_HOST_ID",  "PK_SECRET_FILE", "PK_INSECURE" };

    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = pki_env_get(variables[i]);

        line(out, variables[i], value != NULL ? value : "-", value != NULL ? PKI_FROM_ENVIRONMENT : PKI_FROM_DEFAULT,
             variables[i]);
    }
}

/* The table of constants: what holds here, and for the parts that rank 0 decides what it has decided. */
static void dump_tuning(const struct pki_agreed *agreed, struct pki_text *out)
{
    struct pki_tuning_row row;

    for (size_t i = 0; pki_tuning_row(agreed, i, &row); i++) {
        char name[64];

        (void)snprintf(name, sizeof name, "%s.%s", row.part, row.name);
        pki_text_add(out, "%-35s %-12" PRIu64 " %s\n", name, row.value,
                     row.fixed                ? "fixed"
                     : row.value == row.usual ? "default"
                                              : "PICKLE_TEST_TUNING");
    }
}

void pki_config_dump(const struct pk_comm *comm, char *text, size_t capacity, size_t *needed)
{
    static const char *const policies[] = { "default", "none", "bounded" };
    const struct pki_origins *origins = &comm->origins;
    const struct pki_settings *settings = &comm->settings;
    struct pki_text out = { .start = text, .capacity = capacity };

    dump_device_setting(comm, &out);
    line(&out, "sm_policy", policies[comm->config.sm_policy], origins->sm_policy, "PK_SM_POLICY");
    number(&out, "max_sms", (uint64_t)comm->config.max_sms, origins->sm_policy, "PK_SM_POLICY");
    line(&out, "nonblocking", comm->config.nonblocking ? "yes" : "no", origins->nonblocking, NULL);
    number(&out, "timeout_ms", comm->config.timeout_ms, origins->timeout_ms, "PK_TIMEOUT_MS");
    line(&out, "unpack", comm->unpack_kernel ? "kernel" : "copy", origins->unpack, "PK_UNPACK");
    line(&out, "algorithm", settings->algorithm[0] != '\0' ? settings->algorithm : "by size",
         decided(comm, settings->algorithm[0] != '\0'), "PK_ALGORITHM");
    line(&out, "p2p_level",
         settings->p2p_level != PKI_DIST_UNKNOWN ? pki_distance_name((enum pki_distance)settings->p2p_level) : "any",
         decided(comm, settings->p2p_level != PKI_DIST_UNKNOWN), "PK_P2P_LEVEL");
    dump_variables(&out);
    dump_tuning(&settings->agreed, &out);
    if (needed != NULL)
        *needed = out.length + 1;
}
