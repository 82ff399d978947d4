/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels do, on one CPU thread: the library's (lib/device/kernels) by their published parameters, and some for tests.
 * Written from kernels.h alone, so that a kernel and its stand-in do not share a mistake.
 */
#include "fakecuda.h"

#include <string.h>

#include "../../../lib/device/kernels/kernels.h"

static uint32_t load32(const void *word)
{
    return atomic_load_explicit((const _Atomic uint32_t *)word, memory_order_acquire);
}

static void store32(void *word, uint32_t value)
{
    atomic_store_explicit((_Atomic uint32_t *)word, value, memory_order_release);
}

/* --- pki_wait --- */

static void run_pki_wait(const struct fc_launch *l)
{
    const struct pki_wait_args *args = l->params[0];
    unsigned round = 0;

    for (uint32_t i = 0; i < args->n && i < PKI_WAIT_WORDS_MAX; i++) {
        const struct pki_wait_word *w = &args->words[i];
        const void *word = fc_ptr(l, w->address, 4);

        if (word == NULL)
            return;
        while (!fc_word_open(load32(word), w->value, w->equal ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ, 4))
            fc_relax(&round);
    }
}

/* --- pki_ll --- */

/* A message under way. Cells are read and written in halves of 8 bytes, each one event: data below, flag above. */
struct message {
    const struct pki_ll_args_op *op;
    char *user;
    _Atomic uint64_t *cells; /* two to a pair */
    void *done;
    uint32_t pairs, next;
};

static bool message_open(const struct fc_launch *l, const struct pki_ll_args_op *op, struct message *m)
{
    *m = (struct message){ .op = op, .pairs = op->bytes > 0 ? (op->bytes + 7) / 8 : 1 };
    m->cells = fc_ptr(l, op->slot, (size_t)m->pairs * 16);
    if (m->cells == NULL)
        return false;
    if (op->bytes > 0) {
        m->user = fc_ptr(l, op->user, op->bytes);
        if (m->user == NULL)
            return false;
    }
    if (op->done != 0) {
        m->done = fc_ptr(l, op->done, 4);
        if (m->done == NULL)
            return false;
    }
    return true;
}

static uint32_t part_bytes(const struct message *m, uint32_t pair)
{
    uint32_t offset = pair * 8;

    if (offset >= m->op->bytes)
        return 0;
    return m->op->bytes - offset < 8 ? m->op->bytes - offset : 8;
}

static void message_send(struct message *m)
{
    uint64_t flag = (uint64_t)m->op->flag << 32;

    for (uint32_t pair = 0; pair < m->pairs; pair++) {
        uint64_t data = 0;

        if (part_bytes(m, pair) > 0)
            memcpy(&data, m->user + (size_t)pair * 8, part_bytes(m, pair));
        atomic_store_explicit(&m->cells[2 * pair], (data & UINT32_MAX) | flag, memory_order_release);
        atomic_store_explicit(&m->cells[2 * pair + 1], data >> 32 | flag, memory_order_release);
    }
    m->next = m->pairs;
    if (m->done != NULL)
        store32(m->done, m->op->flag);
}

/* Takes what has arrived. */
static bool message_recv(struct message *m)
{
    bool any = false;

    while (m->next < m->pairs) {
        uint64_t low = atomic_load_explicit(&m->cells[2 * m->next], memory_order_acquire);
        uint64_t high = atomic_load_explicit(&m->cells[2 * m->next + 1], memory_order_acquire);
        uint64_t data = (low & UINT32_MAX) | high << 32;

        if (low >> 32 != m->op->flag || high >> 32 != m->op->flag)
            break;
        if (part_bytes(m, m->next) > 0)
            memcpy(m->user + (size_t)m->next * 8, &data, part_bytes(m, m->next));
        m->next++;
        any = true;
    }
    if (any && m->next == m->pairs && m->done != NULL)
        store32(m->done, m->op->flag);
    return any;
}

/* The blocks of a launch run side by side on a GPU: here all sends go first, which wait for nothing, then every receive as it can. */
static void run_pki_ll(const struct fc_launch *l)
{
    const struct pki_ll_args *args = l->params[0];
    const void *abort_word = args->abort_flag != 0 ? fc_ptr(l, args->abort_flag, 4) : NULL;
    struct message messages[PKI_LL_OPS];
    uint32_t n = args->n <= l->grid.x ? args->n : l->grid.x, left = 0;
    unsigned round = 0;

    if (n > PKI_LL_OPS)
        n = PKI_LL_OPS;
    for (uint32_t i = 0; i < n; i++) {
        if (!message_open(l, &args->ops[i], &messages[i]))
            return;
        if (args->ops[i].send)
            message_send(&messages[i]);
        else
            left++;
    }
    while (left > 0) {
        bool any = false;

        for (uint32_t i = 0; i < n; i++)
            if (messages[i].next < messages[i].pairs && message_recv(&messages[i])) {
                any = true;
                left -= messages[i].next == messages[i].pairs;
            }
        if (any)
            continue;
        if (abort_word != NULL && load32(abort_word) != 0)
            return;
        fc_relax(&round);
    }
}

/* --- pki_reduce_sum_* --- */

