/* cuda_scan_window_matrix.cu - the chunked scan (spec_scan_args) on the matrix instruction: decode passes with 16-bit x, B
 * and C from the convolution, and 64 or 128 states.
 *
 *   y_i = E_i (S C_i) + sum over near tokens j of (P_ij dt_j) (C_i . B_j) x_j + D x_i
 *
 * A block has up to WINDOW_UNITS units of 16 channels, of heads that share B and C (cuda_scan_window_block.cuh). Of a unit's
 * state a warp has 16 channels x 32 states in registers, as the instruction leaves sums (m16n8): what a fold adds to, and, two
 * columns taken for two k, what S C multiplies (m16n8k8; cuda_scan_window_states.cuh). x, B and C of the tokens lie in shared
 * memory (_memory.cuh, _tokens.cuh); rows are done WINDOW_CHUNK at a time, or fewer, where the blocks of a cluster take chunks
 * of the same channels by turns:
 *   1  S C of each row, a part from each warp; C . B of every row and token, a tile of 8 x 16 a warp's task; the powers P of
 *      a row and head by a warp, a product over lanes with the newest token in lane 0 (_near.cuh);
 *   2  a thread to a row and V channels: the sum over its near tokens, D x, the gate; and a deferred norm behind, of which a
 *      unit's squares are one sum (_out.cuh).
 *
 * The order of each sum follows from the number of states and a token's place on its path, so it is the same whatever else
 * is in the pass. The state and what the rings hold are read before the kernel waits for the one in front. */
#include <type_traits>

#include "backends/cuda/scan/cuda_scan_window_rows.cuh"

/* x and C . B of no token. */
template <typename K>
static __device__ __forceinline__ void clear_none(const window_block<K> &b, const typename K::memory &shared)
{
#pragma unroll 1
    for (int i = b.tid; i < b.grid.chunk; i += b.n_thread) shared.dot[b.none * shared.dot_ld + i] = 0.0f;
#pragma unroll 1
    for (int i = b.tid; i < shared.x_ld; i += b.n_thread) shared.x[b.none * shared.x_ld + i] = from_f32<typename K::T>(0.0f);
}

template <typename T, int NS, int V, int KIND>
static __global__ void __maxnreg__((window_kind<T, NS, V, KIND>::REGISTERS))
window_kernel(const spec_step_block *step, const spec_scan_args a, const window_grid grid, const norm_out norm)
{
    typedef window_kind<T, NS, V, KIND> K;
    extern __shared__ __align__(16) char dynamic[];
    const int n_seq = (int)blockIdx.y;
    const spec_step_seq s = spec_step_seqs(step)[n_seq]; /* beyond the last there is memory too */
    if (n_seq >= step->n_seq) return grid_wait();
    if (!scan_window_fits(a, s)) return grid_wait();
    window_block<K> b(step, a, grid, s, n_seq);
    if (b.is_idle()) return grid_wait();
    b.find_channels();
    float *const memory = window_stored(b);
    window_state state;
    if (b.has_state) state.load(memory, NS);
    const typename K::memory shared(dynamic, grid);
    const window_numbers<K> known(b);
    const window_copies<K> copies(b, known, shared);
    const window_times<K> times(b, known, shared);
    window_states<K> states = { b, copies, times, shared, state, memory, b.n_fold, true };
    const window_nears<K> nears(b, copies, shared);
    const window_outputs<K> outputs = { b, nears, shared, norm };

    window_held<K> held(known);
    window_output<V> first = outputs.find(b.tid / K::LANES); /* of a thread's, in each chunk */
    window_rows<K> rows(b, copies, times, outputs, first);
    /* Not before what has been asked for till now, which would wait behind the weights of the product behind. With few rows here,
     * since a short pass waits for its kernels to be set up, else when all has come (measured, docs/performance.md). */
    if (K::FEW) grid_release();
    copies.recent(known.held0, 0, known.n_held);
    outputs.bring_weights();
    clear_none(b, shared);
    held.keep(times);
    const bool plain = held.is_plain(b);
    rows.prepare();
    /* Where rows are, with registers to spare, is known before the wait, since nothing else stands between it and the loads. */
    typename window_rows<K>::sources from;
    if (V == 2) rows.find_now(from);
    if (!K::FEW) grid_release();
    grid_wait();
    if (V != 2) rows.find(from);
    rows.bring(from);
    scan_copies_wait();
    __syncthreads();

#pragma unroll 1
    for (int row0 = b.begin; row0 == b.begin || row0 < s.n_row; row0 += b.stride) { /* once if there are no rows */
        const int n = min(s.n_row - row0, grid.chunk), next = row0 + b.stride;
        if (!K::ONE && row0 > b.begin) {
            rows.load_gate(row0, n);
            scan_copies_wait();
            __syncthreads(); /* C is there; all else of the chunk before has been read */
        }
        states.multiply(row0, n, row0 == b.begin && plain);
        nears.run_tasks(row0, n, times.first_task);
        __syncthreads();
        if (!K::ONE) rows.bring_c(next, min(s.n_row - next, grid.chunk));
        int skipped = 0; /* groups of which no row has a token */
        if (!K::FEW) {
            nears.weigh_all(n);
            __syncthreads();
            skipped = (WINDOW_NEAR - nears.most(row0, n)) / 4;
        }
        rows.put(row0, n, skipped);
        if (K::ONE) break;
    }
}

