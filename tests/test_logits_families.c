/* test_logits_families.c - logits of every family against the reference implementation's, 64 tokens, by prefill and by
 * one-token steps; and each configuration key changed in turn. Bar: max error / max logit <= 1e-4 in float32. */
#include "tests/support_decode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 1e-4
enum { N_IDS = 64, N_KEY_ROWS = 8 };

static const char *const cases[] = {
    "llama2", "llama3", "mistral", "qwen2", "qwen3", "granite", "phi3", "phi3-long", "phi4_mini", "gemma", "seed_oss", "ministral",
    "smollm3", "olmo", "ernie4_5", "helium", "internlm3", "glm", "chatglm", "stablelm", "starcoder2", "cohere", "cohere2", "cohere2_four",
    "gemma2", "gemma3", "glm4", "exaone4", "olmo2", "olmo3", "phi", "gptj", "gpt_neox", "falcon", "falcon-new", "exaone", "codegen",
    "gpt_neox_japanese", "cwm",
    "mamba", "mamba2", "bamba", "granitemoehybrid", "lfm2", "mambainllama",
    "mamba2-ssd", "mamba2-ssd-cfg", "mamba-ssm", "llama3-bf16", "mamba2-bf16", "llama2-f16", "llama2-mixed",
};

static spec_backend *backend;
static double worst_seen;

static void expect_close(const float *got, const float *want, size_t n, const char *what, int position)
{
    const double e = support_error(got, want, n);
    if (e > worst_seen) worst_seen = e;
    if (e <= TOLERANCE) return;
    fail_msg("%s, position %d: max error / max logit is %.3g", what, position, e);
}

/* Logits of position t after prefill of the t tokens before it. */
static void by_prefill(spec_session *s, const int32_t *ids, int32_t t, float *row)
{
    int32_t seq;
    OK(spec_sequence_add(s, &seq, ids, (size_t)t + 1, NULL));
    support_plain_step(s, seq, ids[t], ids[t], row);
    OK(spec_sequence_remove(s, seq));
}

static void by_steps(spec_session *s, const int32_t *ids, int32_t n, float *rows, int64_t ld)
{
    int32_t seq;
    OK(spec_sequence_add(s, &seq, ids, 1, NULL));
    for (int32_t t = 0; t < n; t++) support_plain_step(s, seq, ids[t], ids[t + 1 < n ? t + 1 : t], rows + t * ld);
    OK(spec_sequence_remove(s, seq));
}

static int32_t vocab_of(const spec_model *m)
{
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(m, &info, 1));
    return info.n_vocab;
}

static void check_case(void **state)
{
    char path[512], file[600];
    const char *name = *state;
    snprintf(path, sizeof path, "%s/golden/%s", SPEC_TEST_DIR, name);
    snprintf(file, sizeof file, "%s/golden.safetensors", path);
    golden g;
    int64_t cols;
    support_golden_open(&g, file);
    const int32_t *ids = support_golden_find(&g, "ids", NULL, NULL);
    const float *want = support_golden_find(&g, "logits", NULL, &cols);

    spec_model *m = support_model(backend, path, SPEC_DTYPE_F32);
    assert_int_equal(vocab_of(m), cols);
    spec_session *s = support_session(m, 1, 1);
    float *rows = calloc((size_t)(N_IDS * cols), sizeof *rows);
    worst_seen = 0;
    by_steps(s, ids, N_IDS, rows, cols);
    for (int t = 0; t < N_IDS; t++) expect_close(rows + t * cols, want + t * cols, (size_t)cols, "steps", t);
    for (int t = 0; t < N_IDS; t++) {
        by_prefill(s, ids, t, rows);
        expect_close(rows, want + t * cols, (size_t)cols, "prefill", t);
    }
    print_message("  %-16s %-12s worst error / max logit %.2g\n", name, support_backend_name(), worst_seen);
    free(rows);
    spec_session_close(s);
    spec_model_close(m);
    support_golden_close(&g);
}

/* --- configuration keys --- */

static json_t *read_json(const char *dir, const char *name)
{
    char path[700];
    json_t *j = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    OK(speci_json_read(&j, path, 1u << 24, &speci_malloc));
    return j;
}

