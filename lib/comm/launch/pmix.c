/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs started by mpirun, srun or any other launcher with PMIx. The library is opened at run time, and only where the launcher's
 * variables say that a server is there. */
#include "comm/bootstrap/internal.h"

#include "tuning/tuning.h"
#include "util/env.h"

bool pki_pmix_present(void)
{
    return pki_env_get("PMIX_NAMESPACE") != NULL && pki_env_get("PMIX_RANK") != NULL;
}

#ifndef PICKLE_HAVE_PMIX

pk_result_t pki_pmix_find(int *size, int *rank, pk_unique_id_t *id, uint64_t deadline_ns, struct pki_call_off *cancel)
{
    (void)cancel;
    (void)size;
    (void)rank;
    (void)id;
    (void)deadline_ns;
    return pki_fail(PK_ERR_UNSUPPORTED, NULL, "this library was built without PMIx: set PK_RANK, PK_SIZE and PK_ROOT");
}

#else

#include <dlfcn.h>
#include <pmix.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/fork.h"

#define WHO_NS (300 * PKI_NS_PER_MS) /* after the deadline: how long to ask who is missing */
#define WHO_MAX 1024

/* The job as this process sees it; made once. */
static struct {
    pthread_mutex_t lock;
    bool ready;
    unsigned stamp; /* pki_fork_is_ours */
    pmix_proc_t self;
    unsigned inits; /* communicators made so far: part of the key, and equal on all ranks because making one is collective */
    __typeof__(&PMIx_Init) init;
    __typeof__(&PMIx_Finalize) finalize;
    __typeof__(&PMIx_Put) put;
    __typeof__(&PMIx_Commit) commit;
    __typeof__(&PMIx_Get) get;
    __typeof__(&PMIx_Get_nb) get_nb;
    __typeof__(&PMIx_Fence_nb) fence_nb;
    __typeof__(&PMIx_Error_string) error_string;
} job = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* A call in the hands of PMIx's thread. Its callback may come long after we stopped waiting, so whoever is last frees it. */
struct pending {
    atomic_int owners;
    atomic_bool done;
    pmix_status_t status;
    pmix_info_t info;
};

static struct pending *pending_create(void)
{
    struct pending *p = calloc(1, sizeof *p);

    if (p != NULL)
        atomic_init(&p->owners, 2);
    return p;
}

static void pending_drop(struct pending *p)
{
    if (atomic_fetch_sub_explicit(&p->owners, 1, memory_order_acq_rel) == 1)
        free(p);
}

static void pending_finish(struct pending *p, pmix_status_t status)
{
    p->status = status;
    atomic_store_explicit(&p->done, true, memory_order_release); /* pairs with the load in pending_wait */
    pending_drop(p);
}

static bool pending_wait(struct pending *p, uint64_t deadline_ns, struct pki_call_off *cancel)
{
    while (!atomic_load_explicit(&p->done, memory_order_acquire)) {
        if (pki_now_ns() >= deadline_ns || pki_is_called_off(cancel))
            return false;
        usleep(pki_tuning.start.pmix_us);
    }
    return true;
}

static void on_fence(pmix_status_t status, void *arg)
{
    pending_finish(arg, status);
}

static void on_value(pmix_status_t status, pmix_value_t *value, void *arg)
{
    (void)value;
    pending_finish(arg, status);
}

static pk_result_t refused(const char *call, pmix_status_t status)
{
    return pki_fail(PK_ERR_SYSTEM, NULL, "%s: %s", call, job.error_string(status));
}

static pk_result_t open_library(void)
{
    static const char *const names[] = { "PMIx_Init", "PMIx_Finalize", "PMIx_Put",      "PMIx_Commit",
                                         "PMIx_Get",  "PMIx_Get_nb",   "PMIx_Fence_nb", "PMIx_Error_string" };
    void *const slots[] = { &job.init, &job.finalize, &job.put,      &job.commit,
                            &job.get,  &job.get_nb,   &job.fence_nb, &job.error_string };
    void *library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);

    if (library == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "the launcher uses PMIx, but libpmix cannot be opened: %s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *symbol = dlsym(library, names[i]);

        if (symbol == NULL)
            return pki_fail(PK_ERR_UNSUPPORTED, NULL, "libpmix.so.2 has no %s", names[i]);
        memcpy(slots[i], &symbol, sizeof symbol);
    }
    return PK_OK;
}

