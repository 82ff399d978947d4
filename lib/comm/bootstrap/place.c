/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the unix sockets of a host are: abstract names, which leave nothing behind but end at the network namespace; or files in
 * PK_RUN_DIR, which containers can share.
 */
#include "comm/bootstrap/internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "util/env.h"
#include "util/fd.h"

#define PREFIX "pickle-"
#define STALE_S 60 /* of a socket file that refuses: younger ones may be about to listen */

pk_result_t pki_place_name(const struct pki_bootstrap *b, int rank, struct sockaddr_un *name, socklen_t *bytes)
{
    const char *dir = pki_env_get("PK_RUN_DIR");
    char session[2 * PKI_SESSION_BYTES + 1];
    /* A first byte of zero makes a name abstract. */
    char *to = dir == NULL ? name->sun_path + 1 : name->sun_path;
    size_t room = sizeof name->sun_path - (dir == NULL ? 1 : 0);
    int length;

    for (int i = 0; i < PKI_SESSION_BYTES; i++)
        snprintf(session + 2 * i, 3, "%02x", b->session[i]);
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    length = snprintf(to, room, "%s%s" PREFIX "%s-%d", dir != NULL ? dir : "", dir != NULL ? "/" : "", session, rank);
    if ((size_t)length >= room)
        return pki_fail(PK_ERR_ARG, NULL, "PK_RUN_DIR=%.200s is too long for the path of a unix socket: %d bytes of %zu", dir,
                        length, room - 1);
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (dir == NULL ? 1 : 0) + (size_t)length);
    return PK_OK;
}

static bool refuses(const struct sockaddr_un *name)
{
    int fd = pki_fd_keep(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    bool refused = fd >= 0 && connect(fd, (const struct sockaddr *)name, sizeof *name) != 0 && errno == ECONNREFUSED;

    if (fd >= 0)
        close(fd);
    return refused;
}

static void sweep_one(const char *dir, const char *file)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct stat info;
    int length = snprintf(name.sun_path, sizeof name.sun_path, "%s/%s", dir, file);

    if ((size_t)length >= sizeof name.sun_path || lstat(name.sun_path, &info) != 0 || !S_ISSOCK(info.st_mode) ||
        info.st_uid != geteuid() || time(NULL) - info.st_mtime < STALE_S)
        return;
    if (refuses(&name))
        (void)unlink(name.sun_path);
}

/* What a rank that was killed amid an init left in PK_RUN_DIR goes with the next init there. */
static void sweep(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *file;

    while (d != NULL && (file = readdir(d)) != NULL)
        if (strncmp(file->d_name, PREFIX, sizeof PREFIX - 1) == 0)
            sweep_one(dir, file->d_name);
    if (d != NULL)
        closedir(d);
}

pk_result_t pki_place_bind(const struct pki_bootstrap *b, int fd)
{
    const char *dir = pki_env_get("PK_RUN_DIR");
    struct sockaddr_un name;
    socklen_t bytes;
    pk_result_t result = pki_place_name(b, b->rank, &name, &bytes);

    if (result != PK_OK)
        return result;
    if (dir != NULL)
        sweep(dir);
    if (bind(fd, (struct sockaddr *)&name, bytes) != 0)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL,
                              dir != NULL ? "PK_RUN_DIR: no socket can be made at %.100s" : "bind to @%.100s",
                              dir != NULL ? name.sun_path : name.sun_path + 1);
    return PK_OK;
}

void pki_place_leave(const struct pki_bootstrap *b)
{
    struct sockaddr_un name;
    socklen_t bytes;

    if (pki_env_get("PK_RUN_DIR") != NULL && pki_place_name(b, b->rank, &name, &bytes) == PK_OK)
        (void)unlink(name.sun_path);
}

const char *pki_place_hint(void)
{
    if (pki_env_get("PK_RUN_DIR") != NULL)
        return " (is PK_RUN_DIR the same directory for both?)";
    return pki_env_get("PK_HOST_ID") != NULL
               ? " (PK_HOST_ID says that this is one host; ranks in different network namespaces also need PK_RUN_DIR)"
               : "";
}
