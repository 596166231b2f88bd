/* test_model_config.c - config.json: typed access and its messages, keys that are refused, ignored or reported, and
 * what follows from rotary, window and id keys. That honoured keys give the reference's logits is shown by
 * test_logits_families.c. */
#define _POSIX_C_SOURCE 200809L /* symlink */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/files/files_config.h"
#include "models/families/family_rope.h"
#include "models/net/net_mixer_attention.h"
#include "tests/support_decode.h"
#include "tests/support_directory.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

/* --- access --- */

static model_config config_of(const char *text)
{
    model_config c = { 0 };
    OK(speci_config_parse(&c, text, strlen(text), "config.json"));
    return c;
}

static void values(void **state)
{
    (void)state;
    model_config c = config_of("{\"i\": 7, \"r\": 2.0, \"x\": 1e-5, \"inf\": Infinity, \"t\": true, \"s\": \"silu\","
                               " \"z\": null, \"l\": [0.5, Infinity], \"o\": {\"k\": 1}}");
    int32_t i;
    double x;
    float lo, hi;
    bool t;
    const char *s;
    OK(speci_config_int(&c, &i, "i", 1, 9));
    assert_int_equal(i, 7);
    OK(speci_config_int(&c, &i, "r", 1, 9));
    assert_int_equal(i, 2);
    OK(speci_config_number(&c, &x, "x", 0, 1));
    assert_true(x == 1e-5);
    OK(speci_config_int_or(&c, &i, "absent", 5, 1, 9));
    assert_int_equal(i, 5);
    OK(speci_config_int_or(&c, &i, "z", 6, 1, 9)); /* null counts as absent */
    assert_int_equal(i, 6);
    OK(speci_config_bool_or(&c, &t, "t", false));
    assert_true(t);
    OK(speci_config_string_or(&c, &s, "s", NULL));
    assert_string_equal(s, "silu");
    OK(speci_config_limits_or_none(&c, &lo, &hi, "l"));
    assert_true(lo == 0.5f && isinf(hi));
    OK(speci_config_limits_or_none(&c, &lo, &hi, "absent"));
    assert_true(lo == 0.0f && isinf(hi));
    model_config o;
    OK(speci_config_child(&c, &o, "o"));
    FAILS(speci_config_all_known(&o), SPEC_E_UNSUPPORTED, "config.json: o.k is 1");
    OK(speci_config_int(&o, &i, "k", 1, 1));
    OK(speci_config_all_known(&o));
    speci_config_close(&o);
    FAILS(speci_config_all_known(&c), SPEC_E_UNSUPPORTED, "inf"); /* the only key not asked for */
    speci_config_close(&c);
}

static void wrong_values(void **state)
{
    (void)state;
    model_config c = config_of("{\"i\": 7.5, \"big\": 4294967296, \"huge\": 99999999999999999999, \"s\": \"seven\","
                               " \"o\": {}, \"l\": [3, 2], \"n\": [0, NaN], \"one\": [1]}");
    int32_t i;
    double x;
    float lo, hi;
    bool t;
    const char *s;
    model_config o;
    FAILS(speci_config_int(&c, &i, "hidden_size", 1, 9), SPEC_E_FORMAT,
          "config.json: hidden_size is missing, expected an integer from 1 to 9");
    FAILS(speci_config_int(&c, &i, "i", 1, 9), SPEC_E_FORMAT, "config.json: i is 7.5, expected an integer");
    FAILS(speci_config_int(&c, &i, "s", 1, 9), SPEC_E_FORMAT, "s is \"seven\", expected an integer");
    FAILS(speci_config_int(&c, &i, "big", 1, INT32_MAX), SPEC_E_FORMAT, "big is 4294967296");
    FAILS(speci_config_int(&c, &i, "huge", 1, INT32_MAX), SPEC_E_FORMAT, "huge is 1e+20");
    FAILS(speci_config_int_or(&c, &i, "o", 1, 1, 9), SPEC_E_FORMAT, "o is an object");
    FAILS(speci_config_number(&c, &x, "s", 0, 1), SPEC_E_FORMAT, "expected a number from 0 to 1");
    FAILS(speci_config_bool_or(&c, &t, "i", false), SPEC_E_FORMAT, "expected true or false");
    FAILS(speci_config_string_or(&c, &s, "l", NULL), SPEC_E_FORMAT, "l is an array, expected a string");
    FAILS(speci_config_child(&c, &o, "s"), SPEC_E_FORMAT, "expected an object");
    FAILS(speci_config_limits_or_none(&c, &lo, &hi, "l"), SPEC_E_FORMAT, "expected [low, high]");
    FAILS(speci_config_limits_or_none(&c, &lo, &hi, "n"), SPEC_E_FORMAT, "expected [low, high]");
    FAILS(speci_config_limits_or_none(&c, &lo, &hi, "one"), SPEC_E_FORMAT, "expected [low, high]");
    speci_config_close(&c);
    FAILS(speci_config_parse(&c, "[]", 2, "config.json"), SPEC_E_FORMAT, "config.json: not a JSON object");
    FAILS(speci_config_parse(&c, "{\"a\":1,\"a\":2}", 13, "config.json"), SPEC_E_FORMAT, "config.json");
    FAILS(speci_config_parse(&c, "{\"a\":", 5, "config.json"), SPEC_E_FORMAT, "config.json");
}

