/* cuda_scan_steps.cuh - what a scan does one after the other for a sequence: the accepted path, then the tree by its
 * traversal schedule.
 *
 * A *step* is one update of the live state. An entry of the traversal is one step, and one more in front for each
 * ancestor that has to be applied again. All of it follows from the step block. So a kernel in front of the pass lists
 * the steps for all of its scans, or a scan finds them before it waits (cuda_scan_state.cu).
 *
 * Two things are found that the schedule does not say:
 *  - A node from which nobody goes on (a leaf) is computed beside the live state, which stays its parent's. The next
 *    child then finds it live: a state is saved only where two children or more have children themselves.
 *    The stack of saved states of a tree of 15 nodes holds 2, of 63 it holds 4 (spec_traversal_saved: 3 and 5).
 *  - An entry along the path starts from the live state where that is on the path: children of one node, as levels of
 *    a growing tree have them, do not walk up again. Nor do cousins in such a level: the states of their ancestors wait,
 *    each where its depth says, so that every ancestor is applied once.
 *
 * Or in *rounds*: the path's nodes have one each, then each depth of the tree. Steps of a round do not follow from each
 * other and are made side by side. Every node that a row needs is a step once, whose state the next round finds where the
 * step has left it. So all steps have to be of one chunk, and of nodes few enough that each has a thread of the kernel
 * that lists them. */
#ifndef SPEC_CUDA_SCAN_STEPS_CUH
#define SPEC_CUDA_SCAN_STEPS_CUH

#include "backends/cuda/cuda.cuh"

/* A step: node (of the path: its number there) | from | (save + 1) << 20 | flags. */
enum {
    STEP_NODE = 0xffff,
    STEP_FROM = 0xf << 16,
    STEP_LIVE = 0, /* where it goes on from: the live state, the stored one, saved state k: STEP_SAVED + (k << 16) */
    STEP_STORED = 1 << 16,
    STEP_SAVED = 2 << 16,
    STEP_SAVE = 0xf << 20,
    STEP_OUT = 1 << 24,   /* a row: it has an output */
    STEP_ALONE = 1 << 25, /* the live state stays as it was */
    STEP_STORE = 1 << 26, /* afterwards the state is stored */
    STEP_PATH = 1 << 27,  /* of the accepted path */
    /* In rounds, in place of FROM and SAVE: the state that it goes on from, 0: the stored one, k + 1: that behind step k
     * (step_behind). Above the flags: the round (step_of_round). */
    STEP_ROUNDS = 15 /* at most */
};
static __device__ __forceinline__ int step_behind(int word) { return word >> 16 & 0xff; }
static __device__ __forceinline__ int step_of_round(int round) { return (int)((unsigned)round << 28); }

/* States that steps of a tree of n nodes save at most: k wait when it has 6 * 2^(k-1) - 1 nodes or more. */
static inline int scan_saved_most(int n_node)
{
    int k = 0;
    while (k < SPEC_MAX_SAVED && n_node >= (6 << k) - 1) k++;
    return k;
}

struct scan_steps {
    int32_t *parent; /* [n_node] */
    int32_t *traversal; /* [n_node] as the step block has them, packed */
    int32_t *word;   /* [n_node] the step of the entry's own node, `from` that of its first step */
    int32_t *waited; /* [n_node] an entry starts from the node's saved state: 1, or of an ancestor where it is saved + 1 */
    int32_t *first;  /* [n_node + 1] number of the entry's first step; only where some entries have several */
    int n_row, n_path, n_step, n_advance;
    int n_saved;     /* states that may wait */
    bool rebuilds;   /* some entries have several steps, or start from the stored state */
    bool is_level;   /* no entry goes on from another: all start along the path */

