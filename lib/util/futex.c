/* SPDX-License-Identifier: Apache-2.0 */
#include "util/futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "util/clock.h"

static bool wait_one(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
    struct timespec limit = { .tv_sec = (time_t)(ns / PKI_NS_PER_S), .tv_nsec = (long)(ns % PKI_NS_PER_S) };

    return syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0) == 0 || errno != ENOSYS;
}

#ifdef SYS_futex_waitv
static bool wait_any(_Atomic uint32_t *const *words, int n, uint32_t value, uint64_t ns)
{
    struct futex_waitv waits[PKI_FUTEX_WORDS];
    uint64_t until = pki_now_ns() + ns;
    struct timespec limit = { .tv_sec = (time_t)(until / PKI_NS_PER_S), .tv_nsec = (long)(until % PKI_NS_PER_S) };

    memset(waits, 0, sizeof *waits * (size_t)n);
    for (int i = 0; i < n; i++) {
        waits[i].val = value;
        waits[i].uaddr = (uintptr_t)words[i];
        waits[i].flags = FUTEX_32;
    }
    if (syscall(SYS_futex_waitv, waits, (unsigned)n, 0, &limit, CLOCK_MONOTONIC) >= 0)
        return true;
    return errno == EAGAIN || errno == ETIMEDOUT || errno == EINTR;
}
#else
static bool wait_any(_Atomic uint32_t *const *words, int n, uint32_t value, uint64_t ns)
{
    (void)words, (void)n, (void)value, (void)ns;
    return false;
}
#endif

bool pki_futex_wait(_Atomic uint32_t *const *words, int n, uint32_t value, uint64_t ns)
{
    if (n < 1 || n > PKI_FUTEX_WORDS)
        return false;
    return n == 1 ? wait_one(words[0], value, ns) : wait_any(words, n, value, ns);
}

void pki_futex_wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
