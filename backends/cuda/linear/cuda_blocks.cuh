/* cuda_blocks.cuh - how weights in the blocks of GGUF files lie on the device (spec_blocks.h: their values; Q8_0: cuda_q8.cuh).
 *
 * Strips of 16 outputs, cut into pieces of 64 inputs, as those of Q8_0, and for the same lanes: lane (g = lane / 4, t = lane % 4) of a
 * warp takes of rows g and g + 8, and of each of the two groups of 32 inputs, the values 8t .. 8t + 7. A piece is
 *   low     [lane] four words of eight low fours each: row g, both groups; row g + 8, both groups
 *   high    [lane] the bits above, of such eight in a byte, or in two bytes
 *   scales  [g] blocks of 32: d [row / 8][group], and if there is one m likewise; of 256: bytes f [row / 8][group], or of Q6_K
 *           [row / 8][group][half], and if there is an m fm likewise
 * and in front of the four pieces of blocks of 256 stands a head, [g] d [row / 8], and if there is one m likewise. Outputs and inputs
 * beyond the matrix, up to a whole strip and piece, are zero.
 *
 * A value is rounded to the compute type, whose products then have the bits of plain weights. */
#ifndef SPEC_CUDA_BLOCKS_CUH
#define SPEC_CUDA_BLOCKS_CUH

#include <type_traits>

#include "backends/cuda/linear/cuda_q8.cuh"

/* What a type of blocks is. */
template <spec_dtype D> struct blocks;
template <> struct blocks<SPEC_DTYPE_Q4_0> {
    typedef spec_q4_0_block type;
    enum { LARGE = 0, HIGH = 0, M = 0, MIDDLE = 8 };
    static __device__ int number(const type &b, int i) { return spec_q4_number(b.qs, i); }
    static __device__ uint16_t m(const type &) { return 0; }
    static __device__ void factors(const type &, int, int *, int *) {}
};
template <> struct blocks<SPEC_DTYPE_Q4_1> {
    typedef spec_q4_1_block type;
    enum { LARGE = 0, HIGH = 0, M = 1, MIDDLE = 0 };
    static __device__ int number(const type &b, int i) { return spec_q4_number(b.qs, i); }
    static __device__ uint16_t m(const type &b) { return b.m; }
    static __device__ void factors(const type &, int, int *, int *) {}
};
template <> struct blocks<SPEC_DTYPE_Q5_0> {
    typedef spec_q5_0_block type;
    enum { LARGE = 0, HIGH = 1, M = 0, MIDDLE = 16 };
    static __device__ int number(const type &b, int i) { return spec_q5_number(b.qh, b.qs, i); }
    static __device__ uint16_t m(const type &) { return 0; }
    static __device__ void factors(const type &, int, int *, int *) {}
};
template <> struct blocks<SPEC_DTYPE_Q5_1> {
    typedef spec_q5_1_block type;
    enum { LARGE = 0, HIGH = 1, M = 1, MIDDLE = 0 };
    static __device__ int number(const type &b, int i) { return spec_q5_number(b.qh, b.qs, i); }
    static __device__ uint16_t m(const type &b) { return b.m; }
    static __device__ void factors(const type &, int, int *, int *) {}
};
template <> struct blocks<SPEC_DTYPE_Q4_K> {
    typedef spec_q4_k_block type;
    enum { LARGE = 1, HIGH = 0, M = 1, MIDDLE = 0 };
    static __device__ int number(const type &b, int i) { return spec_q4_k_number(b.qs, i); }
    static __device__ uint16_t m(const type &b) { return b.dmin; }
    static __device__ void factors(const type &b, int i, int *f, int *fm) { spec_k_scale(b.scales, i / 32, f, fm); }
};
template <> struct blocks<SPEC_DTYPE_Q5_K> {
    typedef spec_q5_k_block type;
    enum { LARGE = 1, HIGH = 1, M = 1, MIDDLE = 0 };
    static __device__ int number(const type &b, int i) { return spec_q5_k_number(b.qh, b.qs, i); }
    static __device__ uint16_t m(const type &b) { return b.dmin; }
    static __device__ void factors(const type &b, int i, int *f, int *fm) { spec_k_scale(b.scales, i / 32, f, fm); }
};
template <> struct blocks<SPEC_DTYPE_Q6_K> {
    typedef spec_q6_k_block type;
    enum { LARGE = 1, HIGH = 2, M = 0, MIDDLE = 32 };
    static __device__ int number(const type &b, int i) { return spec_q6_k_number(&b, i); }
    static __device__ uint16_t m(const type &) { return 0; }
    static __device__ void factors(const type &b, int i, int *f, int *) { *f = b.scales[i / 16]; }
};

