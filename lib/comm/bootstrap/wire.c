/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/bootstrap/wire.h"

#include <stdlib.h>
#include <string.h>

#include "util/bytes.h"
#include "util/netif.h"

#define ID_MAGIC 0x31644b50u        /* "PKd1" */
#define HELLO_MAGIC 0x33684b50u     /* "PKh3" */
#define CHALLENGE_MAGIC 0x31634b50u /* "PKc1" */
#define FRAME_MAGIC 0x31624b50u     /* "PKb1" */

/* The id: magic u32, address count u8, listened u8 (2: led, 3: grows), zero[2], secret[16], job[8], then the addresses
 * (util/netif.h); exactly the 128 bytes with four of them. */
#define ID_HEAD_BYTES 8
#define ID_SECRET_AT ID_HEAD_BYTES
#define ID_JOB_AT (ID_SECRET_AT + PKI_SECRET_BYTES)
#define ID_ADDRESS_AT (ID_JOB_AT + PKI_JOB_BYTES)

_Static_assert(ID_ADDRESS_AT + PKI_ID_ADDRESSES * PKI_NETIF_WIRE_BYTES == PK_UNIQUE_ID_BYTES, "the id is full");

void pki_wire_put_id(pk_unique_id_t *out, const struct pki_id *id)
{
    memset(out, 0, sizeof *out);
    pki_put_u32(out->bytes, ID_MAGIC);
    out->bytes[4] = (unsigned char)id->address_count;
    out->bytes[5] = (unsigned char)(id->listened + id->led + 2 * id->grows);
    memcpy(out->bytes + ID_SECRET_AT, id->secret.key, PKI_SECRET_BYTES);
    memcpy(out->bytes + ID_JOB_AT, id->secret.job, PKI_JOB_BYTES);
    for (int i = 0; i < id->address_count; i++)
        pki_netif_put(out->bytes + ID_ADDRESS_AT + i * PKI_NETIF_WIRE_BYTES, &id->address[i]);
}

bool pki_wire_get_id(const pk_unique_id_t *bytes, struct pki_id *id)
{
    const unsigned char *in = bytes->bytes;

    memset(id, 0, sizeof *id);
    if (pki_get_u32(in) != ID_MAGIC || in[4] > PKI_ID_ADDRESSES || in[5] > 3 || !pki_all_zero(in + 6, 2))
        return false;
    memcpy(id->secret.key, in + ID_SECRET_AT, PKI_SECRET_BYTES);
    memcpy(id->secret.job, in + ID_JOB_AT, PKI_JOB_BYTES);
    for (int i = 0; i < PKI_ID_ADDRESSES; i++) {
        const unsigned char *at = in + ID_ADDRESS_AT + i * PKI_NETIF_WIRE_BYTES;

        if (i < in[4] ? !pki_netif_get(at, &id->address[i]) : !pki_all_zero(at, PKI_NETIF_WIRE_BYTES))
            return false;
    }
    id->listened = in[5] != 0;
    id->led = in[5] == 2;
    id->grows = in[5] == 3;
    id->address_count = in[4];
    return true;
}

void pki_wire_put_hello(unsigned char out[PKI_HELLO_BYTES], const struct pki_hello *hello)
{
    memset(out, 0, PKI_HELLO_BYTES);
    pki_put_u32(out, HELLO_MAGIC);
    out[4] = (unsigned char)hello->kind;
    pki_put_u32(out + 8, hello->from);
    pki_put_u32(out + 12, hello->to);
    pki_put_u32(out + 16, hello->size);
    pki_put_u32(out + 20, hello->life);
    memcpy(out + 24, hello->nonce, PKI_NONCE_BYTES);
}

bool pki_wire_is_other_version(const unsigned char bytes[4])
{
    const uint32_t magic = pki_get_u32(bytes);

    return (magic & 0xffffff) == (HELLO_MAGIC & 0xffffff) && magic != HELLO_MAGIC && bytes[3] >= '0' && bytes[3] <= '9';
}

bool pki_wire_get_hello(const unsigned char bytes[PKI_HELLO_BYTES], struct pki_hello *hello)
{
    if (pki_get_u32(bytes) != HELLO_MAGIC || !pki_all_zero(bytes + 5, 3))
        return false;
    if (bytes[4] != PKI_HELLO_CONTROL && bytes[4] != PKI_HELLO_LOCAL)
        return false;
    hello->kind = (enum pki_hello_kind)bytes[4];
    hello->from = pki_get_u32(bytes + 8);
    hello->to = pki_get_u32(bytes + 12);
    hello->size = pki_get_u32(bytes + 16);
    hello->life = pki_get_u32(bytes + 20);
    memcpy(hello->nonce, bytes + 24, PKI_NONCE_BYTES);
    return true;
}

