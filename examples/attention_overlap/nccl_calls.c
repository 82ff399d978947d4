/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_calls.h"

#include "open_library.h"

#include <stdio.h>

static struct nccl_calls nccl;
static struct nccl_window_calls windows;
static void *library;
static char name[32] = "NCCL";

#define CALL(function) \
    { \
        .name = #function, .offset = offsetof(struct nccl_calls, function) \
    }
static const struct library_call calls[] = {
    CALL(ncclGetVersion),  CALL(ncclGetErrorString), CALL(ncclGetUniqueId), CALL(ncclCommInitRank),
    CALL(ncclCommDestroy), CALL(ncclGroupStart),     CALL(ncclGroupEnd),    CALL(ncclSend),
    CALL(ncclRecv),        CALL(ncclAllGather),      CALL(ncclAllReduce),   CALL(ncclReduceScatter),
};

const char *nccl_name(void)
{
    return name;
}

const struct nccl_calls *nccl_load(const char *given, const char **why)
{
    static char error[256], text[320];
    const char *missing;
    int version = 0;

    *why = text;
    library = open_nccl(given, error, sizeof error);
    missing = library != NULL ? library_load(library, calls, sizeof calls / sizeof calls[0], &nccl) : NULL;
    if (library == NULL || missing != NULL) {
        snprintf(text, sizeof text, "NCCL: %s%s", missing != NULL ? "it has no " : error, missing != NULL ? missing : "");
        return NULL;
    }
    if (nccl.ncclGetVersion(&version) == 0)
        snprintf(name, sizeof name, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return &nccl;
}

const struct nccl_window_calls *nccl_load_windows(void)
{
    static const struct library_call more[] = {
        { "ncclMemAlloc", offsetof(struct nccl_window_calls, ncclMemAlloc) },
        { "ncclMemFree", offsetof(struct nccl_window_calls, ncclMemFree) },
        { "ncclCommWindowRegister", offsetof(struct nccl_window_calls, ncclCommWindowRegister) },
        { "ncclCommWindowDeregister", offsetof(struct nccl_window_calls, ncclCommWindowDeregister) },
    };

    return library_load(library, more, sizeof more / sizeof more[0], &windows) == NULL ? &windows : NULL;
}
