/* SPDX-License-Identifier: Apache-2.0 */
#ifndef INFO_STARTUP_H
#define INFO_STARTUP_H

#define STARTUP_RANKS_MAX 64

/* Start `size` processes of this program, which measure; print. Returns main's value. */
int startup_print(int size);
/* One of them. */
int startup_rank(const char *fd, const char *rank, const char *size);

#endif
