/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices and ports there are, which are near, and opening them. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "topology/topology.h"
#include "transport/rdma/rdma.h"
#include "tuning/tuning.h"
#include "util/env.h"
#include "util/netif.h"

#define CLASS "/sys/class/infiniband"

static bool read_line(const char *path, char *line, size_t bytes)
{
    FILE *file = fopen(path, "re");
    bool read = file != NULL && fgets(line, (int)bytes, file) != NULL;

    if (file != NULL)
        fclose(file);
    return read;
}

static double rate_of(const char *device, const char *port)
{
    char path[600], line[64];

    (void)snprintf(path, sizeof path, CLASS "/%.128s/ports/%.16s/rate", device, port);
    return read_line(path, line, sizeof line) ? strtod(line, NULL) / 8 : 0; /* "100 Gb/sec (4X EDR)" */
}

/* PK_IFNAME names the interfaces that may be used; a port that belongs to none is not concerned. */
static bool allowed(const char *interface)
{
    const char *names = pki_env_get("PK_IFNAME");

    return names == NULL || interface[0] == '\0' || pki_netif_in_list(names, interface);
}

bool pki_rdma_is_listed(const char *list, const char *device, int port)
{
    const size_t length = strlen(device);

    for (const char *word = list; *word != '\0'; word += strcspn(word, ",")) {
        char *end;
        long number;

        word += *word == ',';
        if (strncmp(word, device, length) != 0)
            continue;
        if (word[length] == ',' || word[length] == '\0')
            return true;
        number = word[length] == ':' ? strtol(word + length + 1, &end, 10) : 0;
        if (number > 0 && (*end == ',' || *end == '\0') && (port == 0 || port == number))
            return true;
    }
    return false;
}

/* A device, or with a port one of its ports. */
static bool device_allowed(const char *device, int port)
{
    const char *list = pki_env_get("PK_RDMA_DEVICES");

    return list == NULL || pki_rdma_is_listed(list, device, port);
}

static bool port_allowed(const char *device, const char *port)
{
    char path[600], name[64] = "";

    if (!device_allowed(device, atoi(port)))
        return false;
    (void)snprintf(path, sizeof path, CLASS "/%.128s/ports/%.16s/gid_attrs/ndevs/0", device, port);
    if (!read_line(path, name, sizeof name))
        return true;
    name[strcspn(name, "\n")] = '\0';
    return allowed(name);
}

/* The rate of the device's fastest active port that may be used; below 0 when there is none. */
static double look_at_device(const char *device)
{
    char path[600], line[64];
    double best = -1;
    struct dirent *entry;
    DIR *ports;

    (void)snprintf(path, sizeof path, CLASS "/%.128s/ports", device);
    ports = opendir(path);
    while (ports != NULL && (entry = readdir(ports)) != NULL) {
        double rate;

        (void)snprintf(path, sizeof path, CLASS "/%.128s/ports/%.16s/state", device, entry->d_name);
        if (entry->d_name[0] == '.' || !read_line(path, line, sizeof line) || strstr(line, "ACTIVE") == NULL ||
            !port_allowed(device, entry->d_name))
            continue;
        rate = rate_of(device, entry->d_name);
        best = rate > best ? rate : best;
    }
    if (ports != NULL)
        closedir(ports);
    return best;
}

/* No device is opened: most machines that have one run jobs inside one host, and opening takes milliseconds. */
void pki_rdma_look(struct pki_probe *probe)
{
    DIR *class = opendir(CLASS);
    struct dirent *entry;
    int devices = 0, active = 0;
    char name[33] = "";

    *probe = (struct pki_probe){ .usable = false };
    while (class != NULL && (entry = readdir(class)) != NULL) {
        double rate;

        if (entry->d_name[0] == '.')
            continue;
        devices++;
        rate = look_at_device(entry->d_name);
        if (rate < 0)
            continue;
        if (active++ == 0 || rate * pki_tuning.rdma.payload_percent / 100 > probe->gbps) {
            probe->gbps = rate * pki_tuning.rdma.payload_percent / 100;
            (void)snprintf(name, sizeof name, "%.32s", entry->d_name);
        }
    }
    if (class != NULL)
        closedir(class);
    probe->usable = active > 0;
    if (devices == 0)
        (void)snprintf(probe->reason, sizeof probe->reason, "no RDMA device in " CLASS);
    else if (active == 0)
        (void)snprintf(probe->reason, sizeof probe->reason,
                       "no port of %d RDMA devices is active, or PK_IFNAME or PK_RDMA_DEVICES names none", devices);
    else
        (void)snprintf(probe->reason, sizeof probe->reason, "%d RDMA devices with an active port, %s among them", active, name);
}

