/* cuda_scan_steps.cuh - what a scan does one after the other for a sequence: the accepted path, then the tree's visits.
 *
 * A *step* is one update of the live state. A visit is one step, and one more in front for each ancestor that has to be
 * applied again. All of it follows from the step block, so a kernel prepares it before it waits for the pass.
 *
 * Two things are found that the visits do not say:
 *  - A node from which nobody goes on (a leaf) is computed beside the live state, which stays its parent's. The next
 *    child then finds it live: a state is kept in a place only where two children or more have children themselves.
 *    A tree of 15 nodes needs 2 places, of 63 it needs 4 (spec_traversal_saved: 3 and 5).
 *  - A visit along the path starts from the live state where that is on the path: children of one node, as levels of
 *    a growing tree have them, do not walk up again. */
#ifndef SPEC_CUDA_SCAN_STEPS_CUH
#define SPEC_CUDA_SCAN_STEPS_CUH

#include "backends/cuda/cuda.cuh"

/* A step: node (of the path: its number there) | from | (save + 1) << 20 | flags. */
enum {
    STEP_NODE = 0xffff,
    STEP_FROM = 0xf << 16,
    STEP_LIVE = 0, /* where it goes on from: the live state, the stored one, place k: STEP_PLACE + (k << 16) */
    STEP_STORED = 1 << 16,
    STEP_PLACE = 2 << 16,
    STEP_SAVE = 0xf << 20,
    STEP_OUT = 1 << 24,   /* a row: it has an output */
    STEP_ALONE = 1 << 25, /* the live state stays as it was */
    STEP_STORE = 1 << 26, /* afterwards the state is stored */
    STEP_PATH = 1 << 27   /* of the accepted path */
};

/* Places that steps of a tree of n nodes use at most: k states wait when it has 6 * 2^(k-1) - 1 nodes or more. */
static inline int scan_places(int n_node)
{
    int k = 0;
    while (k < SPEC_MAX_SAVED && n_node >= (6 << k) - 1) k++;
    return k;
}

struct scan_steps {
    int32_t *parent; /* [n_node] */
    int32_t *visit;  /* [n_node] as the step block has them, packed */
    int32_t *word;   /* [n_node] the step of the visit's own node, `from` that of its first step */
    int32_t *waited; /* [n_node] a visit starts from the node's saved state */
    int32_t *number_of; /* [n_node] a node's visit */
    int32_t *first;  /* [n_node + 1] number of the visit's first step; only where some visits have several */
    int n_row, n_path, n_step, n_advance;
    bool rebuilds;   /* some visits have several steps, or start from the stored state */

    static __host__ __device__ size_t bytes(int n_node) { return ((size_t)n_node * 6 + 1) * sizeof(int32_t); }
    __device__ scan_steps(void *shared, int n_node)
    {
        parent = (int32_t *)shared, visit = parent + n_node, word = visit + n_node, waited = word + n_node;
        number_of = waited + n_node, first = number_of + n_node;
    }
    __device__ void build(const spec_step_block *step, const spec_step_seq &s, int n_place);
    __device__ int at(int t) const;
    /* Every visit is one step and starts from a state of this pass: any run of visits can be walked on its own, once the
     * ancestors of its first have been. */
    __device__ bool divides() const { return !rebuilds && n_advance == 0; }
    __device__ int ancestors(int v, uint8_t *up) const;

  private:
    __device__ int load_of(int i) const { return (visit[i] >> 16 & 0xff) - 2; }
    __device__ bool alone(int i) const
    {
        const bool goes_on = visit[i] >> 24 || (i + 1 < n_row && load_of(i + 1) == SPEC_LOAD_LIVE);
        return !goes_on && (visit[i] & STEP_NODE) != n_advance - 1;
    }
    __device__ int find(int i);
    __device__ void number();
};

