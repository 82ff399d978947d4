/* SPDX-License-Identifier: Apache-2.0 */
/* Which host, which job, which rank: from the environment. */
#include "bootstrap_ranks.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

Test(launcher, host_id)
{
    unsigned char a[PKI_HOST_ID_BYTES], b[PKI_HOST_ID_BYTES];

    unsetenv("PK_HOST_ID");
    unsetenv("PK_RUN_DIR");
    pki_bootstrap_host_id(a);
    pki_bootstrap_host_id(b);
    cr_expect_eq(memcmp(a, b, sizeof a), 0);
    setenv("PK_HOST_ID", "left", 1);
    pki_bootstrap_host_id(b);
    cr_expect_neq(memcmp(a, b, sizeof a), 0);
    setenv("PK_HOST_ID", "right", 1);
    pki_bootstrap_host_id(a);
    cr_expect_neq(memcmp(a, b, sizeof a), 0);
    setenv("PK_RUN_DIR", "/tmp", 1); /* such ranks look for one another elsewhere */
    pki_bootstrap_host_id(b);
    cr_expect_neq(memcmp(a, b, sizeof a), 0);
    unsetenv("PK_HOST_ID");
    pki_bootstrap_host_id(a);
    setenv("PK_RUN_DIR", "/tmp/../tmp/.", 1); /* the directory counts and not its name */
    pki_bootstrap_host_id(b);
    cr_expect_eq(memcmp(a, b, sizeof a), 0);
    setenv("PK_RUN_DIR", "/", 1);
    pki_bootstrap_host_id(b);
    cr_expect_neq(memcmp(a, b, sizeof a), 0);
}

static void no_launcher(void)
{
    unsetenv("PK_RANK");
    unsetenv("PK_SIZE");
    unsetenv("PK_ROOT");
    unsetenv("PK_SECRET_FILE");
    unsetenv("PK_INSECURE");
    unsetenv("PMIX_RANK");
    unsetenv("PMIX_NAMESPACE");
    unsetenv("RANK");
}

static pk_result_t find_as(const char *rank, const char *size, const char *root, pk_unique_id_t *id)
{
    int n, r;

    no_launcher();
    if (rank != NULL)
        setenv("PK_RANK", rank, 1);
    if (size != NULL)
        setenv("PK_SIZE", size, 1);
    if (root != NULL)
        setenv("PK_ROOT", root, 1);
    return pki_launcher_find(&n, &r, id, pki_deadline_ns(1000), NULL);
}

Test(launcher, variables)
{
    pk_unique_id_t id;

    cr_expect_eq(find_as(NULL, NULL, NULL, &id), PK_ERR_UNSUPPORTED);
    cr_expect_eq(find_as("0", NULL, NULL, &id), PK_ERR_ARG);
    cr_expect_eq(find_as(NULL, "2", NULL, &id), PK_ERR_ARG);
    cr_expect_eq(find_as("2", "2", "127.0.0.1:1", &id), PK_ERR_ARG);
    cr_expect_eq(find_as("1", "x", "127.0.0.1:1", &id), PK_ERR_ARG);
    cr_expect_eq(find_as("1", "2", NULL, &id), PK_ERR_ARG);
    cr_expect_eq(find_as("1", "2", "127.0.0.1", &id), PK_ERR_ARG);
    cr_expect_eq(find_as("1", "2", "127.0.0.1:70000", &id), PK_ERR_ARG);
    cr_expect_eq(find_as("1", "2", "192.0.2.77:4000", &id), PK_ERR_ARG); /* not loopback, no secret */
    cr_expect(strstr(pki_error_get()->text, "PK_SECRET_FILE") != NULL);
    cr_expect_eq(find_as("1", "2", "127.0.0.1:4000", &id), PK_OK);
    cr_expect_eq(find_as("1", "2", "[::1]:4000", &id), PK_OK);
    cr_expect_eq(find_as("0", "1", NULL, &id), PK_OK);
}

static void write_secret(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    cr_assert_eq(fchmod(fd, mode), 0);
    close(fd);
}

Test(launcher, secret_file)
{
    char path[] = "/tmp/pickle-test-XXXXXX";
    int fd = mkstemp(path), size, rank;
    pk_unique_id_t id, other;

    cr_assert_geq(fd, 0);
    close(fd);
    find_as("1", "2", "192.0.2.77:4000", &id);
    setenv("PK_SECRET_FILE", path, 1);
    write_secret(path, "only 15 letters", 0600);
    cr_expect_eq(pki_launcher_find(&size, &rank, &id, pki_deadline_ns(1000), NULL), PK_ERR_ARG);
    write_secret(path, "a secret of more than 16 bytes", 0604);
    cr_expect_eq(pki_launcher_find(&size, &rank, &id, pki_deadline_ns(1000), NULL), PK_ERR_ARG);
    cr_expect(strstr(pki_error_get()->text, "chmod") != NULL);
    write_secret(path, "a secret of more than 16 bytes", 0600);
    cr_expect_eq(pki_launcher_find(&size, &rank, &id, pki_deadline_ns(1000), NULL), PK_OK);
    write_secret(path, "another secret of more than 16", 0600);
    cr_expect_eq(pki_launcher_find(&size, &rank, &other, pki_deadline_ns(1000), NULL), PK_OK);
    cr_expect_neq(memcmp(&id, &other, sizeof id), 0);
    unlink(path);
    cr_expect_eq(pki_launcher_find(&size, &rank, &id, pki_deadline_ns(1000), NULL), PK_ERR_ARG);
    unsetenv("PK_SECRET_FILE");
    setenv("PK_INSECURE", "1", 1);
    cr_expect_eq(pki_launcher_find(&size, &rank, &id, pki_deadline_ns(1000), NULL), PK_OK);
}

static pk_result_t linger(struct rank *self, struct pki_bootstrap *b)
{
    if (self->rank == 1)
        return PK_OK;
    sleep_ms(100);
    return pki_bootstrap_poll(b);
}

static pk_result_t meet(struct rank *self, struct pki_bootstrap *b)
{
    (void)self;
    return pki_bootstrap_barrier(b, pki_deadline_ns(LIMIT_MS));
}

/* Two communicators one after the other at the same address, the first still alive. */
Test(launcher, root_address_is_used_again, .timeout = 20)
{
    struct rank ranks[2][2];
    struct pki_address free_one;
    char root[PKI_ADDRESS_TEXT];
    pk_unique_id_t id;
    int listeners[PKI_ID_ADDRESSES];

    cr_assert_eq(pki_bootstrap_id_on(true, &id), PK_OK);
    free_one = root_of(&id);
    pki_address_format(&free_one, root);
    cr_assert_eq(pki_listener_take(&id, listeners), 1);
    close(listeners[0]);
    for (int round = 0; round < 2; round++) {
        for (int r = 0; r < 2; r++) {
            ranks[round][r] = (struct rank){ .size = 2, .rank = r, .timeout_ms = LIMIT_MS, .body = round == 0 ? linger : meet };
            cr_assert_eq(find_as(r == 0 ? "0" : "1", "2", root, &ranks[round][r].id), PK_OK, "%s", pki_error_get()->text);
        }
        start_ranks(ranks[round], 2);
        if (round == 0)
            sleep_ms(50); /* rank 0 stays a while in the first one */
    }
    join_ranks(ranks[0], 2);
    join_ranks(ranks[1], 2);
    expect_all(ranks[0], 2, PK_OK, NULL);
    expect_all(ranks[1], 2, PK_OK, NULL);
}
