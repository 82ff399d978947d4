/* SPDX-License-Identifier: Apache-2.0 */
/* Test data is a function of (seed, case, round, rank, tag, position): whoever receives it can compute what it should be. */
#include "conform.h"

#include <string.h>

uint64_t data_key(uint64_t seed, unsigned number, unsigned round, int rank, unsigned tag)
{
    return data_mix(data_mix(data_mix(data_mix(seed + 1) + number) + round) + ((uint64_t)tag << 32) + (unsigned)rank);
}

void data_fill(void *out, size_t bytes, uint64_t key)
{
    char *to = out;
    uint64_t word;
    size_t at;

    for (at = 0; at + 8 <= bytes; at += 8) {
        word = data_mix(key + at);
        memcpy(to + at, &word, 8);
    }
    word = data_mix(key + at);
    if (at < bytes)
        memcpy(to + at, &word, bytes - at);
}

bool data_equal(const void *got, size_t bytes, uint64_t key, size_t *where)
{
    const char *from = got;
    uint64_t word;
    size_t at;

    for (at = 0; at + 8 <= bytes; at += 8) {
        memcpy(&word, from + at, 8);
        if (word != data_mix(key + at))
            break;
    }
    word = data_mix(key + at);
    *where = at;
    return at == bytes || (at + 8 > bytes && memcmp(from + at, &word, bytes - at) == 0);
}

uint64_t data_digest(const void *data, size_t bytes)
{
    const unsigned char *from = data;
    uint64_t digest = bytes, word;
    size_t at;

    for (at = 0; at + 8 <= bytes; at += 8) {
        memcpy(&word, from + at, 8);
        digest = data_mix(digest + word);
    }
    if (at == bytes)
        return digest;
    word = 0;
    memcpy(&word, from + at, bytes - at);
    return data_mix(digest + word);
}