/* ---- Rails ---- */

static void rail_close(struct pki_rdma_rail *rail)
{
    const struct pki_verbs *verbs = pki_verbs(NULL);

    if (rail->cq != NULL)
        verbs->destroy_cq(rail->cq);
    if (rail->channel != NULL)
        verbs->destroy_comp_channel(rail->channel);
    if (rail->pd != NULL)
        verbs->dealloc_pd(rail->pd);
    if (rail->context != NULL)
        verbs->close_device(rail->context);
    memset(rail, 0, sizeof *rail);
}

static pk_result_t read_port(struct pki_rdma_rail *rail, struct ibv_port_attr *port)
{
    memset(port, 0, sizeof *port);
    if (pki_verbs(NULL)->query_port(rail->context, rail->port, port) != 0 || port->state != IBV_PORT_ACTIVE)
        return PK_ERR_UNSUPPORTED;
    rail->ethernet = port->link_layer == IBV_LINK_LAYER_ETHERNET;
    rail->lid = port->lid;
    rail->mtu = port->active_mtu;
    return pki_rdma_choose_gid(rail, port->gid_tbl_len);
}

bool pki_rdma_rail_look(struct pki_rdma_rail *rail)
{
    struct ibv_port_attr port;

    rail->usable = read_port(rail, &port) == PK_OK;
    return rail->usable;
}

/* Completions are told on it, to who sleeps. */
static pk_result_t open_channel(struct pki_rdma_iface *iface, struct pki_rdma_rail *rail)
{
    struct epoll_event event = { .events = EPOLLIN };

    rail->channel = pki_verbs(NULL)->create_comp_channel(rail->context);
    if (rail->channel == NULL)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "rdma: ibv_create_comp_channel on %s", rail->name);
    if (fcntl(rail->channel->fd, F_SETFL, O_NONBLOCK) != 0 ||
        epoll_ctl(iface->epoll_fd, EPOLL_CTL_ADD, rail->channel->fd, &event) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "rdma: the completion channel of %s", rail->name);
    return PK_OK;
}

/* A device may limit how much can be registered at once. */
static void limit_pieces(struct pki_rdma_iface *iface, uint64_t max_bytes)
{
    while (iface->piece_shift > PKI_RDMA_PIECE_SHIFT_MIN && (uint64_t)1 << iface->piece_shift > max_bytes)
        iface->piece_shift--;
}

static pk_result_t furnish(struct pki_rdma_iface *iface, struct pki_rdma_rail *rail)
{
    const struct pki_verbs *verbs = pki_verbs(NULL);
    int peers = iface->size - 1;
    int wanted = peers * (int)(2 * PKI_RDMA_RING + 8 + iface->nqps * (PKI_RDMA_DEPTH + PKI_RDMA_TELLING + 1));
    struct ibv_device_attr attr;
    pk_result_t result;

    if (verbs->query_device(rail->context, &attr) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "rdma: ibv_query_device of %s", rail->name);
    if (wanted > attr.max_cqe)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL,
                        "rdma: %s has completion queues of %d entries at most, %d are needed for %d peers", rail->name,
                        attr.max_cqe, wanted, peers);
    limit_pieces(iface, attr.max_mr_size);
    rail->pd = verbs->alloc_pd(rail->context);
    if (rail->pd == NULL)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "rdma: ibv_alloc_pd on %s", rail->name);
    result = open_channel(iface, rail);
    if (result != PK_OK)
        return result;
    rail->cq = verbs->create_cq(rail->context, wanted, NULL, rail->channel, 0);
    if (rail->cq == NULL)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "rdma: ibv_create_cq of %d entries on %s", wanted, rail->name);
    return PK_OK;
}

/* Such as Soft-RoCE: it hangs on no bus. */
static bool is_software(const char *device)
{
    char path[600], target[600];
    ssize_t n;

    (void)snprintf(path, sizeof path, CLASS "/%.128s", device);
    n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    return strstr(target, "/devices/virtual/") != NULL;
}

