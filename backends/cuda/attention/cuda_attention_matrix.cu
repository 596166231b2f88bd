/* cuda_attention_matrix.cu - attention (cuda_attention_keys.cuh) with K and V of 16-bit types, on the matrix instruction:
 * decode passes, and what cuda_attention_prefill.cu leaves.
 *
 * The order of sums depends on absolute positions only:
 *   step    16 positions from a multiple of 16: scores, their maximum, the powers' sum, weighted V
 *   chunk   16 steps in ascending order, each times 2^(its maximum - the chunk's)
 *   row     its chunks in ascending order (att_sum)
 *
 * A thread block takes up to 8 queries: rows times query heads of one K/V head. A warp takes a step for all of them where
 * every row attends all of its keys and they are the same, as in a sequence's prefix; else, in the tree and at the edges
 * of windows, for one row. It has the step's K and V in flight at once, those of the prefix before it waits for the pass.
 * How rows and steps are dealt to blocks and warps changes no bit.
 *
 * An instruction multiplies 16 rows, and what it gives is of its row and column alone: rows 0 to 7 are the queries' upper
 * 16 bits, rows 8 to 15 what these leave, so that q and, likewise, the powers count as if they were not rounded to T.
 * Lane (g, t) of a warp, g = lane / 4, has of a step's scores query g and keys 2t, 2t + 1, 8 + 2t and 9 + 2t: what the
 * second product wants of it. The order of dimensions is free: K and V are read 16 bytes at a time. */
#include <limits.h>

#include "backends/cuda/attention/cuda_attention_keys.cuh"
#include "backends/cuda/cuda_tuning.h"
#include "backends/cuda/linear/cuda_linear.cuh"

enum { STEP = 16, STEPS = ATT_CHUNK / STEP /* of a chunk */, SPLIT_CHUNKS = CUDA_SPLIT / ATT_CHUNK,
       QUERIES = 8, WARPS = 16, /* of a block, at most */
       QUERIES_OWN = 16 << 10 /* bytes of shared memory that are not a query's part */ };

/* 8 elements, of which n are there, at any address. */
template <typename T> static __device__ __noinline__ uint4 load_some(const T *p, int n)
{
    uint32_t w[8];
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = i < n ? bits16(p[i]) : 0u;
    return make_uint4(w[0] | w[1] << 16, w[2] | w[3] << 16, w[4] | w[5] << 16, w[6] | w[7] << 16);
}

/* A step's K and V as a warp holds them: lane (g, t) has of keys g and 8 + g units (8 dimensions) t, 4 + t, ..., and of
 * values 2t, 2t + 1, 8 + 2t and 9 + 2t units g, 8 + g, ... Behind d there is the last unit again: q is zero there, and the
 * result not used. WHOLE: d = D, and rows are aligned. */
