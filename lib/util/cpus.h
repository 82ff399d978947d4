/* SPDX-License-Identifier: Apache-2.0 */
/* Which CPUs the ranks of a machine may use, whether each has one of its own, and where the library's threads run. */
#ifndef PKI_CPUS_H
#define PKI_CPUS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "pickle/base.h"

#define PKI_CPUS_MAX 8192 /* the largest machine that Linux is built for */

union pki_cpu_set {
    cpu_set_t set; /* for CPU_SET_S and its like, with the size of the whole */
    unsigned long bits[PKI_CPUS_MAX / (8 * sizeof(unsigned long))];
};

/* ---- The library's threads ---- */

/* PK_THREAD_CPUS, for all threads that the process starts from now on. PK_ERR_ARG: it makes no sense. */
pk_result_t pki_cpus_configure(void);
/* Where a thread that is started now runs. False: where the thread that starts it does. */
bool pki_cpus_for_thread(union pki_cpu_set *cpus);
/* The text of PK_THREAD_CPUS that names CPUs: 0-3,8. False: it does not. */
bool pki_cpus_parse(const char *text, union pki_cpu_set *cpus);

/* ---- The ranks ---- */

#define PKI_CPUS_TOLD 1024 /* that ranks tell one another of; on a larger machine those that are so far apart count as one */
#define PKI_CPU_QUOTAS 4

/* CPU time that the processes of a control group have together. */
struct pki_cpu_quota {
    uint64_t group;     /* its number on this machine; 0: there is no such quota */
    uint64_t millicpus; /* 1500: a CPU and a half */
};

/* What a rank tells the others. No pointers. */
struct pki_cpus {
    uint64_t mask[PKI_CPUS_TOLD / 64];
    struct pki_cpu_quota quotas[PKI_CPU_QUOTAS]; /* of the control groups that it is in, innermost first */
};

/* How many CPUs the calling thread may use. */
int pki_cpus_count(void);
/* The CPUs of the calling thread, and the quotas of its process. What cannot be read does not limit anything. */
void pki_cpus_read(struct pki_cpus *cpus);
/* `root` stands before the paths of the system's files: "", or a test's folder. */
void pki_cpus_read_quotas(const char *root, struct pki_cpu_quota quotas[PKI_CPU_QUOTAS]);

struct pki_cpu_share {
    bool own; /* a CPU for this rank alone, if the kernel deals them well */
    int cpus; /* whole ones, of those that the ranks share evenly; for threads */
};

/* What rank `me` has of the CPUs, among the `n` ranks of its machine. PK_ERR_MEMORY. */
pk_result_t pki_cpus_share(const struct pki_cpus *const *ranks, int n, int me, struct pki_cpu_share *share);

#endif
