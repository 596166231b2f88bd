/* test_decode_matrix.c - speculative text == plain text, token for token: 3 targets x 3 drafters, every builder, 20
 * prompts x 256 tokens, float32 and bfloat16, greedy; and x 64 tokens, sampled (T = 0.8, top-p 0.9) under naive
 * verification. Of the steps at least 20 % accept a draft and 20 % reject one, and in trees at least 5 % accept a
 * node that is not a first child. Plain float32 greedy text equals the reference's up to the first top-2 gap under
 * 1e-3. Needs SPEC_SHARED.
 *
 * Parts, by environment (each empty or unset: all):
 *   SPEC_TEST_TARGET, SPEC_TEST_DRAFTER   names of models
 *   SPEC_TEST_DTYPE                       f32 or bf16
 *   SPEC_TEST_HOW                         greedy or sampled
 *   SPEC_TEST_TREES                       builders, separated by ';', in place of one of every kind */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_greedy.h"

enum { N_AT_ONCE = 20, N_SAMPLED = 64, MAX_TREE = 32 };
#define NEAR_TIE 1e-3f

static const char *const targets[] = { "llama-target", "hybrid-target", "mamba2-target" };
static const char *const drafters[] = { "llama-drafter", "mamba-drafter", "mamba2-drafter" };
static const spec_dtype dtypes[] = { SPEC_DTYPE_F32, SPEC_DTYPE_BF16 };
static const char *const hows[] = { "greedy", "sampled" };
enum { N_TARGET = 3, N_DRAFTER = 3, N_DTYPE = 2, N_HOW = 2 };
static const spec_sampling sampling = { .temperature = 0.8f, .top_p = 0.9f, .seed = 1 };

/* A target's plain texts. */
typedef struct plain_text {
    const char *target, *how;
    spec_dtype dtype;
    const golden *golden;
    greedy_run run;
    greedy_prompts prompts;
    int32_t *ids;
} plain_text;

/* A text and a drafter, by every tree. */
typedef struct pair {
    const plain_text *text;
    const char *drafter;
    spec_model *model;
} pair;

/* One tree of it. */
typedef struct job {
    const pair *pair;
    const char *tree;
    greedy_counts counts;
    int64_t n_wrong;
} job;

static spec_backend *backend;
static golden goldens[N_TARGET];
static spec_model *target_models[N_TARGET][N_DTYPE], *drafter_models[N_DRAFTER][N_DTYPE];
static plain_text texts[N_TARGET * N_DTYPE * N_HOW];
static pair pairs[N_TARGET * N_DTYPE * N_HOW * N_DRAFTER];
static job jobs[N_TARGET * N_DTYPE * N_HOW * N_DRAFTER * MAX_TREE];
static int32_t n_text, n_pair, n_job;

/* --- what is wanted --- */

static bool wanted(const char *variable, const char *name)
{
    const char *only = getenv(variable);
    return !only || !*only || strcmp(only, name) == 0;
}

static int32_t trees_wanted(const char **trees)
{
    static char text[1024];
    const char *list = getenv("SPEC_TEST_TREES");
    int32_t n = 0;
    if (!list || !*list) {
        while (support_trees[n]) trees[n] = support_trees[n], n++;
        return n;
    }
    snprintf(text, sizeof text, "%s", list);
    for (char *t = strtok(text, ";"); t && n < MAX_TREE; t = strtok(NULL, ";")) trees[n++] = t;
    return n;
}

static spec_model *open_shared(const char *name, spec_dtype dtype)
{
    char path[600];
    snprintf(path, sizeof path, "%s/models/%s", support_shared(), name);
    return support_model(backend, path, dtype);
}

static void add_pairs(const plain_text *t, int32_t dtype, const char *const *trees, int32_t n_tree)
{
    for (int32_t d = 0; d < N_DRAFTER; d++) {
        if (!wanted("SPEC_TEST_DRAFTER", drafters[d])) continue;
        spec_model **model = &drafter_models[d][dtype];
        if (!*model) *model = open_shared(drafters[d], dtypes[dtype]);
        pairs[n_pair] = (pair){ t, drafters[d], *model };
        for (int32_t i = 0; i < n_tree; i++) jobs[n_job++] = (job){ .pair = &pairs[n_pair], .tree = trees[i] };
        n_pair++;
    }
}

static void add_target(int32_t target, int32_t dtype, const char *const *trees, int32_t n_tree)
{
    golden *g = &goldens[target];
    char file[600];
    snprintf(file, sizeof file, "%s/golden/shared/%s.safetensors", SPEC_TEST_DIR, targets[target]);
    if (!g->header) support_golden_open(g, file);
    spec_model *model = target_models[target][dtype] = open_shared(targets[target], dtypes[dtype]);
    for (int32_t h = 0; h < N_HOW; h++) {
        if (!wanted("SPEC_TEST_HOW", hows[h])) continue;
        plain_text *t = &texts[n_text++];
        *t = (plain_text){ .target = targets[target], .how = hows[h], .dtype = dtypes[dtype], .golden = g,
                           .run = { .target = model, .n_at_once = N_AT_ONCE, .n_new = GREEDY_NEW },
                           .prompts = support_prompts(g) };
        if (h == 1) t->run.sampling = &sampling, t->run.verify = SPEC_VERIFY_NAIVE, t->run.n_new = N_SAMPLED;
        t->ids = calloc((size_t)t->prompts.n * (size_t)t->run.n_new, sizeof *t->ids);
        add_pairs(t, dtype, trees, n_tree);
    }
}

/* --- the texts --- */

