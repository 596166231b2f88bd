/* cuda_scan_recurrent.cu - selective scan over a tree, recurrent form, with activation replay in front: prefill and
 * decode passes of any size and type. What Mamba-1 has (a decay per state) is done by kernels of its own: decode passes
 * by cuda_scan_state.cu, with the same bits, prefill by cuda_scan_prefill_state.cu. With a decay per head (Mamba-2) the
 * default of decode passes is the chunked form (cuda_scan_chunked.cu), and prefill in 16 bit is in
 * cuda_scan_prefill.cu.
 *
 * With a decay per head y is made of the parent's state, S C = exp(dt A) (S(parent) C) + (dt x) (B C): no leaf of a
 * tree has to compute a state of its own then.
 *
 * A group of lanes owns channels and states (cuda_scan_lanes.cuh): all of S that it reads and writes, in registers.
 *   1. decode: the accepted path is applied from the caches' other half and S is stored;
 *   2. the nodes in the order of the step's traversal schedule, S of the *live* node in registers. Each goes on from
 *      the live state, from a saved one, from the stored one by applying the path's nodes once more, or from the
 *      parent's kept state: always the same function of the same values, hence the same bits. Nothing is stored, but
 *      with node_state every node's state, and with n_advance the state that the chain in front ends in.
 *
 * Where saved states lie: in the block's shared memory, each thread its own CH * VS floats, so that no one waits for
 * another. A saved state takes 128 * CH * VS * 4 bytes: 8 KiB with 128 states (Mamba-2), 2 KiB for Mamba-1, 16 KiB with
 * 256 states. The stack of saved states of trees of 15, 63 and 255 nodes holds 3, 5 and 7 (spec_traversal_saved).
 * Mamba2-2.7B has 320 blocks per sequence (80 heads, 4 tiles of 16 channels): with 255 nodes 63 KiB each, 3 to a
 * multiprocessor of 227 KiB, which is what registers allow too; so all blocks of one sequence are resident at once on
 * 132 of them. 63 nodes take 43 KiB. Global memory instead would be 7 * 2.6 MB per sequence and layer: it leaves a
 * level 2 cache of 50 MB at three sequences. On devices with less shared memory those that do not fit are not saved:
 * nodes below rebuild along the path.
 *
 * Prefill applies its rows in order and stores S.
 *
 * With one A per head (Mamba-2) a block's channels belong to one head, and the threads share a table of dt and
 * exp(dt A) per node; with A per state (Mamba-1, PER_STATE) both are computed where they are used. */
#include "backends/cuda/scan/cuda_scan_lanes.cuh"

enum {
    SCAN_BATCH = 8,  /* replayed nodes whose loads are in flight together */
    SCAN_AHEAD = 4,  /* steps likewise */
    SCAN_PATH = 2 * (SPEC_MAX_DEPTH + 1), /* a chain in front, and a tree below it */
    SCAN_TABLE_MIN = 128
};

/* An entry of the traversal, packed as shared memory holds it: node | (load + 2) << 16 | (save + 1) << 24; -1 = none.
 * A step, what a group does next: node | from << 16 | (save + 1) << 20 | flags. An entry is one step, and one more for
 * each node that is applied again on the way to it. */
enum { FROM_LIVE = 0, FROM_STORED = 1, FROM_PARENT = 2, FROM_SAVED = 3, STEP_OUT = 1 << 24, STEP_END = 1 << 25 };

static __device__ int pack_entry(const spec_traversal_node v, int first, int end, int n_saved)
{
    if (v.node < first || v.node >= end) return -1;
    const int load = v.load < SPEC_LOAD_PATH || v.load >= n_saved ? (int)SPEC_LOAD_PATH : v.load;
    const int save = v.save < 0 || v.save >= n_saved ? -1 : v.save;
    return v.node | (load + 2) << 16 | (save + 1) << 24;
}

