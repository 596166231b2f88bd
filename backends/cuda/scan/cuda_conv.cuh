/* cuda_conv.cuh - the convolution's taps and filters, for its kernels (cuda_conv.cu) and for the product that makes its
 * inputs (cuda_linear.cu). Both find the same taps and add them up alike: the same bits.
 *
 * A thread has V neighbouring channels. Written are half `parity` of window and cache, read is the other half; when nodes
 * were fed before (n_fed > 0) the window is not written and its half `parity` is read. So no thread waits for another. */
#ifndef SPEC_CUDA_CONV_CUH
#define SPEC_CUDA_CONV_CUH

#include "backends/cuda/cuda.cuh"

enum { CONV_WIDTH_MAX = 4, CONV_PARTS = 8 /* at least */, CONV_FEW = 2 /* rows of a sequence with few entries */ };

/* No gates, silu, outputs for a scan: the others have code of their own (GATED), so that this one stays short. */
static inline bool conv_is_plain(const spec_conv_args *a)
{
    return !a->gate_in.data && !a->gate_out.data && a->act == SPEC_ACT_SILU && a->replay_y;
}

/* V neighbours; 16-bit types and float32 have one access for four. */
template <typename T, int V> static __device__ __forceinline__ void load_channels(float out[V], const T *p)
{
    if constexpr (V == 1) {
        out[0] = to_f32(*p);
    } else if constexpr (sizeof(T) == 4) {
        const float4 v = *(const float4 *)p;
        out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
    } else {
        const uint2 v = *(const uint2 *)p;
        const float2 lo = unpack2<T>(v.x), hi = unpack2<T>(v.y);
        out[0] = lo.x, out[1] = lo.y, out[2] = hi.x, out[3] = hi.y;
    }
}
template <typename T, int V> static __device__ __forceinline__ void store_channels(T *p, const float v[V])
{
    if constexpr (V == 1) {
        *p = from_f32<T>(v[0]);
    } else if constexpr (sizeof(T) == 4) {
        *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        uint32_t h[4];
#pragma unroll
        for (int k = 0; k < 4; k++) h[k] = bits16(from_f32<T>(v[k]));
        *(uint2 *)p = make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16);
    }
}

template <int V> struct conv_taps {
    float u[CONV_WIDTH_MAX][V]; /* u[k]: the input of the k-th ancestor */
};

/* The channels' filters, the newest tap first. */
template <int V> struct conv_filter {
    float w[CONV_WIDTH_MAX][V], bias[V];

    __device__ __forceinline__ void load(const spec_conv_args &a, int c)
    {
        const bool by_four = a.width == 4 && ((uintptr_t)a.weight & 15) == 0;
#pragma unroll
        for (int v = 0; v < V; v++) {
            bias[v] = a.bias ? a.bias[c + v] : 0.0f;
            if (by_four) {
                const float4 f = *(const float4 *)(a.weight + (size_t)(c + v) * 4);
                w[3][v] = f.x, w[2][v] = f.y, w[1][v] = f.z, w[0][v] = f.w;
                continue;
            }
#pragma unroll
            for (int k = 0; k < CONV_WIDTH_MAX; k++)
                w[k][v] = k < a.width ? a.weight[(size_t)(c + v) * a.width + (a.width - 1 - k)] : 0.0f;
        }
    }
    /* bias + sum over taps, oldest first */
    template <bool GATED = false>
    __device__ __forceinline__ void value(float y[V], const conv_taps<V> &tap, const spec_conv_args &a) const
    {
        const int width = a.width;
#pragma unroll
        for (int v = 0; v < V; v++) {
            float sum = bias[v];
#pragma unroll
            for (int k = CONV_WIDTH_MAX - 1; k >= 0; k--)
                if (k < width) sum = fmaf(w[k][v], tap.u[k][v], sum);
            y[v] = GATED && a.act == SPEC_ACT_NONE ? sum : silu(sum);
        }
    }
};

