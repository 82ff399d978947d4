/* SPDX-License-Identifier: Apache-2.0 */
#include "seccomp.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define UNLESS(value, skipped) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(value), 0, skipped)
#define ANSWER(action) BPF_STMT(BPF_RET | BPF_K, action)

bool seccomp_deny(long call, long first, int error)
{
    /* Arguments have 64 bits; the lower half comes first on the machines that there are. */
    struct sock_filter by_argument[] = { LOAD(nr),
                                         UNLESS(call, 3),
                                         LOAD(args[0]),
                                         UNLESS(first, 1),
                                         ANSWER(SECCOMP_RET_ERRNO | (unsigned)error),
                                         ANSWER(SECCOMP_RET_ALLOW) };
    struct sock_filter by_number[] = { LOAD(nr), UNLESS(call, 1), ANSWER(SECCOMP_RET_ERRNO | (unsigned)error),
                                       ANSWER(SECCOMP_RET_ALLOW) };
    struct sock_fprog program = { .len = sizeof by_argument / sizeof by_argument[0], .filter = by_argument };

    if (first == SECCOMP_ANY)
        program = (struct sock_fprog){ .len = sizeof by_number / sizeof by_number[0], .filter = by_number };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}
