/* cuda_norm.cu - RMS and layer normalisation, with the gate of Mamba-2.
 *   RMS    v = gate ? x * silu(gate) : x;  y = v * rsqrt(mean(v^2) + eps) * weight, over each of n_group groups;
 *          with norm_first  y = x * rsqrt(mean(x^2) + eps) * weight * silu(gate)
 *   LAYER  y = (x - mean) * rsqrt(mean((x - mean)^2) + eps) * weight + bias
 *   RMS_ADD  y += RMS;  NONE  y = x
 * x, gate f32 [rows][dim]; y f32 or 16 bit. One block per row and group; how the group is divided among its threads, and
 * so the order of its sums, is a function of its width. Groups of whole float4s are held in registers, up to 4 a
 * thread; others are read twice (three times), the second time from L1. RMS norms without gate and bias, which most
 * models have, get code of their own: a tenth, and what a kernel takes that runs once a layer is the fetching of it.
 * In front of a product y is written once more, in the order that the product reads (cuda_linear.cuh).
 *
 * Deferred norms (cuda_norm.cuh) sum over 16 columns only: a thread has four of them, and no block waits for itself. */
#include "backends/cuda/linear/cuda_linear.cuh"

struct norm_row {
    const float *x, *gate, *weight, *bias; /* of this row and group; gate and bias may be NULL */
    bool norm_first;
    __device__ float value(int c) const
    {
        return gate && !norm_first ? x[c] * silu(gate[c]) : x[c];
    }
};

static __global__ void __launch_bounds__(1024) norm_kernel(const spec_step_block *step, spec_norm_args a, int width)
{
    __shared__ float shared[32];
    const int r = (int)blockIdx.y, g = (int)blockIdx.x;
    grid_begin();
    if (r >= step->n_row_run) return;
    const int c0 = g * width;
    norm_row row;
    row.x = (const float *)a.x.data + (size_t)r * a.x.ld + c0;
    row.gate = a.gate.data ? (const float *)a.gate.data + (size_t)r * a.gate.ld + c0 : NULL;
    row.weight = a.weight + c0;
    if (a.kind == SPEC_NORM_NONE) {
        for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x)
            store_any(a.y.data, a.y.dtype, (size_t)r * a.y.ld + c, row.x[c]);
        return;
    }
    row.bias = a.bias ? a.bias + c0 : NULL;
    row.norm_first = a.norm_first != 0;

    float mean = 0.0f;
    if (a.kind == SPEC_NORM_LAYER) {
        float sum = 0.0f;
        for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) sum = sum + row.value(c);
        mean = block_sum(sum, shared) / (float)width;
    }
    float square = 0.0f;
    for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
        const float v = row.value(c) - mean; /* x - 0 is x */
        square = fmaf(v, v, square);
    }
    const float scale = norm_scale(block_sum(square, shared), 1.0f / (float)width, a.eps);
    const size_t out = (size_t)r * a.y.ld + c0;
    for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
        float v = (row.value(c) - mean) * scale * row.weight[c];
        if (row.bias) v = v + row.bias[c];
        if (row.gate && row.norm_first) v = v * silu(row.gate[c]);
        if (a.kind == SPEC_NORM_RMS_ADD) v = ((const float *)a.y.data)[out + c] + v;
        store_any(a.y.data, a.y.dtype, out + c, v);
    }
}

enum { NORM_THREADS = 1024 /* at most */, NORM_QUADS = 4 };

