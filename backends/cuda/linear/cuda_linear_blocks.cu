/* cuda_linear_blocks.cu - products with weights in the blocks of GGUF files (layout: cuda_blocks.cuh; epilogue: cuda_linear.cuh).
 *
 * Decode. 16 bit: as weights of 16 bits (cuda_linear_few.cuh). What a lane multiplies becomes bf16 or f16 in registers; from there on
 * the sums are those of plain weights. float32: a warp an output, fmaf, a shuffle tree, again in the order of plain weights
 * (linear_fma_kernel). Prefill: the matrix becomes a plain one in scratch, then the plain product.
 *
 * There are as few kernels as can be: rows of x as in most models have those for 8, 16 and 32 rows in bf16, from 33 on that of
 * cuda_linear_many_blocks.cu; others, and f16, have those for 8 and 32 rows, take another turn where there are more, and unpack
 * once more. A norm of x or behind y is looked at where there may be one. */
#include "backends/cuda/linear/cuda_blocks.cuh"
#include "backends/cuda/linear/cuda_linear_few.cuh"

/* ------------------------------------------------------------------ 16 bit: matrix instruction --- */

template <spec_dtype D, typename V> struct few_blocks_of {
    typedef V type;
    static constexpr bool deep_glu = false, unpacks = true;

    /* A block of the ring is the strips' bytes as they lie, whole pieces of each, and of blocks of 256 the head behind them. Lanes copy
     * 16 bytes in turn, so what a lane multiplies has been copied by others. */
    template <int MT, int CHUNKS> struct reader {
        typedef blocks_layout<D> L;
        enum {
            PIECES = CHUNKS / 2, BYTES = PIECES * L::PIECE, STRIP = (BYTES + L::HEAD) / 16 /* uint4 */,
            SIZE = MT * STRIP
        };
        static_assert(CHUNKS % 2 == 0 && CUDA_CHUNK % (PIECES * Q8_PIECE) == 0 && (L::GROUP == 1 || L::GROUP % PIECES == 0),
                      "parts of K begin with a block of the ring, whose pieces have one head");
        const char *from[MT]; /* strips, at this lane's 16 bytes */
        uint32_t stride;      /* from one of the block's tiles to the next */
        int first, n_piece, lane; /* pieces: this warp's first; of a row */
        uint64_t policy;

        __device__ __forceinline__ reader(const void *w, int, int n_in, int, int k0, int lane_)
            : first(k0 / Q8_PIECE), lane(lane_), policy(read_once())
        {
            const q8_shape shape = { 0, n_in, 0 };
            n_piece = L::n_piece(shape);
            const size_t strip = L::strip_bytes(shape);
            stride = (uint32_t)(gridDim.y * MT * strip);
#pragma unroll
            for (int i = 0; i < MT; i++) from[i] = (const char *)w + ((size_t)blockIdx.y * MT + i) * strip + lane * 16;
        }
        __device__ __forceinline__ void copy(uint4 *ring, int block, bool of_next) const
        {
            const int piece = first + block * PIECES;
            const uint32_t tile = of_next ? stride : 0;
            __syncwarp(); /* what was here has been read */
#pragma unroll
            for (int i = 0; i < MT; i++) {
                uint4 *const to = ring + i * STRIP + lane;
                const char *const at = from[i] + (tile + L::piece_at(piece));
#pragma unroll
                for (int b = 0; b < BYTES; b += 512) {
                    if (b + lane * 16 >= BYTES) break;
                    if constexpr (L::HEAD > 0) copy16(to + b / 16, at + b, policy);
                    else { /* behind the row, where x is zero, zeros: no number of another strip */
                        const bool there = piece * (int)L::PIECE + b + lane * 16 < n_piece * (int)L::PIECE;
                        copy_part16(to + b / 16, there ? at + b : from[i], there ? 16 : 0);
                    }
                }
                if (lane * 16 < L::HEAD) copy16(to + BYTES / 16, from[i] + (tile + L::head_at(piece)), policy);
            }
        }
        template <int NT>
        __device__ __forceinline__ void multiply(float acc[MT][NT][4], const uint4 *ring, const uint4 x[CHUNKS][NT]) const
        {
            const int g = lane / 4;
            __syncwarp(); /* what other lanes have copied is there */
#pragma unroll
            for (int i = 0; i < MT; i++) {
                uint32_t head[2] = { 0, 0 };
                words<L::G_HEAD>(head, ring + i * STRIP + BYTES / 16, g);
#pragma unroll
                for (int p = 0; p < PIECES; p++) {
                    const uint4 *const at = ring + i * STRIP + p * (L::PIECE / 16), low = at[lane];
                    uint32_t high[2] = { 0, 0 }, scales[4] = { 0, 0, 0, 0 };
                    words<L::LANE_HIGH>(high, at + L::HIGH_AT / 16, lane);
                    words<L::G_SCALES>(scales, at + L::SCALES_AT / 16, g);
                    const uint32_t four[4] = { low.x, low.y, low.z, low.w };
#pragma unroll
                    for (int group = 0; group < 2; group++) {
                        uint4 wide[2];
#pragma unroll
                        for (int upper = 0; upper < 2; upper++) {
                            const int word = 2 * upper + group;
                            const uint32_t above = L::LANE_HIGH == 8 ? high[upper] >> 16 * group : high[0] >> 8 * word;
                            wide[upper] = blocks_eight<D, V>(four[word], above,
                                                             blocks_scale_of<D>(scales, head, upper, group, lane % 4 / 2));
                        }
#pragma unroll
                        for (int n = 0; n < NT; n++) mma_chunk<V>(acc[i][n], wide[0], wide[1], x[2 * p + group][n]);
                    }
                }
            }
        }
        __device__ __forceinline__ void go_on()
        {
#pragma unroll
            for (int i = 0; i < MT; i++) from[i] += stride;
        }

    private:
        /* The i-th so many bytes. */
        template <int BYTES_> __device__ __forceinline__ void words(uint32_t *out, const uint4 *at, int i) const
        {
            if constexpr (BYTES_ == 4) out[0] = ((const uint32_t *)at)[i];
            if constexpr (BYTES_ == 8) out[0] = ((const uint2 *)at)[i].x, out[1] = ((const uint2 *)at)[i].y;
            if constexpr (BYTES_ == 16) out[0] = at[i].x, out[1] = at[i].y, out[2] = at[i].z, out[3] = at[i].w;
        }
    };
};

