/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan.h"

static const struct pki_shape shapes[PKI_COLL_END] = {
    [PKI_COLL_ALLGATHER] = { .name = "allgather", .out_many = true, .place = PKI_PLACE_IN_PART },
    [PKI_COLL_ALLREDUCE] = { .name = "allreduce", .reduces = true },
    [PKI_COLL_REDUCE_SCATTER] = { .name = "reduce_scatter", .in_many = true, .reduces = true, .place = PKI_PLACE_OUT_PART },
    [PKI_COLL_BROADCAST] = { .name = "broadcast", .rooted = true, .in_at_root = true },
    [PKI_COLL_REDUCE] = { .name = "reduce", .rooted = true, .out_at_root = true, .reduces = true },
    [PKI_COLL_ALLTOALL] = { .name = "alltoall", .in_many = true, .out_many = true },
    [PKI_COLL_GATHER] = { .name = "gather", .out_many = true, .rooted = true, .out_at_root = true, .place = PKI_PLACE_IN_PART },
    [PKI_COLL_SCATTER] = { .name = "scatter", .in_many = true, .rooted = true, .in_at_root = true, .place = PKI_PLACE_OUT_PART },
    [PKI_COLL_BARRIER] = { .name = "barrier" },
    [PKI_COLL_ALLGATHERV] = { .name = "allgatherv", .out_many = true, .counts = true, .place = PKI_PLACE_IN_PART },
    [PKI_COLL_ALLTOALLV] = { .name = "alltoallv", .in_many = true, .out_many = true, .counts = true },
    [PKI_COLL_GATHERV] = { .name = "gatherv",
                           .out_many = true,
                           .rooted = true,
                           .out_at_root = true,
                           .counts = true,
                           .place = PKI_PLACE_IN_PART },
    [PKI_COLL_SCATTERV] = { .name = "scatterv",
                            .in_many = true,
                            .rooted = true,
                            .in_at_root = true,
                            .counts = true,
                            .place = PKI_PLACE_OUT_PART },
};

const struct pki_shape *pki_coll_shape(unsigned coll)
{
    return coll < PKI_COLL_END && shapes[coll].name != NULL ? &shapes[coll] : NULL;
}
