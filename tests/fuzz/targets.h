/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz program has one target or several; then the input's first byte chooses. PICKLE_FUZZ_TARGET names the only one that is wanted:
 * a campaign gives each its own count of inputs. */
#ifndef FUZZ_TARGETS_H
#define FUZZ_TARGETS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct fuzz_target {
    const char *name;
    void (*run)(const uint8_t *data, size_t size);
};

/* The program's own; a target without a name ends it. */
extern const struct fuzz_target fuzz_targets[];

static inline void require(int truth)
{
    if (!truth)
        abort();
}

#endif
