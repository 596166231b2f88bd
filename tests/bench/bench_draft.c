/* bench_draft.c - drafting alone: the model for itself, or --drafter, a model or a head, for the model, behind each
 * step, or each --tokens steps that emit one token each, which the drafter then applies first. median_ms, min_ms:
 * spec_draft, from the pending token to the tree in host memory. */
#include <stdio.h>

#include "tests/bench/bench.h"

enum { WARM = 3 };

static const char default_trees[] = "chain:4;chain:8;static:A;product:3,2,2,1,1;beam:3,4;beam:8,4;eagle2:10,60,6;"
                                    "dyspec-threshold:0.02,64;sequoia:32;dyspec:64";

typedef struct drafting {
    bench *b;
    spec_session *s;
    int32_t seq, context, tokens;
    float temperature;
    double *ms, plain_ms; /* [repeats] */
    int32_t drafted;      /* nodes below the root */
} drafting;

/* Emits one token, whatever was drafted and scored. */
static spec_status emit_token(drafting *d)
{
    int32_t path[SPECI_MAX_NODE], n_path, next;
    const int32_t root = 0;
    SPEC_TRY(spec_verify(d->s, path, &n_path, &next, d->seq, SPEC_VERIFY_AUTO));
    return spec_commit(d->s, d->seq, &root, 1, next);
}

static spec_status plain_step(drafting *d)
{
    int32_t token, parent = -1;
    spec_tree tree = { .n = 1, .cap = 1, .token = &token, .parent = &parent };
    SPEC_TRY(bench_score(d->s, d->seq, &tree));
    return emit_token(d);
}

static spec_status one(drafting *d, double *ms)
{
    const spec_tree *tree;
    for (int32_t i = 1; i < d->tokens; i++) SPEC_TRY(plain_step(d));
    const double start = speci_now_ms();
    SPEC_TRY(spec_draft(d->s, &tree, &d->seq, 1));
    *ms = speci_now_ms() - start;
    d->drafted = tree->n - 1;
    SPEC_TRY(spec_score(d->s, &d->seq, 1, &tree));
    return emit_token(d);
}

static spec_status times(drafting *d)
{
    const spec_sampling sampling = { .temperature = d->temperature, .seed = 1 };
    double warm;
    SPEC_TRY(bench_sequence(&d->seq, d->s, d->context, &sampling));
    for (int32_t i = 0; i < WARM; i++) SPEC_TRY(one(d, &warm));
    for (int32_t i = 0; i < d->b->o.repeats; i++) SPEC_TRY(one(d, &d->ms[i]));
    return SPEC_OK;
}

static spec_model *drafter_of(const bench *b) { return b->draft_model ? b->draft_model : b->model; }

static spec_status emit(const drafting *d, const spec_builder_info *info)
{
    bench *b = d->b;
    json_t *r = bench_record(b, "draft");
    const double per_level = bench_median(d->ms, b->o.repeats) / (info->n_level > 0 ? info->n_level : 1);
    if (b->draft_model) bench_text(r, "drafter", b->draft_name);
    bench_text(r, "tree", info->text);
    bench_count(r, "nodes", info->n_node);
    bench_count(r, "rows", info->n_row);
    bench_number(r, "drafted", d->drafted);
    bench_count(r, "levels", info->n_level);
    bench_count(r, "tokens", d->tokens);
    if (b->o.token_info) bench_text(r, "token_info", "collapsed");
    bench_text(r, "draft_state", b->o.lab.draft_state == SPEC_DRAFT_STATE_PER_NODE ? "per-node" : "replay");
    bench_number(r, "temperature", (double)d->temperature);
    bench_count(r, "context", d->context);
    bench_times(r, d->ms, b->o.repeats);
    bench_number(r, "level_ms", per_level);
    bench_number(r, "plain_ms", d->plain_ms);
    bench_number(r, "level_over_plain", per_level / d->plain_ms);
    return bench_emit(b, r, bench_draft_floor_ms(b, drafter_of(b), info, d->context));
}

static spec_status measure(drafting *d, spec_builder *builder)
{
    bench *b = d->b;
    spec_builder_info info = { .struct_size = sizeof info };
    spec_drafter_params p = bench_drafter_params(b);
    spec_drafter *drafter = NULL;
    const int32_t n_token = d->tokens * (b->o.repeats + WARM);
    p.builder = builder;
    SPEC_TRY(spec_builder_get_info(builder, &info));
    SPEC_TRY(spec_drafter_from_model(&drafter, drafter_of(b), &p));
    spec_status status = bench_session(&d->s, b, drafter, d->context + n_token + 2 * SPECI_MAX_NODE, 0, 1);
    if (status == SPEC_OK) {
        status = times(d);
        spec_session_close(d->s);
    }
    spec_drafter_close(drafter);
    return status == SPEC_OK ? emit(d, &info) : status;
}

static spec_status each_length(drafting *d, const char *tree)
{
    int32_t tokens[16], n;
    SPEC_TRY(bench_ints(tokens, 16, &n, d->b->o.tokens ? d->b->o.tokens : "1", "--tokens"));
    for (int32_t i = 0; i < n; i++) {
        spec_builder *builder;
        SPEC_TRY(spec_builder_open(&builder, tree, NULL));
        d->tokens = tokens[i];
        const spec_status status = measure(d, builder);
        spec_builder_close(builder);
        SPEC_TRY(status);
    }
    return SPEC_OK;
}

static spec_status each_temperature(drafting *d, const char *tree)
{
    char text[32];
    const char *list = d->b->o.temperature ? d->b->o.temperature : "0";
    for (int32_t i = 0; bench_item(text, sizeof text, list, ',', i); i++) {
        SPEC_TRY(bench_temperature(&d->temperature, text));
        SPEC_TRY(each_length(d, tree));
    }
    return SPEC_OK;
}

static spec_status each_tree(drafting *d)
{
    char tree[512];
    for (int32_t i = 0; bench_item(tree, sizeof tree, d->b->o.tree ? d->b->o.tree : default_trees, ';', i); i++)
        SPEC_TRY(each_temperature(d, tree));
    return SPEC_OK;
}

spec_status bench_draft(bench *b)
{
    bench_plain plain;
    drafting d = { .b = b, .context = b->o.context ? b->o.context : 128 };
    SPEC_TRY(bench_plain_step(&plain, b, d.context));
    d.plain_ms = plain.ms;
    if (!(d.ms = speci_alloc(NULL, (size_t)b->o.repeats, sizeof *d.ms))) return SPEC_E_NOMEM;
    const spec_status status = each_tree(&d);
    speci_free(NULL, d.ms);
    return status;
}
