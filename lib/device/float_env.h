/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floating-point environment of the thread that reduces: the program may have set flush-to-zero, another rounding mode or
 * traps there, and not on every rank, nor in the library's threads. Between enter and leave it is the default one, so that sums
 * have the same bits everywhere. It is read each time and written only where it is another.
 */
#ifndef PKI_FLOAT_ENV_H
#define PKI_FLOAT_ENV_H

#if defined(__x86_64__)
typedef unsigned pki_float_env;
#define PKI_MXCSR_FLAGS 0x3fu     /* what has happened so far: changes no result */
#define PKI_MXCSR_DEFAULT 0x1f80u /* to nearest even, subnormal numbers are kept, nothing traps */

static inline pki_float_env pki_float_env_enter(void)
{
    pki_float_env was = __builtin_ia32_stmxcsr();

    if (__builtin_expect((was & ~PKI_MXCSR_FLAGS) != PKI_MXCSR_DEFAULT, 0))
        __builtin_ia32_ldmxcsr(PKI_MXCSR_DEFAULT);
    __asm__ volatile("" ::: "memory"); /* what is read and written in between is read and written in between */
    return was;
}

static inline void pki_float_env_leave(pki_float_env was)
{
    __asm__ volatile("" ::: "memory");
    if (__builtin_expect((was & ~PKI_MXCSR_FLAGS) != PKI_MXCSR_DEFAULT, 0))
        __builtin_ia32_ldmxcsr(was);
}

#elif defined(__aarch64__)
#include <stdint.h>

typedef uint64_t pki_float_env; /* FPCR; the flags are another register's */

static inline void pki_float_env_set(uint64_t fpcr)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(fpcr) : "memory");
}

static inline pki_float_env pki_float_env_enter(void)
{
    pki_float_env was;

    __asm__ volatile("mrs %0, fpcr" : "=r"(was)::"memory");
    if (__builtin_expect(was != 0, 0))
        pki_float_env_set(0);
    return was;
}

static inline void pki_float_env_leave(pki_float_env was)
{
    __asm__ volatile("" ::: "memory");
    if (__builtin_expect(was != 0, 0))
        pki_float_env_set(was);
}

#else
#include <fenv.h>

typedef fenv_t pki_float_env;

static inline pki_float_env pki_float_env_enter(void)
{
    pki_float_env was;

    fegetenv(&was);
    fesetenv(FE_DFL_ENV);
    __asm__ volatile("" ::: "memory");
    return was;
}

static inline void pki_float_env_leave(pki_float_env was)
{
    __asm__ volatile("" ::: "memory");
    fesetenv(&was);
}
#endif

#endif
