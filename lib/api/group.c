/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: each thread collects its operations between the outermost start and end, then starts them together. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

struct entry {
    pk_comm_t *comm;
    struct pki_request request;
    size_t *lengths; /* the request's, when it has any: the caller's arrays are the caller's again */
};

atomic_int pki_open_groups;

static _Thread_local int depth;

static _Thread_local struct {
    struct entry *entries;
    size_t n, cap;
    pk_result_t refused; /* the first error of a call inside */
    pk_error_info_t error;
} open_group;

bool pki_thread_in_group(void)
{
    return depth > 0;
}

pk_result_t pk_group_start(void)
{
    if (depth++ == 0)
        atomic_fetch_add_explicit(&pki_open_groups, 1, memory_order_relaxed);
    return PK_OK;
}

pk_result_t pki_group_record(pk_comm_t *comm, const struct pki_request *request)
{
    struct entry *entry;
    pk_result_t result;

    if (open_group.n == open_group.cap) {
        size_t cap = open_group.cap == 0 ? 16 : 2 * open_group.cap;
        struct entry *grown = realloc(open_group.entries, cap * sizeof *grown);

        if (grown == NULL)
            return pki_submit_refused(pki_fail(PK_ERR_MEMORY, NULL, "no memory for a group of %zu operations", cap));
        open_group.entries = grown;
        open_group.cap = cap;
    }
    entry = &open_group.entries[open_group.n];
    *entry = (struct entry){ .comm = comm, .request = *request };
    result = pki_layout_own(&entry->request.layout, (size_t)comm->size, &entry->lengths);
    if (result != PK_OK)
        return pki_submit_refused(result);
    open_group.n++;
    return PK_OK;
}

pk_result_t pki_submit_refused(pk_result_t result)
{
    if (pki_in_group() && open_group.refused == PK_OK && result != PK_OK) {
        open_group.refused = result;
        open_group.error = *pki_error_get();
    }
    return result;
}

void pki_group_forgo(const pk_comm_t *comm, const void *stream)
{
    for (size_t i = 0; pki_in_group() && i < open_group.n && open_group.refused == PK_OK; i++) {
        const struct entry *entry = &open_group.entries[i];
        bool streamed =
            stream != NULL && entry->request.stream.kind == PK_STREAM_KIND_HOST && entry->request.stream.handle == stream;

        if (entry->comm == comm || streamed)
            (void)pki_submit_refused(pki_fail(PK_ERR_ARG, NULL,
                                              "the %s of an operation was destroyed before the end of the group",
                                              streamed ? "stream" : "communicator"));
    }
}

/* One communicator's part of a group. */
struct part {
    pk_comm_t *comm;
    struct pki_request *requests;
    int n;
    struct pki_awaited awaited;
    struct pki_capture *capture; /* its streams are being captured */
    pk_result_t result;
};

/* parts[] and requests[] have room for n; the requests of each communicator stay in order. Returns the number of parts. */
static size_t split(const struct entry *entries, size_t n, struct part *parts, struct pki_request *requests)
{
    size_t nparts = 0, used = 0;

    for (size_t i = 0; i < n; i++) {
        size_t p = 0;

        while (p < nparts && parts[p].comm != entries[i].comm)
            p++;
        if (p < nparts)
            continue;
        parts[nparts] = (struct part){ .comm = entries[i].comm, .requests = requests + used };
        for (size_t k = i; k < n; k++)
            if (entries[k].comm == entries[i].comm)
                parts[nparts].requests[parts[nparts].n++] = entries[k].request;
        used += (size_t)parts[nparts++].n;
    }
    return nparts;
}

static pk_result_t finish(struct part *parts, size_t nparts)
{
    pk_result_t first = PK_OK;

    if (nparts > 1) /* one alone waits inside */
        pki_engines_wait(&parts[0].awaited);
    for (size_t p = 0; p < nparts; p++) {
        pk_result_t result = pki_engine_finish(parts[p].comm->engine, &parts[p].awaited.blocking);

        if (first == PK_OK)
            first = parts[p].result != PK_OK ? parts[p].result : result;
    }
    return first;
}

/* Ranks that one thread drives meet one another: all tell before any waits. When one part is refused nothing of the others is
 * captured. */
static void capture(struct part *parts, size_t nparts)
{
    bool refused = false;

    for (size_t p = 0; p < nparts; p++)
        refused |= parts[p].result != PK_OK;
    for (size_t p = 0; p < nparts; p++)
        if (parts[p].capture != NULL && !refused)
            parts[p].result = pki_engine_capture_post(parts[p].comm->engine, parts[p].capture);
    for (size_t p = 0; p < nparts; p++) {
        if (parts[p].capture == NULL)
            continue;
        if (!refused && parts[p].result == PK_OK)
            parts[p].result = pki_engine_capture_record(parts[p].comm->engine, parts[p].capture);
        else
            pki_engine_capture_drop(parts[p].comm->engine, parts[p].capture);
    }
}

static pk_result_t run(const struct entry *entries, size_t n)
{
    struct part *parts = calloc(n, sizeof *parts);
    struct pki_request *requests = calloc(n, sizeof *requests);
    pk_result_t result = PK_ERR_MEMORY;
    uint64_t group = pki_engine_new_group();
    size_t nparts;

    if (parts == NULL || requests == NULL) {
        (void)pki_fail(PK_ERR_MEMORY, NULL, "no memory for a group of %zu operations", n);
        goto out;
    }
    nparts = split(entries, n, parts, requests);
    for (size_t p = 0; p < nparts; p++) {
        struct part *part = &parts[p];

        part->awaited.engine = part->comm->engine;
        part->awaited.next = p + 1 < nparts ? &parts[p + 1].awaited : NULL;
        pki_list_init(&part->awaited.blocking);
        part->result =
            pki_engine_start_all(part->comm->engine, part->requests, part->n, group, &part->awaited.blocking, &part->capture);
    }
    capture(parts, nparts);
    result = finish(parts, nparts);
out:
    free(requests);
    free(parts);
    return result;
}

static pk_result_t end_outermost(void)
{
    struct entry *entries = open_group.entries;
    size_t n = open_group.n;
    pk_result_t result = open_group.refused;

    atomic_fetch_sub_explicit(&pki_open_groups, 1, memory_order_relaxed);
    if (result != PK_OK)
        pki_error_set(&open_group.error);
    memset(&open_group, 0, sizeof open_group);
    if (result == PK_OK && n > 0)
        result = run(entries, n);
    for (size_t i = 0; i < n; i++)
        free(entries[i].lengths);
    free(entries);
    return result;
}

pk_result_t pk_group_end(void)
{
    int cancel;

    if (depth == 0)
        return pki_fail(PK_ERR_ARG, NULL, "pk_group_end: no group is open in this thread");
    if (--depth > 0)
        return PK_OK;
    cancel = pki_cancel_hold();
    return pki_leave(cancel, end_outermost());
}