void pki_wire_put_challenge(unsigned char out[PKI_CHALLENGE_BYTES], const unsigned char nonce[PKI_NONCE_BYTES],
                            const unsigned char mac[PKI_MAC_BYTES])
{
    pki_put_u32(out, CHALLENGE_MAGIC);
    memcpy(out + 4, nonce, PKI_NONCE_BYTES);
    memcpy(out + 4 + PKI_NONCE_BYTES, mac, PKI_MAC_BYTES);
}

bool pki_wire_get_challenge(const unsigned char bytes[PKI_CHALLENGE_BYTES], const unsigned char **nonce,
                            const unsigned char **mac)
{
    if (pki_get_u32(bytes) != CHALLENGE_MAGIC)
        return false;
    *nonce = bytes + 4;
    *mac = bytes + 4 + PKI_NONCE_BYTES;
    return true;
}

void pki_wire_put_frame(unsigned char out[PKI_FRAME_HEADER_BYTES], const struct pki_frame *frame)
{
    memset(out, 0, PKI_FRAME_HEADER_BYTES);
    pki_put_u32(out, FRAME_MAGIC);
    out[4] = (unsigned char)frame->type;
    pki_put_u32(out + 8, frame->sequence);
    pki_put_u32(out + 12, frame->bytes);
}

bool pki_wire_get_frame(const unsigned char bytes[PKI_FRAME_HEADER_BYTES], size_t part_max, size_t all_max,
                        struct pki_frame *frame)
{
    uint32_t count = pki_get_u32(bytes + 12);
    bool fits = false;

    if (pki_get_u32(bytes) != FRAME_MAGIC || !pki_all_zero(bytes + 5, 3))
        return false;
    switch (bytes[4]) {
    case PKI_FRAME_WELCOME:
        fits = count == PKI_SESSION_BYTES;
        break;
    case PKI_FRAME_PART:
        fits = count <= part_max;
        break;
    case PKI_FRAME_ALL:
        fits = count <= all_max;
        break;
    case PKI_FRAME_NOTICE:
        fits = count >= 8 && count <= PKI_NOTICE_BYTES;
        break;
    case PKI_FRAME_SHUTDOWN:
        fits = count == 0;
        break;
    case PKI_FRAME_WHERE:
        fits = count == PK_UNIQUE_ID_BYTES;
        break;
    case PKI_FRAME_PLACE:
        fits = count == PKI_PLACE_BYTES;
        break;
    }
    if (!fits)
        return false;
    frame->type = (enum pki_frame_type)bytes[4];
    frame->sequence = pki_get_u32(bytes + 8);
    frame->bytes = count;
    return true;
}

size_t pki_wire_put_notice(unsigned char out[PKI_NOTICE_BYTES], const struct pki_notice *notice)
{
    size_t length = strnlen(notice->text, PKI_NOTICE_TEXT - 1);

    pki_put_u32(out, (uint32_t)notice->code);
    pki_put_u32(out + 4, (uint32_t)notice->peer);
    memcpy(out + 8, notice->text, length);
    return 8 + length;
}

bool pki_wire_get_notice(const unsigned char *bytes, size_t count, struct pki_notice *notice)
{
    uint32_t code;

    if (count < 8 || count - 8 > PKI_NOTICE_TEXT - 1)
        return false;
    code = pki_get_u32(bytes);
    if (code < PK_ERR_ARG || code > PK_ERR_INTERNAL)
        return false;
    memset(notice, 0, sizeof *notice);
    notice->code = (pk_result_t)code;
    notice->peer = (int)pki_get_u32(bytes + 4);
    if (notice->peer < -1)
        return false;
    /* The text goes into a log line: nothing in it may start another or speak to a terminal. */
    for (size_t i = 0; i < count - 8; i++)
        notice->text[i] = (char)(bytes[8 + i] >= 0x20 && bytes[8 + i] < 0x7f ? bytes[8 + i] : '?');
    return true;
}

bool pki_wire_split_host_port(const char *text, char host[PKI_HOST_BYTES], char port[PKI_PORT_BYTES])
{
    const bool bracket = text[0] == '[';
    const char *begin = bracket ? text + 1 : text;
    const char *end = bracket ? strchr(begin, ']') : strchr(begin, ':');
    const char *digits;
    size_t count;

    if (end == NULL || end == begin || (size_t)(end - begin) >= PKI_HOST_BYTES || (bracket && end[1] != ':'))
        return false;
    digits = bracket ? end + 2 : end + 1;
    count = strlen(digits);
    if (count == 0 || count > 5 || strspn(digits, "0123456789") != count || atoi(digits) < 1 || atoi(digits) > 65535)
        return false;
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = '\0';
    memcpy(port, digits, count + 1);
    return true;
}
