/* SPDX-License-Identifier: Apache-2.0 */
#include "words.h"

#include <stdlib.h>
#include <string.h>

void words_add_one(struct words *words, const char *text, size_t length)
{
    char *at = words->storage + words->used;

    if (words->count == WORDS_MAX - 1 || words->used + length + 1 > sizeof words->storage) {
        fprintf(stderr, "pickle-compare: a command is too long\n");
        exit(2);
    }
    memcpy(at, text, length);
    at[length] = '\0';
    words->list[words->count++] = at;
    words->list[words->count] = NULL;
    words->used += length + 1;
}

void words_add(struct words *words, const char *text, const char *divider)
{
    while (text != NULL && *text != '\0') {
        size_t length = strcspn(text, divider);

        if (length > 0)
            words_add_one(words, text, length);
        text += length + (text[length] != '\0');
    }
}

void words_add_for_rank(struct words *words, const char *text, int rank)
{
    const char *mark;
    char one[SPEC_BYTES];

    for (; text != NULL && (mark = strstr(text, "%r")) != NULL; text = mark + 2) {
        snprintf(one, sizeof one, "%.*s%d", (int)(mark - text), text, rank);
        words_add(words, one, " ");
    }
    words_add(words, text, " ");
}

void words_set_variables(char *const *words, int rank)
{
    for (; *words != NULL; words++) {
        char text[SPEC_BYTES];
        char *value;
        char *mark;

        snprintf(text, sizeof text, "%s", *words);
        value = strchr(text, '=');
        if (value == NULL)
            continue;
        *value++ = '\0';
        mark = strstr(value, "%r");
        if (mark != NULL)
            snprintf(mark, sizeof text - (size_t)(mark - text), "%d", rank);
        setenv(text, value, 1);
    }
}
