/* spec_backend.h - how a device computes: the contract between the library and a backend.
 *
 * For authors of backends; applications need only spec.h. Valid C99, C++17 and CUDA C++.
 *
 * A backend is one table, spec_backend_ops. It knows no model and no algorithm. The library opens a *device*,
 * creates *weights* on it, and per session a *queue* and a *plan*: the network's forward pass as an array of
 * operations with fixed addresses. What changes from pass to pass stands in a *step descriptor*, which
 * operations read; so a plan can be captured once and replayed.
 *
 * The contract says what is computed, a backend says how. What it does together, and in which form rows lie between two
 * operations, it decides when it prepares a plan.
 *
 * A new kind of operation is a struct of arguments and a kind here, a row in backend_ops.c (its name, and what stands in for
 * it), and a row in the table of each backend that has it.
 *
 * RULES
 *  - Path invariance. In decode passes the bits of a row depend only on the tokens of its path, never on the
 *    number of rows, the other rows, the tree's shape, other sequences, the number of threads, or on whether a state
 *    came from replay. So: one order of summation per output element whatever the row count; no atomics on floats.
 *    Prefill passes run one sequence, in chunks whose rows follow from the prompt's length alone, padded to n_row_run
 *    rows, and may use other kernels.
 *  - Rows that are not valid (row >= n_row) are computed by token-wise operations and ignored by all others.
 *    Masked values are left out by selection, never multiplied by zero.
 *  - A decode step may have no rows. Token-wise operations then do nothing; those that replay (kv_commit, conv, scan) apply
 *    the pending paths of the step's sequences.
 *  - Sums are float32 or wider. Tensors are float32 or the compute type; a value is rounded (to nearest even) to its
 *    tensor's type when it is stored.
 *  - Operations allocate nothing, and are ordered within their queue. A device is shared by threads, a queue belongs
 *    to one. Results for the host are there after sync().
 *  - Errors: return host->fail(code, "..."). Never print, exit or abort.
 */
#ifndef SPEC_BACKEND_H
#define SPEC_BACKEND_H

#include "spec_trees.h"
#include "spec_blocks.h"
#include "spec_draw.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define SPEC_HD __host__ __device__
#else
#define SPEC_HD
#endif

#define SPEC_BACKEND_ABI 1u
#define SPEC_PAGE 64       /* positions per KV page */
#define SPEC_MAX_DEPTH 63  /* of a node below its root */
#define SPEC_MAX_CHILD 64  /* candidates that a draw names per row */
#define SPEC_MAX_FRONTIER 256 /* places of a growing tree's frontier */
#define SPEC_MAX_SAVED 8   /* states that a scan may have to keep besides the live one: log2 of 256 nodes */
#define SPEC_CHUNK 16     /* tokens that a chunked scan folds into its state at once */
#define SPEC_PREFILL_SIZES 8 /* of prefill passes, at most */

typedef struct spec_device spec_device; /* the backend's own: an open device */
typedef struct spec_queue spec_queue;   /* the backend's own: ordered work with its scratch memory */
typedef struct spec_weight spec_weight; /* the backend's own: a matrix, packed as the device likes */

/* ------------------------------------------------------------------------- host services --- */

/* What a backend may ask of the library (a plugin cannot reach its hidden symbols). Lives as long as the device. */
typedef struct spec_host {
    uint32_t abi; /* SPEC_BACKEND_ABI of the library */
    int32_t n_threads; /* for CPU work, >= 1 */
    spec_status (*fail)(spec_status code, const char *fmt, ...); /* stores the message, returns code */
    void (*log)(const struct spec_host *host, spec_log_level level, const char *fmt, ...);
    /* Zeroed host memory for n items, 64-byte aligned; NULL (with an error stored) if there is none. */
    void *(*alloc)(const struct spec_host *host, size_t n, size_t size);
    void (*free)(const struct spec_host *host, void *p);
    /* The application's pool, or NULL: the backend then uses its own threads. */
    void (*parallel_for)(const struct spec_host *host, int32_t n, void (*body)(void *arg, int32_t i), void *arg);
} spec_host;

/* ---------------------------------------------------------------------- the step descriptor --- */

/* One block of memory, written by the host, copied to the device as it is by step_bind(). Operations find its parts
 * through the accessors below. All counts are of this pass.
 *
 * A sequence's tree has n_fed + n_row nodes. Nodes [0, n_fed) were fed by earlier passes over the same tree: their
 * K, V, convolution inputs and time steps are in the caches. Nodes [n_fed, n_fed + n_row) are fed now; node
 * n_fed + i is row first_row + i of every tensor. Decode passes write node i's K and V to slot n_past + i and its
 * recurrent inputs to replay cache entry i. The states stay at n_past.
 *
 * Before a tree's first pass (n_fed == 0) the path that was accepted last time (n_replay nodes of the previous tree)
 * is applied: recurrent state advances by replay from the *other* half of the caches (parity ^ 1), the convolution
 * window moves from half parity ^ 1 to half `parity`, K and V of the path are compacted to slots
 * [n_past - n_replay, n_past). In later passes of the same tree n_replay is 0 and parity is unchanged; the
 * convolution window is then read from half `parity`.
 *
 * A prefill pass has one sequence, whose rows are a chain that is applied at once: K and V of row i go to slot
 * n_past + i, states advance past the last valid row; the window is read from half parity ^ 1 and written to half
 * `parity`; replay caches are neither read nor written (n_replay = n_fed = 0). */

enum { SPEC_PHASE_DECODE = 0, SPEC_PHASE_PREFILL = 1 };

typedef struct spec_step_seq {
    int32_t slot;       /* which sequence memory: index into state, window and cache arrays */
    int32_t parity;     /* half of the double buffers that this pass writes: 0 or 1 */
    int32_t n_past;     /* positions covered by states and KV once the accepted path is applied */
    int32_t n_replay;   /* nodes of the accepted path to apply first; 0 = none */
    int32_t first_path; /* into paths: n_replay node numbers of the previous tree, root (0) first, ascending */
    int32_t n_fed;
    int32_t n_row;
    int32_t first_row;
    int32_t first_node; /* into nodes: n_fed + n_row entries */
    int32_t first_page; /* into pages: slot p lies in page pages[first_page + p / SPEC_PAGE] */
    int32_t n_given;    /* nodes [0, n_given) stand in the block (their tokens perhaps not: `grown`); step_bind takes the
                           others from `feed` */
    int32_t n_recent;   /* chunked scans: committed tokens in front of the path that the state does not cover yet */
    int32_t n_advance;  /* joint attainment (algorithms.md 9.3): nodes [0, n_advance) are a chain that is committed
                           already: states are stored as of node n_advance - 1 (chunked scans: the chain is kept in
                           the recent-token buffers), the convolution's window likewise.
                           0 = none. With n_advance > 0: n_fed = 0, and no later pass over the same tree */
} spec_step_seq;

