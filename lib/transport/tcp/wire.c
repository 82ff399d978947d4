/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/wire.h"

#include <netinet/in.h>
#include <string.h>

#include "util/bytes.h"
#include "util/netif.h"

#define FRAME_MAGIC 0x6b50u         /* "Pk" */
#define FRAME_VERSION 2u            /* of the header */
#define HELLO_MAGIC 0x31744b50u     /* "PKt1" */
#define CHALLENGE_MAGIC 0x31754b50u /* "PKu1" */
#define MSG_HEAD (FRAME_MAGIC | FRAME_VERSION << 16 | (uint32_t)PKI_TCP_MSG << 24)
#define PEER_INFO_HEAD_BYTES 24
#define CHUNK_EAGER_PUT 128u /* flag of a chunk, beside those of messages */

_Static_assert(PEER_INFO_HEAD_BYTES + PKI_TCP_ADDRESSES * PKI_NETIF_WIRE_BYTES <= sizeof((struct pki_blob){ 0 }.bytes),
               "fits in a blob");
_Static_assert(sizeof(struct pki_msg) + 8 == PKI_TCP_MSG_BYTES, "every field of a message is on the wire");
_Static_assert(PKI_TCP_MSG_BYTES + PKI_TCP_PAYLOAD_MAX <= PKI_TCP_MSG_SHORT_BYTES + PKI_TCP_EAGER_MAX,
               "no message is longer than the longest EAGER");

/* ---- Frames ---- */

static void put_header(unsigned char *out, enum pki_tcp_frame_type type, uint32_t bytes)
{
    pki_put_u16(out, FRAME_MAGIC);
    out[2] = FRAME_VERSION;
    out[3] = (unsigned char)type;
    pki_put_u32(out + 4, bytes);
}

bool pki_tcp_get_header(const unsigned char bytes[PKI_TCP_HEADER_BYTES], struct pki_tcp_frame *frame)
{
    static const struct {
        uint32_t min, max;
    } lengths[] = {
        [PKI_TCP_MSG] = { PKI_TCP_MSG_SHORT_BYTES, PKI_TCP_MSG_FRAME_MAX - PKI_TCP_HEADER_BYTES },
        [PKI_TCP_DATA] = { PKI_TCP_DATA_BYTES + 1, PKI_TCP_DATA_BYTES + PKI_TCP_CHUNK_MAX },
        [PKI_TCP_ACK] = { PKI_TCP_ACK_BYTES, PKI_TCP_ACK_BYTES },
        [PKI_TCP_CLOSE] = { PKI_TCP_CLOSE_BYTES, PKI_TCP_CLOSE_BYTES },
    };
    uint32_t length = pki_get_u32(bytes + 4);

    if (pki_get_u32(bytes) == MSG_HEAD) {
        *frame = (struct pki_tcp_frame){ .type = PKI_TCP_MSG, .bytes = length };
        return length - PKI_TCP_MSG_SHORT_BYTES <= PKI_TCP_MSG_FRAME_MAX - PKI_TCP_HEADER_BYTES - PKI_TCP_MSG_SHORT_BYTES;
    }
    if (pki_get_u16(bytes) != FRAME_MAGIC || bytes[2] != FRAME_VERSION || bytes[3] < PKI_TCP_MSG || bytes[3] > PKI_TCP_CLOSE)
        return false;
    if (length < lengths[bytes[3]].min || length > lengths[bytes[3]].max)
        return false;
    *frame = (struct pki_tcp_frame){ .type = (enum pki_tcp_frame_type)bytes[3], .bytes = length };
    return true;
}

