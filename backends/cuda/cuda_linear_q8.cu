/* cuda_linear_q8.cu - products with weights of Q8_0 (layout: cuda_q8.cuh; epilogue: cuda_linear.cuh).
 *
 * Decode. 16 bit: int8 becomes bf16 or f16 in registers, exactly, and W is the wide operand of m16n8k16; the float32
 * sum of a block of 32 is multiplied by the block's scale and added (fmaf) to the sum of the blocks before it. So each
 * output has the very values of its weights. A thread block of 8 warps makes one or two strips of up to 64 rows; warp w takes the
 * w-th eighth of the pieces, and the eight sums are added in the order of the warps. float32, and x whose rows are not
 * 16-byte aligned: a warp an output, fmaf, a shuffle tree. All orders depend on n_in only.
 *
 * Prefill: the matrix becomes one of the compute type in scratch (each value rounded once), then the plain product. */
#include "cuda_linear.cuh"
#include "cuda_q8.cuh"

/* ------------------------------------------------------------------ 16 bit: matrix instruction --- */

/* Four int8 as two words of two T. */
template <typename T> static __device__ __forceinline__ void widen4(uint32_t out[2], uint32_t q);
/* In bf16 0x4300 + m is 128 + m for m < 128, and 0x4380 is 256: q = (128 + its low 7 bits) - (q < 0 ? 256 : 128). */
template <> __device__ __forceinline__ void widen4<__nv_bfloat16>(uint32_t out[2], uint32_t q)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t h = __byte_perm(q, 0x43434343u, i == 0 ? 0x4140 : 0x4342);
        const uint32_t value = h & 0xff7fff7fu, less = h & 0xff80ff80u;
        asm("sub.bf16x2 %0, %1, %2;" : "=r"(out[i]) : "r"(value), "r"(less));
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

enum { Q8_WARPS = 8 };

/* A lane's part of a piece. */
struct q8_lane {
    uint4 q[2]; /* rows g, g + 8: 8 values of either block */
    uint2 scale; /* row g: both blocks; row g + 8 */
};

static __device__ __forceinline__ q8_lane load_lane(const q8_piece *p, int lane)
{
    q8_lane v;
    v.q[0] = load_weight16(p->q[0][lane]);
    v.q[1] = load_weight16(p->q[1][lane]);
    v.scale = __ldg((const uint2 *)p->scale[lane / 4]);
    return v;
}

/* The lane's parts of pieces c .. of each strip; zero from c_end on. */
template <int UNROLL, int MT>
static __device__ __forceinline__ void load_pieces(q8_lane v[UNROLL][MT], const q8_piece *const strip[MT], int c,
                                                   int c_end, int lane)
{
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
        for (int i = 0; i < MT; i++) {
            v[u][i] = {};
            if (c + u < c_end) v[u][i] = load_lane(strip[i] + c + u, lane);
        }
}

/* acc[n] += the piece's block b times columns k .. k + 31 of NT x 8 rows */
template <typename T, int NT>
static __device__ __forceinline__ void add_block(float acc[NT][4], const q8_lane &v, int b, const uint4 x[NT])
{
    uint32_t w[2][4];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        widen4<T>(w[j], b == 0 ? v.q[j].x : v.q[j].z);
        widen4<T>(w[j] + 2, b == 0 ? v.q[j].y : v.q[j].w);
    }
    const float2 low = unpack2<__half>(v.scale.x), high = unpack2<__half>(v.scale.y);
    const float scale[2] = { b == 0 ? low.x : low.y, b == 0 ? high.x : high.y };
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float sum[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
        mma16816<T>(sum, w[0][0], w[1][0], w[0][1], w[1][1], x[n].x, x[n].y);
        mma16816<T>(sum, w[0][2], w[1][2], w[0][3], w[1][3], x[n].z, x[n].w);
#pragma unroll
        for (int e = 0; e < 4; e++) acc[n][e] = fmaf(scale[e / 2], sum[e], acc[n][e]);
    }
}