/* --- keys that nobody asked for --- */

static void verified(const char *text, const char *refused, const char *unknown)
{
    model_config c = config_of(text);
    char *found = NULL;
    if (refused) {
        FAILS(speci_config_check(&c, &found, &speci_malloc), SPEC_E_UNSUPPORTED, refused);
        assert_null(found);
    } else {
        OK(speci_config_check(&c, &found, &speci_malloc));
        assert_string_equal(found, unknown);
    }
    speci_free(&speci_malloc, found);
    speci_config_close(&c);
}

static void keys_nobody_asked_for(void **state)
{
    (void)state;
    verified("{}", NULL, "");
    verified("{\"architectures\":[\"X\"],\"torch_dtype\":\"float16\",\"hidden_dropout\":0.1,\"use_cache\":true}", NULL, "");
    verified("{\"frobnicate\":1,\"use_cache\":true,\"zork\":null}", NULL, "frobnicate, zork");
    verified("{\"quantization_config\":{\"bits\":4}}", "quantization_config is an object", NULL);
    verified("{\"is_encoder_decoder\":true}", "is_encoder_decoder is true", NULL);
    verified("{\"num_local_experts\":8}", "num_local_experts is 8: mixtures of experts", NULL);
    verified("{\"final_logit_softcapping\":30.0}", "final_logit_softcapping is 30", NULL);
    verified("{\"attention_bias\":true}", "attention_bias is true", NULL);
    verified("{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "layer_types", NULL);
    verified("{\"embedding_multiplier\":\"1\"}", "embedding_multiplier is \"1\"", NULL);
    /* The same keys with the value that changes nothing. */
    verified("{\"quantization_config\":null,\"is_encoder_decoder\":false,\"num_local_experts\":0,"
           "\"final_logit_softcapping\":null,\"attention_bias\":false,\"layer_types\":[\"full_attention\"],"
           "\"embedding_multiplier\":1.0,\"logits_scaling\":1,\"partial_rotary_factor\":1.0}",
           NULL, "");
}

/* --- rotary positions --- */

static const model_rope_keys whole = { .theta = "rope_theta", .partial = "partial_rotary_factor", .partial_default = 1,
                                       .whole_head = true };
static const model_rope_keys half = { .theta = "rope_theta", .partial = "partial_rotary_factor",
                                      .partial_default = 0.5 };
static const model_rope_keys neox = { .theta = "rotary_emb_base", .partial = "rotary_pct", .partial_default = 0.25,
                                      .partial_top_counts = true };
static const model_rope_keys phi = { .theta = "rope_theta", .partial = "partial_rotary_factor", .partial_default = 1,
                                     .original_default = 4096 };

#define LLAMA3 "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":32"

#define LONG "\"short_factor\":[1],\"long_factor\":[2],\"original_max_position_embeddings\":32"

typedef struct rope_case {
    const char *text;
    const model_rope_keys *keys;
    const char *message; /* NULL: accepted, with the values that follow */
    double theta, partial;
    model_rope_type type;
} rope_case;

static const rope_case rope_cases[] = {
    { "{}", &whole, NULL, 10000, 1, MODEL_ROPE_DEFAULT },
    { "{}", &half, NULL, 10000, 0.5, MODEL_ROPE_DEFAULT },
    { "{}", &neox, NULL, 10000, 0.25, MODEL_ROPE_DEFAULT },
    { "{\"rope_theta\":5e5,\"rope_scaling\":null}", &whole, NULL, 5e5, 1, MODEL_ROPE_DEFAULT },
    { "{\"rope_parameters\":{\"rope_theta\":7}}", &whole, NULL, 7, 1, MODEL_ROPE_DEFAULT },
    { "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", &whole, NULL, 10000, 1, MODEL_ROPE_LINEAR },
    { "{\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3 "}}", &whole, NULL, 10000, 1, MODEL_ROPE_LLAMA3 },
    { "{\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"linear\",\"factor\":2}}", &whole, NULL, 10000, 1,
      MODEL_ROPE_LINEAR },
    { "{\"rotary_pct\":1.0,\"rotary_emb_base\":100}", &neox, NULL, 100, 1, MODEL_ROPE_DEFAULT },
    { "{\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", &half, NULL, 10000, 0.25, MODEL_ROPE_DEFAULT },
    { "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":64}}", &whole, NULL, 10000, 1,
      MODEL_ROPE_YARN },
    { "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"finetuned\":true,\"original_max_position_embeddings\":64}}", &whole, NULL, 10000,
      1, MODEL_ROPE_YARN },
    { "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"finetuned\":true}}", &whole, "finetuned is true", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"default\",\"factor\":1.0}}", &whole, NULL, 10000, 1, MODEL_ROPE_DEFAULT },
    { "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"original_max_position_embeddings\":64}}", &whole, NULL, 10000, 1,
      MODEL_ROPE_LINEAR },
    { "{\"rotary_pct\":0.5,\"partial_rotary_factor\":0.5}", &neox, NULL, 10000, 0.5, MODEL_ROPE_DEFAULT },
    { "{\"partial_rotary_factor\":0.5}", &neox, NULL, 10000, 0.5, MODEL_ROPE_DEFAULT },
    { "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}", &whole, "max_position_embeddings is missing", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2},\"max_position_embeddings\":64}", &whole, NULL, 10000, 1, MODEL_ROPE_YARN },
    { "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":64},"
      "\"original_max_position_embeddings\":32}", &whole,
      "original_max_position_embeddings is 32, but the same key of the object", 0, 0, 0 },
    { "{\"max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"su\"," LONG "}}", &phi,
      "by this family's default, is 4096, but the same key of the object says 32", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"default\",\"factor\":4}}", &whole, "rope_scaling.factor is 4", 0, 0, 0 },
    { "{\"rotary_pct\":0.5,\"partial_rotary_factor\":0.25}", &neox, "partial_rotary_factor is 0.25", 0, 0, 0 },
    { "{\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":2}}", &whole, NULL, 10000, 1, MODEL_ROPE_DYNAMIC },
    { "{\"rope_parameters\":{\"rope_type\":\"spiral\",\"factor\":2}}", &whole, "\"spiral\", expected default", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]}}", &whole, "long_factor is missing", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"longrope\"," LONG "}}", &whole, "max_position_embeddings is missing", 0, 0, 0 },
    { "{\"max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"su\"," LONG "}}", &whole, NULL, 10000, 1,
      MODEL_ROPE_LONGROPE },
    { "{\"original_max_position_embeddings\":4,\"rope_scaling\":{\"type\":\"su\"," LONG "}}", &whole,
      "original_max_position_embeddings is 4", 0, 0, 0 },
    { "{\"rope_scaling\":{\"rope_type\":\"longrope\"},\"rope_parameters\":{\"rope_type\":\"default\"}}", &whole,
      "\"longrope\"", 0, 0, 0 },
    { "{\"rope_scaling\":{\"rope_type\":\"linear\",\"type\":\"llama3\"}}", &whole, "type is \"llama3\"", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"linear\"}}", &whole, "rope_scaling.factor is missing", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", &whole, "low_freq_factor is missing", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", &whole, "rope_scaling.factor is 0", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"default\",\"mrope_section\":[1]}}", &whole, "rope_scaling.mrope_section", 0, 0, 0 },
    { "{\"rope_theta\":1,\"rope_parameters\":{\"rope_theta\":2}}", &whole, "rope_theta is 1", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_type\":\"default\"}}", &whole,
      "type is \"linear\"", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"type\":\"linear\",\"factor\":3}}", &whole,
      "contradict each other: factor is 2 and 3", 0, 0, 0 },
    { "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.0,"
      "\"rope_theta\":9}}", &whole, NULL, 9, 1, MODEL_ROPE_LINEAR },
    { "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":7}", &whole, "expected an object", 0, 0, 0 },
    { "{\"rope_theta\":2,\"rotary_emb_base\":3}", &neox, "rope_theta is 2", 0, 0, 0 },
    { "{\"partial_rotary_factor\":0.5}", &whole, "partial_rotary_factor is 0.5", 0, 0, 0 },
    { "{\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", &whole, "turns whole heads", 0, 0, 0 },
    { "{\"partial_rotary_factor\":0.25}", &half, "partial_rotary_factor is 0.25", 0, 0, 0 },
    { "{\"rotary_pct\":0.5,\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", &neox, "rotary_pct is 0.5", 0, 0, 0 },
    { "{\"rotary_pct\":1.5}", &neox, "rotary_pct is 1.5", 0, 0, 0 },
    { "{\"rope_theta\":NaN}", &whole, "rope_theta is nan", 0, 0, 0 },
    { "{\"rope_scaling\":\"linear\"}", &whole, "expected an object", 0, 0, 0 },
};

