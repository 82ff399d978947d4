/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping at words that processes share, and waking who sleeps there. */
#ifndef PKI_FUTEX_H
#define PKI_FUTEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PKI_FUTEX_WORDS 64 /* at which one may sleep at a time */

/* Sleep while all `n` words hold `value`, `ns` at most; returns early occasionally. False: it did not sleep, for this kernel
 * cannot (several words: before Linux 5.16). */
bool pki_futex_wait(_Atomic uint32_t *const *words, int n, uint32_t value, uint64_t ns);
/* Wake who sleeps at this word. */
void pki_futex_wake(_Atomic uint32_t *word);

#endif
