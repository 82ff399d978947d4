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

/* Look, and let the meeting go: what it was stays readable, its listeners are closed. */
static pk_result_t find_meeting(struct pki_meeting *meeting)
{
    int n, r;
    pk_result_t result = pki_launcher_find(&n, &r, meeting, pki_deadline_ns(20000), NULL);

    if (result == PK_OK)
        pki_meeting_stop_listening(meeting);
    return result;
}

static void set_root(const char *rank, const char *size, const char *root)
{
    no_launcher();
    if (rank != NULL)
        setenv("PK_RANK", rank, 1);
    if (size != NULL)
        setenv("PK_SIZE", size, 1);
    if (root != NULL)
        setenv("PK_ROOT", root, 1);
}

static pk_result_t find_as(const char *rank, const char *size, const char *root, struct pki_meeting *meeting)
{
    set_root(rank, size, root);
    return find_meeting(meeting);
}

Test(launcher, variables)
{
    struct pki_meeting m;

    cr_expect_eq(find_as(NULL, NULL, NULL, &m), PK_ERR_UNSUPPORTED);
    cr_expect_eq(find_as("0", NULL, NULL, &m), PK_ERR_ARG);
    cr_expect_eq(find_as(NULL, "2", NULL, &m), PK_ERR_ARG);
    cr_expect_eq(find_as("2", "2", "127.0.0.1:1", &m), PK_ERR_ARG);
    cr_expect_eq(find_as("1", "x", "127.0.0.1:1", &m), PK_ERR_ARG);
    cr_expect_eq(find_as("1", "2", NULL, &m), PK_ERR_ARG);
    cr_expect_eq(find_as("1", "2", "127.0.0.1", &m), PK_ERR_ARG);
    cr_expect_eq(find_as("1", "2", "127.0.0.1:70000", &m), PK_ERR_ARG);
    cr_expect_eq(find_as("1", "2", "192.0.2.77:4000", &m), PK_ERR_ARG); /* not loopback, no secret */
    cr_expect(strstr(pki_error_get()->text, "PK_SECRET_FILE") != NULL);
    cr_expect_eq(find_as("1", "2", "127.0.0.1:4000", &m), PK_OK);
    cr_expect_eq(find_as("1", "2", "[::1]:4000", &m), PK_OK);
    cr_expect_eq(find_as("0", "1", NULL, &m), PK_OK);
}

static void set_torch(const char *rank, const char *master, const char *port)
{
    no_launcher();
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", master, 1);
    setenv("MASTER_PORT", port, 1);
}

static pk_result_t find_by_torch(const char *rank, const char *port, struct pki_meeting *meeting)
{
    set_torch(rank, "127.0.0.1", port);
    return find_meeting(meeting);
}

Test(launcher, torchrun)
{
    struct pki_meeting first, other;

    cr_expect_eq(find_by_torch("1", "0", &first), PK_ERR_ARG);
    cr_expect_eq(find_by_torch("2", "29500", &first), PK_ERR_ARG);
    cr_assert_eq(find_by_torch("1", "29500", &first), PK_OK);
    cr_assert_eq(first.address_count, 2);
    cr_expect_eq(pki_netif_port(&first.address[0]), 30513);
    cr_expect_eq(pki_netif_port(&first.address[1]), 31526);
    cr_assert_eq(find_by_torch("1", "65000", &other), PK_OK); /* goes on from 1024 */
    cr_expect_eq(pki_netif_port(&other.address[0]), 1024 + 65000 + 1013 - 65536);
}

/* What the ranks of one job may see differently is not in its name: each node's agent counts restarts by itself, and master has
 * several names. */
Test(launcher, torchrun_is_one_job_however_it_is_called)
{
    struct pki_meeting first, other;

    set_torch("1", "127.0.0.1", "29500");
    cr_assert_eq(find_meeting(&first), PK_OK);
    cr_expect_eq(first.life, 0);
    setenv("TORCHELASTIC_RESTART_COUNT", "3", 1);
    set_torch("1", "localhost", "29500");
    cr_assert_eq(find_meeting(&other), PK_OK);
    cr_expect_eq(memcmp(&first.secret, &other.secret, sizeof other.secret), 0);
    cr_expect_eq(other.life, 4);
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    set_torch("1", "127.0.0.1", "29501");
    cr_assert_eq(find_meeting(&other), PK_OK);
    cr_expect_neq(memcmp(&first.secret, &other.secret, sizeof other.secret), 0, "another port, another job");
}

