/* SPDX-License-Identifier: Apache-2.0 */
#include "open_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *open_pattern(const char *pattern)
{
    glob_t found;
    void *library = NULL;

    if (glob(pattern, 0, NULL, &found) != 0)
        return NULL;
    for (size_t i = found.gl_pathc; i > 0 && library == NULL; i--) /* newer versions come later */
        library = dlopen(found.gl_pathv[i - 1], RTLD_NOW | RTLD_GLOBAL);
    globfree(&found);
    return library;
}

/* Packages of a Python installed in a folder of its own lie beside its program. */
static void *open_beside_python(const char *name)
{
    const char *path = getenv("PATH");
    char pattern[1024];
    void *library = NULL;

    while (path != NULL && *path != '\0' && library == NULL) {
        size_t length = strcspn(path, ":");

        snprintf(pattern, sizeof pattern, "%.*s/../lib/python3*/*-packages/nvidia/*/lib/%s", (int)length, path, name);
        library = open_pattern(pattern);
        path += length + (path[length] == ':');
    }
    return library;
}

void *open_library(const char *given, const char *name, char *error, size_t error_bytes)
{
    static const char *const folders[] = { "/usr/local/cuda/lib64", "/usr/local/lib/python3*/*-packages/nvidia/*/lib" };
    void *library = dlopen(given != NULL && *given != '\0' ? given : name, RTLD_NOW | RTLD_GLOBAL);
    char pattern[256];

    if (library != NULL)
        return library;
    snprintf(error, error_bytes, "%s", dlerror());
    if (given != NULL && *given != '\0')
        return NULL;
    library = open_beside_python(name);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0] && library == NULL; i++) {
        snprintf(pattern, sizeof pattern, "%s/%s", folders[i], name);
        library = open_pattern(pattern);
    }
    return library;
}

void *open_nccl(const char *given, char *error, size_t error_bytes)
{
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    return open_library(given, "libnccl.so.2", error, error_bytes);
}

const char *library_load(void *library, const struct library_call *calls, size_t count, void *table)
{
    for (size_t i = 0; i < count; i++) {
        void *call = dlsym(library, calls[i].name);

        if (call == NULL)
            return calls[i].name;
        *(void **)(void *)((char *)table + calls[i].offset) = call;
    }
    return NULL;
}
