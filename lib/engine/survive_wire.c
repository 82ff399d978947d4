/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of an agreement as bytes. */
#include "engine/survive.h"

#include <string.h>

#include "util/bytes.h"

size_t pki_agree_encode(const struct pki_agree_msg *msg, int size, unsigned char *bytes)
{
    const size_t words = pki_agree_words(size);

    pki_put_u64(bytes, msg->number);
    pki_put_u64(bytes + 8, msg->value.all);
    pki_put_u64(bytes + 16, msg->value.last);
    pki_put_u32(bytes + 24, msg->value.calls);
    pki_put_u32(bytes + 28, (uint32_t)msg->kind);
    memcpy(bytes + 32, msg->value.id, PKI_AGREE_ID_BYTES);
    for (size_t i = 0; i < words; i++)
        pki_put_u64(bytes + PKI_AGREE_HEAD_BYTES + 8 * i, msg->set[i]);
    return PKI_AGREE_HEAD_BYTES + 8 * words;
}

bool pki_agree_decode(const unsigned char *bytes, size_t n, int size, struct pki_agree_msg *msg, uint64_t *set)
{
    const size_t words = pki_agree_words(size);
    uint32_t kind;

    if (n != PKI_AGREE_HEAD_BYTES + 8 * words)
        return false;
    kind = pki_get_u32(bytes + 28);
    if (kind < PKI_AGREE_VIEW || kind > PKI_AGREE_FLOOD)
        return false;
    *msg = (struct pki_agree_msg){ .kind = (enum pki_agree_kind)kind, .number = pki_get_u64(bytes), .set = set };
    msg->value.all = pki_get_u64(bytes + 8);
    msg->value.last = pki_get_u64(bytes + 16);
    msg->value.calls = pki_get_u32(bytes + 24);
    memcpy(msg->value.id, bytes + 32, PKI_AGREE_ID_BYTES);
    for (size_t i = 0; i < words; i++)
        set[i] = pki_get_u64(bytes + PKI_AGREE_HEAD_BYTES + 8 * i);
    return size % 64 == 0 || set[words - 1] >> (size % 64) == 0;
}
