/* SPDX-License-Identifier: Apache-2.0 */
/* Who sits where on this machine, and how far two PCI devices are apart. A snapshot: plain values, read by any thread. */
#ifndef PKI_TOPOLOGY_H
#define PKI_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pickle/base.h"

/* What lies between two PCI devices, nearest first. */
enum pki_distance {
    PKI_DIST_UNKNOWN, /* one of them was not found, or I/O was not looked at */
    PKI_DIST_SELF,    /* they are one device */
    PKI_DIST_NVL,     /* NVLink, directly or through NVSwitches; of a live machine only the driver tells (pki_device_cuda_link) */
    PKI_DIST_PIX,     /* one PCIe switch */
    PKI_DIST_PXB,     /* several PCIe switches, no host bridge */
    PKI_DIST_PHB,     /* a PCIe host bridge: a part of the CPU */
    PKI_DIST_NODE,    /* host bridges of one NUMA node */
    PKI_DIST_SYS      /* the link between NUMA nodes */
};

enum pki_pci_kind { PKI_PCI_GPU, PKI_PCI_NIC };

struct pki_pci_device {
    enum pki_pci_kind kind;
    char bus_id[16]; /* "0000:1b:00.0" */
    char name[32];   /* the system's, "mlx5_0"; else empty */
    int numa_node;   /* the operating system's number; -1: unknown, or several */
};

struct pki_topology {
    int packages, numa_nodes, cores, cpus;
    int cpus_allowed;               /* that this process may run on; of a file: all */
    char *cpu_list;                 /* those, as "0-3,8" */
    int local_node;                 /* the NUMA node that all of them belong to; -1: several, or unknown */
    bool io;                        /* devices have been looked for */
    struct pki_pci_device *devices; /* GPUs and NICs, by bus id */
    int ndevices;
    uint8_t *distances; /* enum pki_distance, [ndevices * ndevices] */
};

/*
 * Look at this machine, or at the one that an hwloc XML file describes (path not NULL). `io`: find PCI devices too, which takes
 * five times as long. PK_ERR_SYSTEM: hwloc cannot; PK_ERR_ARG: the file cannot be read; PK_ERR_MEMORY.
 */
pk_result_t pki_topology_load(const char *path, bool io, struct pki_topology **topology);
void pki_topology_free(struct pki_topology *topology);

/* Bus ids in any spelling ("0000:1B:00.0", "00000000:1b:00.0", "1b:00.0"). UNKNOWN where there is no such device. */
enum pki_distance pki_topology_distance(const struct pki_topology *topology, const char *bus_id_a, const char *bus_id_b);

/*
 * The NICs nearest to a device, by bus id order: all that are equally near, `capacity` of them at most; returns how many. A
 * device that is not known is near to none.
 */
int pki_topology_nearest_nics(const struct pki_topology *topology, const char *bus_id, const struct pki_pci_device **nics,
                              int capacity);
/* The NICs of the memory that the process's CPUs are nearest to; where that is unknown or has none, all of them. */
int pki_topology_local_nics(const struct pki_topology *topology, const struct pki_pci_device **nics, int capacity);

/*
 * Of n cards, by bus ids ("": none), mark those nearest to the device `bus_id`, or, where that is NULL or not known, to the
 * memory that the process's CPUs are nearest to. Cards of which nothing is known count as near. Returns how many.
 */
int pki_topology_mark_near(const struct pki_topology *topology, const char *bus_id, char (*cards)[16], int n, bool *near);

/* "NVL", "PIX", ...; and back, in either case ("LOC" means SELF). False: no such name. */
const char *pki_distance_name(enum pki_distance distance);
bool pki_distance_parse(const char *text, enum pki_distance *distance);

#endif