static void rotary_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rope_cases / sizeof *rope_cases; i++) {
        const rope_case *k = &rope_cases[i];
        model_config c = config_of(k->text);
        model_rope r;
        const spec_status status = speci_rope_read(&c, &r, k->keys);
        if (k->message) {
            if (status == SPEC_OK || !strstr(spec_last_error(), k->message))
                fail_msg("%s: \"%s\", expected \"%s\"", k->text, status ? spec_last_error() : "accepted", k->message);
        } else if (status != SPEC_OK || r.theta != k->theta || r.partial != k->partial || r.type != k->type) {
            fail_msg("%s: theta %g, partial %g, type %d%s", k->text, r.theta, r.partial, (int)r.type,
                     status ? spec_last_error() : "");
        }
        speci_config_close(&c);
    }
}

/* theta^(-2k/n), and the three ranges of llama3 scaling by hand. */
static void rotary_frequencies(void **state)
{
    (void)state;
    model_rope r = { .theta = 10000, .partial = 1 };
    float f[4];
    int32_t n_rot;
    OK(speci_rope_frequencies(&r, f, 8, "config.json"));
    for (int k = 0; k < 4; k++) assert_float_equal(f[k], pow(10.0, -k), 1e-7);
    r.type = MODEL_ROPE_LINEAR, r.factor = 4;
    OK(speci_rope_frequencies(&r, f, 8, "config.json"));
    assert_float_equal(f[1], 0.025, 1e-8);
    /* Waves of 6.28, 62.8, 628 and 6283; kept below 100, slowed above 1000, mixed between. */
    r = (model_rope){ .type = MODEL_ROPE_LLAMA3, .theta = 10000, .partial = 1, .factor = 8, .low_freq_factor = 1,
                      .high_freq_factor = 10, .original_max_position = 1000 };
    OK(speci_rope_frequencies(&r, f, 8, "config.json"));
    const double s = (1000 * 0.01 / (2 * 3.14159265358979323846) - 1) / 9;
    assert_float_equal(f[0], 1, 1e-7);
    assert_float_equal(f[1], 0.1, 1e-8);
    assert_true(fabs(f[2] - ((1 - s) * 0.01 / 8 + s * 0.01)) < 1e-9);
    assert_float_equal(f[3], 0.001 / 8, 1e-10);
    OK(speci_rope_dims(&(model_rope){ .partial = 0.25 }, &n_rot, 80, "config.json"));
    assert_int_equal(n_rot, 20);
    FAILS(speci_rope_dims(&(model_rope){ .partial = 0.25 }, &n_rot, 12, "config.json"), SPEC_E_UNSUPPORTED, "even");
}

