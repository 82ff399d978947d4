/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PKN_DTYPE_H
#define PKN_DTYPE_H

#include <pickle/base.h>

#include "error.h"

/* libpickle's number of a type. PKN_INVALID_ARGUMENT, recorded. */
pkn_result_t pkn_dtype(pkn_dtype_t dtype, pk_dtype_t *pk_dtype);

#endif
