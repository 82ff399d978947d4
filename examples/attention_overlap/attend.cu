// SPDX-License-Identifier: Apache-2.0
// Attention without ever storing the scores: a warp holds 16 queries and their output in registers, a block's four warps go through the keys
// together, 64 at a time from shared memory, with a running maximum and sum. Products by the tensor cores, bf16 in, f32 out.
#include "attend.h"

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace
{

constexpr int WARPS = 4, QUERIES = 16 * WARPS, KEYS = 64, PAD = 8; // PAD: rows of shared memory begin in different banks
constexpr float LOG2_E = 1.44269504f;

struct arguments {
    const __nv_bfloat16 *queries, *keys, *values;
    __nv_bfloat16 *output;
    int query_count, key_count, heads;
    long long query_strides[3], key_strides[3]; // of a batch, a head, a token
    float scale;
};

__device__ unsigned pair(float low, float high)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);

    return *reinterpret_cast<unsigned *>(&both);
}

// c += a b; a: 16 x 16, b: 16 x 8
__device__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 blocks, turned round.
__device__ void load_turned(unsigned (&to)[4], const __nv_bfloat16 *row)
{
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));

    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

template <int WIDTH>
__device__ void load_tile(__nv_bfloat16 (*tile)[WIDTH + PAD], const __nv_bfloat16 *from, long long stride, int first, int count)
{
    constexpr int VECTORS = WIDTH / 8;

    for (int i = threadIdx.x; i < KEYS * VECTORS; i += 32 * WARPS) {
        int key = i / VECTORS, at = i % VECTORS * 8;
        uint4 value = make_uint4(0, 0, 0, 0);

        if (first + key < count)
            value = *reinterpret_cast<const uint4 *>(from + (first + key) * stride + at);
        *reinterpret_cast<uint4 *>(&tile[key][at]) = value;
    }
}

// Of the lane's two rows: the maximum so far, the sum of weights so far.
struct rows {
    float highest[2], total[2];
};

// Scores to weights, and what the output so far must be multiplied by.
__device__ void weigh(float (&scores)[KEYS / 8][4], rows &r, float (&factor)[2])
{
    for (int half = 0; half < 2; half++) {
        float highest = r.highest[half], sum = 0;

        for (int n = 0; n < KEYS / 8; n++)
            highest = fmaxf(highest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
        for (int n = 0; n < KEYS / 8; n++)
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                scores[n][i] = exp2f(scores[n][i] - highest);
                sum += scores[n][i];
            }
        factor[half] = exp2f(r.highest[half] - highest);
        r.highest[half] = highest;
        r.total[half] = r.total[half] * factor[half] + sum;
    }
}

template <int WIDTH>
__device__ void load_queries(unsigned (&fragments)[WIDTH / 16][4], const __nv_bfloat16 *queries, long long stride, int row,
                             int count)
{
    int column = threadIdx.x % 4 * 2;

    for (int k = 0; k < WIDTH / 16; k++)
        for (int i = 0; i < 4; i++) {
            int here = row + i % 2 * 8;

            fragments[k][i] =
                here < count ? *reinterpret_cast<const unsigned *>(queries + here * stride + k * 16 + i / 2 * 8 + column) : 0;
        }
}

