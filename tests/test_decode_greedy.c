/* test_decode_greedy.c - greedy speculative text equals greedy plain text, token for token, with the models that ship;
 * plain text equals the reference's up to its first near-tie. */
#include <stdlib.h>
#include <string.h>

#include "tests/support_greedy.h"

#define MODELS SPEC_TEST_MODELS "/"
enum { N_PROMPT = 4 };
#define NEAR_TIE 1e-3f

static spec_backend *backend;

static void check(spec_dtype dtype, int32_t n_at_once)
{
    golden g;
    support_golden_open(&g, SPEC_TEST_DIR "/golden/shared/demo-target.safetensors");
    greedy_prompts p = support_prompts(&g);
    p.n = N_PROMPT;
    spec_model *target = support_model(backend, MODELS "demo-target", dtype);
    spec_model *drafter = support_model(backend, MODELS "demo-drafter", dtype);
    static int32_t plain[N_PROMPT * GREEDY_NEW], spec[N_PROMPT * GREEDY_NEW];
    greedy_counts c = { 0 };
    support_greedy(plain, &c, target, NULL, 0, &p, 1);
    assert_int_equal(c.accepted, 0);
    memset(&c, 0, sizeof c);
    for (int32_t k = 1; k <= 8; k *= 2) {
        support_greedy(spec, &c, target, drafter, k, &p, n_at_once);
        const int64_t at = support_first_difference(plain, spec, N_PROMPT * GREEDY_NEW);
        if (at >= 0)
            fail_msg("K = %d: prompt %d differs at token %d", k, (int)(at / GREEDY_NEW), (int)(at % GREEDY_NEW));
    }
    print_message("  %lld steps, %lld accept a draft, %lld reject one\n", (long long)c.steps, (long long)c.accepting,
                  (long long)c.rejecting);
    assert_true(c.accepting * 5 >= c.steps && c.rejecting * 5 >= c.steps);
    if (dtype == SPEC_DTYPE_F32) {
        const int32_t *want = support_golden_find(&g, "greedy", NULL, NULL);
        const float *gap = support_golden_find(&g, "gap", NULL, NULL);
        for (int32_t i = 0; i < N_PROMPT; i++)
            for (int32_t t = 0; t < GREEDY_NEW && gap[i * GREEDY_NEW + t] > NEAR_TIE; t++)
                if (plain[i * GREEDY_NEW + t] != want[i * GREEDY_NEW + t])
                    fail_msg("prompt %d differs from the reference at token %d", i, t);
    }
    spec_model_close(drafter);
    spec_model_close(target);
    support_golden_close(&g);
}

static void greedy_f32(void **state) { (void)state, check(SPEC_DTYPE_F32, 1); }
static void greedy_bf16(void **state) { (void)state, check(SPEC_DTYPE_BF16, 1); }
static void greedy_f16(void **state) { (void)state, check(SPEC_DTYPE_F16, 3); }
static void greedy_batched(void **state) { (void)state, check(SPEC_DTYPE_BF16, 4); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_f32), cmocka_unit_test(greedy_bf16), cmocka_unit_test(greedy_f16),
        cmocka_unit_test(greedy_batched),
    };
    backend = support_backend();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
