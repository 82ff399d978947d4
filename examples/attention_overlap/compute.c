/* SPDX-License-Identifier: Apache-2.0 */
/* What can compute here, best first. */
#include "attention.h"

#include <string.h>

static const struct compute *const known[] = { &compute_gpu, &compute_kernel, &compute_cpu };

const struct compute *compute_find(const char *name, const char **why)
{
    *why = "it is cpu, gpu, kernel or auto";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, "auto") != 0 && strcmp(name, known[i]->name) != 0)
            continue;
        if (known[i]->usable(why))
            return known[i];
    }
    return NULL;
}
