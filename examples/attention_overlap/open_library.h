/* SPDX-License-Identifier: Apache-2.0 */
/* Shared objects that are opened at run time, so that the program builds and starts where they are not. */
#ifndef OPEN_LIBRARY_H
#define OPEN_LIBRARY_H

#include <stddef.h>

/*
 * The shared object of this name ("libcudnn.so.9"): where the loader looks, then in the NVIDIA packages of the Python in PATH and of the
 * system. `given`, where not NULL or empty, is its path, and nothing else is tried. NULL: it was not found, and `error` says so.
 */
void *open_library(const char *given, const char *name, char *error, size_t error_bytes);

/* libnccl.so.2, told to leave NVLink multicast alone, whatever the environment says: NCCL reads that when it is first called. Call it while
 * there is one thread. */
void *open_nccl(const char *given, char *error, size_t error_bytes);

/* One call of it; NULL: it has none. */
struct library_call {
    const char *name;
    size_t offset; /* in the struct of function pointers */
};

/* Fill in `calls`, a struct of function pointers. The name of the first that is missing, or NULL. */
const char *library_load(void *library, const struct library_call *calls, size_t count, void *table);

#endif