/* Chunked scans (spec_scan_args). Chunks that are folded into the state in front of a token with n unfolded tokens before
 * it: the state then lags it by one chunk and what there is of the next. */
SPEC_HD static inline int32_t spec_chunk_folds(int32_t n)
{
    return n < 2 * SPEC_CHUNK ? 0 : n / SPEC_CHUNK - 1;
}
/* Unfolded tokens that are left. */
SPEC_HD static inline int32_t spec_chunk_left(int32_t n) { return n - SPEC_CHUNK * spec_chunk_folds(n); }
/* Entries of a recent-token buffer: those left by the pass before, the path (at most n_path nodes), and a chain in front
 * (at most n_chain nodes; two passes' chains meet there). No pass writes an entry that it reads. */
SPEC_HD static inline int32_t spec_recent_capacity(int32_t n_path, int32_t n_chain)
{
    return 2 * SPEC_CHUNK + n_path + 2 * n_chain;
}

/* The traversal schedule: the scan's order over the new rows of a sequence (algorithms.md 8.3), whose entry i is
 * traversal[first_row + i]. Smallest subtree first, the heavy child last, so that the stack of saved states holds at most
 * SPEC_MAX_SAVED. Before the first entry the live state is the stored one, replay applied. For scans in the recurrent form
 * (chunk 0): the entries of a plan that has none mean nothing. */
enum {
    SPEC_LOAD_LIVE = -1, /* the parent's state is live: it is the entry just before, or the node is the root, given or not */
    SPEC_LOAD_PATH = -2  /* from the stored state (or, with node_state, the parent's), along the path */
    /* k >= 0: saved state k */
};
typedef struct spec_traversal_node {
    int32_t node; /* of the sequence's tree */
    int32_t load; /* where its parent's state is */
    int32_t save; /* after the node: keep its state as saved state `save` too; -1 = no */
    int32_t pad;
} spec_traversal_node;

/* Saved states that the traversal of a tree of n nodes holds at most: while k wait, it has 2^(k+1) - 1 nodes or more. */
SPEC_HD static inline int32_t spec_traversal_saved(int32_t n_node)
{
    int32_t k = 0;
    while (k < SPEC_MAX_SAVED && n_node >= (4 << k) - 1) k++;
    return k;
}

typedef struct spec_step_node {
    int32_t token;
    int32_t parent; /* node of the same tree, < own number; -1 for the root */
    int32_t depth;  /* 0 for the root; position = n_past + depth */
    int32_t pad;
} spec_step_node;

typedef struct spec_step_block {
    int32_t bytes;     /* of the whole block */
    int32_t phase;
    int32_t n_seq;
    int32_t n_row;     /* valid rows */
    int32_t n_row_run; /* rows that token-wise operations run over: n_row in decode, the padded chunk in prefill */
    int32_t n_kv;      /* largest n_past + depth + 1 of the pass */
    int32_t off_seq, off_node, off_row_seq, off_path, off_page, off_traversal; /* byte offsets from the block's start; off_seq
                                                                              is sizeof(spec_step_block), if there are any */
    int32_t ld_feed, ld_grown;
    /* Trees that grow on the device: node i >= n_given of a sequence is feed[slot * ld_feed + i], device memory.
     * NULL: all nodes are given. */
    const struct spec_step_node *feed;
    /* Trees that have grown on the device to a shape that the host knew before: step_bind takes the token of node i,
     * 0 < i < n_given, from grown[slot * ld_grown + i], device memory. NULL: tokens are given. */
    const struct spec_grow_node *grown;
    int32_t no_head; /* 1: the operations that make what is read behind the pass are left out (spec_op.head); what is there stays */
    int32_t pad;
} spec_step_block;

SPEC_HD static inline const spec_step_seq *spec_step_seqs(const spec_step_block *b)
{
    return (const spec_step_seq *)(b + 1); /* off_seq, without a look at it */
}
SPEC_HD static inline const spec_step_node *spec_step_nodes(const spec_step_block *b)
{
    return (const spec_step_node *)((const char *)b + b->off_node);
}
/* [n_row] the index of each row's sequence in spec_step_seqs */
SPEC_HD static inline const int32_t *spec_step_row_seq(const spec_step_block *b)
{
    return (const int32_t *)((const char *)b + b->off_row_seq);
}
SPEC_HD static inline const int32_t *spec_step_paths(const spec_step_block *b)
{
    return (const int32_t *)((const char *)b + b->off_path);
}
SPEC_HD static inline const int32_t *spec_step_pages(const spec_step_block *b)
{
    return (const int32_t *)((const char *)b + b->off_page);
}
/* [n_row] */
SPEC_HD static inline const spec_traversal_node *spec_step_traversal(const spec_step_block *b)
{
    return (const spec_traversal_node *)((const char *)b + b->off_traversal);
}
/* The node that row `row` of sequence s is. */
SPEC_HD static inline const spec_step_node *spec_step_row_node(const spec_step_block *b, const spec_step_seq *s,
                                                               int32_t row)
{
    return spec_step_nodes(b) + s->first_node + s->n_fed + (row - s->first_row);
}

/* ----------------------------------------------------------------------------- operations --- */

/* Rows of a tensor on the device: element (r, c) at data[r * ld + c]. dtype is F32 or the compute type. */
typedef struct spec_view {
    void *data;
    spec_dtype dtype;
    int32_t ld;
} spec_view;

/* A piece of device memory; one and a copy of it. */
typedef struct spec_range {
    void *data;
    size_t bytes;
} spec_range;
typedef struct spec_range_copy {
    void *to;
    const void *from;
    size_t bytes;
} spec_range_copy;

typedef enum spec_activation {
    SPEC_ACT_NONE = 0,
    SPEC_ACT_SILU = 1,
    SPEC_ACT_GELU = 2,      /* x/2 (1 + erf(x / sqrt 2)) */
    SPEC_ACT_GELU_TANH = 3, /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    SPEC_ACT_RELU = 4,
    SPEC_ACT_CAP = 5 /* tanh(x / scale): of a product, which scale > 0 then multiplies, so that y lies between -scale and scale. Without
                        glu and add, y f32 */
} spec_activation;

