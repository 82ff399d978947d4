/* SPDX-License-Identifier: Apache-2.0 */
#include "ports.h"

#include <math.h>
#include <stdlib.h>

static int place_of(const struct sim_ports *ports, uint32_t rank)
{
    return ports->members == NULL ? (int)rank : ports->members[rank];
}

static int node_of(const struct sim_ports *ports, int place)
{
    return place / ports->machine->ranks_per_node;
}

static int nic_of(const struct sim_ports *ports, int place)
{
    int local = place % ports->machine->ranks_per_node, nics = ports->machine->nics_per_node;

    return node_of(ports, place) * nics + local * nics / ports->machine->ranks_per_node;
}

bool sim_ports_are_near(const struct sim_ports *ports, const uint32_t rank[2])
{
    return node_of(ports, place_of(ports, rank[0])) == node_of(ports, place_of(ports, rank[1]));
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* One that serves in turn: from `from` on, or when it is free, for `us`. Returns when that ends. */
static double serve(double *free_at, double from, double us)
{
    *free_at = larger(from, *free_at) + us;
    return *free_at;
}

uint32_t sim_core_of(const struct sim_ports *ports, uint32_t rank)
{
    const struct sim_machine *m = ports->machine;
    int place = place_of(ports, rank), local = place % m->ranks_per_node;

    return (uint32_t)(m->cores_per_node > 0 ? place - local + local % m->cores_per_node : place);
}

double sim_compute(struct sim_ports *ports, uint32_t rank, double from, double us)
{
    return serve(&ports->cpu[place_of(ports, rank)], from, us);
}

/* How much of `bytes` does not stay in a cache of `cache` bytes: nothing of half as much, all of four times as much. */
static double misses(double bytes, double cache)
{
    double share = cache > 0 && bytes > 0 ? (log2(bytes / cache) + 1) / 3 : 1;

    return share > 1 ? 1 : share < 0 ? 0 : share;
}

/* Of data of a rank that touches `touched` bytes. */
static double bytes_us(const struct sim_ports *ports, double bytes, const struct sim_rate *rate, double touched)
{
    double memory = rate->memory, node = rate->node > 0 ? rate->node : memory, core = rate->core > 0 ? rate->core : node;
    double off_core, off_node;

    if (memory <= 0)
        return 0;
    if (core == memory && node == memory)
        return bytes / (memory * 1e3);
    off_core = misses(touched, ports->machine->core_cache_bytes);
    off_node = misses(ports->all_touched, ports->machine->node_cache_bytes);
    return bytes / 1e3 * ((1 - off_core) / core + off_core * ((1 - off_node) / node + off_node / memory));
}

double sim_work_us(const struct sim_ports *ports, uint32_t rank, const struct sim_work *kind, double bytes)
{
    return kind->step_us + bytes_us(ports, bytes, &kind->gbps, ports->touched[rank]);
}

double sim_combine_us(const struct sim_ports *ports, uint32_t rank, double bytes)
{
    const struct sim_work *kind = &ports->machine->reduce;

    return kind->step_us + bytes_us(ports, bytes, &kind->gbps, 1) + bytes_us(ports, 2 * bytes, &kind->gbps, ports->touched[rank]);
}

bool sim_is_in_lane(const struct sim_ports *ports, double whole)
{
    const struct sim_machine *m = ports->machine;

    return whole <= (ports->crowd > 1 && ports->collective && m->crowd_lane_bytes > 0 ? m->crowd_lane_bytes : m->lane_bytes);
}

bool sim_is_shared(const struct sim_ports *ports, double whole)
{
    return ports->machine->shared_bytes > 0 && whole >= ports->machine->shared_bytes && !sim_is_in_lane(ports, whole);
}

double sim_copy_us(const struct sim_ports *ports, const uint32_t rank[2], bool receiver, double bytes, double whole)
{
    const struct sim_link *link = &ports->machine->intra;
    const struct sim_rate *lane = link->lane_gbps.memory > 0 ? &link->lane_gbps : &link->gbps;
    double each = receiver ? link->recv_us : link->send_us;

    if (whole <= ports->machine->short_bytes && link->short_us > 0)
        each = link->short_us;
    if (sim_is_in_lane(ports, whole))
        return each + bytes_us(ports, bytes, lane, ports->touched[rank[receiver ? 1 : 0]]);
    if (receiver && !sim_is_shared(ports, whole))
        return each;
    return each + bytes_us(ports, bytes, &link->gbps, larger(ports->touched[rank[0]], ports->touched[rank[1]]));
}

/* Of one port. */
static double wire_us(const struct sim_ports *ports, const uint32_t rank[2], double bytes, double whole)
{
    bool near = sim_ports_are_near(ports, rank);
    const struct sim_link *link = near ? &ports->machine->intra : &ports->machine->inter;
    bool lane = near && link->lane_gbps.memory > 0 && sim_is_in_lane(ports, whole);

    return bytes_us(ports, bytes, lane ? &link->lane_gbps : &link->gbps,
                    larger(ports->touched[rank[0]], ports->touched[rank[1]]));
}

double sim_leave(struct sim_ports *ports, const uint32_t rank[2], double bytes, double whole, double now, double *head)
{
    bool near = sim_ports_are_near(ports, rank);
    int from = place_of(ports, rank[0]);
    const struct sim_link *link = near ? &ports->machine->intra : &ports->machine->inter;
    double us = wire_us(ports, rank, bytes, whole);
    double left = serve(near ? &ports->tx[from] : &ports->nic_tx[nic_of(ports, from)], now, link->send_us + us);

    *(near ? &ports->intra_bytes : &ports->inter_bytes) += bytes;
    *head = left - us + link->latency_us;
    if (near && link->shared_gbps > 0)
        *head = larger(*head, serve(&ports->shared[node_of(ports, from)], now, bytes / (link->shared_gbps * 1e3)) - us);
    return left;
}

double sim_arrive(struct sim_ports *ports, const uint32_t rank[2], double bytes, double whole, double now)
{
    int to = place_of(ports, rank[1]);
    bool near = sim_ports_are_near(ports, rank);

    return serve(near ? &ports->rx[to] : &ports->nic_rx[nic_of(ports, to)], now, wire_us(ports, rank, bytes, whole));
}

/* Bytes of the caller's buffers that ranks use: only the root's where the others have none. */
static void find_touched(struct sim_ports *ports, const struct sim_world *world, bool all_roots, const struct pki_layout *layout,
                         double element_bytes)
{
    const struct pki_shape *shape = pki_coll_shape(world->algorithm->coll);
    int nodes = 1;

    ports->even = world->size > 2 || !world->in_place;
    ports->collective = !world->in_place;
    for (int rank = 0; rank < world->size; rank++) {
        size_t in = all_roots || pki_shape_has_in(shape, rank, world->root) ? layout->in_total : 0;
        size_t out = all_roots || pki_shape_has_out(shape, rank, world->root) ? layout->out_total : 0;

        size_t scratch = world->plans[rank]->scratch_blocks > 0 ? pki_layout_scratch(layout, world->plans[rank]) : 0;

        ports->touched[rank] = (double)(in + out + scratch * world->plans[rank]->scratch_blocks) * element_bytes;
        ports->all_touched += ports->touched[rank];
        if (rank > 0 && !sim_ports_are_near(ports, (const uint32_t[2]){ (uint32_t)rank - 1, (uint32_t)rank }))
            nodes++;
    }
    ports->all_touched /= nodes;
    if (ports->machine->cores_per_node > 0)
        ports->crowd = (world->size / nodes + ports->machine->cores_per_node - 1) / ports->machine->cores_per_node;
}

bool sim_ports_open(struct sim_ports *ports, const struct sim_machine *m, const struct sim_world *world, bool all_roots,
                    const int *members, const struct pki_layout *layout, double element_bytes)
{
    size_t places = (size_t)sim_machine_ranks(m), nics = (size_t)m->nodes * (size_t)(m->nics_per_node + 1);

    *ports = (struct sim_ports){ .machine = m, .members = members };
    ports->tx = calloc(3 * places + 2 * nics + (size_t)m->nodes, sizeof *ports->tx);
    ports->touched = calloc((size_t)world->size, sizeof *ports->touched);
    if (ports->tx == NULL || ports->touched == NULL) {
        sim_ports_close(ports);
        return false;
    }
    ports->rx = ports->tx + places;
    ports->cpu = ports->rx + places;
    ports->nic_tx = ports->cpu + places;
    ports->nic_rx = ports->nic_tx + nics;
    ports->shared = ports->nic_rx + nics;
    find_touched(ports, world, all_roots, layout, element_bytes);
    return true;
}

void sim_ports_close(struct sim_ports *ports)
{
    free(ports->tx);
    free(ports->touched);
    *ports = (struct sim_ports){ 0 };
}
