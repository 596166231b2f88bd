/* bench_rules.c - what rules of verification accept of the same drafted trees. Each step drafts and scores once, asks every rule,
 * and goes on as the last one says: the differences between rules are those of single trees, not of texts that went apart.
 *
 * accepted_per_step: drafts. more: than by the first rule, on average; error: of that mean, one standard deviation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/support_sequence.h"

enum { MAX_RULES = 8 };

typedef struct asked_rule {
    char name[32];
    spec_verify_rule rule;
    int64_t n_accepted, n_more, n_more_squared; /* more than by the first rule */
} asked_rule;

typedef struct tally {
    int32_t n_rule;
    asked_rule rules[MAX_RULES];
    int64_t n_step, n_node;
} tally;

static spec_status read_rules(tally *t, const char *list)
{
    t->n_rule = 0;
    for (; t->n_rule < MAX_RULES && bench_item(t->rules[t->n_rule].name, sizeof t->rules[0].name, list, ',', t->n_rule); t->n_rule++)
        SPEC_TRY(bench_rule(&t->rules[t->n_rule].rule, t->rules[t->n_rule].name));
    return SPEC_OK;
}

/* Asks every rule, and takes the last one's answer. */
static spec_status ask(tally *t, spec_session *s, int32_t seq, int32_t *path, int32_t *n_path, int32_t *token)
{
    int64_t first = 0;
    for (int32_t i = 0; i < t->n_rule; i++) {
        asked_rule *r = &t->rules[i];
        SPEC_TRY(spec_verify(s, path, n_path, token, seq, r->rule));
        const int64_t accepted = *n_path - 1;
        if (i == 0) first = accepted;
        r->n_accepted += accepted;
        r->n_more += accepted - first, r->n_more_squared += (accepted - first) * (accepted - first);
    }
    return SPEC_OK;
}

static spec_status step(tally *t, spec_session *s, int32_t seq, int32_t *n_emitted)
{
    const spec_tree *tree;
    int32_t path[SPECI_MAX_NODE], n_path, token;
    SPEC_TRY(spec_draft(s, &tree, &seq, 1));
    SPEC_TRY(spec_score(s, &seq, 1, &tree));
    SPEC_TRY(ask(t, s, seq, path, &n_path, &token));
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

static spec_status emit(bench *b, const tally *t, const asked_rule *r, const char *tree, float temperature, const bench_workload *task)
{
    const double n = (double)t->n_step, more = (double)r->n_more / n;
    json_t *record = bench_record(b, "rules");
    bench_text(record, "drafter", b->draft_name);
    bench_text(record, "tree", tree);
    bench_text(record, "verify", r->name);
    bench_number(record, "temperature", (double)temperature);
    bench_text(record, "task", task->name);
    bench_count(record, "prompts", task->n);
    bench_count(record, "steps", t->n_step);
    bench_number(record, "nodes_per_step", (double)t->n_node / n);
    bench_number(record, "accepted_per_step", (double)r->n_accepted / n);
    bench_number(record, "more", more);
    bench_number(record, "error", sqrt(((double)r->n_more_squared / n - more * more) / n));
    return bench_emit(b, record, bench_floor_ms(b, (int32_t)task->prompts[0].n, 1));
}

static spec_status run_tree(bench *b, const bench_workload *task, const char *tree, float temperature)
{
    spec_drafter_params dp = SPEC_DRAFTER_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_drafter *drafter = NULL;
    spec_session *s = NULL;
    tally t = { .n_step = 0 };
    SPEC_TRY(read_rules(&t, b->o.verify ? b->o.verify : "mss,traversal"));
    dp.tree = tree;
    sp.n_ctx = bench_positions(b, task), sp.lab = &b->o.lab;
    SPEC_TRY(spec_drafter_from_model(&drafter, b->draft_model, &dp));
    spec_status status = spec_session_open(&s, b->model, drafter, &sp);
    if (status == SPEC_OK) status = decode(&t, b, s, task, temperature);
    for (int32_t i = 0; i < t.n_rule && status == SPEC_OK; i++) status = emit(b, &t, &t.rules[i], tree, temperature, task);
    spec_session_close(s);
    spec_drafter_close(drafter);
    return status;
}

static spec_status each_tree(bench *b, const bench_workload *task)
{
    char tree[512], text[32], *end;
    for (int32_t i = 0; bench_item(text, sizeof text, b->o.temperature ? b->o.temperature : "1", ',', i); i++) {
        const float temperature = strtof(text, &end);
        if (end == text || *end) return speci_fail(SPEC_E_INVALID, "--temp %s: not a number", text);
        for (int32_t k = 0; bench_item(tree, sizeof tree, b->o.tree ? b->o.tree : "chain:4", ';', k); k++)
            SPEC_TRY(run_tree(b, task, tree, temperature));
    }
    return SPEC_OK;
}

spec_status bench_rules(bench *b)
{
    if (!b->draft_model) return speci_fail(SPEC_E_INVALID, "rules: --drafter is missing");
    return bench_each_workload(b, each_tree);
}
