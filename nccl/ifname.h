/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PKN_IFNAME_H
#define PKN_IFNAME_H

#include <stdbool.h>

/* NCCL_SOCKET_IFNAME as PK_IFNAME: the interfaces that are up whose names begin with one of the words, with = are one of
 * them, with ^ do and are neither (loopback only where no other is left). Where there is none: the words themselves, so that
 * libpickle's error names them. */
bool pkn_ifname(const char *value, char *out);

#endif
