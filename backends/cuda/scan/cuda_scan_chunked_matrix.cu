/* cuda_scan_chunked_matrix.cu - the chunked scan (spec_scan_args) on the matrix instruction: decode passes with 16-bit
 * x, B and C from the convolution, and 64 or 128 states.
 *
 *   y_i = E_i (S C_i) + sum over near tokens j of (P_ij dt_j) (C_i . B_j) x_j + D x_i
 *
 * A block has up to CHUNKED_UNITS units of 16 channels, of heads that share B and C (cuda_scan_chunked_block.cuh). Of a
 * unit's state a warp has 16 channels x 32 states in registers, as the instruction leaves sums (m16n8): what a fold
 * adds to, and, two columns taken for two k, what S C multiplies (m16n8k8; cuda_scan_chunked_states.cuh). x, B and C of
 * the tokens lie in shared memory (_memory.cuh, _tokens.cuh); rows are done in row tiles of CHUNKED_TILE_ROWS, or of
 * fewer, where the blocks of a thread-block cluster take row tiles of the same channels by turns:
 *   1  S C of each row, a part from each warp; C . B of every row and token, a tile of 8 x 16 a warp's task; the powers
 *      P of a row and head by a warp, a product over lanes with the newest token in lane 0 (_near.cuh);
 *   2  a thread to a row and V channels: the sum over its near tokens, D x, the gate; and a deferred norm behind, of
 *      which a unit's squares are one sum (_out.cuh).
 *
 * The order of each sum follows from the number of states and a token's place on its path, so it is the same whatever
 * else is in the pass. The state and the recent-token buffers are read before the kernel waits for the one in front. */
#include <type_traits>

#include "backends/cuda/cuda_tuning.h"
#include "backends/cuda/scan/cuda_scan_chunked_rows.cuh"

/* x and C . B of no token. */
template <typename K>
static __device__ __forceinline__ void clear_none(const chunked_block<K> &b, const typename K::memory &shared)
{
#pragma unroll 1
    for (int i = b.tid; i < b.grid.tile_rows; i += b.n_thread) shared.dot[b.none * shared.dot_ld + i] = 0.0f;
#pragma unroll 1
    for (int i = b.tid; i < shared.x_ld; i += b.n_thread) shared.x[b.none * shared.x_ld + i] = from_f32<typename K::T>(0.0f);
}

template <typename T, int NS, int V, int FLAGS>
static __global__ void __maxnreg__((chunked_config<T, NS, V, FLAGS>::REGISTERS))
scan_chunked_kernel(const spec_step_block *step, const spec_scan_args a, const chunked_grid grid, const norm_out norm)
{
    typedef chunked_config<T, NS, V, FLAGS> K;
    extern __shared__ __align__(16) char dynamic[];
    const int n_seq = (int)blockIdx.y;
    const spec_step_seq s = spec_step_seqs(step)[n_seq]; /* beyond the last there is memory too */
    if (n_seq >= step->n_seq) return grid_wait();
    if (!scan_chunked_fits(a, s)) return grid_wait();
    chunked_block<K> b(step, a, grid, s, n_seq);
    if (b.is_idle()) return grid_wait();
    b.find_channels();
    float *const memory = chunked_stored(b);
    chunked_state state;
    if (b.has_state) state.load(memory, NS);
    const typename K::memory shared(dynamic, grid);
    const chunked_numbers<K> known(b);
    const chunked_copies<K> copies(b, known, shared);
    const chunked_times<K> times(b, known, shared);
    chunked_states<K> states = { b, copies, times, shared, state, memory, b.n_fold, true };
    const chunked_nears<K> nears(b, copies, shared);
    const chunked_outputs<K> outputs = { b, nears, shared, norm };

    chunked_held<K> held(known);
    chunked_output<V> first = outputs.find(b.tid / K::LANES); /* of a thread's, in each tile */
    chunked_rows<K> rows(b, copies, times, outputs, first);
    /* Not before what has been asked for till now, which would wait behind the weights of the product behind. With few
     * rows here, since a short pass waits for its kernels to be set up, else when all has come (measured on
     * an H200). */
    if (K::FEW) grid_release();
    copies.recent(known.held0, 0, known.n_held);
    outputs.bring_weights();
    clear_none(b, shared);
    held.keep(times);
    const bool plain = held.is_plain(b);
    rows.prepare();
    /* Where rows are, with registers to spare, is known before the wait, since nothing else stands between it and the
     * loads. */
    typename chunked_rows<K>::sources from;
    if (V == 2) rows.find_now(from);
    if (!K::FEW) grid_release();
    grid_wait();
    if (V != 2) rows.find(from);
    rows.bring(from);
    scan_copies_wait();
    __syncthreads();

#pragma unroll 1
    for (int row0 = b.begin; row0 == b.begin || row0 < s.n_row; row0 += b.stride) { /* once if there are no rows */
        const int n = min(s.n_row - row0, grid.tile_rows), next = row0 + b.stride;
        if (!K::ONE && row0 > b.begin) {
            rows.load_gate(row0, n);
            scan_copies_wait();
            __syncthreads(); /* C is there; all else of the tile before has been read */
        }
        states.multiply(row0, n, row0 == b.begin && plain);
        nears.run_tasks(row0, n, times.first_task);
        __syncthreads();
        if (!K::ONE) rows.bring_c(next, min(s.n_row - next, grid.tile_rows));
        int skipped = 0; /* groups of which no row has a token */
        if (!K::FEW) {
            nears.weigh_all(n);
            __syncthreads();
            skipped = (CHUNKED_NEAR - nears.most(row0, n)) / 4;
        }
        rows.put(row0, n, skipped);
        if (K::ONE) break;
    }
}

