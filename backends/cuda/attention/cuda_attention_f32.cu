/* cuda_attention_f32.cu - attention (cuda_attention_keys.cuh) with K and V in float32.
 *
 * The order of sums depends on absolute positions only:
 *   step    32, 16 or 8 positions (LPK 8, 16, 32): a lane has every 4th, 2nd or each of them
 *   block   64 positions from a multiple of 64: maximum and sum; weighted V of a lane's steps in ascending order, then
 *           of the lanes that share a dimension
 *   split   8 blocks, merged in ascending order
 *   row     its splits, merged in ascending order
 *
 * LPK lanes share a key, each with 8 of its dimensions, so that loads are 16 bytes and coalesced (a block of the prefix is
 * one page).
 *
 * A thread block takes RT rows and HT query heads of one K/V head, a warp a block of positions; it shares each key among
 * RG of the rows where they read the same: prefix blocks of one sequence. Blocks that contain tree positions are
 * done row by row. Neither RT, RG nor HT, nor how blocks are dealt to warps, nor whether splits are merged in the same
 * thread block (mode LOOP) or by a second kernel (through scratch) changes a bit. A sequence's first tile asks for the
 * prefix before it waits for the pass.
 *
 * RG: one warp with a block of 64 keys and 8 queries works alone for 10 us and more. Decode passes have few blocks, so
 * they give each warp few queries; prefill has enough for all, and shares what is loaded and unpacked among eight. */
#include <limits.h>

#include <type_traits>

#include "backends/cuda/attention/cuda_attention_keys.cuh"

enum { ATT_BLOCKS = CUDA_SPLIT / CUDA_BLOCK /* per split */, ATT_WARPS = 8 };

/* 8 elements of a row of K or V. */
struct raw8 {
    float4 a, b;
    static __device__ __forceinline__ raw8 load(const float *p)
    {
        raw8 r;
        r.a = *(const float4 *)p, r.b = *(const float4 *)(p + 4);
        return r;
    }
    static __device__ __noinline__ raw8 load_some(const float *p, int n)
    {
        float w[8];
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = i < n ? p[i] : 0.0f;
        raw8 r;
        r.a = make_float4(w[0], w[1], w[2], w[3]), r.b = make_float4(w[4], w[5], w[6], w[7]);
        return r;
    }
    static __device__ __forceinline__ raw8 zero()
    {
        raw8 r;
        r.a = r.b = make_float4(0, 0, 0, 0);
        return r;
    }
    __device__ __forceinline__ void unpack(float f[8]) const
    {
        f[0] = a.x, f[1] = a.y, f[2] = a.z, f[3] = a.w, f[4] = b.x, f[5] = b.y, f[6] = b.z, f[7] = b.w;
    }
};

static __device__ __forceinline__ raw8 load_kv(const float *base, int row, int d, int c, bool vec)
{
    if (row < 0 || c >= d) return raw8::zero();
    const float *p = base + (size_t)row * d + c;
    return vec ? raw8::load(p) : raw8::load_some(p, d - c);
}

/* Sums of 8 values over LPK lanes: lane l receives the sum of value l % 8. */
template <int LPK> static __device__ __forceinline__ float sum8(const float v[8], int lane)
{
    float a[4], b[2], c;
    const bool b4 = lane & 4, b2 = lane & 2, b1 = lane & 1;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float send = b4 ? v[i] : v[i + 4], keep = b4 ? v[i + 4] : v[i];
        a[i] = keep + __shfl_xor_sync(0xffffffffu, send, 4);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float send = b2 ? a[i] : a[i + 2], keep = b2 ? a[i + 2] : a[i];
        b[i] = keep + __shfl_xor_sync(0xffffffffu, send, 2);
    }
    const float send = b1 ? b[0] : b[1], keep = b1 ? b[1] : b[0];
    c = keep + __shfl_xor_sync(0xffffffffu, send, 1);
#pragma unroll
    for (int m = 8; m < LPK; m *= 2) c = c + __shfl_xor_sync(0xffffffffu, c, m);
    return c;
}

/* Partial results: [d_pad] weighted sums, then maximum, sum of exponentials. Scores use the same memory before. */
template <int LPK> struct att_size {
    enum { D_PAD = LPK * 8, STRIDE = D_PAD + 4 };
};

