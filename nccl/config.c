/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "error.h"

#define YEAR_MS ((uint64_t)365 * 24 * 3600 * 1000)
#define HAS_BLOCKING 21400 /* the versions that brought the fields */
#define HAS_CTAS 21700
#define CTAS_MOST 1024

static pkn_config_t undefined(void)
{
    return (pkn_config_t){
        .size = sizeof(pkn_config_t),
        .magic = PKN_CONFIG_MAGIC,
        .version = PKN_VERSION,
        .blocking = PKN_UNDEFINED,
        .cga_cluster_size = PKN_UNDEFINED,
        .min_ctas = PKN_UNDEFINED,
        .max_ctas = PKN_UNDEFINED,
        .split_share = PKN_UNDEFINED,
        .traffic_class = PKN_UNDEFINED,
        .collnet_enable = PKN_UNDEFINED,
        .cta_policy = PKN_UNDEFINED,
        .shrink_share = PKN_UNDEFINED,
        .nvls_ctas = PKN_UNDEFINED,
        .channels_per_net_peer = PKN_UNDEFINED,
        .nvlink_centric_sched = PKN_UNDEFINED,
    };
}

/* Older callers have a shorter struct, whose padding may lie where a later field is. */
static pkn_result_t take(const pkn_config_t *in, pkn_config_t *out)
{
    *out = undefined();
    if (in == NULL)
        return PKN_SUCCESS;
    if (in->magic != PKN_CONFIG_MAGIC)
        return pkn_fail(PKN_INVALID_ARGUMENT, "the config was not made by NCCL_CONFIG_INITIALIZER: its magic is 0x%x", in->magic);
    if (in->size < offsetof(pkn_config_t, blocking))
        return pkn_fail(PKN_INVALID_ARGUMENT, "config.size is %zu", in->size);
    memcpy(out, in, in->size < sizeof *out ? in->size : sizeof *out);
    if (out->version < HAS_BLOCKING)
        out->blocking = PKN_UNDEFINED;
    if (out->version < HAS_CTAS)
        out->min_ctas = out->max_ctas = PKN_UNDEFINED;
    return PKN_SUCCESS;
}

static pkn_result_t check(const pkn_config_t *c)
{
    if (c->blocking != PKN_UNDEFINED && c->blocking != 0 && c->blocking != 1)
        return pkn_fail(PKN_INVALID_ARGUMENT, "config.blocking is %d: 0 or 1", c->blocking);
    if (c->min_ctas != PKN_UNDEFINED && c->min_ctas <= 0)
        return pkn_fail(PKN_INVALID_ARGUMENT, "config.minCTAs is %d", c->min_ctas);
    if (c->max_ctas != PKN_UNDEFINED && c->max_ctas <= 0)
        return pkn_fail(PKN_INVALID_ARGUMENT, "config.maxCTAs is %d", c->max_ctas);
    if (c->min_ctas != PKN_UNDEFINED && c->max_ctas != PKN_UNDEFINED && c->min_ctas > c->max_ctas)
        return pkn_fail(PKN_INVALID_ARGUMENT, "config.minCTAs is %d and config.maxCTAs %d", c->min_ctas, c->max_ctas);
    return PKN_SUCCESS;
}

pkn_result_t pkn_config_read(const pkn_config_t *config, const struct pkn_settings *parent, struct pkn_settings *settings)
{
    const struct pkn_settings defaults = { .blocking = true };
    pkn_config_t c;
    int blocking;
    pkn_result_t result = take(config, &c);

    if (result == PKN_SUCCESS)
        result = check(&c);
    if (result != PKN_SUCCESS)
        return result;
    *settings = parent != NULL ? *parent : defaults;
    if (c.blocking != PKN_UNDEFINED)
        settings->blocking = c.blocking;
    if (c.max_ctas != PKN_UNDEFINED)
        settings->max_ctas = c.max_ctas < CTAS_MOST ? c.max_ctas : CTAS_MOST;
    if (pkn_env_blocking(&blocking)) /* goes before the program's word, as NCCL has it */
        settings->blocking = blocking;
    return PKN_SUCCESS;
}

pk_comm_config_t pkn_config_for_pk(const struct pkn_settings *settings, int device)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_CUDA(device);
    config.nonblocking = 1;
    if (settings->max_ctas > 0 && getenv("PK_SM_POLICY") == NULL) {
        config.sm_policy = PK_SM_BOUNDED;
        config.max_sms = settings->max_ctas;
    }
    if (getenv("PK_TIMEOUT_MS") == NULL)
        config.timeout_ms = YEAR_MS;
    return config;
}
