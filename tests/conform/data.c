/* SPDX-License-Identifier: Apache-2.0 */
/* Test data is a function of (seed, case, round, rank, tag, position): whoever receives it can compute what it should be. */
#include "conform.h"

#include <string.h>

uint64_t data_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t data_key(uint64_t seed, unsigned number, unsigned round, int rank, unsigned tag)
{
    return data_mix(data_mix(data_mix(data_mix(seed + 1) + number) + round) + ((uint64_t)tag << 32) + (unsigned)rank);
}

void data_fill(void *out, size_t bytes, uint64_t key)
{
    char *to = out;

    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = data_mix(key + at);

        memcpy(to + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

bool data_equal(const void *got, size_t bytes, uint64_t key, size_t *where)
{
    const char *from = got;

    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = data_mix(key + at);
        size_t n = bytes - at < 8 ? bytes - at : 8;

        if (memcmp(from + at, &word, n) != 0) {
            *where = at;
            return false;
        }
    }
    return true;
}

uint64_t data_digest(const void *data, size_t bytes)
{
    const unsigned char *from = data;
    uint64_t digest = bytes;

    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;

        memcpy(&word, from + at, bytes - at < 8 ? bytes - at : 8);
        digest = data_mix(digest + word);
    }
    return digest;
}
