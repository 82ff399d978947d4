/* SPDX-License-Identifier: Apache-2.0 */
#include "util/env.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/log.h"

const char *pki_env_get(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* strtoll alone would take leading blanks and a plus sign, and saturate. */
static bool parse_int(const char *text, int64_t *value)
{
    char *end;
    long long number;

    if (text[0] != '-' && (text[0] < '0' || text[0] > '9'))
        return false;
    errno = 0;
    number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0')
        return false;
    *value = number;
    return true;
}

pk_result_t pki_env_int(const char *name, int64_t min, int64_t max, int64_t fallback, int64_t *value)
{
    const char *text = pki_env_get(name);
    int64_t number = fallback;

    if (text != NULL && (!parse_int(text, &number) || number < min || number > max))
        return pki_fail(PK_ERR_ARG, NULL, "%s=%.64s is not an integer from %" PRId64 " to %" PRId64, name, text, min, max);
    *value = number;
    return PK_OK;
}

pk_result_t pki_env_word(const char *name, const char *const *words, int fallback, int *index)
{
    const char *text = pki_env_get(name);
    char list[256] = "";

    if (text == NULL) {
        *index = fallback;
        return PK_OK;
    }
    for (int i = 0; words[i] != NULL; i++) {
        size_t used = strlen(list);

        if (strcmp(text, words[i]) == 0) {
            *index = i;
            return PK_OK;
        }
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", words[i]);
    }
    return pki_fail(PK_ERR_ARG, NULL, "%s=%.64s is not one of %s", name, text, list);
}

pk_result_t pki_env_bool(const char *name, bool fallback, bool *value)
{
    static const char *const words[] = { "0", "1", "no", "yes", "false", "true", "off", "on", NULL };
    int index = 0;
    pk_result_t result = pki_env_word(name, words, fallback ? 1 : 0, &index);

    if (result == PK_OK)
        *value = index % 2 == 1;
    return result;
}