size_t pki_tcp_put_msg(unsigned char out[PKI_TCP_MSG_HEAD_MAX], const struct pki_msg *msg)
{
    unsigned char *to = out + PKI_TCP_HEADER_BYTES;
    uint32_t fixed = PKI_TCP_MSG_SHORT_BYTES;

    to[0] = msg->kind;
    to[1] = msg->flags;
    pki_put_u16(to + 2, msg->index);
    pki_put_u32(to + 4, msg->sig);
    pki_put_u64(to + 8, msg->op);
    pki_put_u64(to + 16, msg->kind == PKI_MSG_EAGER ? msg->bytes : msg->offset);
    if (msg->kind != PKI_MSG_EAGER) {
        fixed = PKI_TCP_MSG_BYTES;
        pki_put_u64(to + 24, msg->bytes);
        pki_put_u32(to + 32, msg->region);
        pki_put_u16(to + 36, msg->signal_slot);
        pki_put_u16(to + 38, (uint16_t)msg->payload);
        pki_put_u32(to + 40, msg->signal_value);
        memset(to + 44, 0, PKI_TCP_MSG_BYTES - 44);
    }
    put_header(out, PKI_TCP_MSG, fixed + msg->payload);
    return PKI_TCP_HEADER_BYTES + fixed;
}

/* Bytes before the payload; 0: the message makes no sense. */
static uint32_t fixed_bytes(const unsigned char *bytes, uint32_t count)
{
    bool is_eager = bytes[0] == PKI_MSG_EAGER;
    uint32_t fixed = is_eager ? PKI_TCP_MSG_SHORT_BYTES : PKI_TCP_MSG_BYTES;
    uint32_t most = is_eager ? PKI_TCP_EAGER_MAX : PKI_TCP_PAYLOAD_MAX;

    return count >= fixed && count - fixed <= most ? fixed : 0;
}

bool pki_tcp_get_msg(const unsigned char *bytes, uint32_t count, struct pki_msg *msg, const unsigned char **payload)
{
    struct pki_msg m = { .kind = bytes[0],
                         .flags = bytes[1],
                         .index = pki_get_u16(bytes + 2),
                         .sig = pki_get_u32(bytes + 4),
                         .op = pki_get_u64(bytes + 8) };
    uint32_t fixed = fixed_bytes(bytes, count);

    if (fixed == 0)
        return false;
    m.payload = count - fixed;
    if (m.kind == PKI_MSG_EAGER) {
        m.bytes = pki_get_u64(bytes + 16);
    } else {
        m.offset = pki_get_u64(bytes + 16);
        m.bytes = pki_get_u64(bytes + 24);
        m.region = pki_get_u32(bytes + 32);
        m.signal_slot = pki_get_u16(bytes + 36);
        m.signal_value = pki_get_u32(bytes + 40);
        if (pki_get_u16(bytes + 38) != m.payload)
            return false;
    }
    *msg = m;
    *payload = bytes + fixed;
    return true;
}

void pki_tcp_put_chunk(unsigned char out[PKI_TCP_DATA_HEAD_BYTES], const struct pki_tcp_chunk *chunk)
{
    unsigned char *to = out + PKI_TCP_HEADER_BYTES;

    put_header(out, PKI_TCP_DATA, PKI_TCP_DATA_BYTES + chunk->bytes);
    to[0] = chunk->eager_put > 0 ? chunk->flags | CHUNK_EAGER_PUT : chunk->flags;
    to[1] = 0;
    pki_put_u16(to + 2, chunk->index);
    pki_put_u32(to + 4, chunk->sig);
    pki_put_u64(to + 8, chunk->op);
    pki_put_u64(to + 16, chunk->offset | (uint64_t)chunk->eager_put << 32);
    memset(to + 24, 0, PKI_TCP_DATA_BYTES - 24);
}

