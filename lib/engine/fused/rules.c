/* SPDX-License-Identifier: Apache-2.0 */
/* Fused collectives: which operations are, by which kernel, in how many CTAs. All ranks have to decide alike. Measured:
 * docs/design/0009. */
#include "engine/fused/fused.h"
#include "util/dtype.h"

/* What the kernels of pairs, relays and rings in host memory have code for. */
static bool is_common(pk_dtype_t dtype, pk_op_t op)
{
    return (op == PK_SUM || op == PK_AVG) && (dtype == PK_F32 || dtype == PK_F16 || dtype == PK_BF16);
}

/* What goes by a kernel. All blocks of a rooted collective cross the root's links, which a plan for more than two ranks can spare
 * them. */
static size_t max_bytes(const struct pki_engine *e, enum pki_coll coll)
{
    const struct pki_tuning_fused *t = &e->config.agreed->fused;
    const size_t size = (size_t)e->config.size;

    if (e->fused.host.used)
        return t->always_bytes;
    switch (coll) {
    case PKI_COLL_ALLREDUCE:
        return t->always_bytes;
    case PKI_COLL_REDUCE:
        return t->two_shot_bytes;
    case PKI_COLL_REDUCE_SCATTER:
        return t->always_bytes / size;
    case PKI_COLL_BROADCAST:
        return t->rooted_bytes / (size - 1);
    default:
        return t->push_bytes;
    }
}

static bool exchanges(enum pki_coll coll)
{
    return !pki_coll_shape(coll)->reduces;
}

/* Most that goes in cells between two. More than PKI_FUSED_BYTES only where it was measured to be faster: allreduce, with all the
 * CTAs that write it. */
static size_t pair_bytes(const struct pki_engine *e, enum pki_coll coll)
{
    return coll == PKI_COLL_ALLREDUCE && e->config.fused_ctas == PKI_FUSED_CTAS ? PKI_FUSED_PAIR_BYTES : PKI_FUSED_BYTES;
}

/* By way of inboxes in host memory: what is not short goes through rings, sums in one shot where two would move as many
 * bytes. */
static enum pki_fused_kernel kernel_through_host(const struct pki_engine *e, enum pki_coll coll, size_t bytes, pk_dtype_t dtype,
                                                 pk_op_t op)
{
    const struct pki_tuning_fused *t = &e->config.agreed->fused;
    bool in_cells = bytes <= t->host_cells_bytes && bytes <= pair_bytes(e, coll);
    bool one_shot = coll != PKI_COLL_ALLREDUCE || e->config.size == 2;

    if (exchanges(coll))
        return !in_cells ? PKI_FUSED_PUSH : e->config.size == 2 ? PKI_FUSED_PAIR_EXCHANGE : PKI_FUSED_EXCHANGE;
    if (!is_common(dtype, op))
        return PKI_FUSED_FOLD;
    if (one_shot && !in_cells)
        return PKI_FUSED_PUSH_SUM;
    if (e->config.size == 2)
        return PKI_FUSED_PAIR_SUM;
    if (one_shot || bytes * (size_t)(e->config.size - 1) <= t->host_cells_bytes)
        return PKI_FUSED_FOLD;
    return PKI_FUSED_TWOSHOT;
}

static enum pki_fused_kernel kernel_for(const struct pki_engine *e, enum pki_coll coll, size_t bytes, pk_dtype_t dtype,
                                        pk_op_t op)
{
    const struct pki_tuning_fused *t = &e->config.agreed->fused;
    size_t received = bytes * (size_t)(e->config.size - 1);

    if (e->fused.host.used)
        return kernel_through_host(e, coll, bytes, dtype, op);
    if (e->config.size == 2 && bytes <= pair_bytes(e, coll) && (exchanges(coll) || is_common(dtype, op)))
        return exchanges(coll) ? PKI_FUSED_PAIR_EXCHANGE : PKI_FUSED_PAIR_SUM;
    if (exchanges(coll))
        return bytes <= PKI_FUSED_BYTES ? PKI_FUSED_EXCHANGE : PKI_FUSED_PUSH;
    if (coll == PKI_COLL_ALLREDUCE && is_common(dtype, op) && (received > t->one_shot_bytes || bytes > t->one_shot_block_bytes))
        return bytes <= t->relay_bytes ? PKI_FUSED_RELAY : PKI_FUSED_TWOSHOT;
    return bytes <= PKI_FUSED_BYTES ? PKI_FUSED_FOLD : PKI_FUSED_TWOSHOT;
}

