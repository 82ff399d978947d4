/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong, and how a program gets out of it: an argument that is refused without harm, two ranks that disagree, a rank that
 * does not come before the deadline, and an abort from another thread. Two ranks in one process, as threads; needs no launcher.
 *     cc errors.c $(pkg-config --cflags --libs pickle) -lm -pthread -o errors && ./errors
 */
#include "example.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static pk_unique_id_t id;
static pk_comm_t *comms[2];

static void *join_as_second(void *config)
{
    must(pk_comm_init_rank(&comms[1], 2, 1, &id, config), "init of rank 1");
    return NULL;
}

static void open_pair(unsigned timeout_ms)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pthread_t second;

    config.timeout_ms = timeout_ms;
    must(pk_get_unique_id(&id), "pk_get_unique_id");
    if (pthread_create(&second, NULL, join_as_second, &config) != 0)
        exit(1);
    must(pk_comm_init_rank(&comms[0], 2, 0, &id, &config), "init of rank 0");
    pthread_join(second, NULL);
}

/* A poisoned communicator has only its end before it; its first error is what destroy returns. */
static void close_pair(void)
{
    pk_comm_destroy(comms[0]);
    pk_comm_destroy(comms[1]);
}

static void expect(pk_result_t wanted, pk_result_t got, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    if (got != wanted) {
        fprintf(stderr, "errors: %s: expected '%s', got '%s' (%s)\n", what, pk_strerror(wanted), pk_strerror(got), info.text);
        exit(1);
    }
    printf("errors: %s: rank %d, peer %d, operation '%s': %s\n", what, info.rank, info.peer, info.op, info.text);
}

static void *send_two(void *buffer)
{
    pk_send(buffer, 2, PK_F32, 0, comms[1], PK_BLOCKING);
    return NULL;
}

static void *abort_soon(void *unused)
{
    (void)unused;
    usleep(50000);
    must(pk_comm_abort(comms[0]), "pk_comm_abort");
    return NULL;
}

static void meanwhile(void *(*other)(void *), pk_result_t wanted, const char *what)
{
    float out[4] = { 0 }, in[4];
    pthread_t thread;

    if (pthread_create(&thread, NULL, other, out) != 0)
        exit(1);
    expect(wanted, pk_recv(in, 4, PK_F32, 1, comms[0], PK_BLOCKING), what);
    pthread_join(thread, NULL);
}

int main(void)
{
    float in[4];

    open_pair(20000);
    expect(PK_ERR_ARG, pk_recv(in, 4, PK_F32, 7, comms[0], PK_BLOCKING), "a rank that there is not");
    meanwhile(send_two, PK_ERR_MISMATCH, "two elements sent, four received");
    close_pair();

    open_pair(20000);
    meanwhile(abort_soon, PK_ERR_ABORTED, "aborted while waiting");
    close_pair();

    open_pair(300);
    expect(PK_ERR_TIMEOUT, pk_recv(in, 4, PK_F32, 1, comms[0], PK_BLOCKING), "nobody sends");
    close_pair();
    printf("errors: right\n");
    return 0;
}
