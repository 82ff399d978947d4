/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuDNN's backend interface: a graph of one operation (SDPA, since 9.13), the first engine that takes it, and its plan. The numbers
 * below are those of cuDNN 9's headers, which are not needed to build this.
 */
#include "sdpa.h"

#include "open_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *descriptor_t;

enum { OLDEST = 91300, ENGINES_MAX = 8, IDS = 5 };

enum {
    TYPE_HANDLE = 0,
    TYPE_DATA_TYPE = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_VOID_PTR = 6,
    TYPE_HEUR_MODE = 8,
    TYPE_DESCRIPTOR = 15
};

enum { DATA_FLOAT = 0, DATA_BFLOAT16 = 9 };

enum {
    MAKE_ENGINECFG = 3,
    MAKE_ENGINEHEUR = 4,
    MAKE_PLAN = 5,
    MAKE_GRAPH = 15,
    MAKE_VARIANT_PACK = 16,
    MAKE_TENSOR = 17,
    MAKE_SDPA = 41
};

enum {
    HEUR_MODE = 200,
    HEUR_GRAPH = 201,
    HEUR_RESULTS = 202,
    PLAN_HANDLE = 400,
    PLAN_ENGINE_CONFIG = 401,
    PLAN_WORKSPACE_SIZE = 402,
    GRAPH_HANDLE = 800,
    GRAPH_OPERATIONS = 801,
    TENSOR_ALIGNMENT = 900,
    TENSOR_DATA_TYPE = 901,
    TENSOR_DIMENSIONS = 902,
    TENSOR_STRIDES = 903,
    TENSOR_ID = 906,
    TENSOR_BY_VALUE = 908,
    PACK_IDS = 1000,
    PACK_POINTERS = 1001,
    PACK_WORKSPACE = 1003,
    SDPA_Q = 2800,
    SDPA_K = 2801,
    SDPA_V = 2802,
    SDPA_O = 2803,
    SDPA_SCALE = 2805
};

static struct calls {
    size_t (*cudnnGetVersion)(void);
    void (*cudnnGetLastErrorString)(char *text, size_t bytes);
    int (*cudnnCreate)(void **handle);
    int (*cudnnDestroy)(void *handle);
    int (*cudnnSetStream)(void *handle, void *stream);
    int (*cudnnBackendCreateDescriptor)(int kind, descriptor_t *made);
    int (*cudnnBackendDestroyDescriptor)(descriptor_t descriptor);
    int (*cudnnBackendFinalize)(descriptor_t descriptor);
    int (*cudnnBackendSetAttribute)(descriptor_t descriptor, int name, int type, int64_t count, const void *values);
    int (*cudnnBackendGetAttribute)(descriptor_t descriptor, int name, int type, int64_t room, int64_t *count, void *values);
    int (*cudnnBackendExecute)(void *handle, descriptor_t plan, descriptor_t pack);
} cudnn;

#define CALL(function) \
    { \
        .name = #function, .offset = offsetof(struct calls, function) \
    }
static const struct library_call calls[] = {
    CALL(cudnnGetVersion),
    CALL(cudnnGetLastErrorString),
    CALL(cudnnCreate),
    CALL(cudnnDestroy),
    CALL(cudnnSetStream),
    CALL(cudnnBackendCreateDescriptor),
    CALL(cudnnBackendDestroyDescriptor),
    CALL(cudnnBackendFinalize),
    CALL(cudnnBackendSetAttribute),
    CALL(cudnnBackendGetAttribute),
    CALL(cudnnBackendExecute),
};

struct sdpa {
    void *handle;
    descriptor_t tensors[IDS], operation, graph, heuristic, configs[ENGINES_MAX], plan;
    int config_count;
    int64_t workspace_bytes;
    float scale;
};

static char reason[512], name[32] = "cuDNN";

const char *sdpa_name(void)
{
    return name;
}

/* The first failure is kept: what follows from it would hide it. */
static bool worked(int code, const char *what)
{
    char text[256] = "";

    if (code == 0)
        return true;
    if (reason[0] != '\0')
        return false;
    cudnn.cudnnGetLastErrorString(text, sizeof text);
    snprintf(reason, sizeof reason, "%s: %s: code %d %s", name, what, code, text);
    return false;
}

