/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels and their parameters, for the code that launches them, the device code, and software that stands in for both.
 * Every kernel takes one parameter, a struct by value. Plain C and CUDA C++ alike; addresses are 64-bit numbers.
 *
 *   pki_wait               1 CTA, 32 threads               struct pki_wait_args
 *   pki_ll                 n CTAs, PKI_LL_THREADS threads  struct pki_ll_args
 *   pki_reduce_<op>_<type> any grid, PKI_REDUCE_THREADS    struct pki_reduce_args
 *
 * No kernel uses dynamic shared memory, and none needs its CTAs to run at the same time.
 */
#ifndef PKI_KERNELS_H
#define PKI_KERNELS_H

#include <stdint.h>

#define PKI_KERNEL_WAIT "pki_wait"
#define PKI_KERNEL_LL "pki_ll"
#define PKI_KERNEL_REDUCE_SUM_F32 "pki_reduce_sum_f32"
#define PKI_KERNEL_REDUCE_SUM_F16 "pki_reduce_sum_f16"
#define PKI_KERNEL_REDUCE_SUM_BF16 "pki_reduce_sum_bf16"
#define PKI_KERNEL_REDUCE_SUM_I32 "pki_reduce_sum_i32"

/* pki_wait: return when every word has its value. Reads are acquiring, system scope. */
#define PKI_WAIT_WORDS_MAX 128

struct pki_wait_word {
    uint64_t address; /* of a 32-bit word, host or device */
    uint32_t value;
    uint32_t equal; /* 1: until word == value. 0: until (int32_t)(word - value) >= 0 */
};

struct pki_wait_args {
    struct pki_wait_word words[PKI_WAIT_WORDS_MAX];
    uint32_t n;
    uint32_t reserved;
};

/*
 * pki_ll: CTA i does ops[i]. A slot is an array of pairs of cells, 16 bytes each:
 *     uint32_t data_low, flag, data_high, flag
 * Pair k carries bytes [8 k, 8 k + 8) of the message, zero-padded; a message of 0 bytes still uses one pair. A 16-byte store is
 * not one event for a reader in another GPU, but each 8-byte half is: so both halves carry the flag.
 *   send: writes all pairs; it waits for nothing, since the receiver has granted the slot.
 *   recv: until both flags of a pair are `flag`, takes its data.
 * At the end *done = flag: the source may be reused (send), the data is in place for CPU and GPUs (recv).
 * A cell keeps the flag of the last message that was long enough to reach it, so a flag must not come back to a slot while any
 * cell may hold it: count up, and skip 0. Every 1000 polls or so a receiver looks at abort_flag and
 * returns, without writing *done, when it is not 0.
 */
#define PKI_LL_THREADS 512
#define PKI_LL_OPS 8 /* parameters of a launch cost time */

struct pki_ll_args_op {
    uint64_t user;
    uint64_t slot;
    uint64_t done; /* address of a 32-bit word; 0: none */
    uint32_t bytes;
    uint32_t flag;
    uint32_t send; /* 1: send, 0: recv */
    uint32_t reserved;
};

struct pki_ll_args {
    struct pki_ll_args_op ops[PKI_LL_OPS];
    uint64_t abort_flag; /* address of a 32-bit word; 0: none */
    uint32_t n;
    uint32_t reserved;
};

/*
 * pki_reduce_<op>_<type>: dst[i] = srcs[0][i] op srcs[1][i] op ... srcs[n - 1][i], left to right; 16-bit floats in f32, rounded to
 * nearest even once at the end; integers wrap. dst may be one of the sources, and must not overlap them otherwise. Pointers are
 * aligned to the element; when all are aligned to 16 bytes, vectors are used.
 */
#define PKI_REDUCE_THREADS 512
#define PKI_REDUCE_SOURCES 16

struct pki_reduce_args {
    uint64_t dst;
    uint64_t srcs[PKI_REDUCE_SOURCES];
    uint64_t count; /* elements */
    uint32_t n;
    uint32_t reserved;
};

#endif
