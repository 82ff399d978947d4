/* SPDX-License-Identifier: Apache-2.0 */
#include "util/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/fd.h"
#include "util/sigblock.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

int pki_memfd_create(const char *name)
{
    int fd = pki_fd_keep(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));

    if (fd < 0 && errno == EINVAL) /* an older kernel */
        fd = pki_fd_keep(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    return fd;
}

bool pki_memfd_resize(int fd, size_t bytes)
{
    struct pki_sigblock hold;
    int result;

    pki_sigblock(&hold, SIGXFSZ);
    result = ftruncate(fd, (off_t)bytes);
    pki_sigblock_release(&hold, result != 0);
    return result == 0;
}

bool pki_memfd_is_safe(int fd, size_t bytes)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &st) == 0 && st.st_size >= 0 && (uint64_t)st.st_size >= bytes;
}

const char *pki_memfd_hint(int error)
{
    return error == EFBIG ? " (more than ulimit -f, RLIMIT_FSIZE, allows)" : "";
}