/* V channels of a row, in any type. */
template <typename T, int V> static __device__ __forceinline__ void load_row(float v[V], const spec_view &x, int r, int c)
{
    const size_t i = (size_t)r * x.ld + c;
    if (x.dtype == SPEC_DTYPE_F32) load_channels<float, V>(v, (const float *)x.data + i);
    else load_channels<T, V>(v, (const T *)x.data + i);
}
/* v times the gate's row */
template <typename T, int V> static __device__ __forceinline__ void apply_gate(float v[V], const spec_view &gate, int r, int c)
{
    float g[V];
    if (!gate.data) return;
    load_row<T, V>(g, gate, r, c);
#pragma unroll
    for (int k = 0; k < V; k++) v[k] = v[k] * g[k];
}

/* Where a sequence's inputs lie. Functions are of V channels from c on; T is the compute type. An ancestor is a node of the tree, or
 * -1 - m: the m-th newest before the root. */
template <typename T, int V, bool GATED = false> struct conv_inputs {
    const spec_conv_args &a;
    const spec_step_seq &s;
    const spec_step_node *node;
    const int32_t *path;    /* accepted path of the previous tree */
    int n_path;
    int cache;           /* where half `parity` of the cache begins, */
    int window0, cache0; /* and the halves that are read before the tree; rows of n_channel */

    __device__ conv_inputs(const spec_conv_args &args, const spec_step_block *step, const spec_step_seq &seq)
        : a(args), s(seq)
    {
        node = spec_step_nodes(step) + s.first_node, path = spec_step_paths(step) + s.first_path;
        n_path = s.n_fed > 0 ? 0 : s.n_replay;
        const int half = s.slot * 2 + s.parity, other = s.slot * 2 + (s.parity ^ 1);
        cache = half * a.n_node, cache0 = other * a.n_node, window0 = (s.n_fed > 0 ? half : other) * (a.width - 1);
    }
    __device__ __forceinline__ T *channels(void *rows, int r, int c) const { return (T *)rows + (int64_t)r * a.n_channel + c; }
    /* the m-th newest before the tree's root */
    __device__ __forceinline__ const T *before(int m, int c) const
    {
        if (m < n_path) return channels(a.cache, cache0 + path[n_path - 1 - m], c);
        return channels(a.window, window0 + a.width - 2 - (m - n_path), c);
    }
    /* Keeps the input of node i for the replay to come; what nodes fed before have left there. */
    __device__ __forceinline__ T *kept(int i, int c) const { return channels(a.cache, cache + i, c); }
    /* of row r, gated, rounded */
    __device__ __forceinline__ void gated_row(float u[V], int r, int c) const
    {
        load_row<T, V>(u, a.u, r, c);
        apply_gate<T, V>(u, a.gate_in, r, c);
#pragma unroll
        for (int v = 0; v < V; v++) u[v] = to_f32(from_f32<T>(u[v]));
    }
    __device__ __forceinline__ void plain_row(float u[V], int r, int c) const
    {
        const size_t i = (size_t)r * a.u.ld + c;
        if (a.u.dtype == SPEC_DTYPE_F32) {
            load_channels<float, V>(u, (const float *)a.u.data + i);
#pragma unroll
            for (int v = 0; v < V; v++) u[v] = to_f32(from_f32<T>(u[v]));
        } else {
            load_channels<T, V>(u, (const T *)a.u.data + i);
        }
    }
    /* Of the rows from r to r + N those from `begin` to `end`, rounded: all are on their way before one is. The others stay. */
    template <int N> __device__ __forceinline__ void plain_rows(float (*u)[V], int r, int begin, int end, int c) const
    {
        const bool f32 = a.u.dtype == SPEC_DTYPE_F32;
        const size_t i = (size_t)r * a.u.ld + c;
#pragma unroll
        for (int k = 0; k < N; k++)
            if (f32 && k >= begin && k < end) load_channels<float, V>(u[k], (const float *)a.u.data + i + (size_t)k * a.u.ld);
#pragma unroll
        for (int k = 0; k < N; k++) {
            if (!f32 && k >= begin && k < end) load_channels<T, V>(u[k], (const T *)a.u.data + i + (size_t)k * a.u.ld);
#pragma unroll
            for (int v = 0; v < V && f32; v++) u[k][v] = to_f32(from_f32<T>(u[k][v])); /* what is T's stays */
        }
    }
    /* Taps that are rows: at[k] >= 0. All are on their way before one is rounded. */
    __device__ __forceinline__ void plain_taps(conv_taps<V> &tap, const int at[CONV_WIDTH_MAX], int c) const
    {
        const bool f32 = a.u.dtype == SPEC_DTYPE_F32;
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++)
            if (f32 && at[k] >= 0) load_channels<float, V>(tap.u[k], (const float *)a.u.data + (size_t)at[k] * a.u.ld + c);
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++) {
            if (!f32 && at[k] >= 0) load_channels<T, V>(tap.u[k], (const T *)a.u.data + (size_t)at[k] * a.u.ld + c);
#pragma unroll
            for (int v = 0; v < V && f32; v++) tap.u[k][v] = to_f32(from_f32<T>(tap.u[k][v])); /* those of T stay */
        }
    }
    /* The same three in either form. */
    __device__ __forceinline__ void row(float u[V], int r, int c) const
    {
        if constexpr (GATED) gated_row(u, r, c);
        else plain_row(u, r, c);
    }
    template <int N> __device__ __forceinline__ void rows(float (*u)[V], int r, int begin, int end, int c) const
    {
        if constexpr (GATED) {
#pragma unroll
            for (int k = 0; k < N; k++)
                if (k >= begin && k < end) gated_row(u[k], r + k, c);
        } else {
            plain_rows<N>(u, r, begin, end, c);
        }
    }
    __device__ __forceinline__ void row_taps(conv_taps<V> &tap, const int at[CONV_WIDTH_MAX], int c) const
    {
        if constexpr (GATED) {
#pragma unroll
            for (int k = 0; k < CONV_WIDTH_MAX; k++)
                if (at[k] >= 0) gated_row(tap.u[k], at[k], c);
        } else {
            plain_taps(tap, at, c);
        }
    }
    /* The input of an ancestor that is known before the pass: no row. */
    __device__ __forceinline__ const T *known(int up, int c) const { return up < 0 ? before(-1 - up, c) : kept(up, c); }
    /* The row of this pass that an ancestor is, or -1. */
    __device__ __forceinline__ int row_of(int up) const { return up >= s.n_fed ? s.first_row + up - s.n_fed : -1; }

    /* Entry j of the sequence's and its ancestors: of the accepted path, where they are the ones in front of it, or of the nodes. */
    __device__ __forceinline__ void ancestors(int up[CONV_WIDTH_MAX], int j) const
    {
        int n = j < s.n_replay ? -1 : j - s.n_replay, m = j < s.n_replay ? s.n_replay - 1 - j : 0;
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++) {
            up[k] = n < 0 ? -1 - m++ : n;
            if (n >= 0 && k + 1 < a.width) n = node[n].parent;
        }
    }
    /* The k-th ancestor of node i. */
    __device__ __forceinline__ int ancestor(int i, int k) const
    {
#pragma unroll 1
        for (; k > 0 && i >= 0; k--) i = node[i].parent;
        return i < 0 ? -1 - k : i;
    }
    /* The taps that are known before the pass. at[k]: the row that tap k is, -1 elsewhere. */
    __device__ __forceinline__ void known_taps(conv_taps<V> &tap, int at[CONV_WIDTH_MAX], const int up[CONV_WIDTH_MAX], int c) const
    {
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++) {
            at[k] = k < a.width ? row_of(up[k]) : -1;
            if (k < a.width && at[k] < 0) load_channels<T, V>(tap.u[k], known(up[k], c));
        }
    }
    /* The place in the window of the m-th newest. */
    __device__ __forceinline__ T *in_window(int m, int c) const
    {
        return channels(a.window, (s.slot * 2 + s.parity) * (a.width - 1) + a.width - 2 - m, c);
    }
    /* The window applies the path and the n_new first rows of the pass, these unless who makes them does (conv_tiles). Nobody
     * else of the pass reads or writes it. */
    __device__ __forceinline__ void advance_window(int n_new, bool with_rows, int c) const
    {
        const int n = a.width - 1;
        float u[CONV_WIDTH_MAX - 1][V];
#pragma unroll
        for (int m = 0; m < CONV_WIDTH_MAX - 1; m++)
            if (m < n && m >= n_new) load_channels<T, V>(u[m], before(m - n_new, c));
        if (n_new > 0) grid_wait();
#pragma unroll
        for (int m = 0; m < CONV_WIDTH_MAX - 1; m++) {
            if (m >= n || (m < n_new && !with_rows)) continue;
            if (m < n_new) row(u[m], s.first_row + n_new - 1 - m, c);
            store_channels<T, V>(in_window(m, c), u[m]);
        }
    }
};

