/* test_rope_long.c - rope_type "longrope" at and beyond the original length, 32 here: in sessions that cannot feed more, logits
 * are those of a sequence of 32 by the reference; in longer ones, those of a sequence of 64, from the first position on. */
#include "tests/support_decode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 1e-4

enum { ORIGINAL = 32, LONGEST = 64, COLS = 96 };

static const char *const models[] = { SPEC_TEST_DIR "/golden/phi3-long",
                                      SPEC_TEST_DIR "/golden/phi4_mini" }; /* of the latter's heads a part turns */
static const char *path; /* of them the one that is tested */
static spec_backend *backend;
static spec_model *model;
static golden reference;
static const int32_t *ids;

static spec_session *session_of(int32_t n_ctx)
{
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s = NULL;
    p.n_ctx = n_ctx;
    OK(spec_session_open(&s, model, NULL, &p));
    return s;
}

/* A sequence of which n ids are admitted, the last as the pending one. */
static int32_t add(spec_session *s, int32_t n)
{
    int32_t seq;
    OK(spec_sequence_add(s, &seq, ids, (size_t)n, NULL));
    return seq;
}

static void expect_row(spec_session *s, int32_t seq, int32_t t, const float *want, const char *how)
{
    float row[COLS];
    support_plain_step(s, seq, ids[t], ids[t + 1 < LONGEST ? t + 1 : t], row);
    const double e = support_error(row, want + t * COLS, COLS);
    if (!(e <= TOLERANCE)) fail_msg("%s, position %d: max error / max logit is %.3g", how, t, e);
}

/* n tokens are fed, by steps and by prefill. */
static void expect(int32_t n_ctx, int32_t n, const char *tensor)
{
    int64_t cols;
    const float *want = support_golden_find(&reference, tensor, NULL, &cols);
    assert_int_equal(cols, COLS);
    spec_session *s = session_of(n_ctx);
    int32_t seq = add(s, 1);
    for (int32_t t = 0; t < n; t++) expect_row(s, seq, t, want, "steps");
    OK(spec_sequence_remove(s, seq));
    seq = add(s, n);
    expect_row(s, seq, n - 1, want, "prefill");
    spec_session_close(s);
}

/* The last token of a context is never fed. */
static void up_to_the_original_length(void **state)
{
    (void)state;
    expect(ORIGINAL, ORIGINAL - 1, "logits.short");
    expect(ORIGINAL + 1, ORIGINAL, "logits.short");
}

static void beyond_it(void **state)
{
    (void)state;
    expect(ORIGINAL + 2, ORIGINAL + 1, "logits");
    expect(LONGEST + 1, LONGEST, "logits");
    expect(0, LONGEST, "logits");
}

/* A model whose length is the original one goes on behind it all the same, with the long factors. The attention factor, which follows from
 * the length, is then said. */
static void beyond_its_length(void **state)
{
    char dir[64], at[512];
    spec_model *const whole = model;
    json_t *root;
    (void)state;
    snprintf(at, sizeof at, "%s/config.json", path);
    OK(speci_json_read(&root, at, 1 << 16, NULL));
    const double length = json_number_value(json_object_get(root, "max_position_embeddings"));
    json_object_set_new(root, "max_position_embeddings", json_integer(ORIGINAL));
    json_object_set_new(json_object_get(root, "rope_scaling"), "attention_factor",
                        json_real(sqrt(1 + log(length / ORIGINAL) / log(ORIGINAL))));
    char *text = json_dumps(root, 0);
    const variant_file file = { "config.json", text };
    support_variant(dir, path, &file, 1);
    model = support_model(backend, dir, SPEC_DTYPE_F32);
    expect(ORIGINAL, ORIGINAL - 1, "logits.short");
    expect(ORIGINAL + 2, ORIGINAL + 1, "logits");
    expect(LONGEST + 1, LONGEST, "logits");
    spec_model_close(model);
    model = whole;
    support_variant_remove(dir);
    json_decref(root);
    free(text);
}

/* 20 tokens, saved and removed. */
static void save(spec_session *s, support_stream *f)
{
    const int32_t seq = add(s, 20);
    *f = (support_stream){ 0 };
    OK(spec_sequence_save(s, seq, support_to_stream, f));
    OK(spec_sequence_remove(s, seq));
}