/* A block's dynamic shared memory. */
template <typename F> struct scan_shared {
    float4 *saved;   /* [n_saved][QUADS][SCAN_THREADS] */
    float2 *table;   /* dt, decay [table_cap]; none with a decay per state */
    int32_t *parent; /* [n_node] */
    int32_t *traversal; /* [n_node], packed */

    __device__ __forceinline__ scan_shared(char *memory, int n_saved, int table_cap, int n_node)
    {
        saved = (float4 *)memory, table = (float2 *)(saved + n_saved * scan_live<F>::QUADS * SCAN_THREADS);
        parent = (int32_t *)(F::PER_STATE ? (char *)table : (char *)(table + table_cap)), traversal = parent + n_node;
    }
    __device__ __forceinline__ void keep_dt(const scan_channels<F> &ch, int entry, float dt) const
    {
        table[entry] = make_float2(dt, scan_decay(dt, ch.rate[0]));
    }
    __device__ __forceinline__ void take_dt(scan_in<F> &in, int entry) const { in.dt = table[entry].x, in.decay = table[entry].y; }
};

/* --- what nodes bring --- */

/* Of any types and alignments. */
template <typename F> struct scan_source {
    static constexpr int VS = F::VS, CH = F::CH;
    typedef scan_in<F> slot; /* of a step whose values are on their way */
    const scan_channels<F> &ch;
    const scan_shared<F> &shared;

    /* x and B from the convolution's replay rows (or B from its cache); dt by `entry` of the table, or from the cache */
    __device__ __forceinline__ void fetch_replayed(scan_in<F> &in, int entry, size_t cached) const
    {
        const spec_scan_args &a = ch.a;
        const size_t row = ((size_t)ch.n_seq * 2 * a.n_node + entry) * a.replay_ld;
        load_run<CH>(in.x, a.replay_y, a.dtype, row + a.replay_x_col + ch.x_col, ch.n_ch);
        if (a.b_in_conv) load_run<VS>(in.b, a.replay_y, a.dtype, row + a.replay_b_col + ch.b_col, ch.n_s);
        else load_run<VS>(in.b, a.cache_b, a.dtype, cached * ch.b_width + ch.b_col, ch.n_s);
        if (F::PER_STATE) in.dt = a.cache_dt[cached * a.n_head + ch.head];
        else shared.take_dt(in, entry);
    }
    __device__ __forceinline__ void fetch_row(scan_in<F> &in, int r, int entry) const
    {
        const spec_scan_args &a = ch.a;
        load_run<CH>(in.x, a.x.data, a.x.dtype, (size_t)r * a.x.ld + ch.x_col, ch.n_ch);
        load_run<VS>(in.b, a.b.data, a.b.dtype, (size_t)r * a.b.ld + ch.b_col, ch.n_s);
        /* rounded as the caches hold them: replay reads the values that the scan used */
#pragma unroll
        for (int i = 0; i < CH; i++) in.x[i] = round_any(a.dtype, in.x[i]);
#pragma unroll
        for (int v = 0; v < VS; v++) in.b[v] = round_any(a.dtype, in.b[v]);
        if (F::PER_STATE) in.dt = ch.row_dt(r);
        else shared.take_dt(in, entry);
        load_run<VS>(in.c, a.c.data, a.c.dtype, (size_t)r * a.c.ld + ch.c_col, ch.n_s);
        in.z = 0.0f;
        if (a.z.data && ch.has_out()) in.z = load_any(a.z.data, a.z.dtype, (size_t)r * a.z.ld + ch.y_col + ch.out_ch);
    }
    __device__ __forceinline__ void begin(slot &in, int n) const
    {
        const int entry = ch.s.n_replay + n;
        if (n < ch.s.n_fed) fetch_replayed(in, entry, ch.half + n);
        else fetch_row(in, ch.s.first_row + n - ch.s.n_fed, entry);
    }
    __device__ __forceinline__ void end(scan_in<F> &in, const slot &from, int) const { in = from; }

    __device__ __forceinline__ void replay(scan_live<F> &live, const int32_t *path) const
    {
        for (int j = 0; j < ch.s.n_replay; j++) {
            scan_in<F> in;
            fetch_replayed(in, j, ch.other + path[j]);
            live.apply(in);
        }
    }
};

/* Replay and traversal are chains: their length times the latency of a load, unless the loads of several nodes are
 * in flight. That needs loads without branches between them, hence a source of its own for what real models have:
 * 16-bit, aligned, B where the family has it. All threads of a block take the same one. */
