/* SPDX-License-Identifier: Apache-2.0 */
/* The CPUs of the calling thread, and those of the library's threads. */
#include "util/cpus.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "util/env.h"
#include "util/log.h"
#include "util/thread.h"

/* ---- The library's threads ---- */

enum where { LIKE_THE_PROGRAM, EVERYWHERE, AS_LISTED };

static struct {
    pthread_mutex_t lock;
    enum where where;
    union pki_cpu_set listed;
} threads = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* A number below PKI_CPUS_MAX. Returns where it ends, or NULL. */
static const char *parse_number(const char *text, int *number)
{
    int n = 0;

    if (*text < '0' || *text > '9')
        return NULL;
    for (; *text >= '0' && *text <= '9'; text++) {
        n = 10 * n + (*text - '0');
        if (n >= PKI_CPUS_MAX)
            return NULL;
    }
    *number = n;
    return text;
}

bool pki_cpus_parse(const char *text, union pki_cpu_set *cpus)
{
    int first, last;

    memset(cpus, 0, sizeof *cpus);
    for (;; text++) {
        text = parse_number(text, &first);
        last = first;
        if (text != NULL && *text == '-')
            text = parse_number(text + 1, &last);
        if (text == NULL || last < first)
            return false;
        for (int cpu = first; cpu <= last; cpu++)
            CPU_SET_S((size_t)cpu, sizeof *cpus, &cpus->set);
        if (*text != ',')
            return *text == '\0';
    }
}

static void *do_nothing(void *arg)
{
    return arg;
}

/* The kernel says whether the process may use any of them when a thread starts there. */
static bool are_usable(const union pki_cpu_set *cpus)
{
    pthread_t thread;
    int error = pki_thread_start_on(&thread, do_nothing, NULL, cpus);

    if (error == 0)
        pthread_join(thread, NULL);
    return error != EINVAL;
}

pk_result_t pki_cpus_configure(void)
{
    const char *text = pki_env_get("PK_THREAD_CPUS");
    enum where where = AS_LISTED;
    union pki_cpu_set cpus;

    if (text == NULL || strcmp(text, "inherit") == 0)
        where = LIKE_THE_PROGRAM;
    else if (strcmp(text, "all") == 0)
        where = EVERYWHERE;
    else if (!pki_cpus_parse(text, &cpus))
        return pki_fail(PK_ERR_ARG, NULL, "PK_THREAD_CPUS is '%.64s' instead of inherit, all, or CPUs as in 0-3,8", text);
    else if (!are_usable(&cpus))
        return pki_fail(PK_ERR_ARG, NULL, "PK_THREAD_CPUS is '%.64s': this process may use none of these CPUs", text);
    pthread_mutex_lock(&threads.lock);
    threads.where = where;
    if (where == AS_LISTED)
        threads.listed = cpus;
    pthread_mutex_unlock(&threads.lock);
    return PK_OK;
}

bool pki_cpus_for_thread(union pki_cpu_set *cpus)
{
    enum where where;

    pthread_mutex_lock(&threads.lock);
    where = threads.where;
    *cpus = threads.listed;
    pthread_mutex_unlock(&threads.lock);
    if (where == EVERYWHERE)
        memset(cpus, 0xff, sizeof *cpus); /* the kernel takes what the cpuset allows */
    else if (where == LIKE_THE_PROGRAM)
        /* its main thread: the one that starts this may be bound to a core that its own spinning needs */
        return sched_getaffinity(getpid(), sizeof *cpus, &cpus->set) == 0;
    return true;
}

/* ---- The ranks ---- */

/* Where it cannot be told, all of the machine. */
static void read_mine(union pki_cpu_set *mine)
{
    memset(mine, 0, sizeof *mine);
    if (sched_getaffinity(0, sizeof *mine, &mine->set) == 0)
        return;
    for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_ONLN) && cpu < PKI_CPUS_MAX; cpu++)
        CPU_SET_S((size_t)cpu, sizeof *mine, &mine->set);
}

int pki_cpus_count(void)
{
    union pki_cpu_set mine;

    read_mine(&mine);
    return CPU_COUNT_S(sizeof mine, &mine.set);
}

void pki_cpus_read(struct pki_cpus *cpus)
{
    union pki_cpu_set mine;

    memset(cpus, 0, sizeof *cpus);
    read_mine(&mine);
    for (size_t cpu = 0; cpu < PKI_CPUS_MAX; cpu++)
        if (CPU_ISSET_S(cpu, sizeof mine, &mine.set))
            cpus->mask[cpu % PKI_CPUS_TOLD / 64] |= 1ull << cpu % 64;
    pki_cpus_read_quotas("", cpus->quotas);
}
