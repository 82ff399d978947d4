/* SPDX-License-Identifier: Apache-2.0 */
/* Which host this is. */
#include "comm/bootstrap.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/auth.h"
#include "util/env.h"
#include "util/fd.h"

_Static_assert(PKI_HOST_ID_BYTES == PKI_HASH_BYTES, "a host id is a hash");

static void read_boot_id(char *out, size_t room)
{
    int fd = pki_fd_keep(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    ssize_t n = fd >= 0 ? read(fd, out, room - 1) : -1;

    if (fd >= 0)
        close(fd);
    /* Without /proc nothing tells one host from another: then only this process is on the host, which is slow and right. */
    if (n > 0)
        out[n] = '\0';
    else
        snprintf(out, room, "unknown, process %d", (int)getpid());
}

void pki_bootstrap_machine_id(unsigned char out[PKI_HOST_ID_BYTES])
{
    char boot_id[64];

    read_boot_id(boot_id, sizeof boot_id);
    memset(out, 0, PKI_HOST_ID_BYTES);
    (void)pki_auth_hash(boot_id, strlen(boot_id), out);
}

void pki_bootstrap_host_id(unsigned char out[PKI_HOST_ID_BYTES])
{
    const char *given = pki_env_get("PK_HOST_ID"), *run_dir = pki_env_get("PK_RUN_DIR");
    char boot_id[64], text[512];
    struct stat network = { 0 }, directory = { 0 };

    if (given != NULL) {
        /* Ranks with and without PK_RUN_DIR would look for one another at different places. */
        snprintf(text, sizeof text, "given %.256s%s", given, run_dir != NULL ? ", by path" : "");
    } else if (run_dir != NULL) {
        read_boot_id(boot_id, sizeof boot_id);
        (void)stat(run_dir, &directory); /* if it is not there, making a socket in it says so */
        snprintf(text, sizeof text, "boot %s directory %llu.%llu", boot_id, (unsigned long long)directory.st_dev,
                 (unsigned long long)directory.st_ino);
    } else {
        read_boot_id(boot_id, sizeof boot_id);
        /* The boot id is the same in all containers of a machine, but abstract sockets stay inside a network namespace. */
        (void)stat("/proc/self/ns/net", &network);
        snprintf(text, sizeof text, "boot %s network %llu.%llu", boot_id, (unsigned long long)network.st_dev,
                 (unsigned long long)network.st_ino);
    }
    memset(out, 0, PKI_HOST_ID_BYTES);
    (void)pki_auth_hash(text, strlen(text), out);
}