/* --------------------------------------------------------------------------------- launcher --- */

/* Heads that share B and C: of one of them a block may be shared by more. */
static int scan_group(const spec_scan_args *a) { return a->b_rep < a->c_rep ? a->b_rep : a->c_rep; }

/* Of a launch with so many units a block and rows a tile. */
static chunked_grid grid_of(const spec_scan_args *a, int units, int tile_rows)
{
    const int per_head = a->head_dim / CHUNKED_CHANNELS;
    chunked_grid g = {};
    g.group = scan_group(a);
    g.units = units;
    g.group_units = g.group * a->head_dim / CHUNKED_CHANNELS;
    g.heads = units < 2 ? 1 : (units - 2) / per_head + 2;
    g.tile_rows = tile_rows;
    g.tokens = SPEC_CHUNK + CHUNKED_NEAR + a->n_node + 1;
    g.b_width = spec_scan_columns(a->n_head, a->b_rep, a->n_state);
    g.x_width = spec_scan_columns(a->n_head, a->x_rep, a->head_dim);
    g.per_head = divide_by(per_head), g.x_rep = divide_by(a->x_rep);
    g.b_rep = divide_by(a->b_rep), g.c_rep = divide_by(a->c_rep), g.by_heads = divide_by(g.heads);
    g.recent_magic = UINT32_MAX / (uint32_t)a->n_recent_max;
    return g;
}

static int64_t blocks_of(const spec_queue *q, const spec_scan_args *a, const chunked_grid &g)
{
    return (int64_t)cuda_div_up(g.group_units, g.units) * (a->n_head / g.group) * q->shape.seqs;
}

/* Several blocks of two units to a multiprocessor? */
static bool has_several(const spec_queue *q, const spec_scan_args *a)
{
    return blocks_of(q, a, grid_of(a, 2, 1)) >= cuda_tuning_of(q->dev).chunked_several * q->dev->n_sm;
}

/* The fewest units a block, up to `most`, with which there are no more blocks than `enough`, or as many as memory
 * allows. */
template <typename T, int NS>
static chunked_grid fewest_units(const spec_queue *q, const spec_scan_args *a, int tile_rows, int most, int enough)
{
    chunked_grid best = grid_of(a, 1, tile_rows);
    for (int units = 2; units <= most && blocks_of(q, a, best) > enough; units++) {
        const chunked_grid g = grid_of(a, units, tile_rows);
        if (chunked_memory<T, NS, true>::bytes(g) > q->dev->shared_most) break;
        best = g;
    }
    return best;
}

