/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank that does nothing but start: a communicator, an allreduce of one number, the end. It says when it began and when
 * it was done, by the machine's monotonic clock; start-times makes a table of that.
 */
#include "arguments.h"

#include <errno.h>
#include <limits.h>
#include <pickle/pickle.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 60000

static const char usage[] =
    "usage: pickle-start                       found in the launcher's environment\n"
    "       pickle-start FILE SIZE RANK        by an id, which rank 0 writes into FILE and the others read\n";

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Others see the file when all of it is there. */
static int write_id(const char *path, const pk_unique_id_t *id)
{
    char other[4096];
    FILE *file;

    snprintf(other, sizeof other, "%s.new", path);
    file = fopen(other, "wb");
    if (file == NULL)
        return -1;
    if (fwrite(id, sizeof *id, 1, file) != 1) {
        fclose(file);
        return -1;
    }
    return fclose(file) == 0 ? rename(other, path) : -1;
}

static int read_id(const char *path, pk_unique_id_t *id)
{
    for (int ms = 0; ms < WAIT_MS; ms++) {
        FILE *file = fopen(path, "rb");
        size_t read = file != NULL ? fread(id, sizeof *id, 1, file) : 0;

        if (file != NULL)
            fclose(file);
        if (read == 1)
            return 0;
        usleep(1000);
    }
    errno = ETIMEDOUT;
    return -1;
}

static pk_result_t make(char **args, pk_comm_t **comm)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    int size, rank;
    pk_unique_id_t id;
    pk_result_t result = PK_OK;

    config.device = PK_DEVICE_HOST;
    if (args == NULL)
        return pk_comm_init(comm, &config);
    size = (int)argument_size("SIZE", args[1], 1, INT_MAX);
    rank = (int)argument_size("RANK", args[2], 0, size - 1);
    if (rank == 0)
        result = pk_get_unique_id(&id);
    if (result != PK_OK)
        return result;
    if ((rank == 0 ? write_id(args[0], &id) : read_id(args[0], &id)) != 0) {
        perror(args[0]);
        exit(2);
    }
    return pk_comm_init_rank(comm, size, rank, &id, &config);
}

int main(int argc, char **argv)
{
    const uint64_t began = now_ns();
    int32_t one = 1, sum = 0, rank = -1, size = 0;
    pk_error_info_t error = { .struct_size = sizeof error };
    pk_comm_t *comm = NULL;
    pk_result_t result;

    arguments_parse("pickle-start", usage, &(struct argument){ 0 }, argc == 1 ? 0 : 3, 3, argc, argv);
    result = make(argc > 1 ? argv + 1 : NULL, &comm);
    if (result == PK_OK)
        result = pk_allreduce(&one, &sum, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING);
    if (result != PK_OK) {
        pk_last_error(&error);
        printf("error %d after %.0f ms: %s\n", (int)result, (double)(now_ns() - began) / 1e6, error.text);
        return 1;
    }
    pk_comm_rank(comm, &rank);
    pk_comm_size(comm, &size);
    printf("start rank %d began %llu done %llu\n", (int)rank, (unsigned long long)began, (unsigned long long)now_ns());
    result = pk_comm_destroy(comm);
    return result != PK_OK || sum != size;
}