/* Weights of SPEC_DTYPE_Q8_0 are rows of spec_q8_block, those of Q4_0 to Q6_K rows of the blocks of that name (spec_blocks.h). In products
 * of decode passes no weight is rounded: of each group of inputs that share a scale, 32 or, of Q6_K, 16, a product adds
 *   (d f) sum of (q - o) x,  and with a minimum  m' sum of x,  m' = m or -(m fm)
 * in float32; in float32 as the compute type a backend may sum values instead. Values of Q4_0 to Q6_K it may also round
 * to the compute type, if all its decode passes do (CUDA's do). Prefill may round any. Embeddings have values of Q8_0
 * as they are, those of other blocks rounded to the compute type. */

/* A matrix [n_out][n_in], its rows gathered from parts in order. With glu, rows [0, n_out/2) are the gate and
 * rows [n_out/2, n_out) what it multiplies; a backend may interleave them. */
typedef struct spec_weight_part {
    const void *data; /* host memory, row-major [n_row][n_in], or rows of blocks; any alignment */
    int32_t n_row;
} spec_weight_part;
typedef struct spec_weight_desc {
    int32_t n_out, n_in;
    spec_dtype dtype;   /* of the parts; blocks, of which n_in is a whole number, are kept as they are */
    spec_dtype compute; /* of the activations that it will meet */
    int32_t glu;
    int32_t gather;     /* 1: also used by embed */
    const spec_weight_part *parts;
    int32_t n_part;
} spec_weight_desc;

/* y[r] = scale * table[token of row r]   (row r of table = row `token` of the weight) */
typedef struct spec_embed_args {
    const spec_weight *table;
    int32_t n_vocab, dim;
    float scale;
    spec_view y; /* f32 [rows][dim]; rows that are not valid are set to 0 */
} spec_embed_args;

/* RMS:   v = gate ? x * silu(gate) : x;  y = v * rsqrt(mean(v^2) + eps) * weight, mean over each of n_group groups
 * LAYER: y = (x - mean) * rsqrt(var + eps) * weight + bias  (n_group 1, no gate)
 * RMS_ADD: y += what RMS gives; y f32, and not x
 * NONE: y = x, in y's type (n_group 1, no gate, no weight) */
typedef enum spec_norm_kind { SPEC_NORM_RMS = 0, SPEC_NORM_LAYER = 1, SPEC_NORM_RMS_ADD = 2, SPEC_NORM_NONE = 3 } spec_norm_kind;
typedef struct spec_norm_args {
    spec_norm_kind kind;
    int32_t dim, n_group;
    float eps;
    const float *weight; /* [dim]; NONE: not read */
    const float *bias;   /* [dim] or NULL */
    spec_view x;         /* f32 */
    spec_view gate;      /* f32; data NULL = none */
    int32_t norm_first;  /* with a gate: 1 = normalise x, times weight, then multiply by silu(gate) */
    spec_view y;         /* f32 or compute type */
} spec_norm_args;

/* t = W x (+ bias);  glu: t = act(t_gate) * t_up, else t = act(t);  y = scale * t, or y += scale * t with add.
 * x is of the weight's compute type; y f32 (required with add) or compute type. Rows: n_row_run. */
typedef struct spec_linear_args {
    const spec_weight *w;
    int32_t n_in, n_out; /* as the weight's; y has n_out columns, n_out / 2 with glu */
    const float *bias;   /* [n_out] or NULL */
    spec_activation act;
    int32_t glu, add;
    float scale;
    spec_view x, y;
} spec_linear_args;

/* A layer's KV cache: K and V, each [n_page][n_kv_head][SPEC_PAGE][head_dim] of the compute type. */
typedef struct spec_kv {
    void *k, *v;
    spec_dtype dtype;
    int32_t n_page, n_kv_head, head_dim;
} spec_kv;

/* Compacts the accepted paths of all sequences: for j ascending, slot n_past - n_replay + path[j] is moved to slot
 * n_past - n_replay + j, in every cache of `layers`. The first operation of a decode plan that has attention, in front of the
 * embedding: operations behind that may read slots of earlier passes before those in front of them are done. */
typedef struct spec_kv_commit_args {
    const spec_kv *layers; /* host array [n_layer] */
    int32_t n_layer;
} spec_kv_commit_args;

/* Per head: q and k normalised (RMS over head_dim, if q_norm), then rotated by position, half-split over the first
 * n_rot dimensions: (a, b) = (x[i], x[i + n_rot/2]) -> (a cos - b sin, b cos + a sin), angle = position * inv_freq[i].
 * q is replaced in qkv; k and v go to the cache, rounded to its type. */
typedef struct spec_rope_kv_args {
    spec_view qkv; /* f32 [rows][(n_head + 2 n_kv_head) * head_dim] = [q | k | v] */
    int32_t n_head;
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    float eps;
    const float *inv_freq; /* device f32 [n_rot / 2]; n_rot 0 = no rotation */
    int32_t n_rot;
    spec_kv kv;
    float gain; /* of cos and sin, and so of the dimensions that turn; 0 stands for 1 */
} spec_rope_kv_args;

/* Softmax attention of each row over positions t in (p - window, p] (all t <= p with window 0), p the row's position. A score is
 * s = scale q.k, with a cap cap tanh(s / cap) in place of s.
 * Decode: t < n_past is slot t; t >= n_past is slot n_past + (the row's ancestor of depth t - n_past). Prefill: slot t.
 * The order of summation depends on absolute positions only. Query head h reads K/V head h / (n_head / n_kv_head). */
typedef struct spec_attention_args {
    spec_view q; /* f32, first n_head * head_dim columns of the qkv rows */
    int32_t n_head;
    float scale;
    int32_t window; /* 0 = none */
    spec_kv kv;
    spec_view y; /* compute type [rows][n_head * head_dim] */
    float cap;   /* > 0; 0 = none */
} spec_attention_args;

/* Causal depth-wise convolution over the tree: y = act(bias + sum_k w[c][width-1-k] u[k-th ancestor]); beyond the
 * root the window continues into the stored one. The input u is rounded to the compute type first, and is what the
 * cache and the window hold. Decode passes also put y of the replayed path (entry j) and of the nodes already fed
 * (entry n_replay + i) into replay_y, for the scan. Source: algorithms.md 7.1.
 *
 * Gates of a row: gate_in * u, rounded once, stands for u; y is gate_out * act(...), rounded once. With gate_out no
 * replay_y: what is replayed has no gate. Source: the short convolution of transformers models/lfm2. */
