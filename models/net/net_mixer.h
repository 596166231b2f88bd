/* net_mixer.h - a mixer as a row: what it is called, how wide its tensors are, what it keeps, what it computes. Internal.
 *
 * A mixer is a file net_mixer_<name>.c with the row, and net_mixer_<name>.h with the struct that says a layer as data. Families
 * name it, and nobody else: everything that handles the memory of sequences (estimate, admission, copy, save, restore) iterates
 * over what mixers declare. There is no list of mixers. */
#ifndef SPEC_NET_MIXER_H
#define SPEC_NET_MIXER_H

#include "models/net/net.h"

/* The widest row of each tensor over all layers. */
typedef struct net_widths {
    int32_t n_norm;   /* normed inputs that live at once: the branches of a parallel layer */
    int32_t projection, channel, select, dt, scan, mixed;
    int32_t branch;   /* what a branch gives, where a norm stands behind it */
} net_widths;

/* What a product reads. */
typedef struct net_input {
    spec_view x;
} net_input;

typedef struct net_emitter {
    net_plans *plans;
    net_memory *memory;
    const spec_model *model;
    const net_shape *shape;
    spec_view residual, normed[MODEL_MAX_BRANCH], projection, conv, select, dt, scan, mixed, branch;
    spec_view gathered, joined, fused, told, told_in; /* of a head */
    float *handed;           /* of a head: what each node of the trees hands down */
    void *replay;
    int32_t phase; /* of the plan being emitted */
} net_emitter;

/* Any function may be NULL: nothing to do. */
struct net_mixer {
    const char *name;
    size_t bytes; /* of a branch's `own` */
    void (*widths)(net_widths *w, const model_branch *b);
    /* Lists what the branch keeps to out [NET_MAX_BUFFER], in the order of a saved sequence; returns how many. */
    int32_t (*buffers)(net_buffer *out, const spec_model *m, const model_branch *b, const net_shape *s);
    /* residual += scale * mixer(in), by speci_net_emit_out; buffer: those of buffers(), with their addresses. */
    void (*emit)(net_emitter *e, const model_branch *b, const net_buffer *buffer, net_input in);
    /* What stands once in front of the decode plan. */
    void (*front)(net_emitter *e);
    /* Of a branch that works otherwise where a context is long: the most positions of a context that is not; else 0. */
    int32_t (*n_short)(const model_branch *b);
};

/* Has no branch in front of this one its mixer (net_mixer.c)? */
bool speci_net_is_first(const spec_model *m, int32_t layer, int32_t branch);

/* --- what mixers emit (net_emit.c) --- */

void speci_net_emit_op(net_emitter *e, spec_op op);
void speci_net_emit_linear(net_emitter *e, const model_linear *l, net_input in, spec_view y, spec_linear_args extra);
/* residual += scale * W x, or the norm behind the branch of W x */
void speci_net_emit_out(net_emitter *e, const model_branch *b, const model_linear *l, net_input in);
net_input speci_net_emit_norm(net_emitter *e, const model_norm *n, spec_view x, spec_view gate, int32_t norm_first, spec_view y);
/* The residual's norm, as the i-th of those that its layer has at once. */
net_input speci_net_emit_input(net_emitter *e, const model_norm *n, int32_t i);

/* The columns [col, ...) of a tensor; a tensor as rows of `cols` where it is narrower than in its widest use. */
spec_view speci_net_tensor(net_emitter *e, int32_t rows, int32_t cols, spec_dtype type); /* of the work memory */
spec_view speci_net_columns(spec_view v, int32_t col);
spec_view speci_net_packed(spec_view v, int32_t cols);

static inline int32_t net_max(int32_t a, int32_t b) { return a > b ? a : b; }

/* --- taps (net_tap.c) --- */

/* Memory of what the plans keep. */
void speci_net_take_taps(net_emitter *e);
/* Rows x, which are those of `where` (and `layer`), are kept for every tap there. */
void speci_net_emit_keep(net_emitter *e, int32_t where, int32_t layer, spec_view x);
bool speci_net_has_tap(const net_shape *s, int32_t where);

/* --- what a head takes in (net_intake.c) --- */

/* Tensors of every row; then of the executor: given rows, and what nodes hand down. */
void speci_net_take_intake_rows(net_emitter *e, int32_t rows);
void speci_net_take_intake(net_emitter *e);
/* The residual, made of tokens and hidden rows. */
void speci_net_emit_intake(net_emitter *e);
/* What the first branch of a head reads: a norm of the residual like any other, or [token; hidden]. */
net_input speci_net_emit_first(net_emitter *e, const model_norm *n);
/* Adds to the logits what the rows' tokens tell (net_token_info.c); the same by one table (net_token_table.c). */
void speci_net_take_info_rows(net_emitter *e, int32_t rows);
void speci_net_emit_info(net_emitter *e, spec_view logits);
void speci_net_emit_table(net_emitter *e, spec_view logits);
/* The residual becomes what parents have handed down. */
void speci_net_emit_handed(net_emitter *e);
/* Hands down what the layers gave; normed: after the final norm. */
void speci_net_emit_hand_down(net_emitter *e, spec_view normed);
/* The embedding of the tokens; and the model whose head makes the logits: this one, or a head's target. */
void speci_net_emit_embed(net_emitter *e);
const spec_model *speci_net_head_of(const net_emitter *e);

/* --- the form that recurrent mixers share (net_mixer_recurrent.c) --- */

/* Per head S <- a S + k u^T, o = S^T q (algorithms.md 8.7), behind a causal convolution. Of a node (a, k, u) are kept: a as dt;
 * k and u as the convolution's inputs, from which replay makes them again, but for a k that comes from elsewhere. */
typedef struct net_recurrence {
    int32_t n_head, n_value, n_key; /* S: [n_head][n_value][n_key] f32 */
    int32_t n_u, n_k;               /* columns of a token's u and k: heads may share blocks */
    int32_t n_channel, width;       /* the convolution */
    bool k_aside;                   /* k does not come out of the convolution */
    bool chunked;                   /* one a per head: tokens may wait in front of S and be folded by the chunk */
} net_recurrence;
/* Places in what speci_net_recurrent_buffers() lists. A recurrence that has no use for one has a buffer of 0 bytes there. */
enum {
    NET_R_CONV, NET_R_STATE, NET_R_RECENT_U, NET_R_RECENT_K, NET_R_RECENT_A, NET_R_NODE_CONV, NET_R_NODE_A, NET_R_NODE_K,
    NET_R_NODE_STATE, NET_R_N
};
int32_t speci_net_recurrent_buffers(net_buffer *out, const spec_model *m, const net_recurrence *r, const net_shape *s);

#endif
