/* model_intake.h - what a head takes in: a network whose first layer reads, beside a token, hidden rows of another model, the target, or
 * its own where the target has not spoken yet (algorithms.md 16, 17). Internal to models/.
 *
 *   given    n_tap rows of the target per position
 *   hidden = join([norm(given 0); norm(given 1); ...]), or the one given row
 *   EAGLE-2  r = fuse([token; hidden]);            the first layer reads r
 *   EAGLE-3  r = hidden, the first layer reads [norm(token); norm(hidden)]
 *   Lyanna   r = fuse([token; hidden]) of the first row of a chain, the head's own output behind it
 *
 * A node that was drafted has what its parent's pass gave in place of `hidden`, or (Lyanna) of r. Embedding and head are the target's
 * where the file has none of its own. */
#ifndef SPEC_MODEL_INTAKE_H
#define SPEC_MODEL_INTAKE_H

#include "models/model.h"

enum { MODEL_MAX_TAP = 8 };

/* Token info (algorithms.md 17.3): logits behind a node of token t get info(t) = RMSNorm(W2 W1 e_t) over the hot tokens, where t is one of
 * them; e_t is the target's embedding. */
typedef struct model_token_info {
    int32_t rank, n_hot;
    int32_t *hot;    /* [n_hot] */
    float *w2, *norm; /* [n_hot][rank], [n_hot] the norm's weights: what tables are made of (net_token_info.c, net_token_table.c) */
    float eps;
    model_linear w1; /* [rank][width] */
    model_linear out; /* [n_vocab][rank]: rows of W2 times the norm's weight, at their tokens; zeros elsewhere */
} model_token_info;

typedef struct model_intake {
    const char *kind;           /* "EAGLE-2": for messages */
    int32_t n_tap, n_hidden;    /* rows of the target per position, and their columns */
    int32_t n_said;             /* n_tap: the file says which layers; 0: it does not */
    int32_t said[MODEL_MAX_TAP]; /* what enters this layer; the target's number of layers: what leaves the final norm */
    bool believes;              /* the file; else by the kind's own rule (layouts differ in what they count) */
    bool after_norm;            /* its one tap is what leaves the final norm */
    bool ties;                  /* says that its logits are made by the embedding */
    model_norm given_norm[MODEL_MAX_TAP], join_norm; /* of each given row; of all of them side by side. weight NULL: none */
    model_linear join;          /* w NULL: none, n_tap is 1 */
    model_norm token_norm, hidden_norm; /* weight NULL: none */
    model_linear fuse;          /* w NULL: the first layer reads [token; hidden] */
    bool residual_normed;       /* r = norm(hidden) */
    bool hands_normed;          /* hands down norm(output), by the final norm, in place of the output */
    bool hands_input;           /* what is handed down stands for r: no token enters behind the first row */
    model_token_info *info;     /* or NULL */
    int32_t *columns;           /* [n_vocab] the column of the logits for each id, -1 none; NULL: its own number */
} model_intake;

/* The taps that the head needs of this target: out [n_tap]. */
void speci_intake_taps(const model_intake *in, const spec_model *target, spec_tap out[MODEL_MAX_TAP]);
void speci_intake_close(model_intake *in, const spec_allocator *a);

#endif