typedef struct spec_conv_args {
    spec_view u;         /* f32 or compute type [rows][n_channel] */
    int32_t n_channel, width; /* 2 <= width <= 4 */
    const float *weight; /* [n_channel][width], last tap = newest */
    const float *bias;   /* [n_channel] or NULL */
    spec_dtype dtype;    /* compute type: of window, cache, y and replay_y */
    void *window;        /* [n_slot][2][width - 1][n_channel], oldest first */
    void *cache;         /* [n_slot][2][n_node][n_channel] */
    void *replay_y;      /* [sequence of the pass][2 * n_node][n_channel]; NULL: nobody reads it */
    int32_t n_node;      /* nodes per sequence that the caches hold */
    spec_view y;         /* compute type [rows][n_channel] */
    spec_activation act; /* SILU or NONE */
    spec_view gate_in, gate_out; /* f32 or compute type [rows][n_channel]; data NULL = none */
} spec_conv_args;

/* Selective scan over the tree; activation replay in front (algorithms.md 7.2, 7.3, 8.3, 8.6, 9.2).
 *   dt = clamp(softplus(dt_in + dt_bias), dt_min, dt_max)
 *   S(node) = exp(dt A) S(parent) + dt x B^T;   y = S C + D x;   out = z.data ? y * silu(z) : y
 * Heads: n_head heads of head_dim channels, state n_state each. Head h reads block h / x_rep of x, h / b_rep of B,
 * h / c_rep of C. Mamba-1 is head_dim 1, n_head = channels, A per head and state.
 * x, B, C: where they lie in a row of `x`, `b`, `c`. When b_in_conv, B is a part of the convolution's output: for
 * replayed nodes x and B are read from replay_y at replay_x_col and replay_b_col; else B of each node is kept in cache_b,
 * and the scan too uses it rounded to `dtype`. x is of type `dtype`, and so is B when b_in_conv.
 * Prefill: S applies all valid rows and is stored. With 16-bit x, products may take a float32 value as two 16-bit parts.
 *
 * Decode, recurrent form (chunk 0): S of the slot first applies the accepted path and is stored; the tree itself is never
 * stored, but for the chain of n_advance nodes in front. With n_row 0 a sequence only applies its path (likewise conv and
 * kv_commit).
 *
 * Decode, chunked form (chunk SPEC_CHUNK; only without a_per_state): S lags. Let tokens be numbered from the first that no
 * prefill pass applied, W the chunk's length. For token i the state covers the tokens before A(i) = W max(0, i / W - 1), and
 *   y_i = E_i (S_A C_i) + sum over j in [A, i] on the path of P_ij dt_j (C_i . B_j) x_j + D x_i,
 *   P_ii = 1, P_i,j-1 = P_ij exp(dt_j A), E_i = P_i,A-1:
 * A, and the order of every sum and product, follow from places on the path alone, so this keeps path invariance, while no
 * node waits for another. A state moves on by a whole chunk, a *fold*:  S' = E S + sum over j of (P_j dt_j x_j) B_j^T, P of the
 * chunk's last token. So the sequence's memory is S and the x, B and dt of the tokens behind it, the *recent* ones:
 * the token at position p is entry p % n_recent_max of the recent-token buffers. In a pass of n_fed 0:
 *   n_recent of the step are in them; the path is appended; spec_chunk_folds(n_recent + n_replay) chunks are folded
 *   and S is stored, which leaves spec_chunk_left() of them: the pass's recent tokens, in front of the root;
 *   a node of depth d is then token number left + d: spec_chunk_folds(left + d) more chunks of its path are folded into a
 *   copy of S for it, which nobody stores: one, of recent tokens only, as long as d <= W;
 *   a chain of n_advance nodes in front is appended to the buffers, and folded by a later pass.
 * With n_fed > 0 the step's n_recent are those left. n_recent_max holds them all: see spec_recent_capacity(). */
typedef struct spec_scan_args {
    int32_t n_head, head_dim, n_state;
    int32_t x_rep, b_rep, c_rep;
    const float *a; /* -exp(A_log): [n_head], or [n_head][n_state] with a_per_state */
    int32_t a_per_state;
    const float *d, *dt_bias; /* [n_head]; dt_bias may be NULL */
    float dt_min, dt_max;     /* dt_max may be infinite */
    spec_view x, b, c, dt, z; /* rows; z.data NULL = no gate. dt, z: f32 or compute type */
    spec_dtype dtype;         /* of replay_y and cache_b */
    const void *replay_y;     /* as the convolution wrote it, rows of replay_ld */
    int32_t replay_ld, replay_x_col, replay_b_col, b_in_conv;
    float *state;   /* f32 [n_slot][n_head][head_dim][n_state] */
    float *cache_dt; /* f32 [n_slot][2][n_node][n_head], after softplus and clamp */
    void *cache_b;   /* [n_slot][2][n_node][n_head / b_rep * n_state] or NULL with b_in_conv */
    int32_t n_node;
    spec_view y; /* [rows][n_head * head_dim], f32 or compute type */
    int32_t chunk;        /* SPEC_CHUNK: decode passes in the chunked form; 0: recurrent */
    int32_t n_recent_max; /* entries of the recent-token buffers: spec_recent_capacity() or more */
    void *recent_x;   /* chunked: `dtype` [n_slot][n_recent_max][n_head / x_rep * head_dim] */
    void *recent_b;   /* chunked: `dtype` [n_slot][n_recent_max][n_head / b_rep * n_state] */
    float *recent_dt; /* chunked: f32 [n_slot][n_recent_max][n_head], after softplus and clamp */
    /* A named alternative of the recurrent form, or NULL. */
    float *node_state; /* f32 [n_slot][n_node][n_head][head_dim][n_state]: decode passes keep every node's state there,
                          and a SPEC_LOAD_PATH entry starts from its parent's (algorithms.md 10.1) */
} spec_scan_args;

/* Columns of a token's x (block: head_dim) or B (block: n_state), of which `rep` heads share a block. */
SPEC_HD static inline int32_t spec_scan_columns(int32_t n_head, int32_t rep, int32_t block) { return n_head / rep * block; }

/* y = x, rounded to y's type. Keeps rows for whoever reads them behind the pass, when the tensor that they stood in has gone on
 * to hold others. x and y do not overlap. Rows: n_row_run. */
typedef struct spec_keep_args {
    int32_t dim;
    spec_view x, y; /* [rows][dim] */
} spec_keep_args;