static bool load(void)
{
    static void *library;
    char error[256] = "";
    const char *missing;
    size_t version;

    if (library != NULL)
        return true;
    library = open_library(NULL, "libcudnn.so.9", error, sizeof error);
    if (library == NULL) {
        snprintf(reason, sizeof reason, "cuDNN 9 was not found: %s", error);
        return false;
    }
    missing = library_load(library, calls, sizeof calls / sizeof calls[0], &cudnn);
    version = missing == NULL ? cudnn.cudnnGetVersion() : 0;
    snprintf(name, sizeof name, "cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    if (version >= OLDEST)
        return true;
    snprintf(reason, sizeof reason, "%s: attention as one operation came with 9.13%s%s", name,
             missing != NULL ? "; it has no " : "", missing != NULL ? missing : "");
    library = NULL;
    return false;
}

bool sdpa_present(const char **why)
{
    reason[0] = '\0';
    *why = reason;
    return load();
}

static bool make(int kind, descriptor_t *made)
{
    return worked(cudnn.cudnnBackendCreateDescriptor(kind, made), "cudnnBackendCreateDescriptor");
}

static bool set(descriptor_t descriptor, int attribute, int type, int64_t count, const void *values)
{
    char what[48];

    snprintf(what, sizeof what, "attribute %d", attribute);
    return worked(cudnn.cudnnBackendSetAttribute(descriptor, attribute, type, count, values), what);
}

static bool finalize(descriptor_t descriptor, const char *what)
{
    return worked(cudnn.cudnnBackendFinalize(descriptor), what);
}

static bool make_tensor(descriptor_t *tensor, int64_t id, int type, const int64_t dimensions[4], const int64_t strides[4],
                        bool by_value)
{
    const int64_t alignment = by_value ? 4 : 16;

    return make(MAKE_TENSOR, tensor) && set(*tensor, TENSOR_DATA_TYPE, TYPE_DATA_TYPE, 1, &type) &&
           set(*tensor, TENSOR_DIMENSIONS, TYPE_INT64, 4, dimensions) && set(*tensor, TENSOR_STRIDES, TYPE_INT64, 4, strides) &&
           set(*tensor, TENSOR_ID, TYPE_INT64, 1, &id) && set(*tensor, TENSOR_ALIGNMENT, TYPE_INT64, 1, &alignment) &&
           (!by_value || set(*tensor, TENSOR_BY_VALUE, TYPE_BOOLEAN, 1, &by_value)) && finalize(*tensor, "a tensor");
}

/* Queries, keys, values, output and the scale, under the numbers 1 to 5. */
static bool make_tensors(struct sdpa *s, const struct sdpa_shape *shape)
{
    const int64_t one[4] = { 1, 1, 1, 1 };

    for (int i = 0; i < IDS - 1; i++) {
        bool of_keys = i == 1 || i == 2;
        const int64_t *strides = of_keys ? shape->key_strides : shape->query_strides;
        const int64_t dimensions[4] = { shape->batch, shape->heads, of_keys ? shape->keys : shape->queries, shape->width };
        const int64_t all[4] = { strides[0], strides[1], strides[2], 1 };

        if (!make_tensor(&s->tensors[i], i + 1, DATA_BFLOAT16, dimensions, all, false))
            return false;
    }
    return make_tensor(&s->tensors[IDS - 1], IDS, DATA_FLOAT, one, one, true);
}

static bool make_graph(struct sdpa *s)
{
    static const int attributes[IDS] = { SDPA_Q, SDPA_K, SDPA_V, SDPA_O, SDPA_SCALE };

    if (!make(MAKE_SDPA, &s->operation))
        return false;
    for (int i = 0; i < IDS; i++)
        if (!set(s->operation, attributes[i], TYPE_DESCRIPTOR, 1, &s->tensors[i]))
            return false;
    return finalize(s->operation, "the attention") && make(MAKE_GRAPH, &s->graph) &&
           set(s->graph, GRAPH_HANDLE, TYPE_HANDLE, 1, &s->handle) &&
           set(s->graph, GRAPH_OPERATIONS, TYPE_DESCRIPTOR, 1, &s->operation) && finalize(s->graph, "the graph");
}

/* Ways to compute it, best first. */
static bool ask_for_engines(struct sdpa *s)
{
    const int mode = 3; /* A */
    int64_t found = 0;

    if (!make(MAKE_ENGINEHEUR, &s->heuristic) || !set(s->heuristic, HEUR_GRAPH, TYPE_DESCRIPTOR, 1, &s->graph) ||
        !set(s->heuristic, HEUR_MODE, TYPE_HEUR_MODE, 1, &mode) || !finalize(s->heuristic, "the search for an engine"))
        return false;
    while (s->config_count < ENGINES_MAX && make(MAKE_ENGINECFG, &s->configs[s->config_count]))
        s->config_count++;
    if (!worked(cudnn.cudnnBackendGetAttribute(s->heuristic, HEUR_RESULTS, TYPE_DESCRIPTOR, s->config_count, &found, s->configs),
                "engines"))
        return false;
    if (found == 0)
        snprintf(reason, sizeof reason, "%s has no engine for this attention here", name);
    for (int i = (int)found; i < s->config_count; i++)
        cudnn.cudnnBackendDestroyDescriptor(s->configs[i]);
    s->config_count = (int)found < s->config_count ? (int)found : s->config_count;
    return found > 0;
}

/* Of the first engine that takes it. */
static bool make_plan(struct sdpa *s)
{
    for (int i = 0; i < s->config_count; i++) {
        int64_t count = 0;

        if (!make(MAKE_PLAN, &s->plan))
            return false;
        if (set(s->plan, PLAN_HANDLE, TYPE_HANDLE, 1, &s->handle) &&
            set(s->plan, PLAN_ENGINE_CONFIG, TYPE_DESCRIPTOR, 1, &s->configs[i]) && finalize(s->plan, "a plan") &&
            worked(cudnn.cudnnBackendGetAttribute(s->plan, PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &count, &s->workspace_bytes),
                   "workspace"))
            return true;
        cudnn.cudnnBackendDestroyDescriptor(s->plan);
        s->plan = NULL;
    }
    return false;
}

static void destroy(descriptor_t descriptor)
{
    if (descriptor != NULL)
        cudnn.cudnnBackendDestroyDescriptor(descriptor);
}

void sdpa_close(struct sdpa *s)
{
    destroy(s->plan);
    for (int i = 0; i < s->config_count; i++)
        destroy(s->configs[i]);
    destroy(s->heuristic);
    destroy(s->graph);
    destroy(s->operation);
    for (int i = 0; i < IDS; i++)
        destroy(s->tensors[i]);
    if (s->handle != NULL)
        cudnn.cudnnDestroy(s->handle);
    free(s);
}

struct sdpa *sdpa_open(const struct sdpa_shape *shape, void *stream, const char **why)
{
    struct sdpa *s = calloc(1, sizeof *s);

    reason[0] = '\0';
    *why = reason;
    if (s == NULL || !load()) {
        free(s);
        return NULL;
    }
    s->scale = shape->scale;
    if (worked(cudnn.cudnnCreate(&s->handle), "cudnnCreate") &&
        worked(cudnn.cudnnSetStream(s->handle, stream), "cudnnSetStream") && make_tensors(s, shape) && make_graph(s) &&
        ask_for_engines(s) && make_plan(s))
        return s;
    sdpa_close(s);
    return NULL;
}

int64_t sdpa_workspace_bytes(const struct sdpa *s)
{
    return s->workspace_bytes;
}

int sdpa_launch(struct sdpa *s, const void *queries, const void *keys, const void *values, void *output, void *workspace)
{
    const int64_t ids[IDS] = { 1, 2, 3, 4, 5 };
    const void *const pointers[IDS] = { queries, keys, values, output, &s->scale };
    descriptor_t pack = NULL;
    int code = cudnn.cudnnBackendCreateDescriptor(MAKE_VARIANT_PACK, &pack);

    if (code == 0)
        code = cudnn.cudnnBackendSetAttribute(pack, PACK_IDS, TYPE_INT64, IDS, ids);
    if (code == 0)
        code = cudnn.cudnnBackendSetAttribute(pack, PACK_POINTERS, TYPE_VOID_PTR, IDS, pointers);
    if (code == 0)
        code = cudnn.cudnnBackendSetAttribute(pack, PACK_WORKSPACE, TYPE_VOID_PTR, 1, &workspace);
    if (code == 0)
        code = cudnn.cudnnBackendFinalize(pack);
    if (code == 0)
        code = cudnn.cudnnBackendExecute(s->handle, s->plan, pack);
    destroy(pack);
    return code;
}