/* --- whole configs, from the golden models --- */

static spec_backend *backend;
static char log_text[2048];

static void on_log(void *user_data, spec_log_level level, const char *text)
{
    (void)user_data;
    if (level < SPEC_LOG_WARN) return;
    const size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof log_text - n, "%s\n", text);
}

static int open_backend(void **state)
{
    spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
    (void)state;
    p.log = on_log;
    p.n_threads = 1;
    return spec_backend_open(&backend, "cpu:portable", &p) == SPEC_OK ? 0 : -1;
}

static int close_backend(void **state)
{
    (void)state;
    spec_backend_close(backend);
    return 0;
}

static void patch(json_t *config, json_t *changes)
{
    const char *key;
    json_t *value;
    json_object_foreach(changes, key, value) {
        if (json_object_get(value, "__remove__")) json_object_del(config, key);
        else json_object_set(config, key, value);
    }
}

/* Links to all files of `base` in a new directory, but `file` is a copy with `changes`. */
static void make_variant(char *dir, const char *base, const char *file, json_t *changes)
{
    char from[512];
    json_t *config = NULL;
    snprintf(from, sizeof from, "%s/%s", base, file);
    OK(speci_json_read(&config, from, 1u << 20, NULL));
    patch(config, changes);
    char *text = json_dumps(config, 0);
    assert_non_null(text);
    support_variant(dir, base, &(variant_file){ file, text }, 1);
    free(text);
    json_decref(config);
}

