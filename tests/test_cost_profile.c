/* test_cost_profile.c - step costs in a file say what they are of, and a session that is something else tells so. */
#include <stdio.h>
#include <string.h>

#include "tests/support_decode.h"
#include "tests/support_directory.h"
#include "tests/test.h"

#define TARGET SPEC_TEST_DIR "/golden/law8-target"
#define DRAFTER SPEC_TEST_DIR "/golden/law8-drafter"

static char file[128], warned[1000];

static void keep_warning(void *user_data, spec_log_level level, const char *text)
{
    (void)user_data;
    if (level == SPEC_LOG_WARN && strstr(text, "step costs")) snprintf(warned, sizeof warned, "%s", text);
}

/* Opens a session by these costs, and saves what it then has to `to` unless that is NULL. */
static void use(const char *costs, const char *to, int32_t n_threads, spec_dtype dtype, const char *drafter)
{
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_cost_profile profile = { .struct_size = sizeof profile };
    spec_backend *be;
    spec_drafter *dr = NULL;
    bp.n_threads = n_threads, bp.log = keep_warning, p.profile = costs;
    warned[0] = 0;
    OK(spec_backend_open(&be, "cpu:portable", &bp));
    spec_model *target = support_model(be, TARGET, dtype), *small = drafter ? support_model(be, drafter, dtype) : NULL;
    spec_session *s = support_open(target, small, 3, &p, &dr);
    if (to) {
        OK(spec_session_profile(s, &profile));
        assert_non_null(strstr(profile.target_of, "bamba in f32"));
        assert_non_null(strstr(profile.target_of, "cpu:portable, 1 thread"));
        assert_true((profile.draft_of[0] != 0) == (drafter != NULL));
        OK(spec_cost_save(&profile, to));
    }
    spec_session_close(s);
    spec_drafter_close(dr);
    spec_model_close(small);
    spec_model_close(target);
    spec_backend_close(be);
}

static void said_of_another(const char *word)
{
    if (!strstr(warned, word) || !strstr(warned, file)) fail_msg("warned \"%s\"", warned);
}

static void told(void **state)
{
    (void)state;
    snprintf(file, sizeof file, "%s/costs.json", support_directory);
    use(NULL, file, 1, SPEC_DTYPE_F32, DRAFTER);
    use(file, NULL, 1, SPEC_DTYPE_F32, DRAFTER), assert_string_equal(warned, "");
    use(file, NULL, 1, SPEC_DTYPE_F32, NULL), assert_string_equal(warned, "");
    use(file, NULL, 2, SPEC_DTYPE_F32, NULL), said_of_another("another target or machine");
    use(file, NULL, 1, SPEC_DTYPE_BF16, NULL), said_of_another("this is bamba in bf16");
    use(file, NULL, 1, SPEC_DTYPE_F32, TARGET), said_of_another("another drafter or machine");
    use(SPEC_TEST_DIR "/bench/tasks/costs_7b.json", NULL, 1, SPEC_DTYPE_F32, DRAFTER), assert_string_equal(warned, "");
}

/* Costs of a target alone are completed, and say of the drafter what they are of. */
static void completed(void **state)
{
    (void)state;
    snprintf(file, sizeof file, "%s/costs.json", support_directory);
    use(NULL, file, 1, SPEC_DTYPE_F32, NULL);
    use(file, file, 1, SPEC_DTYPE_F32, DRAFTER), assert_string_equal(warned, "");
    use(file, NULL, 1, SPEC_DTYPE_F32, TARGET), said_of_another("another drafter or machine");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(told), cmocka_unit_test(completed) };
    return cmocka_run_group_tests(tests, support_directory_make, support_directory_remove);
}
