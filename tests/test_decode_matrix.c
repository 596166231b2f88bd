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

enum { N_AT_ONCE = 20, N_SAMPLED = 64, MAX_TREES = 32 };
#define NEAR_TIE 1e-3f

static const char *const targets[] = { "llama-target", "hybrid-target", "mamba2-target" };
static const char *const drafters[] = { "llama-drafter", "mamba-drafter", "mamba2-drafter" };
static const spec_dtype dtypes[] = { SPEC_DTYPE_F32, SPEC_DTYPE_BF16 };
static spec_backend *backend;
static int64_t n_wrong;

static bool wanted(const char *variable, const char *name)
{
    const char *only = getenv(variable);
    return !only || !*only || strcmp(only, name) == 0;
}

static int32_t trees_wanted(const char **trees, char *text, size_t cap)
{
    const char *list = getenv("SPEC_TEST_TREES");
    int32_t n = 0;
    if (!list || !*list) {
        while (support_trees[n]) trees[n] = support_trees[n], n++;
        return n;
    }
    snprintf(text, cap, "%s", list);
    for (char *t = strtok(text, ";"); t && n < MAX_TREES; t = strtok(NULL, ";")) trees[n++] = t;
    return n;
}

static spec_model *open_shared(const char *name, spec_dtype dtype)
{
    char path[600];
    snprintf(path, sizeof path, "%s/models/%s", support_shared(), name);
    return support_model(backend, path, dtype);
}

/* A target's plain texts: greedy, and sampled. */
typedef struct plain_text {
    const char *target, *how;
    spec_dtype dtype;
    greedy_run run;
    greedy_prompts prompts;
    int32_t *ids;
} plain_text;

static void check_reference(const golden *g, const plain_text *t)
{
    const int32_t *want = support_golden_find(g, "greedy", NULL, NULL);
    const float *gap = support_golden_find(g, "gap", NULL, NULL);
    int64_t n_equal = 0;
    for (int32_t i = 0; i < t->prompts.n; i++)
        for (int32_t k = i * GREEDY_NEW; k < (i + 1) * GREEDY_NEW && gap[k] > NEAR_TIE; k++, n_equal++)
            if (t->ids[k] != want[k])
                fail_msg("%s: prompt %d differs from the reference at token %d", t->target, i, k % GREEDY_NEW);
    print_message("  %s: %lld tokens equal the reference's\n", t->target, (long long)n_equal);
}

static void compare(const plain_text *t, const char *drafter, const char *tree, const int32_t *spec)
{
    const int32_t n = t->run.n_new;
    for (int32_t i = 0; i < t->prompts.n; i++) {
        const size_t at = (size_t)i * (size_t)n;
        const int64_t k = support_first_difference(t->ids + at, spec + at, n);
        if (k < 0) continue;
        n_wrong++;
        print_error("%s %s + %s, %s, %s: prompt %d, token %d is %d, plain %d\n", t->target, spec_dtype_name(t->dtype),
                    drafter, t->how, tree, i, (int)k, spec[at + (size_t)k], t->ids[at + (size_t)k]);
    }
}

static void print_counts(const char *name, const greedy_counts *c)
{
    const double n = c->steps > 0 ? (double)c->steps : 1;
    print_message("    %-26s %6.2f tokens per step, %5.1f nodes, %3.0f %% accept a draft, %3.0f %% reject one, "
                  "%4.1f %% on a branch\n", name, (double)c->emitted / n, 1 + (double)c->drafted / n,
                  100 * (double)c->accepting / n, 100 * (double)c->rejecting / n, 100 * (double)c->branched / n);
}

static void check_pair(const plain_text *t, const char *drafter)
{
    const char *trees[MAX_TREES];
    char text[1024];
    const int32_t n_tree = trees_wanted(trees, text, sizeof text);
    int32_t *spec = calloc((size_t)t->prompts.n * GREEDY_NEW, sizeof *spec);
    greedy_run run = t->run;
    greedy_counts all = { 0 }, branching = { 0 };
    run.drafter = open_shared(drafter, t->dtype);
    print_message("  %s %s + %s, %s\n", t->target, spec_dtype_name(t->dtype), drafter, t->how);
    for (int32_t i = 0; i < n_tree; i++) {
        greedy_counts c = { 0 };
        run.tree = trees[i];
        support_greedy(spec, &c, &run, &t->prompts);
        compare(t, drafter, trees[i], spec);
        print_counts(trees[i], &c);
        all.steps += c.steps, all.accepting += c.accepting, all.rejecting += c.rejecting;
        if (strncmp(trees[i], "chain", 5) != 0) branching.steps += c.steps, branching.branched += c.branched;
    }
    spec_model_close(run.drafter);
    free(spec);
    assert_true(all.accepting * 5 >= all.steps && all.rejecting * 5 >= all.steps);
    assert_true(branching.branched * 20 >= branching.steps);
}

static void check_text(plain_text *t, const golden *g)
{
    if (!wanted("SPEC_TEST_HOW", t->how)) return;
    support_greedy(t->ids, NULL, &t->run, &t->prompts);
    if (!t->run.sampling && t->dtype == SPEC_DTYPE_F32) check_reference(g, t);
    for (size_t d = 0; d < sizeof drafters / sizeof *drafters; d++)
        if (wanted("SPEC_TEST_DRAFTER", drafters[d])) check_pair(t, drafters[d]);
}

static void check_target(const char *name, spec_dtype dtype)
{
    const spec_sampling sampling = { .temperature = 0.8f, .top_p = 0.9f, .seed = 1 };
    char file[600];
    golden g;
    snprintf(file, sizeof file, "%s/golden/shared/%s.safetensors", SPEC_TEST_DIR, name);
    support_golden_open(&g, file);
    plain_text t = { .target = name, .dtype = dtype, .how = "greedy", .prompts = support_prompts(&g),
                     .run = { .target = open_shared(name, dtype), .n_at_once = N_AT_ONCE, .n_new = GREEDY_NEW } };
    t.ids = calloc((size_t)t.prompts.n * GREEDY_NEW, sizeof *t.ids);
    check_text(&t, &g);
    t.how = "sampled", t.run.sampling = &sampling, t.run.verify = SPEC_VERIFY_NAIVE, t.run.n_new = N_SAMPLED;
    check_text(&t, &g);
    spec_model_close(t.run.target);
    free(t.ids);
    support_golden_close(&g);
}

static void matrix(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            if (wanted("SPEC_TEST_TARGET", targets[t]) && wanted("SPEC_TEST_DTYPE", spec_dtype_name(dtypes[d])))
                check_target(targets[t], dtypes[d]);
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    if (!support_shared()) {
        printf("SKIPPED: SPEC_SHARED is not set: the trained models are not there\n");
        return 0;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(matrix) };
    backend = support_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
