/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/bootstrap_wire.h"

#include <stdlib.h>
#include <string.h>

#define ID_MAGIC 0x31644b50u        /* "PKd1" */
#define HELLO_MAGIC 0x31684b50u     /* "PKh1" */
#define CHALLENGE_MAGIC 0x31634b50u /* "PKc1" */
#define FRAME_MAGIC 0x31624b50u     /* "PKb1" */

/* The id: magic u32, address count u8, zero[3], secret[16], job[8], then the addresses {family u16 (4 or 6), port u16, scope u32,
 * address[16]}; exactly the 128 bytes with four of them. */
#define ID_HEAD_BYTES 8
#define ID_SECRET_AT ID_HEAD_BYTES
#define ID_JOB_AT (ID_SECRET_AT + PKI_SECRET_BYTES)
#define ID_ADDRESS_AT (ID_JOB_AT + PKI_JOB_BYTES)
#define ID_ADDRESS_BYTES 24

_Static_assert(ID_ADDRESS_AT + PKI_ID_ADDRESSES * ID_ADDRESS_BYTES == PK_UNIQUE_ID_BYTES, "the id is full");

static void put_u16(unsigned char *out, uint16_t v)
{
    out[0] = (unsigned char)v;
    out[1] = (unsigned char)(v >> 8);
}

static void put_u32(unsigned char *out, uint32_t v)
{
    put_u16(out, (uint16_t)v);
    put_u16(out + 2, (uint16_t)(v >> 16));
}

static uint16_t get_u16(const unsigned char *in)
{
    return (uint16_t)(in[0] | in[1] << 8);
}

static uint32_t get_u32(const unsigned char *in)
{
    return get_u16(in) | (uint32_t)get_u16(in + 2) << 16;
}

static bool all_zero(const unsigned char *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (in[i] != 0)
            return false;
    return true;
}

static void put_address(unsigned char *out, const struct pki_address *address)
{
    if (address->storage.ss_family == AF_INET6) {
        struct sockaddr_in6 v6;

        memcpy(&v6, &address->storage, sizeof v6);
        put_u16(out, 6);
        put_u16(out + 2, ntohs(v6.sin6_port));
        put_u32(out + 4, v6.sin6_scope_id);
        memcpy(out + 8, &v6.sin6_addr, 16);
    } else {
        struct sockaddr_in v4;

        memcpy(&v4, &address->storage, sizeof v4);
        put_u16(out, 4);
        put_u16(out + 2, ntohs(v4.sin_port));
        memcpy(out + 8, &v4.sin_addr, 4);
    }
}

static bool get_address(const unsigned char *in, struct pki_address *address)
{
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(get_u16(in + 2)), .sin6_scope_id = get_u32(in + 4) };
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(get_u16(in + 2)) };

    memset(address, 0, sizeof *address);
    if (get_u16(in + 2) == 0)
        return false;
    if (get_u16(in) == 6) {
        memcpy(&v6.sin6_addr, in + 8, 16);
        memcpy(&address->storage, &v6, sizeof v6);
        address->bytes = sizeof v6;
        return true;
    }
    if (get_u16(in) != 4 || !all_zero(in + 4, 4) || !all_zero(in + 12, 12))
        return false;
    memcpy(&v4.sin_addr, in + 8, 4);
    memcpy(&address->storage, &v4, sizeof v4);
    address->bytes = sizeof v4;
    return true;
}

void pki_wire_put_id(pk_unique_id_t *out, const struct pki_id *id)
{
    memset(out, 0, sizeof *out);
    put_u32(out->bytes, ID_MAGIC);
    out->bytes[4] = (unsigned char)id->address_count;
    memcpy(out->bytes + ID_SECRET_AT, id->secret.key, PKI_SECRET_BYTES);
    memcpy(out->bytes + ID_JOB_AT, id->secret.job, PKI_JOB_BYTES);
    for (int i = 0; i < id->address_count; i++)
        put_address(out->bytes + ID_ADDRESS_AT + i * ID_ADDRESS_BYTES, &id->address[i]);
}

