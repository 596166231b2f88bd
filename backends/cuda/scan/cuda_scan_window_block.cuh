/* cuda_scan_window_block.cuh - of the chunked scan on the matrix instruction (cuda_scan_window_matrix.cu): the kernels that
 * there are, and what a block of one has to do: which rows of which sequence, in which channels.
 *
 * All that these files define is inlined into one kernel. What changes while it runs, and stands in registers, is a struct of
 * values alone or handed over by reference (window_state, window_held, window_output): as a member beside references it would
 * be kept in local memory (docs/performance.md). */
#ifndef SPEC_CUDA_SCAN_WINDOW_BLOCK_CUH
#define SPEC_CUDA_SCAN_WINDOW_BLOCK_CUH

#include "backends/cuda/cuda_cluster.cuh"
#include "backends/cuda/scan/cuda_scan_window_memory.cuh"

/* Kinds of launches that have kernels of their own, since what others have to know would take registers, and instructions
 * behind the wait. */
enum {
    WINDOW_IS_FEW = 1,     /* up to WINDOW_FEW rows a chunk */
    WINDOW_IS_SEVERAL = 2, /* several blocks for each multiprocessor */
    WINDOW_IS_SPLIT = 4,   /* the blocks of a cluster take chunks by turns */
    WINDOW_IS_ONE = 8,     /* a block has one chunk at most */
    WINDOW_IS_NORM = 16    /* the deferred norm behind */
};

/* The sum over a row's near tokens is one of WINDOW_GROUPS sums over four, by their places among the WINDOW_NEAR that end
 * with the row, added up as a tree. With few rows (FEW) a group is a thread's, with the norm behind two. */
enum { WINDOW_GROUPS = WINDOW_NEAR / 4 };

/* What a kernel is made for: T of x, B and C, NS states, V channels that a thread sums for, and the kind of launch. */
template <typename Type, int STATES, int CHANNELS, int KIND> struct window_kind {
    typedef Type T;
    static constexpr int NS = STATES, V = CHANNELS;
    static constexpr bool FEW = KIND & WINDOW_IS_FEW, SPLIT = KIND & WINDOW_IS_SPLIT, ONE = KIND & WINDOW_IS_ONE,
                          SEVERAL = KIND & WINDOW_IS_SEVERAL, NORM = KIND & WINDOW_IS_NORM;
    typedef window_memory<T, NS, NORM> memory;
    static constexpr int FIRST = memory::FIRST, LD = memory::LD, PARTS = memory::PARTS;
    static constexpr int LANES = !FEW ? 1 : NORM ? WINDOW_GROUPS / 2 : (int)WINDOW_GROUPS; /* of an output */
    /* Of a thread: the fewest without spilling; or so few that three blocks fit a multiprocessor. */
    static constexpr int REGISTERS = SEVERAL ? 80 : 96;
};

template <typename K> struct window_block {
    const spec_step_block *const step;
    const spec_scan_args &a;
    const window_grid &grid;
    const spec_step_seq &s;
    const int n_seq;
    /* g and t: the row and the pair of columns that a lane has of the instruction's sums */
    int tid, n_thread, warp, n_warp, lane, g, t;

    /* Windows of committed tokens to fold; the first token that is left behind them, of how many. */
    int n_fold, first, n_left;
    /* Which rows: a block sees those of its chunks and all in front of them, their ancestors; the first block of a cluster
     * those that the rings will keep as well. */
    int rank, begin, stride; /* of its first chunk, and from one to the next */
    int n_first, n_seen;     /* rows of the first chunk; seen */
    int n_tree, tree0, none; /* nodes, places of node 0 and of no token */

    /* Which channels: units of a group, counted through its heads, which are counted from head0. */
    int first_head, unit0, n_unit, channel0, in_group, head0, n_head;
    int first_kept; /* head 0 may be of the block in front too, which keeps its dt */
    bool has_state; /* a warp: of channels of `unit`, the states of `part` */
    int unit, part;

    __device__ __forceinline__ window_block(const spec_step_block *of, const spec_scan_args &args, const window_grid &by,
                                            const spec_step_seq &seq, int n)
        : step(of), a(args), grid(by), s(seq), n_seq(n)
    {
        tid = (int)threadIdx.x, n_thread = (int)blockDim.x, warp = tid / 32, n_warp = n_thread / 32, lane = tid % 32;
        g = lane / 4, t = lane % 4;
        const int n_known = s.n_recent + s.n_replay;
        n_fold = spec_chunk_folds(n_known), first = n_fold * SPEC_CHUNK, n_left = n_known - first;
        n_tree = s.n_fed + s.n_row, tree0 = K::FIRST + n_left, none = grid.tokens - 1;
        rank = K::SPLIT ? cluster_rank() : 0, begin = rank * grid.chunk;
        stride = K::SPLIT ? cluster_size() * grid.chunk : grid.chunk;
        n_first = min(s.n_row - begin, grid.chunk);
        n_seen = !K::SPLIT || begin + stride < s.n_row ? s.n_row : max(begin + n_first, rank == 0 ? s.n_advance : 0);
    }
    __device__ __forceinline__ bool is_idle() const { return rank > 0 && begin >= s.n_row; }
    __device__ __forceinline__ void find_channels()
    {
        first_head = (int)blockIdx.z * grid.group, unit0 = (K::SPLIT ? cluster_id() : (int)blockIdx.x) * grid.units;
        n_unit = min(grid.units, grid.group_units - unit0);
        channel0 = first_head * a.head_dim + unit0 * WINDOW_CHANNELS;
        in_group = grid.per_head.of(unit0), head0 = first_head + in_group;
        n_head = head_of(n_unit - 1) + 1;
        first_kept = unit0 > in_group * (int)grid.per_head.by ? 1 : 0;
        has_state = warp < n_unit * K::PARTS;
        unit = has_state ? warp / K::PARTS : 0, part = warp % K::PARTS;
    }
    __device__ __forceinline__ int head_of(int of_unit) const { return grid.per_head.of(unit0 + of_unit) - in_group; }
    __device__ __forceinline__ bool has_channel(int c) const { return c < n_unit * WINDOW_CHANNELS; }

    /* Of the chunk's row r and head h. With many rows heads that a warp asks for together lie on different banks too. */
    __device__ __forceinline__ int list_at(int r, int h) const { return K::V == 2 ? h * grid.chunk + r : r * grid.heads + h; }
};

#endif