/* Entity `entity` of the pass, its channels from c on: first `rows` rows, then per sequence `parts` that share its entries
 * of replay_y (the path, or the nodes fed before) and one that writes the window. No entity waits for another. All threads of
 * a block call it alike but for c; what is read in front of the wait for the kernels in front no kernel of the pass writes.
 * rows 0: the caller makes them (conv_tiles). */
template <typename T, int V, bool GATED = false>
static __device__ __forceinline__ void conv_entity(const spec_step_block *step, const spec_conv_args &a, int rows, int parts,
                                                   int entity, int c)
{
    const bool is_row = entity < rows;
    if (c >= a.n_channel || (is_row && entity >= step->n_row)) return grid_wait();
    const int n_seq = is_row ? spec_step_row_seq(step)[entity] : (entity - rows) / (parts + 1);
    if (n_seq >= step->n_seq) return grid_wait();

    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    const conv_inputs<T, V, GATED> in(a, step, s);
    const int part = is_row ? 0 : (entity - rows) % (parts + 1);
    const int n_entry = GATED && !a.replay_y ? 0 : s.n_replay + (s.n_fed > 0 ? s.n_fed : 0);
    if (part == parts) {
        if (s.n_fed == 0) in.advance_window(s.n_advance, rows > 0, c); /* the chain in front */
        return grid_wait();
    }
    if (!is_row && part >= n_entry) return grid_wait();

    conv_filter<V> filter;
    filter.load(a, c);
    /* Entries of replay_y: the path's nodes, then the nodes fed. */
#pragma unroll 1
    for (int j = is_row ? s.n_replay + s.n_fed + entity - s.first_row : part; is_row || j < n_entry; j += parts) {
        const int i = j - s.n_replay; /* the node, unless it is the path's */
        conv_taps<V> tap;
        int up[CONV_WIDTH_MAX], at[CONV_WIDTH_MAX];
        float y[V];
        in.ancestors(up, j);
        in.known_taps(tap, at, up, c);
        if (is_row) grid_wait();
        in.row_taps(tap, at, c);
        filter.template value<GATED>(y, tap, a);
        if (is_row) {
            if constexpr (GATED) apply_gate<T, V>(y, a.gate_out, entity, c);
            store_channels<T, V>((T *)a.y.data + (size_t)entity * a.y.ld + c, y);
            store_channels<T, V>(in.kept(i, c), tap.u[0]);
            return;
        }
        grid_wait();
        store_channels<T, V>((T *)a.replay_y + ((size_t)n_seq * 2 * a.n_node + j) * a.n_channel + c, y);
    }
}

