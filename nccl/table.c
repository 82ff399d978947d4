/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "error.h"

#define SONAME "libpickle.so.0"

/* Where libpickle lies as seen from this file: installed, and in one folder with it. */
static const char *const beside[] = { "/../../" SONAME, "/" SONAME };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct pkn_table table; /* written by load alone, read-only afterwards */
static bool usable;
static char path[PATH_MAX], why[1024];

static const struct {
    const char *name;
    size_t offset;
} entries[] = {
#define ENTRY(function) { .name = #function, .offset = offsetof(struct pkn_table, function) },
    PKN_NEEDED(ENTRY)
#undef ENTRY
};

/* The folder that this library was loaded from; false where that cannot be told. */
static bool own_folder(char folder[PATH_MAX])
{
    Dl_info info;
    char *slash;

    if (dladdr(&table, &info) == 0 || info.dli_fname == NULL || realpath(info.dli_fname, folder) == NULL)
        return false;
    slash = strrchr(folder, '/');
    if (slash != NULL)
        *slash = '\0';
    return slash != NULL;
}

static void *open_file(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *text = library == NULL ? dlerror() : NULL;
    size_t used = strlen(why);

    if (text != NULL)
        snprintf(why + used, sizeof why - used, "%s%s", used > 0 ? "; " : "", text);
    return library;
}

static void *open_library(void)
{
    const char *given = getenv("PICKLE_LIBRARY");
    char folder[PATH_MAX], name[PATH_MAX + 32];
    void *library = NULL;

    if (given != NULL && *given != '\0')
        return open_file(given);
    for (size_t i = 0; i < sizeof beside / sizeof beside[0] && library == NULL && own_folder(folder); i++) {
        snprintf(name, sizeof name, "%s%s", folder, beside[i]);
        library = open_file(name);
    }
    return library != NULL ? library : open_file(SONAME);
}

static bool find_symbols(void *library)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *symbol = dlsym(library, entries[i].name);

        if (symbol == NULL) {
            snprintf(why, sizeof why, "%.900s has no %s: it is no libpickle, or an older one", path, entries[i].name);
            return false;
        }
        /* memcpy, because C has no conversion from an object's address to a function's. */
        memcpy((char *)&table + entries[i].offset, &symbol, sizeof symbol);
    }
    return true;
}

static void note_path(void *library)
{
    void *symbol = dlsym(library, "pk_version");
    Dl_info info;

    if (symbol == NULL || dladdr(symbol, &info) == 0 || realpath(info.dli_fname, path) == NULL)
        strcpy(path, SONAME);
}

static void load(void)
{
    void *library;

    pkn_env_translate(); /* before libpickle reads a variable */
    library = open_library();
    if (library == NULL)
        return;
    note_path(library);
    usable = find_symbols(library);
    if (usable)
        pkn_env_report(&table);
}

const struct pkn_table *pkn_pk(void)
{
    pthread_once(&once, load);
    if (usable)
        return &table;
    (void)pkn_fail(PKN_SYSTEM_ERROR, "libpickle cannot be opened (PICKLE_LIBRARY may say where it is): %s", why);
    return NULL;
}

const char *pkn_pk_path(void)
{
    return path;
}
