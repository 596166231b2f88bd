/* cuda_linear.cuh - what the kernels of products share, whatever the weights are made of: loads, the matrix instruction,
 * the epilogue; the first two serve prefill's attention and scan as well. */
#ifndef SPEC_CUDA_LINEAR_CUH
#define SPEC_CUDA_LINEAR_CUH

#include "backends/cuda/scan/cuda_conv.cuh"
#include "backends/cuda/rows/cuda_norm.cuh"
#include "backends/cuda/rows/cuda_rank.cuh"

#ifndef SPEC_CUDA_LINEAR_FMA
#define SPEC_CUDA_LINEAR_FMA 0 /* 1: decode passes' products of 16-bit types without the matrix instruction */
#endif

/* What the kernels need beside the operands. */
struct linear_out {
    void *y;
    const float *bias;
    int y_type, ld_y, n_out, act, glu, add;
    bool bare; /* no bias, activation or glu */
    float scale;
    norm_in norm;  /* of x */
    norm_out next; /* of y; by linear_few_kernel alone */
    unsigned long long *best; /* [rows] or NULL: raised to the ranks of the rows' largest (cuda_rank.cuh) */
    uint16_t *arranged;       /* y once more, or NULL */
};

/* What a kernel of 16-bit products has code for besides: it would stand in the way of the code that all run.
 *   NORMS  a deferred norm (cuda_norm.cuh), of x or behind y
 *   BEST   the largest of each row, and a deferred norm of x: the head
 *   CONV   the convolution of outputs from `first` on, and a deferred norm of x
 *   SLABS  y once more as slabs, and a deferred norm of x */
enum linear_more { LINEAR_PLAIN, LINEAR_NORMS, LINEAR_BEST, LINEAR_CONV, LINEAR_SLABS };

template <linear_more MORE> struct linear_extra {
    static constexpr bool late = false;
};
template <> struct linear_extra<LINEAR_CONV> {
    spec_conv_args conv;
    const int4 *ancestors; /* cuda_steps', or NULL */
    int first, seqs, parts; /* output of channel 0; sequences that there may be, and parts of each (conv_rest) */
    bool late;             /* the next kernel is let be when x has been asked for, not before */
};

static inline linear_out linear_out_of(const cuda_linear_args *a)
{
    linear_out o;
    o.y = a->y.data, o.bias = a->bias, o.y_type = a->y.dtype, o.ld_y = a->y.ld, o.n_out = a->n_out, o.act = a->act;
    o.glu = a->glu != 0, o.add = a->add != 0, o.scale = a->scale;
    o.bare = !a->bias && !a->glu && a->act == SPEC_ACT_NONE;
    o.norm = norm_in_of(a), o.next = norm_out(), o.best = NULL, o.arranged = NULL;
    return o;
}

/* Of a row. */
static __host__ __device__ __forceinline__ int cuda_chunks(int n_in)
{
    return (n_in + CUDA_CHUNK - 1) / CUDA_CHUNK;
}

/* Products of 16-bit types cut K into 8 parts of whole chunks. A part is summed in ascending order; the first four are added in
 * ascending order, the last four too, then both halves. So as many warps or blocks can share an output, or one can do
 * four parts on its own, and the order of summation is a function of n_in only. */
enum {
    LINEAR_PARTS = 8,
    LINEAR_FEW = 32,                   /* rows that linear_few_kernel takes in one tile at most */
    LINEAR_NEVER_MANY = LINEAR_FEW / 2 /* rows up to which no product is one of many */
};

/* Where part p begins, in columns. */
static __host__ __device__ __forceinline__ int part_begin(int n_in, int p)
{
    return cuda_chunks(n_in) * p / LINEAR_PARTS * CUDA_CHUNK;
}

/* Of few models, and long: out of the way of the code that all run. */
static __device__ __noinline__ float activate_gelu(int act, float t)
{
    return act == SPEC_ACT_GELU ? 0.5f * t * (1.0f + erff(t * 0.70710678118654752f))
                                : 0.5f * t * (1.0f + tanhf(0.79788456080286536f * (t + 0.044715f * t * t * t)));
}
static __device__ __forceinline__ float activate(int act, float t)
{
    switch (act) {
    case SPEC_ACT_SILU: return silu(t);
    case SPEC_ACT_GELU:
    case SPEC_ACT_GELU_TANH: return activate_gelu(act, t);
    case SPEC_ACT_RELU: return t > 0.0f || isnan(t) ? t : 0.0f;
    default: return t;
    }
}

