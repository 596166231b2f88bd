/* cuda_linear.cu - t = W x (+ bias); glu: t = act(t_gate) t_up, else t = act(t); y = scale t, or y += scale t.
 * W [n_out][ld] f32, bf16 or f16, rows 16-byte aligned and padded with zeros; x [rows][n_in] of the same type;
 * y [rows][n_out] (n_out / 2 with glu) f32 or that type.
 *
 * Decode has own kernels, since a library changes its order of summation with the number of rows:
 *
 *   16 bit   W is the wide operand of the matrix instruction (m16n8k16, float32 accumulators), the rows of x the
 *            narrow one, padded to 8. A block of 8 warps makes 16 outputs (with glu, 16 gates and their 16 ups) of up
 *            to 64 rows. K is cut into chunks of 32; warp w takes the w-th eighth of them in ascending order; the eight
 *            partial sums are added in the order of the warps. All that depends on n_in only, and an element of the
 *            product depends on one row of W and one of x only.
 *            No shared memory feeds the matrix unit: which k a lane's registers stand for is free as long as W and x
 *            agree, so each lane loads 16 bytes, that is 8 consecutive k, and these make two instructions.
 *   float32  One warp per output (two with glu), lanes stride K by 4 elements, fmaf, and a shuffle tree.
 *            This kernel can also do the 16-bit types (SPEC_CUDA_LINEAR_FMA=1): the readable twin of the other.
 *
 * Prefill uses cuBLAS (float32 sums, no TF32), then an epilogue over a float32 scratch where there is one to do; what
 * cuBLAS refuses runs through the decode kernels. */
#include "cuda.cuh"

#ifndef SPEC_CUDA_LINEAR_FMA
#define SPEC_CUDA_LINEAR_FMA 0
#endif

/* What the kernels need beside the operands. */
struct linear_out {
    void *y;
    const float *bias;
    int y_type, ld_y, n_out, act, glu, add;
    float scale;
};

static __device__ __forceinline__ float activate(int act, float t)
{
    switch (act) {
    case SPEC_ACT_SILU: return silu(t);
    case SPEC_ACT_GELU: return 0.5f * t * (1.0f + erff(t * 0.70710678118654752f));
    case SPEC_ACT_GELU_TANH: return 0.5f * t * (1.0f + tanhf(0.79788456080286536f * (t + 0.044715f * t * t * t)));
    case SPEC_ACT_RELU: return t > 0.0f || isnan(t) ? t : 0.0f;
    default: return t;
    }
}

/* Output m of row r; `up` is used with glu. */
static __device__ __forceinline__ void linear_store(const linear_out &o, int r, int m, float t, float up)
{
    if (o.bias) t = t + o.bias[m];
    t = activate(o.act, t);
    if (o.glu) {
        if (o.bias) up = up + o.bias[m + o.n_out / 2];
        t = t * up;
    }
    const size_t i = (size_t)r * o.ld_y + m;
    if (o.add) ((float *)o.y)[i] = fmaf(o.scale, t, ((float *)o.y)[i]);
    else store_any(o.y, o.y_type, i, o.scale * t);
}

