/* test_drafts.c - trees that a session grows on the device, in batches and with replay, are those of the library's
 * builders on plain arrays under the drafter's plain laws; and the walk over them is that of spec_verify_laws. */
#include "tests/support_drafts.h"
#include "tests/support_greedy.h"

#include <stdio.h>

static spec_backend *backend;

typedef struct setting {
    const char *name, *target, *drafter;
    spec_dtype dtype;
    spec_sampling sampling;
    spec_verify_rule verify;
    int32_t n_node, n_token;
} setting;

#define GOLDEN SPEC_TEST_DIR "/golden/"
#define LAW8 GOLDEN "law8-target", GOLDEN "law8-drafter"
#define DEMO SPEC_TEST_MODELS "/demo-target", SPEC_TEST_MODELS "/demo-drafter"

static const setting settings[] = {
    { "greedy", LAW8, SPEC_DTYPE_F32, { .seed = 0 }, SPEC_VERIFY_AUTO, 0, 48 },
    { "greedy, bf16, fewer nodes", LAW8, SPEC_DTYPE_BF16, { .seed = 0 }, SPEC_VERIFY_GREEDY, 7, 48 },
    { "T = 1", LAW8, SPEC_DTYPE_F32, { .temperature = 1, .seed = 5 }, SPEC_VERIFY_AUTO, 0, 80 },
    { "T = 0.7, top-k 5, fewer nodes", LAW8, SPEC_DTYPE_F32, { .temperature = 0.7f, .top_k = 5, .seed = 6 },
      SPEC_VERIFY_AUTO, 9, 80 },
    { "T = 0.8, top-p 0.9, naive", LAW8, SPEC_DTYPE_BF16, { .temperature = 0.8f, .top_p = 0.9f, .seed = 7 },
      SPEC_VERIFY_NAIVE, 0, 80 },
    { "demo, T = 0.8, top-p 0.9", DEMO, SPEC_DTYPE_F32, { .temperature = 0.8f, .top_p = 0.9f, .seed = 8 },
      SPEC_VERIFY_AUTO, 0, 12 },
};

static void check(void **state)
{
    const setting *t = *state;
    drafts_run run = { .target = support_model(backend, t->target, t->dtype),
                       .drafter = support_model(backend, t->drafter, t->dtype), .sampling = t->sampling,
                       .verify = t->verify, .n_node = t->n_node, .n_token = t->n_token };
    drafts_counts all = { 0 };
    run.plain = run.drafter;
    for (int32_t i = 0; support_trees[i]; i++) {
        drafts_counts c = { 0 };
        run.tree = support_trees[i];
        support_drafts(&c, &run);
        if (c.n_tree_differ > 0 || c.n_walk_differ > 0)
            fail_msg("%s, %s: of %lld trees %lld differ, of %lld walks %lld", t->name, run.tree, (long long)c.n_tree,
                     (long long)c.n_tree_differ, (long long)c.n_walk, (long long)c.n_walk_differ);
        assert_true(c.n_drafted > 0);
        all.n_tree += c.n_tree, all.n_drafted += c.n_drafted, all.n_small += c.n_small;
    }
    print_message("  %s: %lld trees, %lld nodes below their roots, %lld trees near the end\n", t->name,
                  (long long)all.n_tree, (long long)all.n_drafted, (long long)all.n_small);
    assert_true(all.n_small > 0);
    spec_model_close(run.drafter);
    spec_model_close(run.target);
}

int main(void)
{
    enum { N = sizeof settings / sizeof *settings };
    struct CMUnitTest tests[N];
    backend = support_backend();
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){ settings[i].name, check, NULL, NULL, (void *)(uintptr_t)&settings[i] };
    const int failed = _cmocka_run_group_tests("drafts", tests, N, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