static spec_status open_changed(spec_model **out, const char *base, const char *file, json_t *changes)
{
    char dir[64], path[512];
    snprintf(path, sizeof path, GOLDEN "%s", base);
    make_variant(dir, path, file, changes);
    const spec_status status = spec_model_open(out, backend, dir, NULL);
    support_variant_remove(dir);
    return status;
}

static spec_status open_patched(spec_model **out, const char *base, const char *changes)
{
    json_t *j = json_loads(changes, 0, NULL);
    assert_non_null(j);
    const spec_status status = open_changed(out, base, "config.json", j);
    json_decref(j);
    return status;
}

/* The message names the file and the key, or the tensor that does not fit, or the number that came of the key. */
static bool names_the_cause(json_t *changes)
{
    const char *key, *text = spec_last_error();
    json_t *value;
    if (strstr(text, "tensor ") && strstr(text, "expected")) return true;
    if (!strstr(text, "config.json")) return false;
    json_object_foreach(changes, key, value)
        if (strstr(text, key)) return true;
    return strstr(text, "expected") || strstr(text, "is missing") || strstr(text, "do not") || strstr(text, "only");
}

static void refuse_one(const char *base, json_t *c)
{
    const char *file = json_string_value(json_object_get(c, "file"));
    json_t *changes = json_object_get(c, "patch");
    spec_model *m = NULL;
    const spec_status status = open_changed(&m, base, file ? file : "config.json", changes);
    const char *name = json_string_value(json_object_get(c, "name"));
    if (status != SPEC_E_FORMAT && status != SPEC_E_UNSUPPORTED)
        fail_msg("%s, %s: gave %s", base, name, spec_status_name(status));
    if (!names_the_cause(changes)) fail_msg("%s, %s: the message does not name the cause: %s", base, name,
                                            spec_last_error());
    assert_null(m);
}

/* Every "refuse" entry of the golden models' keys.json. */
static void refused_keys(void **state)
{
    static const char *const models[] = { "llama2", "llama3", "mistral", "qwen2", "qwen3", "granite", "phi3", "phi3-long",
                                          "phi4_mini", "gemma", "gemma2",
                                          "seed_oss", "ministral", "smollm3", "olmo", "ernie4_5", "helium", "internlm3", "glm",
                                          "stablelm", "starcoder2", "cohere", "cohere2", "gemma3", "glm4", "exaone4", "olmo2", "olmo3",
                                          "phi", "gptj", "gpt_neox", "mamba", "mamba2", "bamba", "granitemoehybrid", "lfm2", "mambainllama",
                                          "falcon", "falcon-new", "exaone", "codegen", "gpt_neox_japanese", "cwm",
                                          "mamba2-ssd", "mamba2-ssd-cfg", "mamba-ssm" };
    int n = 0;
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[512];
        json_t *cases = NULL, *c;
        size_t k;
        snprintf(path, sizeof path, GOLDEN "%s/keys.json", models[i]);
        OK(speci_json_read(&cases, path, 1u << 24, NULL));
        json_array_foreach(cases, k, c) {
            if (strcmp(json_string_value(json_object_get(c, "expect")), "refuse") != 0) continue;
            refuse_one(models[i], c);
            n++;
        }
        json_decref(cases);
    }
    print_message("  %d refusals\n", n);
    assert_true(n > 200);
}

