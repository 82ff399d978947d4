/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that have closed standard input, output and error, as daemons do: the library takes none of the three numbers, so that what
 * the program or the library writes to standard error meets no connection and no memory of the library. On one host and between two.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "turns.h"

#define SIZE 2
#define COUNT 300000
#define TIMEOUT_MS 8000
#define LATE_US 4500000 /* half the deadline, and some: a line says that a rank has waited */

/* Words of each rank: where it stopped, as a place in main, and what it saw there. */
enum { PLACE, SEEN };

/* A rank's standard output is closed. */
static _Noreturn void stop_at(int place, int64_t seen)
{
    atomic_store(&ranks_shared()->rank_words[ranks_rank()][PLACE], place);
    atomic_store(&ranks_shared()->rank_words[ranks_rank()][SEEN], seen);
    _exit(1);
}

/* All three are closed, and the program says something nevertheless. */
static void check(int place, pk_result_t result)
{
    if (result != PK_OK)
        stop_at(place, result);
    errno = EIO;
    perror("the program itself");
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) != -1 || errno != EBADF)
            stop_at(place, 1000 + fd);
}

static void run_all(int place, struct turn_loop *loop)
{
    for (size_t i = 0; i < turns_count; i++) {
        check(place + (int)i, turn_run(&turns[i], loop));
        if (!turn_was_right(&turns[i], loop))
            stop_at(place + (int)i, 2000);
    }
}

static void use_more(pk_comm_t *comm, struct turn_loop *loop)
{
    pk_comm_t *half = NULL;
    void *shared = NULL;
    pk_stream_t stream = PK_BLOCKING;

    check(200, pk_comm_split(comm, 0, loop->rank, &half, NULL));
    check(201, pk_comm_destroy(half));
    check(202, pk_mem_alloc(comm, 1 << 20, &shared));
    check(203, pk_allreduce(shared, shared, 1 << 18, PK_F32, PK_SUM, comm, PK_BLOCKING));
    check(204, pk_mem_free(comm, shared));
    check(205, pk_stream_create(&stream));
    loop->stream = stream;
    run_all(300, loop);
    check(206, pk_stream_destroy(stream));
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_unique_id_t id;
    struct turn_loop loop;
    pk_comm_t *comm = NULL;
    int rank = ranks_rank();

    for (int fd = 0; fd <= 2; fd++)
        close(fd);
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = TIMEOUT_MS;
    check(1, pk_get_unique_id(&id));
    check(2, pk_comm_init(&comm, &config));
    if (!turn_open(&loop, comm, PK_BLOCKING, rank, SIZE, COUNT))
        stop_at(3, 0);
    run_all(100, &loop);
    use_more(comm, &loop);
    if (rank == 1)
        usleep(LATE_US);
    loop.stream = PK_BLOCKING;
    run_all(400, &loop);
    check(4, pk_comm_destroy(comm));
    turn_close(&loop);
    return 0;
}

static void set_host(int rank, void *arg)
{
    setenv("PK_HOST_ID", *(bool *)arg && rank == 1 ? "there" : "here", 1);
}

static void end(struct ranks *ranks, const char *where)
{
    int wrong = ranks_wait(ranks, 60000, -1);

    for (int r = 0; r < SIZE; r++)
        if (ranks->statuses[r] != 0)
            printf("rank %d: status %#x at place %lld: %lld\n", r, (unsigned)ranks->statuses[r],
                   (long long)atomic_load(&ranks->shared->rank_words[r][PLACE]),
                   (long long)atomic_load(&ranks->shared->rank_words[r][SEEN]));
    report(wrong == 0, "0, 1 and 2 are closed, %s: they stay so, results are right: %d of %d ranks failed", where, wrong, SIZE);
    ranks_close(ranks);
}

int main(void)
{
    const char *const places[] = { "one host", "two hosts", "one host, every line" };
    struct ranks jobs[3];

    if (ranks_role() != NULL)
        return rank_main();
    for (int i = 0; i < 3; i++) {
        bool apart = i == 1;
        const struct ranks_hooks hooks = { .before = set_host, .arg = &apart };

        setenv("PK_LOG", i == 2 ? "debug" : "warn", 1);
        ranks_open(&jobs[i], SIZE);
        ranks_start_all(&jobs[i], "closed", NULL, &hooks);
    }
    for (int i = 0; i < 3; i++)
        end(&jobs[i], places[i]);
    return report_end();
}
