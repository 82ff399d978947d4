/* SPDX-License-Identifier: Apache-2.0 */
#include "number.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

bool number_parse(const char *text, size_t *number)
{
    static const char units[] = "KMG";
    char *end;
    unsigned long long value;
    const char *unit;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (end == text || errno != 0 || *text == '-' || value > ULLONG_MAX >> 1)
        return false;
    if (*end != '\0') {
        unit = strchr(units, *end & ~0x20);
        if (unit == NULL || *unit == '\0' || end[1] != '\0' || value >> 30 != 0)
            return false;
        value <<= 10 * (unit - units + 1);
    }
    *number = (size_t)value;
    return true;
}
