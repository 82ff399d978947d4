/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to a topology that has been loaded. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "topology/topology.h"

static const char *const names[] = {
    [PKI_DIST_UNKNOWN] = "unknown", [PKI_DIST_SELF] = "SELF", [PKI_DIST_NVL] = "NVL",   [PKI_DIST_PIX] = "PIX",
    [PKI_DIST_PXB] = "PXB",         [PKI_DIST_PHB] = "PHB",   [PKI_DIST_NODE] = "NODE", [PKI_DIST_SYS] = "SYS"
};

const char *pki_distance_name(enum pki_distance distance)
{
    return (unsigned)distance <= PKI_DIST_SYS ? names[distance] : "unknown";
}

bool pki_distance_parse(const char *text, enum pki_distance *distance)
{
    for (int d = PKI_DIST_SELF; d <= PKI_DIST_SYS; d++) {
        if (strcasecmp(text, names[d]) == 0 || (d == PKI_DIST_SELF && strcasecmp(text, "LOC") == 0)) {
            *distance = (enum pki_distance)d;
            return true;
        }
    }
    return false;
}

/* A bus id as one number, so that spellings can be compared. */
static bool parse_bus_id(const char *text, uint64_t *id)
{
    unsigned domain = 0, bus, device, function;
    int end = 0;

    if (sscanf(text, "%x:%x:%x.%x%n", &domain, &bus, &device, &function, &end) < 4 || text[end] != '\0') {
        domain = 0;
        if (sscanf(text, "%x:%x.%x%n", &bus, &device, &function, &end) < 3 || text[end] != '\0')
            return false;
    }
    *id = (uint64_t)domain << 32 | (uint64_t)bus << 16 | device << 8 | function;
    return true;
}

static int find(const struct pki_topology *topology, const char *bus_id)
{
    uint64_t wanted, id;

    if (!parse_bus_id(bus_id, &wanted))
        return -1;
    for (int i = 0; i < topology->ndevices; i++)
        if (parse_bus_id(topology->devices[i].bus_id, &id) && id == wanted)
            return i;
    return -1;
}

enum pki_distance pki_topology_distance(const struct pki_topology *topology, const char *bus_id_a, const char *bus_id_b)
{
    int a = find(topology, bus_id_a), b = find(topology, bus_id_b);

    if (a < 0 || b < 0)
        return PKI_DIST_UNKNOWN;
    return (enum pki_distance)topology->distances[a * topology->ndevices + b];
}

static int collect_nics(const struct pki_topology *topology, int best, const uint8_t *distances,
                        const struct pki_pci_device **nics, int capacity)
{
    int n = 0;

    for (int i = 0; i < topology->ndevices && n < capacity; i++)
        if (topology->devices[i].kind == PKI_PCI_NIC && distances[i] == best)
            nics[n++] = &topology->devices[i];
    return n;
}

int pki_topology_nearest_nics(const struct pki_topology *topology, const char *bus_id, const struct pki_pci_device **nics,
                              int capacity)
{
    int device = find(topology, bus_id), best = PKI_DIST_SYS + 1;
    const uint8_t *distances;

    if (device < 0)
        return 0;
    distances = &topology->distances[device * topology->ndevices];
    for (int i = 0; i < topology->ndevices; i++)
        if (topology->devices[i].kind == PKI_PCI_NIC && distances[i] < best)
            best = distances[i];
    return collect_nics(topology, best, distances, nics, capacity);
}

/* -1: not known. */
static int how_far(const struct pki_topology *topology, int from, const char *card)
{
    int at = find(topology, card);

    if (at < 0)
        return -1;
    if (from >= 0) {
        int distance = topology->distances[from * topology->ndevices + at];

        return distance == PKI_DIST_UNKNOWN ? -1 : distance;
    }
    if (topology->local_node < 0 || topology->devices[at].numa_node < 0)
        return -1;
    return topology->devices[at].numa_node == topology->local_node ? PKI_DIST_NODE : PKI_DIST_SYS;
}

int pki_topology_mark_near(const struct pki_topology *topology, const char *bus_id, char (*cards)[16], int n, bool *near)
{
    int from = bus_id != NULL ? find(topology, bus_id) : -1, best = PKI_DIST_SYS + 1, count = 0;

    for (int i = 0; i < n; i++) {
        int distance = how_far(topology, from, cards[i]);

        best = distance >= 0 && distance < best ? distance : best;
    }
    for (int i = 0; i < n; i++) {
        int distance = how_far(topology, from, cards[i]);

        near[i] = distance < 0 || distance == best;
        count += near[i];
    }
    return count;
}

int pki_topology_local_nics(const struct pki_topology *topology, const struct pki_pci_device **nics, int capacity)
{
    bool local = false;
    int n = 0;

    for (int i = 0; i < topology->ndevices && !local; i++)
        local = topology->devices[i].kind == PKI_PCI_NIC && topology->local_node >= 0 &&
                topology->devices[i].numa_node == topology->local_node;
    for (int i = 0; i < topology->ndevices && n < capacity; i++)
        if (topology->devices[i].kind == PKI_PCI_NIC && (!local || topology->devices[i].numa_node == topology->local_node))
            nics[n++] = &topology->devices[i];
    return n;
}
