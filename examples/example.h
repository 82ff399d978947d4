/* SPDX-License-Identifier: Apache-2.0 */
/* What the examples share: ending with the library's words, and joining the job that they were started in. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <pickle/pickle.h>

#include <stdio.h>
#include <stdlib.h>

static inline void must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    fprintf(stderr, "%s: %s: %s\n", what, pk_strerror(result), info.text);
    exit(1);
}

/* All processes of the job (mpirun -n 4 ./ring, or PK_RANK, PK_SIZE and PK_ROOT); started alone, a job of one. */
static inline pk_comm_t *join(int *rank, int *size)
{
    pk_comm_t *comm;
    pk_unique_id_t id;
    pk_result_t result = pk_comm_init(&comm, NULL);

    if (result == PK_ERR_UNSUPPORTED) {
        must(pk_get_unique_id(&id), "pk_get_unique_id");
        result = pk_comm_init_rank(&comm, 1, 0, &id, NULL);
    }
    must(result, "init");
    must(pk_comm_rank(comm, rank), "pk_comm_rank");
    must(pk_comm_size(comm, size), "pk_comm_size");
    return comm;
}

#endif
