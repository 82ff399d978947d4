/* SPDX-License-Identifier: Apache-2.0 */
/* Results and the last error: one text for the whole process, as NCCL has it, for programs ask from another thread than the
 * one that failed. */
#ifndef PKN_ERROR_H
#define PKN_ERROR_H

#include <pickle/base.h>

#include "abi.h"

/* Record the text and return `code`. */
pkn_result_t pkn_fail(pkn_result_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What a result of libpickle is here. An error's text, which is the calling thread's, becomes the last error. */
pkn_result_t pkn_from_pk(pk_result_t result);

#endif