/* Rows that the nodes of a growing tree hand down: what a drafter on hidden states reads of its own where the target has not spoken
 * yet (algorithms.md 16). Two forms, of one cache:
 *   take    y[r] = x[r] where the row's sequence has n_fed 0: what is given;  else cache[slot][parent of the row's node]
 *   store   cache[slot][the row's node] = x[r]
 * Values are rounded to y's type. y may be x itself. Prefill passes take alone, and have n_fed 0. Rows that are not valid: nothing. */
typedef struct spec_recycle_args {
    int32_t dim, store; /* store 1: the second form, y is not read */
    spec_view x, y;     /* f32 or compute type [rows][dim] */
    float *cache;       /* [n_slot][n_node][dim] */
    int32_t n_node;
} spec_recycle_args;

/* y[r][column[c]] += table[row[t]][c] for each c < dim, where t is the token of row r's node: what a drafter knows of the token in front
 * of the one that it drafts (algorithms.md 17.3, collapsed). row[t] -1, and tokens outside of the ids: nothing is added. No column is named
 * twice. Rows that are not valid: nothing. */
typedef struct spec_bias_args {
    int32_t n_vocab, dim;
    spec_view table;       /* f32 or compute type [rows of the table][dim] */
    const int32_t *row;    /* device [n_vocab] */
    const int32_t *column; /* device [dim] of y's columns */
    spec_view y;           /* f32 [rows][columns] */
} spec_bias_args;

/* y = act(gate) * up, rounded to y's type: what a product with glu ends with, of two products whose weights are of unlike blocks. y is
 * neither of the others. Rows: n_row_run. */
typedef struct spec_glu_args {
    int32_t dim;
    spec_activation act; /* not CAP */
    spec_view gate, up;  /* f32 [rows][dim] */
    spec_view y;         /* f32 or compute type [rows][dim] */
} spec_glu_args;

typedef enum spec_op_kind {
    SPEC_OP_EMBED, SPEC_OP_NORM, SPEC_OP_LINEAR, SPEC_OP_KV_COMMIT, SPEC_OP_ROPE_KV, SPEC_OP_ATTENTION,
    SPEC_OP_CONV, SPEC_OP_SCAN, SPEC_OP_KEEP, SPEC_OP_RECYCLE, SPEC_OP_BIAS, SPEC_OP_GLU,
    SPEC_OP_N
} spec_op_kind;

/* Its size is part of the ABI: a kind that is added later fits in `room`. */
typedef struct spec_op {
    spec_op_kind kind;
    int32_t head; /* 1: what is read behind the pass is made here, and nothing else: the logits, or rows that are kept. What it
                     reads is there as the plan says, whatever a backend does together elsewhere */
    union {
        spec_embed_args embed;
        spec_norm_args norm;
        spec_linear_args linear;
        spec_kv_commit_args kv_commit;
        spec_rope_kv_args rope_kv;
        spec_attention_args attention;
        spec_conv_args conv;
        spec_scan_args scan;
        spec_keep_args keep;
        spec_recycle_args recycle;
        spec_bias_args bias;
        spec_glu_args glu;
        uint64_t room[64];
    } u;
} spec_op;

/* A forward pass. Addresses are fixed for its life. Operations run in order. In a pass without rows those of unlike places for what
 * convolutions hand to scans (replay_y) may run in any order, and side by side: nothing else of theirs is shared. */
typedef struct spec_plan {
    const spec_op *ops;
    int32_t n_op;
    int32_t phase;     /* SPEC_PHASE_...: what every pass with this plan will be */
    int32_t n_row_max; /* decode: most rows of a pass; prefill: the largest chunk */
    int32_t n_seq_max;
    int32_t n_node_max; /* nodes per sequence */
    int32_t n_kv_max;   /* longest context */
} spec_plan;
typedef struct spec_prepared spec_prepared; /* the backend's own: a plan made ready */

/* ------------------------------------------------------------------------- row operations --- */
/* Over rows of logits or distributions in device memory, f32, row r at base + r * ld. Arrays named host_... are host memory,
 * read before the call returns; host_out_... are written by the next sync(). Each row is treated alone. */

/* The largest entry, smallest index on ties. NaN is never the largest; a row without a number gives -1. With `next`
 * (device memory, or NULL) row i's token becomes next[i].token too: the root of a step whose feed that is. */
typedef struct spec_argmax_args {
    const float *logits;
    int32_t ld, n_vocab, n_row;
    int32_t *host_out_token; /* [n_row] */
    spec_step_node *next;
} spec_argmax_args;

/* Logits that a request changes (penalties, biases, a mask), row by row into another array:
 *   y = -inf where the row has a mask whose bit is 0; else, with an edit of that entry, (x > 0 ? x / repeat : x * repeat) + add;
 *   else x.
 * Edits [first_edit, first_edit + n_edit) are shared by rows; own ones, [first_own, first_own + n_own), are the row's and win. A list
 * names an entry once. Bit i of mask m is bit i % 32 of host_mask[m * n_word + i / 32]. room: device memory of spec_adjust_room()
 * bytes, in which a backend may hold what it copies of the arrays; until the operation is done. */
typedef struct spec_logit_edit {
    int32_t token;
    float repeat, add; /* repeat 1 and add 0 change nothing */
} spec_logit_edit;
typedef struct spec_adjust_row {
    int32_t src, dst; /* rows */
    int32_t first_edit, n_edit, first_own, n_own;
    int32_t mask; /* -1 = none */
} spec_adjust_row;
typedef struct spec_adjust_args {
    const float *logits;
    float *out;      /* not logits */
    int32_t ld, n_vocab;
    int32_t n_row, n_edit, n_mask, n_word; /* n_word: (n_vocab + 31) / 32 */
    const spec_adjust_row *host_row;  /* [n_row] */
    const spec_logit_edit *host_edit; /* [n_edit] shared and own ones */
    const uint32_t *host_mask;        /* [n_mask][n_word] */
    void *room;
} spec_adjust_args;
static inline size_t spec_adjust_room(size_t n_row, size_t n_edit, size_t n_mask, size_t n_word)
{
    return n_row * sizeof(spec_adjust_row) + n_edit * sizeof(spec_logit_edit) + n_mask * n_word * sizeof(uint32_t) + 64;
}

/* Rows of logits under other numbers, which is how ids of one vocabulary come to the places of another (algorithms.md 18):
 *   out[i][c] = logits[src[i]][column[c]], where column[c] is not negative; else -infinity;   for c < n_out. */