/* Where the parts of pieces are, in bytes. */
template <spec_dtype D> struct blocks_layout {
    typedef blocks<D> B;
    enum {
        VALUES = B::LARGE ? SPEC_K_BLOCK : SPEC_SMALL_BLOCK, /* of a block */
        LANE_HIGH = 4 * B::HIGH,                             /* of a lane */
        G_SCALES = !B::LARGE && B::M ? 16 : 8,               /* of a g */
        G_HEAD = B::LARGE ? 4 * (1 + B::M) : 0,
        HIGH_AT = 32 * 16,
        SCALES_AT = HIGH_AT + 32 * LANE_HIGH,
        PIECE = SCALES_AT + 8 * G_SCALES,
        HEAD = 8 * G_HEAD,
        GROUP = B::LARGE ? 4 : 1 /* pieces behind a head */
    };
    static __host__ __device__ int n_piece(const q8_shape &s) { return (s.n_in + Q8_PIECE - 1) / Q8_PIECE; }
    static __host__ __device__ size_t strip_bytes(const q8_shape &s)
    {
        return (size_t)n_piece(s) * PIECE + (size_t)(n_piece(s) / GROUP) * HEAD;
    }
    /* From a strip's begin to a piece, and to its head. */
    static __host__ __device__ uint32_t piece_at(int piece)
    {
        return (uint32_t)piece * PIECE + ((uint32_t)piece / GROUP + 1) * HEAD;
    }
    static __host__ __device__ uint32_t head_at(int piece) { return (uint32_t)piece / GROUP * (GROUP * PIECE + HEAD); }
};

/* Byte i of a word as a float: behind the exponent of 2^23 it counts one. Conversions of integers are slow. */
static __device__ __forceinline__ float blocks_byte(uint32_t four, int i)
{
    return __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7650 + i)) - 8388608.0f;
}

/* d, of float16, times byte i of a word: exact, and one operation fewer, since what is taken off is the same for all of its bytes. */
static __device__ __forceinline__ float blocks_times_byte(float d, uint32_t four, int i)
{
    return fmaf(d, __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7650 + i)), -8388608.0f * d);
}

/* What the values of a row's group are made with: value = scale * (q - middle), or scale * q + add, of which these are float32: a
 * number is 2^-24 or, at odd places, 2^-20 of what it says (blocks_numbers). */
struct blocks_scale {
    float scale[2], add;
};

/* ... of row / 8 `upper` and group `group` of a piece, values from half on, given a g's scales and its head. */
template <spec_dtype D>
static __device__ __forceinline__ blocks_scale blocks_scale_of(const uint32_t *scales, const uint32_t *head, int upper, int group, int half)
{
    typedef blocks<D> B;
    auto f16_of = [](uint32_t pair, int i) { return __half2float(__ushort_as_half((unsigned short)(pair >> 16 * i))); };
    const float unit = 16777216.0f; /* 2^24 */
    blocks_scale r;
    if constexpr (!B::LARGE) r.scale[0] = unit * f16_of(scales[upper], group);
    else if constexpr (B::M) r.scale[0] = blocks_times_byte(unit * f16_of(head[0], upper), scales[0], 2 * upper + group);
    else r.scale[0] = unit * f16_of(head[0], upper) * (blocks_byte(scales[upper] ^ 0x80808080u, 2 * group + half) - 128.0f); /* int8 */
    r.scale[1] = r.scale[0] * (1.0f / 16);
    if constexpr (!B::M) r.add = r.scale[0] * (-B::MIDDLE / unit);
    else if constexpr (!B::LARGE) r.add = f16_of(scales[2 + upper], group);
    else r.add = blocks_times_byte(-f16_of(head[1], upper), scales[1], 2 * upper + group);
    return r;
}

/* The numbers of eight values: of[i] has those of values i and i + 4. `low` has their low fours, `high` what is above, beyond which
 * there may be more. Numbers at the low end of a float16 are subnormal ones, 2^-24 each, or 2^-20 where they lie four bits higher. */
