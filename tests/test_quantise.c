/* test_quantise.c - weights in Q8_0: the blocks against the reference, what cannot be held, and whole models: a model
 * in Q8_0 has the logits of the plain model over the values of its blocks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core_half.h"
#include "models/families/family_build.h"
#include "tests/ref_ops.h"
#include "tests/support_decode.h"
#include "tests/support_file.h"
#include "tests/test.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"
#define TOLERANCE 1e-4 /* as the logits of families have it in float32 */
enum { N_ROW = 40, N_IN = 96, N_IDS = 40 };

static spec_backend *backend;

/* --- blocks --- */

/* Rows of every size that matters: zero, so small that the scale is none in f16, ordinary, the largest that fits. */
static void fill(float *w, int32_t row, test_random *random)
{
    static const double sizes[] = { 0.0, 1e-40, 1e-9, 3e-6, 1e-3, 0.02, 1.0, 127.0, 6e4, 8e6 };
    const double size = sizes[row % N_ELEMENTS(sizes)];
    for (int32_t i = 0; i < N_IN; i++) w[i] = (float)(size * test_signed(random));
    w[row % N_IN] = -(float)size;
    if (size == 127.0) /* the scale is 1: halves, which are rounded away from zero */
        for (int32_t i = 0; i < N_IN; i++) w[i] = w[i] == -127.0f ? w[i] : (float)floor((double)w[i]) + 0.5f;
    if (size == 127.0) w[0] = w[32] = w[64] = 127.0f;
}

static void check_block(const spec_q8_block *got, const float *w)
{
    int8_t q[SPEC_Q8_BLOCK];
    const float scale = ref_q8_0(q, w);
    const double held = test_round((double)scale, SPEC_DTYPE_F16);
    assert_true((double)speci_from_f16(got->scale) == held);
    for (int32_t i = 0; i < SPEC_Q8_BLOCK; i++) {
        if (held > 0) assert_int_equal(got->q[i], q[i]);
        else assert_int_equal(got->q[i], 0);
        const double rounding = 0.5 * (double)scale * (1 + 1e-6), of_scale = 127 * fabs(held - (double)scale);
        assert_true(fabs(held * got->q[i] - (double)w[i]) <= rounding + of_scale);
    }
}

static void blocks(void **state)
{
    (void)state;
    static const spec_dtype types[] = { SPEC_DTYPE_F32, SPEC_DTYPE_BF16, SPEC_DTYPE_F16 };
    enum { PER_ROW = N_IN / SPEC_Q8_BLOCK, FIRST = 3 };
    for (int32_t t = 0; t < N_ELEMENTS(types); t++) {
        static float w[N_ROW][N_IN];
        static uint16_t half[N_ROW][N_IN];
        spec_q8_block out[(N_ROW - FIRST) * PER_ROW];
        test_random random = { 5 };
        for (int32_t r = 0; r < N_ROW; r++) fill(w[r], r, &random);
        for (int32_t i = 0; i < N_ROW * N_IN; i++) { /* what the file can hold */
            float *v = &w[0][0] + i;
            if (types[t] == SPEC_DTYPE_F16) *v = fmaxf(-65504.0f, fminf(65504.0f, *v));
            (&half[0][0])[i] = types[t] == SPEC_DTYPE_F16 ? speci_to_f16(*v) : speci_to_bf16(*v);
            if (types[t] != SPEC_DTYPE_F32) *v = (float)test_round((double)*v, types[t]);
        }
        const model_tensor tensor = { .name = "w", .file = "f", .dtype = types[t], .n_dim = 2, .dim = { N_ROW, N_IN },
                                      .data = types[t] == SPEC_DTYPE_F32 ? (const void *)w : (const void *)half };
        OK(speci_quantise(&speci_pack_q8_0, out, &tensor, FIRST, N_ROW - FIRST));
        for (int32_t b = 0; b < N_ELEMENTS(out); b++)
            check_block(&out[b], &w[FIRST + b / PER_ROW][b % PER_ROW * SPEC_Q8_BLOCK]);
    }
}

static void beyond(void **state)
{
    (void)state;
    static const float values[] = { NAN, INFINITY, -INFINITY, 8.32e6f, -1e30f };
    for (int32_t i = 0; i < N_ELEMENTS(values); i++) {
        float w[3][N_IN] = { { 0 } };
        spec_q8_block out[3 * N_IN / SPEC_Q8_BLOCK];
        const model_tensor tensor = { .name = "some.weight", .file = "some.file", .dtype = SPEC_DTYPE_F32, .n_dim = 2,
                                      .dim = { 3, N_IN }, .data = (const void *)w };
        w[2][40] = values[i];
        FAILS(speci_quantise(&speci_pack_q8_0, out, &tensor, 0, 3), SPEC_E_UNSUPPORTED,
              "some.file: tensor some.weight: row 2 has a value that is not finite or beyond 8319008 in columns 32 to "
              "63");
        OK(speci_quantise(&speci_pack_q8_0, out, &tensor, 0, 2));
    }
}

/* --- models --- */