/* One warp, one block of 64 positions, NQ queries.
 *   query    f32, query i at query[i * ld_query]
 *   row_of   [64] shared: row of K and V of each position, -1 = none
 *   last     positions <= last[i] (relative to the block) and >= first[i] are attended by query i
 *   out      [NQ][STRIDE] shared
 * Steps that no query attends are passed over. Loops are not unrolled: the code of a kernel that runs once a layer is not in
 * the caches, and the steps of a loop wait for it once. */
template <int LPK, int NQ>
static __device__ __forceinline__ void att_block(const float *const (&query)[NQ], const float *k, const float *v,
                                                 const int *row_of, int d, bool vec, float scale, const att_cap &cap,
                                                 const int (&first)[NQ], const int (&last)[NQ], float *out)
{
    constexpr int KPW = 32 / LPK, STRIDE = att_size<LPK>::STRIDE, D_PAD = att_size<LPK>::D_PAD, STEP = 8 * KPW;
    const int lane = (int)threadIdx.x % 32, group = lane / LPK, l = lane % LPK, c = l * 8;
    int begin = CUDA_BLOCK, end = 0;
#pragma unroll
    for (int i = 0; i < NQ; i++) {
        if (last[i] < 0 || first[i] >= CUDA_BLOCK) continue;
        begin = min(begin, max(first[i], 0) / STEP * STEP);
        end = max(end, min(last[i] + 1, (int)CUDA_BLOCK));
    }
    {
        float qv[NQ][8];
#pragma unroll
        for (int i = 0; i < NQ; i++)
#pragma unroll
            for (int e = 0; e < 8; e++) qv[i][e] = query[i] && c + e < d ? query[i][c + e] : 0.0f;
#pragma unroll 1
        for (int key0 = begin; key0 < end; key0 += STEP) {
            raw8 raw[8];
#pragma unroll
            for (int j = 0; j < 8; j++) raw[j] = load_kv(k, row_of[key0 + j * KPW + group], d, c, vec);
            float dot[NQ][8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float kv[8];
                raw[j].unpack(kv);
#pragma unroll
                for (int i = 0; i < NQ; i++) {
                    float s = kv[0] * qv[i][0];
#pragma unroll
                    for (int e = 1; e < 8; e++) s = fmaf(kv[e], qv[i][e], s);
                    dot[i][j] = s;
                }
            }
#pragma unroll
            for (int i = 0; i < NQ; i++) {
                const float s = sum8<LPK>(dot[i], lane);
                if (l < 8) out[i * STRIDE + key0 + l * KPW + group] = s;
            }
        }
    }
    __syncwarp();
    const auto score = [&](float x) { return cap.most > 0.0f ? cap.of(x * scale) : x * scale; };
    float maximum[NQ], total[NQ];
#pragma unroll
    for (int i = 0; i < NQ; i++) {
        float *p = out + i * STRIDE;
        const bool in0 = lane >= first[i] && lane <= last[i], in1 = lane + 32 >= first[i] && lane + 32 <= last[i];
        const float s0 = in0 ? score(p[lane]) : -CUDART_INF_F, s1 = in1 ? score(p[lane + 32]) : -CUDART_INF_F;
        maximum[i] = warp_max(fmaxf(s0, s1));
        const float p0 = in0 ? exp2_fast(s0 - maximum[i]) : 0.0f, p1 = in1 ? exp2_fast(s1 - maximum[i]) : 0.0f;
        total[i] = warp_sum(p0 + p1);
        p[lane] = p0, p[lane + 32] = p1; /* each lane's own two */
    }
    __syncwarp();
    float acc[NQ][8];
#pragma unroll
    for (int i = 0; i < NQ; i++)
#pragma unroll
        for (int e = 0; e < 8; e++) acc[i][e] = 0.0f;
#pragma unroll 1
    for (int key0 = begin; key0 < end; key0 += STEP) {
        raw8 raw[8];
#pragma unroll
        for (int j = 0; j < 8; j++) raw[j] = load_kv(v, row_of[key0 + j * KPW + group], d, c, vec);
        float of_step[NQ][8];
#pragma unroll
        for (int i = 0; i < NQ; i++)
#pragma unroll
            for (int e = 0; e < 8; e++) of_step[i][e] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float vv[8];
            raw[j].unpack(vv);
#pragma unroll
            for (int i = 0; i < NQ; i++) {
                const float p = out[i * STRIDE + key0 + j * KPW + group];
                if (p != 0.0f) {
#pragma unroll
                    for (int e = 0; e < 8; e++) of_step[i][e] = fmaf(p, vv[e], of_step[i][e]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < NQ; i++)
#pragma unroll
            for (int e = 0; e < 8; e++) acc[i][e] = acc[i][e] + of_step[i][e];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < NQ; i++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
#pragma unroll
            for (int m = LPK; m < 32; m *= 2) acc[i][e] = acc[i][e] + __shfl_xor_sync(0xffffffffu, acc[i][e], m);
            if (group == 0) out[i * STRIDE + c + e] = acc[i][e];
        }
        if (lane == 0) out[i * STRIDE + D_PAD] = maximum[i], out[i * STRIDE + D_PAD + 1] = total[i];
    }
}

/* Grid: row tiles, K/V heads x tiles of HT heads, splits (1: the block walks all splits and writes y).
 * scratch: [row][n_head][n_split][d + 2]. */
template <int LPK, int HT, int RT, int RG>
static __global__ void
__launch_bounds__(ATT_WARPS * 32, HT * RG >= 4 ? 1 : 2)
attention_f32_kernel(const spec_step_block *step, spec_attention_args a, int vec, float *scratch, int n_split)
{
    constexpr int NQ = HT * RT, NG = HT * RG, GROUPS = RT / RG;
    constexpr int STRIDE = att_size<LPK>::STRIDE, D_PAD = att_size<LPK>::D_PAD;
    constexpr int NE = (NQ * D_PAD + ATT_WARPS * 32 - 1) / (ATT_WARPS * 32);
    __shared__ __align__(16) float part[ATT_BLOCKS][NQ][STRIDE];
    __shared__ int row_of[ATT_WARPS][CUDA_BLOCK];
    __shared__ short ancestor[RT][SPEC_MAX_DEPTH + 1];
    __shared__ short2 link[ATT_LINKS]; /* of the tree's nodes: parent, depth */
    __shared__ int row_seq[RT], row_pos[RT]; /* of a row that is not valid: -1 */

    const int row0 = (int)blockIdx.x * RT, n_row = step->n_row;
    grid_release();
    if (row0 >= n_row) return grid_wait();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, tid = (int)threadIdx.x;
    const int n_kv = a.kv.n_kv_head, d = a.kv.head_dim, rep = a.n_head / n_kv, n_ht = (rep + HT - 1) / HT;
    const int kv_head = (int)blockIdx.y / n_ht, head0 = (int)blockIdx.y % n_ht * HT; /* within the K/V head's */
    const bool prefill = step->phase == SPEC_PHASE_PREFILL;
    const spec_step_seq *seqs = spec_step_seqs(step);

    /* --- 1: before the wait: whom the tile's rows attend --- */
    if (tid < RT) {
        const int r = row0 + tid;
        row_seq[tid] = row_pos[tid] = -1;
        if (r < n_row) {
            const int n = spec_step_row_seq(step)[r];
            const spec_step_seq *s = seqs + n;
            row_seq[tid] = n;
            row_pos[tid] = s->n_past + spec_step_row_node(step, s, r)->depth;
        }
    }
    __syncthreads();
    int top = -1, bottom = INT_MAX; /* the tile's last and first position */
    bool mixed = false;
#pragma unroll
    for (int i = 0; i < RT; i++) {
        top = max(top, row_pos[i]);
        if (row_pos[i] >= 0) bottom = min(bottom, row_pos[i]);
        mixed = mixed || (row_seq[i] >= 0 && row_seq[i] != row_seq[0]);
    }
    if (!prefill) {
        find_ancestors(step, tid < RT && row_seq[tid] >= 0 ? seqs + row_seq[tid] : NULL, mixed ? NULL : seqs + row_seq[0],
                       row0, RT, link, ancestor);
        __syncthreads();
    }
    /* Blocks before this one are the same keys for every row of the tile. */
    const int n_shared = RT == 1 || mixed ? 0 : prefill ? 1 << 30 : seqs[row_seq[0]].n_past / CUDA_BLOCK;

    att_sum<1> merged[NE];
#pragma unroll
    for (int i = 0; i < NE; i++) merged[i].clear();

    const bool loop = gridDim.z == 1;
    const int split0 = a.window ? max(bottom - a.window + 1, 0) / CUDA_SPLIT : 0;
    const int first_split = loop ? split0 : (int)blockIdx.z;
    if (!prefill && row0 == seqs[row_seq[0]].first_row) /* one tile of a sequence for all */
        prefetch_prefix(step, seqs + row_seq[0], a.kv, sizeof(float), kv_head, first_split * CUDA_SPLIT,
                        (first_split + 1) * CUDA_SPLIT);
    grid_wait();
    /* --- 2: split after split: its blocks of positions by warps, then their merge --- */
    for (int split = first_split; split * CUDA_SPLIT <= top; split++) {
        /* 2a. Blocks of the split; a shared block is one item of work per group of rows, any other one per row. */
        const int shared = min(max(n_shared - split * ATT_BLOCKS, 0), (int)ATT_BLOCKS);
        const int n_shared_item = shared * GROUPS, n_item = n_shared_item + (ATT_BLOCKS - shared) * RT;
        for (int item = warp; item < n_item; item += ATT_WARPS) {
            const bool all = item < n_shared_item;
            const int b = all ? item / GROUPS : shared + (item - n_shared_item) / RT;
            const int rr = all ? item % GROUPS * RG : (item - n_shared_item) % RT; /* the item's first row */
            const int t0 = (split * ATT_BLOCKS + b) * CUDA_BLOCK;
            const int item_top = all ? top : row_pos[rr];
            /* What each query attends, relative to the block. */
            bool any = false;
#pragma unroll
            for (int i = 0; i < RT; i++) {
                const int p = row_pos[i];
                const bool mine = i >= rr && i < rr + (all ? RG : 1) && p >= 0;
                any = any || (mine && t0 <= p && (a.window == 0 || t0 + CUDA_BLOCK - 1 > p - a.window));
            }
            if (!any) { /* uniform in the warp */
                for (int i = lane; i < (all ? NG : HT); i += 32) {
                    float *o = part[b][rr * HT + i];
                    o[D_PAD] = -CUDART_INF_F, o[D_PAD + 1] = 0.0f;
                }
                continue;
            }
            const spec_step_seq *s = seqs + row_seq[all ? 0 : rr];
            const int32_t *page = spec_step_pages(step) + s->first_page;
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int key = lane + 32 * i, t = t0 + key;
                int row = -1;
                if (t <= item_top) {
                    const int slot = prefill || t < s->n_past ? t : s->n_past + ancestor[rr][t - s->n_past];
                    row = (page[slot / SPEC_PAGE] * n_kv + kv_head) * SPEC_PAGE + slot % SPEC_PAGE;
                }
                row_of[warp][key] = row;
            }
            __syncwarp();
            const float *q = (const float *)a.q.data;
            const auto attend = [&](auto n) { /* n queries, of one row after the other */
                constexpr int N = decltype(n)::value;
                const float *query[N];
                int first[N], last[N];
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const int p = row_pos[rr + i / HT], h = head0 + i % HT;
                    query[i] = p >= 0 && h < rep
                                   ? q + (size_t)(row0 + rr + i / HT) * a.q.ld + (size_t)(kv_head * rep + h) * d
                                   : NULL;
                    last[i] = p >= 0 ? p - t0 : -1;
                    first[i] = a.window ? p - a.window + 1 - t0 : 0;
                }
                att_block<LPK, N>(query, (const float *)a.kv.k, (const float *)a.kv.v, row_of[warp], d, vec,
                                  a.scale * CUDART_L2E_F, att_cap(a), first, last, part[b][rr * HT]);
            };
            if (NG > HT && all) attend(std::integral_constant<int, NG>());
            else attend(std::integral_constant<int, HT>());
        }
        __syncthreads();

        /* 2b. The split: its blocks in ascending order. 2c. The row, or scratch. */
#pragma unroll
        for (int n = 0; n < NE; n++) {
            const int e = tid + n * ATT_WARPS * 32, i = e / D_PAD, c = e % D_PAD;
            if (i >= NQ || c >= d) continue;
            const int r = row0 + i / HT, h = head0 + i % HT;
            if (r >= n_row || h >= rep) continue;
            att_sum<1> sum;
            sum.clear();
#pragma unroll 1
            for (int b = 0; b < ATT_BLOCKS; b++) sum.add(part[b][i][D_PAD], part[b][i][D_PAD + 1], &part[b][i][c]);
            if (loop) {
                merged[n].add(sum.m, sum.l, sum.o);
            } else {
                float *out = scratch + (((size_t)r * a.n_head + kv_head * rep + h) * n_split + split) * (d + 2);
                out[c] = sum.o[0];
                if (c == 0) out[d] = sum.m, out[d + 1] = sum.l;
            }
        }
        if (!loop) return;
        __syncthreads();
    }
    /* --- 3: outputs, where the block walked all splits --- */
    if (!loop) return;