/* ------------------------------------------------ where the product that makes the rows does the rest --- */

/* Entities that are no rows, for a convolution of width CONV_WIDTH_MAX: entity e is part e % (parts + 1) of sequence e / (parts + 1), as
 * of conv_entity. Several entries of a part are its turns. A thread has channel c, and calls ask(), then put(). ask() is for what no
 * kernel of the pass writes: nobody waits for it before put(), which waits for the kernels in front. */
template <typename T> struct conv_rest {
    const spec_step_block *step;
    const spec_conv_args &a;
    const int4 *listed; /* cuda_steps.ancestors or NULL */
    int parts, seqs;    /* seqs: that there may be */

    enum { NOTHING, ENTRY, WINDOW } is;
    bool more; /* another turn */
    int n_seq, j;
    spec_step_seq s;
    conv_filter<1> filter;
    T known[CONV_WIDTH_MAX]; /* the taps, or what the window has then, the newest first */

    __device__ __forceinline__ void ask(int entity, int turn, int c)
    {
        is = NOTHING, more = false;
        n_seq = seqs == 1 ? entity > parts : entity / (parts + 1); /* of one there is nothing to divide by */
        if (c >= a.n_channel || n_seq >= seqs) return;
        /* All that addresses are made of is on its way at once. A list is of use for nodes fed; then there is no path. */
        const int part = entity - n_seq * (parts + 1);
        j = part + turn * parts;
        s = spec_step_seqs(step)[n_seq];
        int4 found = {};
        if (listed) found = listed[n_seq * a.n_node + min(j, a.n_node - 1)];
        const int n_entry = s.n_replay + (s.n_fed > 0 ? s.n_fed : 0);
        const bool is_window = part == parts, is_there = is_window ? s.n_fed == 0 : j < n_entry;
        if (!((n_seq < step->n_seq) & is_there)) return;

        const conv_inputs<T, 1> in(a, step, s);
        is = is_window ? WINDOW : ENTRY, more = !is_window && j + parts < n_entry;
#pragma unroll
        for (int m = 0; m < CONV_WIDTH_MAX - 1; m++)
            if (is_window && m >= s.n_advance) known[m] = *in.before(m - s.n_advance, c); /* the others are rows (conv_tiles) */
        if (is_window) return;
        if (turn == 0) filter.load(a, c);
        int up[CONV_WIDTH_MAX] = { found.x, found.y, found.z, found.w };
        if (!listed || s.n_replay > 0) in.ancestors(up, j);
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++) known[k] = *in.known(up[k], c);
    }
    __device__ __forceinline__ void put(int c)
    {
        const conv_inputs<T, 1> in(a, step, s);
        conv_taps<1> tap;
        float y[1];
        if (is == ENTRY) {
#pragma unroll
            for (int k = 0; k < CONV_WIDTH_MAX; k++) tap.u[k][0] = to_f32(known[k]);
            filter.value(y, tap, a);
        }
#pragma unroll
        for (int m = 0; m < CONV_WIDTH_MAX - 1; m++)
            if (is == WINDOW && m >= s.n_advance) *in.in_window(m, c) = known[m];
        grid_wait();
        if (is == ENTRY) ((T *)a.replay_y)[((size_t)n_seq * 2 * a.n_node + j) * a.n_channel + c] = from_f32<T>(y[0]);
    }
};

