/* SPDX-License-Identifier: Apache-2.0 */
#include "switchml/marks.h"

static uint32_t mix(uint32_t hash, uint32_t word)
{
    hash = (hash ^ word) * 0x85ebca6bu;
    hash ^= hash >> 13;
    hash *= 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

uint32_t pki_switchml_operation(const unsigned char id[PKI_SWITCHML_ID_BYTES], uint64_t number, uint32_t sig)
{
    uint32_t hash = mix(mix(mix(0, sig), (uint32_t)number), (uint32_t)(number >> 32));

    for (int i = 0; i < PKI_SWITCHML_ID_BYTES; i++)
        hash = mix(hash, id[i]);
    return hash;
}

static int8_t mark_of(uint32_t operation, uint32_t packet)
{
    const int8_t mark = (int8_t)(uint8_t)(((operation ^ packet * 0x9e3779b9u) * 0x85ebca6bu) >> 24);

    return mark == PKI_SWITCHML_MARKS_DIFFER ? 0 : mark;
}

void pki_switchml_mark(uint32_t operation, bool has_exponent, struct pki_switchml_packet *packet)
{
    packet->exponents[1] = mark_of(operation, packet->id);
    if (!has_exponent)
        packet->exponents[0] = (int8_t)~packet->exponents[1];
}

enum pki_switchml_marked pki_switchml_marked(uint32_t operation, bool has_exponent, const struct pki_switchml_packet *reply)
{
    const int8_t mark = mark_of(operation, reply->id), other = (int8_t)~mark;

    if (reply->exponents[1] < mark || (!has_exponent && reply->exponents[0] < other))
        return PKI_SWITCHML_FOREIGN;
    if (reply->exponents[1] > mark || (!has_exponent && reply->exponents[0] > other))
        return PKI_SWITCHML_MIXED;
    return PKI_SWITCHML_OWN;
}