#pragma unroll
    for (int n = 0; n < NE; n++) {
        const int e = tid + n * ATT_WARPS * 32, i = e / D_PAD, c = e % D_PAD;
        const int r = row0 + i / HT, h = head0 + i % HT;
        if (i < NQ && c < d && r < n_row && h < rep)
            store_any(a.y.data, a.y.dtype, (size_t)r * a.y.ld + (size_t)(kv_head * rep + h) * d + c,
                      merged[n].at(0));
    }
}

/* --- launcher --- */

template <int LPK, int HT, int RT, int RG>
static spec_status launch_tile(spec_queue *q, const spec_attention_args *a, bool vec, int splits)
{
    const int rep = a->n_head / a->kv.n_kv_head;
    const dim3 grid((unsigned)cuda_div_up(q->shape.rows, RT), (unsigned)(a->kv.n_kv_head * cuda_div_up(rep, HT)),
                    (unsigned)splits);
    return cuda_launch(q, "attention", attention_f32_kernel<LPK, HT, RT, RG>, grid, dim3(ATT_WARPS * 32), 0, 1, q->d_step, *a,
                       vec, q->attention_scratch, splits);
}

/* Tiles share what they load among heads of one K/V head and among rows of one sequence: as much as leaves every
 * processor a tile (measured on an H200 with 32 heads of 128). A long context has blocks enough for
 * warps to take more rows each. Prefill passes share all they can. */
