/* verify_table.c - the verification rules, in the order in which they are listed; and which of them keep the
 * distribution of which tree (algorithms.md 3.6). */
#include "algorithms/verify/verify.h"

#include <stdio.h>

/* Each is defined in verify_<rule>.c. */
extern const speci_verify_rule speci_verify_naive, speci_verify_chain, speci_verify_mss,
    speci_verify_mss_repeat, speci_verify_block, speci_verify_traversal;

static const speci_verify_rule *const table[] = {
    &speci_verify_greedy,
    &speci_verify_naive,
    &speci_verify_chain,
    &speci_verify_mss,
    &speci_verify_mss_repeat,
    &speci_verify_block,
    &speci_verify_traversal,
};
enum { N_RULE = sizeof table / sizeof *table };

/* ---------------------------------------------------------------------------------------- look-up --- */

const speci_verify_rule *speci_verify_find(spec_verify_rule id)
{
    for (int32_t i = 0; i < N_RULE; i++)
        if (table[i]->id == id) return table[i];
    return NULL;
}

const char *spec_verify_rule_name(spec_verify_rule rule)
{
    const speci_verify_rule *r = speci_verify_find(rule);
    return r ? r->name : rule == SPEC_VERIFY_AUTO ? "auto" : "unknown rule";
}

void spec_verify_rule_list(void (*each)(void *user, spec_verify_rule rule, const char *name, const char *help),
                           void *user)
{
    if (!each) return;
    each(user, SPEC_VERIFY_AUTO, spec_verify_rule_name(SPEC_VERIFY_AUTO),
         "the rule that accepts most, by kind of tree");
    for (int32_t i = 0; i < N_RULE; i++) each(user, table[i]->id, table[i]->name, table[i]->help);
}

bool speci_verify_runs_on(const speci_verify_rule *rule, const spec_backend_ops *ops)
{
    return !ops || !rule->device->fits || rule->device->fits(ops);
}

/* Later rows accept more. */
const speci_verify_rule *speci_verify_resolve(spec_verify_rule id, spec_tree_kind kind, bool flat, float temperature,
                                              const spec_backend_ops *ops)
{
    if (id != SPEC_VERIFY_AUTO) return speci_verify_find(id);
    for (int32_t i = N_RULE - 1; i >= 0; i--) {
        const speci_verify_rule *r = table[i];
        if (r->greedy != (temperature == 0) || !(r->auto_kinds >> kind & 1) || (r->deep && flat)) continue;
        if (speci_verify_runs_on(r, ops)) return r;
    }
    return NULL;
}

/* --------------------------------------------------------------------------------------- lossless --- */

/* Parents come first, so in a chain each node's parent is the one before it. */
static bool is_chain(const spec_tree *t)
{
    for (int32_t i = 1; i < t->n; i++)
        if (t->parent[i] != i - 1) return false;
    return true;
}

static const char *objection(const speci_verify_rule *r, spec_tree_kind kind, bool chain, float temperature)
{
    if (temperature == 0) return r->greedy ? NULL : "would draw, where the likeliest token is the only answer";
    if (r->greedy) return "would always emit the likeliest token instead of drawing from the distribution";
    return r->objection ? r->objection(kind, chain) : NULL;
}

static void list_fitting(char *out, size_t cap, spec_tree_kind kind, bool chain, float temperature)
{
    size_t n = 0;
    for (int32_t i = 0; i < N_RULE && n < cap; i++)
        if (!objection(table[i], kind, chain, temperature))
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", table[i]->name);
}

spec_status spec_verify_is_lossless(const spec_tree *tree, spec_verify_rule rule, float temperature)
{
    static const char *const kinds[] = { "deterministic", "sampled", "sampled i.i.d.", "unrolled" };
    if (!tree || tree->n < 1 || !tree->parent) return speci_fail(SPEC_E_INVALID, "verification needs a tree");
    if ((uint32_t)tree->kind >= sizeof kinds / sizeof *kinds)
        return speci_fail(SPEC_E_INVALID, "there is no kind of tree %d", (int)tree->kind);
    if (!(temperature >= 0)) return speci_fail(SPEC_E_INVALID, "temperature %g", (double)temperature);
    const speci_verify_rule *r = speci_verify_resolve(rule, tree->kind, speci_tree_is_flat(tree), temperature, NULL);
    if (!r) return speci_fail(SPEC_E_INVALID, "there is no verification rule %d", (int)rule);
    const bool chain = is_chain(tree);
    const char *wrong = objection(r, tree->kind, chain, temperature);
    if (!wrong) return SPEC_OK;
    char fitting[128];
    list_fitting(fitting, sizeof fitting, tree->kind, chain, temperature);
    return speci_fail(SPEC_E_INVALID, "%s verification %s; for a tree that is %s%s, at temperature %g: %s", r->name,
                      wrong, kinds[tree->kind], chain ? " and a chain" : "", (double)temperature, fitting);
}
