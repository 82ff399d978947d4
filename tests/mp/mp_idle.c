/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator with nothing to do uses no CPU, whatever was done in it before: blocking, in a stream, between hosts. A rank that waits
 * long for another sleeps, and a message wakes it. Argument: "one host" or "two hosts" alone (default: both). */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "turns.h"

#define SIZE 2
#define COUNT 1000
#define IDLE_MS 1000
#define MOST_MS 20 /* of them */
#define TRIES 3    /* an emulated processor that its host holds up counts the time as that of whoever had it */
#define WAITS 8
#define WAIT_MS 150
#define WAIT_MOST_MS 75    /* of them: it does not sleep at once */
#define NAPS_MOST 100      /* in WAIT_MS: ten times as many as sleeps, a tenth of short naps */
#define WOKEN_MOST_US 2000 /* at best: a sleep that nobody ends is five times as long. */

static double cpu_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double used_ms(void)
{
    double before = cpu_ms();

    usleep(IDLE_MS * 1000);
    return cpu_ms() - before;
}

static bool is_slow(void)
{
    return getenv("PICKLE_TEST_SLOW") != NULL;
}

/* Of an emulated machine whose host is busy the kernel counts time that nobody had: a tenth of what a rank that looks all the time uses. */
static double most_ms(void)
{
    return is_slow() ? IDLE_MS / 10 : MOST_MS;
}

static void rest(const char *after)
{
    double used = most_ms();

    ranks_meet();
    usleep(50000); /* threads that have just worked may look for more a moment */
    for (int i = 0; i < TRIES && used >= most_ms(); i++)
        used = used_ms();
    report(used < most_ms(), "%s: rank %d: %.2f ms of CPU in %d ms of idleness after %s", ranks_role(), ranks_rank(), used,
           IDLE_MS, after);
    ranks_meet();
}

/* Of an emulated machine: it takes longer until a rank sleeps, and until it is awake. */
static int times_slower(void)
{
    return is_slow() ? 14 : 1;
}

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static long naps(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}

/* How much later than it wants a process gets a processor here and now. */
static double late_by_us(void)
{
    const double begin = now_us();

    usleep(1000);
    return now_us() - begin - 1000;
}

/* In a stream it is the stream that is waited for. */
static bool recv_time(double *sent_us, pk_comm_t *comm, pk_stream_t stream)
{
    return pk_recv(sent_us, 1, PK_F64, 1, comm, stream) == PK_OK &&
           (stream.kind == PK_STREAM_KIND_BLOCKING || pk_stream_synchronize(stream) == PK_OK);
}

/* Rank 1 sends the time, late; rank 0 waits for it. */
static void wait_long(pk_comm_t *comm, int rank, pk_stream_t stream)
{
    const char *how = stream.kind == PK_STREAM_KIND_BLOCKING ? "in a call" : "for a stream";
    double sent_us, late_us, best_us = 1e9, latest_us = 0, before = cpu_ms();
    int slow = times_slower(), waits = slow > 1 ? 3 : WAITS;
    long slept = naps();
    bool good = true;

    for (int i = 0; i < waits; i++) {
        ranks_meet();
        if (rank == 1) {
            usleep((useconds_t)(slow * WAIT_MS) * 1000);
            sent_us = now_us();
            good &= pk_send(&sent_us, 1, PK_F64, 0, comm, PK_BLOCKING) == PK_OK;
            continue;
        }
        late_us = late_by_us();
        latest_us = late_us > latest_us ? late_us : latest_us;
        good &= recv_time(&sent_us, comm, stream);
        if (now_us() - sent_us < best_us)
            best_us = now_us() - sent_us;
    }
    report(good, "rank %d: waits %s", rank, how);
    if (rank != 0)
        return;
    printf("# %s: woken after %.1f us at best; %.1f ms of CPU and %.0f naps in %d ms\n", how, best_us,
           (cpu_ms() - before) / waits, (double)(naps() - slept) / waits, slow * WAIT_MS);
    report(best_us < WOKEN_MOST_US + 2 * latest_us || slow > 1,
           "a rank that sleeps %s is woken, after %.1f us, where a processor comes up to %.1f us late", how, best_us, latest_us);
    report((cpu_ms() - before) / waits < slow * WAIT_MOST_MS && (naps() - slept) / waits < slow * NAPS_MOST,
           "a rank that waits long %s sleeps", how);
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_stream_t stream;
    struct turn_loop blocking, streamed;
    pk_comm_t *comm = NULL;
    int rank = ranks_rank();

    config.device = PK_DEVICE_HOST;
    if (!report(pk_comm_init(&comm, &config) == PK_OK && pk_stream_create(&stream) == PK_OK, "%s: rank %d: init", ranks_role(),
                rank) ||
        !turn_open(&blocking, comm, PK_BLOCKING, rank, SIZE, COUNT) || !turn_open(&streamed, comm, stream, rank, SIZE, COUNT))
        return 1;
    rest("init");
    for (size_t i = 0; i < turns_count; i++)
        report(turn_run(&turns[i], &blocking) == PK_OK, "%s: rank %d: %s", ranks_role(), rank, turns[i].name);
    rest("blocking operations");
    for (size_t i = 0; i < turns_count; i++)
        report(turn_run(&turns[i], &streamed) == PK_OK, "%s: rank %d: %s in a stream", ranks_role(), rank, turns[i].name);
    rest("operations in a stream");
    wait_long(comm, rank, PK_BLOCKING);
    wait_long(comm, rank, stream);
    report(pk_stream_destroy(stream) == PK_OK && pk_comm_destroy(comm) == PK_OK, "%s: rank %d: destroy", ranks_role(), rank);
    turn_close(&blocking);
    turn_close(&streamed);
    return report_end();
}

static void before(int rank, void *arg)
{
    if (arg != NULL)
        setenv("PK_HOST_ID", rank == 0 ? "here" : "there", 1);
}

static void drive(const char *role, void *apart)
{
    const struct ranks_hooks hooks = { .before = before, .arg = apart };

    ranks_drive(&(struct ranks_turn){ .role = role, .size = SIZE, .hooks = &hooks }, "%s", role);
    unsetenv("PK_HOST_ID");
}

int main(int argc, char **argv)
{
    char yes[] = "yes";
    bool one = argc < 2 || strcmp(argv[1], "one host") == 0, two = argc < 2 || strcmp(argv[1], "two hosts") == 0;

    if (ranks_role() != NULL)
        return rank_main();
    if (one)
        drive("one host", NULL);
    if (two)
        drive("two hosts", yes);
    return one || two ? report_end() : 2;
}