template <spec_dtype D, typename T>
static spec_status launch_mma(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass)
{
    typedef few_blocks_of<D, T> W;
    constexpr linear_more MORE = std::is_same_v<T, __nv_bfloat16> ? LINEAR_NORMS : LINEAR_PLAIN; /* norms are deferred in bf16 alone */
    const bool whole = aligned && a->n_in % CUDA_CHUNK == 0;
    auto few = [&](auto tiles, auto how) {
        constexpr int NT = decltype(tiles)::value;
        constexpr few_x X = decltype(how)::value;
        return o.glu ? launch_few_with<W, 2, NT, 2, X, MORE>(q, a, o, q->shape.rows, aligned, pass)
                     : launch_few_with<W, 1, NT, 2, X, MORE>(q, a, o, q->shape.rows, aligned, pass);
    };
    constexpr std::integral_constant<few_x, X_ANY> any;
    constexpr std::integral_constant<int, 1> one;
    constexpr std::integral_constant<int, 4> four;
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        constexpr std::integral_constant<few_x, X_ROWS> usual;
        if (speci_cuda_is_many(q, a)) return speci_cuda_linear_many_blocks(q, a, o, aligned, pass);
        if (whole && q->shape.rows > 16) return few(four, usual);
        if (whole) return q->shape.rows > 8 ? few(std::integral_constant<int, 2>(), usual) : few(one, usual);
    }
    return q->shape.rows > 8 ? few(four, any) : few(one, any);
}

/* ----------------------------------------------------------------------------------- FMA --- */

enum { BLOCKS_FMA_WARPS = 4, BLOCKS_FMA_ROWS = 8, BLOCKS_FMA_VALUES = 4 /* that a lane takes at once */ };

/* x [ROWS] rows times row m of w. */
template <spec_dtype D, typename T>
static __device__ __forceinline__ void add_row(float acc[BLOCKS_FMA_ROWS], const char *w, const q8_shape &s, int m, const T *x, int ld_x,
                                               int n_row)
{
    for (int k = (int)threadIdx.x % 32 * BLOCKS_FMA_VALUES; k < s.n_in; k += 32 * BLOCKS_FMA_VALUES) {
        float v[BLOCKS_FMA_VALUES];
        blocks_values<D, BLOCKS_FMA_VALUES>(v, w, s, m, k);
#pragma unroll
        for (int row = 0; row < BLOCKS_FMA_ROWS; row++) {
            if (row >= n_row) break;
#pragma unroll
            for (int i = 0; i < BLOCKS_FMA_VALUES; i++)
                acc[row] = fmaf(to_f32(from_f32<T>(v[i])), to_f32(x[(size_t)row * ld_x + k + i]), acc[row]);
        }
    }
}

