/* SPDX-License-Identifier: Apache-2.0 */
#include "util/thread.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>

#include "util/cpus.h"

/* Of these the kernel kills the process when the thread that raises one by what it does has it blocked, although the program
 * handles it. */
static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };

static void block_all_but_faults(sigset_t *old)
{
    sigset_t others;

    sigfillset(&others);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&others, faults[i]);
    pthread_sigmask(SIG_BLOCK, &others, old);
}

int pki_thread_start_on(pthread_t *thread, void *(*run)(void *arg), void *arg, const union pki_cpu_set *cpus)
{
    pthread_attr_t attr;
    sigset_t old;
    int error = pthread_attr_init(&attr);

    if (error == 0) {
        if (cpus != NULL)
            error = pthread_attr_setaffinity_np(&attr, sizeof *cpus, &cpus->set);
        block_all_but_faults(&old);
        if (error == 0)
            error = pthread_create(thread, &attr, run, arg);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        pthread_attr_destroy(&attr);
    }
    if (error != 0)
        errno = error;
    return error;
}

int pki_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    union pki_cpu_set cpus;
    int error = EINVAL;

    if (pki_cpus_for_thread(&cpus))
        error = pki_thread_start_on(thread, run, arg, &cpus);
    /* They have been taken away since, cannot be told, or a sandbox denies to say where a thread runs. */
    return error != 0 ? pki_thread_start_on(thread, run, arg, NULL) : 0;
}
