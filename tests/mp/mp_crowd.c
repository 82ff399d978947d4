/* SPDX-License-Identifier: Apache-2.0 */
/* Many: 64 ranks on one host; 1,000 idle connections, half-open ones, garbage and wrong secrets at rank 0's door; 1,000 communicators. */
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "turns.h"

#define COUNT 500
#define IDLE 1000
#define HALF_OPEN 100
#define GARBAGE 100
#define COMMS 1000
#define FIRST_COMMS 50 /* after so many the process has what it keeps */
#define LEAK_BYTES (1 << 20)
#define LONG_MS 60000

/* Words of the shared memory. */
enum { LISTENING, STRANGERS_ARE_THERE, REFUSED };

static pk_comm_config_t config_here(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = LONG_MS;
    return config;
}

static void everything(pk_comm_t *comm, const char *what)
{
    struct turn_loop loop;

    if (!turn_open(&loop, comm, PK_BLOCKING, ranks_rank(), ranks_size(), COUNT))
        return;
    for (size_t i = 0; i < turns_count; i++)
        if (turn_run(&turns[i], &loop) != PK_OK || !turn_was_right(&turns[i], &loop))
            report(false, "%s: rank %d: %s", what, loop.rank, turns[i].name);
    turn_close(&loop);
}

/* ---- 64 ranks ---- */

static void many_main(void)
{
    pk_comm_config_t config = config_here();
    pk_comm_t *comm = NULL;

    if (pk_comm_init(&comm, &config) != PK_OK) {
        report(false, "many: rank %d: init", ranks_rank());
        return;
    }
    everything(comm, "many");
    if (pk_comm_destroy(comm) != PK_OK)
        report(false, "many: rank %d: destroy", ranks_rank());
}

/* ---- strangers ---- */

static int knock(const char *root)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strrchr(root, ':') + 1)) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Rank 0 listens when somebody gets through: until then keep knocking. */
static void wait_until_open(const char *root)
{
    int64_t until = monotonic_ns() + 20 * (int64_t)1000000000;
    int fd = -1;

    while (fd < 0 && monotonic_ns() < until) {
        fd = knock(root);
        usleep(1000);
    }
    if (fd >= 0)
        close(fd);
}

static void speak(int fd, int kind)
{
    unsigned char noise[300];

    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)rand();
    memcpy(noise, "PKh3", kind == 0 ? 4 : 0); /* some begin as they should */
    (void)!send(fd, noise, kind == 1 ? 7 : sizeof noise, MSG_NOSIGNAL);
}

static void come(const char *root, int *fds, int n)
{
    for (int i = 0; i < n; i++) {
        fds[i] = knock(root);
        if (fds[i] >= 0 && i < GARBAGE + HALF_OPEN)
            speak(fds[i], i < HALF_OPEN ? 1 : i % 2 == 0 ? 0 : 2);
    }
}

static void strangers_main(int rank)
{
    pk_comm_config_t config = config_here();
    _Atomic int64_t *words = ranks_shared()->words;
    pk_comm_t *comm = NULL;
    double begun;

    if (rank == ranks_size() - 1)
        while (!atomic_load(&words[STRANGERS_ARE_THERE]))
            usleep(1000);
    begun = monotonic_ms();
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "strangers: rank %d: init", rank))
        return;
    if (rank == ranks_size() - 1)
        report(monotonic_ms() - begun < 100 * test_slack(), "strangers: the last rank came in within %.1f ms",
               monotonic_ms() - begun);
    everything(comm, "strangers");
    report(pk_comm_destroy(comm) == PK_OK, "strangers: rank %d: destroy", rank);
}