typedef struct spec_gather_args {
    const float *logits;
    float *out;            /* not logits */
    int32_t ld, ld_out, n_out;
    const int32_t *column; /* device memory [n_out]: each -1, or a column of logits */
    int32_t n_row;
    const int32_t *host_src; /* [n_row] */
} spec_gather_args;

/* probs[dst[i]] = distribution of logits[src[i]] by sampling[i] over ids < n_valid, zero for ids in [n_valid, n_probs).
 * temperature > 0: temperature, top-k, top-p, min-p, softmax (algorithms.md 2.1); ties by smallest id. Logits of +infinity share all. NaN
 * has probability 0, and so has every entry of a row whose largest logit is -infinity. */
typedef struct spec_probs_args {
    const float *logits;
    int32_t ld, n_valid;
    float *probs;
    int32_t ld_probs, n_probs;
    int32_t n_row;
    const int32_t *host_src, *host_dst;   /* [n_row] */
    const spec_sampling *host_sampling;   /* [n_row]; seed is not read */
} spec_probs_args;

/* Multi-step speculative sampling at each of n_row nodes (algorithms.md 3.2, 3.4):
 *   R = p[p_row], D = q[q_row] (q_row -1: candidate y is verified by the point mass at y)
 *   for candidates y_j in order: skip if D[y] == 0; accept if u_j D[y] < R[y];
 *      else R = norm(max(R - D, 0)), and, but with `repeat`, D[y] = 0, D = norm(D)
 *   none accepted: token = draw(R, u_last).
 * Where only rounding leaves a sum of R below 1e-12: R = p without the candidates so far, or p. With no candidates this draws
 * from p. host_out_choice: the accepted candidate's number within its row, and host_out_token that candidate; or -1 and the
 * token drawn. `next` as for the arg-max. p and q are only read. */
typedef struct spec_accept_args {
    const float *p, *q;
    int32_t ld_p, ld_q, n_vocab; /* q has n_vocab columns too */
    int32_t n_row, n_candidate;  /* all candidates of all rows */
    int32_t repeat;              /* candidates were drawn with replacement */
    const int32_t *host_p_row, *host_q_row;          /* [n_row] */
    const int32_t *host_first_candidate;             /* [n_row + 1] */
    const int32_t *host_candidate;                   /* [n_candidate] tokens */
    const float *host_u;                             /* [n_candidate] */
    const float *host_u_last;                        /* [n_row] */
    int32_t *host_out_choice, *host_out_token;       /* [n_row] */
    spec_step_node *next;
} spec_accept_args;

/* Traversal verification of whole trees (algorithms.md 3.10): with which probability each node is accepted once everything
 * below it was rejected, and what would follow it then. Rows of a tree stand together, level by level, the root first and siblings in
 * draw order, at most SPEC_ACCEPT_TREE_ROWS of them; several trees behind one another. A row's candidates are the rows whose parent
 * it is. With w = 1 for a root, R = p[p_row], D = q[q_row]:
 *   for candidates c in order, y = token[c]: w_c = 0 and no more if D[y] == 0; else w_c = min(w R[y] / D[y], 1), where c begins;
 *      Z = sum of max(w R - D, 0);   R = max(w R - D, 0) / Z;   w = Z / (Z + 1 - w);   D[y] = 0, D = norm(D)
 *   out_prob = w,   out_token = draw(R, u_last).
 * Where only rounding leaves Z < 1e-12: R = p without the candidates so far, or p; and w = 1 where it was 1, else 0.
 * p and q are only read. */
#define SPEC_ACCEPT_TREE_ROWS 1024
typedef struct spec_accept_tree_args {
    const float *p, *q;
    int32_t ld_p, ld_q, n_vocab;            /* q has n_vocab columns too */
    int32_t n_row;                          /* of all trees */
    const int32_t *host_p_row, *host_q_row; /* [n_row]; q_row -1: a row without candidates */
    const int32_t *host_parent;             /* [n_row] a row of the call, -1 = a root */
    const int32_t *host_token;              /* [n_row]; a root's is not read */
    const float *host_u_last;               /* [n_row] */
    float *host_out_prob;                   /* [n_row] */
    int32_t *host_out_token;                /* [n_row]; -1: the distribution is nothing */
} spec_accept_tree_args;

/* A node of a tree that grows on the device. */
typedef struct spec_grow_node {
    uint64_t key;          /* stream of the draws after it (spec_draw.h) */
    double value;          /* product of prob along its path; 1 for the root */
    int32_t token, parent; /* parent: its number in the growing tree, -1 for the root */
    int32_t depth, rank;
    float prob;            /* of its token under its parent's distribution; 1 for the root */
    int32_t fed;           /* its number in the drafter's own tree; -1: not fed */
} spec_grow_node;

/* Growing trees, one per sequence slot; all arrays in device memory, nothing of it set. */
typedef struct spec_grow {
    int32_t n_slot;
    int32_t cap;               /* nodes per tree, root included */
    int32_t cap_frontier;      /* nodes that one pass feeds per tree, of which an expansion takes SPEC_MAX_FRONTIER */
    int32_t cap_feed;          /* nodes per drafter's own tree */
    int32_t *n;                /* [n_slot] nodes so far */
    int32_t *frontier;         /* [n_slot][cap_frontier] nodes that the next pass feeds; -1 = a place without a node */
    spec_grow_node *node;      /* [n_slot][cap] */
    spec_step_node *feed;      /* [n_slot][cap_feed]: what step_bind takes (spec_step_block.feed) */
    spec_candidate *candidate; /* [n_slot][cap_frontier][SPEC_MAX_CHILD] */
} spec_grow;

/* The k first candidates of each of n_row distributions, in order:
 *   TOP          the k likeliest, ties by smallest id
 *   GUMBEL_TOPK  k draws without replacement: the k largest values under the row's key (spec_gumbel_value), ties by smallest id
 *   REPEAT       k draws with replacement: candidate j is the smallest id with cumulated probability > u_j total, u_j the row's
 *                repeat uniform j
 * Entries of probability 0 are never candidates; after the last one token = -1, prob = 0. Whose key, and where to: with `grow`, row
 * i belongs to frontier place host_place[i] of slot host_slot[i], and candidates go to candidate[slot][place][0..k); its key
 * is host_key[i] (of roots, whose trees have yet to begin), or without those that of the node there (a place without a node
 * gets no candidates). Without `grow`: host_key[i]. host_out, if not NULL, receives them too. With `distributions` these are made
 * first, also that of a place without a node: its row i is the draw's. */
