/* cuda_attention_keys.cuh - softmax attention of each row over its prefix and its ancestors in the tree, and what its kernels for
 * decode passes share.
 *   y = sum_t softmax_t(scale q.k_t) v_t,  t in (p - window, p], p the row's position
 * q f32 [rows][n_head][d]; K, V [n_page][n_kv_head][64][d]; y [rows][n_head][d]. Position t lies in slot t when
 * t < n_past, else in slot n_past + (the row's ancestor of depth t - n_past); in prefill always in slot t.
 *
 * The order of sums depends on absolute positions only:
 *   step    32, 16 or 8 positions (LPK 8, 16, 32): a lane has every 4th, 2nd or each of them
 *   block   64 positions from a multiple of 64: maximum and sum; weighted V of a lane's steps in ascending order, then
 *           of the lanes that share a dimension
 *   split   8 blocks, merged in ascending order
 *   row     its splits, merged in ascending order
 * What is not attended (later positions, outside the window) is left out by selection.
 *
 * LPK lanes share a key, each with 8 of its dimensions, so that loads are 16 bytes and coalesced (a block of the prefix is
 * one page).
 *
 * Whom each row attends follows from the step, and is found before a kernel waits for the pass: only q, and K and V of
 * the tree's slots, come from it. */
#ifndef SPEC_CUDA_ATTENTION_KEYS_CUH
#define SPEC_CUDA_ATTENTION_KEYS_CUH

#include "cuda_attention.cuh"

enum { ATT_BLOCKS = CUDA_SPLIT / CUDA_BLOCK /* per split */, ATT_LINKS = 512 /* nodes of larger trees */ };

/* 8 elements of a row of K or V as they lie in memory. */
template <typename T> struct raw8 {
    uint4 v;
    static __device__ __forceinline__ raw8 load(const T *p)
    {
        raw8 r;
        r.v = *(const uint4 *)p;
        return r;
    }
    static __device__ __noinline__ raw8 load_some(const T *p, int n)
    {
        uint32_t w[8];
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = i < n ? bits16(p[i]) : 0u;
        raw8 r;
        r.v = make_uint4(w[0] | w[1] << 16, w[2] | w[3] << 16, w[4] | w[5] << 16, w[6] | w[7] << 16);
        return r;
    }
    static __device__ __forceinline__ raw8 zero()
    {
        raw8 r;
        r.v = make_uint4(0, 0, 0, 0);
        return r;
    }
    __device__ __forceinline__ void unpack(float f[8]) const
    {
        const float2 a = unpack2<T>(v.x), b = unpack2<T>(v.y), c = unpack2<T>(v.z), d = unpack2<T>(v.w);
        f[0] = a.x, f[1] = a.y, f[2] = b.x, f[3] = b.y, f[4] = c.x, f[5] = c.y, f[6] = d.x, f[7] = d.y;
    }
};
template <> struct raw8<float> {
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

template <typename T>
static __device__ __forceinline__ raw8<T> load_kv(const T *base, int row, int d, int c, bool vec)
{
    if (row < 0 || c >= d) return raw8<T>::zero();
    const T *p = base + (size_t)row * d + c;
    return vec ? raw8<T>::load(p) : raw8<T>::load_some(p, d - c);
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

/* Rows of K and V of the prefix in a block of positions are on their way to L2: no kernel of this pass writes them. */
template <typename T>
static __device__ __forceinline__ void prefetch_prefix(const spec_step_block *step, const spec_step_seq *s, const spec_kv &kv,
                                                       int kv_head, int block)
{
    const int32_t *page = spec_step_pages(step) + s->first_page;
    const size_t bytes = (size_t)kv.head_dim * sizeof(T);
    const int end = min((block + 1) * CUDA_BLOCK, s->n_past);
    for (int t = block * CUDA_BLOCK + (int)threadIdx.x % 32; t < end; t += 32) {
        const size_t row = ((size_t)page[t / SPEC_PAGE] * kv.n_kv_head + kv_head) * SPEC_PAGE + t % SPEC_PAGE;
        for (size_t at = row * bytes; at < (row + 1) * bytes; at += 128) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)kv.k + at));
            asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)kv.v + at));
        }
    }
}

/* ancestor[i][depth] = the node of that depth on the path of row row0 + i. A walk of dependent loads: through shared
 * memory where the tile has one tree, which is small enough. */
template <int RT>
static __device__ __forceinline__ void find_ancestors(const spec_step_block *step, const int *row_seq, int row0,
                                                      bool mixed, short2 *link, int (*ancestor)[SPEC_MAX_DEPTH + 1])
{
    const int tid = (int)threadIdx.x;
    const spec_step_seq *s = spec_step_seqs(step) + row_seq[0];
    const spec_step_node *node = spec_step_nodes(step) + s->first_node;
    const int n = min(s->n_fed + row0 + RT - s->first_row, s->n_fed + s->n_row); /* parents come first */
    const bool linked = !mixed && n <= ATT_LINKS;
#pragma unroll 1
    for (int i = tid; linked && i < n; i += (int)blockDim.x)
        link[i] = make_short2((short)node[i].parent, (short)node[i].depth);
    __syncthreads();
    if (tid >= RT || row_seq[tid] < 0) return;
    s = spec_step_seqs(step) + row_seq[tid];
    node = spec_step_nodes(step) + s->first_node;
    for (int i = s->n_fed + row0 + tid - s->first_row; i >= 0;) {
        const int depth = linked ? link[i].y : node[i].depth, parent = linked ? link[i].x : node[i].parent;
        if (depth <= SPEC_MAX_DEPTH) ancestor[tid][depth] = i;
        i = parent;
    }
}

#endif
