/* SPDX-License-Identifier: Apache-2.0 */
#include "switchml/packet.h"

#include <string.h>

#define TYPE 1u /* of packets that are to be added up */
#define SIZE_64 1u
#define SIZE_256 3u

/* The id is in the worker's byte order, and opaque to a switch. Here all is little-endian but what the switch reads: pool index
 * and values. */
void pki_switchml_pack(const struct pki_switchml_packet *packet, uint32_t elements, unsigned char out[PKI_SWITCHML_HEADER_BYTES])
{
    out[0] = (unsigned char)(TYPE << 4 | (elements == 64 ? SIZE_64 : SIZE_256));
    out[1] = packet->job;
    for (int i = 0; i < 4; i++)
        out[2 + i] = (unsigned char)(packet->id >> 8 * i);
    out[6] = (unsigned char)(packet->index >> 8);
    out[7] = (unsigned char)packet->index;
    out[8] = (unsigned char)packet->exponents[0];
    out[9] = (unsigned char)packet->exponents[1];
}

bool pki_switchml_unpack(const void *data, size_t bytes, uint32_t elements, struct pki_switchml_packet *packet)
{
    const unsigned char *in = data;

    if (!pki_switchml_elements_ok(elements) || bytes != pki_switchml_packet_bytes(elements) ||
        in[0] != (TYPE << 4 | (elements == 64 ? SIZE_64 : SIZE_256)))
        return false;
    packet->job = in[1];
    packet->id = (uint32_t)in[2] | (uint32_t)in[3] << 8 | (uint32_t)in[4] << 16 | (uint32_t)in[5] << 24;
    packet->index = (uint16_t)(in[6] << 8 | in[7]);
    memcpy(packet->exponents, in + 8, sizeof packet->exponents);
    return (packet->index & 0x4000u) == 0;
}
