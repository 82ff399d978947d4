/* SPDX-License-Identifier: Apache-2.0 */
/* The secret of a job whose launcher hands out none: a file, or nothing. */
#include "comm/bootstrap/meeting.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/auth.h"
#include "util/env.h"
#include "util/fd.h"
#include "util/log.h"

#define SECRET_FILE_MIN 16
#define SECRET_FILE_MAX 65536

/* The content of a secret file into `content`; *bytes is its length. */
static pk_result_t read_secret(const char *path, unsigned char *content, size_t *bytes)
{
    struct stat info;
    size_t have = 0;
    ssize_t n = 1;
    int fd = pki_fd_keep(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));

    if (fd < 0)
        return pki_fail_errno(PK_ERR_ARG, NULL, "PK_SECRET_FILE=%.200s cannot be opened", path);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return pki_fail(PK_ERR_ARG, NULL, "PK_SECRET_FILE=%.200s is not a file", path);
    }
    if ((info.st_mode & (S_IROTH | S_IWOTH)) != 0) {
        close(fd);
        return pki_fail(PK_ERR_ARG, NULL, "PK_SECRET_FILE=%.200s is open to every user (mode %03o): chmod o-rw", path,
                        (unsigned)(info.st_mode & 0777));
    }
    while (n > 0 && have <= SECRET_FILE_MAX) {
        n = read(fd, content + have, SECRET_FILE_MAX + 1 - have);
        have += n > 0 ? (size_t)n : 0;
    }
    close(fd);
    if (n < 0)
        return pki_fail_errno(PK_ERR_ARG, NULL, "PK_SECRET_FILE=%.200s cannot be read", path);
    if (have < SECRET_FILE_MIN || have > SECRET_FILE_MAX)
        return pki_fail(PK_ERR_ARG, NULL, "PK_SECRET_FILE=%.200s must hold %d to %d bytes", path, SECRET_FILE_MIN,
                        SECRET_FILE_MAX);
    *bytes = have;
    return PK_OK;
}

/* The file may hold anything; its hash is the key. */
static pk_result_t secret_from_file(const char *path, struct pki_secret *secret)
{
    unsigned char *content = malloc(SECRET_FILE_MAX + 1);
    unsigned char hash[PKI_HASH_BYTES];
    size_t bytes = 0;
    pk_result_t result;

    if (content == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to read a secret");
    result = read_secret(path, content, &bytes);
    if (result == PK_OK)
        result = pki_auth_hash(content, bytes, hash);
    if (result == PK_OK)
        memcpy(secret->key, hash, sizeof secret->key);
    pki_auth_wipe(content, SECRET_FILE_MAX + 1);
    pki_auth_wipe(hash, sizeof hash);
    free(content);
    return result;
}

pk_result_t pki_secret_find(struct pki_secret *secret, enum pki_guard *guard)
{
    const char *path = pki_env_get("PK_SECRET_FILE");
    bool insecure = false;
    pk_result_t result = path != NULL ? secret_from_file(path, secret) : pki_env_bool("PK_INSECURE", false, &insecure);

    if (result == PK_OK)
        *guard = path != NULL ? PKI_GUARD_SECRET : insecure ? PKI_GUARD_NOTHING : PKI_GUARD_LOOPBACK;
    return result;
}

/* Without a secret whoever reaches the port can join: fine among the users of one machine at most. */
pk_result_t pki_secret_allows(enum pki_guard guard, const char *what, bool loopback)
{
    if (guard == PKI_GUARD_SECRET)
        return PK_OK;
    if (loopback) {
        pki_log(PKI_LOG_INFO, NULL,
                "no PK_SECRET_FILE: only loopback is served, at %.200s, and every user of this machine can join", what);
        return PK_OK;
    }
    if (guard == PKI_GUARD_LOOPBACK)
        return pki_fail(PK_ERR_ARG, NULL,
                        "%.200s can be reached from other hosts, and there is no secret: set PK_SECRET_FILE, or "
                        "PK_INSECURE=1 on a network where everybody may join",
                        what);
    pki_log(PKI_LOG_WARN, NULL, "PK_INSECURE=1 and no PK_SECRET_FILE: whoever reaches %.200s can join this job", what);
    return PK_OK;
}