static void decode_plainly(void *arg, int32_t i)
{
    const plain_text *t = (const plain_text *)arg + i;
    support_greedy(t->ids, NULL, &t->run, &t->prompts);
}

static void check_reference(const plain_text *t)
{
    const int32_t *want = support_golden_find(t->golden, "greedy", NULL, NULL);
    const float *gap = support_golden_find(t->golden, "gap", NULL, NULL);
    int64_t n_equal = 0;
    for (int32_t i = 0; i < t->prompts.n; i++)
        for (int32_t k = i * GREEDY_NEW; k < (i + 1) * GREEDY_NEW && gap[k] > NEAR_TIE; k++, n_equal++)
            if (t->ids[k] != want[k])
                fail_msg("%s: prompt %d differs from the reference at token %d", t->target, i, k % GREEDY_NEW);
    print_message("  %s: %lld tokens equal the reference's\n", t->target, (long long)n_equal);
}

static void compare(job *j, const int32_t *spec)
{
    const plain_text *t = j->pair->text;
    const int32_t n = t->run.n_new;
    for (int32_t i = 0; i < t->prompts.n; i++) {
        const size_t at = (size_t)i * (size_t)n;
        const int64_t k = support_first_difference(t->ids + at, spec + at, n);
        if (k < 0) continue;
        j->n_wrong++;
        print_error("%s %s + %s, %s, %s: prompt %d, token %d is %d, plain %d\n", t->target, spec_dtype_name(t->dtype),
                    j->pair->drafter, t->how, j->tree, i, (int)k, spec[at + (size_t)k], t->ids[at + (size_t)k]);
    }
}

static void print_counts(const job *j)
{
    const plain_text *t = j->pair->text;
    const greedy_counts *c = &j->counts;
    const double n = c->steps > 0 ? (double)c->steps : 1;
    print_message("  %s %s + %s, %s, %s: %.2f tokens per step, %.1f nodes, %.0f %% accept a draft, %.0f %% reject one, "
                  "%.1f %% on a branch; %lld of %d texts differ\n", t->target, spec_dtype_name(t->dtype),
                  j->pair->drafter, t->how, j->tree, (double)c->emitted / n, 1 + (double)c->drafted / n,
                  100 * (double)c->accepting / n, 100 * (double)c->rejecting / n, 100 * (double)c->branched / n,
                  (long long)j->n_wrong, t->prompts.n);
}

static void decode_by_tree(void *arg, int32_t i)
{
    job *j = (job *)arg + i;
    const plain_text *t = j->pair->text;
    greedy_run run = t->run;
    int32_t *spec = calloc((size_t)t->prompts.n * (size_t)run.n_new, sizeof *spec);
    run.drafter = j->pair->model, run.tree = j->tree;
    support_greedy(spec, &j->counts, &run, &t->prompts);
    compare(j, spec);
    print_counts(j);
    free(spec);
}

/* Of all trees together: a matrix in which nothing is accepted, or nothing rejected, shows nothing. */
static void check_counts(const pair *p)
{
    greedy_counts all = { 0 }, branching = { 0 };
    for (int32_t i = 0; i < n_job; i++) {
        const greedy_counts *c = &jobs[i].counts;
        if (jobs[i].pair != p) continue;
        assert_int_equal(jobs[i].n_wrong, 0);
        all.steps += c->steps, all.accepting += c->accepting, all.rejecting += c->rejecting;
        if (strncmp(jobs[i].tree, "chain", 5) != 0) branching.steps += c->steps, branching.branched += c->branched;
    }
    assert_true(all.accepting * 5 >= all.steps && all.rejecting * 5 >= all.steps);
    assert_true(branching.branched * 20 >= branching.steps);
}

static void matrix(void **state)
{
    (void)state;
    support_share(n_text, decode_plainly, texts);
    for (int32_t i = 0; i < n_text; i++)
        if (!texts[i].run.sampling && texts[i].dtype == SPEC_DTYPE_F32) check_reference(&texts[i]);
    support_share(n_job, decode_by_tree, jobs);
    for (int32_t i = 0; i < n_pair; i++) check_counts(&pairs[i]);
}

static int open_all(void **state)
{
    (void)state;
    const char *trees[MAX_TREE];
    const int32_t n_tree = trees_wanted(trees);
    backend = support_backend();
    for (int32_t t = 0; t < N_TARGET; t++)
        for (int32_t d = 0; d < N_DTYPE; d++)
            if (wanted("SPEC_TEST_TARGET", targets[t]) && wanted("SPEC_TEST_DTYPE", spec_dtype_name(dtypes[d])))
                add_target(t, d, trees, n_tree);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int32_t i = 0; i < n_text; i++) free(texts[i].ids);
    for (int32_t i = 0; i < N_TARGET * N_DTYPE; i++) spec_model_close(target_models[i / N_DTYPE][i % N_DTYPE]);
    for (int32_t i = 0; i < N_DRAFTER * N_DTYPE; i++) spec_model_close(drafter_models[i / N_DTYPE][i % N_DTYPE]);
    for (int32_t i = 0; i < N_TARGET; i++)
        if (goldens[i].header) support_golden_close(&goldens[i]);
    spec_backend_close(backend);
    return 0;
}

int main(void)
{
    if (!support_shared()) {
        printf("SKIPPED: SPEC_SHARED is not set: the trained models are not there\n");
        return 0;
    }
    spec_backend_close(support_backend()); /* SKIPPED, when there is none */
    const struct CMUnitTest tests[] = { cmocka_unit_test(matrix) };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
