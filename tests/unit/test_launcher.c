/* SPDX-License-Identifier: Apache-2.0 */
/* Which host, which job, which rank: from the environment. */
#include "bootstrap_ranks.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ports.h"

static void host_id(unsigned char out[PKI_HOST_ID_BYTES])
{
    struct pki_host host;

    pki_bootstrap_host(1, &host);
    memcpy(out, host.host_id, sizeof host.host_id);
}

Test(launcher, host_id)
{
    unsigned char a[PKI_HOST_ID_BYTES], b[PKI_HOST_ID_BYTES];

    unsetenv("PK_HOST_ID");
    unsetenv("PK_RUN_DIR");
    host_id(a);
    host_id(b);
    cr_expect_eq(memcmp(a, b, sizeof a), 0);
    setenv("PK_HOST_ID", "left", 1);
    host_id(b);
    cr_expect_neq(memcmp(a, b, sizeof a), 0);
    setenv("PK_HOST_ID", "right", 1);
    host_id(a);
    cr_expect_neq(memcmp(a, b, sizeof a), 0);
    setenv("PK_RUN_DIR", "/tmp", 1); /* such ranks look for one another elsewhere */
    host_id(b);
    cr_expect_neq(memcmp(a, b, sizeof a), 0);
    unsetenv("PK_HOST_ID");
    host_id(a);
    setenv("PK_RUN_DIR", "/tmp/../tmp/.", 1); /* the directory counts and not its name */
    host_id(b);
    cr_expect_eq(memcmp(a, b, sizeof a), 0);
    setenv("PK_RUN_DIR", "/", 1);
    host_id(b);
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
    return pki_launcher_find(&n, &r, id, pki_deadline_ns(20000), NULL);
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

static pk_result_t find_by_torch(const char *rank, const char *port, pk_unique_id_t *id)
{
    int n, r;

    no_launcher();
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    return pki_launcher_find(&n, &r, id, pki_deadline_ns(20000), NULL);
}

static int port_of(const pk_unique_id_t *id, int index)
{
    struct pki_id made;
    struct sockaddr_in v4;

    cr_assert(pki_wire_get_id(id, &made) && index < made.address_count);
    memcpy(&v4, &made.address[index], sizeof v4);
    return ntohs(v4.sin_port);
}

Test(launcher, torchrun)
{
    static const int ours[] = { 1013, 2026 }; /* beyond torchrun's */
    pk_unique_id_t first, same, other;
    int listeners[PKI_ID_ADDRESSES];
    char port[16];

    cr_expect_eq(find_by_torch("1", "0", &first), PK_ERR_ARG);
    cr_expect_eq(find_by_torch("2", "29500", &first), PK_ERR_ARG);
    cr_assert_eq(find_by_torch("1", "29500", &first), PK_OK);
    cr_expect_eq(port_of(&first, 0), 30513);
    cr_expect_eq(port_of(&first, 1), 31526);
    cr_assert_eq(find_by_torch("1", "65000", &other), PK_OK); /* goes on from 1024 */
    cr_expect_eq(port_of(&other, 0), 1024 + 65000 + 1013 - 65536);
    cr_assert_eq(find_by_torch("1", "29500", &same), PK_OK);
    cr_expect_eq(memcmp(&first, &same, sizeof same), 0);
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1); /* another life of the job does not know the ranks of this one */
    cr_assert_eq(find_by_torch("1", "29500", &other), PK_OK);
    cr_expect_neq(memcmp(&first, &other, sizeof other), 0);
    unsetenv("TORCHELASTIC_RESTART_COUNT");

    /* Rank 0 takes both ports; who comes to the same then has none; one of two is enough. */
    snprintf(port, sizeof port, "%d", free_port(ours, 2));
    cr_assert_eq(find_by_torch("0", port, &first), PK_OK, "%s", pki_error_get()->text);
    cr_expect_eq(find_by_torch("0", port, &other), PK_ERR_SYSTEM);
    cr_assert_eq(pki_listener_take(&first, listeners), 2);
    close(listeners[0]);
    cr_assert_eq(find_by_torch("0", port, &same), PK_OK, "%s", pki_error_get()->text);
    close(listeners[1]);
    cr_expect_eq(pki_listener_take(&same, listeners), 1);
    close(listeners[0]);
}