typedef enum spec_draw_how { SPEC_DRAW_TOP = 0, SPEC_DRAW_GUMBEL_TOPK = 1, SPEC_DRAW_REPEAT = 2 } spec_draw_how;
typedef struct spec_draw_args {
    const float *probs;
    int32_t ld, n_vocab;
    int32_t n_row, k; /* 1 <= k <= SPEC_MAX_CHILD */
    spec_draw_how how;
    const spec_probs_args *distributions;                 /* or NULL: they stand there; n_row rows, host_dst is host_probs_row */
    const int32_t *host_probs_row;             /* [n_row] rows of `distributions` */
    const spec_grow *grow;                     /* or NULL */
    const int32_t *host_slot, *host_place;     /* [n_row], with grow */
    const uint64_t *host_key;                  /* [n_row]; with grow, or NULL */
    spec_candidate *host_out;                  /* [n_row][k] or NULL */
} spec_draw_args;

/* Adds children to the frontiers of trees, and makes their next frontiers, by one rule over candidates (f, j): place f
 * of the frontier, rank j < k, node x there.
 *   value(f, j) = value(x) prob(f, j);   slot(f, j) = value(x) (1 - sum over i < j of prob(f, i)): the probability that
 *   the j-th draw after x is reached, if drafts are accepted as often as the draft distribution says (DySpec).
 * A candidate is eligible if it exists, j < take[f] (no take: j < k), and slot(f, j) >= threshold; a place's candidates
 * behind one that is not eligible are not either. Of the eligible ones, in the order (f, j):
 *   n_add > 0: the n_add of largest value (ties: the earlier) are added, else all; in the order (f, j); none beyond
 *   n_max nodes (root included): the rest is left out.
 * The next frontier has n_next places, in order:
 *   next != NULL: place i is the node that candidate next[i] = f * k + j became, or empty;
 *   else the added nodes whose value >= next_threshold; if they are more than n_next, the n_next of largest value (ties:
 *   the earlier); in the order in which they were added.
 * Place i's node is number feed_base + i of the drafter's own tree: fed is set, and feed[feed_base + i] = { token,
 * parent = the parent's fed, depth = fed of the root + depth }; an empty place feeds { 0, 0, 1 }, a row that nobody reads.
 * With feed_token (device memory, an entry for each token that a candidate can be) the fed token is feed_token[token]; it is NULL
 * where the table has no `gather`.
 * A new node's key is spec_stream_child(key of x, j). Order, value and ties are exact: value and slot are double, products
 * and differences as written, the sum over i ascending.
 * With host_root trees begin: node 0 is host_root[i], which stands in place 0 of the frontier, before all that is above.
 * host_out_n and host_out_node, if not NULL, receive the trees as they are then, each at its slot's place. */
typedef struct spec_expand_args {
    const spec_grow *grow;
    int32_t n;
    const int32_t *host_slot;      /* [n] */
    const int32_t *host_feed_base; /* [n] */
    const spec_grow_node *host_root; /* [n], n_place 1; or NULL */
    int32_t n_place;               /* places of the frontier now */
    int32_t k;
    const int32_t *host_take;      /* [n_place] or NULL */
    double threshold;
    int32_t n_add, n_max;
    int32_t n_next;                /* <= cap_frontier; 0 = the last round */
    const int32_t *host_next;      /* [n_next] or NULL */
    double next_threshold;
    int32_t *host_out_n;           /* [n_slot], of which those of host_slot are written; or NULL */
    spec_grow_node *host_out_node; /* [n_slot][cap], of which the first n of a tree; NULL where host_out_n is */
    const int32_t *feed_token;     /* or NULL: its own */
} spec_expand_args;

/* log softmax of logits[row[i]] (no temperature) at token[i], and the n_top largest, ties by smallest id. */
typedef struct spec_logprob_args {
    const float *logits;
    int32_t ld, n_vocab, n_row, n_top; /* n_top <= 64, <= n_vocab */
    const int32_t *host_row, *host_token;
    float *host_out_logprob;     /* [n_row] */
    int32_t *host_out_top;       /* [n_row][n_top] */
    float *host_out_top_logprob; /* [n_row][n_top] */
} spec_logprob_args;

/* ----------------------------------------------------------------------------- the table --- */

typedef struct spec_device_info {
    char name[96];           /* "cpu:avx512bf16", "cuda:0 NVIDIA H200" */
    int32_t host_visible;    /* device memory can be read and written by the host */
    int32_t row_max;         /* most rows of a decode pass */
    /* The sizes of prefill passes, in rows (n_row_run): ascending, each twice the one in front, 0 behind the last. A pass has one
     * of them. */
    int32_t prefill_rows[SPEC_PREFILL_SIZES];
    uint64_t bytes_total, bytes_free; /* of device memory; 0 = unknown */
} spec_device_info;

/* How a backend does a kind of operation. */
typedef struct spec_backend_op {
    spec_op_kind kind;
    /* Can this operation run with these types and sizes? Ability, never preference; never looks at row counts. Asked once for
     * every operation of the plans of both phases, with their addresses. */
    spec_status (*supports)(spec_device *dev, const spec_op *op);
    spec_status (*run)(spec_queue *q, const spec_op *op); /* by itself, of the step that is bound */
} spec_backend_op;
#define SPEC_OP_ROOM 32 /* rows of a table, for kinds that are added later too */

/* What came to arguments of operations after the first tables were built (spec_backend_ops.knows). */
#define SPEC_KNOWS_CAP 1u  /* spec_attention_args.cap, SPEC_ACT_CAP */
#define SPEC_KNOWS_GAIN 2u /* spec_rope_kv_args.gain */

/* The ABI is the meaning of all that stands here. Within one ABI members are only appended, and kinds of operations: a table
 * that ends earlier than the library's is taken for one whose further members are NULL, what is behind the library's own is
 * not looked at. */
struct spec_backend_ops {
    uint32_t abi;       /* SPEC_BACKEND_ABI */
    size_t struct_size; /* sizeof(spec_backend_ops) of the backend's build */
    const char *name;   /* "cpu", "cuda" */

    /* Required; the library calls them without checking and refuses a table that lacks one, naming it. */
    spec_status (*open)(spec_device **out, const spec_host *host, const char *arg);
    void (*close)(spec_device *dev);
    spec_status (*info)(spec_device *dev, spec_device_info *out);
    /* Devices that could be opened: calls each(user, arg, text); a status with a message when there are none. */
    spec_status (*list)(const spec_host *host, void (*each)(void *user, const char *arg, const char *text), void *user);