static __device__ __forceinline__ float4 silu4(float4 v) { return make_float4(silu(v.x), silu(v.y), silu(v.z), silu(v.w)); }
static __device__ __forceinline__ float4 mul4(float4 a, float4 b)
{
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
static __device__ __forceinline__ float4 add4(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
/* In a 16-bit type. */
static __device__ __forceinline__ uint2 pack4(int dtype, float4 v)
{
    const bool bf = dtype == SPEC_DTYPE_BF16;
    auto bits = [&](float f) { return bf ? bits16(from_f32<__nv_bfloat16>(f)) : bits16(from_f32<__half>(f)); };
    return make_uint2(bits(v.x) | bits(v.y) << 16, bits(v.z) | bits(v.w) << 16);
}

/* y of row r, columns c to c + 3, once more. */
template <linear_order ORDER>
static __device__ __forceinline__ void put_quad(uint16_t *to, int r, int c, int dim, uint2 packed)
{
    if constexpr (ORDER == ORDER_TILES) *(uint2 *)(to + tile_element(r, c, dim)) = packed;
    if constexpr (ORDER == ORDER_SLABS) {
        ((uint32_t *)to)[slab_word(r, c, dim)] = packed.x;
        ((uint32_t *)to)[slab_word(r, c + 2, dim)] = packed.y;
    }
}

/* Q float4s a thread: number k of thread i is that at column 4 (i + threads k). The weights do not wait for the pass. share:
 * 1 / width.
 * PLAIN: RMS, no gate, no bias. ORDER: in which y is written a second time. */
template <int Q, bool PLAIN, linear_order ORDER>
static __global__ void __launch_bounds__(NORM_THREADS)
norm_quad_kernel(const spec_step_block *step, const spec_norm_args a, int width, float share, uint16_t *arranged)
{
    __shared__ float shared[32];
    const int r = (int)blockIdx.y, c0 = (int)blockIdx.x * width, n = width / 4;
    const bool gated = !PLAIN && a.gate.data, biased = !PLAIN && a.bias;
    auto quad = [](int k) { return (int)(threadIdx.x + k * blockDim.x); };
    grid_release();
    float4 weight[Q], bias[Q], v[Q], gate[Q];
#pragma unroll
    for (int k = 0; k < Q; k++) {
        weight[k] = bias[k] = v[k] = gate[k] = make_float4(0, 0, 0, 0);
        if (quad(k) < n) weight[k] = ((const float4 *)(a.weight + c0))[quad(k)];
        if (quad(k) < n && biased) bias[k] = ((const float4 *)(a.bias + c0))[quad(k)];
    }
    grid_wait();
    if (r >= step->n_row_run) return;
    const float4 *x = (const float4 *)((const float *)a.x.data + (size_t)r * a.x.ld + c0);
    const float4 *z = (const float4 *)((const float *)a.gate.data + (size_t)r * a.gate.ld + c0);
#pragma unroll
    for (int k = 0; k < Q; k++) {
        if (quad(k) < n) v[k] = x[quad(k)];
        if (quad(k) < n && gated) gate[k] = silu4(z[quad(k)]);
        if (gated && !a.norm_first) v[k] = mul4(v[k], gate[k]);
    }
    if (!PLAIN && a.kind == SPEC_NORM_LAYER) {
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < Q; k++) sum = sum + (v[k].x + v[k].y) + (v[k].z + v[k].w);
        const float mean = block_sum(sum, shared) * share;
#pragma unroll
        for (int k = 0; k < Q; k++)
            if (quad(k) < n) v[k] = add4(v[k], make_float4(-mean, -mean, -mean, -mean));
    }
    float square = 0.0f;
#pragma unroll
    for (int k = 0; k < Q; k++)
        square = fmaf(v[k].x, v[k].x, fmaf(v[k].y, v[k].y, fmaf(v[k].z, v[k].z, fmaf(v[k].w, v[k].w, square))));
    const float scale = norm_scale(block_sum(square, shared), share, a.eps);
#pragma unroll
    for (int k = 0; k < Q; k++) {
        if (quad(k) >= n) continue;
        float4 y = mul4(mul4(v[k], make_float4(scale, scale, scale, scale)), weight[k]);
        if (biased) y = add4(y, bias[k]);
        if (gated && a.norm_first) y = mul4(y, gate[k]);
        const int c = c0 + 4 * quad(k);
        const size_t out = (size_t)r * a.y.ld + c;
        if (a.y.dtype == SPEC_DTYPE_F32) {
            float4 *const to = (float4 *)((float *)a.y.data + out);
            *to = !PLAIN && a.kind == SPEC_NORM_RMS_ADD ? add4(*to, y) : y;
            continue;
        }
        const uint2 packed = pack4(a.y.dtype, y);
        *(uint2 *)((uint16_t *)a.y.data + out) = packed;
        put_quad<ORDER>(arranged, r, c, a.dim, packed);
    }
    if constexpr (ORDER == ORDER_SLABS) slab_fence();
}

/* ------------------------------------------------------------------------------ deferred --- */

enum { DEFERRED_THREADS = 128 };
static_assert(CUDA_SQUARES == 16, "four lanes of four columns");

/* QUADS: rows begin at multiples of 4 elements. */
template <bool QUADS, linear_order ORDER>
static __global__ void __launch_bounds__(DEFERRED_THREADS)
norm_deferred_kernel(const spec_step_block *step, const cuda_norm_args a, uint16_t *arranged)
{
    const int r = (int)blockIdx.y, c = 4 * (int)(blockIdx.x * DEFERRED_THREADS + threadIdx.x);
    const bool there = c < a.dim; /* whole groups of four lanes are, or are not */
    auto load = [](const float *p) { return QUADS ? *(const float4 *)p : make_float4(p[0], p[1], p[2], p[3]); };
    grid_release();
    float4 weight, v, y;
    weight = v = make_float4(0, 0, 0, 0);
    if (there) weight = load(a.weight + c);
    grid_wait();
    if (r >= step->n_row_run) return;
    if (there) v = load((const float *)a.x.data + (size_t)r * a.x.ld + c);
    if (there && a.gate.data) v = mul4(v, silu4(load((const float *)a.gate.data + (size_t)r * a.gate.ld + c)));
    y = mul4(v, weight);
    v = mul4(v, v);
    float square = (v.x + v.y) + (v.z + v.w);
    square = square + __shfl_xor_sync(0xffffffffu, square, 1);
    square = square + __shfl_xor_sync(0xffffffffu, square, 2);
    if (!there) return;
    if (threadIdx.x % 4 == 0) a.squares[((size_t)r * a.dim + c) / CUDA_SQUARES] = square;
    const size_t out = (size_t)r * a.y.ld + c;
    if (a.y.dtype != SPEC_DTYPE_F32 && QUADS) {
        const uint2 packed = pack4(a.y.dtype, y);
        *(uint2 *)((uint16_t *)a.y.data + out) = packed;
        put_quad<ORDER>(arranged, r, c, a.dim, packed);
        if constexpr (ORDER == ORDER_SLABS) slab_fence();
        return;
    }
    store_any(a.y.data, a.y.dtype, out, y.x);
    store_any(a.y.data, a.y.dtype, out + 1, y.y);
    store_any(a.y.data, a.y.dtype, out + 2, y.z);
    store_any(a.y.data, a.y.dtype, out + 3, y.w);
}

static spec_status launch_deferred(spec_queue *q, const cuda_norm_args *a, bool quads, linear_order order, uint16_t *arranged)
{
    auto *kernel = order == ORDER_SLABS   ? norm_deferred_kernel<true, ORDER_SLABS>
                   : order == ORDER_TILES ? norm_deferred_kernel<true, ORDER_TILES>
                   : quads                ? norm_deferred_kernel<true, ORDER_ROWS>
                                          : norm_deferred_kernel<false, ORDER_ROWS>;
    const dim3 grid((unsigned)cuda_div_up(a->dim, 4 * DEFERRED_THREADS), (unsigned)q->shape.rows);
    return cuda_launch(q, "norm", kernel, grid, dim3(DEFERRED_THREADS), 0, 1, q->d_step, *a, arranged);
}

/* ------------------------------------------------------------------------------ launcher --- */

/* Every row and group begins at a multiple of 16 bytes (of y: of 4 elements). */
static bool norm_in_quads(const spec_norm_args *a, int width)
{
    const auto quads = [](const spec_view &v) {
        return !v.data || (v.ld % 4 == 0 && cuda_aligned(v.data, 4 * speci_dtype_bytes(v.dtype)));
    };
    return width % 4 == 0 && quads(a->x) && quads(a->gate) && quads(a->y) && cuda_aligned(a->weight, 16) &&
           (!a->bias || cuda_aligned(a->bias, 16));
}

spec_status speci_cuda_check_norm(spec_device *dev, const spec_norm_args *a)
{
    if (a->dim < 1 || a->n_group < 1 || a->dim % a->n_group)
        return dev->host->fail(SPEC_E_INVALID, "cuda norm: dim %d in %d groups", a->dim, a->n_group);
    if (a->kind < SPEC_NORM_RMS || a->kind > SPEC_NORM_NONE)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda norm: kind %d is not known", (int)a->kind);
    if ((a->kind == SPEC_NORM_LAYER || a->kind == SPEC_NORM_NONE) && (a->n_group != 1 || a->gate.data))
        return dev->host->fail(SPEC_E_INVALID, "cuda norm: of kind %d with one group and no gate alone", (int)a->kind);
    if (a->kind == SPEC_NORM_RMS_ADD && (a->y.dtype != SPEC_DTYPE_F32 || a->y.data == a->x.data))
        return dev->host->fail(SPEC_E_INVALID, "cuda norm: what is added to is f32, and not x");
    if (a->x.dtype != SPEC_DTYPE_F32 || (a->gate.data && a->gate.dtype != SPEC_DTYPE_F32) || !cuda_is_float(a->y.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda norm: x and gate must be f32, y a float type");
    return SPEC_OK;
}

template <bool PLAIN, linear_order ORDER>
static spec_status launch_quads(spec_queue *q, const spec_norm_args *a, int width, uint16_t *arranged)
{
    const int each = cuda_div_up(width, NORM_THREADS * 4), quads = each == 3 ? 4 : each;
    auto *kernel = quads == 1   ? norm_quad_kernel<1, PLAIN, ORDER>
                   : quads == 2 ? norm_quad_kernel<2, PLAIN, ORDER>
                                : norm_quad_kernel<NORM_QUADS, PLAIN, ORDER>;
    const int threads = cuda_div_up(width / 4, quads * 32) * 32;
    return cuda_launch(q, "norm", kernel, dim3((unsigned)a->n_group, (unsigned)q->shape.rows), dim3((unsigned)threads), 0, 1,
                       q->d_step, *a, width, 1.0f / (float)width, arranged);
}

template <bool PLAIN>
static spec_status launch_whole(spec_queue *q, const spec_norm_args *a, int width, linear_order order, uint16_t *arranged)
{
    return order == ORDER_SLABS   ? launch_quads<PLAIN, ORDER_SLABS>(q, a, width, arranged)
           : order == ORDER_TILES ? launch_quads<PLAIN, ORDER_TILES>(q, a, width, arranged)
                                  : launch_quads<PLAIN, ORDER_ROWS>(q, a, width, arranged);
}

static spec_status launch_any(spec_queue *q, const spec_norm_args *a, int width)
{
    int threads = 32;
    while (threads < 1024 && threads * 4 < width) threads *= 2;
    return cuda_launch(q, "norm", norm_kernel, dim3((unsigned)a->n_group, (unsigned)q->shape.rows),
                       dim3((unsigned)threads), 0, 1, q->d_step, *a, width);
}

spec_status speci_cuda_norm(spec_queue *q, const cuda_norm_args *a, cuda_pass *pass)
{
    SPEC_TRY(cuda_enter_op(q, "norm"));
    SPEC_TRY(speci_cuda_check_norm(q->dev, a));
    const int width = a->dim / a->n_group;
    const bool quads = a->kind != SPEC_NORM_NONE && norm_in_quads(a, width);
    if (!a->squares && !(quads && width <= NORM_THREADS * NORM_QUADS * 4)) return launch_any(q, a, width);
    uint16_t *const arranged = quads ? speci_cuda_arranged_for(q, pass, ORDER_ROWS, NULL) : NULL;
    const linear_order order = !arranged ? ORDER_ROWS : pass->out.order;
    const bool plain = a->kind == SPEC_NORM_RMS && !a->gate.data && !a->bias;
    if (a->squares) return launch_deferred(q, a, quads, order, arranged);
    return plain ? launch_whole<true>(q, a, width, order, arranged) : launch_whole<false>(q, a, width, order, arranged);
}
