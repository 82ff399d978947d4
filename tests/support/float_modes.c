/* SPDX-License-Identifier: Apache-2.0 */
#include "float_modes.h"

#include <fenv.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

const char *const float_modes[] = { "default",        "subnormal numbers are zero", "toward zero", "upward", "downward",
                                    "exceptions trap" };
const size_t float_modes_count = sizeof float_modes / sizeof *float_modes;

enum { FLUSHES = 1, TRAPS = 5 };
static const int roundings[] = { FE_TONEAREST, FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD, FE_TONEAREST };

/* The processor's bits that a mode consists of. */
#if defined(__x86_64__)
#define FLUSH_BITS 0x8040u /* results and operands */
#define MODE_BITS 0xffc0u

static uint64_t control(void)
{
    return _mm_getcsr();
}

static void set_control(uint64_t bits)
{
    _mm_setcsr((unsigned)bits);
}
#elif defined(__aarch64__)
#define FLUSH_BITS (1u << 24)
#define MODE_BITS (~UINT64_C(0))

static uint64_t control(void)
{
    uint64_t fpcr;

    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
}

static void set_control(uint64_t bits)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(bits));
}
#else
#define FLUSH_BITS 0u
#define MODE_BITS 0u

static uint64_t control(void)
{
    return 0;
}

static void set_control(uint64_t bits)
{
    (void)bits;
}
#endif

bool float_mode_set(size_t i)
{
    fesetenv(FE_DFL_ENV);
    if (i == FLUSHES)
        set_control(control() | FLUSH_BITS);
    if (i == FLUSHES && FLUSH_BITS == 0)
        return false;
    if (i == TRAPS)
        return feenableexcept(FE_ALL_EXCEPT) != -1 && fegetexcept() == FE_ALL_EXCEPT; /* ARM's processors have no traps */
    return fesetround(roundings[i]) == 0;
}

bool float_mode_is(size_t i)
{
    uint64_t now = control() & MODE_BITS;
    bool same;

    if (fegetround() != roundings[i] || fegetexcept() != (i == TRAPS ? FE_ALL_EXCEPT : 0))
        return false;
    (void)float_mode_set(i);
    same = (control() & MODE_BITS) == now;
    return same;
}
