/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions that the program makes. */
#include <string.h>

#include "api/api.h"
#include "util/dtype.h"

static pk_result_t read_factor(pk_comm_t *comm, pk_dtype_t dtype, const void *scalar, bool is_device, struct pki_factor *factor)
{
    *factor = (struct pki_factor){ .at = is_device ? scalar : NULL };
    if (is_device)
        return pki_engine_check_factor(comm->engine, scalar, dtype);
    memcpy(&factor->value, scalar, pki_dtype_bytes(dtype));
    return PK_OK;
}

pk_result_t pk_op_create_premul(pk_comm_t *comm, pk_dtype_t dtype, const void *scalar, int scalar_is_device, pk_op_t *op)
{
    const int cancel = pki_cancel_hold();
    struct pki_where call = PKI_CALL("op_create_premul");
    struct pki_factor factor;
    pk_result_t result = pki_check_comm(comm, &call);

    if (result == PK_OK)
        result = pki_check_dtype(dtype, &call);
    if (result == PK_OK && (scalar == NULL || op == NULL))
        result = pki_fail(PK_ERR_ARG, &call, "%s is null", scalar == NULL ? "scalar" : "op");
    if (result == PK_OK)
        result = read_factor(comm, dtype, scalar, scalar_is_device != 0, &factor);
    if (result == PK_OK)
        result = pki_op_make(&comm->made_ops, dtype, &factor, op);
    return pki_leave(cancel, result);
}

pk_result_t pk_op_destroy(pk_comm_t *comm, pk_op_t op)
{
    const struct pki_where call = PKI_CALL("op_destroy");
    struct pki_made_op *made;
    pk_result_t result = pki_check_own(comm, &call);

    if (result != PK_OK)
        return result;
    made = pki_op_find(&comm->made_ops, op);
    if (made == NULL)
        return pki_fail(PK_ERR_ARG, &call, "op is %llu: not one that this communicator has made", (unsigned long long)op);
    pki_op_forget(made);
    return PK_OK;
}