static void patch(json_t *config, const json_t *changes)
{
    const char *key;
    json_t *value, *c = (json_t *)(uintptr_t)changes;
    json_object_foreach(c, key, value) {
        if (json_is_object(value) && json_object_get(value, "__remove__")) json_object_del(config, key);
        else json_object_set(config, key, value);
    }
}

/* A directory that is the case with one key changed; its weights may lie in a folder of the case. */
static void make_variant(char *dir, const char *base, const json_t *v)
{
    static const char *const config_files[] = { "config.json", "mamba_config.json" };
    char weights[600], path[700];
    variant_file files[2];
    size_t n = 0;
    const char *folder = json_string_value(json_object_get(v, "weights"));
    const char *file = json_string_value(json_object_get(v, "file"));
    snprintf(weights, sizeof weights, folder ? "%s/%s" : "%s", base, folder);
    for (size_t i = 0; i < sizeof config_files / sizeof *config_files; i++) {
        snprintf(path, sizeof path, "%s/%s", base, config_files[i]);
        if (!speci_file_exists(path)) continue;
        json_t *config = read_json(base, config_files[i]);
        if (strcmp(config_files[i], file ? file : "config.json") == 0) patch(config, json_object_get(v, "patch"));
        files[n++] = (variant_file){ config_files[i], json_dumps(config, JSON_ENCODE_ANY) };
        assert_non_null(files[n - 1].text);
        json_decref(config);
    }
    support_variant(dir, weights, files, n);
    for (size_t i = 0; i < n; i++) free((void *)(uintptr_t)files[i].text);
}

static bool matches(spec_model *m, const golden *keys, const int32_t *ids, const char *name, double *worst)
{
    char tensor[200];
    int64_t cols;
    snprintf(tensor, sizeof tensor, "logits.%s", name);
    const float *want = support_golden_find(keys, tensor, NULL, &cols);
    if (vocab_of(m) != cols) return false;
    spec_session *s = support_session(m, 1, 1);
    float *rows = calloc((size_t)(N_IDS * cols), sizeof *rows);
    by_steps(s, ids, N_IDS, rows, cols);
    *worst = support_error(rows + (N_IDS - N_KEY_ROWS) * cols, want, (size_t)(N_KEY_ROWS * cols));
    by_prefill(s, ids, N_IDS - 1, rows);
    const double e = support_error(rows, want + (N_KEY_ROWS - 1) * cols, (size_t)cols);
    if (e > *worst) *worst = e;
    free(rows);
    spec_session_close(s);
    return *worst <= TOLERANCE;
}

/* One changed key: the reference's logits, or a refusal that names the key. */
static bool check_key(const char *base, const json_t *v, const golden *keys, const int32_t *ids)
{
    char dir[64];
    const char *name = json_string_value(json_object_get(v, "name"));
    const bool refuse = strcmp(json_string_value(json_object_get(v, "expect")), "refuse") == 0;
    make_variant(dir, base, v);
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    spec_model *m = NULL;
    double worst = 0;
    p.dtype = SPEC_DTYPE_F32;
    const spec_status status = spec_model_open(&m, backend, dir, &p);
    bool good;
    if (status != SPEC_OK) {
        good = (refuse || json_is_true(json_object_get(v, "refuse_ok"))) && status != SPEC_E_NOMEM;
        if (!good) print_error("  %s: refused: %s\n", name, spec_last_error());
    } else if (refuse) {
        good = false;
        print_error("  %s: loaded, but must be refused\n", name);
    } else {
        good = matches(m, keys, ids, name, &worst);
        if (!good) print_error("  %s: max error / max logit is %.3g\n", name, worst);
    }
    spec_model_close(m);
    support_variant_remove(dir);
    return good;
}

