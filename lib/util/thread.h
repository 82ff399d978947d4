/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own threads. */
#ifndef PKI_THREAD_H
#define PKI_THREAD_H

#include <pthread.h>

union pki_cpu_set;

/* A thread that takes no signals: they are for the program's own, but for faults, which the program may handle in whatever
 * thread meets one. It runs on the CPUs that PK_THREAD_CPUS says (cpus.h). Returns 0, or pthread_create's error, which is in
 * errno too. */
int pki_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);
/* The same on these CPUs (NULL: where the calling thread runs). EINVAL: the process may use none of them. */
int pki_thread_start_on(pthread_t *thread, void *(*run)(void *arg), void *arg, const union pki_cpu_set *cpus);

#endif