template <typename F> struct scan_plain_source {
    static constexpr int VS = F::VS, CH = F::CH;
    const scan_channels<F> &ch;
    const scan_shared<F> &shared;
    const uint16_t *replay_x, *replay_b, *cache_b, *row_x, *row_b, *row_c; /* of the sequence's first node, or row */
    const float *row_z;
    int z_ld;

    struct slot {
        raw_run<CH> x;
        raw_run<VS> b, c;
        float z, dt;
    };

    __device__ __forceinline__ scan_plain_source(const scan_channels<F> &channels, const scan_shared<F> &memory)
        : ch(channels), shared(memory)
    {
        const spec_scan_args &a = ch.a;
        const int c_first = ch.n_ch > 0 ? 0 : -ch.c0; /* groups without channels read those of the first */
        const uint16_t *const replay0 = (const uint16_t *)a.replay_y + (size_t)ch.n_seq * 2 * a.n_node * a.replay_ld;
        replay_x = replay0 + a.replay_x_col + ch.x_col + c_first, replay_b = replay0 + a.replay_b_col + ch.b_col;
        cache_b = (const uint16_t *)a.cache_b + ch.b_col;
        const size_t row = (size_t)ch.s.first_row;
        row_x = (const uint16_t *)a.x.data + row * a.x.ld + ch.x_col + c_first;
        row_b = (const uint16_t *)a.b.data + row * a.b.ld + ch.b_col;
        row_c = (const uint16_t *)a.c.data + row * a.c.ld + ch.c_col;
        row_z = a.z.data ? (const float *)a.z.data + row * a.z.ld + ch.y_col + c_first + ch.out_ch
                         : a.a + ch.head; /* read and not used */
        z_ld = a.z.data ? a.z.ld : 0;
    }
    __device__ __forceinline__ bool fits() const
    {
        const spec_scan_args &a = ch.a;
        const bool types = a.dtype != SPEC_DTYPE_F32 && a.x.dtype == a.dtype && a.b.dtype == a.dtype &&
                           a.c.dtype == a.dtype && (!a.z.data || a.z.dtype == SPEC_DTYPE_F32) &&
                           (F::PER_STATE ? !a.b_in_conv && a.dt.dtype == SPEC_DTYPE_F32 : a.b_in_conv != 0);
        const uintptr_t x_addresses = CH == 1 ? 0 : (uintptr_t)replay_x | (uintptr_t)row_x;
        const uintptr_t b_addresses = (uintptr_t)(F::PER_STATE ? cache_b : replay_b) | (uintptr_t)row_b | (uintptr_t)row_c;
        const int x_strides = CH == 1 ? 0 : a.replay_ld | a.x.ld;
        const int b_strides = (F::PER_STATE ? ch.b_width : a.replay_ld) | a.b.ld | a.c.ld;
        return types && (ch.n_ch == CH || ch.n_ch <= 0) && ch.n_s == VS && ((x_addresses | b_addresses) & 7) == 0 &&
               ((x_strides | b_strides) & 3) == 0;
    }

    __device__ __forceinline__ void begin(slot &to, int n) const
    {
        const spec_scan_args &a = ch.a;
        const bool cached = n < ch.s.n_fed;
        const size_t entry = (size_t)(ch.s.n_replay + n), r = cached ? 0 : n - ch.s.n_fed;
        load_raw<CH>(to.x, cached ? replay_x + entry * a.replay_ld : row_x + r * a.x.ld);
        const uint16_t *b = F::PER_STATE ? cache_b + (ch.half + n) * ch.b_width : replay_b + entry * a.replay_ld;
        load_raw<VS>(to.b, cached ? b : row_b + r * a.b.ld);
        load_raw<VS>(to.c, row_c + r * a.c.ld);
        to.z = row_z[r * z_ld];
        if constexpr (F::PER_STATE) {
            const float *dt = (const float *)a.dt.data + (ch.s.first_row + r) * a.dt.ld + ch.head;
            to.dt = *(cached ? a.cache_dt + (ch.half + n) * a.n_head + ch.head : dt);
        }
    }
    __device__ __forceinline__ void end(scan_in<F> &in, const slot &from, int n) const
    {
        unpack_raw<CH>(in.x, from.x, ch.a.dtype);
        unpack_raw<VS>(in.b, from.b, ch.a.dtype);
        unpack_raw<VS>(in.c, from.c, ch.a.dtype);
        in.z = from.z;
        if constexpr (F::PER_STATE) in.dt = n < ch.s.n_fed ? from.dt : scan_dt(from.dt, ch.bias, ch.a.dt_min, ch.a.dt_max);
        else shared.take_dt(in, ch.s.n_replay + n);
    }

    __device__ __forceinline__ void begin_replayed(slot &to, int entry, const int32_t *path) const
    {
        const spec_scan_args &a = ch.a;
        load_raw<CH>(to.x, replay_x + (size_t)entry * a.replay_ld);
        if constexpr (F::PER_STATE) {
            const size_t cached = ch.other + path[entry];
            load_raw<VS>(to.b, cache_b + cached * ch.b_width);
            to.dt = a.cache_dt[cached * a.n_head + ch.head];
        } else {
            load_raw<VS>(to.b, replay_b + (size_t)entry * a.replay_ld);
        }
    }
    __device__ __forceinline__ void replay(scan_live<F> &live, const int32_t *path) const
    {
        for (int j = 0; j < ch.s.n_replay; j += SCAN_BATCH) {
            slot batch[SCAN_BATCH];
#pragma unroll
            for (int u = 0; u < SCAN_BATCH; u++) begin_replayed(batch[u], min(j + u, ch.s.n_replay - 1), path);
#pragma unroll
            for (int u = 0; u < SCAN_BATCH; u++) {
                if (j + u >= ch.s.n_replay) break;
                scan_in<F> in;
                unpack_raw<CH>(in.x, batch[u].x, ch.a.dtype);
                unpack_raw<VS>(in.b, batch[u].b, ch.a.dtype);
                if (F::PER_STATE) in.dt = batch[u].dt;
                else shared.take_dt(in, j + u);
                live.apply(in);
            }
        }
    }
};

