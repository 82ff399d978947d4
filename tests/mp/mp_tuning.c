/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of the table that rank 0 decides hold on all ranks; those of one rank are its own; a value that does not exist is named. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 3

static char text[64 << 10];

/* Does pk_config_dump have a line that begins with `name` and says `value` and `origin`? */
static bool says(pk_comm_t *comm, const char *name, const char *value, const char *origin)
{
    char one[40], other[40], third[40];
    size_t needed = 0;

    if (pk_config_dump(comm, text, sizeof text, &needed) != PK_OK || needed > sizeof text)
        return false;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (sscanf(line, "%39s %39s %39s", one, other, third) == 3 && strcmp(one, name) == 0)
            return strcmp(other, value) == 0 && strcmp(third, origin) == 0;
    return false;
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_explanation_t how = { .struct_size = sizeof how };
    pk_comm_t *comm = NULL;
    int rank = ranks_rank(), sum = 0;

    config.device = PK_DEVICE_HOST;
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "rank %d: init", rank))
        return report_end();
    report(pk_explain(comm, PK_OP_ALLREDUCE, 1, PK_INT32, PK_MEM_HOST, 0, 0, &how) == PK_OK &&
               strcmp(how.algorithm, "direct") == 0,
           "rank %d: allreduce by '%s', as rank 0 has it", rank, how.algorithm);
    report(says(comm, "coll.one_shot_max_bytes", "0", "PICKLE_TEST_TUNING"), "rank %d: the dump says rank 0's value", rank);
    report(says(comm, "wait.spins", rank == 1 ? "7" : "4000", rank == 1 ? "PICKLE_TEST_TUNING" : "default"),
           "rank %d: and its own value of what is its own", rank);
    report(says(comm, "shm.probe_every", "128", "fixed"), "rank %d: and what is fixed", rank);
    report(pk_allreduce(&rank, &sum, 1, PK_INT32, PK_SUM, comm, PK_BLOCKING) == PK_OK && sum == 3, "rank %d: allreduce", rank);
    report(pk_comm_destroy(comm) == PK_OK, "rank %d: destroy", rank);
    return report_end();
}

static void set_own(int rank, void *arg)
{
    static const char *const tunings[SIZE] = { "coll.one_shot_max_bytes=0", "wait.spins=7,coll.one_shot_max_bytes=99", "" };

    (void)arg;
    setenv("PICKLE_TEST_TUNING", tunings[rank], 1);
}

/* Alone, in this process, which has read its variable then. */
static void refused(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;

    setenv("PICKLE_TEST_TUNING", "wait.spins=7,wait.turns=8", 1);
    config.device = PK_DEVICE_HOST;
    report(pk_get_unique_id(&id) == PK_OK, "an id");
    report(pk_comm_init_rank(&comm, 1, 0, &id, &config) == PK_ERR_ARG && comm == NULL, "a value that does not exist is refused");
    pk_last_error(&info);
    report(strstr(info.text, "'wait.turns=8'") != NULL, "and named: %s", info.text);
}

int main(void)
{
    const struct ranks_hooks hooks = { .before = set_own };

    if (ranks_role() != NULL)
        return rank_main();
    ranks_drive(&(struct ranks_turn){ .role = "tuned", .size = SIZE, .hooks = &hooks }, "constants of %d ranks", SIZE);
    refused();
    return report_end();
}
