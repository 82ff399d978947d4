/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations are the driver's ABI; they are written out so that the tests build without its headers. */
#include "gpu_vmm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct location {
    int type, id;
};

struct properties {
    int type, handle_types;
    struct location location;
    void *windows;
    unsigned char flags[8];
};

struct access {
    struct location location;
    int flags;
};

enum { PINNED = 1, POSIX_FD = 1, ON_DEVICE = 1, READ_WRITE = 3 };

static int (*granularity)(size_t *bytes, const struct properties *p, int recommended);
static int (*create)(unsigned long long *handle, size_t bytes, const struct properties *p, unsigned long long flags);
static int (*release)(unsigned long long handle);
static int (*reserve)(unsigned long long *at, size_t bytes, size_t align, unsigned long long addr, unsigned long long flags);
static int (*unreserve)(unsigned long long at, size_t bytes);
static int (*map)(unsigned long long at, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags);
static int (*unmap)(unsigned long long at, size_t bytes);
static int (*set_access)(unsigned long long at, size_t bytes, const struct access *a, size_t count);

static void find(void *library, const char *name, void *where)
{
    *(void **)where = dlsym(library, name);
    if (*(void **)where == NULL) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(2);
    }
}

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        fprintf(stderr, "no libcuda.so.1\n");
        exit(2);
    }
    find(library, "cuMemGetAllocationGranularity", &granularity);
    find(library, "cuMemCreate", &create);
    find(library, "cuMemRelease", &release);
    find(library, "cuMemAddressReserve", &reserve);
    find(library, "cuMemAddressFree", &unreserve);
    find(library, "cuMemMap", &map);
    find(library, "cuMemUnmap", &unmap);
    find(library, "cuMemSetAccess", &set_access);
}

static void must(int code, const char *call)
{
    if (code == 0)
        return;
    fprintf(stderr, "%s: driver error %d\n", call, code);
    exit(2);
}

static struct properties properties_of(int ordinal, int is_private)
{
    return (struct properties){ .type = PINNED, .handle_types = is_private ? 0 : POSIX_FD, .location = { ON_DEVICE, ordinal } };
}

static void map_piece(struct gpu_vmm *m, unsigned i, int ordinal)
{
    struct properties p = properties_of(ordinal, m->is_private);
    struct access access = { { ON_DEVICE, ordinal }, READ_WRITE };
    unsigned long long at = (unsigned long long)(size_t)m->ptr + i * m->piece;

    must(create(&m->handles[i], m->piece, &p, 0), "cuMemCreate");
    must(map(at, m->piece, 0, m->handles[i], 0), "cuMemMap");
    must(set_access(at, m->piece, &access, 1), "cuMemSetAccess");
}

static struct gpu_vmm alloc(int ordinal, size_t bytes, size_t most, int is_private)
{
    struct properties p = properties_of(ordinal, is_private);
    struct gpu_vmm m = { .ordinal = ordinal, .is_private = is_private };
    unsigned long long at = 0;

    if (create == NULL)
        load();
    must(granularity(&m.piece, &p, 0), "cuMemGetAllocationGranularity");
    m.pieces = (unsigned)((bytes + m.piece - 1) / m.piece);
    m.bytes = m.pieces * m.piece;
    m.most = (unsigned)((most + m.piece - 1) / m.piece);
    m.handles = calloc(m.most, sizeof *m.handles);
    if (m.handles == NULL)
        exit(2);
    must(reserve(&at, m.most * m.piece, 0, 0, 0), "cuMemAddressReserve");
    m.ptr = (char *)(size_t)at;
    for (unsigned i = 0; i < m.pieces; i++)
        map_piece(&m, i, ordinal);
    return m;
}

struct gpu_vmm gpu_vmm_alloc(int ordinal, size_t bytes)
{
    return alloc(ordinal, bytes, bytes, 0);
}

struct gpu_vmm gpu_vmm_alloc_private(int ordinal, size_t bytes)
{
    return alloc(ordinal, bytes, bytes, 1);
}

struct gpu_vmm gpu_vmm_alloc_growing(int ordinal, size_t bytes, size_t most)
{
    return alloc(ordinal, bytes, most, 0);
}

int gpu_vmm_grow(struct gpu_vmm *m)
{
    if (m->pieces == m->most)
        return 0;
    map_piece(m, m->pieces++, m->ordinal);
    m->bytes = m->pieces * m->piece;
    return 1;
}

static void unmap_piece(struct gpu_vmm *m, unsigned i)
{
    must(unmap((unsigned long long)(size_t)m->ptr + i * m->piece, m->piece), "cuMemUnmap");
    must(release(m->handles[i]), "cuMemRelease");
}

void gpu_vmm_replace_last(struct gpu_vmm *m, int ordinal)
{
    unmap_piece(m, m->pieces - 1);
    map_piece(m, m->pieces - 1, ordinal);
}

void gpu_vmm_free(struct gpu_vmm *m)
{
    for (unsigned i = 0; i < m->pieces; i++)
        unmap_piece(m, i);
    must(unreserve((unsigned long long)(size_t)m->ptr, m->most * m->piece), "cuMemAddressFree");
    free(m->handles);
    memset(m, 0, sizeof *m);
}
