/* cuda_linear_many_blocks.cu - products of many rows (cuda_linear_many.cuh) with weights in the blocks of GGUF files
 * (cuda_blocks.cuh).
 *
 * A weight becomes bf16 in registers, once for all rows, and is summed as a plain one, so that the bits are those of plain weights. */
#include "backends/cuda/linear/cuda_blocks.cuh"
#include "backends/cuda/linear/cuda_linear_many.cuh"

template <spec_dtype D> struct many_blocks_of {
    typedef __nv_bfloat16 type;
    static constexpr bool finds_best = false;
    typedef blocks_layout<D> L;
    /* Of a row, in uint4: [lanes] 8 bytes of low fours, then 4 of what is above, the scales and the head as far as there are such. */
    enum {
        HIGH = 32 * 8 / 16, SCALES = HIGH + (L::LANE_HIGH > 0 ? 32 * 4 / 16 : 0), HEAD = SCALES + 32 * L::G_SCALES / 16,
        ROW = HEAD + 32 * L::G_HEAD / 16, STEP = 2 * ROW
    };

    /* A lane copies its values of a piece's rows and, as do the other lanes of a row, its scales and its head. */
    struct reader {
        const char *strip[2];
        int lane, piece, last, r[2]; /* piece: the next; r: rows within their strips */
        uint64_t policy;

        __device__ __forceinline__ reader(const void *w, int, int n_in, const linear_out &o, int m, int k0, int lane_)
            : lane(lane_), piece(k0 / Q8_PIECE), policy(read_once())
        {
            const q8_shape shape = { o.n_out, n_in, o.glu };
            last = L::n_piece(shape) - 1;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = m + i * (o.glu ? o.n_out / 2 : 1);
                r[i] = shape.lane_row(row), strip[i] = (const char *)w + (size_t)shape.strip(row) * L::strip_bytes(shape);
            }
        }
        __device__ __forceinline__ void copy(uint4 *ring, const bool has[2])
        {
            const int number = min(piece++, last); /* behind the last x is zero, whatever it meets */
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (!has[i]) continue;
                uint4 *const to = ring + i * ROW;
                const char *const from = strip[i] + L::piece_at(number), *const head = strip[i] + L::head_at(number);
                const int upper = r[i] / 8, g = r[i] % 8, whose = g * 4 + lane % 4;
                copy8((uint2 *)to + lane, from + whose * 16 + upper * 8);
                if constexpr (L::LANE_HIGH == 4) copy4((uint32_t *)(to + HIGH) + lane, from + L::HIGH_AT + whose * 4);
                if constexpr (L::LANE_HIGH == 8) copy4((uint32_t *)(to + HIGH) + lane, from + L::HIGH_AT + whose * 8 + upper * 4);
                const char *const scales = from + L::SCALES_AT + g * L::G_SCALES;
                if constexpr (L::G_SCALES == 16) copy16(to + SCALES + lane, scales, policy);
                else copy8((uint2 *)(to + SCALES) + lane, scales);
                if constexpr (L::G_HEAD == 8) copy8((uint2 *)(to + HEAD) + lane, head + g * 8);
                if constexpr (L::G_HEAD == 4) copy4((uint32_t *)(to + HEAD) + lane, head + g * 4);
            }
        }
        template <int N, int LENGTH, typename F>
        __device__ __forceinline__ void multiply(float acc[N / 2], const uint4 *ring, const uint4 *slabs, F meanwhile) const
        {
            static_assert(N <= SLAB_ROWS, "a slab is half a step");
#pragma unroll
            for (int s = 0; s < LENGTH; s++) {
                uint4 wide[2][2]; /* [group][row] */
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint4 *const at = ring + s * STEP + i * ROW;
                    const uint32_t *const scales = (const uint32_t *)(at + SCALES) + lane * (L::G_SCALES / 4);
                    const uint32_t *const head = (const uint32_t *)(at + HEAD) + lane * (L::G_HEAD / 4);
                    const uint2 low = ((const uint2 *)at)[lane];
                    const int upper = r[i] / 8;
                    uint32_t high = 0;
                    if constexpr (L::LANE_HIGH > 0) high = ((const uint32_t *)(at + HIGH))[lane];
                    if constexpr (L::LANE_HIGH == 4) high >>= 16 * upper;
#pragma unroll
                    for (int group = 0; group < 2; group++)
                        wide[group][i] = blocks_eight<D, type>(group == 0 ? low.x : low.y, high >> 8 * L::B::HIGH * group,
                                                               blocks_scale_of<D>(scales, head, upper, group, lane % 4 / 2));
                }
                wgmma_begin();
#pragma unroll
                for (int group = 0; group < 2; group++)
                    wgmma_chunk<type, N, SLAB_ROWS>(acc, wide[group][0], wide[group][1], slabs + (2 * s + group) * (SLAB / 2));
                wgmma_end();
            }
            meanwhile();
            wgmma_wait<0>(*(float(*)[N / 2])acc);
        }
    };

    template <linear_more MORE> static auto ways()
    {
        constexpr int DEPTH = STEP > 96 ? 3 : 4; /* what shared memory holds */
        return std::array{ make_way<many_blocks_of, MORE, many_form<1, 2, 64, DEPTH, 4, 2, 1, 4>>(),
                           make_way<many_blocks_of, MORE, many_form<1, 2, 64, DEPTH, 4, 2, 1, 2>>(),
                           make_way<many_blocks_of, MORE, many_form<3, 1, 64, 3, 4, 2, 1, 4>>() };
    }
};

spec_status speci_cuda_linear_many_blocks(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass)
{
    return blocks_by_type(a->w->format->dtype,
                          [&](auto d) { return linear_many<many_blocks_of<decltype(d)::value>>(q, a, o, aligned, pass); });
}