/* Launchers take a process that ends without this for a crash. At the end of the process and not earlier, because later
 * communicators need the connection; calls are counted, so that an MPI in the same process is not disturbed. */
static void finalize_at_exit(void)
{
    if (pki_fork_is_ours(job.stamp)) /* a child that ends is not the rank */
        job.finalize(NULL, 0);
}

static pk_result_t start(void)
{
    pmix_status_t status;
    pk_result_t result;

    if (job.ready && !pki_fork_is_ours(job.stamp))
        return pki_fail(PK_ERR_UNSUPPORTED, NULL,
                        "the connection to the launcher's PMIx is the parent process's: set PK_RANK, PK_SIZE and PK_ROOT");
    if (job.ready)
        return PK_OK;
    result = open_library();
    if (result != PK_OK)
        return result;
    status = job.init(&job.self, NULL, 0);
    if (status != PMIX_SUCCESS)
        return refused("PMIx_Init", status);
    atexit(finalize_at_exit);
    job.stamp = pki_fork_stamp();
    job.ready = true;
    return PK_OK;
}

/* The library's own helpers would have to be linked; values are freed by hand. */
static void free_value(pmix_value_t *value)
{
    if (value->type == PMIX_BYTE_OBJECT)
        free(value->data.bo.bytes);
    else if (value->type == PMIX_STRING)
        free(value->data.string);
    free(value);
}

static pmix_proc_t proc_of(pmix_rank_t rank)
{
    pmix_proc_t proc = job.self;

    proc.rank = rank;
    return proc;
}

/* A number about the job, which the server gave us at init. */
static pk_result_t get_number(const char *key, uint32_t *number)
{
    const pmix_proc_t all = proc_of(PMIX_RANK_WILDCARD);
    pmix_value_t *value = NULL;
    pmix_status_t status = job.get(&all, key, NULL, 0, &value);

    if (status != PMIX_SUCCESS)
        return refused(key, status);
    *number = value->data.uint32;
    if (value->type == PMIX_UINT32) {
        free_value(value);
        return PK_OK;
    }
    free_value(value);
    return pki_fail(PK_ERR_SYSTEM, NULL, "PMIx gives no number for %s", key);
}

/* Rank 0 makes the id and publishes it; the others publish that they are here. */
static pk_result_t publish(const char *key, pk_unique_id_t *id)
{
    uint32_t here = 0, all = 0;
    pmix_value_t value = { .type = PMIX_BOOL, .data.flag = true };
    pmix_status_t status;
    pk_result_t result = get_number(PMIX_LOCAL_SIZE, &here);

    if (result == PK_OK)
        result = get_number(PMIX_JOB_SIZE, &all);
    if (result == PK_OK && job.self.rank == 0) {
        result = pki_bootstrap_id_on(here == all, id);
        value.type = PMIX_BYTE_OBJECT;
        value.data.bo.bytes = (char *)id->bytes;
        value.data.bo.size = sizeof id->bytes;
    }
    if (result != PK_OK)
        return result;
    status = job.put(PMIX_GLOBAL, key, &value);
    if (status != PMIX_SUCCESS)
        return refused("PMIx_Put", status);
    status = job.commit();
    return status == PMIX_SUCCESS ? PK_OK : refused("PMIx_Commit", status);
}

/* Has `rank` published its key? The server answers for ranks that have, and keeps silent for those that have not. */
static struct pending *ask(uint32_t rank, const char *key)
{
    const pmix_proc_t proc = proc_of(rank);
    struct pending *p = pending_create();
    pmix_status_t status;

    if (p == NULL)
        return NULL;
    status = job.get_nb(&proc, key, NULL, 0, on_value, p);
    if (status != PMIX_SUCCESS)
        pending_finish(p, status);
    return p;
}

