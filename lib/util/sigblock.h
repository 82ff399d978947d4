/* SPDX-License-Identifier: Apache-2.0 */
/* System calls that raise a signal where they fail, and have no flag against it: SIGPIPE of a write or a splice, SIGXFSZ of an
 * ftruncate. */
#ifndef PKI_SIGBLOCK_H
#define PKI_SIGBLOCK_H

#include <signal.h>
#include <stdbool.h>

struct pki_sigblock {
    sigset_t before;
    int number;
    bool was_pending; /* somebody else's */
};

/* Until it is released the calling thread does not get signal `number`. */
void pki_sigblock(struct pki_sigblock *hold, int number);

/* `raised`: what was called in between may have raised the signal, which is taken away then. errno is preserved. */
void pki_sigblock_release(const struct pki_sigblock *hold, bool raised);

#endif
