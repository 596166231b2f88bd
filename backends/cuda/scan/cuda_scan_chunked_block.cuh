/* cuda_scan_chunked_block.cuh - of the chunked scan on the matrix instruction (cuda_scan_chunked_matrix.cu): the
 * configurations of the kernel, and what a block of one has to do: which rows of which sequence, in which channels.
 *
 * All that these files define is inlined into one kernel. What changes while it runs, and stands in registers, is a
 * struct of values alone or handed over by reference (chunked_state, chunked_held, chunked_output): as a member beside
 * references it would be kept in local memory. */
#ifndef SPEC_CUDA_SCAN_CHUNKED_BLOCK_CUH
#define SPEC_CUDA_SCAN_CHUNKED_BLOCK_CUH

#include "backends/cuda/cuda_cluster.cuh"
#include "backends/cuda/scan/cuda_scan_chunked_memory.cuh"

/* Flags of launches that have kernels of their own, since what others have to know would take registers, and
 * instructions behind the wait. */
enum {
    LAUNCH_FEW = 1,     /* so few rows a tile that threads share a row's near tokens; up to 8 */
    LAUNCH_SEVERAL = 2, /* several blocks for each multiprocessor */
    LAUNCH_SPLIT = 4,   /* the blocks of a cluster take row tiles by turns */
    LAUNCH_ONE = 8,     /* a block has one row tile at most */
    LAUNCH_NORM = 16    /* the deferred norm behind */
};

/* The sum over a row's near tokens is one of CHUNKED_GROUPS sums over four, by their order among the CHUNKED_NEAR that
 * end with the row, added up as a tree. With few rows (FEW) a group is a thread's, with the norm behind two. */
enum { CHUNKED_GROUPS = CHUNKED_NEAR / 4 };

/* A kernel's configuration: T of x, B and C, NS states, V channels that a thread sums for, and the flags of the launch. */
template <typename Type, int STATES, int CHANNELS, int FLAGS> struct chunked_config {
    typedef Type T;
    static constexpr int NS = STATES, V = CHANNELS;
    static constexpr bool FEW = FLAGS & LAUNCH_FEW, SPLIT = FLAGS & LAUNCH_SPLIT, ONE = FLAGS & LAUNCH_ONE,
                          SEVERAL = FLAGS & LAUNCH_SEVERAL, NORM = FLAGS & LAUNCH_NORM;
    typedef chunked_memory<T, NS, NORM> memory;
    static constexpr int FIRST = memory::FIRST, LD = memory::LD, PARTS = memory::PARTS;
    static constexpr int LANES = !FEW ? 1 : NORM ? CHUNKED_GROUPS / 2 : (int)CHUNKED_GROUPS; /* of an output */
    /* Of a thread: the fewest without spilling; or so few that three blocks fit a multiprocessor. */
    static constexpr int REGISTERS = SEVERAL ? 80 : 96;
};

template <typename K> struct chunked_block {
    const spec_step_block *const step;
    const spec_scan_args &a;
    const chunked_grid &grid;
    const spec_step_seq &s;
    const int n_seq;
    /* g and t: the row and the pair of columns that a lane has of the instruction's sums */
    int tid, n_thread, warp, n_warp, lane, g, t;

    /* Chunks of committed tokens to fold; the first token that is left behind them, of how many. */
    int n_fold, first, n_left;
    /* Which rows: a block sees those of its row tiles and all in front of them, their ancestors; the first block of a
     * cluster those that the recent-token buffers will keep as well. */
    int rank, begin, stride; /* of its first tile, and from one to the next */
    int n_first, n_seen;     /* rows of the first tile; seen */
    int n_tree, tree0, none; /* nodes, indices of node 0 and of no token */

    /* Which channels: units of a group, counted through its heads, which are counted from head0. */
    int first_head, unit0, n_unit, channel0, in_group, head0, n_head;
    int first_kept; /* head 0 may be of the block in front too, which keeps its dt */
    bool has_state; /* a warp: of channels of `unit`, the states of `part` */
    int unit, part;

    __device__ __forceinline__ chunked_block(const spec_step_block *of, const spec_scan_args &args, const chunked_grid &by,
                                            const spec_step_seq &seq, int n)
        : step(of), a(args), grid(by), s(seq), n_seq(n)
    {
        tid = (int)threadIdx.x, n_thread = (int)blockDim.x, warp = tid / 32, n_warp = n_thread / 32, lane = tid % 32;
        g = lane / 4, t = lane % 4;
        const int n_known = s.n_recent + s.n_replay;
        n_fold = spec_chunk_folds(n_known), first = n_fold * SPEC_CHUNK, n_left = n_known - first;
        n_tree = s.n_fed + s.n_row, tree0 = K::FIRST + n_left, none = grid.tokens - 1;
        rank = K::SPLIT ? cluster_rank() : 0, begin = rank * grid.tile_rows;
        stride = K::SPLIT ? cluster_size() * grid.tile_rows : grid.tile_rows;
        n_first = min(s.n_row - begin, grid.tile_rows);
        n_seen = !K::SPLIT || begin + stride < s.n_row ? s.n_row : max(begin + n_first, rank == 0 ? s.n_advance : 0);
    }
    __device__ __forceinline__ bool is_idle() const { return rank > 0 && begin >= s.n_row; }
    __device__ __forceinline__ void find_channels()
    {
        first_head = (int)blockIdx.z * grid.group, unit0 = (K::SPLIT ? cluster_id() : (int)blockIdx.x) * grid.units;
        n_unit = min(grid.units, grid.group_units - unit0);
        channel0 = first_head * a.head_dim + unit0 * CHUNKED_CHANNELS;
        in_group = grid.per_head.of(unit0), head0 = first_head + in_group;
        n_head = head_of(n_unit - 1) + 1;
        first_kept = unit0 > in_group * (int)grid.per_head.by ? 1 : 0;
        has_state = warp < n_unit * K::PARTS;
        unit = has_state ? warp / K::PARTS : 0, part = warp % K::PARTS;
    }
    __device__ __forceinline__ int head_of(int of_unit) const { return grid.per_head.of(unit0 + of_unit) - in_group; }
    __device__ __forceinline__ bool has_channel(int c) const { return c < n_unit * CHUNKED_CHANNELS; }

    /* Of the tile's row r and head h. With many rows heads that a warp asks for together lie on different banks too. */
    __device__ __forceinline__ int list_at(int r, int h) const { return K::V == 2 ? h * grid.tile_rows + r : r * grid.heads + h; }
};

#endif
