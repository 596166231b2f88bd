/* cuda_attention_few.cuh - attention (cuda_attention_keys.cuh) of so few rows that it is latency that binds: of memory, and of
 * one thing that waits for another. A thread block has one row and head, in rounds of 16 warps; a warp has a step, all of
 * whose keys and values it asks for at once, and those of the prefix before it waits for the pass. Scores meet in shared
 * memory, where every warp finds its block's maximum and sum by itself, and so do the steps' weighted V. */
#ifndef SPEC_CUDA_ATTENTION_FEW_CUH
#define SPEC_CUDA_ATTENTION_FEW_CUH

#include "cuda_attention_keys.cuh"

enum { FEW_WARPS = 16, FEW_PREFIX = 1, FEW_TREE = 2 };

/* 8 keys or values of a step for each lane: those of the prefix, or those that this pass writes, or both. Key k of the step
 * is in lane k of `row_of`: -1 for none, else twice its row in the cache, and 1 if this pass writes it. */
template <typename T, int LPK, bool VEC>
static __device__ __forceinline__ void few_load(raw8<T> raw[8], const T *base, int row_of, int which, int d)
{
    constexpr int KPW = 32 / LPK;
    const int lane = (int)threadIdx.x % 32, c = lane % LPK * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int row = __shfl_sync(0xffffffffu, row_of, j * KPW + lane / LPK);
        if (row < 0 || c >= d || !(which & (row & 1 ? FEW_TREE : FEW_PREFIX))) continue;
        const T *p = base + (size_t)(row >> 1) * d + c;
        raw[j] = VEC ? raw8<T>::load(p) : raw8<T>::load_some(p, d - c);
    }
}

/* Grid: rows, query heads, splits (1: the block walks all splits and writes y). scratch: [row][n_head][n_split][d + 2].
 * VEC: rows of K and V may be read 16 bytes at a time. */
