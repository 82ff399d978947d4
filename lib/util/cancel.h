/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cancellation of the calling thread (pthread_cancel), put off. Many system calls are points where a cancelled thread ends, and
 * with it would stay behind: the engine's lock, which nobody gives back, and operations whose state is on the stack. So every
 * call that may come to such a point holds cancellation from its beginning to its end. It costs two atomic instructions, as much
 * as a twentieth of a short message within a machine, which makes no such system call and does without.
 */
#ifndef PKI_CANCEL_H
#define PKI_CANCEL_H

#include <pthread.h>

/* Holds may lie within one another. Returns what release wants. */
static inline int pki_cancel_hold(void)
{
    int before;

    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

/* A cancellation that has come meanwhile takes effect at the thread's next point. */
static inline void pki_cancel_release(int before)
{
    if (before != PTHREAD_CANCEL_DISABLE)
        (void)pthread_setcancelstate(before, &(int){ 0 });
}

#endif
