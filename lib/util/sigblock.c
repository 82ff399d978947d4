/* SPDX-License-Identifier: Apache-2.0 */
#include "util/sigblock.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>

static void only(sigset_t *set, int number)
{
    sigemptyset(set);
    sigaddset(set, number);
}

void pki_sigblock(struct pki_sigblock *hold, int number)
{
    sigset_t one, pending;

    only(&one, number);
    hold->number = number;
    hold->was_pending = false;
    pthread_sigmask(SIG_BLOCK, &one, &hold->before);
    if (sigismember(&hold->before, number) && sigpending(&pending) == 0)
        hold->was_pending = sigismember(&pending, number);
}

void pki_sigblock_release(const struct pki_sigblock *hold, bool raised)
{
    const struct timespec at_once = { 0 };
    const int error = errno;
    sigset_t one;

    only(&one, hold->number);
    if (raised && !hold->was_pending)
        while (sigtimedwait(&one, NULL, &at_once) < 0 && errno == EINTR)
            continue;
    pthread_sigmask(SIG_SETMASK, &hold->before, NULL);
    errno = error;
}
