/* SPDX-License-Identifier: Apache-2.0 */
/* PK_* environment variables. A variable that is unset or empty gives the fallback; one that cannot be understood is an error
 * (PK_ERR_ARG) whose text names the variable, its value and what would be right, never a silent default. */
#ifndef PKI_ENV_H
#define PKI_ENV_H

#include <stdbool.h>
#include <stdint.h>

#include "pickle/base.h"

/* The value, or NULL when unset or empty. Points into the environment. */
const char *pki_env_get(const char *name);

/* A decimal integer from `min` to `max`. */
pk_result_t pki_env_int(const char *name, int64_t min, int64_t max, int64_t fallback, int64_t *value);

/* One of `words` (NULL at the end), exactly; gives its index. */
pk_result_t pki_env_word(const char *name, const char *const *words, int fallback, int *index);

/* 0 1 no yes false true off on. */
pk_result_t pki_env_bool(const char *name, bool fallback, bool *value);

#endif
