/* SPDX-License-Identifier: Apache-2.0 */
#include "reduction.h"

#include <stdlib.h>

#include "dtype.h"
#include "error.h"
#include "names.h"

struct pkn_reduction {
    int number; /* the program's */
    int references;
    pkn_dtype_t dtype;
    pk_op_t op;
    struct pkn_reduction *next; /* while the program has it: the newest first */
};

pkn_result_t pkn_dtype(pkn_dtype_t dtype, pk_dtype_t *pk_dtype)
{
    static const pk_dtype_t types[PKN_DTYPES] = {
        [PKN_INT8] = PK_INT8,   [PKN_UINT8] = PK_UINT8,   [PKN_INT32] = PK_INT32,       [PKN_UINT32] = PK_UINT32,
        [PKN_INT64] = PK_INT64, [PKN_UINT64] = PK_UINT64, [PKN_FLOAT16] = PK_F16,       [PKN_FLOAT32] = PK_F32,
        [PKN_FLOAT64] = PK_F64, [PKN_BFLOAT16] = PK_BF16, [PKN_FLOAT8E4M3] = PK_F8E4M3, [PKN_FLOAT8E5M2] = PK_F8E5M2,
    };

    if ((unsigned)dtype >= PKN_DTYPES)
        return pkn_fail(PKN_INVALID_ARGUMENT, "datatype is %d", (int)dtype);
    *pk_dtype = types[dtype];
    return PKN_SUCCESS;
}

/* With the communicator's lock. */
static struct pkn_reduction **find(struct pkn_comm *comm, pkn_op_t op)
{
    struct pkn_reduction **at = &comm->reductions;

    while (*at != NULL && (*at)->number != (int)op)
        at = &(*at)->next;
    return at;
}

static pkn_result_t keep_made(struct pkn_comm *comm, pkn_op_t op, pkn_dtype_t dtype, pk_op_t *pk_op, struct pkn_reduction **kept)
{
    struct pkn_reduction *found;
    pkn_result_t result = PKN_SUCCESS;

    pthread_mutex_lock(&comm->lock);
    found = *find(comm, op);
    if (found == NULL)
        result = pkn_fail(PKN_INVALID_ARGUMENT, "the communicator has no operator %d", (int)op);
    else if (found->dtype != dtype)
        result = pkn_fail(PKN_INVALID_ARGUMENT, "operator %d is for datatype %d, the operation's is %d", (int)op,
                          (int)found->dtype, (int)dtype);
    if (result == PKN_SUCCESS) {
        found->references++;
        *pk_op = found->op;
        *kept = found;
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

pkn_result_t pkn_reduction_keep(struct pkn_comm *comm, pkn_op_t op, pkn_dtype_t dtype, pk_op_t *pk_op,
                                struct pkn_reduction **kept)
{
    static const pk_op_t ops[PKN_OPS] = {
        [PKN_SUM] = PK_SUM, [PKN_PROD] = PK_PROD, [PKN_MAX] = PK_MAX, [PKN_MIN] = PK_MIN, [PKN_AVG] = PK_AVG
    };

    *kept = NULL;
    if ((int)op >= PKN_OPS)
        return keep_made(comm, op, dtype, pk_op, kept);
    if ((int)op < 0)
        return pkn_fail(PKN_INVALID_ARGUMENT, "the operator is %d", (int)op);
    *pk_op = ops[op];
    return PKN_SUCCESS;
}

static void forget(struct pkn_comm *comm, struct pkn_reduction *made)
{
    (void)pkn_pk()->pk_op_destroy(comm->pk, made->op);
    free(made);
}

void pkn_reduction_release(struct pkn_comm *comm, struct pkn_reduction *kept)
{
    bool last;

    if (kept == NULL)
        return;
    pthread_mutex_lock(&comm->lock);
    last = --kept->references == 0;
    pthread_mutex_unlock(&comm->lock);
    if (last)
        forget(comm, kept);
}

void pkn_reductions_free(struct pkn_comm *comm)
{
    while (comm->reductions != NULL) {
        struct pkn_reduction *made = comm->reductions;

        comm->reductions = made->next;
        forget(comm, made);
    }
}

static pkn_result_t create(struct pkn_comm *comm, void *scalar, pkn_dtype_t dtype, pkn_residence_t residence, pkn_op_t *op)
{
    const struct pkn_table *pk = pkn_pk();
    struct pkn_reduction *made;
    pk_dtype_t pk_dtype = PK_INT8;
    pk_op_t pk_op = 0;
    pkn_result_t result = pkn_dtype(dtype, &pk_dtype);

    if (result != PKN_SUCCESS)
        return result;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return pkn_fail(PKN_SYSTEM_ERROR, "no memory for an operator");
    result = pkn_from_pk(pk->pk_op_create_premul(comm->pk, pk_dtype, scalar, residence == PKN_SCALAR_DEVICE, &pk_op));
    if (result != PKN_SUCCESS) {
        free(made);
        return result;
    }
    *made = (struct pkn_reduction){ .references = 1, .dtype = dtype, .op = pk_op };
    pthread_mutex_lock(&comm->lock);
    made->next = comm->reductions;
    made->number = made->next != NULL ? made->next->number + 1 : PKN_OPS;
    comm->reductions = made;
    pthread_mutex_unlock(&comm->lock);
    *op = (pkn_op_t)made->number;
    return PKN_SUCCESS;
}

pkn_result_t pncclRedOpCreatePreMulSum(pkn_op_t *op, void *scalar, pkn_dtype_t dtype, pkn_residence_t residence, pkn_comm_t comm)
{
    pkn_result_t result;

    if (op == NULL || scalar == NULL)
        return pkn_fail(PKN_INVALID_ARGUMENT, "%s is NULL", op == NULL ? "op" : "scalar");
    if (residence != PKN_SCALAR_DEVICE && residence != PKN_SCALAR_HOST)
        return pkn_fail(PKN_INVALID_ARGUMENT, "the residence of the scalar is %d", (int)residence);
    result = pkn_comm_use(comm);
    if (result != PKN_SUCCESS)
        return result;
    result = create(comm, scalar, dtype, residence, op);
    pkn_comm_release(comm);
    return result;
}
PKN_TWIN(RedOpCreatePreMulSum);

pkn_result_t pncclRedOpDestroy(pkn_op_t op, pkn_comm_t comm)
{
    struct pkn_reduction **at, *found;
    pkn_result_t result;

    if ((int)op < PKN_OPS)
        return pkn_fail(PKN_INVALID_ARGUMENT, "operator %d is NCCL's own and cannot be destroyed", (int)op);
    result = pkn_comm_hold(comm);
    if (result != PKN_SUCCESS)
        return result;
    pthread_mutex_lock(&comm->lock);
    at = find(comm, op);
    found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&comm->lock);
    if (found == NULL)
        result = pkn_fail(PKN_INVALID_ARGUMENT, "the communicator has no operator %d", (int)op);
    pkn_reduction_release(comm, found);
    pkn_comm_release(comm);
    return result;
}
PKN_TWIN(RedOpDestroy);
