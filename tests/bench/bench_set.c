/* bench_set.c - the drafters of a session by their names: "ngram:3,15+model". */
#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"

enum { MAX_TEXT = 512 };

static bool is_model(const char *drafter)
{
    return strcmp(drafter, "model") == 0;
}

static spec_status open_drafter(spec_drafter **out, const bench *b, const char *text, const char *tree)
{
    if (!is_model(text)) return spec_drafter_open(out, text, NULL);
    spec_drafter_params p = bench_drafter_params(b);
    p.tree = tree;
    return spec_drafter_from_model(out, b->draft_model, &p);
}

spec_status bench_set_open(bench_set *set, const bench *b, const char *draft, const char *tree)
{
    char text[MAX_TEXT];
    for (int32_t i = 0; draft && bench_item(text, sizeof text, draft, '+', i); i++) {
        if (i == BENCH_MAX_DRAFTER)
            return speci_fail(SPEC_E_UNSUPPORTED, "--draft %s: more than %d drafters", draft, BENCH_MAX_DRAFTER);
        SPEC_TRY(open_drafter(&set->drafters[i], b, text, tree));
        set->n++;
    }
    return SPEC_OK;
}

void bench_set_close(bench_set *set)
{
    for (int32_t i = 0; i < set->n; i++) spec_drafter_close(set->drafters[i]);
}

spec_status bench_set_session(spec_session **s, const bench *b, const bench_set *set, spec_verify_rule rule, int32_t n_ctx,
                              int32_t n_seq)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    p.n_ctx = n_ctx;
    p.n_seq = n_seq;
    p.verify = rule;
    p.drafters = set->drafters, p.n_drafter = set->n;
    p.combine = set->n > 1 ? b->o.combine : SPEC_DRAFT_FIRST;
    p.adapt = set->n > 0 ? b->o.adapt : SPEC_ADAPT_OFF;
    p.profile = set->n > 0 ? b->o.costs : NULL;
    p.lab = &b->o.lab;
    return spec_session_open(s, b->model, NULL, &p);
}

spec_status bench_set_has_model(bool *has, const bench *b, const char *draft)
{
    char text[MAX_TEXT];
    *has = false;
    for (int32_t i = 0; bench_item(text, sizeof text, draft, '+', i); i++) *has |= is_model(text);
    if (*has && !b->draft_model) return speci_fail(SPEC_E_INVALID, "--draft %s: --drafter is missing", draft);
    return SPEC_OK;
}

/* The drafters, the model by its own name. */
static void set_name(char *out, size_t cap, const bench *b, const char *draft)
{
    char text[MAX_TEXT];
    size_t n = 0;
    snprintf(out, cap, "none");
    for (int32_t i = 0; draft && n < cap && bench_item(text, sizeof text, draft, '+', i); i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i > 0 ? "+" : "", is_model(text) ? b->draft_name : text);
}

void bench_set_describe(json_t *r, const bench *b, const char *draft, const char *tree)
{
    static const char *const adapts[] = { "off", "cost", "ucb" }, *const combines[] = { "first", "union", "choose" };
    char name[MAX_TEXT];
    set_name(name, sizeof name, b, draft);
    bench_text(r, "drafter", name);
    bench_text(r, "tree", tree ? tree : "none");
    if (strchr(name, '+')) bench_text(r, "combine", combines[b->o.combine]);
    bench_text(r, "adapt", draft ? adapts[b->o.adapt] : "off");
}
