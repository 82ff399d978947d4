/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every rank contributes its number plus one, and every rank learns the sum. Started alone it is a job of one.
 *     cc hello.c $(pkg-config --cflags --libs pickle) -o hello && mpirun --oversubscribe -n 4 ./hello
 */
#include <pickle/pickle.h>

#include <stdio.h>

/* Print what went wrong, in the library's words. */
static int fail(const char *what, pk_result_t result)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    fprintf(stderr, "hello: %s: %s: %s\n", what, pk_strerror(result), info.text);
    return 1;
}

/* The communicator of all processes that the launcher started, or of this one where there was none. */
static pk_result_t join(pk_comm_t **comm)
{
    pk_unique_id_t id;
    pk_result_t result = pk_comm_init(comm, NULL);

    if (result != PK_ERR_UNSUPPORTED)
        return result;
    result = pk_get_unique_id(&id);
    if (result != PK_OK)
        return result;
    return pk_comm_init_rank(comm, 1, 0, &id, NULL);
}

int main(void)
{
    pk_comm_t *comm;
    int rank, size;
    pk_result_t result = join(&comm);

    if (result != PK_OK)
        return fail("init", result);
    pk_comm_rank(comm, &rank);
    pk_comm_size(comm, &size);

    float mine = (float)(rank + 1), sum = 0;

    result = pk_allreduce(&mine, &sum, 1, PK_F32, PK_SUM, comm, PK_BLOCKING);
    if (result != PK_OK)
        return fail("allreduce", result);
    printf("rank %d: sum %g over %d rank%s\n", rank, sum, size, size == 1 ? "" : "s");

    result = pk_comm_destroy(comm);
    return result == PK_OK ? 0 : fail("destroy", result);
}
