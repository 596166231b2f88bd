/* bench_rules.c - what traversal verification accepts of drafted trees, beside multi-step sampling. Each step drafts and scores once,
 * and both rules verify that tree, so that their difference is one of single trees and not of texts that went apart. The text
 * goes on as traversal says.
 *
 * accepted_per_step: drafts. expected_per_step: what is expected of each tree, given its tokens and distributions, which tells the rules
 * apart in few steps; it comes from probabilities of acceptance, spec_backend_ops.accept_tree. more: expected by
 * traversal, less what is expected by multi-step sampling; error: of that mean, one standard deviation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/support_sequence.h"

enum { MSS, TRAVERSAL, N_RULE, MAX_ROWS = 2 * SPECI_MAX_NODE };
static const struct {
    const char *name;
    spec_verify_rule rule;
} rules[N_RULE] = { { "mss", SPEC_VERIFY_MSS }, { "traversal", SPEC_VERIFY_TRAVERSAL } };

typedef struct tally {
    int64_t n_step, n_node, n_accepted[N_RULE];
    double expected[N_RULE], more, more_squared;
} tally;

/* --- what is expected --- */

/* Rows of an accept_tree call. */
typedef struct tree_rows {
    int32_t n, node[MAX_ROWS], q_row[MAX_ROWS], parent[MAX_ROWS], token[MAX_ROWS], out[MAX_ROWS];
    float u_last[MAX_ROWS], prob[MAX_ROWS];
} tree_rows;

static void add_row(tree_rows *t, const spec_tree *tree, int32_t node, int32_t parent, int32_t q_row)
{
    t->node[t->n] = node, t->parent[t->n] = parent, t->q_row[t->n] = q_row, t->token[t->n] = tree->token[node];
    t->u_last[t->n++] = 0;
}

static int32_t q_row_of(const spec_session *s, int32_t seq, const spec_tree *tree, int32_t node)
{
    return speci_tree_next_child(tree, node, -1) < 0 ? -1 : seq * s->site.n_q + tree->q_row[node];
}

/* After spec_verify by such a rule: the distributions of node i are row i of s->p. */
static spec_status find_probs(spec_session *s, tree_rows *t)
{
    const int32_t ld = s->target->n_vocab;
    SPEC_TRY(s->ops->accept_tree(s->queue, &(spec_accept_tree_args){
        .p = s->p, .q = s->site.q, .ld_p = ld, .ld_q = ld, .n_vocab = ld, .n_row = t->n, .host_p_row = t->node,
        .host_q_row = t->q_row, .host_parent = t->parent, .host_token = t->token, .host_u_last = t->u_last,
        .host_out_prob = t->prob, .host_out_token = t->out }));
    return s->ops->sync(s->queue);
}

/* Adds the depths of the rows at which the walk ends in the subtree of row i, and returns with which probability it does not. */
static double pass_through(const tree_rows *t, int32_t i, int32_t depth, double reach, double *sum)
{
    double left = 1;
    for (int32_t c = i + 1; c < t->n; c++)
        if (t->parent[c] == i) left *= pass_through(t, c, depth + 1, reach * left, sum);
    *sum += reach * left * (double)t->prob[i] * depth;
    return left * (1 - (double)t->prob[i]);
}

static spec_status expect_traversal(double *sum, spec_session *s, int32_t seq, const spec_tree *tree)
{
    static tree_rows t;
    int32_t node[SPECI_MAX_NODE], parent[SPECI_MAX_NODE];
    speci_tree_levels(tree, node, parent);
    t.n = 0;
    for (int32_t i = 0; i < tree->n; i++) add_row(&t, tree, node[i], parent[i], q_row_of(s, seq, tree, node[i]));
    SPEC_TRY(find_probs(s, &t));
    *sum = 0;
    (void)pass_through(&t, 0, 0, 1, sum);
    return SPEC_OK;
}

/* Drafts that are accepted below row i, a root; its candidates are leaves, and roots again where they have children. */
static double accepted_below(const tree_rows *t, int32_t i)
{
    double sum = 0, reach = 1;
    for (int32_t c = i + 1; c < t->n && t->parent[c] == i; c++) {
        int32_t root = c + 1;
        while (root < t->n && !(t->parent[root] < 0 && t->node[root] == t->node[c])) root++;
        sum += reach * (double)t->prob[c] * (1 + (root < t->n ? accepted_below(t, root) : 0));
        reach *= 1 - (double)t->prob[c];
    }
    return sum;
}

/* A root's weight is 1: a node alone with its children is multi-step sampling. */
static spec_status expect_mss(double *sum, spec_session *s, int32_t seq, const spec_tree *tree)
{
    static tree_rows t;
    t.n = 0;
    for (int32_t i = 0; i < tree->n; i++) {
        const int32_t q_row = q_row_of(s, seq, tree, i), root = t.n;
        if (q_row < 0) continue;
        add_row(&t, tree, i, -1, q_row);
        for (int32_t c = -1; (c = speci_tree_next_child(tree, i, c)) >= 0;) add_row(&t, tree, c, root, -1);
    }
    if (t.n > 0) SPEC_TRY(find_probs(s, &t));
    *sum = t.n > 0 ? accepted_below(&t, 0) : 0;
    return SPEC_OK;
}