template <spec_dtype D> struct blocks_numbers {
    typedef blocks<D> B;
    uint32_t of[4];

    __device__ __forceinline__ blocks_numbers(uint32_t low, uint32_t high)
    {
        high &= (1u << 8 * B::HIGH) - 1;
        const uint32_t halves = high | high << (16 - 4 * B::HIGH); /* what is above of values 4 to 7 in the upper half */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = 4 * (i % 2); /* in a half, of the four; what is above goes to where they end */
            of[i] = low >> 8 * (i / 2) & 0x000f000fu << at;
            if constexpr (B::HIGH > 0) of[i] |= halves << (at + 4 - B::HIGH * i) & ((1u << B::HIGH) - 1) * 0x00010001u << (at + 4);
        }
    }
    /* Value i, a constant. One rounding, whatever the middle: it is a multiple of the scale. */
    __device__ __forceinline__ float value(int i, const blocks_scale &s) const
    {
        const __half2 pair = *(const __half2 *)&of[i % 4];
        return fmaf(s.scale[i % 2], i < 4 ? __low2float(pair) : __high2float(pair), s.add);
    }
};

/* N values of row r of a strip from input k on, N 4 or 8, k a multiple of it, all in float32. */
template <spec_dtype D, int N>
static __device__ __forceinline__ void blocks_values_of(float v[N], const char *strip, int r, int k)
{
    typedef blocks_layout<D> L;
    const int piece = k / Q8_PIECE, group = k / 32 % 2, g = r % 8, upper = r / 8;
    const char *const at = strip + L::piece_at(piece);
    const int lane = g * 4 + k / 8 % 4, word = 2 * upper + group, first = k % 8;
    const uint32_t low = ((const uint32_t *)at)[lane * 4 + word] >> 4 * first;
    uint32_t high = 0;
    if (L::B::HIGH == 1) high = ((const uint8_t *)(at + L::HIGH_AT))[lane * 4 + word];
    if (L::B::HIGH == 2) high = ((const uint16_t *)(at + L::HIGH_AT))[lane * 4 + word];
    high >>= L::B::HIGH * first;
    const blocks_numbers<D> numbers(low, high);
    const blocks_scale scale = blocks_scale_of<D>((const uint32_t *)(at + L::SCALES_AT + g * L::G_SCALES),
                                                  (const uint32_t *)(strip + L::head_at(piece) + g * L::G_HEAD), upper, group, k / 16 % 2);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = numbers.value(i, scale);
}
/* ... of a row of the matrix `w`. */
template <spec_dtype D, int N>
static __device__ __forceinline__ void blocks_values(float v[N], const char *w, const q8_shape &s, int row, int k)
{
    blocks_values_of<D, N>(v, w + (size_t)s.strip(row) * blocks_layout<D>::strip_bytes(s), s.lane_row(row), k);
}

/* Eight values of a lane as T, in their order. */
template <spec_dtype D, typename T>
static __device__ __forceinline__ uint4 blocks_eight(uint32_t low, uint32_t high, const blocks_scale &s)
{
    const blocks_numbers<D> numbers(low, high);
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = pack2<T>(numbers.value(2 * i, s), numbers.value(2 * i + 1, s));
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Calls f with the type of blocks as a constant: f(std::integral_constant<spec_dtype, D>()). Types that have no layout here: not f. */
template <typename F> static inline spec_status blocks_by_type(spec_dtype d, F f)
{
    switch (d) {
    case SPEC_DTYPE_Q4_0: return f(std::integral_constant<spec_dtype, SPEC_DTYPE_Q4_0>());
    case SPEC_DTYPE_Q4_1: return f(std::integral_constant<spec_dtype, SPEC_DTYPE_Q4_1>());
    case SPEC_DTYPE_Q5_0: return f(std::integral_constant<spec_dtype, SPEC_DTYPE_Q5_0>());
    case SPEC_DTYPE_Q5_1: return f(std::integral_constant<spec_dtype, SPEC_DTYPE_Q5_1>());
    case SPEC_DTYPE_Q4_K: return f(std::integral_constant<spec_dtype, SPEC_DTYPE_Q4_K>());
    case SPEC_DTYPE_Q5_K: return f(std::integral_constant<spec_dtype, SPEC_DTYPE_Q5_K>());
    case SPEC_DTYPE_Q6_K: return f(std::integral_constant<spec_dtype, SPEC_DTYPE_Q6_K>());
    default: return SPEC_E_INVALID;
    }
}

#endif