/* Output m before the scale; `up` is used with glu. */
static __device__ __forceinline__ float linear_value(const linear_out &o, int m, float t, float up)
{
    if (o.bare) return t;
    if (o.bias) t = t + o.bias[m];
    t = activate(o.act, t);
    if (!o.glu) return t;
    return t * (o.bias ? up + o.bias[m + o.n_out / 2] : up);
}

/* ... and scaled, where y has been `was`. */
static __device__ __forceinline__ float linear_scaled(const linear_out &o, float value, float was)
{
    return o.add ? fmaf(o.scale, value, was) : o.scale * value;
}

/* ... to element i of y. Returns what y is before it is rounded. */
static __device__ __forceinline__ float linear_put(const linear_out &o, size_t i, float value, float was)
{
    const float y = linear_scaled(o, value, was);
    if (o.add) ((float *)o.y)[i] = y;
    else store_any(o.y, o.y_type, i, y);
    return y;
}

/* Output m of row r, whose norm has left `factor`. */
static __device__ __forceinline__ float linear_store(const linear_out &o, int r, int m, float factor, float t, float up)
{
    const size_t i = (size_t)r * o.ld_y + m;
    return linear_put(o, i, linear_value(o, m, factor * t, factor * up), o.add ? ((const float *)o.y)[i] : 0.0f);
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

/* Weights, which a pass reads once: level 2 gives up their lines before others (states, K and V, rows). */
static __device__ __forceinline__ uint64_t read_once()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/* 16 bytes from memory to shared memory, past L1 and not waited for. */
static __device__ __forceinline__ void copy16(void *to, const void *from, uint64_t policy)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "l"(policy)
                 : "memory");
}
/* 8 bytes, and 4, which other lanes ask for as well. */
static __device__ __forceinline__ void copy8(void *to, const void *from)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8;" ::"r"(address), "l"(from) : "memory");
}
static __device__ __forceinline__ void copy4(void *to, const void *from)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
}
/* The first `bytes` of 16, zeros for the rest. */
static __device__ __forceinline__ void copy_part16(void *to, const void *from, int bytes)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
static __device__ __forceinline__ void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Four matrices of 8 x 8: lane l names row l % 8 of matrix l / 8, and receives elements 2(l % 4) and the next of row
 * l / 4 of each (turned: of column l / 4). `row`: its address in shared memory. */