/* --- prefill --- */

/* Applies the rows in order, tables of dt a part at a time, and stores the state. */
template <typename F>
static __device__ __forceinline__ void run_prompt(scan_live<F> &live, const scan_source<F> &source, int table_cap)
{
    const scan_channels<F> &ch = source.ch;
    const int first_row = ch.s.first_row;
    for (int i0 = 0; i0 < ch.s.n_row; i0 += table_cap) {
        const int n = min(ch.s.n_row - i0, table_cap);
        if (!F::PER_STATE) {
            __syncthreads();
            for (int e = ch.tid; e < n; e += SCAN_THREADS) source.shared.keep_dt(ch, e, ch.row_dt(first_row + i0 + e));
            __syncthreads();
        }
        scan_in<F> in, next;
        source.fetch_row(in, first_row + i0, 0);
        for (int i = 0; i < n; i++) {
            const int ahead = min(i + 1, n - 1);
            source.fetch_row(next, first_row + i0 + ahead, ahead);
            live.apply_row(in, first_row + i0 + i);
            in = next;
        }
    }
    live.store(ch.memory());
}

/* --- decode --- */

/* The steps, one after the other: entries of the traversal, and in front of one that starts from the stored state its
 * ancestors. The stored state is that of node `base`, -1 before the tree. The same for all lanes of a warp. */
template <typename F> struct scan_walk {
    const scan_channels<F> &ch;
    const scan_shared<F> &shared;
    int16_t *const chain; /* [SCAN_PATH] of the warp: ancestors to apply, the first one last */
    int n_entry, n_chain, waiting, last, base;

    __device__ __forceinline__ scan_walk(const scan_channels<F> &channels, const scan_shared<F> &memory, int16_t *of_warp)
        : ch(channels), shared(memory), chain(of_warp), n_entry(0), n_chain(0), waiting(-1), last(channels.s.n_fed), base(-1)
    {
    }
    /* Lists node k and those above it, down from `base`; how many. */
    __device__ __forceinline__ int climb(int k)
    {
        int depth = 0;
        __syncwarp(); /* all lanes have read the chain before */
        for (; k >= 0 && k != base && depth < SCAN_PATH; k = shared.parent[k]) {
            if (ch.lane == 0) chain[depth] = (int16_t)k;
            depth++;
        }
        __syncwarp();
        return depth;
    }
    __device__ __forceinline__ int next()
    {
        if (n_chain > 0) return chain[--n_chain] | FROM_LIVE << 16;
        int entry = waiting;
        waiting = -1;
        bool live = entry >= 0;
        while (entry < 0 && n_entry < ch.s.n_row) entry = shared.traversal[n_entry++];
        if (entry < 0) return last | STEP_END;
        const int n = entry & 0xffff, load = live ? (int)SPEC_LOAD_LIVE : (entry >> 16 & 0xff) - 2;
        int out = n | (entry >> 24 & 0xf) << 20 | STEP_OUT;
        if (load == SPEC_LOAD_PATH && ch.a.node_state && shared.parent[n] >= 0) {
            out |= FROM_PARENT << 16;
        } else if (load == SPEC_LOAD_PATH) {
            const int depth = climb(shared.parent[n]);
            if (depth > 0) {
                n_chain = depth - 1, waiting = entry;
                return chain[depth - 1] | FROM_STORED << 16;
            }
            out |= FROM_STORED << 16;
        } else if (load >= 0) {
            out |= (FROM_SAVED + load) << 16;
        }
        last = n;
        if (n == ch.s.n_advance - 1) base = n;
        return out;
    }
};