/* --- steps --- */

static spec_status step(tally *t, spec_session *s, int32_t seq, int32_t *n_emitted)
{
    const spec_tree *tree;
    int32_t path[SPECI_MAX_NODE], n_path, token;
    double expected[N_RULE] = { 0 };
    SPEC_TRY(spec_draft(s, &tree, &seq, 1));
    SPEC_TRY(spec_score(s, &seq, 1, &tree));
    for (int32_t i = 0; i < N_RULE; i++) {
        SPEC_TRY(spec_verify(s, path, &n_path, &token, seq, rules[i].rule));
        t->n_accepted[i] += n_path - 1;
    }
    if (tree->n > 1) SPEC_TRY(expect_mss(&expected[MSS], s, seq, tree));
    if (tree->n > 1) SPEC_TRY(expect_traversal(&expected[TRAVERSAL], s, seq, tree));
    const double more = expected[TRAVERSAL] - expected[MSS];
    for (int32_t i = 0; i < N_RULE; i++) t->expected[i] += expected[i];
    t->more += more, t->more_squared += more * more;
    t->n_step++, t->n_node += tree->n;
    *n_emitted = n_path;
    return spec_commit(s, seq, path, n_path, token);
}

static spec_status decode(tally *t, const bench *b, spec_session *s, const bench_workload *task, float temperature)
{
    for (int32_t i = 0; i < task->n; i++) {
        const spec_sampling sampling = { .temperature = temperature, .top_p = (float)b->o.top_p, .seed = (uint64_t)i + 1 };
        int32_t seq, emitted;
        SPEC_TRY(add_endless(s, &seq, task->prompts[i].ids, task->prompts[i].n, &sampling));
        for (int32_t n = 0; n < b->o.n_predict; n += emitted) SPEC_TRY(step(t, s, seq, &emitted));
        SPEC_TRY(spec_sequence_remove(s, seq));
    }
    return SPEC_OK;
}

static spec_status emit(bench *b, const tally *t, int32_t rule, const char *tree, float temperature, const bench_workload *task)
{
    const double n = (double)t->n_step, more = rule == TRAVERSAL ? t->more / n : 0;
    json_t *record = bench_record(b, "rules");
    bench_text(record, "drafter", b->draft_name);
    bench_text(record, "tree", tree);
    bench_text(record, "verify", rules[rule].name);
    bench_number(record, "temperature", (double)temperature);
    bench_text(record, "task", task->name);
    bench_count(record, "prompts", task->n);
    bench_count(record, "steps", t->n_step);
    bench_number(record, "nodes_per_step", (double)t->n_node / n);
    bench_number(record, "accepted_per_step", (double)t->n_accepted[rule] / n);
    bench_number(record, "expected_per_step", t->expected[rule] / n);
    bench_number(record, "more", more);
    bench_number(record, "error", rule == TRAVERSAL ? sqrt((t->more_squared / n - more * more) / n) : 0);
    return bench_emit(b, record, bench_floor_ms(b, (int32_t)task->prompts[0].n, 1));
}

static spec_status run_tree(bench *b, const bench_workload *task, const char *tree, float temperature)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *drafter = NULL;
    spec_session *s = NULL;
    tally t = { .n_step = 0 };
    dp.tree = tree;
    sp.n_ctx = bench_positions(b, task), sp.lab = &b->o.lab;
    SPEC_TRY(spec_drafter_from_model(&drafter, b->draft_model, &dp));
    spec_status status = spec_session_open(&s, b->model, drafter, &sp);
    if (status == SPEC_OK) status = decode(&t, b, s, task, temperature);
    for (int32_t i = 0; i < N_RULE && status == SPEC_OK && t.n_step > 0; i++) status = emit(b, &t, i, tree, temperature, task);
    spec_session_close(s);
    spec_drafter_close(drafter);
    return status;
}

static spec_status each_tree(bench *b, const bench_workload *task)
{
    char tree[512], text[32], *end;
    for (int32_t i = 0; bench_item(text, sizeof text, b->o.temperature ? b->o.temperature : "1", ',', i); i++) {
        const float temperature = strtof(text, &end);
        if (end == text || *end || !(temperature > 0)) return speci_fail(SPEC_E_INVALID, "--temp %s: a rule samples", text);
        for (int32_t k = 0; bench_item(tree, sizeof tree, b->o.tree ? b->o.tree : "chain:4", ';', k); k++)
            SPEC_TRY(run_tree(b, task, tree, temperature));
    }
    return SPEC_OK;
}

spec_status bench_rules(bench *b)
{
    if (!b->draft_model) return speci_fail(SPEC_E_INVALID, "rules: --drafter is missing");
    if (!b->be->ops->accept_tree) return speci_fail(SPEC_E_UNSUPPORTED, "rules: the backend has no accept_tree");
    return bench_each_workload(b, each_tree);
}