/* A saved sequence goes on in sessions whose keys turn as its own do, and is refused by others. */
static void saved_sequences(void **state)
{
    support_stream f;
    int32_t seq = -1;
    (void)state;
    spec_session *s = session_of(ORIGINAL + 1), *other = session_of(ORIGINAL), *large = session_of(LONGEST);
    save(s, &f);
    FAILS(spec_sequence_restore(large, &seq, support_from_stream, &f), SPEC_E_FORMAT, "n_ctx was at most 33");
    f.at = 0;
    OK(spec_sequence_restore(other, &seq, support_from_stream, &f));
    expect_row(other, seq, 19, support_golden_find(&reference, "logits.short", NULL, NULL), "restored");
    free(f.data);
    save(large, &f);
    FAILS(spec_sequence_restore(s, &seq, support_from_stream, &f), SPEC_E_FORMAT, "n_ctx was beyond 33");
    free(f.data);
    spec_session_close(large);
    spec_session_close(other);
    spec_session_close(s);
}

static void on_log(void *text, spec_log_level level, const char *line)
{
    if (level == SPEC_LOG_WARN) snprintf(text, 256, "%s", line);
}

/* A session whose short texts are not the reference's says so. */
static void warned(void **state)
{
    char text[256] = "";
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_backend *be = NULL;
    spec_session *s = NULL;
    (void)state;
    bp.log = on_log, bp.log_user_data = text;
    OK(spec_backend_open(&be, "cpu:portable", &bp));
    spec_model *m = support_model(be, path, SPEC_DTYPE_F32);
    for (int k = 1; k <= 2; k++) {
        sp.n_ctx = ORIGINAL + k;
        OK(spec_session_open(&s, m, NULL, &sp));
        spec_session_close(s);
        assert_int_equal(strstr(text, "a context of 34 tokens has RoPE's long factors") != NULL, k == 2);
    }
    spec_model_close(m);
    spec_backend_close(be);
}

/* rope_type "dynamic" is as default up to max_position_embeddings (test_logits_families.c); beyond, nothing is promised. */
static void dynamic_ends(void **state)
{
    char dir[64], *text = support_json_with(SPEC_TEST_DIR "/golden/llama2", "config.json",
                                            "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4},"
                                            "\"max_position_embeddings\":40}");
    const variant_file file = { "config.json", text };
    spec_session_params p = SPEC_SESSION_PARAMS_INIT;
    spec_session *s = NULL;
    (void)state;
    support_variant(dir, SPEC_TEST_DIR "/golden/llama2", &file, 1);
    spec_model *m = support_model(backend, dir, SPEC_DTYPE_F32);
    p.n_ctx = 41;
    FAILS(spec_session_open(&s, m, NULL, &p), SPEC_E_UNSUPPORTED, "change with each token behind 40");
    p.n_ctx = 40;
    OK(spec_session_open(&s, m, NULL, &p));
    spec_session_close(s);
    spec_model_close(m);
    support_variant_remove(dir);
    free(text);
}

static int test_model(const char *at)
{
    char golden_file[512];
    const struct CMUnitTest tests[] = { cmocka_unit_test(up_to_the_original_length), cmocka_unit_test(beyond_it),
                                        cmocka_unit_test(beyond_its_length),
                                        cmocka_unit_test(saved_sequences), cmocka_unit_test(warned),
                                        cmocka_unit_test(dynamic_ends) };
    path = at;
    snprintf(golden_file, sizeof golden_file, "%s/golden.safetensors", path);
    model = support_model(backend, path, SPEC_DTYPE_F32);
    support_golden_open(&reference, golden_file);
    ids = support_golden_find(&reference, "ids", NULL, NULL);
    const int failed = cmocka_run_group_tests_name(path, tests, NULL, NULL);
    support_golden_close(&reference);
    spec_model_close(model);
    return failed;
}

int main(void)
{
    int failed = 0;
    backend = support_backend();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) failed += test_model(models[i]);
    spec_backend_close(backend);
    return failed;
}