/* A step of the live state, and what is kept of its node. */
template <typename F>
static __device__ __forceinline__ void run_step(scan_live<F> &live, const scan_shared<F> &shared, const scan_in<F> &in, int what)
{
    const scan_channels<F> &ch = live.ch;
    const spec_scan_args &a = ch.a;
    const int n = what & 0xffff, from = what >> 16 & 0xf, save = (what >> 20 & 0xf) - 1;
    if (from >= FROM_SAVED) live.load_saved(shared.saved, from - FROM_SAVED);
    else if (from != FROM_LIVE) live.load(from == FROM_STORED ? ch.memory() : ch.node_memory(shared.parent[n]));
    if (!(what & STEP_OUT)) return live.apply(in);
    live.apply_row(in, ch.s.first_row + n - ch.s.n_fed);
    if (save >= 0) live.store_saved(shared.saved, save);
    if (a.node_state) live.store(ch.node_memory(n));
    if (n == ch.s.n_advance - 1) live.store(ch.memory());
    if (F::PER_STATE && ch.c0 == 0 && ch.l == 0) a.cache_dt[(ch.half + n) * a.n_head + ch.head] = in.dt;
    if (!a.b_in_conv && a.cache_b && ch.c0 == 0 && ch.head % a.b_rep == 0) {
#pragma unroll
        for (int v = 0; v < F::VS; v++)
            if (v < ch.n_s) store_any(a.cache_b, a.dtype, (ch.half + n) * ch.b_width + ch.b_col + v, in.b[v]);
    }
}

/* The path, then the whole traversal, a step's loads begun AHEAD steps before they are used. */
template <int AHEAD, typename F, typename Source>
static __device__ __forceinline__ void run_tree(scan_live<F> &live, const Source &source, const int32_t *path, int16_t *chain)
{
    const scan_channels<F> &ch = live.ch;
    source.replay(live, path);
    if (ch.s.n_replay > 0) live.store(ch.memory());
    if (ch.s.n_row <= 0) return;
    scan_walk<F> walk(ch, source.shared, chain);
    typename Source::slot slot[AHEAD];
    int what[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) what[u] = walk.next(), source.begin(slot[u], what[u] & 0xffff);
    for (;;) {
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int now = what[u];
            if (now & STEP_END) return;
            scan_in<F> in;
            source.end(in, slot[u], now & 0xffff);
            what[u] = walk.next(), source.begin(slot[u], what[u] & 0xffff);
            run_step(live, source.shared, in, now);
        }
    }
}

