/* cuda_scan_chunked_memory.cuh - of the chunked scan on the matrix instruction (cuda_scan_chunked_matrix.cu): how a
 * launch divides channels and rows among its blocks, and what a block has in shared memory. */
#ifndef SPEC_CUDA_SCAN_CHUNKED_MEMORY_CUH
#define SPEC_CUDA_SCAN_CHUNKED_MEMORY_CUH

#include "backends/cuda/scan/cuda_scan.cuh"

enum {
    CHUNKED_NEAR = 2 * SPEC_CHUNK,   /* near tokens of a row at most */
    CHUNKED_CHANNELS = 16,           /* of a unit */
    CHUNKED_UNITS = 5,               /* of a block, at most */
    CHUNKED_STATES = 32,             /* of a warp */
    CHUNKED_TILES = CHUNKED_STATES / 8,
    CHUNKED_TILE_ROWS = 32,         /* of a row tile, at most: what a block does at once */
    CHUNKED_PAD = 8,                 /* values behind a row of B or C: the rows that ldmatrix reads lie on different banks */
    CHUNKED_LIST = CHUNKED_NEAR + 2, /* from one list of near tokens to the next, which lies on other banks */
    CHUNKED_WARPS = 20               /* of a block, that there are registers for */
};
static_assert(CHUNKED_NEAR == 32, "a near token is a lane's");
static_assert((int)CHUNKED_CHANNELS == (int)CUDA_SQUARES, "a row's squares of a unit are one sum");

/* n / by for n and by < 2^15, by a multiplication. */
struct chunked_div {
    uint32_t by, magic;
    __device__ __forceinline__ int of(int n) const { return (int)__umulhi((uint32_t)n * 2, magic); }
};
static chunked_div divide_by(int by) { return { (uint32_t)by, (1u << 31) / (uint32_t)by + 1 }; }

/* How a launch divides the channels of a group of heads that share B and C (one of these may be shared by more). */
struct chunked_grid {
    int32_t group;       /* heads of the group */
    int32_t units;       /* of a block */
    int32_t group_units; /* of a group */
    int32_t heads;       /* of a block, at most */
    int32_t tile_rows;   /* of a row tile */
    int32_t tokens;      /* that shared memory has room for: a chunk to fold, the recent ones, the tree, and none */
    int32_t b_width, x_width;                        /* of the recent-token buffers */
    chunked_div per_head, x_rep, b_rep, c_rep, wide; /* units of a head; heads that share x, B, C; outputs of a row */
    chunked_div by_heads;                            /* `heads` */
    uint32_t recent_magic;                           /* 2^32 / n_recent_max, less than one off */
};

/* A token near a row: P dt, then the weight of its x; and its index, then where its x is, in bytes. */
struct __align__(8) chunked_near {
    float weight;
    int32_t index;
};

/* A block's shared memory. A token's index: of a chunk that is folded in front, 0 and on; FIRST and on the recent
 * tokens that are left, then the tree's nodes. The last index is no token's: x and C . B are 0 there. */
template <typename T, int NS, bool NORM> struct chunked_memory {
    static constexpr int FIRST = SPEC_CHUNK, LD = NS + CHUNKED_PAD, PARTS = NS / CHUNKED_STATES;
    static constexpr int WEIGHTS = NORM ? CHUNKED_UNITS * CHUNKED_CHANNELS : 0; /* of the norm behind, at most */
    int x_ld, sum_ld, dot_ld;
    float *weight;     /* [WEIGHTS] */
    T *b, *c;          /* [tokens][LD], [tile_rows][LD] */
    T *x;              /* [tokens][x_ld] */
    chunked_near *near; /* lists of the tile's rows and heads (list_at), CHUNKED_LIST apart: the oldest first, the row's own
                           last */
    float2 *time;      /* dt and decay: [heads][tokens] */
    float *sum;        /* S C: [PARTS][tile_rows][sum_ld] */
    float *dot;        /* C . B: [tokens][dot_ld] */
    float *decay;      /* E, likewise */
    float *fold;       /* of a chunk: [heads] E, then [heads][SPEC_CHUNK] P dt */
    int16_t *parent, *depth; /* [tokens] of the tree's nodes */
    uint16_t *index;   /* [SPEC_CHUNK] of a chunk's tokens */

    static __host__ __device__ size_t bytes(const chunked_grid &g)
    {
        const size_t tokens = (size_t)g.tokens, rows = (size_t)g.tile_rows, heads = (size_t)g.heads;
        const size_t wide = (size_t)g.units * CHUNKED_CHANNELS;
        return sizeof(T) * (tokens * LD + rows * LD + tokens * wide) + sizeof(chunked_near) * heads * rows * CHUNKED_LIST +
               sizeof(float2) * heads * tokens +
               sizeof(float) * (WEIGHTS + PARTS * rows * (wide + 4) + tokens * (rows + 1) + heads * (rows + SPEC_CHUNK + 1)) +
               sizeof(int16_t) * (2 * tokens + SPEC_CHUNK);
    }
    __device__ __forceinline__ chunked_memory(char *memory, const chunked_grid &g)
    {
        x_ld = g.units * CHUNKED_CHANNELS, sum_ld = x_ld + 4, dot_ld = g.tile_rows + 1;
        weight = (float *)memory, b = (T *)(weight + WEIGHTS), c = b + g.tokens * LD, x = c + g.tile_rows * LD;
        near = (chunked_near *)(x + g.tokens * x_ld);
        time = (float2 *)(near + g.heads * g.tile_rows * CHUNKED_LIST);
        sum = (float *)(time + g.heads * g.tokens), dot = sum + PARTS * g.tile_rows * sum_ld;
        decay = dot + g.tokens * dot_ld, fold = decay + g.heads * g.tile_rows;
        parent = (int16_t *)(fold + g.heads * (SPEC_CHUNK + 1)), depth = parent + g.tokens;
        index = (uint16_t *)(depth + g.tokens);
    }
};

#endif
