/* SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 40  /* of a table */
#define FIRST_INDEX 256 /* what getopt_long returns for a long option: this and its place in the table */

static const char *program_name = "?";

_Noreturn void argument_refuse(const char *what, const char *value)
{
    fprintf(stderr, "%s: %s '%s' is not understood (--help)\n", program_name, what, value);
    exit(2);
}

static _Noreturn void refuse_number(const char *what, const char *value, double least, double most)
{
    fprintf(stderr, "%s: %s '%s' is no number from %.15g ", program_name, what, value, least);
    if (most < (double)(ULLONG_MAX >> 1))
        fprintf(stderr, "to %.15g (--help)\n", most);
    else
        fputs("on (--help)\n", stderr);
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

size_t argument_size(const char *what, const char *value, double least, double most)
{
    size_t number;

    if (!parse(value, &number) || (double)number < least || (double)number > most)
        refuse_number(what, value, least, most);
    return number;
}

static double real(const char *what, const char *value, double least, double most)
{
    char *end;
    double number;

    errno = 0;
    number = strtod(value, &end);
    if (errno != 0 || end == value || *end != '\0' || !(number >= least && number <= most))
        refuse_number(what, value, least, most);
    return number;
}

int argument_word(const char *what, const char *value, const char *const *words)
{
    for (int i = 0; words[i] != NULL; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    fprintf(stderr, "%s: %s '%s' is none of", program_name, what, value);
    for (int i = 0; words[i] != NULL; i++)
        fprintf(stderr, " %s", words[i]);
    fputs(" (--help)\n", stderr);
    exit(2);
}

static void store(const struct argument *a, size_t value)
{
    if (a->bytes == sizeof(bool))
        *(bool *)a->to = value != 0;
    else if (a->bytes == sizeof(unsigned))
        *(unsigned *)a->to = (unsigned)value;
    else
        *(size_t *)a->to = value;
}

static void take(const struct argument *a, char *value)
{
    char what[64];

    if (a->name != NULL)
        (void)snprintf(what, sizeof what, "--%s", a->name);
    else
        (void)snprintf(what, sizeof what, "-%c", a->letter);
    switch (a->kind) {
    case ARGUMENT_IS_FLAG:
        store(a, 1);
        break;
    case ARGUMENT_IS_WHOLE:
        store(a, argument_size(what, value, a->least, a->most));
        break;
    case ARGUMENT_IS_REAL:
        *(double *)a->to = real(what, value, a->least, a->most);
        break;
    case ARGUMENT_IS_WORD:
        store(a, (size_t)argument_word(what, value != NULL ? value : a->otherwise, a->words));
        break;
    case ARGUMENT_IS_TEXT:
        *(const char **)a->to = value;
        break;
    default:
        a->take(value);
    }
}

static _Noreturn void show(const char *usage, bool asked)
{
    fputs(usage, asked ? stdout : stderr);
    exit(asked ? 0 : 2);
}

/* The table as getopt_long wants it. */
static void describe(const struct argument *table, char *letters, struct option *options)
{
    for (int i = 0; table[i].kind != ARGUMENT_NO_MORE; i++) {
        int has = table[i].kind == ARGUMENT_IS_FLAG ? no_argument
                  : table[i].otherwise == NULL      ? required_argument
                                                    : optional_argument;

        if (i == OPTIONS_MAX)
            abort();
        if (table[i].letter != 0) {
            *letters++ = table[i].letter;
            for (int colon = 0; colon < has; colon++) /* none, one for a value, two where it may be left out */
                *letters++ = ':';
        }
        if (table[i].name != NULL)
            *options++ = (struct option){ table[i].name, has, NULL, FIRST_INDEX + i };
    }
    *options = (struct option){ "help", no_argument, NULL, 'h' };
    *letters++ = 'h';
    *letters = '\0';
}

int arguments_parse(const char *program, const char *usage, const struct argument *table, int least, int most, int argc,
                    char **argv)
{
    char letters[3 * OPTIONS_MAX + 2];
    struct option options[OPTIONS_MAX + 2] = { { 0 } };
    int c, i;

    program_name = program;
    describe(table, letters, options);
    while ((c = getopt_long(argc, argv, letters, options, NULL)) != -1) {
        if (c == 'h' || c == '?')
            show(usage, c == 'h');
        i = c - FIRST_INDEX;
        if (c < FIRST_INDEX)
            for (i = 0; table[i].letter != c;)
                i++;
        take(&table[i], optarg);
    }
    if (argc - optind < least || argc - optind > most)
        show(usage, false);
    return optind;
}
