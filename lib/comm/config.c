/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration: the caller's struct, then the environment, then defaults. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "util/env.h"

#define DEFAULT_TIMEOUT_MS 600000
#define TIMEOUT_MS_MAX (INT64_MAX / 2000000) /* 146 years: added to a clock in ns it does not wrap */
#define SMS_MAX 1024

/* Fields of a later version: their defaults are all right, but not to do what else they ask for must not go unsaid. */
static bool asks_for_more(const pk_comm_config_t *in)
{
    for (size_t i = sizeof *in; i < in->struct_size; i++)
        if (((const unsigned char *)in)[i] != 0)
            return true;
    return false;
}

/* Older callers have a shorter struct: what they do not know is zero. */
static pk_result_t copy_config(const pk_comm_config_t *in, pk_comm_config_t *out)
{
    const pk_comm_config_t defaults = PK_COMM_CONFIG_INIT;

    *out = defaults;
    if (in == NULL)
        return PK_OK;
    if (in->struct_size < sizeof in->struct_size + sizeof in->device || in->struct_size > 4096)
        return pki_fail(PK_ERR_ARG, NULL, "config.struct_size is %zu: use PK_COMM_CONFIG_INIT", in->struct_size);
    if (asks_for_more(in))
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "config has fields that version %d.%d.%d does not know, and they are not zero",
                        PK_VERSION_MAJOR, PK_VERSION_MINOR, PK_VERSION_PATCH);
    memcpy(out, in, in->struct_size < sizeof *out ? in->struct_size : sizeof *out);
    out->struct_size = sizeof *out;
    return PK_OK;
}

static pk_result_t check_fields(const pk_comm_config_t *c)
{
    if (c->device < PK_DEVICE_HOST)
        return pki_fail(PK_ERR_ARG, NULL, "config.device is %d", c->device);
    if (c->sm_policy < PK_SM_DEFAULT || c->sm_policy > PK_SM_BOUNDED)
        return pki_fail(PK_ERR_ARG, NULL, "config.sm_policy is %d", c->sm_policy);
    if (c->sm_policy == PK_SM_BOUNDED && (c->max_sms < 1 || c->max_sms > SMS_MAX))
        return pki_fail(PK_ERR_ARG, NULL, "config.max_sms is %d with PK_SM_BOUNDED", c->max_sms);
    if (c->nonblocking != 0 && c->nonblocking != 1)
        return pki_fail(PK_ERR_ARG, NULL, "config.nonblocking is %d", c->nonblocking);
    return PK_OK;
}

/* PK_SM_POLICY: default, none, or the number of multiprocessors allowed. */
static pk_result_t policy_from_env(pk_comm_config_t *c)
{
    const char *text = pki_env_get("PK_SM_POLICY");
    int64_t sms;
    pk_result_t result;

    if (text == NULL || c->sm_policy != PK_SM_DEFAULT || strcmp(text, "default") == 0)
        return PK_OK;
    if (strcmp(text, "none") == 0) {
        c->sm_policy = PK_SM_NONE;
        return PK_OK;
    }
    result = pki_env_int("PK_SM_POLICY", 1, SMS_MAX, 1, &sms);
    if (result != PK_OK)
        return pki_fail(PK_ERR_ARG, NULL, "PK_SM_POLICY is '%s' instead of default, none or a number from 1 to %d", text,
                        SMS_MAX);
    c->sm_policy = PK_SM_BOUNDED;
    c->max_sms = (int)sms;
    return PK_OK;
}

static pk_result_t algorithm_from_env(struct pk_comm *comm)
{
    const char *text = pki_env_get("PK_ALGORITHM");
    pk_result_t result;

    comm->settings.agreed = pki_agreed;
    if (text == NULL)
        return PK_OK;
    result = pki_algorithm_text_check(text);
    if (result == PK_OK)
        strcpy(comm->settings.algorithm, text);
    return result;
}

static pk_result_t fallback_from_env(struct pk_comm *comm)
{
    bool fallback;
    pk_result_t result = pki_env_bool("PK_SWITCHML_FALLBACK", false, &fallback);

    if (result == PK_OK)
        comm->settings.switchml_fallback = fallback;
    return result;
}