/* How channels are divided, and the blocks of a cluster, which take row tiles by turns. */
struct chunked_shape {
    chunked_grid grid;
    int turns;
};

/* Two units a block where there are several blocks to a multiprocessor. Else two blocks to the same channels, where all
 * multiprocessors, or for up to a tile of rows half of them, have room for that at once; and else the fewest units with
 * which a third of the multiprocessors, or with more rows than a tile a quarter, is left to the product behind, whose
 * weights can then be on their way. It changes no bits. */
template <typename T, int NS> static chunked_shape best_shape(const spec_queue *q, const spec_scan_args *a, bool several)
{
    const cuda_tuning &tuning = cuda_tuning_of(q->dev);
    const int rows = cuda_div_up(q->shape.rows, q->shape.seqs); /* of a sequence: those with more take more tiles */
    const bool one = rows <= CHUNKED_TILE_ROWS;
    const int tile_rows = one ? rows : (int)CHUNKED_TILE_ROWS, n_sm = q->dev->n_sm;
    if (several) return { fewest_units<T, NS>(q, a, tile_rows, 2, 0), 1 };
    const bool few = rows <= tuning.chunked_split_rows;
    if (!few && cuda_has_clusters(q->dev)) {
        const int room = (one ? tuning.chunked_split_one : tuning.chunked_split)(n_sm) / 2; /* clusters */
        const chunked_grid g = fewest_units<T, NS>(q, a, one ? rows / 2 : tile_rows, CHUNKED_UNITS, room);
        if (blocks_of(q, a, g) <= room) return { g, 2 };
    }
    const int most = few ? tuning.chunked_units_few : tuning.chunked_units;
    return { fewest_units<T, NS>(q, a, tile_rows, most, (one ? tuning.chunked_fill_one : tuning.chunked_fill)(n_sm)), 1 };
}

template <typename T, int NS, int V, int FLAGS>
static spec_status launch(spec_queue *q, const spec_scan_args *a, const chunked_shape &shape, const norm_out &norm)
{
    typedef chunked_config<T, NS, V, FLAGS> K;
    if constexpr (!K::NORM && std::is_same_v<T, __nv_bfloat16>) /* no norm is deferred in float16 */
        if (norm.weight) return launch<T, NS, V, FLAGS | LAUNCH_NORM>(q, a, shape, norm);
    chunked_grid g = shape.grid;
    const size_t bytes = K::memory::bytes(g);
    const cuda_tuning &tuning = cuda_tuning_of(q->dev);
    const int states = g.units * K::PARTS, least = K::SEVERAL ? tuning.chunked_warps_several : tuning.chunked_warps;
    const int room = CHUNKED_WARPS - states;
    const int more = (K::FEW || K::SEVERAL) && states >= least ? 0 : min(tuning.chunked_helpers, room);
    const int warps = max(states + more, least);
    auto *kernel = scan_chunked_kernel<T, NS, V, FLAGS>;
    g.wide = divide_by(g.units * CHUNKED_CHANNELS / V);
    scan_allow_shared(q->dev, kernel, bytes);
    const dim3 blocks((unsigned)(cuda_div_up(g.group_units, g.units) * shape.turns), (unsigned)q->shape.seqs,
                      (unsigned)(a->n_head / g.group));
    return cuda_launch(q, "scan", kernel, blocks, dim3((unsigned)warps * 32), bytes, (unsigned)shape.turns, q->d_step, *a, g, norm);
}

template <typename T, int NS, int FLAGS>
static spec_status launch_rows(spec_queue *q, const spec_scan_args *a, const chunked_shape &shape, const norm_out &norm)
{
    const cuda_tuning &tuning = cuda_tuning_of(q->dev);
    const int rows = shape.grid.tile_rows;
    if constexpr (!(FLAGS & LAUNCH_SPLIT))
        if (rows <= tuning.chunked_few_rows) return launch<T, NS, 2, FLAGS | LAUNCH_FEW>(q, a, shape, norm);
    return rows <= tuning.chunked_narrow_rows ? launch<T, NS, 2, FLAGS>(q, a, shape, norm)
                                              : launch<T, NS, 4, FLAGS>(q, a, shape, norm);
}

