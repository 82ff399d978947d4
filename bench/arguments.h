/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arguments of all programs here: a table of options, each with where its value goes. What cannot be understood ends the program, with code 2
 * and a line that says which option it was, its value, and what it may be. Needs nothing but libc.
 */
#ifndef BENCH_ARGUMENTS_H
#define BENCH_ARGUMENTS_H

#include <stddef.h>

enum argument_kind {
    ARGUMENT_NO_MORE,
    ARGUMENT_IS_FLAG,
    ARGUMENT_IS_WHOLE,
    ARGUMENT_IS_REAL,
    ARGUMENT_IS_WORD,
    ARGUMENT_IS_TEXT,
    ARGUMENT_IS_TAKEN
};

/* An option, by one of the macros below; a table ends with { 0 }. */
struct argument {
    const char *name; /* the long one; NULL: there is the letter alone */
    char letter;      /* 0: there is none */
    enum argument_kind kind;
    size_t bytes; /* of what `to` points to */
    void *to;
    double least, most;
    const char *const *words;
    const char *otherwise; /* its value where none is given; NULL: one must be */
    void (*take)(char *value);
};

/* `TO` is a bool. */
#define ARGUMENT_FLAG(NAME, LETTER, TO) \
    { \
        NAME, LETTER, ARGUMENT_IS_FLAG, .bytes = sizeof *(TO), .to = (TO) \
    }
/* A size_t, int or unsigned: a number as argument_size reads it. */
#define ARGUMENT_NUMBER(NAME, LETTER, TO, LEAST, MOST) \
    { \
        NAME, LETTER, ARGUMENT_IS_WHOLE, .bytes = sizeof *(TO), .to = (TO), .least = (double)(LEAST), .most = (double)(MOST) \
    }
/* A double. */
#define ARGUMENT_REAL(NAME, LETTER, TO, LEAST, MOST) \
    { \
        NAME, LETTER, ARGUMENT_IS_REAL, .to = (TO), .least = (LEAST), .most = (MOST) \
    }
/* A bool, int or enum: which of WORDS, up to NULL, it is. MAYBE: OTHERWISE without a value. */
#define ARGUMENT_WORD(NAME, LETTER, TO, WORDS) ARGUMENT_MAYBE(NAME, LETTER, TO, WORDS, NULL)
#define ARGUMENT_MAYBE(NAME, LETTER, TO, WORDS, OTHERWISE) \
    { \
        NAME, LETTER, ARGUMENT_IS_WORD, .bytes = sizeof *(TO), .to = (TO), .words = (WORDS), .otherwise = (OTHERWISE) \
    }
/* A const char *. */
#define ARGUMENT_TEXT(NAME, LETTER, TO) \
    { \
        NAME, LETTER, ARGUMENT_IS_TEXT, .to = (TO) \
    }
/* What TAKE makes of it. */
#define ARGUMENT_TAKEN(NAME, LETTER, TAKE) \
    { \
        NAME, LETTER, ARGUMENT_IS_TAKEN, .take = (TAKE) \
    }

/* All options. --help and -h print `usage` and end the program; so do, with code 2, unknown options and another number of words behind them than
 * `least` to `most`. Returns the index of the first of these. */
int arguments_parse(const char *program, const char *usage, const struct argument *table, int least, int most, int argc,
                    char **argv);

/* For what is no option, or says more than a table can. "PROGRAM: WHAT 'VALUE' is not understood (--help)" */
_Noreturn void argument_refuse(const char *what, const char *value);

/* A decimal number, or one below 2^30 with K, M or G (1024, its square and cube; small letters too). */
size_t argument_size(const char *what, const char *value, double least, double most);

/* Which of `words`, up to NULL. */
int argument_word(const char *what, const char *value, const char *const *words);

#endif