    spec_status (*alloc)(spec_device *dev, void **out, size_t bytes); /* device memory, 256-byte aligned, not zeroed */
    void (*free)(spec_device *dev, void *p, size_t bytes);

    /* What weight_open will take on the device; and the copy itself (parts may be freed after it returns). */
    size_t (*weight_bytes)(spec_device *dev, const spec_weight_desc *desc);
    spec_status (*weight_open)(spec_device *dev, spec_weight **out, const spec_weight_desc *desc);
    void (*weight_close)(spec_device *dev, spec_weight *w);

    /* Scratch for row operations over at most the plans' rows of n_vocab columns, and for these plans: their operations
     * have all but their addresses. No plans and n_vocab 0: a queue for transfers. */
    spec_status (*queue_open)(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan, int32_t n_vocab);
    size_t (*queue_bytes)(spec_device *dev, const spec_plan *plans, int32_t n_plan, int32_t n_vocab); /* device memory */
    void (*queue_close)(spec_queue *q);
    spec_status (*upload)(spec_queue *q, void *dst, const void *src, size_t bytes);   /* src free on return */
    spec_status (*download)(spec_queue *q, void *dst, const void *src, size_t bytes); /* dst filled after sync */
    /* On the device, all of a list. What is written meets nothing else of the list. */
    spec_status (*copy)(spec_queue *q, const spec_range_copy *range, int32_t n);
    spec_status (*zero)(spec_queue *q, const spec_range *range, int32_t n);
    spec_status (*sync)(spec_queue *q);

    /* Makes a step current: operations after this read it. The block is free on return. */
    spec_status (*step_bind)(spec_queue *q, const spec_step_block *block);
    /* Row i is of kind i. The library says (backend_ops.c) what stands in for a kind whose row is empty; where nothing does,
     * the row is required, or what needs it is refused (RECYCLE: heads on hidden states; BIAS: collapsed token info), or done otherwise
     * (GLU: gates and ups of unlike blocks are unpacked). */
    spec_backend_op op[SPEC_OP_ROOM];

    /* Row operations: a call each, for what stands in their arguments is new every time. accept and expand are rules of
     * verification and of drafting; they run on the device on purpose, since what they need (distributions, candidates) is
     * there, and a round would wait for the host between two of its passes otherwise. */
    spec_status (*argmax)(spec_queue *q, const spec_argmax_args *a);
    spec_status (*probs)(spec_queue *q, const spec_probs_args *a);
    spec_status (*accept)(spec_queue *q, const spec_accept_args *a);
    spec_status (*logprob)(spec_queue *q, const spec_logprob_args *a);
    spec_status (*draw)(spec_queue *q, const spec_draw_args *a);
    spec_status (*expand)(spec_queue *q, const spec_expand_args *a);

    /* Optional, all or none: a plan made ready, and run. NULL: the library walks the plan. A backend may rewrite its own copy of
     * the plan, whose result then defines the bits: all decode passes of a session go through the prepared plan, and path
     * invariance holds among them. Of what a plan writes only what lies in no tensor that a later operation of it overwrites or
     * alone reads has to be there behind the pass: states, caches, what operations with `head` make, and their inputs. Row counts
     * decide nothing that bits depend on. capture: 1, passes may be captured; 0, they are launched one operation at a time (the
     * same ones, with the same bits). It takes no device memory: what a plan needs is part of the queue, which was opened for it.
     * plan_run binds the step itself. argmax: NULL, or what argmax() would be asked right behind the pass, of its rows from the
     * first on; so a pass that finds them on its way can end with their tokens. */
    spec_status (*plan_prepare)(spec_queue *q, spec_prepared **out, const spec_plan *plan, int32_t capture);
    spec_status (*plan_run)(spec_queue *q, spec_prepared *plan, const spec_step_block *block, const spec_argmax_args *argmax);
    void (*plan_free)(spec_queue *q, spec_prepared *plan);

    /* Optional, both or none: results of what was queued before mark(q, &m) are for the host after wait(q, m), while what was
     * queued behind it goes on. Marks are waited for in any order, or never. NULL: operations compute in their calls, so that
     * nothing goes on. */
    spec_status (*mark)(spec_queue *q, uint64_t *mark);
    spec_status (*wait)(spec_queue *q, uint64_t mark);

    /* Optional: makes a prepared plan ready for steps like this one, behind whatever paths and contexts, so that no plan_run of
     * such a step takes longer than the next. It may run the step, some times over: a decode step that applies no path and keeps
     * nothing, of sequences that nobody needs. NULL: there is nothing to make ready. */
    spec_status (*plan_warm)(spec_queue *q, spec_prepared *plan, const spec_step_block *block);

    /* Optional row operation. NULL: the library does it on the host. */
    spec_status (*adjust)(spec_queue *q, const spec_adjust_args *a);

    /* Optional row operation. NULL: no session verifies by the rules that need it; `auto` takes others. */
    spec_status (*accept_tree)(spec_queue *q, const spec_accept_tree_args *a);
    /* Optional row operation; a table that has it knows feed_token of an expansion, too. NULL: the library does both on the host. */
    spec_status (*gather)(spec_queue *q, const spec_gather_args *a);
    /* Bit t: weight_open takes parts of type t, which are blocks. Those of a file that it does not take are unpacked by the library. */
    uint64_t weight_blocks;
    /* Optional. Runs body(arg, i) for all i in [0, n), in any order, on the device's threads of the host, and returns when all are done:
     * weights are packed by it. NULL: those of spec_host.parallel_for, or the caller's alone. */
    void (*parallel)(spec_device *dev, int32_t n, void (*body)(void *arg, int32_t i), void *arg);
    /* Bits of SPEC_KNOWS_...: what the operations heed of that which arguments have gained. Where a table's bit is 0 the library refuses
     * operations that ask for it. */
    uint64_t knows;
    /* Append here. */
};

/* What a plugin exports: its table. */
typedef const spec_backend_ops *(*spec_backend_entry)(void);
#define SPEC_BACKEND_ENTRY "spec_backend_table"

/* Opens an application's own operations, or those of a statically linked backend (spec_cuda_ops()). `arg` is
 * what would follow the colon in a name; may be NULL. The table must outlive the backend. */
SPEC_API spec_status spec_backend_open_ops(spec_backend **out, const spec_backend_ops *ops,
                                           const char *arg, const spec_backend_params *params);

#ifdef __cplusplus
}
#endif
#endif