template <typename T, int NS, int FLAGS>
static spec_status launch_tiles(spec_queue *q, const spec_scan_args *a, const chunked_shape &shape, const norm_out &norm)
{
    /* Of several sequences one may have more than its share of the rows. */
    const bool one = q->shape.seqs == 1 && shape.grid.tile_rows * shape.turns >= q->shape.rows;
    return one ? launch_rows<T, NS, FLAGS | LAUNCH_ONE>(q, a, shape, norm) : launch_rows<T, NS, FLAGS>(q, a, shape, norm);
}

template <typename T, int NS>
static bool launch_any(spec_queue *q, const spec_scan_args *a, const norm_out &norm, spec_status *status)
{
    /* Whatever the rows of this pass: the general kernel has other bits. */
    if (chunked_memory<T, NS, true>::bytes(grid_of(a, 1, CHUNKED_TILE_ROWS)) > q->dev->shared_most) return false;
    const bool several = has_several(q, a);
    const chunked_shape shape = best_shape<T, NS>(q, a, several);
    if (several) *status = launch_tiles<T, NS, LAUNCH_SEVERAL>(q, a, shape, norm);
    else if (shape.turns > 1) *status = launch_tiles<T, NS, LAUNCH_SPLIT>(q, a, shape, norm);
    else *status = launch_tiles<T, NS, 0>(q, a, shape, norm);
    return true;
}

/* 16-bit x, B and C from the convolution, in rows of whole, aligned units of 16 bytes, groups of heads, dt and gate in
 * float32. */
static bool scan_has_rows(const spec_queue *q, const spec_scan_args *a)
{
    const int group = scan_group(a);
    const spec_view *const rows[] = { &a->x, &a->b, &a->c };
    bool whole = true;
    for (const spec_view *v : rows) whole = whole && v->dtype == a->dtype && cuda_aligned(v->data, 16) && v->ld % 8 == 0;
    return q->shape.phase == SPEC_PHASE_DECODE && !a->a_per_state && !a->node_state && a->b_in_conv &&
           a->b_rep % group == 0 && a->c_rep % group == 0 && a->dtype != SPEC_DTYPE_F32 && whole &&
           a->dt.dtype == SPEC_DTYPE_F32 && (!a->z.data || a->z.dtype == SPEC_DTYPE_F32) && cuda_aligned(a->state, 16) &&
           cuda_aligned(a->replay_y, 16) && a->replay_ld % 8 == 0 && a->replay_b_col % 8 == 0 && a->replay_x_col % 8 == 0;
}

static bool has_kernel(const spec_queue *q, const spec_scan_args *a)
{
    const bool gate = !a->z.data || (a->z.ld % 2 == 0 && cuda_aligned(a->z.data, 8));
    const bool out = (a->y.dtype == SPEC_DTYPE_F32 || a->y.dtype == a->dtype) && cuda_aligned(a->y.data, 8) && a->y.ld % 2 == 0;
    return (a->n_state == 64 || a->n_state == 128) && a->head_dim % CHUNKED_CHANNELS == 0 && gate && out &&
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

bool speci_cuda_scan_chunked_matrix(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    return has_kernel(q, a) && launch_type(q, a, {}, status);
}

bool speci_cuda_scan_norm(spec_queue *q, const spec_scan_args *a, const cuda_norm_args *norm, cuda_pass *pass, spec_status *status)
{
    spec_scan_args both = *a;
    both.y = norm->y;
    /* Of more rows the norm writes slabs as well. */
    if (!a->chunk || q->shape.rows > LINEAR_FEW || a->y.dtype != SPEC_DTYPE_F32 || a->dtype != SPEC_DTYPE_BF16 ||
        !norm_follows(norm, &a->y, a->n_head * a->head_dim, a->dtype) || !cuda_aligned(norm->weight, 16) || !has_kernel(q, a) ||
        !has_kernel(q, &both))
        return false;
    norm_out next = norm_out_of(norm);
    next.tiles = speci_cuda_arranged_for(q, pass, ORDER_TILES, NULL);
    if (launch_type(q, &both, next, status)) return true;
    pass->out = {};
    return false;
}
