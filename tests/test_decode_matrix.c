/* test_decode_matrix.c - greedy speculative == greedy plain: 3 targets x 3 drafters, 20 prompts x 256 tokens,
 * K = 1, 2, 4, 8, float32 and bfloat16. Over the matrix at least 20 % of steps accept a draft and 20 % reject one; plain
 * float32 text equals the reference's greedy ids up to the first top-2 gap under 1e-3. Needs SPEC_SHARED. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_greedy.h"

enum { N_AT_ONCE = 20 };
#define NEAR_TIE 1e-3f

static const char *const targets[] = { "llama-target", "hybrid-target", "mamba2-target" };
static const char *const drafters[] = { "llama-drafter", "mamba-drafter", "mamba2-drafter" };
static spec_backend *backend;
static greedy_counts total;

static spec_model *open_shared(const char *name, spec_dtype dtype)
{
    char path[600];
    snprintf(path, sizeof path, "%s/models/%s", support_shared(), name);
    return support_model(backend, path, dtype);
}

static void check_reference(const golden *g, const int32_t *plain, const greedy_prompts *p, const char *name)
{
    const int32_t *want = support_golden_find(g, "greedy", NULL, NULL);
    const float *gap = support_golden_find(g, "gap", NULL, NULL);
    int64_t n_equal = 0;
    for (int32_t i = 0; i < p->n; i++)
        for (int32_t t = 0; t < GREEDY_NEW; t++) {
            const int32_t k = i * GREEDY_NEW + t;
            if (gap[k] <= NEAR_TIE) break;
            if (plain[k] != want[k]) fail_msg("%s: prompt %d differs from the reference at token %d", name, i, t);
            n_equal++;
        }
    print_message("  %s: %lld tokens equal the reference's\n", name, (long long)n_equal);
}

static void check_pair(const char *target_name, spec_model *target, const char *drafter_name, spec_dtype dtype,
                       const greedy_prompts *p, const int32_t *plain, int32_t *spec)
{
    spec_model *drafter = open_shared(drafter_name, dtype);
    greedy_counts c = { 0 };
    for (int32_t k = 1; k <= 8; k *= 2) {
        support_greedy(spec, &c, target, drafter, k, p, N_AT_ONCE);
        const int64_t at = support_first_difference(plain, spec, (int64_t)p->n * GREEDY_NEW);
        if (at >= 0)
            fail_msg("%s + %s, %s, K = %d: prompt %d differs at token %d", target_name, drafter_name,
                     spec_dtype_name(dtype), k, (int)(at / GREEDY_NEW), (int)(at % GREEDY_NEW));
    }
    print_message("  %-14s + %-14s %-4s %6lld steps, %2.0f %% accept a draft, %2.0f %% reject one, %.2f emitted\n",
                  target_name, drafter_name, spec_dtype_name(dtype), (long long)c.steps,
                  100.0 * (double)c.accepting / (double)c.steps, 100.0 * (double)c.rejecting / (double)c.steps,
                  1.0 + (double)c.accepted / (double)c.steps);
    total.steps += c.steps, total.accepting += c.accepting, total.rejecting += c.rejecting;
    spec_model_close(drafter);
}

static void check_target(const char *name, spec_dtype dtype)
{
    char file[600];
    golden g;
    snprintf(file, sizeof file, "%s/golden/shared/%s.safetensors", SPEC_TEST_DIR, name);
    support_golden_open(&g, file);
    const greedy_prompts p = support_prompts(&g);
    int32_t *plain = calloc((size_t)p.n * GREEDY_NEW, sizeof *plain), *spec = calloc((size_t)p.n * GREEDY_NEW, sizeof *spec);
    greedy_counts none = { 0 };
    spec_model *target = open_shared(name, dtype);
    support_greedy(plain, &none, target, NULL, 0, &p, N_AT_ONCE);
    if (dtype == SPEC_DTYPE_F32) check_reference(&g, plain, &p, name);
    for (size_t d = 0; d < sizeof drafters / sizeof *drafters; d++)
        check_pair(name, target, drafters[d], dtype, &p, plain, spec);
    spec_model_close(target);
    free(plain);
    free(spec);
    support_golden_close(&g);
}

static void matrix(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
        check_target(targets[t], SPEC_DTYPE_F32);
        check_target(targets[t], SPEC_DTYPE_BF16);
    }
    print_message("  %lld steps, %lld accept a draft, %lld reject one\n", (long long)total.steps,
                  (long long)total.accepting, (long long)total.rejecting);
    assert_true(total.accepting * 5 >= total.steps && total.rejecting * 5 >= total.steps);
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