typedef struct message_case {
    const char *base, *changes, *message;
} message_case;

static const message_case message_cases[] = {
    { "llama2", "{\"model_type\":\"llama9000\"}", "model_type is \"llama9000\", expected one of llama, mistral" },
    { "llama2", "{\"model_type\":{\"__remove__\":true}}", "model_type is missing" },
    { "llama2", "{\"model_type\":7}", "model_type is 7" },
    { "llama2", "{\"hidden_size\":{\"__remove__\":true}}", "config.json: hidden_size is missing, expected an integer" },
    { "llama2", "{\"hidden_size\":\"32\"}", "hidden_size is \"32\"" },
    { "llama2", "{\"hidden_size\":-1}", "hidden_size is -1" },
    { "llama2", "{\"hidden_act\":\"wiggle\"}", "hidden_act is \"wiggle\"" },
    { "llama2", "{\"num_hidden_layers\":1000000}", "1000000 layers, but" },
    { "qwen2", "{\"num_hidden_layers\":16000000}", "num_hidden_layers is 16000000" },
    { "mistral", "{\"num_hidden_layers\":16000000}", "16000000 layers, but" },
    { "llama2", "{\"num_hidden_layers\":9}", "tensor model.layers.2.input_layernorm.weight is missing, expected shape [32]" },
    { "llama2", "{\"vocab_size\":97}", "tensor model.embed_tokens.weight: expected shape [97, 32], found [96, 32]" },
    { "llama2", "{\"tie_word_embeddings\":true}", "tensor lm_head.weight differs from model.embed_tokens.weight" },
    { "llama2", "{\"eos_token_id\":2.5}", "eos_token_id is 2.5, expected an id below 96" },
    { "llama2", "{\"eos_token_id\":[2,\"end\"]}", "eos_token_id is \"end\"" },
    { "llama2", "{\"bos_token_id\":\"one\"}", "bos_token_id is \"one\"" },
    { "mamba", "{\"conv_kernel\":5}", "width 5" },
    { "mamba", "{\"intermediate_size\":65}", "intermediate_size is 65, expected 64" },
    { "mamba2", "{\"rms_norm\":false}", "rms_norm is false" },
    { "mamba2", "{\"num_heads\":4}", "4 heads of 8 do not make the inner size 64" },
    { "mamba2-ssd", "{\"ssm_cfg\":{\"layer\":\"Mamba2\",\"wobble\":3}}", "ssm_cfg.wobble is 3" },
    { "mamba-ssm", "{\"attn_layer_idx\":[1]}", "attn_layer_idx" },
    { "bamba", "{\"attn_layer_indices\":[4]}", "attn_layer_indices[0] is 4" },
    { "qwen3", "{\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\"]}",
      "layer_types[0] is sliding_attention, but use_sliding_window is false" },
};

static void messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof message_cases / sizeof *message_cases; i++) {
        const message_case *c = &message_cases[i];
        spec_model *m = NULL;
        if (open_patched(&m, c->base, c->changes) == SPEC_OK || !strstr(spec_last_error(), c->message))
            fail_msg("%s, %s: \"%s\", expected \"%s\"", c->base, c->changes, m ? "opened" : spec_last_error(),
                     c->message);
    }
}

/* What is ignored is said. */
static void reports(void **state)
{
    (void)state;
    spec_model *m = NULL;
    spec_model_info info = { .struct_size = sizeof info };
    log_text[0] = '\0';
    OK(open_patched(&m, "gpt_neox", "{\"frobnicate\":1}"));
    OK(spec_model_get_info(m, &info, 1));
    assert_string_equal(info.unknown_keys, "frobnicate");
    assert_non_null(strstr(log_text, "frobnicate"));
    assert_null(strstr(log_text, "tensor")); /* its stored buffers are known */
    spec_model_close(m);
}

