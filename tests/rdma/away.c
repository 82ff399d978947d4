/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs of one communicator that fail behind a rank's last call in it: the rank then waits in another communicator, in the init of a third
 * one, or computes. What it has sent comes anyway, within PK_RETRY_MS. And devices that forget requests, neither do them nor fail: after 8 s
 * of silence they are made again. Preloaded: rdma-shim.so, by which all that happens.
 *
 * usage: rdma-away [ROUNDS]
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define RETRY_MS 3000
#define SHORT 512       /* bytes: eager */
#define LONG (1 << 20)  /* not eager */
#define UNHEARD_MS 8000 /* how long a queue pair may be silent */
#define TIMEOUT_MS 30000
#define COMPUTE_MS (2 * RETRY_MS)

enum place { SAME, OTHER, INIT, COMPUTING };
enum damage { SENDERS, RECEIVERS, ALL, MESSAGES_LOST, WRITES_LOST };
static const char *const places[] = { "in the same communicator", "in another communicator", "in the init of a third one",
                                      "outside the library" };
static const char *const damages[] = { "the sender's queue pairs fail", "the receiver's fail",
                                       "all of both ranks and communicators fail", "the sender's messages are forgotten",
                                       "the sender's writes are forgotten" };

static const struct scene {
    enum damage damage;
    enum place place;
} scenes[] = {
    { SENDERS, OTHER },      { SENDERS, INIT },        { SENDERS, COMPUTING }, { RECEIVERS, OTHER },
    { RECEIVERS, INIT },     { RECEIVERS, COMPUTING }, { ALL, OTHER },         { ALL, INIT },
    { MESSAGES_LOST, SAME }, { MESSAGES_LOST, OTHER }, { WRITES_LOST, SAME },
};

#define SCENES (int)(sizeof scenes / sizeof *scenes)

struct bed {
    int rank, round;
    enum place place;
    enum damage damage;
    size_t bytes;
    pk_comm_t *first, *other, *third;
    int made; /* queue pairs of `first`: those with lower numbers */
    int before;
};

static void *shim(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);

    if (found == NULL) {
        fprintf(stderr, "rdma-shim.so is not preloaded\n");
        exit(1);
    }
    return found;
}

static int made(void)
{
    int (*count)(void);
    void *found = shim("shim_made");

    memcpy(&count, &found, sizeof count);
    return count();
}

static void fail_now(int first, int end)
{
    void (*fail)(unsigned us, int first, int end);
    void *found = shim("shim_fail");

    memcpy(&fail, &found, sizeof fail);
    fail(0, first, end);
}

static void lose(int first, int end)
{
    void (*from_now)(int first, int end);
    void *found = shim("shim_lose");

    memcpy(&from_now, &found, sizeof from_now);
    from_now(first, end);
}

/* The first queue pair of a communicator is its control channel's. */
static void do_damage(const struct bed *bed, bool sends)
{
    if (bed->damage == MESSAGES_LOST && sends)
        lose(bed->before, bed->before + 1);
    else if (bed->damage == WRITES_LOST && sends)
        lose(bed->before + 1, bed->made);
    else if (bed->damage == ALL)
        fail_now(bed->before, made());
    else if (bed->damage == (sends ? SENDERS : RECEIVERS))
        fail_now(bed->before, bed->made);
}

static double most_ms(const struct bed *bed)
{
    return RETRY_MS * test_slack() + (bed->damage >= MESSAGES_LOST ? UNHEARD_MS : 0);
}

static pk_result_t open_comm(pk_comm_t **comm)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    config.timeout_ms = TIMEOUT_MS;
    config.device = PK_DEVICE_HOST;
    return pk_comm_init(comm, &config);
}

static bool goes_over_rdma(pk_comm_t *comm, int rank)
{
    pk_path_t path = { .struct_size = sizeof path };

    return pk_comm_path(comm, 1 - rank, PK_MEM_HOST, PK_MEM_HOST, &path) == PK_OK && strcmp(path.transport, "rdma") == 0;
}

static bool complain(const struct bed *bed, const char *what)
{
    pk_error_info_t error = { .struct_size = sizeof error };

    (void)pk_last_error(&error);
    fprintf(stderr, "rank %d, round %d: %s (%s)\n", bed->rank, bed->round, what, error.text);
    return false;
}