template <typename T, int D, bool WHOLE> struct att_step {
    uint4 k[2][D / 32], v[4][D / 64];

    static __device__ __forceinline__ uint4 unit(const void *base, int row, int u, int d, bool vec)
    {
        if (WHOLE) return *(const uint4 *)((const T *)base + (size_t)row * D + u * 8);
        const int c = min(u, (d - 1) / 8) * 8;
        const T *p = (const T *)base + (size_t)row * d + c;
        return vec ? *(const uint4 *)p : load_some(p, d - c);
    }
    /* Lane i names the row of key i % 16. */
    __device__ __forceinline__ void load(const spec_kv &kv, int row_of, bool vec)
    {
        const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = __shfl_sync(0xffffffffu, row_of, g + i * 8);
#pragma unroll
            for (int c = 0; c < D / 32; c++) k[i][c] = unit(kv.k, row, 4 * c + t, kv.head_dim, vec);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = __shfl_sync(0xffffffffu, row_of, 2 * t + i % 2 + i / 2 * 8);
#pragma unroll
            for (int h = 0; h < D / 64; h++) v[i][h] = unit(kv.v, row, 8 * h + g, kv.head_dim, vec);
        }
    }

    /* 2^scores of keys first to last (of this step) and query g: returns the scores' maximum and the powers' sum. To out,
     * where `mine`, goes weighted V, elements c to c + 3 at c ^ (c / 32 % 2 * 8) for the banks' sake.
     *   q   [D / 16][32] shared: lane (g, t) has the upper and the lower 16 bits of elements 0 and 1 of unit 4 c + t of query
     *       g, then of 2 and 3, at 2 c, and those of elements 4 to 7 at 2 c + 1 */
    template <bool CAP>
    __device__ __forceinline__ float2 attend(const uint4 (*q)[32], const att_cap &cap, int first, int last, float *out, bool mine) const
    {
        const int lane = (int)threadIdx.x % 32, t = lane % 4;
        float s[2][2][4] = {}; /* of a chunk's first and second instruction */
#pragma unroll
        for (int c = 0; c < D / 32; c++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 x = q[2 * c][lane], y = q[2 * c + 1][lane];
                mma16816<T>(s[i][0], x.x, x.y, x.z, x.w, k[i][c].x, k[i][c].y);
                mma16816<T>(s[i][1], y.x, y.y, y.z, y.w, k[i][c].z, k[i][c].w);
            }
        float p[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t key = e / 2 * 8 + 2 * t + e % 2 - first;
            const auto &x = s[e / 2];
            const float upper = x[0][e % 2] + x[1][e % 2], lower = x[0][e % 2 + 2] + x[1][e % 2 + 2];
            const float score = CAP ? cap.of(upper + lower) : upper + lower;
            p[e] = key <= (uint32_t)(last - first) ? score : -CUDART_INF_F;
        }
        const float most = quad_max(fmaxf(fmaxf(p[0], p[1]), fmaxf(p[2], p[3])));
#pragma unroll
        for (int e = 0; e < 4; e++) p[e] = exp2_fast(p[e] - most);
        const float total = quad_sum((p[0] + p[1]) + (p[2] + p[3]));
        uint32_t upper[2], lower[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            upper[i] = pack2<T>(p[2 * i], p[2 * i + 1]);
            const float2 x = unpack2<T>(upper[i]);
            lower[i] = pack2<T>(p[2 * i] - x.x, p[2 * i + 1] - x.y);
        }
#pragma unroll
        for (int h = 0; h < D / 64; h++) {
            float o[8][4] = {};
#pragma unroll
            for (int e = 0; e < 8; e++) { /* dimension e of every unit */
                uint32_t w[2];
#pragma unroll
                for (int i = 0; i < 2; i++)
                    w[i] = __byte_perm(word(v[2 * i][h], e / 2), word(v[2 * i + 1][h], e / 2), e % 2 ? 0x7632 : 0x5410);
                mma16816<T>(o[e], upper[0], lower[0], upper[1], lower[1], w[0], w[1]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) { /* units 2t and 2t + 1 of the half */
                float x[4];
#pragma unroll
                for (int e = 0; e < 4; e++) x[e] = o[i % 2 * 4 + e][i / 2] + o[i % 2 * 4 + e][i / 2 + 2];
                if (mine) ((float4 *)out)[16 * h + 4 * t + (i ^ (t & 2))] = make_float4(x[0], x[1], x[2], x[3]);
            }
        }
        return make_float2(most, total);
    }

private:
    static __device__ __forceinline__ uint32_t word(const uint4 &x, int i) { return (&x.x)[i]; }
    static __device__ __forceinline__ float quad_sum(float v)
    {
        v = v + __shfl_xor_sync(0xffffffffu, v, 1);
        return v + __shfl_xor_sync(0xffffffffu, v, 2);
    }
};

/* Over a warp, by way of integers of the same order. */
static __device__ __forceinline__ float reduce_max(float v)
{
    const int i = __float_as_int(v), most = __reduce_max_sync(0xffffffffu, i ^ (i >> 31 & INT_MAX));
    return __int_as_float(most ^ (most >> 31 & INT_MAX));
}

/* Grid: tiles of 1 << row_bits rows, tiles of `heads` query heads, `rep` to a K/V head, and chunks (1: the block walks all
 * and writes y). CAP: scores have a cap. Query i of a tile is of its row i % rows; warp i brings its q and has its result. kv_first: the
 * next kernel is set up when K and V are asked for. arranged: y once more, in `order` (cuda_linear.cuh), or NULL.
 * part: [STEPS][queries][D + 4]; scratch: [row][n_head][chunk][d + 2]. */
