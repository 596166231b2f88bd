/* cuda_scan_chunked_out.cuh - of the chunked scan on the matrix instruction (cuda_scan_chunked_matrix.cu): outputs,
 * from S C and the weights of near tokens: a thread has V channels of a row, or with few rows LANES of them have. */
#ifndef SPEC_CUDA_SCAN_CHUNKED_OUT_CUH
#define SPEC_CUDA_SCAN_CHUNKED_OUT_CUH

#include "backends/cuda/rows/cuda_norm.cuh"
#include "backends/cuda/scan/cuda_scan_chunked_near.cuh"

/* V channels of a row: of the tile, from c of the block on. */
template <int V> struct chunked_output {
    int r, c, h;
    float gate[V], skip;

    __device__ __forceinline__ void load_gate(const float *z)
    {
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            const float2 two = *(const float2 *)(z + v);
            gate[v] = two.x, gate[v + 1] = two.y;
        }
    }
};
template <int V> struct chunked_inputs {
    uint32_t w[V / 2];
};

template <typename K> struct chunked_outputs {
    typedef typename K::T T;
    static constexpr int V = K::V, LANES = K::LANES, PARTS = K::PARTS;
    typedef chunked_output<V> output;
    typedef chunked_inputs<V> inputs;
    const chunked_block<K> &b;
    const chunked_nears<K> &nears;
    const typename K::memory &shared;
    const norm_out &norm;

    __device__ __forceinline__ void bring_weights() const /* of the norm behind; not waited for */
    {
        if (K::NORM && b.tid < b.n_unit * (CHUNKED_CHANNELS / 4))
            scan_copy16((uint32_t)__cvta_generic_to_shared(shared.weight + b.tid * 4), norm.weight + b.channel0 + b.tid * 4);
    }
    __device__ __forceinline__ output find(int i) const
    {
        output o;
        o.r = b.grid.wide.of(i), o.c = (i - o.r * (int)b.grid.wide.by) * V, o.h = b.head_of(o.c / CHUNKED_CHANNELS);
        o.skip = b.a.d && b.has_channel(o.c) ? b.a.d[b.head0 + o.h] : 0.0f;
        return o;
    }
    __device__ __forceinline__ const float *where_gate(const output &o, int row) const
    {
        return (const float *)b.a.z.data + (size_t)row * b.a.z.ld + b.channel0 + o.c;
    }

    static __device__ __forceinline__ inputs load_x(const void *from)
    {
        inputs x;
        memcpy(&x, __builtin_assume_aligned(from, V * 2), sizeof x);
        return x;
    }
    static __device__ __forceinline__ void add_x(float y[V], float w, const inputs &x)
    {
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            const float2 two = unpack2<T>(x.w[v / 2]);
            y[v] = fmaf(w, two.x, y[v]), y[v + 1] = fmaf(w, two.y, y[v + 1]);
        }
    }
    /* Of four near tokens. */
    __device__ __forceinline__ void sum_group(const output &o, const chunked_near *near, float sum[V]) const
    {
        chunked_near four[4];
        inputs x[4];
        memcpy(four, __builtin_assume_aligned(near, 16), sizeof four);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (K::FEW) four[j] = nears.weigh(four[j], o.r);
            x[j] = load_x((const char *)(shared.x + o.c) + four[j].index);
        }