template <int VS, int LANES, int CH, bool PER_STATE>
static __global__ void __launch_bounds__(SCAN_THREADS, VS == 4 ? 3 : 2)
scan_kernel(const spec_step_block *step, const spec_scan_args a, int n_tile, int table_cap, int n_saved)
{
    typedef scan_form<VS, LANES, CH, PER_STATE> F;
    extern __shared__ __align__(16) char dynamic[];
    __shared__ int16_t chain[SCAN_WARPS][SCAN_PATH];
    const scan_shared<F> shared(dynamic, n_saved, table_cap, a.n_node);

    grid_release();
    if ((int)blockIdx.y >= step->n_seq) return grid_wait();
    const int n_seq = (int)blockIdx.y;
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    const spec_step_node *const node = spec_step_nodes(step) + s.first_node;
    const int32_t *const path = spec_step_paths(step) + s.first_path;
    const bool prefill = step->phase == SPEC_PHASE_PREFILL;
    if (!prefill && (s.n_replay > a.n_node || s.n_fed + s.n_row > a.n_node))
        return grid_wait(); /* caches and tables hold n_node */

    const scan_channels<F> ch(a, s, n_seq, n_tile);
    const scan_source<F> source = { ch, shared };
    scan_live<F> live(ch);
    live.load(ch.memory()); /* no other kernel of the pass writes it */

    /* Tables: the path's entries, then the tree's nodes. What earlier passes left, and the step itself, need no wait. */
    const int n_tree = s.n_fed + s.n_row, n_known = s.n_replay + s.n_fed;
    if (!prefill) {
        for (int e = ch.tid; e < n_known && !PER_STATE; e += SCAN_THREADS)
            shared.keep_dt(ch, e, a.cache_dt[(e < s.n_replay ? ch.other + path[e] : ch.half + e - s.n_replay) * a.n_head +
                                             ch.head]);
        for (int i = ch.tid; i < n_tree; i += SCAN_THREADS) {
            const int up = node[i].parent;
            shared.parent[i] = up < i && up >= 0 ? up : -1;
        }
        for (int i = ch.tid; i < s.n_row; i += SCAN_THREADS)
            shared.traversal[i] = pack_entry(spec_step_traversal(step)[s.first_row + i], s.n_fed, n_tree, n_saved);
    }
    grid_wait();
    if (prefill) return run_prompt(live, source, table_cap);

    /* The first tile of a head keeps dt for the replay to come. */
    for (int i = ch.tid; i < s.n_row && !PER_STATE; i += SCAN_THREADS) {
        const float dt = ch.row_dt(s.first_row + i);
        shared.keep_dt(ch, n_known + i, dt);
        if (ch.first_tile) a.cache_dt[(ch.half + s.n_fed + i) * a.n_head + ch.head] = dt;
    }
    const scan_plain_source<F> plain(ch, shared);
    const bool is_plain = __syncthreads_and(plain.fits()) != 0; /* and the tables are there */
    if (is_plain) run_tree<SCAN_AHEAD>(live, plain, path, chain[ch.warp]);
    else run_tree<1>(live, source, path, chain[ch.warp]);
}

/* --------------------------------------------------------------------------------- launcher --- */

template <int VS, int LANES, int CH, bool PER_STATE>
static spec_status launch(spec_queue *q, const spec_scan_args *a, unsigned blocks, int n_tile, int table_cap)
{
    const bool decode = q->shape.phase == SPEC_PHASE_DECODE;
    const size_t tables = (PER_STATE ? 0 : (size_t)table_cap * sizeof(float2)) + (size_t)a->n_node * 8;
    const size_t saved = (size_t)SCAN_THREADS * CH * VS * sizeof(float), limit = q->dev->shared_most;
    int n_saved = decode ? spec_traversal_saved(a->n_node) : 0;
    while (n_saved > 0 && tables + (size_t)n_saved * saved > limit) n_saved--;
    const size_t bytes = tables + (size_t)n_saved * saved;
    scan_allow_shared(q->dev, scan_kernel<VS, LANES, CH, PER_STATE>, bytes);
    return cuda_launch(q, "scan", scan_kernel<VS, LANES, CH, PER_STATE>, dim3(blocks, (unsigned)q->shape.seqs),
                       dim3(SCAN_THREADS), bytes, 1, q->d_step, *a, n_tile, table_cap, n_saved);
}

template <int VS, int LANES> static spec_status launch_scan(spec_queue *q, const spec_scan_args *a)
{
    if (a->a_per_state) {
        const int blocks = cuda_div_up((int64_t)a->n_head * a->head_dim, SCAN_WARPS * (32 / LANES));
        return launch<VS, LANES, 1, true>(q, a, (unsigned)blocks, 1, CUDA_PREFILL_CHUNK);
    } else {
        const int n_tile = cuda_div_up(a->head_dim, SCAN_WARPS * (32 / LANES) * 4);
        const int cap = a->n_node * 2 > SCAN_TABLE_MIN ? a->n_node * 2 : (int)SCAN_TABLE_MIN;
        return launch<VS, LANES, 4, false>(q, a, (unsigned)(a->n_head * n_tile), n_tile, cap);
    }
}

spec_status speci_cuda_scan_recurrent(spec_queue *q, const spec_scan_args *a)
{
    if (a->n_state <= 16) return launch_scan<4, 4>(q, a);
    if (a->n_state <= 32) return launch_scan<4, 8>(q, a);
    if (a->n_state <= 64) return launch_scan<4, 16>(q, a);
    if (a->n_state <= 128) return launch_scan<4, 32>(q, a);
    return launch_scan<8, 32>(q, a);
}
