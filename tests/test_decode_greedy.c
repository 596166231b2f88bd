/* test_decode_greedy.c - speculative text equals plain text, token for token, with the models that ship and every
 * builder: greedy; sampled under naive verification, where a position's draw depends on the seed alone; some also with
 * the session's named alternatives, for long enough that states are folded more than once. Plain greedy text equals the
 * reference's up to its first near-tie. */
#include <stdlib.h>
#include <string.h>

#include "tests/support_greedy.h"

#define MODELS SPEC_TEST_MODELS "/"
/* Few and short: a row of this target takes milliseconds on the portable kernels. test_decode_matrix.c has more of
 * all. */
enum { N_PROMPT = 2, N_BEGIN = 10, N_NEW = 14, N_LONG = 64, N_REFERENCE = 32 };
#define NEAR_TIE 1e-3f

static spec_backend *backend;

typedef struct setting {
    const char *name;
    spec_dtype dtype;
    int32_t n_at_once;
    float temperature;
    int32_t every, first; /* of all builders every so many, beginning with the first-th */
    spec_dtype weights;
    int32_t n_new;
    spec_scan_form scan;
    spec_advance advance;
    spec_draft_state draft_state;
} setting;

#define USUAL SPEC_SCAN_CHUNKED, SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_REPLAY
static const setting settings[] = {
    { "greedy, f32, batched", SPEC_DTYPE_F32, N_PROMPT, 0.0f, 1, 0, SPEC_DTYPE_AUTO, N_NEW, USUAL },
    { "greedy, f16", SPEC_DTYPE_F16, 1, 0.0f, 4, 3, SPEC_DTYPE_AUTO, N_NEW, USUAL },
    { "greedy, bf16, weights in q8_0", SPEC_DTYPE_BF16, N_PROMPT, 0.0f, 2, 1, SPEC_DTYPE_Q8_0, N_NEW, USUAL },
    { "greedy, bf16, weights in q5_1", SPEC_DTYPE_BF16, N_PROMPT, 0.0f, 2, 1, SPEC_DTYPE_Q5_1, N_NEW, USUAL },
    { "sampled, bf16, batched", SPEC_DTYPE_BF16, N_PROMPT, 0.8f, 1, 0, SPEC_DTYPE_AUTO, N_NEW, USUAL },
    { "sampled, f32", SPEC_DTYPE_F32, 1, 0.8f, 4, 2, SPEC_DTYPE_AUTO, N_NEW, USUAL },
    { "greedy, bf16, long", SPEC_DTYPE_BF16, N_PROMPT, 0.0f, 4, 1, SPEC_DTYPE_AUTO, N_LONG, USUAL },
    { "greedy, bf16, joint", SPEC_DTYPE_BF16, N_PROMPT, 0.0f, 4, 2, SPEC_DTYPE_AUTO, N_LONG, SPEC_SCAN_CHUNKED,
      SPEC_ADVANCE_JOINT, SPEC_DRAFT_STATE_REPLAY },
    { "greedy, f32, recurrent", SPEC_DTYPE_F32, N_PROMPT, 0.0f, 4, 0, SPEC_DTYPE_AUTO, N_LONG, SPEC_SCAN_RECURRENT,
      SPEC_ADVANCE_REPLAY, SPEC_DRAFT_STATE_PER_NODE },
    { "greedy, bf16, recurrent and joint", SPEC_DTYPE_BF16, 1, 0.0f, 4, 3, SPEC_DTYPE_AUTO, N_LONG, SPEC_SCAN_RECURRENT,
      SPEC_ADVANCE_JOINT, SPEC_DRAFT_STATE_REPLAY },
};

/* The whole prompts, which the others are the beginnings of. */
static void reference(void **state)
{
    (void)state;
    golden g;
    support_golden_open(&g, SPEC_TEST_DIR "/golden/shared/demo-target.safetensors");
    const int32_t *want = support_golden_find(&g, "greedy", NULL, NULL);
    const float *gap = support_golden_find(&g, "gap", NULL, NULL);
    greedy_prompts p = support_prompts(&g);
    p.n = N_PROMPT;
    int32_t plain[N_PROMPT * N_REFERENCE];
    const greedy_run run = { .target = support_model(backend, MODELS "demo-target", SPEC_DTYPE_F32),
                             .n_new = N_REFERENCE };
    support_greedy(plain, NULL, &run, &p);
    for (int32_t i = 0; i < N_PROMPT; i++)
        for (int32_t t = 0; t < N_REFERENCE && gap[i * GREEDY_NEW + t] > NEAR_TIE; t++)
            if (plain[i * N_REFERENCE + t] != want[i * GREEDY_NEW + t])
                fail_msg("prompt %d differs from the reference at token %d", i, t);
    spec_model_close(run.target);
    support_golden_close(&g);
}

/* With the counts of all builders but the chain. */
static void check_builder(const setting *t, greedy_run run, const char *tree, const greedy_prompts *p,
                          const int32_t *plain, greedy_counts *c)
{
    int32_t spec[N_PROMPT * N_LONG];
    greedy_counts chain = { 0 };
    run.tree = tree;
    support_greedy(spec, strncmp(tree, "chain", 5) == 0 ? &chain : c, &run, p);
    const int64_t at = support_first_difference(plain, spec, N_PROMPT * t->n_new);
    if (at >= 0)
        fail_msg("%s, %s: prompt %d differs at token %d", t->name, tree, (int)(at / t->n_new),
                 (int)(at % t->n_new));
}

static void check(void **state)
{
    const setting *t = *state;
    const spec_sampling sampling = { .temperature = t->temperature, .top_p = 0.9f, .seed = 11 };
    golden g;
    support_golden_open(&g, SPEC_TEST_DIR "/golden/shared/demo-target.safetensors");
    greedy_prompts p = support_prompts(&g);
    p.n = N_PROMPT, p.most = N_BEGIN;
    greedy_run run = { .target = support_model_of(backend, MODELS "demo-target", t->dtype, t->weights),
                       .n_new = t->n_new, .n_at_once = t->n_at_once, .scan = t->scan, .advance = t->advance,
                       .draft_state = t->draft_state };
    if (t->temperature > 0) run.sampling = &sampling, run.verify = SPEC_VERIFY_NAIVE;
    int32_t plain[N_PROMPT * N_LONG];
    greedy_counts c = { 0 };
    support_greedy(plain, &c, &run, &p);
    assert_int_equal(c.accepted, 0);
    run.drafter = support_model_of(backend, MODELS "demo-drafter", t->dtype, t->weights);
    memset(&c, 0, sizeof c);
    for (int32_t i = 0; support_trees[i]; i++)
        if (i % t->every == t->first) check_builder(t, run, support_trees[i], &p, plain, &c);
    print_message("  %s: %lld steps in trees, %lld accept a draft, %lld reject one, %lld on a branch\n", t->name,
                  (long long)c.steps, (long long)c.accepting, (long long)c.rejecting, (long long)c.branched);
    assert_true(c.accepting * 5 >= c.steps && c.rejecting * 5 >= c.steps && c.branched * 20 >= c.steps);
    spec_model_close(run.drafter);
    spec_model_close(run.target);
    support_golden_close(&g);
}

int main(void)
{
    enum { N = sizeof settings / sizeof *settings };
    struct CMUnitTest tests[N + 1] = { cmocka_unit_test(reference) };
    backend = support_backend();
    for (size_t i = 0; i < N; i++)
        tests[i + 1] = (struct CMUnitTest){ settings[i].name, check, NULL, NULL, (void *)(uintptr_t)&settings[i] };
    const int failed = _cmocka_run_group_tests("greedy", tests, N + 1, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
