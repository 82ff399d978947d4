/* SPDX-License-Identifier: Apache-2.0 */
/* Floating-point environments other than the default one, as programs set them. */
#ifndef FLOAT_MODES_H
#define FLOAT_MODES_H

#include <stdbool.h>
#include <stddef.h>

/* "flush to zero", "toward zero", ... The first is the default one. */
extern const char *const float_modes[];
extern const size_t float_modes_count;

/* Set mode i in the calling thread; false: this processor has no such mode. */
bool float_mode_set(size_t i);
/* The calling thread's mode is i, exactly. */
bool float_mode_is(size_t i);

#endif
