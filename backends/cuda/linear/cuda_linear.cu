/* cuda_linear.cu - t = W x (+ bias); glu: t = act(t_gate) t_up, else t = act(t); y = scale t, or y += scale t.
 * W [n_out][ld] f32, bf16 or f16, rows padded with zeros to whole chunks; x [rows][n_in] of the same type;
 * y [rows][n_out] (n_out / 2 with glu) f32 or that type.
 *
 * Decode has own kernels, since a library changes its order of summation with the number of rows:
 *
 *   16 bit   W is the wide operand of the matrix instruction (m16n8k16, float32 accumulators), the rows of x the
 *            narrow one, padded to 8. The sums of 8 parts of K (cuda_linear.cuh), each in ascending order, 32 k at a
 *            time, make an element of the product: of one row of W and one of x, so no tiling and no division of the
 *            work changes a bit.
 *            Which k a lane's registers stand for is free as long as W and x agree: each lane takes 16 bytes, that is 8
 *            consecutive k, and these make two instructions.
 *            Three kernels: for up to 32 rows (cuda_linear_few.cuh), for more (cuda_linear_many.cuh), and for 17 to 32 rows
 *            of wide matrices (cuda_linear_part.cu); the first two take weights of Q8_0 too, divided otherwise
 *            (speci_cuda_is_many). All begin to copy weights to shared memory before they wait for x, hence while the
 *            operations before them still run: that hides their latency.
 *            The first of them also makes what comes next, where that takes no more than its outputs: the terms of a
 *            deferred norm (cuda_norm.cuh), and up to 16 rows a convolution (cuda_conv.cuh).
 *   float32  One warp per output (two with glu), lanes stride K by 4 elements, fmaf, and a shuffle tree.
 *            This kernel can also do the 16-bit types (SPEC_CUDA_LINEAR_FMA=1): the readable twin of the other.
 *
 * Prefill uses cuBLAS (float32 sums, no TF32), then an epilogue over a float32 scratch where there is one to do; what
 * cuBLAS refuses runs through the decode kernels. */
#include "backends/cuda/linear/cuda_linear_few.cuh"

/* ------------------------------------------------------------------ 16 bit: matrix instruction --- */

template <typename T> struct few_plain {
    typedef T type;
    static constexpr bool deep_glu = true, unpacks = false;

    /* A lane copies 16 bytes, 8 consecutive k, of rows g and g + 8 of each strip. With glu the strips are gates and their ups. */
    template <int MT, int CHUNKS> struct reader {
        enum { SIZE = CHUNKS * MT * 2 * 32, K = CHUNKS * 32 };
        const T *from[MT * 2];
        size_t stride; /* from one of the block's tiles to the next */
        int lane;
        uint64_t policy;

        __device__ __forceinline__ reader(const void *w, int ld_w, int, int half, int k0, int lane_)
            : stride((size_t)gridDim.y * 16 * ld_w), lane(lane_), policy(read_once())
        {
#pragma unroll
            for (int i = 0; i < MT * 2; i++)
                from[i] = (const T *)w + (size_t)((int)blockIdx.y * 16 + lane / 4 + i % 2 * 8 + i / 2 * half) * ld_w + k0 +
                          lane % 4 * 8;
        }
        /* Block `block` of the tile, or of the next one. */
        __device__ __forceinline__ void copy(uint4 *ring, int block, bool of_next) const
        {
            const size_t at = (of_next ? stride : 0) + (size_t)block * K;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
#pragma unroll
                for (int i = 0; i < MT * 2; i++) copy16(ring + (c * MT * 2 + i) * 32 + lane, from[i] + at + c * 32, policy);
        }
        template <int NT>
        __device__ __forceinline__ void multiply(float acc[MT][NT][4], const uint4 *ring, const uint4 b[CHUNKS][NT]) const
        {
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                uint4 a[MT * 2];
#pragma unroll
                for (int i = 0; i < MT * 2; i++) a[i] = ring[(c * MT * 2 + i) * 32 + lane];
#pragma unroll
                for (int i = 0; i < MT; i++)
#pragma unroll
                    for (int n = 0; n < NT; n++) mma_chunk<T>(acc[i][n], a[2 * i], a[2 * i + 1], b[c][n]);
            }
        }
        __device__ __forceinline__ void go_on()
        {
#pragma unroll
            for (int i = 0; i < MT * 2; i++) from[i] += stride;
        }
    };
};

