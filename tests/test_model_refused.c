/* test_model_refused.c - files that describe another network than they hold: tensors that nobody takes, classes of other
 * families, keys that change the mathematics, sizes that no device has. Each is refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support_decode.h"

#define GOLDEN SPEC_TEST_DIR "/golden/"

static spec_backend *backend;
static char log_text[2048];

static void on_log(void *user_data, spec_log_level level, const char *text)
{
    (void)user_data;
    const size_t n = strlen(log_text);
    if (level >= SPEC_LOG_WARN) snprintf(log_text + n, sizeof log_text - n, "%s\n", text);
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

/* golden/<base> with keys of config.json changed, null removes. */
static spec_status open_changed(spec_model **out, const char *base, const char *changes)
{
    char dir[64], path[512];
    snprintf(path, sizeof path, GOLDEN "%s", base);
    char *text = support_json_with(path, "config.json", changes);
    const variant_file config = { "config.json", text };
    support_variant(dir, path, &config, 1);
    log_text[0] = '\0';
    const spec_status status = spec_model_open(out, backend, dir, NULL);
    support_variant_remove(dir);
    free(text);
    return status;
}

/* --- tensors that nobody takes --- */

/* Writes dir/model.safetensors: that of `base` and a tensor [1] more. */
static void write_with_tensor(const char *dir, const char *base, const char *name)
{
    char path[600], *data, *header;
    size_t n, n_header = 0;
    json_t *json;
    snprintf(path, sizeof path, "%s/model.safetensors", base);
    OK(speci_file_read(&data, &n, path, 1u << 26, NULL));
    for (int i = 7; i >= 0; i--) n_header = n_header << 8 | (uint8_t)data[i];
    OK(speci_json_parse(&json, data + 8, n_header, path));
    const size_t at = n - 8 - n_header;
    json_object_set_new(json, name, json_pack("{s:s, s:[i], s:[I,I]}", "dtype", "F32", "shape", 1, "data_offsets", (json_int_t)at,
                                              (json_int_t)at + 4));
    header = json_dumps(json, JSON_COMPACT);
    const uint64_t size = strlen(header);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i < 8; i++) fputc((int)(size >> 8 * i & 255), f);
    fwrite(header, 1, size, f);
    fwrite(data + 8 + n_header, 1, at, f);
    fwrite("\0\0\0\0", 1, 4, f);
    assert_int_equal(fclose(f), 0);
    free(header);
    json_decref(json);
    speci_free(NULL, data);
}

static spec_status open_with_tensor(spec_model **out, const char *name, const char *changes)
{
    char dir[64];
    char *text = support_json_with(GOLDEN "llama2", "config.json", changes);
    const variant_file files[2] = { { "config.json", text }, { "model.safetensors", NULL } };
    support_variant(dir, GOLDEN "llama2", files, 2);
    write_with_tensor(dir, GOLDEN "llama2", name);
    log_text[0] = '\0';
    const spec_status status = spec_model_open(out, backend, dir, NULL);
    support_variant_remove(dir);
    free(text);
    return status;
}