template <spec_dtype D, typename T>
static __global__ void __launch_bounds__(BLOCKS_FMA_WARPS * 32)
linear_blocks_fma_kernel(const spec_step_block *step, const char *__restrict__ w, q8_shape shape, const T *__restrict__ x, int ld_x,
                         linear_out o)
{
    grid_begin();
    const int row0 = (int)blockIdx.y * BLOCKS_FMA_ROWS, n_row = step->n_row_run - row0;
    const int m = (int)blockIdx.x * BLOCKS_FMA_WARPS + (int)threadIdx.x / 32;
    if (n_row <= 0 || m >= (o.glu ? o.n_out / 2 : o.n_out)) return;
    float acc[BLOCKS_FMA_ROWS] = {}, up[BLOCKS_FMA_ROWS] = {};
    add_row<D>(acc, w, shape, m, x + (size_t)row0 * ld_x, ld_x, n_row);
    if (o.glu) add_row<D>(up, w, shape, m + o.n_out / 2, x + (size_t)row0 * ld_x, ld_x, n_row);
#pragma unroll
    for (int r = 0; r < BLOCKS_FMA_ROWS; r++) {
        if (r >= n_row) break;
        const float sum = warp_sum(acc[r]), sum_up = warp_sum(up[r]);
        const float factor = norm_factor(o.norm, row0 + r);
        if (threadIdx.x % 32 == 0) linear_store(o, row0 + r, m, factor, sum, sum_up);
    }
}

template <spec_dtype D, typename T> static spec_status launch_fma(spec_queue *q, const cuda_linear_args *a, int rows)
{
    const int n_m = a->glu ? a->n_out / 2 : a->n_out;
    const dim3 grid((unsigned)cuda_div_up(n_m, BLOCKS_FMA_WARPS), (unsigned)cuda_div_up(rows, BLOCKS_FMA_ROWS));
    return cuda_launch(q, "linear blocks", linear_blocks_fma_kernel<D, T>, grid, dim3(BLOCKS_FMA_WARPS * 32), 0, 1, q->d_step,
                       (const char *)a->w->data, q8_shape_of(a->w), (const T *)a->x.data, a->x.ld, linear_out_of(a));
}

/* ------------------------------------------------------------------------------- prefill --- */

/* out [n_out][ld]; columns from n_in on are zero. A warp takes a piece of a strip: a lane writes eight values of rows g and g + 8, of both
 * groups, whose words lie side by side. */
template <spec_dtype D, typename T>
static __global__ void blocks_plain_kernel(T *out, int ld, const char *__restrict__ w, q8_shape s)
{
    typedef blocks_layout<D> L;
    grid_begin();
    const uint32_t lane = threadIdx.x % 32, per_strip = (uint32_t)(ld / Q8_PIECE), n = (uint32_t)s.n_strip() * per_strip;
    const int rows = s.glu ? s.n_out / 2 : s.n_out;
    for (uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < n; i += gridDim.x * blockDim.x / 32) {
        const int strip = (int)(i / per_strip), k0 = (int)(i % per_strip) * Q8_PIECE;
#pragma unroll
        for (int word = 0; word < 4; word++) {
            const int in_strip = word / 2 * 8 + (int)lane / 4, k = k0 + word % 2 * 32 + (int)lane % 4 * 8;
            const int row = (s.glu ? strip / 2 : strip) * Q8_STRIP + in_strip;
            if (row >= rows) continue;
            eight<T> e = {};
            if (k < s.n_in) {
                float v[8];
                blocks_values_of<D, 8>(v, w + (size_t)strip * L::strip_bytes(s), in_strip, k);
#pragma unroll
                for (int j = 0; j < 8; j++) e.v[j] = from_f32<T>(v[j]);
            }
            *(eight<T> *)(out + (size_t)(s.glu ? row + strip % 2 * rows : row) * ld + k) = e;
        }
    }
}

static bool unpack(spec_queue *q, const cuda_linear_args *a, spec_weight *plain, spec_status *status)
{
    if (!speci_cuda_unpacked(q, a, plain)) return false;
    *status = blocks_by_type(a->w->format->dtype, [&](auto d) {
        return cuda_by_dtype(plain->dtype, [&](auto t) {
            using T = decltype(t);
            return cuda_launch(q, "weight blocks to plain", blocks_plain_kernel<decltype(d)::value, T>, dim3(8 * (unsigned)q->dev->n_sm),
                               dim3(256), 0, 1, (T *)plain->data, plain->ld, (const char *)a->w->data, q8_shape_of(a->w));
        });
    });
    return true;
}

/* ------------------------------------------------------------------------------- launcher --- */

static spec_status linear_blocks(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass)
{
    return blocks_by_type(a->w->format->dtype, [&](auto d) {
        return cuda_by_dtype(a->w->dtype, [&](auto t) {
            constexpr spec_dtype D = decltype(d)::value;
            using T = decltype(t);
            if constexpr (sizeof(T) == 4 || SPEC_CUDA_LINEAR_FMA) return launch_fma<D, T>(q, a, q->shape.rows);
            else return launch_mma<D, T>(q, a, o, aligned, pass);
        });
    });
}

static bool blocks_is_many(const spec_queue *q, const spec_linear_args *a)
{
    return a->x.dtype == SPEC_DTYPE_BF16 && q->shape.rows > LINEAR_FEW;
}

const linear_format speci_cuda_linear_blocks = { linear_blocks, NULL, blocks_is_many, unpack, speci_cuda_unpacked_floats };
