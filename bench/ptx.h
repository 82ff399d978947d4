/* SPDX-License-Identifier: Apache-2.0 */
/* Small kernels as PTX text, for gpu_kernel_load. The software driver of the tests has them too, under the same names. */
#ifndef PTX_H
#define PTX_H

/* (uint32_t *flag): every block waits until the word is not 0. */
#define PTX_SPIN "fakecuda_spin"
extern const char ptx_spin[];

/* (uint32_t *flag): the same, but all threads are busy, and look at the word every 50 us. */
#define PTX_HOLD "fakecuda_hold"
extern const char ptx_hold[];

/* (uint64_t rounds): each thread does that number of multiply-adds. */
#define PTX_BURN "fakecuda_burn"
extern const char ptx_burn[];

/* (uint64_t (*table)[2]): each block writes its multiprocessor's cycle counter and the time in ns into table[number of the multiprocessor]. */
#define PTX_STAMP "fakecuda_stamp"
extern const char ptx_stamp[];

#endif
