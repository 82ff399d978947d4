/* SPDX-License-Identifier: Apache-2.0 */
/* The values of the table, and the table itself: where each value lies. */
#include "tuning/tuning.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PART(part) .part = {
#define VALUE(part, type, name, value) .name = (value),
#define FIXED(part, name, constant, value)
#define END(part) \
    } \
    ,
struct pki_tuning pki_tuning = {
#define PKI_TABLE_OF_PROCESS
#include "tuning/table.h"
#undef PKI_TABLE_OF_PROCESS
};

struct pki_agreed pki_agreed = {
#define PKI_TABLE_OF_RANK_0
#include "tuning/table.h"
#undef PKI_TABLE_OF_RANK_0
};
#undef PART
#undef VALUE
#undef FIXED
#undef END

enum home { OF_PROCESS, OF_RANK_0, NOWHERE };

struct entry {
    const char *part, *name;
    uint64_t usual;
    enum home home;
    size_t at, bytes; /* within its home */
};

#define PART(part)
#define FIXED(part, name, constant, value) { #part, #name, (value), NOWHERE, 0, 0 },
#define END(part)
static const struct entry entries[] = {
#define VALUE(part, type, name, value) \
    { #part, #name, (value), OF_PROCESS, offsetof(struct pki_tuning, part.name), sizeof(type) },
#define PKI_TABLE_OF_PROCESS
#include "tuning/table.h"
#undef PKI_TABLE_OF_PROCESS
#undef VALUE
#define VALUE(part, type, name, value) { #part, #name, (value), OF_RANK_0, offsetof(struct pki_agreed, part.name), sizeof(type) },
#define PKI_TABLE_OF_RANK_0
#include "tuning/table.h"
#undef PKI_TABLE_OF_RANK_0
};

enum { ENTRIES = sizeof entries / sizeof entries[0] };

static uint64_t read_value(const struct entry *entry, const void *home)
{
    const char *at = (const char *)home + entry->at;
    uint64_t whole;
    uint32_t half;

    if (entry->bytes == sizeof whole) {
        memcpy(&whole, at, sizeof whole);
        return whole;
    }
    memcpy(&half, at, sizeof half);
    return half;
}

static void write_value(const struct entry *entry, uint64_t value)
{
    char *at = (char *)(entry->home == OF_PROCESS ? (void *)&pki_tuning : (void *)&pki_agreed) + entry->at;
    uint32_t half = (uint32_t)value;

    if (entry->bytes == sizeof value)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &half, sizeof half);
}

/* "part.name" is the first `length` characters of `text`. */
static const struct entry *find(const char *text, size_t length)
{
    for (size_t i = 0; i < ENTRIES; i++) {
        size_t part = strlen(entries[i].part), name = strlen(entries[i].name);

        if (length == part + 1 + name && memcmp(text, entries[i].part, part) == 0 && text[part] == '.' &&
            memcmp(text + part + 1, entries[i].name, name) == 0)
            return &entries[i];
    }
    return NULL;
}

/* One "part.name=number" with `length` characters. */
static bool override(const char *text, size_t length)
{
    const char *equal = memchr(text, '=', length);
    const struct entry *entry = equal == NULL ? NULL : find(text, (size_t)(equal - text));
    unsigned long long value;
    char *end;

    if (entry == NULL || entry->home == NOWHERE || !isdigit((unsigned char)equal[1]))
        return false;
    errno = 0;
    value = strtoull(equal + 1, &end, 10);
    if (end != text + length || errno != 0 || value > INT64_MAX || (entry->bytes < sizeof value && value > INT32_MAX))
        return false;
    write_value(entry, value);
    return true;
}

const char *pki_tuning_override(const char *text)
{
    while (*text != '\0') {
        size_t length = strcspn(text, ",");

        if (!override(text, length))
            return text;
        text += length + (text[length] == ',');
    }
    return NULL;
}

bool pki_tuning_row(const struct pki_agreed *agreed, size_t number, struct pki_tuning_row *row)
{
    const struct entry *entry = number < ENTRIES ? &entries[number] : NULL;

    if (entry == NULL)
        return false;
    *row = (struct pki_tuning_row){
        .part = entry->part, .name = entry->name, .value = entry->usual, .usual = entry->usual, .fixed = entry->home == NOWHERE
    };
    if (entry->home == OF_PROCESS)
        row->value = read_value(entry, &pki_tuning);
    else if (entry->home == OF_RANK_0)
        row->value = read_value(entry, agreed);
    return true;
}