/* What another network would compute with is refused; a left-over is reported, or, where every file has it, not even that. */
static void tensors(void **state)
{
    static const struct {
        const char *name, *changes, *refused, *logged;
    } cases[] = {
        { "model.layers.0.self_attn.k_proj.bias", "{}", "k_proj.bias would count, but a llama model has none", NULL },
        { "model.layers.1.self_attn.q_norm.weight", "{}", "q_norm.weight would count", NULL },
        { "model.layers.1.mlp.experts.0.up_proj.weight", "{}", "experts.0.up_proj.weight would count", NULL },
        { "model.layers.0.self_attn.q_proj.weight_scale", "{}", "weight_scale would count", NULL },
        { "model.layers.2.mlp.up_proj.weight", "{}", "is of layer 2 (from 0), but", NULL },
        { "model.layers.2.mlp.up_proj.weight", "{\"num_nextn_predict_layers\": 1}", NULL, "1 tensor not used, model.layers.2" },
        { "model.layers.3.mlp.up_proj.weight", "{\"num_nextn_predict_layers\": 1}", "is of layer 3", NULL },
        { "model.norm.bias", "{}", "model.norm.bias would count", NULL },
        { "lm_head.bias", "{}", "lm_head.bias would count", NULL },
        { "model.embed_positions.weight", "{}", "model.embed_positions.weight would count", NULL },
        { "model.layers.0.self_attn.rotary_emb.inv_freq", "{}", NULL, NULL },
        { "model.layers.0.attn.causal_mask", "{}", NULL, NULL },
        { "model.layers.0.self_attn.q_proj.lora_A.weight", "{}", NULL, "1 tensor not used, model.layers.0." },
        { "model.mtp.layers.0.norm.weight", "{}", NULL, "1 tensor not used" },
        { "mtp.norm.weight", "{}", NULL, "1 tensor not used" },
        { "medusa_head.0.0.linear.weight", "{}", NULL, "1 tensor not used" },
        { "v_head.summary.weight", "{}", NULL, "1 tensor not used" },
        { "vision_tower.layers.0.norm.weight", "{}", NULL, "1 tensor not used" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spec_model *m = NULL;
        const spec_status status = open_with_tensor(&m, cases[i].name, cases[i].changes);
        if (cases[i].refused) {
            if (!status || !strstr(spec_last_error(), cases[i].refused))
                fail_msg("%s: %s", cases[i].name, status ? spec_last_error() : "opened");
        } else if (status || (cases[i].logged ? !strstr(log_text, cases[i].logged) : log_text[0] != '\0')) {
            fail_msg("%s: %s", cases[i].name, status ? spec_last_error() : log_text);
        }
        spec_model_close(m);
    }
    spec_model *m = NULL;
    FAILS(open_changed(&m, "llama2", "{\"num_hidden_layers\": 1}"), SPEC_E_FORMAT, "is of layer 1 (from 0), but");
    FAILS(open_changed(&m, "mamba2", "{\"num_hidden_layers\": 1}"), SPEC_E_FORMAT, "is of layer 1 (from 0), but");
}

/* --- configs --- */

typedef struct config_case {
    const char *base, *changes, *message; /* NULL: opens, and every key is known */
} config_case;

static void check_config(const config_case *c)
{
    spec_model *m = NULL;
    spec_model_info info = { .struct_size = sizeof info };
    const spec_status status = open_changed(&m, c->base, c->changes);
    if (c->message) {
        if (!status || !strstr(spec_last_error(), c->message))
            fail_msg("%s, %s: \"%s\", expected \"%s\"", c->base, c->changes, status ? spec_last_error() : "opened", c->message);
        return;
    }
    if (status) fail_msg("%s, %s: %s", c->base, c->changes, spec_last_error());
    OK(spec_model_get_info(m, &info, 1));
    if (info.unknown_keys[0]) fail_msg("%s, %s: not known: %s", c->base, c->changes, info.unknown_keys);
    spec_model_close(m);
}

static void classes(void **state)
{
    static const config_case cases[] = {
        { "llama2", "{\"architectures\": [\"HeliumForCausalLM\"]}",
          "architectures says HeliumForCausalLM, but model_type is \"llama\"" },
        { "llama2", "{\"architectures\": [\"Ernie4_5ForCausalLM\"]}", "Ernie4_5ForCausalLM" },
        { "llama2", "{\"architectures\": [\"LlamaForCausalLMEagle\"]}", "LlamaForCausalLMEagle" },
        { "llama2", "{\"architectures\": [\"Llama4ForCausalLM\"]}", "Llama4ForCausalLM" },
        { "llama2", "{\"architectures\": [\"LlamaForCausalLM\", \"GemmaForCausalLM\"]}", "GemmaForCausalLM" },
        { "mamba", "{\"architectures\": [\"FalconMambaForCausalLM\"]}", "FalconMambaForCausalLM, but model_type is \"mamba\"" },
        { "mamba", "{\"architectures\": [\"Mamba2ForCausalLM\"]}", "Mamba2ForCausalLM" },
        { "llama2", "{\"architectures\": [\"LLaMAForCausalLM\"]}", NULL },
        { "llama2", "{\"architectures\": [\"LlamaModel\"]}", NULL },
        { "llama2", "{\"architectures\": null}", NULL },
        { "llama2", "{\"architectures\": []}", NULL },
        { "gpt_neox", "{\"architectures\": [\"GPTNeoXForCausalLM\"]}", NULL },
        { "exaone", "{\"architectures\": [\"LlamaForCausalLM\"]}", NULL },
        { "internlm3", "{\"architectures\": [\"LlamaForCausalLM\"]}", NULL },
        { "mistral", "{\"architectures\": [\"LlamaForCausalLM\"]}", "LlamaForCausalLM" },
        { "exaone", "{\"architectures\": [\"Exaone4ForCausalLM\"]}", "Exaone4ForCausalLM" },
        { "llama2", "{\"architectures\": [\"ExaoneForCausalLM\"]}", "ExaoneForCausalLM, but model_type is \"llama\"" },
        { "seed_oss", "{\"architectures\": [\"SeedOssForCausalLM\"]}", NULL },
        { "lfm2", "{\"architectures\": [\"Lfm2ForCausalLM\"]}", NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_config(&cases[i]);
}

static void families(void **state)
{
    static const config_case cases[] = {
        { "llama2", "{\"model_type\": \"deepseek_v3\", \"kv_lora_rank\": 512, \"n_routed_experts\": 256}",
          "it needs latent attention (MLA), mixtures of experts, which is not supported" },
        { "llama2", "{\"model_type\": \"mixtral\", \"num_local_experts\": 8}", "it needs mixtures of experts" },
        { "llama2", "{\"model_type\": \"llava\", \"text_config\": {\"model_type\": \"llama\"}}",
          "it wraps a text model of model_type llama (text_config): save that alone" },
        { "llama2", "{\"model_type\": \"x\", \"text_config\": {\"model_type\": \"y\", \"num_experts\": 4}}",
          "it wraps a text model of model_type y (text_config) that needs mixtures of experts, which is not supported" },
        { "llama2", "{\"model_type\": \"rwkv\", \"rescale_every\": 6}", "it needs time mixing (RWKV)" },
        { "falcon", "{\"model_type\": \"RefinedWebModel\"}",
          "it is an older name of falcon: take the config.json that the model has today" },
        { "falcon", "{\"model_type\": \"RefinedWeb\", \"alibi\": true}", "it needs linear position biases" },
        { "llama2", "{\"model_type\": \"persimmon\"}", "docs/adding-a-model.md says how a family is added" },
        { "llama2", "{\"model_type\": \"t5\", \"is_encoder_decoder\": true}", "it needs encoder-decoder models" },
        { "llama2", "{\"model_type\": \"bloom\", \"alibi\": true}", "it needs linear position biases" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_config(&cases[i]);
}

/* Keys that other classes have, on a llama: with a value that changes the mathematics, and with the one that does not. */
static void mathematics(void **state)
{
    static const struct {
        const char *key, *changes, *neutral; /* values, as JSON */
    } cases[] = {
        { "attn_scale", "0.1", "null" }, { "embed_scale", "12.0", "1.0" }, { "residual_scale", "0.5", "1" },
        { "logits_soft_cap", "30.0", "null" }, { "attn_softcap", "50", "0" }, { "use_alibi", "true", "false" },
        { "rope_interleave", "true", "false" }, { "qk_norm", "true", "false" }, { "use_qk_layernorm", "true", "false" },
        { "norm_type", "\"layernorm\"", "\"rms_norm\"" }, { "parallel_residual", "true", "false" },
        { "use_attention_sinks", "true", "false" }, { "attn_output_gate", "true", "false" }, { "lm_head_bias", "true", "false" },
        { "use_bias", "true", "false" }, { "no_bias", "false", "true" }, { "rotary_dim", "16", "null" },
        { "rope_pct", "0.25", "1.0" }, { "use_rope", "false", "true" }, { "nope_layer_interval", "4", "null" },
        { "local_window_size", "128", "null" }, { "num_experts", "8", "0" }, { "is_moe", "true", "false" },
        { "kv_lora_rank", "64", "null" }, { "v_head_dim", "8", "null" }, { "logit_scale", "0.0625", "1" },
        { "lm_head_multiplier", "2", "1" }, { "use_post_norm", "true", "false" }, { "pre_norm", "false", "true" },
        { "clip_qkv", "8", "null" }, { "mup_enabled", "true", "false" }, { "num_kv_shared_layers", "2", "0" },
        { "attention_type", "\"block_sparse\"", "null" }, { "causal", "false", "true" }, { "layer_types", "[\"conv\", \"conv\"]",
        "[\"full_attention\", \"full_attention\"]" }, { "quantization", "{\"bits\": 4, \"group_size\": 64}", "null" },
        { "quantization_config", "{\"bits\": 4}", "null" }, { "text_config", "{}", "null" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char changes[256], message[64];
        snprintf(changes, sizeof changes, "{\"%s\": %s}", cases[i].key, cases[i].changes);
        snprintf(message, sizeof message, "config.json: %s is ", cases[i].key);
        check_config(&(config_case){ "llama2", changes, message });
        snprintf(changes, sizeof changes, "{\"%s\": %s}", cases[i].key, cases[i].neutral);
        check_config(&(config_case){ "llama2", changes, NULL });
    }
}

/* Keys of training and bookkeeping, with words in them that mathematics has too. */
static void inert_keys(void **state)
{
    static const config_case cases[] = {
        { "llama2", "{\"attention_dropout\": 0.1, \"attn_pdrop\": 0.1, \"bias_initializer\": \"zeros\"}", NULL },
        { "llama2", "{\"layer_norm_eps\": 1e-5, \"gradient_clip\": 1, \"z_loss_scale\": 0.1, \"image_token_index\": 7}", NULL },
        { "llama2", "{\"max_window_layers\": 28, \"model_max_length\": 4096, \"num_nextn_predict_layers\": 1}", NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_config(&cases[i]);
}

/* --- every key of the classes --- */

enum { N_KEY_IDS = 40 };

/* Logits of the last of some tokens, by single steps; free them. */
static float *last_logits(spec_model *m)
{
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(m, &info, 1));
    float *row = calloc((size_t)info.n_vocab, sizeof *row);
    spec_session *s = support_session(m, 1, 1);
    int32_t seq, first = 0;
    OK(spec_sequence_add(s, &seq, &first, 1, NULL));
    for (int32_t t = 0; t < N_KEY_IDS; t++) support_plain_step(s, seq, t * 7 % 90, (t + 1) * 7 % 90, row);
    spec_session_close(s);
    return row;
}

/* NULL, or what is wrong with a key so changed. */
static const char *wrong_with(const char *base, const char *changes, const char *effect, const float *logits)
{
    spec_model *m = NULL;
    spec_model_info info = { .struct_size = sizeof info };
    const spec_status status = open_changed(&m, base, changes);
    if (status == SPEC_E_FORMAT || status == SPEC_E_UNSUPPORTED) return NULL;
    if (status) return spec_last_error();
    OK(spec_model_get_info(m, &info, 1));
    const char *wrong = info.unknown_keys[0] ? "is not known, and was ignored" : NULL;
    if (!wrong && strcmp(effect, "refused") != 0) {
        float *changed = last_logits(m);
        const bool same = memcmp(changed, logits, (size_t)info.n_vocab * sizeof *changed) == 0;
        if (same != (strcmp(effect, "same") == 0)) wrong = same ? "is ignored" : "changes the logits, and not those of the class";
        free(changed);
    }
    spec_model_close(m);
    return wrong;
}

static void check_class(const char *base, json_t *keys)
{
    spec_model *m = NULL;
    const char *key;
    json_t *c;
    OK(open_changed(&m, base, "{}"));
    float *logits = last_logits(m);
    spec_model_close(m);
    json_object_foreach(keys, key, c) {
        json_t *change = json_pack("{s:O}", key, json_object_get(c, "value"));
        char *text = json_dumps(change, JSON_COMPACT);
        const char *wrong = wrong_with(base, text, json_string_value(json_object_get(c, "effect")), logits);
        if (wrong) fail_msg("%s, %s: %s", base, text, wrong);
        free(text);
        json_decref(change);
    }
    free(logits);
}

/* Each key changed in turn (tools/make_config_keys.py): honoured as the class does, without effect where the class has none, or
 * refused. */
static void keys_of_classes(void **state)
{
    const char *base;
    json_t *classes, *keys;
    (void)state;
    OK(speci_json_read(&classes, SPEC_TEST_DIR "/config_keys.json", 1u << 20, NULL));
    json_object_foreach(classes, base, keys) check_class(base, keys);
    json_decref(classes);
}

/* --- heads --- */

/* A head size that the device has no attention for, before weights are asked for. */
static void heads(void **state)
{
    static const config_case cases[] = {
        { "llama2", "{\"head_dim\": 576}", "config.json: head_dim is 576" },
        { "bamba", "{\"head_dim\": 1024, \"attn_layer_indices\": [0]}", "head_dim is 1024" },
        { "lfm2", "{\"head_dim\": 1024, \"layer_types\": null, \"full_attn_idxs\": null}", "head_dim is 1024" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_config(&cases[i]);
}

static spec_status in_f32_alone(spec_device *dev, const spec_op *op)
{
    if (op->u.attention.kv.dtype != SPEC_DTYPE_F32) return speci_fail(SPEC_E_UNSUPPORTED, "f32 alone");
    return speci_cpu_ops.op[SPEC_OP_ATTENTION].supports(dev, op);
}

/* A device whose attention is of one type refuses others by the type, and not by the size of a head alone. */
static void types_of_attention(void **state)
{
    spec_backend_ops ops = speci_cpu_ops;
    spec_backend *narrow = NULL;
    spec_model *m = NULL;
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    (void)state;
    ops.op[SPEC_OP_ATTENTION].supports = in_f32_alone;
    OK(spec_backend_open_ops(&narrow, &ops, "portable", NULL));
    p.dtype = SPEC_DTYPE_BF16;
    FAILS(spec_model_open(&m, narrow, GOLDEN "llama2", &p), SPEC_E_UNSUPPORTED,
          "the compute type bf16: this device has no such attention: f32 alone");
    p.dtype = SPEC_DTYPE_F32;
    OK(spec_model_open(&m, narrow, GOLDEN "llama2", &p));
    spec_model_close(m);
    spec_backend_close(narrow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors),     cmocka_unit_test(classes),    cmocka_unit_test(families),
        cmocka_unit_test(mathematics), cmocka_unit_test(inert_keys), cmocka_unit_test(heads),
        cmocka_unit_test(keys_of_classes), cmocka_unit_test(types_of_attention),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