enum { CONV_TILE = 16, CONV_TAPS = CONV_WIDTH_MAX - 1 /* but a row's own */ };

/* What is known of 16 channels before their rows are there. */
template <typename T, int N> struct conv_known {
    float4 w[CONV_TILE]; /* the oldest tap first */
    float bias[CONV_TILE];
    T u[N][CONV_TAPS][CONV_TILE]; /* of the k-th ancestor at k - 1 */
};
/* In shared memory. The k-th ancestor of row r is row at[r][k - 1], or (-1) known. */
template <typename T, int N> struct conv_rows {
    conv_known<T, N> known[3]; /* by turns: one is read, one is waited for, and warps that are ahead ask for one */
    T *kept[N], *window[N];    /* where u goes; window NULL: not there */
    int at[N][CONV_TAPS];
    float u[N][CONV_TILE]; /* rounded */
};

/* Up to N rows of a pass, by a block of 16 N threads or more that makes their inputs, CONV_TILE channels after others: tile i
 * of what it makes is channels 16 i - first and on, or has none. Path, nodes fed and the window are not its (conv_entity,
 * conv_rest). */
template <typename T, int N> struct conv_tiles {
    conv_rows<T, N> *rows;
    const char *from; /* 16 bytes of conv_known that the thread copies, of channel 0; NULL: none */
    int to, pitch;    /* their place there, and bytes a channel */
    int turn;

    static __device__ __forceinline__ int channel(const spec_conv_args &a, int first, int tile)
    {
        const int c = tile * CONV_TILE - first;
        return c < a.n_channel ? c : -1;
    }
    /* First; of the kernel's parameters, the step block and the list alone, as of conv_rest, where there is one. seqs: 1, or any other. */
    __device__ __forceinline__ void find(const spec_step_block *step, const spec_conv_args &a, const int4 *listed, int seqs, int tid)
    {
        using known = conv_known<T, N>;
        constexpr int HALVES = CONV_TILE * (int)sizeof(T) / 16, OF_ROW = CONV_TAPS * HALVES;
        const int filter = tid - N * OF_ROW, bias = filter - CONV_TILE, r = tid / OF_ROW;
        if (bias >= 0) {
            if (bias < CONV_TILE / 4 && a.bias) from = (const char *)(a.bias + bias * 4);
            to = (int)offsetof(known, bias) + bias * 16, pitch = (int)sizeof(float);
        } else if (filter >= 0) {
            from = (const char *)(a.weight + filter * CONV_WIDTH_MAX);
            to = filter * 16, pitch = CONV_WIDTH_MAX * (int)sizeof(float);
        } else if (r < step->n_row) {
            const int n_seq = seqs == 1 ? 0 : spec_step_row_seq(step)[r]; /* of one, a load less to wait for */
            const spec_step_seq s = spec_step_seqs(step)[n_seq];
            const conv_inputs<T, 1> in(a, step, s);
            const int k = tid % OF_ROW / HALVES, i = s.n_fed + r - s.first_row, m = s.n_fed == 0 ? s.n_advance - 1 - i : -1;
            const int up = listed ? (&listed[n_seq * a.n_node + i].x)[k + 1] : in.ancestor(i, k + 1), at = in.row_of(up);
            rows->at[r][k] = at;
            if (at < 0) from = (const char *)in.known(up, tid % HALVES * (16 / (int)sizeof(T)));
            to = (int)offsetof(known, u) + tid * 16, pitch = (int)sizeof(T);
            rows->kept[r] = in.kept(i, 0), rows->window[r] = m >= 0 && m < a.width - 1 ? in.in_window(m, 0) : NULL;
        }
    }
    /* Has what is known of a tile copied to the place of this turn or (ahead 1) the next; to be waited for in front of the
     * barrier that is in front of the tile's store(). */
    __device__ __forceinline__ void ask(const spec_conv_args &a, int first, int tile, int ahead) const
    {
        const int c = channel(a, first, tile);
        if (c < 0 || !from) return;
        const uint32_t at = (uint32_t)__cvta_generic_to_shared(&rows->known[turn + ahead == 3 ? 0 : turn + ahead]) + (uint32_t)to;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from + (size_t)c * pitch) : "memory");
    }
    /* What thread 16 r + i knows of row r's output i before its input is there, behind the barrier in front of which it was
     * waited for: ancestors that are known are older than those that are rows, so theirs are the first terms. */
    struct part {
        float sum, w[CONV_WIDTH_MAX]; /* the newest tap first */
        int at[CONV_TAPS];
    };
    __device__ __forceinline__ part known(const spec_conv_args &a, int tid, bool there) const
    {
        const conv_known<T, N> &known = rows->known[turn];
        const int r = tid / CONV_TILE, i = tid % CONV_TILE;
        part p = {};
        if (!there) return p;
        const float4 f = known.w[i];
        p.w[0] = f.w, p.w[1] = f.z, p.w[2] = f.y, p.w[3] = f.x;
        p.sum = a.bias ? known.bias[i] : 0.0f;
#pragma unroll
        for (int k = CONV_TAPS; k > 0; k--) {
            p.at[k - 1] = rows->at[r][k - 1];
            if (p.at[k - 1] < 0) p.sum = fmaf(p.w[k], to_f32(known.u[r][k - 1][i]), p.sum);
        }
        return p;
    }
    /* Input i of row r, by thread 16 r + i where it is there; all threads of the block. Alone: it is the only row. */
    __device__ __forceinline__ void store(const spec_conv_args &a, part &p, int c, int tid, bool there, bool alone, float u)
    {
        const T rounded = from_f32<T>(u);
        const int r = tid / CONV_TILE, i = tid % CONV_TILE;
        if (!alone) {
            if (there) rows->u[r][i] = to_f32(rounded);
            __syncthreads();
        }
        if (!there) return;
#pragma unroll
        for (int k = CONV_TAPS; k > 0; k--)
            if (p.at[k - 1] >= 0) p.sum = fmaf(p.w[k], rows->u[p.at[k - 1]][i], p.sum);
        ((T *)a.y.data)[(size_t)r * a.y.ld + c + i] = from_f32<T>(silu(fmaf(p.w[0], to_f32(rounded), p.sum)));
        rows->kept[r][c + i] = rounded;
        if (rows->window[r]) rows->window[r][c + i] = rounded;
    }
    __device__ __forceinline__ void next() { turn = turn == 2 ? 0 : turn + 1; }
};

#endif