    static __host__ __device__ size_t bytes(int n_node) { return ((size_t)n_node * 5 + 1) * sizeof(int32_t); }
    __device__ scan_steps(void *shared, int n_node)
    {
        parent = (int32_t *)shared, traversal = parent + n_node, word = traversal + n_node, waited = word + n_node;
        first = waited + n_node;
    }
    __device__ void build(const spec_step_block *step, const spec_step_seq &s, int n_saved);
    __device__ int at(int t) const;
    __device__ int build_rounds(const spec_step_block *step, const spec_step_seq &s, int chunk);
    __device__ int at_round(int t) const;
    __device__ int4 ancestors(int i) const;

  private:
    __device__ int load_of(int i) const { return (traversal[i] >> 16 & 0xff) - 2; }
    __device__ bool alone(int i) const
    {
        const bool goes_on = traversal[i] >> 24 || (i + 1 < n_row && load_of(i + 1) == SPEC_LOAD_LIVE);
        return !goes_on && (traversal[i] & STEP_NODE) != n_advance - 1;
    }
    __device__ int find(int i);
    __device__ int climb_to(int from, int to) const;
    __device__ int find_shared(int up, int live, int stored) const;
    __device__ void number();
};

/* Nodes from `from` up to `to`, which is above it, or -1. */
__device__ __forceinline__ int scan_steps::climb_to(int from, int to) const
{
    int n = 0;
    for (; from >= 0 && from != to; from = parent[from]) n++;
    return n;
}

/* In a level: the ancestor of `up` that is one of the live node too, and near enough to the stored state to have a place
 * to wait at; `stored`: there is none. Nodes of one depth meet; others may not, and walk the whole path. */
__device__ __forceinline__ int scan_steps::find_shared(int up, int live, int stored) const
{
    int k = up, m = live;
    for (; k != m && k >= 0 && k != stored && m >= 0; m = parent[m]) k = parent[k];
    if (k != m) return stored;
    for (int depth = climb_to(k, stored); depth > n_saved; depth--) k = parent[k];
    return k;
}

/* Finds the word of entry i, and how many steps it has. */
__device__ __forceinline__ int scan_steps::find(int i)
{
    const int n = traversal[i] & STEP_NODE, load = load_of(i), up = parent[n];
    const int before = i > 0 ? traversal[i - 1] & STEP_NODE : -1;
    const int live = i > 0 && alone(i - 1) ? parent[before] : before; /* the node whose state is live */
    const int stored = n >= n_advance ? n_advance - 1 : -1;           /* and stored */
    int from = STEP_LIVE, count = 1;
    if (load >= 0 && up != live) {
        from = STEP_SAVED + (load << 16);
        waited[up] = 1;
    } else if (load == SPEC_LOAD_PATH) {
        int k = up;
        for (; k >= 0 && k != stored && k != live; k = parent[k]) count++;
        from = k == live ? STEP_LIVE : STEP_STORED;
        const int shared = is_level && i > 0 && from == STEP_STORED ? find_shared(up, live, stored) : stored;
        if (shared != stored) {
            const int depth = climb_to(shared, stored);
            from = STEP_SAVED + ((depth - 1) << 16), count -= depth;
            waited[shared] = depth;
        }
    }
    word[i] = n | from | (traversal[i] >> 24) << 20 | STEP_OUT | (alone(i) ? STEP_ALONE : 0) |
              (n == n_advance - 1 ? STEP_STORE : 0);
    return count;
}