/* Finds the word of visit i, and how many steps it has. */
__device__ __forceinline__ int scan_steps::find(int i)
{
    const int n = visit[i] & STEP_NODE, load = load_of(i), up = parent[n];
    const int before = i > 0 ? visit[i - 1] & STEP_NODE : -1;
    const int live = i > 0 && alone(i - 1) ? parent[before] : before; /* the node whose state is live */
    const int stored = n >= n_advance ? n_advance - 1 : -1;           /* and stored */
    int from = STEP_LIVE, count = 1;
    if (load >= 0 && up != live) {
        from = STEP_PLACE + (load << 16);
        waited[up] = 1;
    } else if (load == SPEC_LOAD_PATH) {
        int k = up;
        for (; k >= 0 && k != stored && k != live; k = parent[k]) count++;
        from = k == live ? STEP_LIVE : STEP_STORED;
    }
    word[i] = n | from | (visit[i] >> 24) << 20 | STEP_OUT | (alone(i) ? STEP_ALONE : 0) |
              (n == n_advance - 1 ? STEP_STORE : 0);
    return count;
}

/* first: from how many steps each visit has to the number of its first. By one warp. */
__device__ __forceinline__ void scan_steps::number()
{
    const int lane = (int)threadIdx.x;
    int sum = 0; /* of the steps so far */
#pragma unroll 1
    for (int i0 = 0; i0 < n_row; i0 += 32) {
        const int count = i0 + lane < n_row ? first[i0 + lane] : 0;
        int with = count;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, with, d);
            if (lane >= d) with += other;
        }
        if (i0 + lane < n_row) first[i0 + lane] = sum + with - count;
        sum += __shfl_sync(0xffffffffu, with, 31);
    }
    if (lane == 0) first[n_row] = sum;
}

/* All threads call it. */
__device__ __forceinline__ void scan_steps::build(const spec_step_block *step, const spec_step_seq &s, int n_place)
{
    const spec_step_node *node = spec_step_nodes(step) + s.first_node;
    const int n_tree = s.n_fed + s.n_row, tid = (int)threadIdx.x, n_thread = (int)blockDim.x;
    n_row = s.n_row, n_path = s.n_replay, n_advance = s.n_advance;
#pragma unroll 1
    for (int i = tid; i < n_tree; i += n_thread) {
        const int up = node[i].parent;
        parent[i] = up < i && up >= 0 ? up : -1;
        waited[i] = 0;
    }
#pragma unroll 1
    for (int i = tid; i < n_row; i += n_thread) {
        const spec_traversal_node v = spec_step_traversal(step)[s.first_row + i];
        const int load = v.load < SPEC_LOAD_PATH || v.load >= n_place ? (int)SPEC_LOAD_PATH : v.load;
        const int save = v.save < 0 || v.save >= n_place ? -1 : v.save;
        const int n = min(max(v.node, s.n_fed), n_tree - 1);
        visit[i] = n | (load + 2) << 16 | (save + 1) << 24;
        number_of[n] = i;
    }
    __syncthreads();
    bool several = false;
#pragma unroll 1
    for (int i = tid; i < n_row; i += n_thread) several |= (first[i] = find(i)) > 1 || (word[i] & STEP_FROM) == STEP_STORED;
    rebuilds = __syncthreads_or(several) != 0;
    n_step = n_path + n_row;
    if (!rebuilds) return;
    if (tid < 32) number();
    __syncthreads();
    n_step = n_path + first[n_row];
}

/* The visits of the ancestors of visit v's node, the nearest first; how many. Where it divides(). */
__device__ __forceinline__ int scan_steps::ancestors(int v, uint8_t *up) const
{
    int count = 0;
    for (int k = parent[visit[v] & STEP_NODE]; k >= 0; k = parent[k]) up[count++] = (uint8_t)number_of[k];
    return count;
}

__device__ __forceinline__ int scan_steps::at(int t) const
{
    if (t < n_path) return t | STEP_PATH | (t == n_path - 1 ? STEP_STORE : 0);
    t -= n_path;
    int v = t, left = 0; /* the visit, and its steps behind this one */
    if (rebuilds) {
        v = 0; /* the last that has begun */
        for (int end = n_row; end - v > 1;) {
            const int mid = (v + end) / 2;
            if (first[mid] <= t) v = mid;
            else end = mid;
        }
        left = first[v + 1] - 1 - t;
    }
    int w = word[v], n = w & STEP_NODE;
    if (!waited[n]) w &= ~STEP_SAVE;
    if (rebuilds && t != first[v]) w &= ~STEP_FROM;
    if (left == 0) return w;
    for (; left > 0; left--) n = parent[n];
    return n | (w & STEP_FROM);
}

#endif
