/* SPDX-License-Identifier: Apache-2.0 */
#include "util/memfd.h"

#include <errno.h>
#include <unistd.h>

#include "util/signal.h"

bool pki_memfd_resize(int fd, size_t bytes)
{
    struct pki_signal_hold hold;
    int result;

    pki_signal_hold(&hold, SIGXFSZ);
    result = ftruncate(fd, (off_t)bytes);
    pki_signal_release(&hold, result != 0);
    return result == 0;
}

const char *pki_memfd_hint(int error)
{
    return error == EFBIG ? " (more than ulimit -f, RLIMIT_FSIZE, allows)" : "";
}
