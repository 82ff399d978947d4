/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is a file without a name, to be mapped by other processes. */
#ifndef PKI_MEMFD_H
#define PKI_MEMFD_H

#include <stdbool.h>
#include <stddef.h>

/* One that can be sealed, 3 or above, close-on-exec; not executable where the kernel knows that, for some systems allow no
 * other (vm.memfd_noexec). Negative, with errno. */
int pki_memfd_create(const char *name);

/* Make it so long. RLIMIT_FSIZE holds for it as for any file; the signal that tells of the limit is taken away, and errno is
 * EFBIG. */
bool pki_memfd_resize(int fd, size_t bytes);

/* Of a peer: it has `bytes` bytes and cannot shrink. One that could would kill this process at its next access. */
bool pki_memfd_is_safe(int fd, size_t bytes);

/* For the text of an error: what to do about EFBIG, or nothing. Begins with a space. */
const char *pki_memfd_hint(int error);

#endif
