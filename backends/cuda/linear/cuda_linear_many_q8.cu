/* cuda_linear_many_q8.cu - products of many rows (cuda_linear_many.cuh) with weights of Q8_0 (cuda_q8.cuh).
 *
 * int8 becomes bf16 or f16 in registers, and the sums of a block of 32 are added up times its scale, as for few rows
 * (cuda_linear_q8.cu), so that the bits are the same. */
#include "backends/cuda/linear/cuda_linear_many.cuh"
#include "backends/cuda/linear/cuda_q8.cuh"

template <typename T> struct many_q8 {
    typedef T type;
    static constexpr bool finds_best = true;
    enum { STEP = 2 * 32 + 16 }; /* [2 rows][lanes] of 16 bytes, then of 4 */

    /* A lane copies its values of a piece's rows and, as do the other lanes of a row, the scales of both blocks. */
    struct reader {
        const char *from[2], *scales[2];
        int lane;
        uint64_t policy;

        __device__ __forceinline__ reader(const void *w, int, int n_in, const linear_out &o, int m, int k0, int lane_)
            : lane(lane_), policy(read_once())
        {
            const q8_shape shape = { o.n_out, n_in, o.glu };
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = m + i * (o.glu ? o.n_out / 2 : 1), r = shape.lane_row(row);
                const q8_piece *const piece = (const q8_piece *)w + shape.piece(row, k0);
                from[i] = (const char *)q8_values(piece, r, lane % 4 * 8), scales[i] = (const char *)q8_scale(piece, r, 0);
            }
        }
        __device__ __forceinline__ void copy(uint4 *ring, const bool has[2])
        {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (has[i]) {
                    copy16(ring + i * 32 + lane, from[i], policy);
                    copy4((uint32_t *)(ring + 64) + i * 32 + lane, scales[i]);
                }
                from[i] += sizeof(q8_piece), scales[i] += sizeof(q8_piece);
            }
        }
        /* While the instruction makes the sums of a block, those of the block in front are added and the block behind becomes T. */
        template <int N, int LENGTH, typename F>
        __device__ __forceinline__ void multiply(float acc[N / 2], const uint4 *ring, const uint4 *slabs, F meanwhile) const
        {
            static_assert(N <= SLAB_ROWS, "a slab is half a step");
            constexpr int BLOCKS = 2 * LENGTH;
            float sum[2][N / 2];     /* [block % 2] */
            uint4 v[2], w[2][2];     /* of a row: two blocks; [block % 2][row] */
            float2 scale[LENGTH][2]; /* of a row: two blocks */
#pragma unroll
            for (int b = 0; b <= BLOCKS; b++) {
                if (b < BLOCKS) {
                    const uint4 *const at = ring + b / 2 * STEP;
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        if (b % 2 == 0) {
                            v[i] = at[i * 32 + lane];
                            scale[b / 2][i] = unpack2<__half>(((const uint32_t *)(at + 64))[i * 32 + lane]);
                        }
                        w[b % 2][i] = b % 2 == 0 ? widen8<T>(v[i].x, v[i].y) : widen8<T>(v[i].z, v[i].w);
                    }
                    wgmma_begin();
                    wgmma_chunk<T, N, SLAB_ROWS, true>(sum[b % 2], w[b % 2][0], w[b % 2][1], slabs + b * (SLAB / 2));
                    wgmma_end();
                }
                if (b == BLOCKS - 1) meanwhile();
                if (b == 0) continue;
                float(&made)[N / 2] = sum[(b - 1) % 2];
                if (b < BLOCKS) wgmma_wait<1>(made);
                else wgmma_wait<0>(made);
                const float2 *const of = scale[(b - 1) / 2];
#pragma unroll
                for (int e = 0; e < N / 2; e++)
                    acc[e] = fmaf(b % 2 == 1 ? of[e % 4 / 2].x : of[e % 4 / 2].y, made[e], acc[e]);
            }
        }
    };

    template <linear_more MORE> static auto ways()
    {
        return std::array{ make_way<many_q8, MORE, many_form<1, 2, 64, 4, 4, 2, 1, 4>>(),
                           make_way<many_q8, MORE, many_form<1, 2, 64, 4, 4, 2, 1, 2>>(),
                           make_way<many_q8, MORE, many_form<3, 1, 64, 3, 4, 2, 1, 4>>(),
                           make_way<many_q8, MORE, many_form<3, 1, 32, 3, 4, 2, 1, 4>>(),
                           make_way<many_q8, MORE, many_form<1, 4, 32, 2, 2, 2, 1, 4>>(),
                           make_way<many_q8, MORE, many_form<2, 1, 32, 2, 3, 2, 2, 4>>() };
    }
};

spec_status speci_cuda_linear_many_q8(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass)
{
    return a->w->dtype == SPEC_DTYPE_F16 ? linear_many<many_q8<__half>>(q, a, o, aligned, pass)
                                         : linear_many<many_q8<__nv_bfloat16>>(q, a, o, aligned, pass);
}