template <typename T>
static spec_status launch_mma(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass)
{
    if (speci_cuda_is_many(q, a)) return speci_cuda_linear_many(q, a, o, aligned, pass);
    spec_status status = SPEC_OK;
    if (speci_cuda_linear_part(q, a, o, aligned, &status)) return status;
    return linear_few<few_plain<T>>(q, a, o, aligned, pass);
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
    grid_begin();
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
        const float sum = warp_sum(acc[0][r]), factor = norm_factor(o.norm, row0 + r);
        const float up = MW == 2 ? warp_sum(acc[MW - 1][r]) : 0.0f;
        if (lane == 0) linear_store(o, row0 + r, m, factor, sum, up);
    }
}

template <typename T, int MW>
static spec_status launch_fma(spec_queue *q, const cuda_linear_args *a, const linear_out &o, int rows, bool aligned)
{
    const int tile = rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8;
    auto *kernel = tile == 1   ? linear_fma_kernel<T, MW, 1>
                   : tile == 2 ? linear_fma_kernel<T, MW, 2>
                   : tile == 4 ? linear_fma_kernel<T, MW, 4>
                               : linear_fma_kernel<T, MW, 8>;
    const dim3 grid((unsigned)cuda_div_up(o.n_out / MW, FMA_WARPS), (unsigned)cuda_div_up(rows, tile));
    return cuda_launch(q, "linear", kernel, grid, dim3(FMA_WARPS * 32), 0, 1, q->d_step, (const T *)a->w->data, a->w->ld,
                       (const T *)a->x.data, a->x.ld, a->n_in, (int)aligned, o);
}

/* -------------------------------------------------------------------------------- prefill --- */

/* The epilogue over t [rows][n_out] in scratch. */
static __global__ void linear_epilogue_kernel(const spec_step_block *step, const float *t, int n_y, linear_out o)
{
    const int r = (int)blockIdx.y;
    grid_begin();
    if (r >= step->n_row_run) return;
    const float *row = t + (size_t)r * o.n_out;
    for (int m = (int)(blockIdx.x * blockDim.x + threadIdx.x); m < n_y; m += (int)(gridDim.x * blockDim.x))
        linear_store(o, r, m, 1.0f, row[m], o.glu ? row[m + n_y] : 0.0f);
}