bool pki_wire_get_id(const pk_unique_id_t *bytes, struct pki_id *id)
{
    const unsigned char *in = bytes->bytes;

    memset(id, 0, sizeof *id);
    if (get_u32(in) != ID_MAGIC || in[4] > PKI_ID_ADDRESSES || !all_zero(in + 5, 3))
        return false;
    memcpy(id->secret.key, in + ID_SECRET_AT, PKI_SECRET_BYTES);
    memcpy(id->secret.job, in + ID_JOB_AT, PKI_JOB_BYTES);
    for (int i = 0; i < PKI_ID_ADDRESSES; i++) {
        const unsigned char *at = in + ID_ADDRESS_AT + i * ID_ADDRESS_BYTES;

        if (i < in[4] ? !get_address(at, &id->address[i]) : !all_zero(at, ID_ADDRESS_BYTES))
            return false;
    }
    id->address_count = in[4];
    return true;
}

void pki_wire_put_hello(unsigned char out[PKI_HELLO_BYTES], const struct pki_hello *hello)
{
    memset(out, 0, PKI_HELLO_BYTES);
    put_u32(out, HELLO_MAGIC);
    out[4] = (unsigned char)hello->kind;
    put_u32(out + 8, hello->from);
    put_u32(out + 12, hello->to);
    put_u32(out + 16, hello->size);
    memcpy(out + 20, hello->nonce, PKI_NONCE_BYTES);
}

bool pki_wire_get_hello(const unsigned char bytes[PKI_HELLO_BYTES], struct pki_hello *hello)
{
    if (get_u32(bytes) != HELLO_MAGIC || !all_zero(bytes + 5, 3))
        return false;
    if (bytes[4] != PKI_HELLO_CONTROL && bytes[4] != PKI_HELLO_LOCAL)
        return false;
    hello->kind = (enum pki_hello_kind)bytes[4];
    hello->from = get_u32(bytes + 8);
    hello->to = get_u32(bytes + 12);
    hello->size = get_u32(bytes + 16);
    memcpy(hello->nonce, bytes + 20, PKI_NONCE_BYTES);
    return true;
}

void pki_wire_put_challenge(unsigned char out[PKI_CHALLENGE_BYTES], const unsigned char nonce[PKI_NONCE_BYTES],
                            const unsigned char mac[PKI_MAC_BYTES])
{
    put_u32(out, CHALLENGE_MAGIC);
    memcpy(out + 4, nonce, PKI_NONCE_BYTES);
    memcpy(out + 4 + PKI_NONCE_BYTES, mac, PKI_MAC_BYTES);
}

bool pki_wire_get_challenge(const unsigned char bytes[PKI_CHALLENGE_BYTES], const unsigned char **nonce,
                            const unsigned char **mac)
{
    if (get_u32(bytes) != CHALLENGE_MAGIC)
        return false;
    *nonce = bytes + 4;
    *mac = bytes + 4 + PKI_NONCE_BYTES;
    return true;
}

void pki_wire_put_frame(unsigned char out[PKI_FRAME_HEADER_BYTES], const struct pki_frame *frame)
{
    memset(out, 0, PKI_FRAME_HEADER_BYTES);
    put_u32(out, FRAME_MAGIC);
    out[4] = (unsigned char)frame->type;
    put_u32(out + 8, frame->sequence);
    put_u32(out + 12, frame->bytes);
}

bool pki_wire_get_frame(const unsigned char bytes[PKI_FRAME_HEADER_BYTES], size_t part_max, size_t all_max,
                        struct pki_frame *frame)
{
    uint32_t count = get_u32(bytes + 12);
    bool fits = false;

    if (get_u32(bytes) != FRAME_MAGIC || !all_zero(bytes + 5, 3))
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
    case PKI_FRAME_BYE:
        fits = count == 0;
        break;
    }
    if (!fits)
        return false;
    frame->type = (enum pki_frame_type)bytes[4];
    frame->sequence = get_u32(bytes + 8);
    frame->bytes = count;
    return true;
}

size_t pki_wire_put_notice(unsigned char out[PKI_NOTICE_BYTES], const struct pki_notice *notice)
{
    size_t length = strnlen(notice->text, PKI_NOTICE_TEXT - 1);

    put_u32(out, (uint32_t)notice->code);
    put_u32(out + 4, (uint32_t)notice->peer);
    memcpy(out + 8, notice->text, length);
    return 8 + length;
}

bool pki_wire_get_notice(const unsigned char *bytes, size_t count, struct pki_notice *notice)
{
    uint32_t code;

    if (count < 8 || count - 8 > PKI_NOTICE_TEXT - 1)
        return false;
    code = get_u32(bytes);
    if (code < PK_ERR_ARG || code > PK_ERR_INTERNAL)
        return false;
    memset(notice, 0, sizeof *notice);
    notice->code = (pk_result_t)code;
    notice->peer = (int)get_u32(bytes + 4);
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