/* --------------------------------------------------------------------------------- launcher --- */

/* Of a launch of so many units a block, and chunks of so many rows. */
static window_grid grid_of(const spec_scan_args *a, int units, int chunk)
{
    const int per_head = a->head_dim / WINDOW_CHANNELS;
    window_grid g = {};
    g.group = scan_group(a);
    g.units = units;
    g.group_units = g.group * a->head_dim / WINDOW_CHANNELS;
    g.heads = units < 2 ? 1 : (units - 2) / per_head + 2;
    g.chunk = chunk;
    g.tokens = SPEC_CHUNK + WINDOW_NEAR + a->n_node + 1;
    g.b_width = spec_scan_columns(a->n_head, a->b_rep, a->n_state);
    g.x_width = spec_scan_columns(a->n_head, a->x_rep, a->head_dim);
    g.per_head = divide_by(per_head), g.x_rep = divide_by(a->x_rep);
    g.b_rep = divide_by(a->b_rep), g.c_rep = divide_by(a->c_rep), g.by_heads = divide_by(g.heads);
    g.ring_magic = UINT32_MAX / (uint32_t)a->n_recent_max;
    return g;
}

static int64_t blocks_of(const spec_queue *q, const spec_scan_args *a, const window_grid &g)
{
    return (int64_t)cuda_div_up(g.group_units, g.units) * (a->n_head / g.group) * q->shape.seqs;
}

/* Two blocks of two units, or more, to a multiprocessor? */
static bool has_several(const spec_queue *q, const spec_scan_args *a) { return blocks_of(q, a, grid_of(a, 2, 1)) >= 2 * q->dev->n_sm; }

/* The fewest units a block, up to `most`, with which there are no more blocks than `enough`, or as many as memory allows. */
template <typename T, int NS>
static window_grid fewest_units(const spec_queue *q, const spec_scan_args *a, int chunk, int most, int enough)
{
    window_grid best = grid_of(a, 1, chunk);
    for (int units = 2; units <= most && blocks_of(q, a, best) > enough; units++) {
        const window_grid g = grid_of(a, units, chunk);
        if (window_memory<T, NS, true>::bytes(g) > scan_shared_limit(q->dev)) break;
        best = g;
    }
    return best;
}

/* The channels, and the blocks of a cluster, which take chunks by turns. */
struct window_cut {
    window_grid grid;
    int turns;
};

/* Two units a block where there are several blocks to a multiprocessor. Else two blocks to the same channels, where all
 * multiprocessors, or for up to a chunk of rows half of them, have room for that at once; and else the fewest units with which
 * a third of the multiprocessors, or with more rows than a chunk a quarter, is left to the product behind, whose weights can then
 * be on their way (measured on an H200, docs/performance.md). It changes no bits. */
template <typename T, int NS> static window_cut best_cut(const spec_queue *q, const spec_scan_args *a, bool several)
{
    const int rows = cuda_div_up(q->shape.rows, q->shape.seqs); /* of a sequence: those with more take more chunks */
    const bool one = rows <= WINDOW_CHUNK;
    const int chunk = one ? rows : (int)WINDOW_CHUNK, n_sm = q->dev->n_sm;
    if (several) return { fewest_units<T, NS>(q, a, chunk, 2, 0), 1 };
    if (rows > 8) {
        const int room = (one ? n_sm / 2 : n_sm) / 2; /* clusters */
        const window_grid g = fewest_units<T, NS>(q, a, one ? rows / 2 : chunk, WINDOW_UNITS, room);
        if (blocks_of(q, a, g) <= room) return { g, 2 };
    }
    return { fewest_units<T, NS>(q, a, chunk, rows <= 8 ? 3 : 4, one ? n_sm * 2 / 3 : n_sm * 3 / 4), 1 };
}

template <typename T, int NS, int V, int KIND>
static spec_status launch(spec_queue *q, const spec_scan_args *a, const window_cut &cut, const norm_out &norm)
{
    typedef window_kind<T, NS, V, KIND> K;
    if constexpr (!K::NORM && std::is_same_v<T, __nv_bfloat16>) /* no norm is deferred in float16 */
        if (norm.weight) return launch<T, NS, V, KIND | WINDOW_IS_NORM>(q, a, cut, norm);
    window_grid g = cut.grid;
    const size_t bytes = K::memory::bytes(g);
    const int states = g.units * K::PARTS, least = K::SEVERAL ? 8 : 12;
    const int more = (K::FEW || K::SEVERAL) && states >= least ? 0 : min((int)WINDOW_MORE, WINDOW_WARPS - states);
    const int warps = max(states + more, least);
    auto *kernel = window_kernel<T, NS, V, KIND>;
    g.wide = divide_by(g.units * WINDOW_CHANNELS / V);
    scan_allow_shared(q->dev, kernel, bytes);
    const dim3 blocks((unsigned)(cuda_div_up(g.group_units, g.units) * cut.turns), (unsigned)q->shape.seqs, (unsigned)(a->n_head / g.group));
    return cuda_launch(q, "scan", kernel, blocks, dim3((unsigned)warps * 32), bytes, (unsigned)cut.turns, q->d_step, *a, g, norm);
}