/* MT strips (with glu 2: gates and ups), NT tiles of 8 rows. */
template <typename T, int MT, int NT>
static __global__ void __launch_bounds__(Q8_WARPS * 32, NT == 1 && MT == 1 ? 4 : 1)
linear_q8_kernel(const spec_step_block *step, const q8_piece *__restrict__ w, q8_shape shape, const T *__restrict__ x,
                 int ld_x, linear_out o)
{
    constexpr int UNROLL = NT == 1 ? 2 : 1; /* pieces in flight together; more of them cost resident blocks */
    __shared__ float part[Q8_WARPS][MT * Q8_STRIP][8 + 1], factor[NT * 8];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int n_piece = shape.n_piece(), strip0 = (int)blockIdx.x * MT, n_strip = shape.n_strip();
    const int c_begin = (int)((long long)n_piece * warp / Q8_WARPS);
    const int c_end = (int)((long long)n_piece * (warp + 1) / Q8_WARPS);

    grid_release();
    const q8_piece *strip[MT];
#pragma unroll
    for (int i = 0; i < MT; i++)
        strip[i] = w + (size_t)(strip0 + i < n_strip ? strip0 + i : strip0) * n_piece; /* repeated: not stored */
    q8_lane v[UNROLL][MT];
    load_pieces<UNROLL, MT>(v, strip, c_begin, c_end, lane);
    grid_wait();
    const int n_row = step->n_row_run;
    const int row0 = (int)blockIdx.y * NT * 8;
    if (row0 >= n_row) return;
    const T *x_row[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int r = row0 + n * 8 + g;
        if (r >= n_row) r = n_row - 1; /* a column of the product that is not stored */
        x_row[n] = x + (size_t)r * ld_x;
    }

    float acc[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[i][n][e] = 0.0f;

    for (int c = c_begin; c < c_end; c += UNROLL) {
        if (c > c_begin) load_pieces<UNROLL, MT>(v, strip, c, c_end, lane);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (c + u >= c_end) break;
#pragma unroll
            for (int b = 0; b < 2; b++) {
                const int k = (c + u) * Q8_PIECE + b * SPEC_Q8_BLOCK + t * 8;
                uint4 in[NT];
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    in[n] = make_uint4(0, 0, 0, 0);
                    if (k < shape.n_in) in[n] = *(const uint4 *)(x_row[n] + k);
                }
#pragma unroll
                for (int i = 0; i < MT; i++) add_block<T, NT>(acc[i], v[u][i], b, in);
            }
        }
    }

    if (o.norm.squares) norm_factors<Q8_WARPS, 1>(o.norm, factor, row0, min(NT * 8, n_row - row0));
    /* Lane (g, t) holds outputs g and g + 8 of rows 2t and 2t + 1. The warps' sums in their order, 8 rows a time. */
    const int first = (o.glu ? strip0 / 2 : strip0) * Q8_STRIP, m_end = o.glu ? o.n_out / 2 : o.n_out;
    const int n_m = o.glu ? Q8_STRIP : MT * Q8_STRIP;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (row0 + n * 8 >= n_row) break;
        if (n > 0) __syncthreads();
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) part[warp][i * Q8_STRIP + g + e / 2 * 8][2 * t + e % 2] = acc[i][n][e];
        __syncthreads();
        const int m = (int)threadIdx.x % n_m, col = (int)threadIdx.x / n_m, r = row0 + n * 8 + col;
        if (col < 8 && r < n_row && first + m < m_end) {
            float sum = part[0][m][col], up = 0.0f;
#pragma unroll
            for (int v = 1; v < Q8_WARPS; v++) sum = sum + part[v][m][col];
            if (MT == 2 && o.glu) {
                up = part[0][(MT - 1) * Q8_STRIP + m][col];
#pragma unroll
                for (int v = 1; v < Q8_WARPS; v++) up = up + part[v][(MT - 1) * Q8_STRIP + m][col];
            }
            linear_store(o, r, first + m, o.norm.squares ? factor[n * 8 + col] : 1.0f, sum, up);
        }
    }
}