#pragma unroll
        for (int v = 0; v < V; v++) sum[v] = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) add_x(sum, four[j].weight, x[j]);
    }

    /* The sum over near tokens, y, and S C, of which the parts' sums are added up as a tree. With few rows a lane has
     * groups, and one part of S C; all of its LANES come by the sums. */
    __device__ __forceinline__ void sum_by_lanes(const output &o, const chunked_near *near, const float *sums, int part_ld,
                                                 float y[V], float sc[V]) const
    {
        constexpr int EACH = CHUNKED_GROUPS / LANES;
        static_assert(V == 2 && PARTS <= LANES, "");
        const int lane = b.tid % LANES;
        const float2 part = *(const float2 *)(sums + lane % PARTS * part_ld);
        sc[0] = part.x, sc[1] = part.y;
        sum_group(o, near + 4 * EACH * lane, y);
        if constexpr (EACH == 2) {
            float second[V];
            sum_group(o, near + 8 * lane + 4, second);
#pragma unroll
            for (int v = 0; v < V; v++) y[v] = y[v] + second[v];
        }
#pragma unroll
        for (int d = 1; d < LANES; d *= 2)
#pragma unroll
            for (int v = 0; v < V; v++) {
                y[v] = y[v] + __shfl_xor_sync(0xffffffffu, y[v], d);
                if (d < PARTS) sc[v] = sc[v] + __shfl_xor_sync(0xffffffffu, sc[v], d);
            }
    }
    /* The same tree: a group's sum joins those of its neighbours when it has them. skipped: groups without a token. */
    __device__ __forceinline__ void sum_alone(const output &o, const chunked_near *near, const float *sums, int part_ld,
                                              int skipped, float y[V], float sc[V]) const
    {
        float part[3][V];
#pragma unroll
        for (int q = 0; q < CHUNKED_GROUPS; q++) {
            if (q >= skipped) {
                sum_group(o, near + 4 * q, y);
            } else {
#pragma unroll
                for (int v = 0; v < V; v++) y[v] = 0.0f;
            }
            int level = 0;
#pragma unroll
            for (; q >> level & 1; level++)
#pragma unroll
                for (int v = 0; v < V; v++) y[v] = part[level][v] + y[v];
#pragma unroll
            for (int v = 0; v < V && level < 3; v++) part[level][v] = y[v];
        }
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            float2 sum[PARTS];
#pragma unroll
            for (int k = 0; k < PARTS; k++) sum[k] = *(const float2 *)(sums + k * part_ld + v);
#pragma unroll
            for (int k = 1; k < PARTS; k *= 2)
#pragma unroll
                for (int j = 0; j < PARTS; j += 2 * k) sum[j].x = sum[j].x + sum[j + k].x, sum[j].y = sum[j].y + sum[j + k].y;
            sc[v] = sum[0].x, sc[v + 1] = sum[0].y;
        }
    }

    __device__ __forceinline__ void gate(const output &o, float y[V]) const
    {
#pragma unroll
        for (int v = 0; v < V; v++)
            if (b.a.z.data) y[v] = y[v] * silu(o.gate[v]);
    }
    /* The squares of y for the norm behind: a unit's are added up by the N lanes that have it. These are LANES apart in
     * one warp, from a multiple of N * LANES on: a row of outputs has whole units. Other lanes may not be here. */
    __device__ __forceinline__ void put_squares(const output &o, int row, const float y[V]) const
    {
        constexpr int N = CHUNKED_CHANNELS / V;
        static_assert(!K::FEW || !K::NORM || (LANES == 4 && N == 8), "a unit is a warp's");
        const uint32_t lanes = K::FEW ? 0x11111111u : ((1u << N) - 1) << (b.lane & -N);
        float sum[V];
#pragma unroll
        for (int v = 0; v < V; v++) sum[v] = y[v] * y[v];
#pragma unroll
        for (int d = 1; d < V; d *= 2)
#pragma unroll
            for (int v = 0; v < V; v += 2 * d) sum[v] = sum[v] + sum[v + d];
#pragma unroll(K::FEW ? 3 : 1) /* several shuffles take registers from all of the kernel */
        for (int d = LANES; d < N * LANES; d *= 2) sum[0] = sum[0] + __shfl_xor_sync(lanes, sum[0], d);
        if (o.c % CHUNKED_CHANNELS == 0)
            norm.squares[(size_t)row * norm.n_square + (b.channel0 + o.c) / CHUNKED_CHANNELS] = sum[0];
    }
    /* y, or what the norm behind makes of it. */
    __device__ __forceinline__ void store(const output &o, int row, const float y[V]) const
    {
        const spec_scan_args &a = b.a;
        float out[V];
        memcpy(out, y, sizeof out);
        if constexpr (K::NORM) {
            float weight[V];
            memcpy(weight, __builtin_assume_aligned(shared.weight + o.c, V * 4), sizeof weight);
#pragma unroll
            for (int v = 0; v < V; v++) out[v] = y[v] * weight[v];
        }
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            const size_t to_y = (size_t)row * a.y.ld + b.channel0 + o.c + v;
            if (a.y.dtype == SPEC_DTYPE_F32) *(float2 *)((float *)a.y.data + to_y) = make_float2(out[v], out[v + 1]);
            else *(uint32_t *)((T *)a.y.data + to_y) = bits16(from_f32<T>(out[v])) | bits16(from_f32<T>(out[v + 1])) << 16;
            if (K::NORM && norm.tiles)
                *(uint32_t *)(norm.tiles + tile_element(row, b.channel0 + o.c + v, norm.n_square * CUDA_SQUARES)) =
                    bits16(from_f32<T>(out[v])) | bits16(from_f32<T>(out[v + 1])) << 16;
        }
    }
    __device__ __forceinline__ void put(const output &o, int row, int node, int skipped) const
    {
        const int at = b.list_at(o.r, o.h);
        const chunked_near *const near = shared.near + at * CHUNKED_LIST;
        const float decay = shared.decay[at];
        const float *const sums = shared.sum + o.r * shared.sum_ld + o.c;
        const int part_ld = b.grid.tile_rows * shared.sum_ld;
        float y[V], sc[V];
        if constexpr (K::FEW) {
            sum_by_lanes(o, near, sums, part_ld, y, sc);
            if (b.tid % LANES > 0) return;
        } else {
            sum_alone(o, near, sums, part_ld, skipped, y, sc);
        }
#pragma unroll
        for (int v = 0; v < V; v++) y[v] = fmaf(decay, sc[v], y[v]);
        add_x(y, o.skip, load_x(shared.x + (b.tree0 + node) * shared.x_ld + o.c));
        gate(o, y);
        store(o, row, y);
        if constexpr (K::NORM) put_squares(o, row, y);
    }
};

#endif
