/* SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *program_name = "?";

void arguments_of(const char *program)
{
    program_name = program;
}

_Noreturn void argument_refuse(const char *what, const char *value)
{
    fprintf(stderr, "%s: %s '%s' is not understood (--help)\n", program_name, what, value);
    exit(2);
}

static bool parse(const char *text, size_t *number)
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

size_t argument_size(const char *what, const char *value, size_t least, size_t most)
{
    size_t number;

    if (!parse(value, &number) || number < least || number > most)
        argument_refuse(what, value);
    return number;
}

unsigned argument_number(const char *what, const char *value, unsigned least, unsigned most)
{
    return (unsigned)argument_size(what, value, least, most);
}

int argument_word(const char *what, const char *value, const char *const *words)
{
    for (int i = 0; words[i] != NULL; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    argument_refuse(what, value);
}
