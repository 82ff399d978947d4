/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's environment variables: those that libpickle has the like of are handed on as PK_*, which the user may set as well
 * and which then counts. */
#ifndef PKN_ENV_H
#define PKN_ENV_H

#include <stdbool.h>

struct pkn_table;

/* Read the configuration files, then set PK_* from NCCL_*. Once, before libpickle reads its environment. */
void pkn_env_translate(void);

/* Say which library this is and what is not used, as far as NCCL_DEBUG asks; send libpickle's log to NCCL_DEBUG_FILE. */
void pkn_env_report(const struct pkn_table *pk);

/* NCCL_COMM_BLOCKING: false where it is not set. */
bool pkn_env_blocking(int *blocking);

/* NCCL_COMM_ID, or NULL. */
const char *pkn_env_comm_id(void);

#endif
