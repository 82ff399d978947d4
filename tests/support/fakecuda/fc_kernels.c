/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels do, on one CPU thread: the library's (lib/kernels) by their published parameters, and some for tests. The
 * reductions are in fc_reduce.c, the fused collectives in fc_fused.c, transfers that wait in fc_move.c.
 * Written from kernels.h alone, so that a kernel and its stand-in do not share a mistake.
 */
#include "fc_kernels.h"

#include <string.h>
#include <time.h>

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
        while (!fc_word_open(fc_load32(word), w->value, w->equal ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ, 4))
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
        fc_store32(m->done, m->op->flag);
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
        fc_store32(m->done, m->op->flag);
    return any;
}

/* The blocks of a launch run side by side on a GPU: here all sends go first, which wait for nothing, then every receive as it can. */
static void run_ll(const struct fc_launch *l, uint32_t most)
{
    const struct pki_ll_row_args *args = l->params[0]; /* those of one message begin alike */
    const void *abort_word = args->head.abort_flag != 0 ? fc_ptr(l, args->head.abort_flag, 4) : NULL;
    struct message messages[PKI_LL_ROW_OPS];
    uint32_t n = args->head.n, left = 0;
    unsigned round = 0;

    if (n > most)
        n = most;
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
        if (abort_word != NULL && fc_load32(abort_word) != 0)
            return;
        fc_relax(&round);
    }
}

static void run_pki_ll(const struct fc_launch *l)
{
    run_ll(l, 1);
}

