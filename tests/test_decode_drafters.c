/* test_decode_drafters.c - greedy text with every kind of drafter alone, chained, merged and chosen == plain text, token for token: a
 * transformer, a state-space model, a hybrid and LFM2, 20 prompts x 256 tokens. Each way accepts drafts, and rejects some. The choice
 * goes by the step costs of a large model, so that it drafts on each machine. Needs SPEC_SHARED.
 *
 * Parts, by environment (each empty or unset: all):
 *   SPEC_TEST_TARGET   name of a model
 *   SPEC_TEST_WAY      drafters of a way, as below */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_corpus.h"
#include "tests/support_greedy.h"

enum { N_AT_ONCE = 5, N_LIST = 4, N_OWN = 20, OWN_WIDTH = 24, N_ID = 96 };

/* drafter: its vocabulary is the target's. The first three are trained, and have prompts; the others have random weights. */
typedef struct target {
    const char *name, *drafter;
    bool own;
} target;
static const target targets[] = {
    { "llama-target", "llama-drafter", false },
    { "mamba2-target", "mamba2-drafter", false },
    { "hybrid-target", "mamba2-drafter", false },
    { "lfm2", "lfm2", true },
    { "gemma2", "gemma2", true },
};

typedef struct way {
    const char *drafters; /* of each a letter: n-gram, trie, prompt and corpus n-grams, model, application's */
    spec_draft_combine combine;
    spec_adapt adapt;
} way;
static const way ways[] = {
    { "n", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },     { "t", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },
    { "p", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },     { "m", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },
    { "a", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },     { "nm", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },
    { "tm", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },    { "ntpm", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },
    { "nam", SPEC_DRAFT_FIRST, SPEC_ADAPT_OFF },   { "nm", SPEC_DRAFT_UNION, SPEC_ADAPT_OFF },
    { "ntpm", SPEC_DRAFT_UNION, SPEC_ADAPT_OFF },  { "n", SPEC_DRAFT_FIRST, SPEC_ADAPT_COST },
    { "m", SPEC_DRAFT_FIRST, SPEC_ADAPT_COST },    { "nm", SPEC_DRAFT_UNION, SPEC_ADAPT_COST },
    { "nm", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_COST },  { "ntpm", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_COST },
    { "ntam", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_COST }, { "nm", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_UCB },
    { "ntpm", SPEC_DRAFT_CHOOSE, SPEC_ADAPT_UCB },
};
static const char *const combines[] = { "first", "union", "choose" }, *const adapts[] = { "off", "cost", "ucb" };

static spec_backend *backend;

static bool wanted(const char *variable, const char *name)
{
    const char *only = getenv(variable);
    return !only || !*only || strcmp(only, name) == 0;
}

/* --- drafters --- */

/* The two tokens behind the last one, where that stood before. */
static spec_status propose(void *user_data, spec_draft_request *requests, int32_t n)
{
    (void)user_data;
    for (int32_t i = 0; i < n; i++) {
        spec_draft_request *r = &requests[i];
        int32_t at = (int32_t)r->n_ids - 2;
        while (at >= 0 && r->ids[at] != r->ids[r->n_ids - 1]) at--;
        for (int32_t k = 1; k <= 2 && at >= 0 && at + k < (int32_t)r->n_ids; k++) (void)spec_tree_add(r->tree, k - 1, r->ids[at + k], 0);
    }
    return SPEC_OK;
}

static spec_drafter *open_drafter(char letter, spec_model *model, const char *png)
{
    const spec_drafter_ops ops = { .struct_size = sizeof ops, .draft = propose };
    spec_drafter_params p = SPEC_DRAFTER_PARAMS_INIT;
    spec_drafter *d = NULL;
    p.n_draft = 2;
    if (letter == 'a') OK(spec_drafter_from_ops(&d, &ops, &p));
    p.n_draft = 0, p.tree = "eagle2:4,16,6;chain:3";
    if (letter == 'm') OK(spec_drafter_from_model(&d, model, &p));
    if (letter == 'n') OK(spec_drafter_open(&d, "ngram:3,15", NULL));
    if (letter == 't') OK(spec_drafter_open(&d, "trie:15,8,16", NULL));
    if (letter == 'p') OK(spec_drafter_open(&d, png, NULL));
    return d;
}

/* --- texts --- */

/* A target, its prompts, and what plain decoding says behind them. */
typedef struct scene {
    const target *target;
    spec_model *model, *drafter;
    golden golden;
    int32_t own[N_OWN * OWN_WIDTH];
    greedy_prompts prompts;
    int32_t *plain; /* [prompts.n][GREEDY_NEW] */
    char png[64];   /* of half of these texts */
} scene;

static spec_model *open_model(const target *t, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", t->own ? SPEC_TEST_DIR "/golden" : support_shared(), t->own ? "" : "models/");
    snprintf(path + strlen(path), sizeof path - strlen(path), "%s", name);
    return support_model(backend, path, SPEC_DTYPE_F32);
}