static cudaDataType_t blas_type(spec_dtype t)
{
    return t == SPEC_DTYPE_F32 ? CUDA_R_32F : t == SPEC_DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* cuBLAS is column-major: there W is [n_in][n_out] to be transposed, x [n_in][rows], y [n_out][rows]. */
static cublasStatus_t linear_gemm(spec_queue *q, const cuda_linear_args *a, void *y, cudaDataType_t y_type, int ld_y,
                                  float alpha, float beta)
{
    const cublasHandle_t blas = q->dev->blas;
    const cudaDataType_t type = blas_type(a->w->dtype);
    std::lock_guard<std::mutex> lock(q->dev->blas_lock);
    cublasStatus_t s = cublasSetStream(blas, q->stream);
    if (s == CUBLAS_STATUS_SUCCESS) s = cublasSetWorkspace(blas, q->blas_workspace, q->blas_bytes); /* the stream resets it */
    if (s != CUBLAS_STATUS_SUCCESS) return s;
    return cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, a->n_out, q->n_row_run, a->n_in, &alpha, a->w->data, type, a->w->ld,
                        a->x.data, type, a->x.ld, &beta, y, y_type, ld_y, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

/* Returns false where the library does not take the case; the decode kernels then do it. */
static bool linear_blas(spec_queue *q, const cuda_linear_args *a, const linear_out &o, spec_status *status)
{
    const int rows = q->n_row_run;
    const bool direct = !a->bias && !a->glu && a->act == SPEC_ACT_NONE;
    if (!q->blas_bytes || (!direct && (size_t)rows * a->n_out > q->linear_floats)) return false;
    const cublasStatus_t s =
        direct ? linear_gemm(q, a, a->y.data, blas_type(a->y.dtype), a->y.ld, a->scale, a->add ? 1.0f : 0.0f)
               : linear_gemm(q, a, q->linear_scratch, CUDA_R_32F, a->n_out, 1.0f, 0.0f);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE) {
        (void)cudaGetLastError();
        return false;
    }
    if (s != CUBLAS_STATUS_SUCCESS) {
        *status = q->dev->host->fail(SPEC_E_DEVICE, "cuda linear: cuBLAS: %s", cublasGetStatusString(s));
        return true;
    }
    if (!direct) {
        const int n_y = a->glu ? a->n_out / 2 : a->n_out;
        const int blocks = cuda_div_up(n_y, 1024);
        *status = cuda_launch(q, "linear prefill", linear_epilogue_kernel, dim3((unsigned)blocks, (unsigned)rows), dim3(256),
                              0, 1, q->d_step, q->linear_scratch, n_y, o);
        return true;
    }
    *status = cuda_launched(q, "linear prefill");
    return true;
}

size_t speci_cuda_linear_floats(const spec_linear_args *a, const spec_plan *plan)
{
    if (plan->phase != SPEC_PHASE_PREFILL) return speci_cuda_arranged_floats(a, plan);
    if (a->w && a->w->format->products) return a->w->format->products->floats(a, plan);
    if (!a->bias && !a->glu && a->act == SPEC_ACT_NONE) return 0;
    return (size_t)plan->n_row_max * (size_t)a->n_out;
}

/* --- a matrix that is unpacked for it --- */

static size_t epilogue_floats(const spec_linear_args *a, int32_t rows)
{
    return cuda_round_up((size_t)rows * (size_t)a->n_out, 64);
}
static size_t unpacked_floats(const spec_linear_args *a, int32_t rows)
{
    const size_t matrix = ((size_t)a->n_out + CUDA_WEIGHT_PAD) * (size_t)a->w->ld;
    return epilogue_floats(a, rows) + matrix * speci_dtype_bytes(a->w->dtype) / 4;
}

size_t speci_cuda_unpacked_floats(const spec_linear_args *a, const spec_plan *plan)
{
    return plan->phase == SPEC_PHASE_PREFILL ? unpacked_floats(a, plan->n_row_max) : 0;
}

bool speci_cuda_unpacked(spec_queue *q, const cuda_linear_args *a, spec_weight *plain)
{
    if (q->linear_floats < unpacked_floats(a, q->n_row_run)) return false; /* the queue was not opened for the operation */
    *plain = *a->w;
    plain->data = q->linear_scratch + epilogue_floats(a, q->n_row_run);
    return true;
}

/* ------------------------------------------------------------------------------- launcher --- */

spec_status speci_cuda_check_linear(spec_device *dev, const spec_linear_args *a)
{
    if (a->n_in < 1 || a->n_out < 1 || (a->glu && a->n_out % 2))
        return dev->host->fail(SPEC_E_INVALID, "cuda linear: weight of %d x %d%s", a->n_out, a->n_in,
                               a->glu ? " with glu" : "");
    if (a->act < SPEC_ACT_NONE || a->act > SPEC_ACT_CAP)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: activation %d is not known", (int)a->act);
    if (a->act == SPEC_ACT_CAP && (!(a->scale > 0.0f) || a->glu || a->add || a->y.dtype != SPEC_DTYPE_F32))
        return dev->host->fail(SPEC_E_INVALID, "cuda linear: capped at %g, with glu %d, add %d, y %s", (double)a->scale, a->glu,
                               a->add, speci_dtype_name(a->y.dtype));
    if (!cuda_is_float(a->x.dtype) || (a->y.dtype != SPEC_DTYPE_F32 && a->y.dtype != a->x.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: x is %s, y %s", speci_dtype_name(a->x.dtype),
                               speci_dtype_name(a->y.dtype));
    if (a->add && a->y.dtype != SPEC_DTYPE_F32)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: what is added to must be f32");
    if (a->w && (a->w->n_in != a->n_in || a->w->n_out != a->n_out))
        return dev->host->fail(SPEC_E_INVALID, "cuda linear: weight is %d x %d, expected %d x %d", a->w->n_out,
                               a->w->n_in, a->n_out, a->n_in);
    if (a->w && a->w->dtype != a->x.dtype)
        return dev->host->fail(SPEC_E_INVALID, "cuda linear: the weight is %s, x %s", speci_dtype_name(a->w->dtype),
                               speci_dtype_name(a->x.dtype));
    return SPEC_OK;
}

static spec_status multiply(spec_queue *q, const cuda_linear_args *given, const linear_out &o, cuda_pass *pass)
{
    spec_status status = SPEC_OK;
    cuda_linear_args unpacked = *given;
    spec_weight plain;
    const bool prefill = q->shape.phase == SPEC_PHASE_PREFILL, aligned = linear_aligned(given);
    const linear_format *products = given->w->format->products;
    if (products && prefill && products->unpack(q, given, &plain, &status)) {
        plain.format = speci_cuda_format_of(plain.dtype);
        unpacked.w = &plain, products = NULL;
    }
    if (status != SPEC_OK) return status;
    const cuda_linear_args *const a = &unpacked;
    if (products) return products->product(q, a, o, aligned, pass);
    if (prefill && linear_blas(q, a, o, &status)) return status;
    const int rows = q->shape.rows;
    return cuda_by_dtype(a->w->dtype, [&](auto tag) {
        using T = decltype(tag);
        if constexpr (sizeof(T) == 4 || SPEC_CUDA_LINEAR_FMA)
            return o.glu ? launch_fma<T, 2>(q, a, o, rows, aligned) : launch_fma<T, 1>(q, a, o, rows, aligned);
        else
            return launch_mma<T>(q, a, o, aligned, pass);
    });
}

/* The cap by a kernel of its own: one more activation would cost the kernels of all models registers. */
static spec_status linear_capped(spec_queue *q, const cuda_linear_args *a, unsigned long long *best, cuda_pass *pass)
{
    cuda_linear_args plain = *a;
    plain.act = SPEC_ACT_NONE, plain.scale = 1.0f;
    SPEC_TRY(speci_cuda_linear(q, &plain, NULL, pass));
    SPEC_TRY(speci_cuda_cap_rows(q, &a->y, a->n_out, a->scale));
    return best ? speci_cuda_row_best(q, &a->y, a->n_out, best) : SPEC_OK;
}

spec_status speci_cuda_linear(spec_queue *q, const cuda_linear_args *a, unsigned long long *best, cuda_pass *pass)
{
    SPEC_TRY(cuda_enter_op(q, "linear"));
    SPEC_TRY(speci_cuda_check_linear(q->dev, a));
    if (a->act == SPEC_ACT_CAP) return linear_capped(q, a, best, pass);
    if (!a->w) return q->dev->host->fail(SPEC_E_INVALID, "cuda linear: no weight");
    linear_out o = linear_out_of(a);
    const bool within = best && linear_has_whole(q, a); /* else the rows are read again */
    if (within) o.best = best;
    SPEC_TRY(multiply(q, a, o, pass));
    return best && !within ? speci_cuda_row_best(q, &a->y, a->n_out, best) : SPEC_OK;
}

/* The kernel for few rows can do a deferred norm of y, of Q8_0 with any number of rows. */
bool speci_cuda_linear_norm(spec_queue *q, const cuda_linear_args *a, const cuda_norm_args *norm, cuda_pass *pass,
                            spec_status *status)
{
    if (SPEC_CUDA_LINEAR_FMA || q->shape.phase != SPEC_PHASE_DECODE || !a->w || speci_cuda_is_many(q, a) ||
        a->x.dtype != SPEC_DTYPE_BF16 || !a->add || !norm_follows(norm, &a->y, a->n_out, a->x.dtype))
        return false;
    if ((*status = cuda_enter_op(q, "linear")) != SPEC_OK || (*status = speci_cuda_check_linear(q->dev, a)) != SPEC_OK ||
        (*status = speci_cuda_check_norm(q->dev, norm)) != SPEC_OK)
        return true;
    linear_out o = linear_out_of(a);
    o.next = norm_out_of(norm);
    if (has_tiles(pass, a)) o.next.tiles = speci_cuda_arranged_for(q, pass, ORDER_TILES, pass->in.at);
    *status = multiply(q, a, o, pass);
    return true;
}

/* --- and the convolution of what it makes --- */

/* Are the convolution's inputs whole tiles of y? */
static bool conv_follows(const cuda_linear_args *a, const spec_conv_args *conv, int *first)
{
    const ptrdiff_t bytes = (const char *)conv->u.data - (const char *)a->y.data, size = (ptrdiff_t)speci_dtype_bytes(a->y.dtype);
    *first = (int)(bytes / size);
    return conv_is_plain(conv) && conv->u.dtype == a->y.dtype && conv->u.ld == a->y.ld && bytes >= 0 && bytes < a->n_out * size &&
           *first % CONV_TILE == 0 && conv->n_channel % CONV_TILE == 0 && *first + conv->n_channel <= a->n_out;
}

/* Is a kernel for both faster? Measured on an H200, not reasoned: where the blocks of all tiles are resident at
 * once, two on each multiprocessor or more, they end together, and what the scan does before its wait stands alone, where a
 * convolution between would hide it; likewise what stands before a scan of more than four rows that is not next, in large
 * models. */
static bool conv_pays(const spec_queue *q, const cuda_linear_args *a, bool scan_next)
{
    const int rows = q->shape.rows, nt = rows > 8 ? 2 : 1, tiles = cuda_div_up(a->n_out, 16), n_sm = q->dev->n_sm;
    if (is_deep(a) && rows > 4 && !scan_next) return false;
    return tiles < 2 * n_sm || tiles > few_blocks<few_plain<__nv_bfloat16>>(nt, nt == 1 && is_deep(a) ? 3 : 2) * n_sm;
}

/* The kernel for few rows has up to 16 in one tile, so whoever stores a channel's inputs has all of them. */
bool speci_cuda_linear_conv(spec_queue *q, const cuda_linear_args *a, const spec_conv_args *conv, bool scan_next, cuda_pass *pass,
                            spec_status *status)
{
    const int rows = q->shape.rows;
    const int4 *const ancestors = pass->steps.n_node == conv->n_node ? pass->steps.ancestors : NULL;
    linear_extra<LINEAR_CONV> extra = { *conv, ancestors, 0, q->shape.seqs, CONV_PARTS, !scan_next && rows > 2 };
    if (!a->w || !linear_has_whole(q, a) || rows > 16 || a->glu || a->add || a->act == SPEC_ACT_CAP || conv->dtype != a->x.dtype ||
        conv->width != CONV_WIDTH_MAX || !cuda_aligned(conv->weight, 16) || !cuda_aligned(conv->bias, 16) ||
        !cuda_aligned(conv->window, 16) || !cuda_aligned(conv->cache, 16) || !conv_follows(a, conv, &extra.first) ||
        !conv_pays(q, a, scan_next))
        return false;
    if ((*status = cuda_enter_op(q, "linear")) != SPEC_OK || (*status = speci_cuda_check_linear(q->dev, a)) != SPEC_OK ||
        (*status = speci_cuda_check_conv(q->dev, conv)) != SPEC_OK)
        return true;
    if (a->w->format->products) *status = a->w->format->products->conv(q, a, extra, pass);
    else if (a->x.dtype == SPEC_DTYPE_BF16) *status = linear_few_conv<few_plain<__nv_bfloat16>>(q, a, extra, pass);
    else *status = linear_few_conv<few_plain<__half>>(q, a, extra, pass);
    return true;
}