/* first: from how many steps each entry has to the number of its first. By one warp. */
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
__device__ __forceinline__ void scan_steps::build(const spec_step_block *step, const spec_step_seq &s, int n_saved_)
{
    const spec_step_node *node = spec_step_nodes(step) + s.first_node;
    const int n_tree = s.n_fed + s.n_row, tid = (int)threadIdx.x, n_thread = (int)blockDim.x;
    n_row = s.n_row, n_path = s.n_replay, n_advance = s.n_advance, n_saved = n_saved_;
#pragma unroll 1
    for (int i = tid; i < n_tree; i += n_thread) {
        const int up = node[i].parent;
        parent[i] = up < i && up >= 0 ? up : -1;
        waited[i] = 0;
    }
    bool along = true;
#pragma unroll 1
    for (int i = tid; i < n_row; i += n_thread) {
        const spec_traversal_node v = spec_step_traversal(step)[s.first_row + i];
        const int load = v.load < SPEC_LOAD_PATH || v.load >= n_saved ? (int)SPEC_LOAD_PATH : v.load;
        const int save = v.save < 0 || v.save >= n_saved ? -1 : v.save;
        const int n = min(max(v.node, s.n_fed), n_tree - 1);
        traversal[i] = n | (load + 2) << 16 | (save + 1) << 24;
        along &= load == SPEC_LOAD_PATH && save < 0;
    }
    is_level = __syncthreads_and(along) != 0;
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

__device__ __forceinline__ int scan_steps::at(int t) const
{
    if (t < n_path) return t | STEP_PATH | (t == n_path - 1 ? STEP_STORE : 0);
    t -= n_path;
    int v = t, left = 0; /* the entry, and its steps behind this one */
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
    return n | (w & STEP_FROM) | (is_level ? waited[n] << 20 : 0);
}

/* Returns how many rounds there are; 0: the steps are no chunk, or fewer than four to a round, where one after the other
 * is faster (measured). All threads call it. One step stores at most, the last that the other order has. */
__device__ __forceinline__ int scan_steps::build_rounds(const spec_step_block *step, const spec_step_seq &s, int chunk)
{
    int32_t *const needed = waited, *const order = first, *const place = traversal; /* order: by depth, then by number */
    const int n_tree = s.n_fed + s.n_row, i = (int)threadIdx.x;
    n_row = s.n_row, n_path = s.n_replay, n_advance = s.n_advance;
    if (n_row == 0 || n_tree > (int)blockDim.x || n_path + n_row > chunk) return 0;
    if (i < n_tree) {
        const int up = spec_step_nodes(step)[s.first_node + i].parent;
        parent[i] = up < i && up >= 0 ? up : -1;
        needed[i] = i >= s.n_fed;
    }
    __syncthreads();
    int depth = 0;
    for (int k = i < n_tree ? parent[i] : -1; k >= 0 && depth < STEP_ROUNDS; k = parent[k], depth++)
        if (i >= s.n_fed) needed[k] = 1;
    __syncthreads();
    const bool there = i < n_tree && needed[i];
    if (i < n_tree) order[i] = there ? depth << 16 | i : INT32_MAX;
    n_step = n_path + __syncthreads_count(there);
    int before = 0;
    for (int k = 0; there && k < n_tree; k++) before += order[k] < order[i];
    if (there) place[i] = n_path + before;
    if (there && n_path + before == n_step - 1) order[n_tree] = depth;
    __syncthreads();
    const int n_round = n_path + order[n_tree] + 1;
    if (n_step > chunk || n_round > STEP_ROUNDS || 4 * n_round > n_step) return 0;
    const int behind = !there ? 0 : parent[i] < 0 ? n_path : place[parent[i]] + 1;
    if (there)
        word[before] = i | behind << 16 | (i >= s.n_fed ? STEP_OUT : 0) | (i == s.n_advance - 1 ? STEP_STORE : 0) |
                       step_of_round(n_path + depth);
    __syncthreads();
    return n_round;
}

__device__ __forceinline__ int scan_steps::at_round(int t) const
{
    if (t >= n_path) return word[t - n_path];
    return t | t << 16 | STEP_PATH | (t == n_path - 1 && n_advance == 0 ? STEP_STORE : 0) | step_of_round(t);
}

/* Of node i, as cuda_steps has them. */
__device__ __forceinline__ int4 scan_steps::ancestors(int i) const
{
    int up[4], n = i, m = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        up[k] = n < 0 ? -1 - m++ : n;
        if (n >= 0) n = parent[n];
    }
    return make_int4(up[0], up[1], up[2], up[3]);
}

#endif