/* dir/model.safetensors = base's, float32, with matrices changed by `change` where they are quantised. */
static void rewrite(const char *dir, const char *base, void (*change)(float *w, int64_t n))
{
    char path[700];
    golden g;
    snprintf(path, sizeof path, "%s/model.safetensors", base);
    support_golden_open(&g, path);
    uint8_t *bytes = malloc(g.file.n);
    assert_non_null(bytes);
    memcpy(bytes, g.file.data, g.file.n);
    for (size_t i = 0; i < g.n; i++) {
        const model_tensor *t = &g.tensors[i];
        assert_int_equal(t->dtype, SPEC_DTYPE_F32);
        if (t->n_dim != 2 || t->dim[1] % SPEC_Q8_BLOCK != 0) continue;
        float *w = malloc(t->bytes);
        assert_non_null(w);
        memcpy(w, t->data, t->bytes);
        change(w, t->dim[0] * t->dim[1]);
        memcpy(bytes + (t->data - g.file.data), w, t->bytes);
        free(w);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    support_write(path, bytes, g.file.n);
    free(bytes);
    support_golden_close(&g);
}

static void to_held(float *w, int64_t n)
{
    int8_t q[SPEC_Q8_BLOCK];
    for (int64_t i = 0; i < n; i += SPEC_Q8_BLOCK) {
        const double scale = test_round((double)ref_q8_0(q, w + i), SPEC_DTYPE_F16);
        for (int32_t k = 0; k < SPEC_Q8_BLOCK; k++) w[i + k] = (float)(scale * q[k]);
    }
}

static void to_nan(float *w, int64_t n) { w[n - 1] = NAN; }

/* Logits [N_IDS][n_vocab] by plain steps, the first half of the ids by prefill. */
static float *logits_of(spec_model *m, const int32_t *ids, int32_t n_vocab)
{
    int32_t seq;
    float *rows = calloc((size_t)N_IDS * (size_t)n_vocab, sizeof *rows);
    spec_session *s = support_session(m, 1, 1);
    OK(spec_sequence_add(s, &seq, ids, N_IDS / 2, NULL));
    for (int32_t t = N_IDS / 2 - 1; t < N_IDS; t++)
        support_plain_step(s, seq, ids[t], ids[t + 1 < N_IDS ? t + 1 : t], rows + (size_t)t * (size_t)n_vocab);
    spec_session_close(s);
    return rows;
}

static spec_model_info info_of(const spec_model *m)
{
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(m, &info, 1));
    return info;
}

static void same_as_plain(void **state)
{
    char base[512], path[600], dir[64];
    golden g;
    snprintf(base, sizeof base, "%s%s", GOLDEN, (const char *)*state);
    snprintf(path, sizeof path, "%s/golden.safetensors", base);
    support_golden_open(&g, path);
    const int32_t *ids = support_golden_find(&g, "ids", NULL, NULL);
    const variant_file weights = { "model.safetensors", NULL };
    support_variant(dir, base, &weights, 1);
    rewrite(dir, base, to_held);

    spec_model *q8 = support_model_of(backend, base, SPEC_DTYPE_F32, SPEC_DTYPE_Q8_0);
    spec_model *held = support_model(backend, dir, SPEC_DTYPE_F32);
    spec_model *file = support_model(backend, base, SPEC_DTYPE_F32);
    const spec_model_info a = info_of(q8), b = info_of(file);
    assert_int_equal(a.weights, SPEC_DTYPE_Q8_0);
    assert_int_equal(b.weights, SPEC_DTYPE_AUTO);
    assert_int_equal(a.dtype, SPEC_DTYPE_F32);
    assert_true(a.n_parameters == b.n_parameters && a.bytes_weights < b.bytes_weights);
    float *got = logits_of(q8, ids, a.n_vocab), *want = logits_of(held, ids, a.n_vocab);
    float *other = logits_of(file, ids, a.n_vocab);
    const size_t n = (size_t)N_IDS * (size_t)a.n_vocab;
    const double error = support_error(got, want, n), apart = support_error(got, other, n);
    print_message("  %-14s error / max logit %.2g; from the file's values %.2g\n", (const char *)*state, error, apart);
    assert_true(error <= TOLERANCE && apart > 10 * TOLERANCE && apart < 0.25);
    free(got);
    free(want);
    free(other);
    spec_model_close(q8);
    spec_model_close(held);
    spec_model_close(file);
    support_variant_remove(dir);
    support_golden_close(&g);
}

static void refused(void **state)
{
    (void)state;
    char dir[64];
    const variant_file weights = { "model.safetensors", NULL };
    spec_model *m = NULL;
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    support_variant(dir, GOLDEN "llama2", &weights, 1);
    rewrite(dir, GOLDEN "llama2", to_nan);
    p.weights = SPEC_DTYPE_Q8_0;
    FAILS(spec_model_open(&m, backend, dir, &p), SPEC_E_UNSUPPORTED, "which q8_0 cannot hold");
    assert_null(m);
    p.weights = SPEC_DTYPE_AUTO;
    OK(spec_model_open(&m, backend, dir, &p));
    spec_model_close(m);
    p.weights = SPEC_DTYPE_F16;
    FAILS(spec_model_open(&m, backend, dir, &p), SPEC_E_INVALID, "weights is f16, expected auto, q8_0, q4_0,");
    p.weights = SPEC_DTYPE_AUTO, p.dtype = SPEC_DTYPE_Q8_0;
    FAILS(spec_model_open(&m, backend, dir, &p), SPEC_E_INVALID, "dtype is q8_0, expected auto, f32, bf16 or f16");
    support_variant_remove(dir);
}

int main(void)
{
    static const char *const models[] = { "llama2", "qwen3", "phi3", "ernie4_5", "mamba", "mamba2", "bamba", "lfm2",
                                          "mambainllama", "gemma2" };
    enum { N = sizeof models / sizeof *models };
    struct CMUnitTest tests[3 + N] = { cmocka_unit_test(blocks), cmocka_unit_test(beyond), cmocka_unit_test(refused) };
    backend = support_backend();
    for (int32_t i = 0; i < N; i++)
        tests[3 + i] = (struct CMUnitTest){ models[i], same_as_plain, NULL, NULL, (void *)(uintptr_t)models[i] };
    const int failed = _cmocka_run_group_tests("quantise", tests, 3 + N, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