/* Rank 0 takes both ports; who comes to the same then has none; one of two is enough. */
Test(launcher, torchrun_ports_that_are_taken)
{
    static const int ours[] = { 1013, 2026 }; /* beyond torchrun's */
    struct pki_meeting first, same;
    char port[16];
    int n, r;

    snprintf(port, sizeof port, "%d", free_port(ours, 2));
    set_torch("0", "127.0.0.1", port);
    cr_assert_eq(pki_launcher_find(&n, &r, &first, pki_deadline_ns(20000), NULL), PK_OK, "%s", pki_error_get()->text);
    cr_expect_eq(first.listener_count, 2);
    cr_expect_eq(find_meeting(&same), PK_ERR_SYSTEM);
    close(first.listeners[0]);
    cr_assert_eq(pki_launcher_find(&n, &r, &same, pki_deadline_ns(20000), NULL), PK_OK, "%s", pki_error_get()->text);
    cr_expect_eq(same.listener_count, 1);
    close(first.listeners[1]);
    pki_meeting_stop_listening(&same);
}

/* "0.0.0.0:1,[::]:1", of the first port */
static const char *served(struct pki_meeting *meeting)
{
    static char text[256];
    int n, r;

    snprintf(text, sizeof text, "error");
    if (pki_launcher_find(&n, &r, meeting, pki_deadline_ns(20000), NULL) == PK_OK) {
        pki_meeting_where(meeting->listeners, meeting->listener_count, text, sizeof text);
        pki_meeting_stop_listening(meeting);
    }
    return text;
}

static void write_secret(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    cr_assert_eq(fchmod(fd, mode), 0);
    close(fd);
}

/* Where rank 0 listens: S with a secret, I with PK_INSECURE=1, N without either. */
Test(launcher, what_rank_0_serves)
{
    static const struct {
        char guard;
        const char *host, *want; /* want: how the list of listeners begins */
    } cases[] = {
        { 'S', "127.0.0.1", "127.0.0.1:" }, { 'S', "localhost", "0.0.0.0:" },      { 'S', "0.0.0.0", "0.0.0.0:" },
        { 'S', "192.0.2.77", "0.0.0.0:" },  { 'S', "nobody.invalid", "0.0.0.0:" }, { 'I', "127.0.0.1", "127.0.0.1:" },
        { 'I', "localhost", "127.0.0.1:" }, { 'I', "0.0.0.0", "0.0.0.0:" },        { 'I', "nobody.invalid", "0.0.0.0:" },
        { 'I', "192.0.2.77", "error" },     { 'N', "127.0.0.1", "127.0.0.1:" },    { 'N', "a.localhost", "127.0.0.1:" },
        { 'N', "0.0.0.0", "error" },        { 'N', "192.0.2.77", "error" },
    };
    char path[] = "/tmp/pickle-test-XXXXXX", root[64];
    struct pki_meeting m;

    close(mkstemp(path));
    write_secret(path, "a secret of more than 16 bytes", 0600);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(root, sizeof root, "%s:%d", cases[i].host, free_port(NULL, 0));
        set_root("0", "2", root);
        if (cases[i].guard == 'S')
            setenv("PK_SECRET_FILE", path, 1);
        if (cases[i].guard == 'I')
            setenv("PK_INSECURE", "1", 1);
        cr_expect_eq(strncmp(served(&m), cases[i].want, strlen(cases[i].want)), 0, "%c %s: %s", cases[i].guard, cases[i].host,
                     served(&m));
    }
    unlink(path);
}

/* torchrun says how many ranks are here, and what master is called on master says little. */
Test(launcher, what_torchruns_rank_0_serves)
{
    static const struct {
        const char *insecure, *here, *master, *want;
    } cases[] = {
        { "1", "1", "localhost", "0.0.0.0:" },        { "1", NULL, "127.0.0.1", "0.0.0.0:" },
        { "1", "2", "nobody.invalid", "127.0.0.1:" }, { "0", "1", "localhost", "127.0.0.1:" },
        { "0", NULL, "localhost", "127.0.0.1:" },     { "0", "2", "nobody.invalid", "127.0.0.1:" },
    };
    static const int ours[] = { 1013, 2026 };
    struct pki_meeting m;
    char port[16];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(port, sizeof port, "%d", free_port(ours, 2));
        set_torch("0", cases[i].master, port);
        setenv("PK_INSECURE", cases[i].insecure, 1);
        unsetenv("LOCAL_WORLD_SIZE");
        if (cases[i].here != NULL)
            setenv("LOCAL_WORLD_SIZE", cases[i].here, 1);
        cr_expect_eq(strncmp(served(&m), cases[i].want, strlen(cases[i].want)), 0, "%d: %s", (int)i, served(&m));
    }
    unsetenv("LOCAL_WORLD_SIZE");
    cr_expect_eq(find_by_torch("0", "29500", &m), PK_OK);
}