template <int LPK>
static spec_status launch_lanes(spec_queue *q, const spec_attention_args *a, bool vec, int splits)
{
    const int n_kv = a->kv.n_kv_head, rep = a->n_head / n_kv, rows = q->shape.rows, per_seq = rows / q->shape.seqs;
    const bool prefill = q->shape.phase == SPEC_PHASE_PREFILL;
    const auto fills = [&](int ht, int rt) {
        return prefill || cuda_div_up(rows, rt) * n_kv * cuda_div_up(rep, ht) * splits >= q->dev->n_sm;
    };
    if constexpr (LPK == 32) {
        if (rep >= 3) return launch_tile<LPK, 4, 1, 1>(q, a, vec, splits);
        if (per_seq >= 4) return launch_tile<LPK, 1, 4, 4>(q, a, vec, splits);
        return launch_tile<LPK, 1, 1, 1>(q, a, vec, splits);
    } else {
        if (rep >= 3 && per_seq >= 2 && prefill) return launch_tile<LPK, 4, 2, 2>(q, a, vec, splits);
        if (rep >= 3 && per_seq >= 2 && fills(4, 2)) return launch_tile<LPK, 4, 2, 1>(q, a, vec, splits);
        if (rep >= 3 && fills(4, 1)) return launch_tile<LPK, 4, 1, 1>(q, a, vec, splits);
        if (per_seq >= 4 && prefill) return launch_tile<LPK, 1, 8, 8>(q, a, vec, splits);
        if (per_seq >= 4 && fills(1, 8) && splits > 1) return launch_tile<LPK, 1, 8, 4>(q, a, vec, splits);
        if (per_seq >= 4 && fills(1, 8)) return launch_tile<LPK, 1, 8, 2>(q, a, vec, splits);
        if (per_seq >= 4 && fills(1, 4)) return launch_tile<LPK, 1, 4, 2>(q, a, vec, splits);
        if (per_seq >= 2) return launch_tile<LPK, 1, 2, 2>(q, a, vec, splits);
        return launch_tile<LPK, 1, 1, 1>(q, a, vec, splits);
    }
}

spec_status speci_cuda_attention_f32(spec_queue *q, const spec_attention_args *a, int splits)
{
    const int d = a->kv.head_dim;
    const bool vec = d % 8 == 0 && cuda_aligned(a->kv.k, 16) && cuda_aligned(a->kv.v, 16);
    SPEC_TRY(d <= 64    ? launch_lanes<8>(q, a, vec, splits)
             : d <= 128 ? launch_lanes<16>(q, a, vec, splits)
                        : launch_lanes<32>(q, a, vec, splits));
    return splits > 1 ? speci_cuda_attention_merge(q, a, splits) : SPEC_OK;
}