/* PMIx of the launcher that started torchrun speaks of torchrun's place. */
Test(launcher, torchrun_under_another_launcher)
{
    pk_unique_id_t id;
    int n = 0, r = 0;

    cr_assert_eq(find_by_torch("1", "29500", &id), PK_OK);
    setenv("PMIX_RANK", "0", 1);
    setenv("PMIX_NAMESPACE", "nobody", 1);
    setenv("TORCHELASTIC_RUN_ID", "a job", 1);
    cr_expect_eq(pki_launcher_find(&n, &r, &id, pki_deadline_ns(20000), NULL), PK_OK);
    cr_expect_eq(r, 1);
    unsetenv("TORCHELASTIC_RUN_ID");
    no_launcher();
}

Test(launcher, turns)
{
    struct pki_list turns[3];
    const atomic_bool cancelled = true;

    for (int i = 0; i < 3; i++) {
        pki_list_init(&turns[i]);
        pki_launcher_enter(&turns[i]);
    }
    cr_expect_eq(pki_launcher_wait(&turns[0], pki_deadline_ns(20000), NULL), PK_OK);
    cr_expect_eq(pki_launcher_wait(&turns[1], pki_deadline_ns(5), NULL), PK_ERR_TIMEOUT);
    cr_expect_eq(pki_launcher_wait(&turns[1], pki_deadline_ns(1000), &cancelled), PK_ERR_ABORTED);
    pki_launcher_leave(&turns[1]); /* gives up before its turn */
    cr_expect_eq(pki_launcher_wait(&turns[2], pki_deadline_ns(5), NULL), PK_ERR_TIMEOUT);
    pki_launcher_leave(&turns[0]);
    pki_launcher_leave(&turns[0]);
    cr_expect_eq(pki_launcher_wait(&turns[2], pki_deadline_ns(20000), NULL), PK_OK);
    pki_launcher_leave(&turns[2]);
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
    cr_expect_eq(pki_launcher_find(&size, &rank, &id, pki_deadline_ns(20000), NULL), PK_ERR_ARG);
    write_secret(path, "a secret of more than 16 bytes", 0604);
    cr_expect_eq(pki_launcher_find(&size, &rank, &id, pki_deadline_ns(20000), NULL), PK_ERR_ARG);
    cr_expect(strstr(pki_error_get()->text, "chmod") != NULL);
    write_secret(path, "a secret of more than 16 bytes", 0600);
    cr_expect_eq(pki_launcher_find(&size, &rank, &id, pki_deadline_ns(20000), NULL), PK_OK);
    write_secret(path, "another secret of more than 16", 0600);
    cr_expect_eq(pki_launcher_find(&size, &rank, &other, pki_deadline_ns(20000), NULL), PK_OK);
    cr_expect_neq(memcmp(&id, &other, sizeof id), 0);
    unlink(path);
    cr_expect_eq(pki_launcher_find(&size, &rank, &id, pki_deadline_ns(20000), NULL), PK_ERR_ARG);
    unsetenv("PK_SECRET_FILE");
    setenv("PK_INSECURE", "1", 1);
    cr_expect_eq(pki_launcher_find(&size, &rank, &id, pki_deadline_ns(20000), NULL), PK_OK);
}

static atomic_bool lingers, may_go;

static void await(const atomic_bool *flag)
{
    for (int ms = 0; ms < LIMIT_MS && !atomic_load(flag); ms++)
        sleep_ms(1);
}

static pk_result_t linger(struct rank *self, struct pki_bootstrap *b)
{
    if (self->rank == 1)
        return PK_OK;
    atomic_store(&lingers, true);
    await(&may_go);
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
    char root[64];

    snprintf(root, sizeof root, "127.0.0.1:%d", free_port(NULL, 0));
    for (int round = 0; round < 2; round++) {
        for (int r = 0; r < 2; r++) {
            ranks[round][r] = (struct rank){ .size = 2, .rank = r, .timeout_ms = LIMIT_MS, .body = round == 0 ? linger : meet };
            cr_assert_eq(find_as(r == 0 ? "0" : "1", "2", root, &ranks[round][r].id), PK_OK, "%s", pki_error_get()->text);
        }
        start_ranks(ranks[round], 2);
        if (round == 0)
            await(&lingers); /* rank 0 stays in the first one until the second one has met */
    }
    join_ranks(ranks[1], 2);
    atomic_store(&may_go, true);
    join_ranks(ranks[0], 2);
    expect_all(ranks[0], 2, PK_OK, NULL);
    expect_all(ranks[1], 2, PK_OK, NULL);
}
