/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine as the simulator sees it: nodes of ranks, links inside a node and between nodes. Times in microseconds, rates in GB/s
 * (1e9 bytes a second). In the spirit of LogGP: what a message costs its ends, the way, and the bytes.
 */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * GB/s by where the data is: in the caches of single cores ("gbps_core" in the file), in the one that a node's cores share ("gbps_node"),
 * or in memory ("gbps"). 0: as the next slower.
 */
struct sim_rate {
    double core, node, memory;
};

struct sim_link {
    double latency_us;    /* from the last byte leaving to the receiver knowing */
    double send_us;       /* what a chunk costs the sending port beside its bytes */
    double recv_us;       /* what a chunk costs the receiving rank's CPU */
    double short_us;      /* either, of a transfer of short_bytes at most; 0: as any other */
    double handshake_us;  /* grant, before the first chunk of a transfer that is not eager */
    struct sim_rate gbps; /* of one port, each way; of one core where cores move the bytes */
    /* of each end's copy of what goes in the lane; of a port, where no core copies (kernels of GPUs) */
    struct sim_rate lane_gbps;
    double shared_gbps; /* of everything in a node together; 0: ports do not meet */
};

struct sim_work {
    double step_us;       /* to start one */
    struct sim_rate gbps; /* bytes read and written */
};

/* In the network, or a program beside the ranks (pickle-aggregator). */
struct sim_aggregator {
    double latency_us; /* between a rank and it */
    double gbps;       /* of a rank's link to it, each way; 0: no limit */
    double port_gbps;  /* of its own link, which the ranks share; 0: it has one for each of them, as a switch */
    /* what a packet costs its core, in or out, and the packet's bytes; 0: nothing, as of a switch */
    double packet_us, packet_gbps;
    double rank_us, rank_gbps; /* likewise a rank's */
    bool shares_cores;         /* its core is one of the cores_per_node */
};

struct sim_machine {
    char name[128];
    int nodes, ranks_per_node;
    int cores_per_node; /* that ranks share; 0: one a rank */
    int nics_per_node;  /* rank i of a node uses NIC i * nics / ranks */
    double chunk_bytes, eager_bytes;
    double operation_us; /* from the call to the first step */
    double switch_us;    /* of a core that several ranks share: until one of them that has something to do gets it */
    /* inside a node cores move the bytes: up to lane_bytes each end copies them once, from shared_bytes on */
    bool copied_by_cpu;
    double lane_bytes, shared_bytes; /* both ends move parts of them (0: never), and between these the sender does it */
    double crowd_lane_bytes;         /* instead of lane_bytes in collectives of more ranks than cores; 0: the same */
    double lane_message_bytes;       /* of which the receiver copies one while the sender makes the next; 0: all at once */
    double short_bytes;
    double core_cache_bytes, node_cache_bytes; /* 0: rates do not depend on where the data is */
    bool measured;                             /* fitted to figures of this machine; else from data sheets */
    struct sim_link intra, inter;
    struct sim_work reduce, copy;
    double tflops; /* of one rank, for the patterns of training */
    struct sim_aggregator aggregator;
};

/* A number of the machine by the name it has in the file, "intra.gbps"; NULL for others. */
double *sim_machine_number(struct sim_machine *machine, const char *name);
/* Would a file with this number be read? */
bool sim_machine_allows(const char *name, double number);
/* Names of all that a fit may change, NULL at the end. */
extern const char *const sim_machine_fitted[];

/* Both say on stderr what is wrong with the file, and where. */
bool sim_machine_load(struct sim_machine *machine, const char *path);
bool sim_machine_save(const struct sim_machine *machine, const char *path);

static inline int sim_machine_ranks(const struct sim_machine *machine)
{
    return machine->nodes * machine->ranks_per_node;
}

#endif
