/* SPDX-License-Identifier: Apache-2.0 */
/* The host's reduction with a choice of instructions: for tests, which compare the two. */
#ifndef PKI_REDUCE_HOST_H
#define PKI_REDUCE_HOST_H

#include <stdbool.h>
#include <stddef.h>

#include "pickle/base.h"

/* As pki_reduce_host. `plain`: use nothing that not every CPU of the architecture has. */
pk_result_t pki_reduce_host_isa(void *dst, const void *const *srcs, int n, size_t count, pk_dtype_t dtype, pk_op_t op,
                                bool plain);

#endif