static void open_prompts(scene *c)
{
    char file[600];
    uint64_t random = 11;
    if (c->target->own) {
        for (int32_t i = 0; i < N_OWN * OWN_WIDTH; i++) c->own[i] = (int32_t)(support_random(&random) % N_ID);
        c->prompts = (greedy_prompts){ .n = N_OWN, .width = OWN_WIDTH, .ids = c->own };
        return;
    }
    snprintf(file, sizeof file, "%s/golden/shared/%s.safetensors", SPEC_TEST_DIR, c->target->name);
    support_golden_open(&c->golden, file);
    c->prompts = support_prompts(&c->golden);
}

static void open_scene(scene *c, const target *t)
{
    *c = (scene){ .target = t, .model = open_model(t, t->name), .drafter = open_model(t, t->drafter) };
    open_prompts(c);
    const size_t n = (size_t)c->prompts.n * GREEDY_NEW;
    const greedy_run plain = { .target = c->model, .n_at_once = N_AT_ONCE, .n_new = GREEDY_NEW };
    c->plain = calloc(n, sizeof *c->plain);
    support_greedy(c->plain, NULL, &plain, &c->prompts);
    support_table(c->png, c->plain, (int32_t)n / 2, c->model->n_vocab, 2, 5);
}

static void close_scene(scene *c)
{
    support_table_remove(c->png);
    free(c->plain);
    if (c->golden.header) support_golden_close(&c->golden);
    spec_model_close(c->drafter);
    spec_model_close(c->model);
}

/* --- ways --- */

static int32_t count_wrong(const scene *c, const int32_t *ids, const char *what)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->prompts.n; i++) {
        const int64_t k = support_first_difference(c->plain + i * GREEDY_NEW, ids + i * GREEDY_NEW, GREEDY_NEW);
        if (k < 0) continue;
        n++;
        print_error("%s, %s: prompt %d, token %d is %d, plain %d\n", c->target->name, what, i, (int)k, ids[i * GREEDY_NEW + k],
                    c->plain[i * GREEDY_NEW + k]);
    }
    return n;
}

static void check_way(const scene *c, const way *w)
{
    const int32_t n = (int32_t)strlen(w->drafters);
    int32_t *ids = calloc((size_t)c->prompts.n * GREEDY_NEW, sizeof *ids);
    spec_drafter *list[N_LIST];
    greedy_counts counts = { 0 };
    char what[64];
    for (int32_t k = 0; k < n; k++) list[k] = open_drafter(w->drafters[k], c->drafter, c->png);
    const greedy_run run = { .target = c->model, .n_at_once = N_AT_ONCE, .n_new = GREEDY_NEW, .drafters = list, .n_drafter = n,
                             .combine = w->combine, .adapt = w->adapt,
                             .profile = w->adapt == SPEC_ADAPT_COST ? SPEC_TEST_DIR "/bench/tasks/costs_7b.json" : NULL };
    snprintf(what, sizeof what, "%s, %s, %s", w->drafters, combines[w->combine], adapts[w->adapt]);
    support_greedy(ids, &counts, &run, &c->prompts);
    const int32_t n_wrong = count_wrong(c, ids, what);
    print_message("  %s, %s: %.2f tokens per step, %.0f %% accept a draft, %.0f %% reject one; %d of %d texts differ\n", c->target->name,
                  what, (double)counts.emitted / (double)counts.steps, 100.0 * (double)counts.accepting / (double)counts.steps,
                  100.0 * (double)counts.rejecting / (double)counts.steps, n_wrong, c->prompts.n);
    for (int32_t k = 0; k < n; k++) spec_drafter_close(list[k]);
    free(ids);
    assert_int_equal(n_wrong, 0);
    assert_true(counts.accepting > 0 && counts.rejecting > 0);
}

static void check_target(void **state)
{
    static scene c;
    open_scene(&c, *state);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (wanted("SPEC_TEST_WAY", ways[i].drafters)) check_way(&c, &ways[i]);
    close_scene(&c);
}

int main(void)
{
    enum { N = sizeof targets / sizeof *targets };
    struct CMUnitTest tests[N];
    size_t n = 0;
    if (!support_shared()) {
        printf("SKIPPED: SPEC_SHARED is not set: the trained models are not there\n");
        return 0;
    }
    for (size_t i = 0; i < N; i++)
        if (wanted("SPEC_TEST_TARGET", targets[i].name))
            tests[n++] = (struct CMUnitTest){ targets[i].name, check_target, NULL, NULL, (void *)(uintptr_t)&targets[i] };
    backend = support_backend(); /* SKIPPED, when there is none */
    const int failed = _cmocka_run_group_tests("drafters", tests, n, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
