/* SPDX-License-Identifier: Apache-2.0 */
/* ncclConfig_t, as a caller of any version fills it, and what is used of it. */
#ifndef PKN_CONFIG_H
#define PKN_CONFIG_H

#include <pickle/comm.h>
#include <stdbool.h>

#include "abi.h"

struct pkn_settings {
    bool blocking;
    int max_ctas; /* 0: not said */
};

/* `config` may be NULL. `parent` (or NULL): what a field that the caller leaves undefined is instead of its default.
 * PKN_INVALID_ARGUMENT, recorded: the field and its value. */
pkn_result_t pkn_config_read(const pkn_config_t *config, const struct pkn_settings *parent, struct pkn_settings *settings);

/* As libpickle wants it: of this device, non-blocking, practically without a deadline unless PK_TIMEOUT_MS is set. */
pk_comm_config_t pkn_config_for_pk(const struct pkn_settings *settings, int device);

#endif