/* Weights are read once: they pass by L1. */
static __device__ __forceinline__ uint4 load_weight16(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* ------------------------------------------------------------------ 16 bit: matrix instruction --- */

/* 8 elements of x at column k; columns >= n_in are zero whatever memory holds. */
template <typename T>
static __device__ __forceinline__ uint4 load_x8(const T *x, int k, int n_in, bool aligned)
{
    if (aligned && k + 8 <= n_in) return *(const uint4 *)(x + k);
    uint32_t w[8];
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = k + i < n_in ? bits16(x[k + i]) : 0u;
    return make_uint4(w[0] | w[1] << 16, w[2] | w[3] << 16, w[4] | w[5] << 16, w[6] | w[7] << 16);
}

/* acc[16][8] += A[16][16] B[16][8] */
template <typename T>
static __device__ __forceinline__ void mma16816(float acc[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma16816<__nv_bfloat16>(float acc[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                        uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma16816<__half>(float acc[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                 uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

enum { MMA_WARPS = 8 };

/* MT tiles of 16 outputs (MT 2: with glu gate and up, else neighbours), NT tiles of 8 rows. The registers of lane
 * (g = lane / 4, t = lane % 4) hold, of each chunk of 32 k, columns 8t .. 8t+7: of W's rows g and g + 8, of x's row g.
 * The first four feed one instruction, the other four the next. */
template <typename T, int MT, int NT>
static __global__ void __launch_bounds__(MMA_WARPS * 32)
linear_mma_kernel(const spec_step_block *step, const T *__restrict__ w, int ld_w, const T *__restrict__ x, int ld_x,
                  int n_in, int aligned, linear_out o)
{
    constexpr int UNROLL = MT == 1 ? 4 : 2; /* chunks whose weights are in flight together */
    __shared__ float part[MMA_WARPS][MT * 16][8 + 1];
    const int n_row = step->n_row_run;
    const int row0 = (int)blockIdx.y * NT * 8;
    if (row0 >= n_row) return;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int half = o.n_out / 2;
    const int m0 = (int)blockIdx.x * (o.glu ? 16 : 16 * MT);
    const int m_end = o.glu ? half : o.n_out;

    const T *w_row[MT][2];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int m = m0 + g + 8 * j + (o.glu ? 0 : 16 * i);
            if (m >= m_end) m = m_end - 1; /* computed, not stored */
            if (o.glu && i == 1) m += half;
            w_row[i][j] = w + (size_t)m * ld_w;
        }
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

    const int n_chunk = (n_in + 31) / 32;
    const int c_begin = (int)((long long)n_chunk * warp / MMA_WARPS);
    const int c_end = (int)((long long)n_chunk * (warp + 1) / MMA_WARPS);
    for (int c = c_begin; c < c_end; c += UNROLL) {
        uint4 a[UNROLL][MT][2];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int k = (c + u) * 32 + t * 8;
                    a[u][i][j] = make_uint4(0, 0, 0, 0);
                    if (c + u < c_end && k < ld_w) a[u][i][j] = load_weight16(w_row[i][j] + k);
                }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (c + u >= c_end) break;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint4 b = load_x8(x_row[n], (c + u) * 32 + t * 8, n_in, aligned);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    mma16816<T>(acc[i][n], a[u][i][0].x, a[u][i][1].x, a[u][i][0].y, a[u][i][1].y, b.x, b.y);
                    mma16816<T>(acc[i][n], a[u][i][0].z, a[u][i][1].z, a[u][i][0].w, a[u][i][1].w, b.z, b.w);
                }
            }
        }
    }

    /* Lane (g, t) holds outputs g and g + 8 of rows 2t and 2t + 1. Add the warps' sums in their order, 8 rows a time. */
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (row0 + n * 8 >= n_row) break;
        if (n > 0) __syncthreads();
#pragma unroll
        for (int i = 0; i < MT; i++) {
            part[warp][i * 16 + g][2 * t] = acc[i][n][0];
            part[warp][i * 16 + g][2 * t + 1] = acc[i][n][1];
            part[warp][i * 16 + g + 8][2 * t] = acc[i][n][2];
            part[warp][i * 16 + g + 8][2 * t + 1] = acc[i][n][3];
        }
        __syncthreads();
        const int n_store = o.glu ? 16 * 8 : MT * 16 * 8;
        const int e = (int)threadIdx.x;
        if (e < n_store) {
            const int mt = o.glu ? 16 : MT * 16, m = e % mt, col = e / mt, r = row0 + n * 8 + col;
            float sum = part[0][m][col], up = 0.0f;
#pragma unroll
            for (int v = 1; v < MMA_WARPS; v++) sum = sum + part[v][m][col];
            if (MT == 2 && o.glu) {
                up = part[0][m + 16][col];
#pragma unroll
                for (int v = 1; v < MMA_WARPS; v++) up = up + part[v][(MT - 1) * 16 + m][col];
            }
            if (r < n_row && m0 + m < m_end) linear_store(o, r, m0 + m, sum, up);
        }
    }
}

template <typename T, int MT>
static void launch_mma(spec_queue *q, const spec_linear_args *a, const linear_out &o, int rows, bool aligned)
{
    const int n_m = cuda_div_up(o.glu ? o.n_out / 2 : o.n_out, o.glu ? 16 : 16 * MT);
    const dim3 threads(MMA_WARPS * 32);
    const T *w = (const T *)a->w->data, *x = (const T *)a->x.data;
    const int tile = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
    const dim3 grid((unsigned)n_m, (unsigned)cuda_div_up(rows, tile));
    switch (tile) {
    case 8:
        linear_mma_kernel<T, MT, 1><<<grid, threads, 0, q->stream>>>(q->d_step, w, a->w->ld, x, a->x.ld, a->n_in, aligned, o);
        break;
    case 16:
        linear_mma_kernel<T, MT, 2><<<grid, threads, 0, q->stream>>>(q->d_step, w, a->w->ld, x, a->x.ld, a->n_in, aligned, o);
        break;
    case 32:
        linear_mma_kernel<T, MT, 4><<<grid, threads, 0, q->stream>>>(q->d_step, w, a->w->ld, x, a->x.ld, a->n_in, aligned, o);
        break;
    default:
        linear_mma_kernel<T, MT, 8><<<grid, threads, 0, q->stream>>>(q->d_step, w, a->w->ld, x, a->x.ld, a->n_in, aligned, o);
        break;
    }
}

/* --------------------------------------------------------------------------- float32: FMA --- */

/* VEC consecutive elements from a 16-byte chunk. */
template <typename T> struct chunk16;
template <> struct chunk16<float> {
    enum { VEC = 4 };
    static __device__ __forceinline__ void unpack(float v[4], uint4 c)
    {
        v[0] = __uint_as_float(c.x), v[1] = __uint_as_float(c.y), v[2] = __uint_as_float(c.z), v[3] = __uint_as_float(c.w);
    }
};
template <typename T> struct chunk16 {
    enum { VEC = 8 };
    static __device__ __forceinline__ void unpack(float v[8], uint4 c)
    {
        const uint32_t w[4] = { c.x, c.y, c.z, c.w };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 f = unpack2<T>(w[i]);
            v[2 * i] = f.x, v[2 * i + 1] = f.y;
        }
    }
};

