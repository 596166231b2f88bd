/* verify_arrays.c - verification on plain arrays (algorithms.md 3): checks what the caller gives, then walks by the
 * rule's row. */
#include "algorithms/verify/verify.h"

#include <math.h>

/* --- rows --- */

const float *speci_verify_p(const spec_verify_args *a, int32_t node)
{
    return a->p + (size_t)node * (size_t)a->n_vocab;
}

int32_t speci_verify_q_row(const spec_verify_args *a, int32_t c)
{
    if (a->child_row) return a->child_row[c];
    return a->tree->q_row ? a->tree->q_row[a->tree->parent[c]] : -1;
}

/* --- checks --- */

static spec_status check_probs(const float *probs, size_t n, const char *whose, int32_t node, int32_t row)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(probs[i] >= 0) || isinf(probs[i]))
            return speci_fail(SPEC_E_INVALID,
                              "%s distribution, node %d, row %d: entry %zu is %g; probabilities are >= 0", whose, node,
                              row, i, (double)probs[i]);
        sum += (double)probs[i];
    }
    if (fabs(sum - 1) <= 1e-3) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "%s distribution, node %d, row %d: the sum is %g, not 1", whose, node, row, sum);
}

/* Was an earlier node drawn from the row of node c? */
static bool row_was_checked(const spec_verify_args *a, int32_t c)
{
    for (int32_t e = 1; e < c; e++)
        if (speci_verify_q_row(a, e) == speci_verify_q_row(a, c)) return true;
    return false;
}

static spec_status check_draft_probs(const spec_verify_args *a, const speci_verify_rule *rule)
{
    for (int32_t c = 1; c < a->tree->n; c++) {
        const int32_t row = speci_verify_q_row(a, c);
        if (row < 0 || !a->q)
            return speci_fail(SPEC_E_INVALID,
                              "%s verification needs the draft distribution that node %d was drawn from: %s",
                              rule->name, c, a->q ? "its row is not known" : "q is NULL");
        if (row_was_checked(a, c)) continue;
        SPEC_TRY(check_probs(a->q + (size_t)row * (size_t)a->n_vocab, (size_t)a->n_vocab, "the draft's", c, row));
    }
    return SPEC_OK;
}

static spec_status check_args(const spec_verify_args *a)
{
    if (!a->tree || !a->p)
        return speci_fail(SPEC_E_INVALID, "verification needs a tree and the target's distributions p");
    if (a->n_vocab < 1) return speci_fail(SPEC_E_INVALID, "distributions over %d ids", a->n_vocab);
    SPEC_TRY(spec_tree_check(a->tree, a->tree->n, a->n_vocab));
    return spec_verify_is_lossless(a->tree, a->rule, a->temperature);
}

/* --- the walk --- */

spec_status spec_verify_probs(int32_t *path, int32_t *n_path, int32_t *token, const spec_verify_args *args)
{
    spec_verify_args a = { .struct_size = sizeof a };
    SPEC_TRY(speci_params_read(&a, sizeof a, args, "spec_verify_args"));
    SPEC_TRY(check_args(&a));
    const speci_verify_rule *rule = speci_verify_resolve(a.rule, a.tree->kind, speci_tree_is_flat(a.tree), a.temperature, NULL);
    for (int32_t i = 0; i < a.tree->n; i++)
        SPEC_TRY(check_probs(speci_verify_p(&a, i), (size_t)a.n_vocab, "the target's", i, i));
    if (rule->uses_draft_probs) SPEC_TRY(check_draft_probs(&a, rule));
    return rule->walk(&a, path, n_path, token);
}