static float f16_to_float(uint16_t h)
{
    uint32_t exponent = h >> 10 & 31u, mantissa = h & 1023u, bits;
    float value;

    if (exponent == 0) {
        value = (float)mantissa / 16777216.0f; /* 2^-24 */
        return h & 0x8000u ? -value : value;
    }
    bits = (uint32_t)(h & 0x8000u) << 16 | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t float_to_f16(float value)
{
    uint32_t bits, sign, magnitude, rest, half;
    uint32_t shift = 13;

    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000u;
    magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7fffu);
    if (magnitude >= 0x47800000u)
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x33000000u) /* below half of the smallest */
        return (uint16_t)sign;
    if (magnitude < 0x38800000u) {
        shift = 126 - (magnitude >> 23);
        magnitude = (magnitude & 0x7fffffu) | 0x800000u;
    } else {
        magnitude -= 112u << 23;
    }
    rest = magnitude & ((1u << shift) - 1);
    half = 1u << (shift - 1);
    magnitude >>= shift;
    if (rest > half || (rest == half && (magnitude & 1)))
        magnitude++;
    return (uint16_t)(sign | magnitude);
}

static float bf16_to_float(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t float_to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct reduction {
    const struct pki_reduce_args *args;
    char *dst;
    const char *srcs[PKI_REDUCE_SOURCES];
};

static bool reduction_open(const struct fc_launch *l, size_t element_bytes, struct reduction *r)
{
    size_t bytes;

    r->args = l->params[0];
    bytes = r->args->count * element_bytes;
    if (bytes == 0 || r->args->n == 0 || r->args->n > PKI_REDUCE_SOURCES)
        return false;
    r->dst = fc_ptr(l, r->args->dst, bytes);
    for (uint32_t s = 0; s < r->args->n; s++) {
        r->srcs[s] = fc_ptr(l, r->args->srcs[s], bytes);
        if (r->srcs[s] == NULL)
            return false;
    }
    return r->dst != NULL;
}

static void run_sum_f32(const struct fc_launch *l)
{
    struct reduction r;

    if (!reduction_open(l, 4, &r))
        return;
    for (uint64_t i = 0; i < r.args->count; i++) {
        float total = ((const float *)(const void *)r.srcs[0])[i];

        for (uint32_t s = 1; s < r.args->n; s++)
            total += ((const float *)(const void *)r.srcs[s])[i];
        ((float *)(void *)r.dst)[i] = total;
    }
}

static void sum_16(const struct fc_launch *l, float (*load)(uint16_t), uint16_t (*store)(float))
{
    struct reduction r;

    if (!reduction_open(l, 2, &r))
        return;
    for (uint64_t i = 0; i < r.args->count; i++) {
        float total = load(((const uint16_t *)(const void *)r.srcs[0])[i]);

        for (uint32_t s = 1; s < r.args->n; s++)
            total += load(((const uint16_t *)(const void *)r.srcs[s])[i]);
        ((uint16_t *)(void *)r.dst)[i] = store(total);
    }
}

static void run_sum_f16(const struct fc_launch *l)
{
    sum_16(l, f16_to_float, float_to_f16);
}

static void run_sum_bf16(const struct fc_launch *l)
{
    sum_16(l, bf16_to_float, float_to_bf16);
}

static void run_sum_i32(const struct fc_launch *l)
{
    struct reduction r;

    if (!reduction_open(l, 4, &r))
        return;
    for (uint64_t i = 0; i < r.args->count; i++) {
        uint32_t total = ((const uint32_t *)(const void *)r.srcs[0])[i];

        for (uint32_t s = 1; s < r.args->n; s++)
            total += ((const uint32_t *)(const void *)r.srcs[s])[i];
        ((uint32_t *)(void *)r.dst)[i] = total;
    }
}

/* --- for tests --- */

/* (uint32_t *word): returns when the word is not 0. */
static void run_spin(const struct fc_launch *l)
{
    const void *word;
    CUdeviceptr address;
    unsigned round = 0;

    memcpy(&address, l->params[0], sizeof address);
    word = fc_ptr(l, address, 4);
    while (word != NULL && load32(word) == 0)
        fc_relax(&round);
}

/* (uint32_t *dst, uint64_t count, uint32_t add): dst[i] += add. */
static void run_add(const struct fc_launch *l)
{
    CUdeviceptr address;
    uint64_t count;
    uint32_t add;
    uint32_t *dst;

    memcpy(&address, l->params[0], sizeof address);
    memcpy(&count, l->params[1], sizeof count);
    memcpy(&add, l->params[2], sizeof add);
    dst = fc_ptr(l, address, count * 4);
    for (uint64_t i = 0; dst != NULL && i < count; i++)
        dst[i] += add;
}

static const size_t wait_bytes[] = { sizeof(struct pki_wait_args) };
static const size_t ll_bytes[] = { sizeof(struct pki_ll_args) };
static const size_t reduce_bytes[] = { sizeof(struct pki_reduce_args) };
static const size_t spin_bytes[] = { 8 };
static const size_t add_bytes[] = { 8, 8, 4 };

const struct fc_kernel fc_kernels[] = {
    { PKI_KERNEL_WAIT, 1, wait_bytes, run_pki_wait },
    { PKI_KERNEL_LL, 1, ll_bytes, run_pki_ll },
    { PKI_KERNEL_REDUCE_SUM_F32, 1, reduce_bytes, run_sum_f32 },
    { PKI_KERNEL_REDUCE_SUM_F16, 1, reduce_bytes, run_sum_f16 },
    { PKI_KERNEL_REDUCE_SUM_BF16, 1, reduce_bytes, run_sum_bf16 },
    { PKI_KERNEL_REDUCE_SUM_I32, 1, reduce_bytes, run_sum_i32 },
    { "fakecuda_spin", 1, spin_bytes, run_spin },
    { "fakecuda_add", 3, add_bytes, run_add },
    { NULL, 0, NULL, NULL },
};