template <typename T, int D, bool WHOLE, bool CAP>
static __global__ void __launch_bounds__(D > 128 ? WARPS * 16 : WARPS * 32, 1)
attention_matrix_kernel(const spec_step_block *step, const spec_attention_args a, int row_bits, int heads, int rep, bool vec,
                        bool kv_first, float *scratch, uint16_t *arranged, linear_order order)
{
    constexpr int N = D / 32, STRIDE = D + 4;
    extern __shared__ __align__(16) float part[];
    __shared__ __align__(16) uint4 q[D / 16][32];
    __shared__ float2 most[STEPS][QUERIES]; /* maximum and sum */
    __shared__ short ancestor[QUERIES][SPEC_MAX_DEPTH + 1];
    __shared__ short2 link[ATT_LINKS];

    const int row0 = (int)blockIdx.x << row_bits, n_row = step->n_row, rows = 1 << row_bits, queries = heads << row_bits;
    if (!kv_first) grid_release();
    if (row0 >= n_row) return grid_wait();
    const int lane = (int)threadIdx.x % 32, n_warp = (int)blockDim.x / 32;
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* so the compiler knows that it is one */
    const int d = a.kv.head_dim, head0 = (int)blockIdx.y * heads, kv_head = head0 / rep;
    const bool prefill = step->phase == SPEC_PHASE_PREFILL, loop = gridDim.z == 1;
    const auto first_of = [&](int p) { return a.window ? max(p - a.window + 1, 0) : 0; };

    /* --- 1: before the wait: whom the tile's rows attend --- */
    /* Lane i has row i's sequence and position; -1 for none. */
    const spec_step_seq *const seqs = spec_step_seqs(step);
    int seq = -1, position = -1;
    if (lane < rows && row0 + lane < n_row) {
        seq = row_sequence(step, row0 + lane);
        position = seqs[seq].n_past + spec_step_row_node(step, seqs + seq, row0 + lane)->depth;
    }
    const int seq0 = __shfl_sync(0xffffffffu, seq, 0);
    const bool mixed = __any_sync(0xffffffffu, seq >= 0 && seq != seq0);
    const int top = __reduce_max_sync(0xffffffffu, position);
    const int bottom = __reduce_min_sync(0xffffffffu, position < 0 ? INT_MAX : position);
    const int chunk0 = loop ? first_of(bottom) / ATT_CHUNK : (int)blockIdx.z;
    const int chunk1 = loop ? top / ATT_CHUNK : min(top / ATT_CHUNK, chunk0);
    if (chunk0 > chunk1) return grid_wait();
    /* Before K and V are asked for: loads return in order. */
    const int n_link = mixed || prefill ? 0 : load_links(step, seqs + seq0, row0 + rows - 1, link);
    const int same = mixed ? 0 : prefill ? bottom + 1 : seqs[seq0].n_past; /* keys before it are of all rows */

    const int my_row = row0 + (warp & (rows - 1)), my_head = head0 + (warp >> row_bits);
    const int my_position = __shfl_sync(0xffffffffu, position, warp & (rows - 1));
    const bool mine = warp < queries && my_position >= 0;
    const int g = lane / 4, g_row = g & (rows - 1), g_position = __shfl_sync(0xffffffffu, position, g_row);
    const int g_first = first_of(g_position);
    const float scale = a.scale * CUDART_L2E_F; /* powers are of 2 */
    const att_cap cap(a);
    att_sum<N> sum;
    sum.clear();
    bool waited = false;
    /* --- 2: chunk after chunk; q is read behind the wait, in the first step of the first one --- */
    for (int chunk = chunk0; chunk <= chunk1; chunk++) {
        /* 2a. Steps [begin, end) are attended by a row or more, [all0, all1) whole by every row. */
        const int begin = max(first_of(bottom) / STEP, chunk * STEPS);
        const int end = max(min(top / STEP + 1, (chunk + 1) * STEPS), begin);
        const int all0 = min(max((first_of(top) + STEP - 1) / STEP, begin), end), all1 = min(max(same / STEP, all0), end);
        if (row0 == seqs[seq0].first_row) /* what is read later of this chunk and the next */
            prefetch_prefix(step, seqs + seq0, a.kv, sizeof(T), kv_head,
                            waited ? (chunk + 1) * ATT_CHUNK : chunk * ATT_CHUNK + n_warp * STEP,
                            (min(chunk1, chunk + 1) + 1) * ATT_CHUNK);
        const int n_all = all1 - all0, n_item = n_all + ((end - begin - n_all) << row_bits);
        for (int item = warp; item < n_item || !waited; item += n_warp) {
            const bool all = item < n_all;
            const int i = all ? 0 : (item - n_all) & (rows - 1), k = begin + ((item - n_all) >> row_bits);
            const int n = all ? all0 + item : k < all0 ? k : k + n_all, t0 = n * STEP;
            const int last = __shfl_sync(0xffffffffu, position, i), first = first_of(last);
            const spec_step_seq *s = seqs + max(__shfl_sync(0xffffffffu, seq, i), 0);
            const bool any = item < n_item && t0 <= last && t0 + STEP > first;
            const bool early = vec && t0 + STEP <= s->n_past;
            att_step<T, D, WHOLE> kv;
            float x[N];
#pragma unroll 1
            for (int late = 0; late < 2; late++) {
                if (any && late != early) { /* in place of a key that is not attended another one: it counts nothing */
                    const int t = min(max(t0 + lane % STEP, first), last);
                    const int slot = prefill || t < s->n_past ? t : s->n_past + ancestor[i][t - s->n_past];
                    const int page = spec_step_pages(step)[s->first_page + slot / SPEC_PAGE];
                    kv.load(a.kv, (page * a.kv.n_kv_head + kv_head) * SPEC_PAGE + slot % SPEC_PAGE, vec);
                }
                if (waited || late) continue;
                if (!prefill) {
                    __syncthreads();
                    if (warp == 0 && seq >= 0) walk_ancestors(step, seqs + seq, row0 + lane, n_link, link, ancestor[lane]);
                    __syncthreads();
                }
                if (kv_first) grid_release();
                grid_wait();
                const float *const from = (const float *)a.q.data + (size_t)my_row * a.q.ld + (size_t)my_head * d + 2 * lane;
#pragma unroll
                for (int e = 0; e < N; e++) x[e] = mine && 2 * lane + e / 2 * 64 + e % 2 < d ? from[e / 2 * 64 + e % 2] : 0.0f;
            }
            if (!waited) {
#pragma unroll
                for (int e = 0; warp < QUERIES && e < N; e += 2) { /* elements 2 lane and the next of each 64 */
                    const float v = x[e] * scale, w = x[e + 1] * scale;
                    const uint32_t upper = pack2<T>(v, w);
                    const float2 u = unpack2<T>(upper);
                    uint4 *to = &q[2 * e + lane / 16 * 2 + lane / 2 % 2][warp * 4 + lane / 4 % 4];
                    ((uint2 *)to)[lane % 2] = make_uint2(upper, pack2<T>(v - u.x, w - u.y));
                }
                __syncthreads();
                waited = true;
            }
            if (!any) continue;
            const bool store = g < queries && (all || g_row == i);
            const float2 m = kv.template attend<CAP>(q, cap, g_first - t0, g_position - t0,
                                                     part + (n % STEPS * queries + g) * STRIDE, store);
            if (store && lane % 4 == 0) most[n % STEPS][g] = m;
        }
        __syncthreads();

        /* 2b. The chunk: its steps, whose weights are with lanes i and i + 16. */
        const int s0 = max(first_of(my_position) / STEP - chunk * STEPS, 0);
        const int s1 = min(my_position / STEP - chunk * STEPS, STEPS - 1);
        if (mine && s0 <= s1) {
            const int i = lane % STEPS;
            const float2 m = i >= s0 && i <= s1 ? most[i][warp] : make_float2(-CUDART_INF_F, 0.0f);
            const float maximum = reduce_max(m.x), weight = exp2_fast(m.x - maximum), share = weight * m.y;
            const float *even = part + (s0 * queries + warp) * STRIDE + lane, *odd = even - lane + (lane ^ 8);
            float o[N] = {}, total = 0.0f;
#pragma unroll 4
            for (int n = s0; n <= s1; n++, even += queries * STRIDE, odd += queries * STRIDE) {
                const float w = __shfl_sync(0xffffffffu, weight, n);
                total = total + __shfl_sync(0xffffffffu, share, n);
#pragma unroll
                for (int e = 0; e < N; e++) o[e] = fmaf(w, (e % 2 ? odd : even)[32 * e], o[e]);
            }
            sum.add(maximum, total, o);
        }
        if (mine && !loop) {
            float *out = scratch + (((size_t)my_row * a.n_head + my_head) * gridDim.z + chunk) * (d + 2);
#pragma unroll
            for (int e = 0; e < N; e++)
                if (lane + 32 * e < d) out[lane + 32 * e] = sum.o[e];
            if (lane == 0) out[d] = sum.m, out[d + 1] = sum.l;
            sum.clear();
        }
        if (chunk < chunk1) __syncthreads();
    }
    /* --- 3: outputs, where the block walked all chunks --- */
    if (!mine || !loop) return;
    float y[N];
#pragma unroll
    for (int e = 0; e < N; e++) y[e] = sum.at(e);
    const size_t to = (size_t)my_row * a.y.ld + (size_t)my_head * d + lane;
#pragma unroll
    for (int e = 0; e < N; e++)
        if (lane + 32 * e < d) store_any(a.y.data, a.y.dtype, to + 32 * e, y[e]);
    if (!arranged) return;
#pragma unroll
    for (int e = 0; e < N; e++)
        if (lane + 32 * e < d) put_arranged<T>(arranged, order, my_row, my_head * d + lane + 32 * e, a.n_head * d, y[e]);
    if (order == ORDER_SLABS) slab_fence();
}