static __device__ __forceinline__ void load_matrices(uint32_t m[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(row)
                 : "memory");
}
static __device__ __forceinline__ void load_turned(uint32_t m[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(row)
                 : "memory");
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

/* The two instructions of a chunk: 16 outputs (a: rows g and g + 8 of W), 8 rows (b), 32 k. */
template <typename T>
static __device__ __forceinline__ void mma_chunk(float acc[4], const uint4 &a0, const uint4 &a1, const uint4 &b)
{
    mma16816<T>(acc, a0.x, a1.x, a0.y, a1.y, b.x, b.y);
    mma16816<T>(acc, a0.z, a1.z, a0.w, a1.w, b.z, b.w);
}

/* 17 to 32 rows of a 16-bit type where the matrix is wide (cuda_linear_part.cu): whether a product in a decode pass is one, and
 * its launcher; false: nothing was launched. */
bool speci_cuda_is_part(const spec_queue *q, const cuda_linear_args *a, bool aligned);
bool speci_cuda_linear_part(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, spec_status *status);

/* More than 32 rows of a 16-bit type (in blocks: of bf16), and of Q8_0 more than 16 of long products (cuda_linear_many.cuh): whether a
 * product in a decode pass is one (cuda_linear_arrange.cu), and its launchers by kind of weights; slabs: x in the order in which it
 * is read, as the operation in front has left it, or as a kernel writes it now. */
bool speci_cuda_is_many(const spec_queue *q, const cuda_linear_args *a);
spec_status speci_cuda_linear_many(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass);
spec_status speci_cuda_linear_many_q8(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass);
spec_status speci_cuda_linear_many_blocks(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned,
                                          cuda_pass *pass);
spec_status speci_cuda_slabs_of(spec_queue *q, const cuda_linear_args *a, const cuda_pass *pass, bool aligned, const uint16_t **slabs);

/* The products of a format that is not plain: any rows; a decode pass's product with its convolution, NULL: there is none, and
 * nothing of what kernels do besides but a deferred norm; whether a product of a decode pass is one of many rows; for prefill the matrix
 * unpacked to the queue's scratch, false: there is no room, and nothing was launched; and floats of that scratch. The operations are
 * checked. */
struct linear_format {
    spec_status (*product)(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass);
    spec_status (*conv)(spec_queue *q, const cuda_linear_args *a, const linear_extra<LINEAR_CONV> &extra, cuda_pass *pass);
    bool (*is_many)(const spec_queue *q, const spec_linear_args *a);
    bool (*unpack)(spec_queue *q, const cuda_linear_args *a, spec_weight *plain, spec_status *status);
    size_t (*floats)(const spec_linear_args *a, const spec_plan *plan);
};
extern const linear_format speci_cuda_linear_q8, speci_cuda_linear_blocks; /* cuda_linear_q8.cu, cuda_linear_blocks.cu */

/* For unpack and floats (cuda_linear.cu): of a matrix of the compute type the place behind what its product's epilogue takes, false:
 * there is no room; and floats of both. */
bool speci_cuda_unpacked(spec_queue *q, const cuda_linear_args *a, spec_weight *plain);
size_t speci_cuda_unpacked_floats(const spec_linear_args *a, const spec_plan *plan);

static inline bool linear_aligned(const spec_linear_args *a)
{
    return cuda_aligned(a->x.data, 16) && (size_t)a->x.ld * speci_dtype_bytes(a->x.dtype) % 16 == 0;
}
/* Are the kernels those of 16-bit weights, with x as in most models (X_ROWS)? What they do besides they do there. */
static inline bool linear_has_whole(const spec_queue *q, const spec_linear_args *a)
{
    const linear_format *const products = a->w->format->products;
    return !SPEC_CUDA_LINEAR_FMA && q->shape.phase == SPEC_PHASE_DECODE && speci_dtype_bytes(a->w->dtype) == 2 &&
           linear_aligned(a) && a->n_in % CUDA_CHUNK == 0 && (!products || products->conv);
}

/* How x lies once more in scratch for the product that reads it, since the operation in front writes it so as well
 * (speci_cuda_arranged_for).
 *
 * Of up to 32 rows for blocks of 16 outputs: tiles of 8 rows and 32 k, 64 bytes of each row after the other, since a load of a
 * lane's 16 bytes each then touches 4 whole lines, not 8 halves; how many lines loads touch is what they cost. */
enum { TILE_LEAST = 5, TILE_MOST = LINEAR_FEW /* rows */, TILE_ROWS = 8 };
static __device__ __forceinline__ size_t tile_element(int row, int k, int n_in)
{
    const size_t tile = (size_t)(row / TILE_ROWS) * (n_in / 32) + k / 32;
    return (tile * TILE_ROWS + row % TILE_ROWS) * 32 + k % 32;
}

/* For products of many rows: slabs. The units (16 bytes) of a slab of 64 rows and 64 k: [2 chunks][4 words][64 rows],
 * where word j of a chunk of 32 k is the words j, j + 4, j + 8, j + 12 of the row. All of x: [blocks of rows][k / 64]. */
enum { SLAB_ROWS = 64, SLAB = 2 * 4 * SLAB_ROWS };

/* The place of x[row][k], x[row][k + 1] among the 32-bit words of slabs of rows of n_in, a multiple of CUDA_CHUNK. */
static __device__ __forceinline__ size_t slab_word(int row, int k, int n_in)
{
    const size_t chunk = (size_t)(row / SLAB_ROWS) * (n_in / 32) + k / 32;
    return ((chunk * 4 + k % 8 / 2) * SLAB_ROWS + row % SLAB_ROWS) * 4 + k % 32 / 8;
}
/* And that of x[row][k] among the elements. */
static __device__ __forceinline__ size_t slab_element(int row, int k, int n_in) { return 2 * slab_word(row, k, n_in) + k % 2; }
/* Who writes slabs makes the fence: where they are read it would wait for copies of weights. */
static __device__ __forceinline__ void slab_fence()
{
#if SPEC_CUDA_CLUSTERS
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

/* Element k of n of a row of y, once more. */
template <typename T>
static __device__ __forceinline__ void put_arranged(uint16_t *to, linear_order order, int row, int k, int n, float y)
{
    to[order == ORDER_TILES ? tile_element(row, k, n) : slab_element(row, k, n)] = (uint16_t)bits16(from_f32<T>(y));
}

#endif
