/* cuda_scan_window_memory.cuh - of the chunked scan on the matrix instruction (cuda_scan_window_matrix.cu): how a launch
 * divides channels and rows among its blocks, and what a block has in shared memory. */
#ifndef SPEC_CUDA_SCAN_WINDOW_MEMORY_CUH
#define SPEC_CUDA_SCAN_WINDOW_MEMORY_CUH

#include "backends/cuda/scan/cuda_scan.cuh"

enum {
    WINDOW_NEAR = 2 * SPEC_CHUNK,  /* near tokens of a row at most */
    WINDOW_CHANNELS = 16,           /* of a unit */
    WINDOW_UNITS = 5,               /* of a block, at most */
    WINDOW_STATES = 32,             /* of a warp */
    WINDOW_TILES = WINDOW_STATES / 8,
    WINDOW_CHUNK = 32,              /* rows */
    WINDOW_PAD = 8,                 /* values behind a row of B or C: the rows that ldmatrix reads lie on different banks */
    WINDOW_FEW = 4,                 /* rows whose near tokens are divided among threads */
    WINDOW_LIST = WINDOW_NEAR + 2,  /* from one list of near tokens to the next, which lies on other banks */
    WINDOW_MORE = 4,                /* warps of a block without a state, */
    WINDOW_WARPS = 20               /* where registers suffice */
};
static_assert(WINDOW_NEAR == 32, "a near token is a lane's");
static_assert(WINDOW_CHANNELS == SPEC_SQUARES, "a row's squares of a unit are one sum");

/* n / by for n and by < 2^15, by a multiplication. */
struct window_div {
    uint32_t by, magic;
    __device__ __forceinline__ int of(int n) const { return (int)__umulhi((uint32_t)n * 2, magic); }
};
static window_div divide_by(int by) { return { (uint32_t)by, (1u << 31) / (uint32_t)by + 1 }; }

/* How a launch divides the channels of a group of heads that share B and C (one of these may be shared by more). */
struct window_grid {
    int32_t group;       /* heads of the group */
    int32_t units;       /* of a block */
    int32_t group_units; /* of a group */
    int32_t heads;       /* of a block, at most */
    int32_t chunk;       /* rows */
    int32_t tokens;      /* places for tokens: a window to fold, the recent ones, the tree, and none */
    int32_t b_width, x_width;                       /* of the rings */
    window_div per_head, x_rep, b_rep, c_rep, wide; /* units of a head; heads that share x, B, C; outputs of a row */
    window_div by_heads;                            /* `heads` */
    uint32_t ring_magic;                            /* 2^32 / entries of a ring, less than one off */
};

/* A token near a row: P dt, then the weight of its x, and its place, then where x is. */
struct __align__(8) window_near {
    float weight;
    int32_t place;
};

/* A block's shared memory. A token's place: of a window that is folded in front, 0 and on; FIRST and on the recent tokens
 * that are left, then the tree's nodes. The last place is no token's: x and C . B are 0 there. */
template <typename T, int NS, bool NORM> struct window_memory {
    static constexpr int FIRST = SPEC_CHUNK, LD = NS + WINDOW_PAD, PARTS = NS / WINDOW_STATES;
    static constexpr int WEIGHTS = NORM ? WINDOW_UNITS * WINDOW_CHANNELS : 0; /* of the norm behind, at most */
    int x_ld, sum_ld, dot_ld;
    float *weight;     /* [WEIGHTS] */
    T *b, *c;          /* [tokens][LD], [chunk][LD] */
    T *x;              /* [tokens][x_ld] */
    window_near *near; /* lists of the chunk's rows and heads (list_at), WINDOW_LIST apart: the oldest first, the row's own last */
    float2 *time;      /* dt and decay: [heads][tokens] */
    float *sum;        /* S C: [PARTS][chunk][sum_ld] */
    float *dot;        /* C . B: [tokens][dot_ld] */
    float *decay;      /* E, likewise */
    float *fold;       /* of a window: [heads] E, then [heads][SPEC_CHUNK] P dt */
    int16_t *parent, *depth; /* [tokens] of the tree's nodes */
    uint16_t *place;   /* [SPEC_CHUNK] of a window's tokens */

    static __host__ __device__ size_t bytes(const window_grid &g)
    {
        const size_t tokens = (size_t)g.tokens, chunk = (size_t)g.chunk, heads = (size_t)g.heads;
        const size_t wide = (size_t)g.units * WINDOW_CHANNELS;
        return sizeof(T) * (tokens * LD + chunk * LD + tokens * wide) + sizeof(window_near) * heads * chunk * WINDOW_LIST +
               sizeof(float2) * heads * tokens +
               sizeof(float) * (WEIGHTS + PARTS * chunk * (wide + 4) + tokens * (chunk + 1) + heads * (chunk + SPEC_CHUNK + 1)) +
               sizeof(int16_t) * (2 * tokens + SPEC_CHUNK);
    }
    __device__ __forceinline__ window_memory(char *memory, const window_grid &g)
    {
        x_ld = g.units * WINDOW_CHANNELS, sum_ld = x_ld + 4, dot_ld = g.chunk + 1;
        weight = (float *)memory, b = (T *)(weight + WEIGHTS), c = b + g.tokens * LD, x = c + g.chunk * LD;
        near = (window_near *)(x + g.tokens * x_ld);
        time = (float2 *)(near + g.heads * g.chunk * WINDOW_LIST);
        sum = (float *)(time + g.heads * g.tokens), dot = sum + PARTS * g.chunk * sum_ld;
        decay = dot + g.tokens * dot_ld, fold = decay + g.heads * g.chunk;
        parent = (int16_t *)(fold + g.heads * (SPEC_CHUNK + 1)), depth = parent + g.tokens;
        place = (uint16_t *)(depth + g.tokens);
    }
};

#endif
