/* backend_grow.h - the host's form of the operations that grow trees: begin, draw candidates, expand. For backends whose
 * memory the host can read, for plain arrays, and as what other backends are compared with. */
#ifndef SPEC_BACKEND_GROW_H
#define SPEC_BACKEND_GROW_H

#include "backends/spec_backend.h"

/* The tree of a slot becomes its root alone, which stands in place 0 of the frontier. */
void speci_grow_begin(const spec_grow *g, int32_t slot, const spec_grow_node *root);
/* The k first candidates of a distribution under `key` (spec_draw_args). */
void speci_draw_row(const float *probs, int32_t n_vocab, spec_draw_how how, uint64_t key, int32_t k, spec_candidate *out);
/* Row i of a draw. */
void speci_draw_one(const spec_draw_args *a, int32_t i);
/* Tree i of an expansion. */
void speci_expand_one(const spec_expand_args *a, int32_t i);

#endif