/* --- launcher --- */

/* A tile has as many rows as leave every processor a block. Where tiles are many a block walks all chunks; where contexts are
 * long each chunk has a block; two share a processor. Else WARPS make a round of a chunk; trees, and contexts that are
 * attended in one round, have fewer, which leave a block of the next product its registers. The one row of plain decoding has
 * memory to itself for its K and V if its heads are many (all measured on an H200). */
template <typename T, int D, bool WHOLE>
static spec_status launch(spec_queue *q, const spec_attention_args *a, int splits, bool vec, cuda_pass *pass)
{
    auto *kernel = a->cap > 0.0f ? attention_matrix_kernel<T, D, WHOLE, true> : attention_matrix_kernel<T, D, WHOLE, false>;
    const cuda_tuning &tuning = cuda_tuning_of(q->dev);
    const int rep = a->n_head / a->kv.n_kv_head, rows = q->shape.rows, per_seq = rows / q->shape.seqs, n_sm = q->dev->n_sm;
    const size_t query = (size_t)STEPS * (D + 4) * sizeof(float);
    const int room = (int)((q->dev->shared_most - QUERIES_OWN) / query), most = room < QUERIES ? room : QUERIES;
    int heads = rep < most ? rep : most, bits = 0;
    while (rep % heads) heads--;
    const auto tiles = [&]() { return (int64_t)cuda_div_up(rows, 1 << bits) * (a->n_head / heads); };
    while (tiles() * splits > n_sm && (2 << bits) * heads <= most && 2 << bits <= per_seq) bits++;
    if (tiles() > tuning.attention_whole(n_sm)) splits = 1;
    const int one_row = q->shape.splits == 0 ? CUDA_FEW / STEP : WARPS;
    const int few = bits && q->shape.splits <= 1 ? tuning.attention_warps_tree : one_row;
    const int chunks = splits > 1 ? splits * SPLIT_CHUNKS : 1;
    const int warps = D > 128 || tiles() * splits > n_sm || chunks > 1 ? WARPS / 2 : few;
    const bool kv_first = rows == 1 && chunks == 1 && tiles() > tuning.attention_kv_first(n_sm);
    const size_t bytes = (size_t)(heads << bits) * query;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(most * query));
    uint16_t *arranged = NULL;
    if (chunks == 1 && a->y.dtype == a->kv.dtype) arranged = speci_cuda_arranged_for(q, pass, ORDER_ROWS, NULL);
    const dim3 grid((unsigned)cuda_div_up(rows, 1 << bits), (unsigned)(a->n_head / heads), (unsigned)chunks);
    SPEC_TRY(cuda_launch(q, "attention", kernel, grid, dim3((unsigned)warps * 32), bytes, 1, q->d_step, *a, bits, heads, rep,
                         vec, kv_first, q->attention_scratch, arranged, pass->out.order));
    return chunks > 1 ? speci_cuda_attention_merge(q, a, chunks) : SPEC_OK;
}

template <typename T> static spec_status launch_dim(spec_queue *q, const spec_attention_args *a, int splits, cuda_pass *pass)
{
    const int d = a->kv.head_dim;
    const bool vec = d % 16 == 0 && cuda_aligned(a->kv.k, 32) && cuda_aligned(a->kv.v, 32); /* no sector is of two rows */
    if (vec && d == 64) return launch<T, 64, true>(q, a, splits, vec, pass);
    if (vec && d == 128) return launch<T, 128, true>(q, a, splits, vec, pass);
    return d <= 128 ? launch<T, 128, false>(q, a, splits, vec, pass) : launch<T, 256, false>(q, a, splits, vec, pass);
}

spec_status speci_cuda_attention_matrix(spec_queue *q, const spec_attention_args *a, int splits, cuda_pass *pass)
{
    return a->kv.dtype == SPEC_DTYPE_BF16 ? launch_dim<__nv_bfloat16>(q, a, splits, pass)
                                            : launch_dim<__half>(q, a, splits, pass);
}