bool pki_engine_fuses(const struct pki_engine *e, enum pki_coll coll, size_t bytes, pk_dtype_t dtype, pk_op_t op)
{
    bool always = (e->config.fused_always >> coll & 1) != 0;

    if (!e->fused.on || e->config.size < 2 || bytes == 0 || pki_fused_algorithm(coll) == NULL)
        return false;
    if (bytes <= PKI_FUSED_BYTES)
        return true;
    /* Blocks one behind another that are not whole vectors are slow in rings. */
    if (bytes % 16 != 0 && (pki_coll_shape(coll)->in_many || pki_coll_shape(coll)->out_many))
        return false;
    if (e->fused.host.used && !exchanges(coll) && !is_common(dtype, op)) /* rings in host memory have no kernel for it */
        return false;
    return bytes <= (always ? e->config.agreed->fused.always_bytes : max_bytes(e, coll));
}

size_t pki_fused_bytes(const struct pki_request *r)
{
    return r->count * pki_dtype_bytes(r->dtype);
}

enum pki_fused_kernel pki_fused_kernel(const struct pki_engine *e, const struct pki_request *r)
{
    return kernel_for(e, r->algorithm->coll, pki_fused_bytes(r), r->dtype, r->op);
}

bool pki_fused_is_replayed(const struct pki_engine *e, const struct pki_request *r)
{
    if (e->fused.host.used) /* captures go from GPU to GPU */
        return false;
    switch (pki_fused_kernel(e, r)) {
    case PKI_FUSED_EXCHANGE:
    case PKI_FUSED_FOLD:
    case PKI_FUSED_PAIR_EXCHANGE:
    case PKI_FUSED_PAIR_SUM:
        return true;
    default:
        return false;
    }
}

/* Before the limit. */
static size_t wanted_ctas(const struct pki_engine *e, enum pki_coll coll, enum pki_fused_kernel kernel, size_t bytes)
{
    switch (kernel) {
    case PKI_FUSED_PUSH:
        return e->fused.host.used ? bytes / e->config.agreed->fused.host_bytes_a_cta : PKI_FUSED_CTAS;
    case PKI_FUSED_PUSH_SUM:
        return bytes / e->config.agreed->fused.host_bytes_a_cta;
    case PKI_FUSED_TWOSHOT:
        return bytes / (pki_coll_shape(coll)->in_many ? 1 : (size_t)e->config.size) / PKI_FUSED_PART_A_CTA;
    case PKI_FUSED_RELAY:
        return bytes / 8 / (size_t)e->config.size / PKI_FUSED_PAIRS_A_CTA;
    case PKI_FUSED_PAIR_EXCHANGE:
    case PKI_FUSED_PAIR_SUM:
        return ((bytes + 7) / 8 + PKI_FUSED_PAIRS_A_CTA_OF_TWO - 1) / PKI_FUSED_PAIRS_A_CTA_OF_TWO;
    default:
        return ((bytes + 7) / 8 + PKI_FUSED_PAIRS_A_CTA - 1) / PKI_FUSED_PAIRS_A_CTA;
    }
}

int pki_fused_ctas(const struct pki_engine *e, const struct pki_request *r)
{
    const struct pki_tuning_fused *t = &e->config.agreed->fused;
    size_t bytes = pki_fused_bytes(r), ctas = wanted_ctas(e, r->algorithm->coll, pki_fused_kernel(e, r), bytes);
    bool is_long = r->algorithm->coll == PKI_COLL_REDUCE_SCATTER && bytes >= t->scattered_long_bytes / (size_t)e->config.size;

    if (is_long && ctas > t->long_ctas)
        ctas = t->long_ctas;
    if (ctas > (size_t)e->config.fused_ctas)
        ctas = (size_t)e->config.fused_ctas;
    return ctas == 0 ? 1 : (int)ctas;
}

/* Pieces. */
uint32_t pki_fused_epochs(const struct pki_engine *e, const struct pki_request *r)
{
    size_t size = pki_coll_shape(r->algorithm->coll)->in_many ? 1 : (size_t)e->config.size, bytes = pki_fused_bytes(r), part;

    switch (pki_fused_kernel(e, r)) {
    case PKI_FUSED_RELAY:
        part = ((bytes + 7) / 8 + size - 1) / size;
        return (uint32_t)((part + PKI_FUSED_RELAY_PAIRS - 1) / PKI_FUSED_RELAY_PAIRS);
    case PKI_FUSED_TWOSHOT:
        part = (bytes + 16 * size - 1) / (16 * size) * 16;
        return (uint32_t)((part + PKI_FUSED_PIECE - 1) / PKI_FUSED_PIECE);
    default:
        return 1;
    }
}