/* The first usable port of a device; PK_ERR_UNSUPPORTED when there is none. */
static pk_result_t rail_open(struct ibv_device *device, struct pki_rdma_rail *rail)
{
    const struct pki_verbs *verbs = pki_verbs(NULL);
    struct ibv_device_attr attr;
    struct ibv_port_attr port;

    memset(rail, 0, sizeof *rail);
    (void)snprintf(rail->name, sizeof rail->name, "%.31s", verbs->get_device_name(device));
    rail->context = verbs->open_device(device);
    if (rail->context == NULL || verbs->query_device(rail->context, &attr) != 0) {
        pki_log(PKI_LOG_INFO, NULL, "rdma: device %s cannot be opened", rail->name);
        rail_close(rail);
        return PK_ERR_UNSUPPORTED;
    }
    for (rail->port = 1; rail->port <= attr.phys_port_cnt; rail->port++) {
        pk_result_t result = read_port(rail, &port);

        rail->usable = result == PK_OK && allowed(rail->interface) && device_allowed(rail->name, rail->port);
        if (rail->usable)
            return PK_OK;
        if (result == PK_ERR_ARG) {
            rail_close(rail);
            return result;
        }
    }
    rail_close(rail);
    return PK_ERR_UNSUPPORTED;
}

static int by_name(const void *a, const void *b)
{
    const struct pki_verbs *verbs = pki_verbs(NULL);

    return strcmp(verbs->get_device_name(*(struct ibv_device *const *)a), verbs->get_device_name(*(struct ibv_device *const *)b));
}

/* Of several devices those that are nearest to the GPU, or to the CPUs. Devices that are no PCI devices are equally near. */
static int keep_nearest(const struct pki_rdma_iface *iface, struct ibv_device **devices, int n)
{
    const struct pki_pci_device *nics[16];
    struct pki_device_info info = { 0 };
    struct pki_topology *topology;
    int near = 0, kept = 0;

    if (n < 2 || pki_topology_load(NULL, true, &topology) != PK_OK)
        return n;
    if (iface->device != NULL) {
        iface->device->ops->info(iface->device, &info);
        near = pki_topology_nearest_nics(topology, info.pci_bus_id, nics, 16);
    }
    if (near == 0)
        near = pki_topology_local_nics(topology, nics, 16);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < near; k++)
            if (strcmp(nics[k]->name, pki_verbs(NULL)->get_device_name(devices[i])) == 0) {
                devices[kept++] = devices[i];
                break;
            }
    pki_topology_free(topology);
    return kept > 0 ? kept : n;
}

static pk_result_t open_some(struct pki_rdma_iface *iface, struct ibv_device **devices, int n)
{
    for (int i = 0; i < n && iface->nrails < PKI_RDMA_RAILS_MAX; i++) {
        struct pki_rdma_rail *rail = &iface->rails[iface->nrails];
        pk_result_t result = rail_open(devices[i], rail);

        if (result == PK_ERR_UNSUPPORTED)
            continue;
        if (result == PK_OK) {
            iface->nrails++;
            result = furnish(iface, rail);
            if (is_software(rail->name)) {
                iface->base.in_threads = true;
                atomic_store_explicit(&iface->base.in_kernel, true, memory_order_relaxed);
            }
        }
        if (result != PK_OK)
            return result;
    }
    if (iface->nrails == 0)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "rdma: no device of %d has a port that can be used", n);
    return PK_OK;
}

pk_result_t pki_rdma_rails_open(struct pki_rdma_iface *iface)
{
    const char *why = NULL;
    const struct pki_verbs *verbs = pki_verbs(&why);
    struct ibv_device **list;
    struct ibv_device *devices[64];
    pk_result_t result;
    int count = 0, n = 0;

    if (verbs == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "rdma: %s", why);
    list = verbs->get_device_list(&count);
    if (list == NULL)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "rdma: ibv_get_device_list");
    for (int i = 0; i < count && n < 64; i++)
        if (device_allowed(verbs->get_device_name(list[i]), 0))
            devices[n++] = list[i];
    qsort(devices, (size_t)n, sizeof devices[0], by_name);
    n = keep_nearest(iface, devices, n);
    result = open_some(iface, devices, n);
    verbs->free_device_list(list);
    if (result != PK_OK)
        pki_rdma_rails_close(iface);
    return result;
}

void pki_rdma_rails_close(struct pki_rdma_iface *iface)
{
    while (iface->nrails > 0)
        rail_close(&iface->rails[--iface->nrails]);
}
