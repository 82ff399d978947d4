/* SPDX-License-Identifier: Apache-2.0 */
#include "hca.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "words.h"

#define CLASS "/sys/class/infiniband"

void pkn_hca_of(const char *value, char *const *devices, int n, char *out, size_t room)
{
    const struct pkn_words w = pkn_words_parse(value);
    size_t at = 0;

    for (int i = 0; i < n && at < room; i++) {
        const char *port = "";
        int port_length = 0;

        if (pkn_words_take(&w, devices[i], &port, &port_length))
            at += (size_t)snprintf(out + at, room - at, "%s%s%.*s", at > 0 ? "," : "", devices[i], port_length, port);
    }
    if (at == 0)
        snprintf(out, room, "%s", w.others ? "none" : w.words);
}

static int is_device(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

bool pkn_hca(const char *value, char *out)
{
    struct dirent **entries = NULL;
    int n = scandir(CLASS, &entries, is_device, alphasort);
    char **names = n > 0 ? calloc((size_t)n, sizeof *names) : NULL;

    for (int i = 0; i < n && names != NULL; i++)
        names[i] = entries[i]->d_name;
    pkn_hca_of(value, names, names != NULL ? n : 0, out, PKN_VALUE_BYTES);
    for (int i = 0; i < n; i++)
        free(entries[i]);
    free(entries);
    free(names);
    return true;
}