static bool set_up(struct bed *bed)
{
    bed->before = made();
    if (open_comm(&bed->first) != PK_OK || !goes_over_rdma(bed->first, bed->rank))
        return complain(bed, "no communicator over rdma");
    bed->made = made();
    if (open_comm(&bed->other) != PK_OK || pk_barrier(bed->first, PK_BLOCKING) != PK_OK ||
        pk_barrier(bed->other, PK_BLOCKING) != PK_OK)
        return complain(bed, "no second communicator");
    return true;
}

/* The last call in the first communicator was made; both ranks meet where the place says. */
static bool meet(struct bed *bed, bool sends)
{
    switch (bed->place) {
    case SAME:
        return pk_barrier(bed->first, PK_BLOCKING) == PK_OK || complain(bed, "the barrier");
    case OTHER:
        return pk_barrier(bed->other, PK_BLOCKING) == PK_OK || complain(bed, "the barrier of the other communicator");
    case INIT:
        return open_comm(&bed->third) == PK_OK || complain(bed, "the init of a third communicator");
    case COMPUTING:
        if (sends)
            usleep(COMPUTE_MS * 1000);
        return true;
    }
    return false;
}

static bool send_and_go(struct bed *bed, unsigned char *bytes)
{
    if (pk_send(bytes, bed->bytes, PK_UINT8, 1 - bed->rank, bed->first, PK_BLOCKING) != PK_OK)
        return complain(bed, "pk_send");
    return meet(bed, true);
}

static bool receive(struct bed *bed, const unsigned char *expected)
{
    static unsigned char bytes[LONG];
    double begun = monotonic_ms(), ms;

    if (pk_recv(bytes, bed->bytes, PK_UINT8, 1 - bed->rank, bed->first, PK_BLOCKING) != PK_OK)
        return complain(bed, "pk_recv");
    ms = monotonic_ms() - begun;
    if (memcmp(bytes, expected, bed->bytes) != 0)
        return complain(bed, "wrong bytes");
    printf("# round %d: received after %.0f ms\n", bed->round, ms);
    if (ms > most_ms(bed))
        return complain(bed, "it took too long");
    return meet(bed, false);
}

static bool run_round(struct bed *bed)
{
    static unsigned char bytes[LONG];
    bool good = set_up(bed), sends = bed->rank == bed->round % 2;

    for (size_t i = 0; i < bed->bytes; i++)
        bytes[i] = (unsigned char)(bed->round * 31 + (int)i);
    ranks_meet();
    if (good)
        do_damage(bed, sends);
    ranks_meet();
    good = good && (sends ? send_and_go(bed, bytes) : receive(bed, bytes));
    if (!good)
        return false;
    ranks_meet();
    if ((bed->third != NULL && pk_comm_destroy(bed->third) != PK_OK) || pk_comm_destroy(bed->other) != PK_OK ||
        pk_comm_destroy(bed->first) != PK_OK)
        return complain(bed, "pk_comm_destroy");
    return true;
}

static int run_rank(int rounds)
{
    const struct scene *scene = &scenes[atomic_load(&ranks_shared()->words[0])];

    for (int round = 0; round < (scene->damage >= MESSAGES_LOST ? 1 : rounds); round++) {
        struct bed bed = { .rank = ranks_rank(),
                           .round = round,
                           .place = scene->place,
                           .damage = scene->damage,
                           .bytes = scene->damage == WRITES_LOST ? LONG : SHORT };

        if (!run_round(&bed))
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *rounds = argc > 1 ? argv[1] : getenv("AWAY_ROUNDS");
    char retry[16];

    if (ranks_role() != NULL)
        return run_rank(rounds != NULL ? atoi(rounds) : 2);
    snprintf(retry, sizeof retry, "%d", RETRY_MS);
    if (rounds != NULL)
        setenv("AWAY_ROUNDS", rounds, 1);
    setenv("PICKLE_TEST_HOSTS", "2", 1);
    setenv("PK_RETRY_MS", retry, 1);
    for (int i = 0; i < SCENES; i++)
        ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2, .timeout_ms = 60000, .word = i }, "%s; the sender waits %s",
                    damages[scenes[i].damage], places[scenes[i].place]);
    return report_end();
}
