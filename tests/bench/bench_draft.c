/* bench_draft.c - drafting alone: the model drafts for itself, and every step commits its root, so that the drafter
 * absorbs one token a step. median_ms, min_ms: spec_draft, from the pending token to the tree in host memory. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { WARM = 3 };

static const char default_trees[] = "chain:4;chain:8;static:A;product:3,2,2,1,1;beam:3,4;beam:8,4;eagle2:10,60,6;"
                                    "dyspec-threshold:0.02,64;sequoia:32;dyspec:64";

/* *drafted: nodes below the root. */
static spec_status one(double *ms, int32_t *drafted, spec_session *s, int32_t seq)
{
    const spec_tree *tree;
    int32_t path[ALGO_MAX_NODE], n_path, next;
    const int32_t root = 0;
    const double start = speci_now_ms();
    SPEC_TRY(spec_draft(s, &seq, 1, &tree));
    *ms = speci_now_ms() - start;
    *drafted = tree->n - 1;
    SPEC_TRY(spec_score(s, &seq, 1, &tree));
    SPEC_TRY(spec_verify(s, seq, SPEC_VERIFY_AUTO, path, &n_path, &next));
    return spec_commit(s, seq, &root, 1, next);
}

static spec_status times(double *ms, int32_t *drafted, bench *b, spec_session *s, int32_t context, float temperature)
{
    const spec_sampling sampling = { .temperature = temperature, .seed = 1 };
    double warm;
    int32_t seq;
    SPEC_TRY(bench_sequence(&seq, s, context, &sampling));
    s->seqs[seq].ignore_eos = true;
    for (int32_t i = 0; i < WARM; i++) SPEC_TRY(one(&warm, drafted, s, seq));
    for (int32_t i = 0; i < b->o.repeats; i++) SPEC_TRY(one(&ms[i], drafted, s, seq));
    return SPEC_OK;
}

static spec_status emit(bench *b, double *ms, const spec_builder_info *info, int32_t drafted, int32_t context,
                        float temperature, double plain_ms)
{
    json_t *r = bench_record(b, "draft");
    const double per_level = bench_median(ms, b->o.repeats) / (info->n_level > 0 ? info->n_level : 1);
    bench_text(r, "tree", info->text);
    bench_count(r, "nodes", info->n_node);
    bench_count(r, "rows", info->n_row);
    bench_number(r, "drafted", drafted);
    bench_count(r, "levels", info->n_level);
    bench_text(r, "draft_state", b->o.draft_state == SPEC_DRAFT_STATE_PER_NODE ? "per-node" : "replay");
    bench_number(r, "temperature", (double)temperature);
    bench_count(r, "context", context);
    bench_times(r, ms, b->o.repeats);
    bench_number(r, "level_ms", per_level);
    bench_number(r, "plain_ms", plain_ms);
    bench_number(r, "level_over_plain", per_level / plain_ms);
    return bench_emit(b, r, info->n_level * bench_floor_ms(b, context, 1));
}

static spec_status measure(bench *b, spec_builder *builder, int32_t context, float temperature, double plain_ms)
{
    spec_builder_info info = { .struct_size = sizeof info };
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *drafter = NULL;
    spec_session *s = NULL;
    int32_t drafted = 0;
    p.builder = builder;
    SPEC_TRY(spec_builder_get_info(builder, &info));
    double *ms = speci_alloc(NULL, (size_t)b->o.repeats, sizeof *ms);
    spec_status status = ms ? spec_drafter_from_model(&drafter, b->model, &p) : SPEC_E_NOMEM;
    if (status == SPEC_OK)
        status = bench_session(&s, b, drafter, context + b->o.repeats + WARM + 2 * ALGO_MAX_NODE, 0, 1);
    if (status == SPEC_OK) status = times(ms, &drafted, b, s, context, temperature);
    spec_session_close(s);
    spec_drafter_close(drafter);
    if (status == SPEC_OK) status = emit(b, ms, &info, drafted, context, temperature, plain_ms);
    speci_free(NULL, ms);
    return status;
}

static spec_status each_temperature(bench *b, const char *tree, int32_t context, double plain_ms)
{
    char text[32], *end;
    for (int32_t i = 0; bench_item(text, sizeof text, b->o.temperature ? b->o.temperature : "0", ',', i); i++) {
        const float temperature = strtof(text, &end);
        spec_builder *builder;
        if (end == text || *end) return speci_fail(SPEC_E_INVALID, "--temp %s: not a number", text);
        SPEC_TRY(spec_builder_open(&builder, tree, NULL));
        const spec_status status = measure(b, builder, context, temperature, plain_ms);
        spec_builder_close(builder);
        SPEC_TRY(status);
    }
    return SPEC_OK;
}

spec_status bench_draft(bench *b)
{
    char tree[512];
    bench_plain plain;
    const int32_t context = b->o.context ? b->o.context : 128;
    SPEC_TRY(bench_plain_step(&plain, b, context));
    for (int32_t i = 0; bench_item(tree, sizeof tree, b->o.tree ? b->o.tree : default_trees, ';', i); i++)
        SPEC_TRY(each_temperature(b, tree, context, plain.ms));
    return SPEC_OK;
}