static void drive_strangers(void)
{
    static int fds[IDLE + GARBAGE + HALF_OPEN];
    const int n = IDLE + GARBAGE + HALF_OPEN;
    struct rlimit files = { 4096, 4096 };
    struct ranks ranks;

    (void)setrlimit(RLIMIT_NOFILE, &files);
    ranks_open(&ranks, 4);
    ranks_start_all(&ranks, "strangers", NULL, NULL);
    wait_until_open(ranks.root);
    come(ranks.root, fds, n);
    atomic_store(&ranks.shared->words[STRANGERS_ARE_THERE], 1);
    report(ranks_wait(&ranks, 60000, -1) == 0, "strangers: %d of them", n);
    ranks_close(&ranks);
    for (int i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* ---- a wrong secret: the intruder is told so, the ranks do not notice ---- */

static char secret_file[64];

static void write_secret(const char *text)
{
    FILE *file = fopen(secret_file, "w");

    if (file == NULL)
        exit(2);
    fprintf(file, "%s\n", text);
    fclose(file);
    chmod(secret_file, 0600);
}

static void secret_main(int rank)
{
    pk_comm_config_t config = config_here();
    pk_error_info_t info = { .struct_size = sizeof info };
    _Atomic int64_t *words = ranks_shared()->words;
    pk_comm_t *comm = NULL;
    pk_result_t result;

    if (rank == 1)
        while (!atomic_load(&words[REFUSED]))
            usleep(1000);
    result = pk_comm_init(&comm, &config);
    pk_last_error(&info);
    if (rank == 2) { /* calls itself a rank, and has another secret */
        atomic_store(&words[REFUSED], 1);
        report(result == PK_ERR_AUTH, "secret: the intruder got %d: %s", (int)result, info.text);
        return;
    }
    if (!report(result == PK_OK, "secret: rank %d: init: %d", rank, (int)result))
        return;
    everything(comm, "secret");
    report(pk_comm_destroy(comm) == PK_OK, "secret: rank %d: destroy", rank);
}

/* The intruder takes rank 1's name, and comes before it. */
static void as_rank_1(int rank, void *arg)
{
    (void)arg;
    setenv("PK_SIZE", "2", 1);
    if (rank == 2)
        setenv("PK_RANK", "1", 1);
    setenv("PICKLE_TEST_INTRUDER", rank == 2 ? "1" : "0", 1);
}

static void drive_secret(void)
{
    static const struct ranks_hooks hooks = { .before = as_rank_1 };
    struct ranks ranks;

    snprintf(secret_file, sizeof secret_file, "/tmp/pickle-secret-%d", (int)getpid());
    setenv("PK_SECRET_FILE", secret_file, 1);
    ranks_open(&ranks, 3);
    write_secret("what all ranks of this job know");
    ranks_start(&ranks, 0, "secret", NULL, &hooks);
    wait_until_open(ranks.root);
    ranks_start(&ranks, 1, "secret", NULL, &hooks);
    usleep(300000); /* both have read it */
    setenv("PK_SECRET_FILE", "", 1);
    ranks_start(&ranks, 2, "secret", NULL, &hooks);
    report(ranks_wait(&ranks, 60000, -1) == 0, "secret");
    ranks_close(&ranks);
    unlink(secret_file);
    unsetenv("PK_SECRET_FILE");
    unsetenv("PICKLE_TEST_INTRUDER");
}

/* ---- 1,000 communicators ---- */

static int mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    int n = 0, c;

    while (file != NULL && (c = fgetc(file)) != EOF)
        n += c == '\n';
    if (file != NULL)
        fclose(file);
    return n;
}

static void one_communicator(pk_comm_t *parent, int i, int rank)
{
    int32_t own = rank + i, all[2] = { -1, -1 };
    pk_comm_t *comm = NULL;

    if (pk_comm_split(parent, 0, 0, &comm, NULL) != PK_OK || pk_allgather(&own, all, 1, PK_INT32, comm, PK_BLOCKING) != PK_OK ||
        all[0] != i || all[1] != i + 1 || pk_comm_destroy(comm) != PK_OK) {
        report(false, "comms: rank %d: communicator %d", rank, i);
        exit(1);
    }
}

static void comms_main(int rank)
{
    pk_comm_config_t config = config_here();
    pk_comm_t *parent = NULL;
    size_t bytes = 0;
    int files = 0, maps = 0;

    if (!report(pk_comm_init(&parent, &config) == PK_OK, "comms: rank %d: init", rank))
        return;
    for (int i = 0; i < COMMS; i++) {
        one_communicator(parent, i, rank);
        if (i != FIRST_COMMS)
            continue;
        files = open_files();
        maps = mappings();
        bytes = mallinfo2().uordblks;
    }
    report(open_files() <= files, "comms: rank %d: %d descriptors after %d, %d after %d", rank, open_files(), COMMS, files,
           FIRST_COMMS);
    report(mappings() <= maps + 4, "comms: rank %d: %d mappings after %d, %d after %d", rank, mappings(), COMMS, maps,
           FIRST_COMMS);
    report(mallinfo2().uordblks < bytes + LEAK_BYTES, "comms: rank %d: %zu bytes after %d, %zu after %d", rank,
           mallinfo2().uordblks, COMMS, bytes, FIRST_COMMS);
    report(pk_comm_destroy(parent) == PK_OK, "comms: rank %d: destroy", rank);
}

static void drive(const char *role, int size)
{
    ranks_drive(&(struct ranks_turn){ .role = role, .size = size, .timeout_ms = 110000 }, "%s", role);
}

int main(void)
{
    const char *role = ranks_role(), *intruder = getenv("PICKLE_TEST_INTRUDER");

    if (role == NULL) {
        drive_secret();
        drive_strangers();
        drive("many", 64);
        drive("comms", 2);
        return report_end();
    }
    if (strcmp(role, "many") == 0)
        many_main();
    else if (strcmp(role, "strangers") == 0)
        strangers_main(ranks_rank());
    else if (strcmp(role, "secret") == 0)
        secret_main(intruder != NULL && intruder[0] == '1' ? 2 : ranks_rank());
    else
        comms_main(ranks_rank());
    return report_end();
}