/* PMIx of the launcher that started torchrun speaks of torchrun's place. */
Test(launcher, torchrun_under_another_launcher)
{
    struct pki_meeting m;
    int n = 0, r = 0;

    cr_assert_eq(find_by_torch("1", "29500", &m), PK_OK);
    setenv("PMIX_RANK", "0", 1);
    setenv("PMIX_NAMESPACE", "nobody", 1);
    setenv("TORCHELASTIC_RUN_ID", "a job", 1);
    cr_expect_eq(pki_launcher_find(&n, &r, &m, pki_deadline_ns(20000), NULL), PK_OK);
    cr_expect_eq(r, 1);
    unsetenv("TORCHELASTIC_RUN_ID");
    no_launcher();
}

Test(launcher, turns)
{
    struct pki_list turns[3];
    struct pki_call_off cancelled = { .state = PKI_CALLED_OFF };

    for (int i = 0; i < 3; i++) {
        pki_list_init(&turns[i]);
        pki_launcher_enter(&turns[i]);
    }
    cr_expect_eq(pki_launcher_wait(&turns[0], pki_deadline_ns(20000), NULL), PK_OK);
    cr_expect_eq(pki_launcher_wait(&turns[1], pki_deadline_ns(5), NULL), PK_ERR_TIMEOUT);
    cr_expect_eq(pki_launcher_wait(&turns[1], pki_deadline_ns(20000), &cancelled), PK_ERR_ABORTED);
    pki_launcher_leave(&turns[1]); /* gives up before its turn */
    cr_expect_eq(pki_launcher_wait(&turns[2], pki_deadline_ns(5), NULL), PK_ERR_TIMEOUT);
    pki_launcher_leave(&turns[0]);
    pki_launcher_leave(&turns[0]);
    cr_expect_eq(pki_launcher_wait(&turns[2], pki_deadline_ns(20000), NULL), PK_OK);
    pki_launcher_leave(&turns[2]);
}

Test(launcher, secret_file)
{
    char path[] = "/tmp/pickle-test-XXXXXX";
    int fd = mkstemp(path);
    struct pki_meeting m, other;

    cr_assert_geq(fd, 0);
    close(fd);
    find_as("1", "2", "192.0.2.77:4000", &m);
    setenv("PK_SECRET_FILE", path, 1);
    write_secret(path, "only 15 letters", 0600);
    cr_expect_eq(find_meeting(&m), PK_ERR_ARG);
    write_secret(path, "a secret of more than 16 bytes", 0604);
    cr_expect_eq(find_meeting(&m), PK_ERR_ARG);
    cr_expect(strstr(pki_error_get()->text, "chmod") != NULL);
    write_secret(path, "a secret of more than 16 bytes", 0600);
    cr_expect_eq(find_meeting(&m), PK_OK);
    write_secret(path, "another secret of more than 16", 0600);
    cr_expect_eq(find_meeting(&other), PK_OK);
    cr_expect_neq(memcmp(&m.secret, &other.secret, sizeof m.secret), 0);
    unlink(path);
    cr_expect_eq(find_meeting(&m), PK_ERR_ARG);
    unsetenv("PK_SECRET_FILE");
    setenv("PK_INSECURE", "1", 1);
    cr_expect_eq(find_meeting(&m), PK_OK);
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
    int n, number;

    snprintf(root, sizeof root, "127.0.0.1:%d", free_port(NULL, 0));
    for (int round = 0; round < 2; round++) {
        for (int r = 0; r < 2; r++) {
            ranks[round][r] = (struct rank){ .size = 2, .rank = r, .timeout_ms = LIMIT_MS, .body = round == 0 ? linger : meet };
            set_root(r == 0 ? "0" : "1", "2", root);
            cr_assert_eq(pki_launcher_find(&n, &number, &ranks[round][r].meeting, pki_deadline_ns(20000), NULL), PK_OK, "%s",
                         pki_error_get()->text);
            ranks[round][r].at_meeting = true;
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
