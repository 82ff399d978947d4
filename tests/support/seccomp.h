/* SPDX-License-Identifier: Apache-2.0 */
/* Sandboxes: system calls that fail. */
#ifndef SECCOMP_H
#define SECCOMP_H

#include <stdbool.h>

#define SECCOMP_ANY (-1L)

/* From now on `call` (SYS_...) fails with `error` in this thread, in those that it starts and in programs that it runs; only where the
 * argument with number 0 is `first`, unless that is SECCOMP_ANY. There may be several. False, with errno: this kernel has no filters. */
bool seccomp_deny(long call, long first, int error);

#endif