static void windows(void **state)
{
    static const struct {
        const char *base, *changes;
        int32_t window[3];
    } cases[] = {
        { "mistral", "{}", { 16, 16, 16 } },
        { "mistral", "{\"sliding_window\":null}", { 0, 0, 0 } },
        { "mistral", "{\"sliding_window\":{\"__remove__\":true}}", { 4096, 4096, 4096 } },
        { "qwen2", "{}", { 0, 0, 0 } },
        { "qwen2", "{\"use_sliding_window\":true}", { 0, 8, 8 } },
        { "qwen2", "{\"use_sliding_window\":true,\"sliding_window\":null}", { 0, 0, 0 } },
        { "qwen3", "{\"use_sliding_window\":true,\"layer_types\":"
                   "[\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}", { 8, 0, 8 } },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spec_model *m = NULL;
        OK(open_patched(&m, cases[i].base, cases[i].changes));
        for (int k = 0; k < 3; k++) {
            const model_attention *a = m->layers[k].branch[0].own;
            assert_int_equal(a->window, cases[i].window[k]);
        }
        spec_model_close(m);
    }
}

/* generation_config.json counts, then config.json. */
static void ids(void **state)
{
    (void)state;
    char dir[64], path[128];
    spec_model *m = NULL;
    OK(open_patched(&m, "llama2", "{\"eos_token_id\":[5,7],\"bos_token_id\":null}"));
    assert_int_equal(m->n_eos, 2);
    assert_int_equal(m->eos[1], 7);
    assert_int_equal(m->bos, -1);
    spec_model_close(m);
    support_variant(dir, GOLDEN "llama2", NULL, 0);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    json_t *g = json_pack("{s:[i,i,i], s:b}", "eos_token_id", 3, 4, 6, "do_sample", 1);
    assert_int_equal(json_dump_file(g, path, 0), 0);
    json_decref(g);
    OK(spec_model_open(&m, backend, dir, NULL));
    assert_int_equal(m->n_eos, 3);
    assert_int_equal(m->eos[2], 6);
    assert_int_equal(m->bos, 1); /* of config.json */
    spec_model_close(m);
    support_variant_remove(dir);
    /* Ids that the model has no rows for: -1 for "none", or those of the model it was made from. They stop nothing. */
    log_text[0] = '\0';
    OK(open_patched(&m, "llama2", "{\"eos_token_id\":[5,96,-1,7],\"bos_token_id\":50256}"));
    assert_int_equal(m->n_eos, 2);
    assert_int_equal(m->eos[0], 5);
    assert_int_equal(m->eos[1], 7);
    assert_int_equal(m->bos, -1);
    assert_non_null(strstr(log_text, "eos_token_id is 96, and the model has ids below 96"));
    assert_non_null(strstr(log_text, "bos_token_id is 50256"));
    spec_model_close(m);
    OK(open_patched(&m, "llama2", "{\"eos_token_id\":-1,\"bos_token_id\":-1}"));
    assert_int_equal(m->n_eos, 0);
    assert_int_equal(m->bos, -1);
    spec_model_close(m);
}

