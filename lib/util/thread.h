/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own threads. */
#ifndef PKI_THREAD_H
#define PKI_THREAD_H

#include <pthread.h>

/* A thread that takes no signals: they are for the program's own, but for faults, which the program may handle in whatever thread meets
 * one. Returns 0, or pthread_create's error, which is in errno too. */
int pki_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

#endif