/* The fence did not end: name those who have not come to it. */
static pk_result_t name_missing(const char *key, uint32_t size, unsigned long long waited_ms)
{
    const uint64_t until = pki_now_ns() + WHO_NS;
    struct pending *asked[WHO_MAX] = { NULL };
    const uint32_t count = size < WHO_MAX ? size : WHO_MAX;
    struct pki_where where = { .rank = (int)job.self.rank, .peer = -1, .op = "init" };
    char names[200] = "";
    size_t at = 0;

    for (uint32_t r = 0; r < count; r++)
        asked[r] = ask(r, key);
    for (uint32_t r = 0; r < count; r++) {
        if (asked[r] == NULL)
            continue;
        if ((!pending_wait(asked[r], until, NULL) || asked[r]->status != PMIX_SUCCESS) && at + 16 < sizeof names) {
            at += (size_t)snprintf(names + at, sizeof names - at, "%s %u", at > 0 ? "," : "", r);
            where.peer = where.peer < 0 ? (int)r : where.peer;
        }
        pending_drop(asked[r]);
    }
    return pki_fail(PK_ERR_TIMEOUT, &where, "timed out after %llu ms: of %u ranks, missing:%s", waited_ms, size,
                    at > 0 ? names : " unknown");
}

static pk_result_t fence(const char *key, uint32_t size, uint64_t deadline_ns, struct pki_call_off *cancel)
{
    const uint64_t began = pki_now_ns();
    const pmix_proc_t all = proc_of(PMIX_RANK_WILDCARD);
    struct pending *p = pending_create();
    pmix_status_t status;
    pk_result_t result = PK_OK;

    if (p == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for a fence");
    p->info = (pmix_info_t){ .key = PMIX_COLLECT_DATA, .value = { .type = PMIX_BOOL, .data = { .flag = true } } };
    status = job.fence_nb(&all, 1, &p->info, 1, on_fence, p);
    if (status != PMIX_SUCCESS)
        pending_finish(p, status);
    if (!pending_wait(p, deadline_ns, cancel))
        result = pki_is_called_off(cancel) ? pki_fail(PK_ERR_ABORTED, NULL, "aborted")
                                           : name_missing(key, size, (pki_now_ns() - began) / PKI_NS_PER_MS);
    else if (p->status != PMIX_SUCCESS && p->status != PMIX_OPERATION_SUCCEEDED)
        result = refused("PMIx_Fence", p->status);
    pending_drop(p);
    return result;
}

static pk_result_t fetch(const char *key, pk_unique_id_t *id)
{
    const pmix_proc_t root = proc_of(0);
    pmix_value_t *value = NULL;
    pmix_status_t status = job.get(&root, key, NULL, 0, &value);
    bool right;

    if (status != PMIX_SUCCESS)
        return refused("PMIx_Get of rank 0's id", status);
    right = value->type == PMIX_BYTE_OBJECT && value->data.bo.size == sizeof id->bytes;
    if (right)
        memcpy(id->bytes, value->data.bo.bytes, sizeof id->bytes);
    free_value(value);
    return right ? PK_OK : pki_fail(PK_ERR_SYSTEM, NULL, "PMIx gives no id for %s", key);
}

static pk_result_t find(int *size, int *rank, pk_unique_id_t *id, uint64_t deadline_ns, struct pki_call_off *cancel)
{
    char key[32];
    uint32_t all = 0;
    pk_unique_id_t made = { { 0 } };
    pk_result_t result = start();

    if (result == PK_OK)
        result = get_number(PMIX_JOB_SIZE, &all);
    if (result != PK_OK)
        return result;
    snprintf(key, sizeof key, "pickle.id.%u", job.inits++);
    result = publish(key, &made);
    if (result == PK_OK && all > 1)
        result = fence(key, all, deadline_ns, cancel);
    if (result == PK_OK && job.self.rank != 0)
        result = fetch(key, &made);
    if (result != PK_OK) {
        if (job.self.rank == 0)
            (void)pki_listener_drop(&made);
        return result;
    }
    *size = (int)all;
    *rank = (int)job.self.rank;
    *id = made;
    return PK_OK;
}

/* The lock may be that of a thread of the parent, which has it as long as it waits for the other ranks. */
static void start_over(void)
{
    pthread_mutex_init(&job.lock, NULL);
}

static void watch_forks(void)
{
    pki_fork_at_child(start_over);
}

pk_result_t pki_pmix_find(int *size, int *rank, pk_unique_id_t *id, uint64_t deadline_ns, struct pki_call_off *cancel)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pk_result_t result;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&job.lock);
    result = find(size, rank, id, deadline_ns, cancel);
    pthread_mutex_unlock(&job.lock);
    return result;
}

#endif
