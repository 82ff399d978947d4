/* SPDX-License-Identifier: Apache-2.0 */
#include "util/thread.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>

/* Of these the kernel kills the process when the thread that raises one by what it does has it blocked, although the program handles it. */
static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };

int pki_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    sigset_t others, old;
    int error;

    sigfillset(&others);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&others, faults[i]);
    pthread_sigmask(SIG_BLOCK, &others, &old);
    error = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error != 0)
        errno = error;
    return error;
}
