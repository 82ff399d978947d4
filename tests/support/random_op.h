/* SPDX-License-Identifier: Apache-2.0 */
/* An operation between buffers in any memory, for random programs: what each rank gives, the call, and what it gets. */
#ifndef RANDOM_OP_H
#define RANDOM_OP_H

#include "gpu_piece.h"

enum ending { BLOCKING, HOST_STREAM, CUDA_STREAM, ENDINGS };
enum operation { MESSAGE, EXCHANGE, BROADCAST, SUM_F32, SUM_U8, ALLGATHER, ALLTOALL, ALLGATHERV, ALLTOALLV, OPERATIONS };

/* What all ranks know of an operation, and where its memory lies on this one. */
struct random_op {
    enum operation kind;
    enum ending ending;
    int from, to; /* `from` is a root, too */
    size_t block; /* bytes */
    size_t lengths[RANKS_MAX];
    bool is_long, in_place;
    uint32_t key;
    const struct gpu_piece *in, *out;
    size_t in_at, out_at;
};

const char *random_op_name(const struct random_op *op);
/* Has it a block for each rank? Then buffers have one of `block` bytes for each, which the v-forms fill in part. */
bool random_op_has_blocks(const struct random_op *op);
/* Of a buffer. */
size_t random_op_bytes(const struct random_op *op, int size);
/* What a rank gives, from `at` on, which is 0 for floats. */
void random_op_give(const struct random_op *op, int rank, size_t at, char *to, size_t bytes);
/* What this rank gets; what nobody writes stays as it is there. */
void random_op_results(const struct random_op *op, const struct gpu_rank *self, char *to);
pk_result_t random_op_call(const struct random_op *op, const struct gpu_rank *self, pk_stream_t stream);

#endif
