/* SPDX-License-Identifier: Apache-2.0 */
/* Which host this is, and as which user this process runs there. */
#include "comm/bootstrap/bootstrap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/auth.h"
#include "util/env.h"
#include "util/fd.h"

#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define NETWORK "/proc/self/ns/net"
#define USERS "/proc/self/uid_map"

_Static_assert(PKI_HOST_ID_BYTES == PKI_HASH_BYTES, "a host id is a hash");

static void explain(struct pki_host *host, const char *path)
{
    char reason[64];

    host->by = PKI_HOST_UNKNOWN;
    snprintf(host->why, sizeof host->why, "%s: %s", path, strerror_r(errno, reason, sizeof reason));
}

static bool read_boot_id(char *out, size_t room)
{
    int fd = pki_fd_keep(open(BOOT_ID, O_RDONLY | O_CLOEXEC));
    ssize_t n = fd >= 0 ? read(fd, out, room - 1) : -1;
    int error = n == 0 ? ENODATA : errno;

    if (fd >= 0)
        close(fd);
    errno = error;
    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Nothing tells this machine from others: only this process is on the host, which is slow and right. A process id alone is the
 * same in containers of several machines. */
static void only_this_process(uint64_t process, char *out, size_t room)
{
    snprintf(out, room, "process %d.%llx", (int)getpid(), (unsigned long long)process);
}

static void hash(const char *text, unsigned char out[PKI_HOST_ID_BYTES])
{
    memset(out, 0, PKI_HOST_ID_BYTES);
    (void)pki_auth_hash(text, strlen(text), out);
}

/* By what the kernel says: the boot id is the same in all containers of a machine, but abstract sockets stay inside a network
 * namespace. */
static void find(struct pki_host *host, const char *boot_id, uint64_t process, char *text, size_t room)
{
    const char *run_dir = pki_env_get("PK_RUN_DIR");
    struct stat network, directory = { 0 };

    if (run_dir != NULL) {
        host->by = PKI_HOST_BY_DIRECTORY;
        (void)stat(run_dir, &directory); /* if it is not there, making a socket in it says so */
        snprintf(text, room, "boot %s directory %llu.%llu", boot_id, (unsigned long long)directory.st_dev,
                 (unsigned long long)directory.st_ino);
    } else if (stat(NETWORK, &network) == 0) {
        host->by = PKI_HOST_BY_NETWORK;
        snprintf(text, room, "boot %s network %llu.%llu", boot_id, (unsigned long long)network.st_dev,
                 (unsigned long long)network.st_ino);
    } else {
        explain(host, NETWORK);
        only_this_process(process, text, room);
    }
}

void pki_bootstrap_host(uint64_t process, struct pki_host *host)
{
    const char *given = pki_env_get("PK_HOST_ID");
    char boot_id[64], text[512];

    memset(host, 0, sizeof *host);
    if (read_boot_id(boot_id, sizeof boot_id)) {
        host->machine_known = true;
        hash(boot_id, host->machine_id);
        find(host, boot_id, process, text, sizeof text);
    } else {
        explain(host, BOOT_ID);
        only_this_process(process, text, sizeof text);
        hash(text, host->machine_id);
    }
    if (given != NULL) {
        host->by = PKI_HOST_BY_NAME;
        host->why[0] = '\0';
        /* Ranks with and without PK_RUN_DIR would look for one another at different places. */
        snprintf(text, sizeof text, "given %.256s%s", given, pki_env_get("PK_RUN_DIR") != NULL ? ", by path" : "");
    }
    hash(text, host->host_id);
}

uint32_t pki_bootstrap_user(void)
{
    const uint32_t user = geteuid();
    char text[1024], *at = text, *end;
    int fd = pki_fd_keep(open(USERS, O_RDONLY | O_CLOEXEC));
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    for (;;) { /* lines of three numbers: first inside, first outside, how many */
        unsigned long inside = strtoul(at, &end, 10), outside = strtoul(end, &end, 10), count = strtoul(end, &end, 10);

        if (end == at || count == 0)
            return user;
        if (user >= inside && user - inside < count)
            return (uint32_t)(outside + (user - inside));
        at = end;
    }
}
