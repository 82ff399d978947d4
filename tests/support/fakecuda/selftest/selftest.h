/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the self-test share. Plain checks: the first that fails ends the program. */
#ifndef FAKECUDA_SELFTEST_H
#define FAKECUDA_SELFTEST_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPECT(call, code) st_expect((call), (code), #call, __FILE__, __LINE__)
#define OK(call) EXPECT(call, CUDA_SUCCESS)
#define CHECK(condition) st_check((condition), #condition, __FILE__, __LINE__)

void st_expect(CUresult got, CUresult wanted, const char *what, const char *file, int line);
void st_check(bool ok, const char *what, const char *file, int line);

CUcontext st_context(int device); /* retained for good */
CUstream st_stream(void);
CUdeviceptr st_alloc(size_t bytes);
CUfunction st_kernel(const char *name);
void st_add(CUstream stream, CUdeviceptr words, uint64_t count, uint32_t by);
uint32_t st_read(CUdeviceptr word);
void st_write(CUdeviceptr word, uint32_t value);
void st_sleep_ms(int ms);
bool st_done(CUstream stream, int within_ms); /* is it idle in time? */
unsigned long st_stat(const char *name);

/* A page of host words that streams may touch. */
struct st_words {
    _Atomic uint32_t *at;
};
struct st_words st_words_new(void);
void st_words_free(struct st_words *words);
CUdeviceptr st_word(const struct st_words *words, int index);

void st_capture_tests(void);
void st_kernel_tests(void);
/* The program starts itself with other settings; the started one runs one variant. */
void st_variants_start(void);
int st_variant_run(const char *name);
/* Two processes: fork before cuInit, then each calls its side. */
void st_ipc_exporter(int socket);
void st_ipc_importer(int socket);

#endif