static void run_pki_ll_row(const struct fc_launch *l)
{
    run_ll(l, PKI_LL_ROW_OPS);
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
    while (word != NULL && fc_load32(word) == 0)
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
/* (uint64_t rounds): takes time, and touches nothing. */
static void run_burn(const struct fc_launch *l)
{
    uint64_t rounds;
    volatile uint64_t sum = 0;

    memcpy(&rounds, l->params[0], sizeof rounds);
    while (sum < rounds)
        sum = sum + 4;
}

/* (uint64_t (*table)[2]): one multiprocessor, whose cycles are nanoseconds. */
static void run_stamp(const struct fc_launch *l)
{
    CUdeviceptr address;
    struct timespec now;
    uint64_t *entry;

    memcpy(&address, l->params[0], sizeof address);
    entry = fc_ptr(l, address, 2 * sizeof *entry);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (entry != NULL)
        entry[0] = entry[1] = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void run_pki_unpack(const struct fc_launch *l)
{
    const struct pki_unpack_args *args = l->params[0];

    for (uint32_t i = 0; i < args->n && i < PKI_UNPACK_FRAGMENTS; i++) {
        const struct pki_unpack_fragment *f = &args->fragments[i];
        const void *src = fc_ptr(l, args->src + f->src_offset, f->bytes);
        void *dst = fc_ptr(l, args->dst + f->dst_offset, f->bytes);

        if (src == NULL || dst == NULL)
            return;
        fc_bytes_copy(dst, src, f->bytes);
    }
}

static const size_t serve_bytes[] = { sizeof(struct pki_serve_args) };
static const size_t unpack_bytes[] = { sizeof(struct pki_unpack_args) };
static const size_t move_bytes[] = { sizeof(struct pki_move_args) };
static const size_t scale_bytes[] = { sizeof(struct pki_scale_args) };
static const size_t ll_bytes[] = { sizeof(struct pki_ll_args) };
static const size_t ll_row_bytes[] = { sizeof(struct pki_ll_row_args) };
static const size_t reduce_bytes[] = { sizeof(struct pki_reduce_args) };
static const size_t fused_bytes[] = { sizeof(struct pki_fused_args) };
static const size_t burn_bytes[] = { 8 };
static const size_t spin_bytes[] = { 8 };
static const size_t stamp_bytes[] = { 8 };
static const size_t add_bytes[] = { 8, 8, 4 };

/* A type's kernels: the same work, told the type. */
#define TYPED_RUN(type, enumerator) \
    static void run_reduce_##type(const struct fc_launch *l) \
    { \
        fc_run_reduce(l, PK_##enumerator); \
    }

TYPED_RUN(int8, INT8)
TYPED_RUN(uint8, UINT8)
TYPED_RUN(int32, INT32)
TYPED_RUN(uint32, UINT32)
TYPED_RUN(int64, INT64)
TYPED_RUN(uint64, UINT64)
TYPED_RUN(f16, F16)
TYPED_RUN(bf16, BF16)
TYPED_RUN(f32, F32)
TYPED_RUN(f64, F64)
TYPED_RUN(f8e4m3, F8E4M3)
TYPED_RUN(f8e5m2, F8E5M2)

#define TYPED(type, enumerator) \
    { \
        PKI_KERNEL_REDUCE #type, 1, reduce_bytes, run_reduce_##type \
    }

const struct fc_kernel fc_kernels[] = {
    { PKI_KERNEL_WAIT, 1, wait_bytes, run_pki_wait },
    { PKI_KERNEL_SERVE, 1, serve_bytes, fc_run_serve },
    { PKI_KERNEL_LL, 1, ll_bytes, run_pki_ll },
    { PKI_KERNEL_LL_ROW, 1, ll_row_bytes, run_pki_ll_row },
    { PKI_KERNEL_TURN, 1, fused_bytes, fc_run_turn },
    { PKI_KERNEL_EXCHANGE, 1, fused_bytes, fc_run_exchange },
    { PKI_KERNEL_PUSH, 1, fused_bytes, fc_run_push },
    { PKI_KERNEL_UNPACK, 1, unpack_bytes, run_pki_unpack },
    { PKI_KERNEL_MOVE, 1, move_bytes, fc_run_move },
    { PKI_KERNEL_SCALE, 1, scale_bytes, fc_run_scale },
    { PKI_KERNEL_FOLD, 1, fused_bytes, fc_run_fold },
    { PKI_KERNEL_RELAY, 1, fused_bytes, fc_run_relay },
    { PKI_KERNEL_PUSH_SUM, 1, fused_bytes, fc_run_push_sum },
    { PKI_KERNEL_TWOSHOT, 1, fused_bytes, fc_run_twoshot },
    { PKI_KERNEL_TWOSHOT_ANY, 1, fused_bytes, fc_run_twoshot },
    { PKI_KERNEL_PAIR_EXCHANGE, 1, fused_bytes, fc_run_exchange },
    { PKI_KERNEL_PAIR_SUM "f32", 1, fused_bytes, fc_run_fold },
    { PKI_KERNEL_PAIR_SUM "f16", 1, fused_bytes, fc_run_fold },
    { PKI_KERNEL_PAIR_SUM "bf16", 1, fused_bytes, fc_run_fold },
    { PKI_KERNEL_REPLAY "exchange", 1, fused_bytes, fc_run_replay_exchange },
    { PKI_KERNEL_REPLAY "fold", 1, fused_bytes, fc_run_replay_fold },
    { PKI_KERNEL_REPLAY "pair_exchange", 1, fused_bytes, fc_run_replay_exchange },
    { PKI_KERNEL_REPLAY "pair_f32", 1, fused_bytes, fc_run_replay_fold },
    { PKI_KERNEL_REPLAY "pair_f16", 1, fused_bytes, fc_run_replay_fold },
    { PKI_KERNEL_REPLAY "pair_bf16", 1, fused_bytes, fc_run_replay_fold },
    TYPED(int8, INT8),
    TYPED(uint8, UINT8),
    TYPED(int32, INT32),
    TYPED(uint32, UINT32),
    TYPED(int64, INT64),
    TYPED(uint64, UINT64),
    TYPED(f16, F16),
    TYPED(bf16, BF16),
    TYPED(f32, F32),
    TYPED(f64, F64),
    TYPED(f8e4m3, F8E4M3),
    TYPED(f8e5m2, F8E5M2),
    { "fakecuda_spin", 1, spin_bytes, run_spin },
    { "fakecuda_hold", 1, spin_bytes, run_spin },
    { "fakecuda_burn", 1, burn_bytes, run_burn },
    { "fakecuda_stamp", 1, stamp_bytes, run_stamp },
    { "fakecuda_add", 3, add_bytes, run_add },
    { NULL, 0, NULL, NULL },
};
