/* SPDX-License-Identifier: Apache-2.0 */
/* One packet of the in-network allreduce as it is in a datagram (docs/switchml.md). Pure functions of bytes. */
#ifndef PKI_SWITCHML_PACKET_H
#define PKI_SWITCHML_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PKI_SWITCHML_PORT 48864 /* UDP, of the aggregator */
#define PKI_SWITCHML_HEADER_BYTES 10
#define PKI_SWITCHML_ELEMENTS_MAX 256
#define PKI_SWITCHML_PACKET_MAX (PKI_SWITCHML_HEADER_BYTES + 4 * PKI_SWITCHML_ELEMENTS_MAX)
#define PKI_SWITCHML_WORKERS_MAX 32
#define PKI_SWITCHML_SLOTS_MAX 8191        /* the switch has 16,384 registers, two a slot */
#define PKI_SWITCHML_SET 0x8000u           /* of a pool index; the slot is below */
#define PKI_SWITCHML_MARKS_DIFFER INT8_MAX /* for the second exponent of a reply, and no rank's mark: larger than each of them */
#define PKI_SWITCHML_THREADS_MAX 16        /* of a worker, each with a UDP port: they follow one another */

struct pki_switchml_packet {
    uint32_t id;    /* of the packet within its job */
    uint16_t index; /* slot, and PKI_SWITCHML_SET where the second of its two sets is meant */
    uint8_t job;    /* low 8 bits of the job's number */
    int8_t exponents[2];
};

/* Packets carry 64 or 256 values: what else there is no switch serves. */
static inline bool pki_switchml_elements_ok(uint32_t elements)
{
    return elements == 64 || elements == 256;
}

static inline size_t pki_switchml_packet_bytes(uint32_t elements)
{
    return PKI_SWITCHML_HEADER_BYTES + 4 * (size_t)elements;
}

/* The first slot of a worker's thread, where each thread has `window` packets on its way at most. As the reference, whose threads
 * leave as many slots unused between them. */
static inline uint32_t pki_switchml_base(uint32_t window, uint32_t thread)
{
    return 2 * window * thread;
}

/* That an aggregator needs for all of them. */
static inline uint32_t pki_switchml_slots(uint32_t window, uint32_t threads)
{
    return pki_switchml_base(window, threads - 1) + window;
}

/* The header of a packet of `elements` values, which follow it. */
void pki_switchml_pack(const struct pki_switchml_packet *packet, uint32_t elements, unsigned char out[PKI_SWITCHML_HEADER_BYTES]);
/* Of a datagram of `bytes`. False: it is no packet of `elements` values. */
bool pki_switchml_unpack(const void *data, size_t bytes, uint32_t elements, struct pki_switchml_packet *packet);

#endif