template <int WIDTH> __global__ void __launch_bounds__(32 * WARPS) attend(const arguments a)
{
    __shared__ __align__(16) __nv_bfloat16 keys[KEYS][WIDTH + PAD], values[KEYS][WIDTH + PAD];
    int lane = threadIdx.x % 32, group = lane / 4, column = lane % 4 * 2;
    int row = blockIdx.x * QUERIES + threadIdx.x / 32 * 16 + group;
    long long batch = blockIdx.y / a.heads, head = blockIdx.y % a.heads;
    long long query_offset = batch * a.query_strides[0] + head * a.query_strides[1];
    long long key_offset = batch * a.key_strides[0] + head * a.key_strides[1];
    unsigned query[WIDTH / 16][4];
    float output[WIDTH / 8][4] = {};
    rows r = { { -INFINITY, -INFINITY }, { 0, 0 } };

    load_queries<WIDTH>(query, a.queries + query_offset, a.query_strides[2], row, a.query_count);
    for (int first = 0; first < a.key_count; first += KEYS) {
        float scores[KEYS / 8][4] = {}, factor[2];

        __syncthreads();
        load_tile<WIDTH>(keys, a.keys + key_offset, a.key_strides[2], first, a.key_count);
        load_tile<WIDTH>(values, a.values + key_offset, a.key_strides[2], first, a.key_count);
        __syncthreads();
        for (int n = 0; n < KEYS / 8; n++) {
            for (int k = 0; k < WIDTH / 16; k++) {
                const __nv_bfloat16 *at = &keys[n * 8 + group][k * 16 + column];

                multiply(scores[n], query[k], *reinterpret_cast<const unsigned *>(at),
                         *reinterpret_cast<const unsigned *>(at + 8));
            }
            for (int i = 0; i < 4; i++)
                scores[n][i] = first + n * 8 + column + i % 2 < a.key_count ? scores[n][i] * a.scale * LOG2_E : -INFINITY;
        }
        weigh(scores, r, factor);
        for (int n = 0; n < WIDTH / 8; n++)
            for (int i = 0; i < 4; i++)
                output[n][i] *= factor[i / 2];
        for (int k = 0; k < KEYS / 16; k++) {
            const unsigned weights[4] = { pair(scores[2 * k][0], scores[2 * k][1]), pair(scores[2 * k][2], scores[2 * k][3]),
                                          pair(scores[2 * k + 1][0], scores[2 * k + 1][1]),
                                          pair(scores[2 * k + 1][2], scores[2 * k + 1][3]) };

            for (int n = 0; n < WIDTH / 8; n += 2) {
                unsigned b[4];

                load_turned(b, &values[k * 16 + lane % 16][n * 8 + lane / 16 * 8]);
                multiply(output[n], weights, b[0], b[1]);
                multiply(output[n + 1], weights, b[2], b[3]);
            }
        }
    }
    for (int half = 0; half < 2; half++) {
        float total = r.total[half];
        int here = row + half * 8;

        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        for (int n = 0; here < a.query_count && n < WIDTH / 8; n++)
            *reinterpret_cast<unsigned *>(a.output + query_offset + here * a.query_strides[2] + n * 8 + column) =
                pair(output[n][2 * half] / total, output[n][2 * half + 1] / total);
    }
}

} // namespace

extern "C" int attend_launch(const sdpa_shape *s, const void *queries, const void *keys, const void *values, void *output,
                             void *stream)
{
    arguments a = { static_cast<const __nv_bfloat16 *>(queries),
                    static_cast<const __nv_bfloat16 *>(keys),
                    static_cast<const __nv_bfloat16 *>(values),
                    static_cast<__nv_bfloat16 *>(output),
                    static_cast<int>(s->queries),
                    static_cast<int>(s->keys),
                    static_cast<int>(s->heads),
                    {},
                    {},
                    s->scale };
    dim3 blocks(static_cast<unsigned>((s->queries + QUERIES - 1) / QUERIES), static_cast<unsigned>(s->batch * s->heads));

    for (int i = 0; i < 3; i++) {
        a.query_strides[i] = s->query_strides[i];
        a.key_strides[i] = s->key_strides[i];
    }
    if (s->width == 128)
        attend<128><<<blocks, 32 * WARPS, 0, static_cast<cudaStream_t>(stream)>>>(a);
    else if (s->width == 64)
        attend<64><<<blocks, 32 * WARPS, 0, static_cast<cudaStream_t>(stream)>>>(a);
    else
        return -1;
    return cudaGetLastError();
}