static pk_result_t p2p_level_from_env(struct pk_comm *comm)
{
    const char *text = pki_env_get("PK_P2P_LEVEL");
    enum pki_distance level = PKI_DIST_UNKNOWN;

    if (text != NULL && !pki_distance_parse(text, &level))
        return pki_fail(PK_ERR_ARG, NULL, "PK_P2P_LEVEL is '%.32s' instead of LOC, NVL, PIX, PXB, PHB, NODE or SYS", text);
    comm->settings.p2p_level = (int32_t)level;
    return PK_OK;
}

static pthread_once_t tuning_once = PTHREAD_ONCE_INIT;
static const char *bad_tuning; /* where PICKLE_TEST_TUNING goes wrong, or NULL */

static void read_tuning(void)
{
    const char *text = pki_env_get("PICKLE_TEST_TUNING");

    bad_tuning = text != NULL ? pki_tuning_override(text) : NULL;
}

/* Once a process, before anything reads a value of the table. */
static pk_result_t tuning_from_env(void)
{
    (void)pthread_once(&tuning_once, read_tuning);
    if (bad_tuning != NULL)
        return pki_fail(PK_ERR_ARG, NULL, "PICKLE_TEST_TUNING: '%.48s' begins with no value of lib/tuning/table.h and a number",
                        bad_tuning);
    return PK_OK;
}

static enum pki_origin origin(bool in_config, const char *variable)
{
    if (in_config)
        return PKI_FROM_CONFIG;
    return variable != NULL && pki_env_get(variable) != NULL ? PKI_FROM_ENVIRONMENT : PKI_FROM_DEFAULT;
}

/* With the caller's values alone in the configuration. */
static void note_origins(struct pk_comm *comm)
{
    const pk_comm_config_t *c = &comm->config;

    comm->origins.device = origin(c->device != PK_DEVICE_AUTO, NULL);
    comm->origins.sm_policy = origin(c->sm_policy != PK_SM_DEFAULT, "PK_SM_POLICY");
    comm->origins.nonblocking = origin(c->nonblocking != 0, NULL);
    comm->origins.timeout_ms = origin(c->timeout_ms != 0, "PK_TIMEOUT_MS");
    comm->origins.unpack = origin(false, "PK_UNPACK");
}

pk_result_t pki_config_copy(const pk_comm_config_t *in, pk_comm_config_t *out)
{
    pk_result_t result = copy_config(in, out);

    return result == PK_OK ? check_fields(out) : result;
}

void pki_config_like(const struct pk_comm *parent, pk_comm_config_t *out)
{
    struct pki_device_info info;

    *out = parent->config;
    out->nonblocking = 0;
    out->device = PK_DEVICE_HOST;
    if (parent->device != NULL) {
        parent->device->ops->info(parent->device, &info);
        out->device = PK_DEVICE_CUDA(info.ordinal);
    }
}

pk_result_t pki_config_resolve(const pk_comm_config_t *config, struct pk_comm *comm)
{
    static const char *const unpacks[] = { "copy", "kernel", NULL };
    pk_comm_config_t *c = &comm->config;
    int64_t timeout_ms;
    int unpack;
    pk_result_t result = pki_config_copy(config, c);

    if (result != PK_OK)
        return result;
    note_origins(comm);
    pki_cpus_read(&comm->cpus);
    result = pki_cpus_configure();
    if (result == PK_OK)
        result = tuning_from_env();
    if (result == PK_OK)
        result = policy_from_env(c);
    if (result == PK_OK)
        result = algorithm_from_env(comm);
    if (result == PK_OK)
        result = p2p_level_from_env(comm);
    if (result == PK_OK)
        result = fallback_from_env(comm);
    if (result == PK_OK)
        result = pki_env_int("PK_TIMEOUT_MS", 1, INT64_MAX / 2000000, DEFAULT_TIMEOUT_MS, &timeout_ms);
    if (result == PK_OK)
        result = pki_env_word("PK_UNPACK", unpacks, 0, &unpack);
    if (result != PK_OK)
        return result;
    if (c->timeout_ms == 0)
        c->timeout_ms = (uint64_t)timeout_ms;
    if (c->timeout_ms > TIMEOUT_MS_MAX)
        c->timeout_ms = TIMEOUT_MS_MAX;
    comm->unpack_kernel = unpack == 1;
    return PK_OK;
}
