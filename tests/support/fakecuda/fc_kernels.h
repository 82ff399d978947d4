/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-ins for the library's kernels share. */
#ifndef FC_KERNELS_H
#define FC_KERNELS_H

#include <string.h>

#include "fakecuda.h"

#include "../../../include/pickle/base.h"
#include "../../../lib/kernels/kernels.h"

static inline uint32_t fc_load32(const void *word)
{
    return atomic_load_explicit((const _Atomic uint32_t *)word, memory_order_acquire);
}

static inline void fc_store32(void *word, uint32_t value)
{
    atomic_store_explicit((_Atomic uint32_t *)word, value, memory_order_release);
}

/* One element of any type while it is being reduced. */
union fc_wide {
    double d;
    float f;
    uint64_t u;
};

/* fc_reduce.c: element i of an array, as the type accumulates it; combined; and stored, after the division if there is a divisor. */
union fc_wide fc_any_load(const void *array, uint64_t i, pk_dtype_t type);
union fc_wide fc_any_combine(union fc_wide a, union fc_wide b, pk_dtype_t type, uint32_t op);
void fc_any_store(void *array, uint64_t i, pk_dtype_t type, union fc_wide value, uint32_t divisor);

/* The same; sums of f32, of which tests make most, without a call. */
static inline union fc_wide fc_element_load(const void *array, uint64_t i, pk_dtype_t type)
{
    union fc_wide value = { .u = 0 };

    if (type != PK_F32)
        return fc_any_load(array, i, type);
    memcpy(&value.f, (const char *)array + i * sizeof value.f, sizeof value.f);
    return value;
}

static inline union fc_wide fc_element_combine(union fc_wide a, union fc_wide b, pk_dtype_t type, uint32_t op)
{
    return type == PK_F32 && op == PKI_KERNEL_SUM ? (union fc_wide){ .f = a.f + b.f } : fc_any_combine(a, b, type, op);
}

static inline void fc_element_store(void *array, uint64_t i, pk_dtype_t type, union fc_wide value, uint32_t divisor)
{
    if (type == PK_F32 && divisor <= 1)
        memcpy((char *)array + i * sizeof value.f, &value.f, sizeof value.f);
    else
        fc_any_store(array, i, type, value, divisor);
}

size_t fc_element_bytes(pk_dtype_t type);
void fc_run_reduce(const struct fc_launch *l, pk_dtype_t type);
void fc_run_scale(const struct fc_launch *l);

/* fc_move.c */
void fc_run_move(const struct fc_launch *l);

/* fc_serve.c */
void fc_run_serve(const struct fc_launch *l);

/* fc_fused.c */
void fc_run_turn(const struct fc_launch *l);
void fc_run_exchange(const struct fc_launch *l);
void fc_run_fold(const struct fc_launch *l);
void fc_run_replay_exchange(const struct fc_launch *l);
void fc_run_replay_fold(const struct fc_launch *l);
void fc_run_relay(const struct fc_launch *l);
void fc_run_push(const struct fc_launch *l);
void fc_run_twoshot(const struct fc_launch *l);
void fc_run_push_sum(const struct fc_launch *l);

#endif
