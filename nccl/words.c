/* SPDX-License-Identifier: Apache-2.0 */
#include "words.h"

#include <stddef.h>
#include <string.h>

struct pkn_words pkn_words_parse(const char *value)
{
    struct pkn_words w = { .words = value };

    w.others = *w.words == '^';
    w.words += w.others;
    w.exact = *w.words == '=';
    w.words += w.exact;
    return w;
}

/* The word that names it, or NULL. */
static const char *find(const struct pkn_words *w, const char *name)
{
    for (const char *word = w->words; *word != '\0';) {
        size_t length = strcspn(word, ",:");

        if (length > 0 && strncmp(name, word, length) == 0 && (!w->exact || name[length] == '\0'))
            return word;
        word += strcspn(word, ",");
        word += *word == ',';
    }
    return NULL;
}

bool pkn_words_take(const struct pkn_words *words, const char *name, const char **port, int *port_length)
{
    const char *word = find(words, name);

    if (word != NULL && port != NULL && port_length != NULL) {
        *port = word + strcspn(word, ",:");
        *port_length = (int)strcspn(*port, ",");
    }
    return (word != NULL) != words->others;
}
