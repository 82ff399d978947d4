/* SPDX-License-Identifier: Apache-2.0 */
/* Who started this process, and as which rank. */
#include "comm/bootstrap_int.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/bootstrap_auth.h"
#include "util/env.h"

#define RANKS_MAX 65536
#define SECRET_FILE_MIN 16
#define SECRET_FILE_MAX 65536

/* The content of a secret file into `content`; *bytes is its length. */
static pk_result_t read_secret(const char *path, unsigned char *content, size_t *bytes)
{
    struct stat info;
    size_t have = 0;
    ssize_t n = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

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

static bool only_loopback(const struct pki_id *id)
{
    for (int i = 0; i < id->address_count; i++)
        if (!pki_address_is_loopback(&id->address[i]))
            return false;
    return true;
}

/* Without a secret whoever reaches the port can join: fine among the users of one machine at most. */
static pk_result_t find_secret(const char *root, struct pki_id *id)
{
    const char *path = pki_env_get("PK_SECRET_FILE");
    bool insecure = false;
    pk_result_t result;

    if (path != NULL)
        return secret_from_file(path, &id->secret);
    result = pki_env_bool("PK_INSECURE", false, &insecure);
    if (result != PK_OK || only_loopback(id))
        return result;
    if (!insecure)
        return pki_fail(PK_ERR_ARG, NULL,
                        "PK_ROOT=%.200s can be reached from other hosts, and there is no secret: set PK_SECRET_FILE, or "
                        "PK_INSECURE=1 on a network where everybody may join",
                        root);
    pki_log(PKI_LOG_WARN, NULL, "PK_INSECURE=1 and no PK_SECRET_FILE: whoever reaches %.200s can join this job", root);
    return PK_OK;
}

static pk_result_t resolve(const char *root, struct pki_id *id)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    char host[PKI_HOST_BYTES], port[PKI_PORT_BYTES];
    struct addrinfo *found = NULL;
    int error;

    if (!pki_wire_split_host_port(root, host, port))
        return pki_fail(PK_ERR_ARG, NULL, "PK_ROOT=%.200s is not host:port", root);
    error = getaddrinfo(host, port, &hints, &found);
    if (error != 0)
        return pki_fail(PK_ERR_ARG, NULL, "PK_ROOT=%.200s: %s", root, gai_strerror(error));
    for (const struct addrinfo *a = found; a != NULL && id->address_count < PKI_ID_ADDRESSES; a = a->ai_next) {
        struct pki_address *to = &id->address[id->address_count];

        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        memcpy(&to->storage, a->ai_addr, a->ai_addrlen);
        to->bytes = a->ai_addrlen;
        id->address_count++;
    }
    freeaddrinfo(found);
    if (id->address_count == 0)
        return pki_fail(PK_ERR_ARG, NULL, "PK_ROOT=%.200s has no address", root);
    return PK_OK;
}

/* PK_ROOT is all that the ranks share, so the id is made from it on each of them alike; jobs are told apart by the port. */
static pk_result_t id_from_root(int rank, pk_unique_id_t *id)
{
    const char *root = pki_env_get("PK_ROOT");
    struct pki_id made = { .address_count = 0 };
    pk_result_t result;

    if (root == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "PK_RANK and PK_SIZE are set, but not PK_ROOT (host:port of rank 0)");
    result = resolve(root, &made);
    if (result == PK_OK)
        result = find_secret(root, &made);
    if (result == PK_OK && rank == 0)
        result = pki_listener_make(&made, id);
    else if (result == PK_OK)
        pki_wire_put_id(id, &made);
    pki_auth_wipe(&made.secret, sizeof made.secret);
    return result;
}

static pk_result_t find_from_variables(int *size, int *rank, pk_unique_id_t *id)
{
    int64_t my_rank = -1, ranks = -1;
    pk_result_t result = pki_env_int("PK_SIZE", 1, RANKS_MAX, -1, &ranks);

    if (result == PK_OK && ranks < 0)
        return pki_fail(PK_ERR_ARG, NULL, "PK_RANK is set, but not PK_SIZE");
    if (result == PK_OK)
        result = pki_env_int("PK_RANK", 0, ranks - 1, -1, &my_rank);
    if (result == PK_OK && my_rank < 0)
        return pki_fail(PK_ERR_ARG, NULL, "PK_SIZE is set, but not PK_RANK");
    if (result == PK_OK && ranks == 1)
        pki_wire_put_id(id, &(const struct pki_id){ .address_count = 0 });
    else if (result == PK_OK)
        result = id_from_root((int)my_rank, id);
    if (result != PK_OK)
        return result;
    *size = (int)ranks;
    *rank = (int)my_rank;
    return PK_OK;
}

pk_result_t pki_launcher_find(int *size, int *rank, pk_unique_id_t *id, uint64_t deadline_ns)
{
    if (pki_env_get("PK_RANK") != NULL || pki_env_get("PK_SIZE") != NULL)
        return find_from_variables(size, rank, id);
    if (pki_pmix_present())
        return pki_pmix_find(size, rank, id, deadline_ns);
    return pki_fail(PK_ERR_UNSUPPORTED, NULL,
                    "no launcher found: start under mpirun or srun, or set PK_RANK, PK_SIZE and PK_ROOT=host:port");
}