template <typename T, int MT, int NT>
static spec_status launch_tile(spec_queue *q, const spec_linear_args *a, int rows)
{
    const q8_shape shape = q8_shape_of(a->w);
    const dim3 grid((unsigned)cuda_div_up(shape.n_strip(), MT), (unsigned)cuda_div_up(rows, NT * 8));
    return cuda_launch(q, "linear q8", linear_q8_kernel<T, MT, NT>, grid, dim3(Q8_WARPS * 32), 0, 1, q->d_step,
                       (const q8_piece *)a->w->data, shape, (const T *)a->x.data, a->x.ld, linear_out_of(a));
}

template <typename T, int MT>
static spec_status launch_mma(spec_queue *q, const spec_linear_args *a, int rows)
{
    if (rows <= 8) return launch_tile<T, MT, 1>(q, a, rows);
    if (rows <= 16) return launch_tile<T, MT, 2>(q, a, rows);
    if (rows <= 32) return launch_tile<T, MT, 4>(q, a, rows);
    return launch_tile<T, MT, 8>(q, a, rows);
}

/* ----------------------------------------------------------------------------------- FMA --- */

enum { Q8_FMA_WARPS = 4, Q8_FMA_ROWS = 8 };

/* x [ROWS] rows times row m of w: a lane takes 8 values of either block of every 8th piece. */
template <typename T>
static __device__ __forceinline__ void add_row(float acc[Q8_FMA_ROWS], const q8_piece *w, const q8_shape &s, int m,
                                               const T *x, int ld_x, int n_row)
{
    const int lane = (int)threadIdx.x % 32, r = s.lane_row(m);
    for (int k = lane / 4 * Q8_PIECE + lane % 4 * 8; k < s.n_in; k += 8 * Q8_PIECE) {
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const int kb = k + b * SPEC_Q8_BLOCK;
            if (kb >= s.n_in) break;
            const q8_piece *p = w + s.piece(m, kb);
            const int8_t *q = q8_values(p, r, kb);
            const float scale = q8_scale_value(p, r, kb);
#pragma unroll
            for (int row = 0; row < Q8_FMA_ROWS; row++) {
                if (row >= n_row) break;
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; i++) sum = fmaf((float)q[i], to_f32(x[(size_t)row * ld_x + kb + i]), sum);
                acc[row] = fmaf(scale, sum, acc[row]);
            }
        }
    }
}

template <typename T>
static __global__ void __launch_bounds__(Q8_FMA_WARPS * 32)
linear_q8_fma_kernel(const spec_step_block *step, const q8_piece *__restrict__ w, q8_shape shape,
                     const T *__restrict__ x, int ld_x, linear_out o)
{
    grid_begin();
    const int row0 = (int)blockIdx.y * Q8_FMA_ROWS, n_row = step->n_row_run - row0;
    const int m = (int)blockIdx.x * Q8_FMA_WARPS + (int)threadIdx.x / 32;
    if (n_row <= 0 || m >= (o.glu ? o.n_out / 2 : o.n_out)) return;
    float acc[Q8_FMA_ROWS] = {}, up[Q8_FMA_ROWS] = {};
    add_row(acc, w, shape, m, x + (size_t)row0 * ld_x, ld_x, n_row);
    if (o.glu) add_row(up, w, shape, m + o.n_out / 2, x + (size_t)row0 * ld_x, ld_x, n_row);
#pragma unroll
    for (int r = 0; r < Q8_FMA_ROWS; r++) {
        if (r >= n_row) break;
        const float sum = warp_sum(acc[r]), sum_up = warp_sum(up[r]);
        const float factor = norm_factor(o.norm, row0 + r);
        if (threadIdx.x % 32 == 0) linear_store(o, row0 + r, m, factor, sum, sum_up);
    }
}