template <typename T, int LPK, bool VEC>
static __global__ void __launch_bounds__(FEW_WARPS * 32, 1)
attention_few_kernel(const spec_step_block *step, const spec_attention_args a, float *scratch, int n_split)
{
    constexpr int KPW = 32 / LPK, STEP = 8 * KPW, STEPS = CUDA_BLOCK / STEP, D_PAD = LPK * 8;
    constexpr bool BOTH = sizeof(T) == 2; /* a step's V is asked for along with its K */
    __shared__ float score[FEW_WARPS / STEPS][CUDA_BLOCK];
    __shared__ __align__(16) float value[FEW_WARPS][KPW][D_PAD];
    __shared__ float2 most[FEW_WARPS / STEPS]; /* a block's maximum, and sum; nothing attended: -inf, 0 */
    __shared__ int ancestor[1][SPEC_MAX_DEPTH + 1], row_seq[1];
    __shared__ short2 link[ATT_LINKS];

    const int r = (int)blockIdx.x, head = (int)blockIdx.y;
    grid_release();
    if (r >= step->n_row) return grid_wait();
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LPK, l = lane % LPK, c0 = l * 8;
    const int n_kv = a.kv.n_kv_head, d = a.kv.head_dim, kv_head = head / (a.n_head / n_kv);
    const int n_seq = spec_step_row_seq(step)[r];
    const spec_step_seq *s = spec_step_seqs(step) + n_seq;
    const int32_t *page = spec_step_pages(step) + s->first_page;
    const int n_past = s->n_past, top = n_past + spec_step_row_node(step, s, r)->depth;
    const int bottom = a.window ? max(top - a.window + 1, 0) : 0;
    if (tid == 0) row_seq[0] = n_seq;
    __syncthreads();
    find_ancestors<1>(step, row_seq, r, false, link, ancestor);
    __syncthreads();

    const T *const k = (const T *)a.kv.k, *const v = (const T *)a.kv.v;
    const float *const query = (const float *)a.q.data + (size_t)r * a.q.ld + (size_t)head * d;
    float q[8];
    att_merged merged;
    merged.clear();
    const bool loop = gridDim.z == 1;
    const int first_split = loop ? bottom / CUDA_SPLIT : (int)blockIdx.z;
    if (r == s->first_row && warp < ATT_BLOCKS)
        prefetch_prefix<T>(step, s, a.kv, kv_head, first_split * ATT_BLOCKS + warp);
    bool waited = false;
    for (int split = first_split; split * CUDA_SPLIT <= top; split++) {
        att_merged sum;
        sum.clear();
        const int begin = max(bottom, split * CUDA_SPLIT) / CUDA_BLOCK * CUDA_BLOCK, end = min(top + 1, (split + 1) * CUDA_SPLIT);
#pragma unroll 1
        for (int t0 = begin; t0 < end; t0 += FEW_WARPS * STEP) {
            /* 1. Scores of the warp's step. */
            const int key0 = t0 + warp * STEP, t = key0 + lane, slot = warp / STEPS;
            const bool attends = key0 < end && key0 + STEP > bottom;
            int row_of = -1;
            if (lane < STEP && t >= bottom && t < end) {
                const int at = t < n_past ? t : n_past + ancestor[0][t - n_past];
                row_of = ((page[at / SPEC_PAGE] * n_kv + kv_head) * SPEC_PAGE + at % SPEC_PAGE) * 2 + (t >= n_past);
            }
            raw8<T> raw_k[8], raw_v[8];
#pragma unroll
            for (int j = 0; j < 8; j++) raw_k[j] = raw_v[j] = raw8<T>::zero();
            int which = FEW_PREFIX | FEW_TREE;
            if (!waited) {
                few_load<T, LPK, VEC>(raw_k, k, row_of, FEW_PREFIX, d);
                if (BOTH) few_load<T, LPK, VEC>(raw_v, v, row_of, FEW_PREFIX, d);
                grid_wait();
#pragma unroll
                for (int e = 0; e < 8; e++) q[e] = c0 + e < d ? query[c0 + e] : 0.0f;
                waited = true, which = FEW_TREE;
            }
            if (attends) {
                few_load<T, LPK, VEC>(raw_k, k, row_of, which, d);
                if (BOTH) few_load<T, LPK, VEC>(raw_v, v, row_of, which, d);
                float dot[8];
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    float kv[8];
                    raw_k[j].unpack(kv);
                    dot[j] = kv[0] * q[0];
#pragma unroll
                    for (int e = 1; e < 8; e++) dot[j] = fmaf(kv[e], q[e], dot[j]);
                }
                const float dots = sum8<LPK>(dot, lane);
                if (l < 8) score[slot][warp % STEPS * STEP + l * KPW + group] = dots;
                if (!BOTH) few_load<T, LPK, VEC>(raw_v, v, row_of, FEW_PREFIX | FEW_TREE, d);
            }
            __syncthreads();

            /* 2. The block's maximum and sum, and the step's weighted V. */
            const int block0 = t0 + slot * CUDA_BLOCK;
            if (block0 < end) {
                const bool in0 = block0 + lane >= bottom && block0 + lane < end;
                const bool in1 = block0 + lane + 32 >= bottom && block0 + lane + 32 < end;
                const float s0 = in0 ? score[slot][lane] * a.scale : -CUDART_INF_F;
                const float s1 = in1 ? score[slot][lane + 32] * a.scale : -CUDART_INF_F;
                const float maximum = warp_max(fmaxf(s0, s1));
                const float p0 = in0 ? exp_fast(s0 - maximum) : 0.0f, p1 = in1 ? exp_fast(s1 - maximum) : 0.0f;
                const float total = warp_sum(p0 + p1);
                const int first = warp % STEPS * STEP; /* a step's keys are all in one half of the block */
                const float p = first < 32 ? p0 : p1;
                if (lane == 0 && first == 0) most[slot] = make_float2(maximum, total);
                float acc[8];
#pragma unroll
                for (int e = 0; e < 8; e++) acc[e] = 0.0f;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const float weight = __shfl_sync(0xffffffffu, p, first % 32 + j * KPW + group);
                    if (weight == 0.0f) continue;
                    float vv[8];
                    raw_v[j].unpack(vv);
#pragma unroll
                    for (int e = 0; e < 8; e++) acc[e] = fmaf(weight, vv[e], acc[e]);
                }
                float4 *const out = (float4 *)(value[warp][group] + c0);
                out[0] = make_float4(acc[0], acc[1], acc[2], acc[3]);
                out[1] = make_float4(acc[4], acc[5], acc[6], acc[7]);
            }
            __syncthreads();

            /* 3. The split: its blocks in ascending order. */
#pragma unroll 1
            for (int b = 0; tid < D_PAD && b < FEW_WARPS / STEPS && t0 + b * CUDA_BLOCK < end; b++) {
                float of_group[KPW];
#pragma unroll
                for (int g = 0; g < KPW; g++) {
                    of_group[g] = 0.0f;
#pragma unroll
                    for (int w = 0; w < STEPS; w++) of_group[g] = of_group[g] + value[b * STEPS + w][g][tid];
                }
#pragma unroll
                for (int n = 1; n < KPW; n *= 2)
#pragma unroll
                    for (int g = 0; g < KPW; g += 2 * n) of_group[g] = of_group[g] + of_group[g + n];
                sum.add(most[b].x, most[b].y, of_group[0]);
            }
        }
        if (!waited) grid_wait(); /* a split in front of the window */
        if (tid < d && loop) merged.add(sum.m, sum.l, sum.o);
        if (tid < d && !loop) {
            float *out = scratch + (((size_t)r * a.n_head + head) * n_split + split) * (d + 2);
            out[tid] = sum.o;
            if (tid == 0) out[d] = sum.m, out[d + 1] = sum.l;
        }
        if (!loop) return;
    }
    if (!waited) grid_wait();
    if (loop && tid < d) store_any(a.y.data, a.y.dtype, (size_t)r * a.y.ld + (size_t)head * d + tid, merged.o / merged.l);
}

template <typename T, int LPK>
static spec_status launch_few(spec_queue *q, const spec_attention_args *a, bool vec, int splits)
{
    auto *kernel = vec ? attention_few_kernel<T, LPK, true> : attention_few_kernel<T, LPK, false>;
    return cuda_launch(q, "attention", kernel, dim3((unsigned)q->shape.rows, (unsigned)a->n_head, (unsigned)splits),
                       dim3(FEW_WARPS * 32), 0, 1, q->d_step, *a, q->attention_scratch, splits);
}

#endif
