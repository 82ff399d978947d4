/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks of operations. The second exponent of a packet is of no use to anybody, nor is the first where the packet has none; of
 * both every rank learns the largest. So one carries a mark and the other its complement: where the marks of two ranks differ,
 * both see a larger one than their own. With an exponent only the rank with the smaller mark does; so pickle-aggregator says it
 * to all (PKI_SWITCHML_MARKS_DIFFER).
 *
 * A mark has eight bits of a hash of the job, of the operation's number and of what it is, others in each packet. It tells apart
 * what packets do not: operations 256 jobs apart, and those of an earlier owner of the port. Pure functions.
 */
#ifndef PKI_SWITCHML_MARKS_H
#define PKI_SWITCHML_MARKS_H

#include <stdbool.h>
#include <stdint.h>

#include "switchml/packet.h"
#include "switchml/session.h"

enum pki_switchml_marked {
    PKI_SWITCHML_OWN,   /* as all ranks mark this operation */
    PKI_SWITCHML_MIXED, /* what this rank has put in, and a larger one: another rank's, of another operation */
    /* Without what this rank has put in: the reply is of an operation that is over, whatever others call. With an exponent it is
     * known as one only by a smaller mark, and is MIXED else. */
    PKI_SWITCHML_FOREIGN
};

/* What the marks of an operation are made of. `sig`: what it is, the same on ranks that call the same. */
uint32_t pki_switchml_operation(const unsigned char id[PKI_SWITCHML_ID_BYTES], uint64_t number, uint32_t sig);

/* Into the exponents of a packet; the first only where it has none. */
void pki_switchml_mark(uint32_t operation, bool has_exponent, struct pki_switchml_packet *packet);
/* Of a reply. One with an exponent, which a switch has made, may be OWN to the rank with the larger mark though ranks differ. */
enum pki_switchml_marked pki_switchml_marked(uint32_t operation, bool has_exponent, const struct pki_switchml_packet *reply);

#endif