#ifndef SPEC_NO_TOKENIZER
/* A token to pad with that the model was never given a row for: the model loads, and such a token is refused by its id. */
static void added_after_training(void)
{
    char dir[64], path[512];
    spec_model *m = NULL;
    json_t *root;
    assert_non_null(support_directory_new(dir));
    OK(speci_json_read(&root, SPEC_TEST_MODELS "/demo-target/tokenizer.json", (size_t)1 << 24, &speci_malloc));
    json_array_append_new(json_object_get(root, "added_tokens"),
                          json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", 4096, "content", "[PAD]", "single_word", 0,
                                    "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    p.tokenizer_path = path;
    OK(spec_model_open(&m, backend, SPEC_TEST_MODELS "/demo-target", &p));
    assert_int_equal(support_tokenizer_info(spec_model_tokenizer(m)).n_vocab, 4097);
    spec_session *s;
    spec_session_params sp = SPEC_SESSION_PARAMS_INIT;
    spec_request gp = SPEC_REQUEST_INIT;
    spec_result r = SPEC_RESULT_INIT;
    sp.n_ctx = 64;
    gp.n_predict = 2;
    gp.parse_special = 1;
    OK(spec_session_open(&s, m, NULL, &sp));
    FAILS(spec_generate(s, &r, "[PAD]", 5, &gp), SPEC_E_INVALID, "4096");
    spec_result_free(&r);
    OK(spec_generate(s, &r, "a", 1, &gp));
    spec_result_free(&r);
    spec_session_close(s);
    spec_model_close(m);
    assert_int_equal(support_directory_delete(dir), 0);
}

/* A tokenizer of the first n ids of the demo models' 4096. */
static void write_shortened(const char *path, int32_t n)
{
    json_t *root, *id;
    const char *piece;
    void *next;
    OK(speci_json_read(&root, SPEC_TEST_MODELS "/demo-target/tokenizer.json", (size_t)1 << 24, &speci_malloc));
    json_t *model = json_object_get(root, "model");
    json_object_foreach_safe(json_object_get(model, "vocab"), next, piece, id)
        if (json_integer_value(id) >= n) json_object_del(json_object_get(model, "vocab"), piece);
    json_array_clear(json_object_get(model, "merges"));
    json_array_clear(json_object_get(root, "added_tokens"));
    json_object_set_new(root, "post_processor", json_null());
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

/* Rows without a token are common, as padding: a few of them. */
static void fewer_ids(void **state)
{
    static const struct {
        int32_t n;
        bool warns;
    } cases[] = { { 4096, false }, { 3687, false }, { 3686, true }, { 300, true } };
    char dir[SUPPORT_DIRECTORY], path[128];
    (void)state;
    assert_non_null(support_directory_new(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spec_model_params p = SPEC_MODEL_PARAMS_INIT;
        spec_model *m = NULL;
        write_shortened(path, cases[i].n);
        p.tokenizer_path = path;
        log_text[0] = 0;
        OK(spec_model_open(&m, backend, SPEC_TEST_MODELS "/demo-target", &p));
        if ((strstr(log_text, "another model's tokenizer") != NULL) != cases[i].warns) fail_msg("%d ids: %s", cases[i].n, log_text);
        spec_model_close(m);
    }
    assert_int_equal(support_directory_delete(dir), 0);
}

/* A tokenizer is found in the directory; one with ids that the model has no rows for is refused. */
static void tokenizers(void **state)
{
    (void)state;
    spec_model *m = NULL;
    char path[512], link[128], dir[64];
    support_variant(dir, GOLDEN "llama2", NULL, 0);
    snprintf(path, sizeof path, "%s/demo-target/tokenizer.json", SPEC_TEST_MODELS);
    snprintf(link, sizeof link, "%s/tokenizer.json", dir);
    assert_int_equal(symlink(path, link), 0);
    FAILS(spec_model_open(&m, backend, dir, NULL), SPEC_E_FORMAT, "the tokenizer has ids up to 4095, but the model of");
    assert_non_null(strstr(spec_last_error(), "has 96 rows"));
    support_variant_remove(dir);
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    p.tokenizer_path = "/nonexistent/tokenizer.json";
    FAILS(spec_model_open(&m, backend, GOLDEN "llama2", &p), SPEC_E_IO, "/nonexistent/tokenizer.json");
    snprintf(path, sizeof path, "%s/demo-target", SPEC_TEST_MODELS);
    OK(spec_model_open(&m, backend, path, NULL));
    assert_int_equal(support_tokenizer_info(spec_model_tokenizer(m)).n_vocab, 4096);
    spec_model_close(m);
    added_after_training();
}

/* --- files that are not what their names say --- */

/* What a clone without git-lfs has in place of large files; and text that is no tokenizer. */
static void not_the_file(void **state)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    static const struct {
        variant_file file;
        const char *message;
    } cases[] = {
        { { "config.json", pointer }, "config.json: a git-lfs pointer" },
        { { "model.safetensors", pointer }, "model.safetensors: a git-lfs pointer" },
        { { "tokenizer.json", pointer }, "tokenizer.json: a git-lfs pointer" },
        { { "tokenizer.json", "tokens" }, "tokenizer.json: line 1" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[64];
        spec_model *m = NULL;
        support_variant(dir, DEMO_TARGET, &cases[i].file, 1);
        FAILS(spec_model_open(&m, backend, dir, NULL), SPEC_E_FORMAT, cases[i].message);
        assert_null(m);
        support_variant_remove(dir);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(keys_nobody_asked_for),
        cmocka_unit_test(rotary_keys),
        cmocka_unit_test(rotary_frequencies),
        cmocka_unit_test(refused_keys),
        cmocka_unit_test(messages),
        cmocka_unit_test(reports),
        cmocka_unit_test(windows),
        cmocka_unit_test(ids),
#ifndef SPEC_NO_TOKENIZER
        cmocka_unit_test(tokenizers), cmocka_unit_test(fewer_ids),
        cmocka_unit_test(not_the_file),
#endif
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