template <typename T> static spec_status launch_fma(spec_queue *q, const spec_linear_args *a, int rows)
{
    const int n_m = a->glu ? a->n_out / 2 : a->n_out;
    const dim3 grid((unsigned)cuda_div_up(n_m, Q8_FMA_WARPS), (unsigned)cuda_div_up(rows, Q8_FMA_ROWS));
    return cuda_launch(q, "linear q8", linear_q8_fma_kernel<T>, grid, dim3(Q8_FMA_WARPS * 32), 0, 1, q->d_step,
                       (const q8_piece *)a->w->data, q8_shape_of(a->w), (const T *)a->x.data, a->x.ld,
                       linear_out_of(a));
}

/* ------------------------------------------------------------------------------- prefill --- */

template <typename T> struct alignas(16) eight {
    T v[8];
};

/* out [n_out][ld], 8 values a thread at a time; columns from n_in on are zero */
template <typename T>
static __global__ void plain_kernel(eight<T> *out, int ld, const q8_piece *__restrict__ w, q8_shape s)
{
    grid_begin();
    const int per_row = ld / 8;
    const size_t n = (size_t)s.n_out * per_row;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const int row = (int)(i / per_row), k = (int)(i % per_row) * 8, r = s.lane_row(row);
        const q8_piece *p = w + s.piece(row, k < s.n_in ? k : 0);
        const int8_t *q = q8_values(p, r, k);
        const float scale = k < s.n_in ? q8_scale_value(p, r, k) : 0.0f;
        eight<T> e;
#pragma unroll
        for (int j = 0; j < 8; j++) e.v[j] = from_f32<T>(scale * (float)q[j]);
        out[i] = e;
    }
}

/* Of the plain product's own scratch, in front of the matrix. */
static size_t epilogue_floats(const spec_linear_args *a, int32_t rows)
{
    return cuda_round_up((size_t)rows * (size_t)a->n_out, 64);
}
static size_t prefill_floats(const spec_linear_args *a, int32_t rows)
{
    const size_t matrix = ((size_t)a->n_out + CUDA_WEIGHT_PAD) * (size_t)a->w->ld;
    return epilogue_floats(a, rows) + matrix * cuda_size(a->w->dtype) / 4;
}

size_t speci_cuda_q8_floats(const spec_linear_args *a, const spec_plan *plan)
{
    return plan->phase == SPEC_PHASE_PREFILL ? prefill_floats(a, plan->n_row_max) : 0;
}

static spec_status prefill(spec_queue *q, const spec_linear_args *a)
{
    spec_weight plain = *a->w;
    spec_linear_args b = *a;
    plain.data = q->linear_scratch + epilogue_floats(a, q->n_row_run);
    plain.q8 = false;
    b.w = &plain, b.best = NULL; /* looked for by who has called this */
    SPEC_TRY(cuda_by_dtype(plain.dtype, [&](auto t) {
        using T = decltype(t);
        return cuda_launch(q, "weight q8 to plain", plain_kernel<T>, dim3(8 * (unsigned)q->dev->n_sm), dim3(256), 0, 1,
                           (eight<T> *)plain.data, plain.ld, (const q8_piece *)a->w->data, q8_shape_of(a->w));
    }));
    return speci_cuda_linear(q, &b);
}

/* ------------------------------------------------------------------------------- launcher --- */

/* The operation is checked. */
spec_status speci_cuda_linear_q8(spec_queue *q, const spec_linear_args *a)
{
    const int rows = q->shape.rows;
    const bool room = q->linear_floats >= prefill_floats(a, q->n_row_run); /* the queue was opened for the operation */
    if (q->shape.phase == SPEC_PHASE_PREFILL && room) return prefill(q, a);
    /* Two strips a block halve the reading of x; one keeps small matrices spread over the device. */
    const bool wide = a->glu || (rows > 16 && a->n_out >= 32 * 2 * q->dev->n_sm);
    const bool vectors = cuda_aligned(a->x.data, 16) && a->x.ld % 8 == 0;
    return cuda_by_dtype(a->w->dtype, [&](auto t) {
        using T = decltype(t);
        if constexpr (sizeof(T) == 2)
            if (vectors) return wide ? launch_mma<T, 2>(q, a, rows) : launch_mma<T, 1>(q, a, rows);
        return launch_fma<T>(q, a, rows);
    });
}
