/* verify.h - rules of verification, and the random numbers that they draw with. Internal. */
#ifndef SPEC_VERIFY_H
#define SPEC_VERIFY_H

#include "algorithms/tree/tree.h"

/* What a uniform is for. Verification and target draws are keyed by (seed, absolute position, purpose, index), draft
 * draws by (seed, the sequence's step counter, purpose, slot in the tree): nothing is drawn twice. */
enum { SPECI_DRAW_TARGET = 1, SPECI_DRAW_ACCEPT = 2, SPECI_DRAW_RESIDUAL = 3 }; /* below spec_draw.h's streams */

/* What SPEC_VERIFY_AUTO means for trees of this kind; any other rule is itself. */
spec_verify_rule speci_verify_resolve(spec_verify_rule rule, spec_tree_kind kind, float temperature);

#endif
