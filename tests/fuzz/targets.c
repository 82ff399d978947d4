/* SPDX-License-Identifier: Apache-2.0 */
#include "targets.h"

#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max) __attribute__((weak)); /* libFuzzer's, where it is */

static size_t target_count(void)
{
    size_t n = 0;

    while (fuzz_targets[n].name != NULL)
        n++;
    return n;
}

/* The one asked for, or -1. */
static int wanted_target(void)
{
    static int wanted = -2;
    const char *name = getenv("PICKLE_FUZZ_TARGET");

    if (wanted != -2)
        return wanted;
    wanted = -1;
    for (int i = 0; name != NULL && fuzz_targets[i].name != NULL; i++)
        if (strcmp(fuzz_targets[i].name, name) == 0)
            wanted = i;
    if (name != NULL && wanted < 0) {
        fprintf(stderr, "PICKLE_FUZZ_TARGET=%s: there is none. Targets:", name);
        for (size_t i = 0; i < target_count(); i++)
            fprintf(stderr, " %s", fuzz_targets[i].name);
        fprintf(stderr, "\n");
        exit(2);
    }
    return wanted;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int wanted = wanted_target();
    size_t chosen;

    if (size == 0)
        return 0;
    chosen = data[0] % target_count();
    if (wanted < 0 || chosen == (size_t)wanted)
        fuzz_targets[chosen].run(data + 1, size - 1);
    return 0;
}

/* Every input made in a campaign is for its target. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    int wanted = wanted_target();

    (void)seed;
    size = LLVMFuzzerMutate(data, size, max);
    if (wanted >= 0 && size > 0)
        data[0] = (uint8_t)wanted;
    return size;
}