static void check_keys(void **state)
{
    char base[512], file[600];
    const char *name = *state;
    snprintf(base, sizeof base, "%s/golden/%s", SPEC_TEST_DIR, name);
    snprintf(file, sizeof file, "%s/keys.json", base);
    if (!speci_file_exists(file)) skip();
    golden g, keys;
    snprintf(file, sizeof file, "%s/golden.safetensors", base);
    support_golden_open(&g, file);
    snprintf(file, sizeof file, "%s/keys.safetensors", base);
    support_golden_open(&keys, file);
    const int32_t *ids = support_golden_find(&g, "ids", NULL, NULL);
    json_t *list = read_json(base, "keys.json"), *v;
    size_t i;
    int n_bad = 0;
    json_array_foreach(list, i, v) n_bad += !check_key(base, v, &keys, ids);
    if (n_bad) fail_msg("%s: %d of %d keys are wrong", name, n_bad, (int)json_array_size(list));
    print_message("  %-16s %d keys\n", name, (int)json_array_size(list));
    json_decref(list);
    support_golden_close(&g);
    support_golden_close(&keys);
}

/* --- trained models --- */

static const char *const shared_models[] = { "llama-target", "hybrid-target", "mamba2-target", "llama-drafter",
                                             "mamba2-drafter", "mamba-drafter", "demo-target", "demo-drafter" };

static void check_trained(void **state)
{
    char path[600], file[640];
    const char *name = *state;
    const bool ships = strncmp(name, "demo-", 5) == 0;
    if (!ships && !support_shared()) {
        print_message("  no SPEC_SHARED: trained models are not there\n");
        skip();
    }
    snprintf(path, sizeof path, ships ? "%s/%s" : "%s/models/%s", ships ? SPEC_TEST_MODELS : support_shared(), name);
    snprintf(file, sizeof file, "%s/config.json", path);
    if (!ships && !speci_file_exists(file)) {
        print_message("  no %s\n", file);
        skip();
    }
    snprintf(file, sizeof file, "%s/golden/shared/%s.safetensors", SPEC_TEST_DIR, name);
    golden g;
    int64_t cols;
    support_golden_open(&g, file);
    const int32_t *ids = support_golden_find(&g, "ids", NULL, NULL);
    const float *want = support_golden_find(&g, "logits", NULL, &cols); /* every 8th column */
    const float *peak = support_golden_find(&g, "row_max", NULL, NULL);
    spec_model *m = support_model(backend, path, SPEC_DTYPE_F32);
    const int32_t n_vocab = vocab_of(m);
    spec_session *s = support_session(m, 1, 1);
    float *rows = calloc((size_t)N_IDS * (size_t)n_vocab, sizeof *rows);
    by_steps(s, ids, N_IDS, rows, n_vocab);
    double worst = 0;
    for (int t = 0; t < N_IDS; t++)
        for (int way = 0; way < 2; way++) {
            float *row = rows + (size_t)t * (size_t)n_vocab;
            if (way == 1) by_prefill(s, ids, t, row);
            for (int64_t c = 0; c < cols; c++) {
                const double e = fabs((double)row[8 * c] - (double)want[t * cols + c]) / (double)peak[t];
                if (!(e <= worst)) worst = e;
            }
        }
    print_message("  %-16s %-12s worst error / max logit %.2g\n", name, support_backend_name(), worst);
    assert_true(worst <= TOLERANCE);
    free(rows);
    spec_session_close(s);
    spec_model_close(m);
    support_golden_close(&g);
}

int main(void)
{
    struct CMUnitTest tests[2 * sizeof cases / sizeof *cases + sizeof shared_models / sizeof *shared_models];
    char names[sizeof tests / sizeof *tests][64];
    size_t n = 0;
    backend = support_backend();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 2; k++, n++) {
            snprintf(names[n], sizeof names[n], "%s %s", k ? "keys of" : "logits of", cases[i]);
            tests[n] = (struct CMUnitTest){ names[n], k ? check_keys : check_case, NULL, NULL, (void *)(uintptr_t)cases[i] };
        }
    for (size_t i = 0; i < sizeof shared_models / sizeof *shared_models; i++, n++) {
        snprintf(names[n], sizeof names[n], "logits of %s", shared_models[i]);
        tests[n] = (struct CMUnitTest){ names[n], check_trained, NULL, NULL, (void *)(uintptr_t)shared_models[i] };
    }
    const int failed = _cmocka_run_group_tests("logits", tests, n, NULL, NULL);
    spec_backend_close(backend);
    return failed;
}