template <typename T, int NS, int KIND>
static spec_status launch_rows(spec_queue *q, const spec_scan_args *a, const window_cut &cut, const norm_out &norm)
{
    if constexpr (!(KIND & WINDOW_IS_SPLIT))
        if (cut.grid.chunk <= WINDOW_FEW) return launch<T, NS, 2, KIND | WINDOW_IS_FEW>(q, a, cut, norm);
    return cut.grid.chunk <= 16 ? launch<T, NS, 2, KIND>(q, a, cut, norm) : launch<T, NS, 4, KIND>(q, a, cut, norm);
}

template <typename T, int NS, int KIND>
static spec_status launch_chunks(spec_queue *q, const spec_scan_args *a, const window_cut &cut, const norm_out &norm)
{
    const bool one = q->shape.seqs == 1 && cut.grid.chunk * cut.turns >= q->shape.rows; /* a sequence may have more than its share */
    return one ? launch_rows<T, NS, KIND | WINDOW_IS_ONE>(q, a, cut, norm) : launch_rows<T, NS, KIND>(q, a, cut, norm);
}

template <typename T, int NS>
static bool launch_any(spec_queue *q, const spec_scan_args *a, const norm_out &norm, spec_status *status)
{
    /* Whatever the rows of this pass: the general kernel has other bits. */
    if (window_memory<T, NS, true>::bytes(grid_of(a, 1, WINDOW_CHUNK)) > scan_shared_limit(q->dev)) return false;
    const bool several = has_several(q, a);
    const window_cut cut = best_cut<T, NS>(q, a, several);
    if (several) *status = launch_chunks<T, NS, WINDOW_IS_SEVERAL>(q, a, cut, norm);
    else if (cut.turns > 1) *status = launch_chunks<T, NS, WINDOW_IS_SPLIT>(q, a, cut, norm);
    else *status = launch_chunks<T, NS, 0>(q, a, cut, norm);
    return true;
}

static bool has_kernel(const spec_queue *q, const spec_scan_args *a)
{
    const bool gate = !a->z.data || (a->z.ld % 2 == 0 && cuda_aligned(a->z.data, 8));
    const bool out = (a->y.dtype == SPEC_DTYPE_F32 || a->y.dtype == a->dtype) && cuda_aligned(a->y.data, 8) && a->y.ld % 2 == 0;
    return (a->n_state == 64 || a->n_state == 128) && a->head_dim % WINDOW_CHANNELS == 0 && gate && out &&
           cuda_aligned(a->recent_x, 16) && cuda_aligned(a->recent_b, 16) && scan_has_rows(q, a);
}

/* norm.weight NULL: no norm behind; else y is the norm's. */
static bool launch_type(spec_queue *q, const spec_scan_args *a, const norm_out &norm, spec_status *status)
{
    if (a->dtype == SPEC_DTYPE_BF16)
        return a->n_state == 128 ? launch_any<__nv_bfloat16, 128>(q, a, norm, status)
                                 : launch_any<__nv_bfloat16, 64>(q, a, norm, status);
    return a->n_state == 128 ? launch_any<__half, 128>(q, a, norm, status) : launch_any<__half, 64>(q, a, norm, status);
}

bool speci_cuda_scan_window_matrix(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    return has_kernel(q, a) && launch_type(q, a, {}, status);
}

bool speci_cuda_scan_norm(spec_queue *q, const spec_scan_args *a, const spec_norm_args *norm, spec_status *status)
{
    spec_scan_args both = *a;
    both.y = norm->y;
    /* Of more rows the norm writes slabs as well. */
    if (!a->chunk || q->shape.rows > LINEAR_FEW || a->y.dtype != SPEC_DTYPE_F32 || a->dtype != SPEC_DTYPE_BF16 ||
        !norm_follows(norm, &a->y, a->n_head * a->head_dim, a->dtype) || !cuda_aligned(norm->weight, 16) || !has_kernel(q, a) ||
        !has_kernel(q, &both))
        return false;
    norm_out next = norm_out_of(norm);
    next.tiles = speci_cuda_arranged_for(q, &norm->y, norm->dim, ORDER_TILES, NULL);
    if (launch_type(q, &both, next, status)) return true;
    q->arranged_out = {};
    return false;
}