enum { FMA_WARPS = 4 };

/* A warp makes output m (MW 2: and m + n_out / 2, the up of a glu) of ROWS rows. Lane l takes the chunks l, l + 32, ...
 * of K in ascending order, one accumulator per output and row. */
template <typename T, int MW, int ROWS>
static __global__ void __launch_bounds__(FMA_WARPS * 32)
linear_fma_kernel(const spec_step_block *step, const T *__restrict__ w, int ld_w, const T *__restrict__ x, int ld_x,
                  int n_in, int aligned, linear_out o)
{
    constexpr int VEC = chunk16<T>::VEC, UNROLL = 4;
    const int n_row = step->n_row_run;
    const int row0 = (int)blockIdx.y * ROWS;
    if (row0 >= n_row) return;
    const int lane = (int)threadIdx.x % 32;
    const int m = (int)blockIdx.x * FMA_WARPS + (int)threadIdx.x / 32;
    if (m >= (MW == 2 ? o.n_out / 2 : o.n_out)) return;
    const T *w_row[MW];
#pragma unroll
    for (int i = 0; i < MW; i++) w_row[i] = w + (size_t)(m + i * (o.n_out / 2)) * ld_w;

    float acc[MW][ROWS];
#pragma unroll
    for (int i = 0; i < MW; i++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[i][r] = 0.0f;

    for (int k0 = lane * VEC; k0 < n_in; k0 += 32 * VEC * UNROLL) {
        uint4 c[UNROLL][MW];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int i = 0; i < MW; i++) {
                const int k = k0 + u * 32 * VEC;
                c[u][i] = make_uint4(0, 0, 0, 0);
                if (k < n_in) c[u][i] = load_weight16(w_row[i] + k);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int k = k0 + u * 32 * VEC;
            if (k >= n_in) break;
            float wv[MW][VEC];
#pragma unroll
            for (int i = 0; i < MW; i++) chunk16<T>::unpack(wv[i], c[u][i]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (row0 + r >= n_row) break;
                const T *xr = x + (size_t)(row0 + r) * ld_x + k;
                float xv[VEC];
                if (aligned && k + VEC <= n_in) {
                    chunk16<T>::unpack(xv, *(const uint4 *)xr);
                } else {
#pragma unroll
                    for (int j = 0; j < VEC; j++) xv[j] = k + j < n_in ? to_f32(xr[j]) : 0.0f;
                }
#pragma unroll
                for (int i = 0; i < MW; i++)
#pragma unroll
                    for (int j = 0; j < VEC; j++) acc[i][r] = fmaf(wv[i][j], xv[j], acc[i][r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (row0 + r >= n_row) break;
        const float sum = warp_sum(acc[0][r]);
        const float up = MW == 2 ? warp_sum(acc[MW - 1][r]) : 0.0f;
        if (lane == 0) linear_store(o, row0 + r, m, sum, up);
    }
}

template <typename T, int MW>
static void launch_fma(spec_queue *q, const spec_linear_args *a, const linear_out &o, int rows, bool aligned)
{
    const dim3 threads(FMA_WARPS * 32);
    const T *w = (const T *)a->w->data, *x = (const T *)a->x.data;
    const int tile = rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8;
    const dim3 grid((unsigned)cuda_div_up(o.n_out / MW, FMA_WARPS), (unsigned)cuda_div_up(rows, tile));
    switch (tile) {
    case 1:
        linear_fma_kernel<T, MW, 1><<<grid, threads, 0, q->stream>>>(q->d_step, w, a->w->ld, x, a->x.ld, a->n_in, aligned, o);
        break;
    case 2:
        linear_fma_kernel<T, MW, 2><<<grid, threads, 0, q->stream>>>(q->d_step, w, a->w->ld, x, a->x.ld, a->n_in, aligned, o);
        break;
    case 4:
        linear_fma_kernel<T, MW, 4><<<grid, threads, 0, q->stream>>>(q->d_step, w, a->w->ld, x, a->x.ld, a->n_in, aligned, o);
        break;
    default:
        linear_fma_kernel<T, MW, 8><<<grid, threads, 0, q->stream>>>(q->d_step, w, a->w->ld, x, a->x.ld, a->n_in, aligned, o);
        break;
    }
}

/* -------------------------------------------------------------------------------- prefill --- */

/* The epilogue over t [rows][n_out] in scratch. */
static __global__ void linear_epilogue_kernel(const spec_step_block *step, const float *t, int n_y, linear_out o)
{
    const int r = (int)blockIdx.y;
    if (r >= step->n_row_run) return;
    const float *row = t + (size_t)r * o.n_out;
    for (int m = (int)(blockIdx.x * blockDim.x + threadIdx.x); m < n_y; m += (int)(gridDim.x * blockDim.x))
        linear_store(o, r, m, row[m], o.glu ? row[m + n_y] : 0.0f);
}

static cudaDataType_t blas_type(spec_dtype t)
{
    return t == SPEC_DTYPE_F32 ? CUDA_R_32F : t == SPEC_DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* cuBLAS is column-major: there W is [n_in][n_out] to be transposed, x [n_in][rows], y [n_out][rows]. Returns false
 * where the library does not take the case; the decode kernels then do it. */
static bool linear_blas(spec_queue *q, const spec_linear_args *a, const linear_out &o, spec_status *status)
{
    const int rows = q->n_row_run;
    const bool direct = !a->bias && !a->glu && a->act == SPEC_ACT_NONE;
    if (!q->blas || (!direct && (size_t)rows * a->n_out > q->linear_floats)) return false;
    const float alpha = direct ? a->scale : 1.0f, beta = direct && a->add ? 1.0f : 0.0f;
    const cudaDataType_t type = blas_type(a->w->dtype);
    const cublasStatus_t s = cublasGemmEx(
        q->blas, CUBLAS_OP_T, CUBLAS_OP_N, a->n_out, rows, a->n_in, &alpha, a->w->data, type, a->w->ld, a->x.data, type,
        a->x.ld, &beta, direct ? a->y.data : (void *)q->linear_scratch, direct ? blas_type(a->y.dtype) : CUDA_R_32F,
        direct ? a->y.ld : a->n_out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE) {
        (void)cudaGetLastError();
        return false;
    }
    if (s != CUBLAS_STATUS_SUCCESS) {
        *status = q->dev->host->fail(SPEC_E_DEVICE, "cuda linear: cublasGemmEx: %s", cublasGetStatusString(s));
        return true;
    }
    if (!direct) {
        const int n_y = a->glu ? a->n_out / 2 : a->n_out;
        const int blocks = cuda_div_up(n_y, 1024);
        linear_epilogue_kernel<<<dim3((unsigned)blocks, (unsigned)rows), 256, 0, q->stream>>>(
            q->d_step, q->linear_scratch, n_y, o);
    }
    *status = cuda_launched(q, "linear prefill");
    return true;
}

size_t speci_cuda_linear_floats(const spec_linear_args *a, const spec_plan *plan)
{
    if (plan->phase != SPEC_PHASE_PREFILL || (!a->bias && !a->glu && a->act == SPEC_ACT_NONE)) return 0;
    return (size_t)plan->n_row_max * (size_t)a->n_out;
}

/* ------------------------------------------------------------------------------- launcher --- */

spec_status speci_cuda_check_linear(spec_device *dev, const spec_linear_args *a)
{
    if (a->n_in < 1 || a->n_out < 1 || (a->glu && a->n_out % 2))
        return dev->host->fail(SPEC_E_INVALID, "cuda linear: weight of %d x %d%s", a->n_out, a->n_in,
                               a->glu ? " with glu" : "");
    if (a->act < SPEC_ACT_NONE || a->act > SPEC_ACT_RELU)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: activation %d is not known", (int)a->act);
    if (!cuda_is_float(a->x.dtype) || (a->y.dtype != SPEC_DTYPE_F32 && a->y.dtype != a->x.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: x is type %d, y is type %d", (int)a->x.dtype,
                               (int)a->y.dtype);
    if (a->add && a->y.dtype != SPEC_DTYPE_F32)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: what is added to must be f32");
    if (a->w && (a->w->n_in != a->n_in || a->w->n_out != a->n_out))
        return dev->host->fail(SPEC_E_INVALID, "cuda linear: weight is %d x %d, expected %d x %d", a->w->n_out,
                               a->w->n_in, a->n_out, a->n_in);
    if (a->w && a->w->dtype != a->x.dtype)
        return dev->host->fail(SPEC_E_INVALID, "cuda linear: weight is type %d, x is type %d", (int)a->w->dtype,
                               (int)a->x.dtype);
    return SPEC_OK;
}

spec_status speci_cuda_linear(spec_queue *q, const spec_linear_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "linear"));
    SPEC_TRY(speci_cuda_check_linear(q->dev, a));
    if (!a->w) return q->dev->host->fail(SPEC_E_INVALID, "cuda linear: no weight");
    linear_out o;
    o.y = a->y.data, o.bias = a->bias, o.y_type = a->y.dtype, o.ld_y = a->y.ld, o.n_out = a->n_out, o.act = a->act;
    o.glu = a->glu != 0, o.add = a->add != 0, o.scale = a->scale;
    spec_status status = SPEC_OK;
    if (q->shape.phase == SPEC_PHASE_PREFILL && linear_blas(q, a, o, &status)) return status;

    const int rows = q->shape.rows;
    const bool aligned = cuda_aligned(a->x.data, 16) && (size_t)a->x.ld * cuda_size(a->x.dtype) % 16 == 0;
    return cuda_by_dtype(a->w->dtype, [&](auto tag) {
        using T = decltype(tag);
        if constexpr (sizeof(T) == 4 || SPEC_CUDA_LINEAR_FMA) {
            if (o.glu) launch_fma<T, 2>(q, a, o, rows, aligned);
            else launch_fma<T, 1>(q, a, o, rows, aligned);
        } else {
            /* Two tiles of outputs a block halve the reading of x; one keeps small matrices spread over the device.
             * The bits are the same. */
            const bool wide = rows > 16 && a->n_out >= 32 * 2 * q->dev->n_sm;
            if (o.glu || wide) launch_mma<T, 2>(q, a, o, rows, aligned);
            else launch_mma<T, 1>(q, a, o, rows, aligned);
        }
        return cuda_launched(q, "linear");
    });
}
