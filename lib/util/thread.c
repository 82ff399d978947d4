/* SPDX-License-Identifier: Apache-2.0 */
#include "util/thread.h"

#include <signal.h>
#include <stddef.h>

int pki_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    sigset_t all, old;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    error = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}
