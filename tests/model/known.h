/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that simpler rules fail on, each with the rule that does. */
#ifndef MODEL_KNOWN_H
#define MODEL_KNOWN_H

#include "program.h"

struct known {
    const char *name;
    unsigned breaks;      /* of rule.h */
    bool without_kernels; /* the rule may refuse it */
    struct program program;
};

extern const struct known known_programs[];
extern const int known_count;

#endif