static bool is_zero(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

/* It has its transfer's length in the upper half of the offset. */
static bool get_eager_put(struct pki_tcp_chunk *chunk)
{
    chunk->flags &= (uint8_t)~CHUNK_EAGER_PUT;
    chunk->eager_put = (uint32_t)(chunk->offset >> 32);
    chunk->offset &= UINT32_MAX;
    return chunk->eager_put <= PKI_TCP_EAGER_PUT_MAX && chunk->bytes <= chunk->eager_put &&
           chunk->offset <= chunk->eager_put - chunk->bytes &&
           (chunk->flags & ~PKI_MSG_FLAG_COLL) == 0; /* so that two chunks of a transfer cannot pass for chunks of two */
}

bool pki_tcp_get_chunk(const unsigned char bytes[PKI_TCP_DATA_HEAD_BYTES], struct pki_tcp_chunk *chunk)
{
    const unsigned char *from = bytes + PKI_TCP_HEADER_BYTES;
    struct pki_tcp_frame frame;

    if (!pki_tcp_get_header(bytes, &frame) || frame.type != PKI_TCP_DATA || from[1] != 0 ||
        !is_zero(from + 24, PKI_TCP_DATA_BYTES - 24))
        return false;
    *chunk = (struct pki_tcp_chunk){ .flags = from[0],
                                     .index = pki_get_u16(from + 2),
                                     .sig = pki_get_u32(from + 4),
                                     .op = pki_get_u64(from + 8),
                                     .offset = pki_get_u64(from + 16),
                                     .bytes = frame.bytes - PKI_TCP_DATA_BYTES };
    return (chunk->flags & CHUNK_EAGER_PUT) == 0 || get_eager_put(chunk);
}

void pki_tcp_put_ack(unsigned char out[PKI_TCP_HEADER_BYTES + PKI_TCP_ACK_BYTES], const struct pki_tcp_ack *ack)
{
    put_header(out, PKI_TCP_ACK, PKI_TCP_ACK_BYTES);
    pki_put_u32(out + PKI_TCP_HEADER_BYTES, ack->link);
    pki_put_u32(out + PKI_TCP_HEADER_BYTES + 4, 0);
    pki_put_u64(out + PKI_TCP_HEADER_BYTES + 8, ack->frames);
    memset(out + PKI_TCP_HEADER_BYTES + 16, 0, PKI_TCP_ACK_BYTES - 16);
}

bool pki_tcp_get_ack(const unsigned char bytes[PKI_TCP_ACK_BYTES], struct pki_tcp_ack *ack)
{
    if (pki_get_u32(bytes) >= PKI_TCP_LINKS_MAX || pki_get_u32(bytes + 4) != 0)
        return false;
    *ack = (struct pki_tcp_ack){ .link = pki_get_u32(bytes), .frames = pki_get_u64(bytes + 8) };
    return true;
}

void pki_tcp_put_close(unsigned char out[PKI_TCP_HEADER_BYTES + PKI_TCP_CLOSE_BYTES], uint64_t chunks)
{
    put_header(out, PKI_TCP_CLOSE, PKI_TCP_CLOSE_BYTES);
    pki_put_u64(out + PKI_TCP_HEADER_BYTES, chunks);
    memset(out + PKI_TCP_HEADER_BYTES + 8, 0, PKI_TCP_CLOSE_BYTES - 8);
}

/* ---- The card ---- */

/* The number of an interface means something on its own host alone. */
static struct sockaddr_storage without_scope(struct sockaddr_storage address)
{
    struct sockaddr_in6 v6;

    if (address.ss_family == AF_INET6) {
        memcpy(&v6, &address, sizeof v6);
        v6.sin6_scope_id = 0;
        memcpy(&address, &v6, sizeof v6);
    }
    return address;
}

static bool has_scope(const struct sockaddr_storage *address)
{
    struct sockaddr_in6 v6;

    memcpy(&v6, address, sizeof v6);
    return address->ss_family == AF_INET6 && v6.sin6_scope_id != 0;
}

void pki_tcp_put_peer_info(struct pki_blob *blob, const struct pki_tcp_peer_info *peer_info)
{
    pki_put_u32(blob->bytes, PKI_TCP_VERSION);
    pki_put_u32(blob->bytes + 4, peer_info->sockets);
    pki_put_u32(blob->bytes + 8, peer_info->window);
    pki_put_u32(blob->bytes + 12, peer_info->chunk_bytes);
    pki_put_u32(blob->bytes + 16, peer_info->addresses);
    pki_put_u32(blob->bytes + 20, peer_info->near);
    for (uint32_t i = 0; i < peer_info->addresses; i++) {
        struct sockaddr_storage address = without_scope(peer_info->address[i]);

        pki_netif_put(blob->bytes + PEER_INFO_HEAD_BYTES + i * PKI_NETIF_WIRE_BYTES, &address);
    }
    blob->len = PEER_INFO_HEAD_BYTES + peer_info->addresses * PKI_NETIF_WIRE_BYTES;
    blob->fd = -1;
}

uint32_t pki_tcp_peer_info_version(const struct pki_blob *blob)
{
    return blob->len < PEER_INFO_HEAD_BYTES ? 0 : pki_get_u32(blob->bytes);
}

bool pki_tcp_get_peer_info(const struct pki_blob *blob, struct pki_tcp_peer_info *peer_info)
{
    struct pki_tcp_peer_info c = { 0 };

    if (pki_tcp_peer_info_version(blob) != PKI_TCP_VERSION)
        return false;
    c.sockets = pki_get_u32(blob->bytes + 4);
    c.window = pki_get_u32(blob->bytes + 8);
    c.chunk_bytes = pki_get_u32(blob->bytes + 12);
    c.addresses = pki_get_u32(blob->bytes + 16);
    c.near = pki_get_u32(blob->bytes + 20);
    if (c.sockets < 1 || c.sockets > PKI_TCP_SOCKETS_MAX || c.window < 1 || c.window > PKI_TCP_WINDOW_MAX ||
        c.chunk_bytes < PKI_TCP_CHUNK_MIN || c.chunk_bytes > PKI_TCP_CHUNK_MAX || c.addresses < 1 ||
        c.addresses > PKI_TCP_ADDRESSES || c.near < 1 || c.near > c.addresses ||
        blob->len != PEER_INFO_HEAD_BYTES + c.addresses * PKI_NETIF_WIRE_BYTES)
        return false;
    for (uint32_t i = 0; i < c.addresses; i++) {
        if (!pki_netif_get(blob->bytes + PEER_INFO_HEAD_BYTES + i * PKI_NETIF_WIRE_BYTES, &c.address[i]) ||
            has_scope(&c.address[i]))
            return false;
    }
    *peer_info = c;
    return true;
}

/* ---- Handshake ---- */

void pki_tcp_put_hello(unsigned char out[PKI_TCP_HELLO_BYTES], const struct pki_tcp_hello *hello)
{
    pki_put_u32(out, HELLO_MAGIC);
    pki_put_u32(out + 4, hello->from);
    pki_put_u32(out + 8, hello->to);
    pki_put_u32(out + 12, hello->size);
    pki_put_u32(out + 16, hello->link);
    pki_put_u32(out + 20, 0);
    pki_put_u64(out + 24, hello->received);
    memcpy(out + 32, hello->nonce, PKI_TCP_NONCE_BYTES);
}

bool pki_tcp_get_hello(const unsigned char bytes[PKI_TCP_HELLO_BYTES], struct pki_tcp_hello *hello)
{
    if (pki_get_u32(bytes) != HELLO_MAGIC || pki_get_u32(bytes + 16) >= PKI_TCP_LINKS_MAX || pki_get_u32(bytes + 20) != 0)
        return false;
    hello->from = pki_get_u32(bytes + 4);
    hello->to = pki_get_u32(bytes + 8);
    hello->size = pki_get_u32(bytes + 12);
    hello->link = pki_get_u32(bytes + 16);
    hello->received = pki_get_u64(bytes + 24);
    memcpy(hello->nonce, bytes + 32, PKI_TCP_NONCE_BYTES);
    return true;
}

void pki_tcp_put_challenge(unsigned char out[PKI_TCP_CHALLENGE_BYTES], const struct pki_tcp_challenge *challenge)
{
    pki_put_u32(out, CHALLENGE_MAGIC);
    pki_put_u32(out + 4, 0);
    pki_put_u64(out + 8, challenge->received);
    memcpy(out + 16, challenge->nonce, PKI_TCP_NONCE_BYTES);
    memcpy(out + 16 + PKI_TCP_NONCE_BYTES, challenge->mac, PKI_TCP_MAC_BYTES);
}

bool pki_tcp_get_challenge(const unsigned char bytes[PKI_TCP_CHALLENGE_BYTES], struct pki_tcp_challenge *challenge)
{
    if (pki_get_u32(bytes) != CHALLENGE_MAGIC || pki_get_u32(bytes + 4) != 0)
        return false;
    challenge->received = pki_get_u64(bytes + 8);
    memcpy(challenge->nonce, bytes + 16, PKI_TCP_NONCE_BYTES);
    memcpy(challenge->mac, bytes + 16 + PKI_TCP_NONCE_BYTES, PKI_TCP_MAC_BYTES);
    return true;
}
