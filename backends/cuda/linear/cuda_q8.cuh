/* cuda_q8.cuh - how weights of Q8_0 lie on the device.
 *
 * Strips of 16 outputs (with glu a strip of gates, then the strip of their ups, and so on), each cut into pieces of 64
 * inputs, two blocks, one after the other. A piece is what a warp multiplies: its lane (g = lane / 4, t = lane % 4)
 * takes of the rows g and g + 8, and of either block, the values 8t .. 8t + 7. Outputs and inputs beyond the matrix, up to
 * a whole strip and CUDA_CHUNK inputs, are zero. */
#ifndef SPEC_CUDA_Q8_CUH
#define SPEC_CUDA_Q8_CUH

#include "backends/cuda/cuda.cuh"

enum { Q8_STRIP = 16, Q8_PIECE = 64 };

struct q8_piece {
    int8_t q[2][32][2][8]; /* [row / 8][lane][block][value] */
    uint16_t scale[8][2][2]; /* f16 [row % 8][row / 8][block] */
};

/* Where rows are; counts are of the matrix. */
struct q8_shape {
    int n_out, n_in, glu;

    __host__ __device__ int n_strip() const
    {
        const int n = glu ? n_out / 2 : n_out, strips = (n + Q8_STRIP - 1) / Q8_STRIP;
        return glu ? 2 * strips : strips;
    }
    __host__ __device__ int n_piece() const { return (n_in + CUDA_CHUNK - 1) / CUDA_CHUNK * (CUDA_CHUNK / Q8_PIECE); }
    __host__ __device__ int strip(int row) const
    {
        const int half = n_out / 2;
        return glu ? row % half / Q8_STRIP * 2 + row / half : row / Q8_STRIP;
    }
    /* of a row within its strip */
    __host__ __device__ int lane_row(int row) const { return (glu ? row % (n_out / 2) : row) % Q8_STRIP; }
    /* The piece that holds inputs k .. of a row. */
    __host__ __device__ size_t piece(int row, int k) const { return (size_t)strip(row) * n_piece() + k / Q8_PIECE; }
};

static inline q8_shape q8_shape_of(const spec_weight *w)
{
    q8_shape s;
    s.n_out = w->n_out, s.n_in = w->n_in, s.glu = w->glu;
    return s;
}

/* 8 values from k on, a multiple of 8, of row `r` of a strip; and their scale. P: q8_piece, const or not. */
template <typename P> static __device__ __forceinline__ auto *q8_values(P *p, int r, int k)
{
    return p->q[r / 8][r % 8 * 4 + k / 8 % 4][k / SPEC_Q8_BLOCK % 2];
}
template <typename P> static __device__ __forceinline__ auto *q8_scale(P *p, int r, int k)
{
    return &p->scale[r % 8][r / 8][k / SPEC_Q8_BLOCK % 2];
}
static __device__ __forceinline__ float q8_scale_value(const q8_piece *p, int r, int k)
{
    return __half2float(__ushort_as_half(*q8_scale(p, r, k)));
}

/* Of a row that is unpacked. */
template <typename T> struct alignas(16) eight {
    T v[8];
};

/* Four int8 as two words of two T. */
template <typename T> static __device__ __forceinline__ void widen4(uint32_t out[2], uint32_t q);
/* In bf16 0x4300 + m is 128 + m for m < 128, and 0x4380 is 256: q = (128 + its low 7 bits) - (q < 0 ? 256 : 128). The difference is
 * exact, and is a product by -1 and a sum, since only 9.0 and later subtract pairs of bf16. */
template <> __device__ __forceinline__ void widen4<__nv_bfloat16>(uint32_t out[2], uint32_t q)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t h = __byte_perm(q, 0x43434343u, i == 0 ? 0x4140 : 0x4342);
        const uint32_t value = h & 0xff7fff7fu, less = h & 0xff80ff80u;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out[i]) : "r"(less), "r"(0xbf80bf80u), "r"(value));
    }
}
/* In f16 0x6400 + u is 1024 + u for u < 1024, and 0x6480 is 1152; u = q + 128. */
template <> __device__ __forceinline__ void widen4<__half>(uint32_t out[2], uint32_t q)
{
    q ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t h = __byte_perm(q, 0x64646464u, i == 0 ? 0x4140 : 0x4342);
        asm("sub.f16x2 %0, %1, %2;" : "=r"(out[i]) : "r"(h), "r"(0x64806480u));
    }
}
/* Eight, in their order. */
template <typename T> static __device__ __forceinline__ uint4 widen8(uint32_t low, uint32_t high)
{
    uint32_t w[4];
    widen4<T>(w, low), widen4<T>(w + 2, high);
    return make_uint4(w[0], w[1], w[2], w[3]);
}

#endif
