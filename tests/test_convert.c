/* test_convert.c - models written as GGUF files. Golden checkpoints against what llama.cpp's converter makes of them
 * (golden/gguf): the same tensors and keys, and the logits of the checkpoint; every type; tokenizers; GGUF files to
 * others; what is refused, and that nothing is left behind then. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "models/files/files_gguf_write.h"
#include "models/text/text_gguf.h"
#include "tests/support_decode.h"
#include "tests/support_directory.h"
#include "tests/support_file.h"
#include "tests/support_memory.h"
#include "tests/test.h"

#define GOLDEN SPEC_TEST_DIR "/golden"
enum { N_IDS = 48, DIM = 256, N_VOCAB = 96, N_LAYER = 8 };

static spec_backend *backend;
static char file[128];

static void convert(const char *from, const char *to, const char *type)
{
    spec_convert_params p = SPEC_CONVERT_PARAMS_INIT;
    p.type = type;
    OK(spec_model_convert(backend, from, to, &p));
}

/* The bytes of a file, which the caller frees. */
static uint8_t *bytes_of_file(const char *path, long *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = ftell(f);
    rewind(f);
    uint8_t *bytes = malloc((size_t)*n + 1);
    assert_int_equal(fread(bytes, 1, (size_t)*n, f), *n);
    fclose(f);
    return bytes;
}

/* A GGUF file, read. */
typedef struct opened {
    model_checkpoint *c;
    const speci_gguf *g;
} opened;

static opened open_file(const char *path)
{
    opened o;
    OK(speci_checkpoint_open(&o.c, path, NULL));
    o.g = speci_checkpoint_gguf(o.c);
    return o;
}

/* --- against llama.cpp --- */

typedef struct family_case {
    const char *name;
    double near; /* values of tensors: exp and frequencies are another library's */
    bool same;   /* logits are the checkpoint's, bit for bit */
} family_case;

static const family_case family_cases[] = {
    { "llama2", 0, true },      { "llama3", 1e-6, false }, { "mistral", 0, true },    { "qwen2", 0, true },     { "qwen3", 0, true },
    { "mamba", 1e-6, true },    { "mamba2", 1e-6, true },  { "gpt_neox", 0, true },   { "phi3", 0, true },      { "phi3-long", 1e-6, true },
    { "granite", 0, true },     { "bamba", 1e-6, true },   { "starcoder2", 0, true }, { "granitemoehybrid", 1e-6, true },
    { "gemma", 0, true },       { "smollm3", 0, true },    { "olmo", 0, true },       { "seed_oss", 0, true },
    { "ernie4_5", 0, true },    { "stablelm", 0, true },   { "cohere", 0, true },     { "lfm2", 0, true },
    { "olmo2", 0, true },       { "olmo3", 0, true },      { "exaone4", 0, true },    { "glm4", 0, true },
    { "cohere2_four", 0, true }, { "chatglm", 0, true },   { "falcon", 0, true },     { "falcon-new", 0, true },
    { "exaone", 0, true },      { "phi", 0, true },
    { "internlm3", 0, true },   { "gemma2", 0, true },     { "phi4_mini", 1e-6, false },
};

/* Keys of the golden files that ours say otherwise, or do not have: lengths that llama.cpp makes up, a scaling of "none", what is said
 * twice, what is about a tokenizer that is not there. */
static bool is_other(const char *key)
{
    static const char *const others[] = { "granitehybrid.context_length", "chatglm.context_length", "command-r.rope.scaling.type",
                                          "cohere2.rope.scaling.type", "exaone.attention.layer_norm_epsilon" };
    for (int i = 0; i < N_ELEMENTS(others); i++)
        if (strcmp(key, others[i]) == 0) return true;
    return strncmp(key, "tokenizer.", 10) == 0;
}

static void same_value(const family_case *c, const char *key, const speci_gguf_value *a, const speci_gguf_value *b)
{
    if (!a) fail_msg("%s: %s is missing", c->name, key);
    if (a->type != b->type || a->is_array != b->is_array || a->n != b->n) fail_msg("%s: %s is of another type", c->name, key);
    json_t *x = speci_gguf_json(a), *y = speci_gguf_json(b);
    const bool near = json_is_real(x) && fabs(json_real_value(x) / json_real_value(y) - 1) < 1e-6;
    if (!near && !json_equal(x, y)) fail_msg("%s: %s has another value", c->name, key);
    json_decref(x);
    json_decref(y);
}

static void same_keys(const family_case *c, const speci_gguf *ours, const speci_gguf *theirs)
{
    for (size_t i = 0; i < theirs->n_pair; i++) {
        const char *key = theirs->pairs[i].key;
        const bool about = strcmp(key, "general.name") == 0 || strcmp(key, "general.size_label") == 0;
        if (!about && !is_other(key)) same_value(c, key, speci_gguf_find(ours, key), &theirs->pairs[i].value);
    }
}

static void same_tensor(const family_case *c, const model_tensor *a, const model_tensor *b)
{
    if (!a) fail_msg("%s: tensor %s is missing", c->name, b->name);
    const size_t n = b->bytes / sizeof(float);
    if (a->n_dim != b->n_dim || memcmp(a->dim, b->dim, (size_t)b->n_dim * sizeof *b->dim) != 0 || a->bytes != b->bytes)
        fail_msg("%s: tensor %s has another shape", c->name, b->name);
    assert_int_equal(a->dtype, SPEC_DTYPE_F32);
    for (size_t i = 0; i < n; i++) {
        float x, y;
        speci_tensor_floats(&x, a, i, 1);
        speci_tensor_floats(&y, b, i, 1);
        if (!(fabs((double)x - (double)y) <= c->near * fabs((double)y)))
            fail_msg("%s: tensor %s: value %zu is %.9g, expected %.9g", c->name, b->name, i, (double)x, (double)y);
    }
}

static void same_tensors(const family_case *c, const model_checkpoint *ours, const model_checkpoint *theirs)
{
    size_t n_ours, n;
    const model_tensor *t = speci_checkpoint_tensors(theirs, &n);
    (void)speci_checkpoint_tensors(ours, &n_ours);
    assert_int_equal(n_ours, n);
    for (size_t i = 0; i < n; i++) {
        const model_tensor *a = speci_checkpoint_find(ours, t[i].name);
        if (a) OK(speci_checkpoint_load(ours, a));
        OK(speci_checkpoint_load(theirs, &t[i]));
        same_tensor(c, a, &t[i]);
    }
}

static float *logits_of(const char *path, int32_t *n_vocab)
{
    spec_model *m = support_model(backend, path, SPEC_DTYPE_F32);
    spec_model_info info = SPEC_STRUCT_INIT(spec_model_info);
    OK(spec_model_get_info(m, &info, 1));
    *n_vocab = info.n_vocab;
    float *rows = calloc((size_t)(N_IDS * info.n_vocab), sizeof *rows);
    int32_t seq, ids[N_IDS + 1];
    for (int32_t i = 0; i <= N_IDS; i++) ids[i] = (7 * i * i + 3 * i + 5) % info.n_vocab;
    spec_session *s = support_session(m, 1, 1);
    OK(spec_sequence_add(s, &seq, ids, 1, NULL));
    for (int32_t t = 0; t < N_IDS; t++) support_plain_step(s, seq, ids[t], ids[t + 1], rows + t * info.n_vocab);
    spec_session_close(s);
    spec_model_close(m);
    return rows;
}

static double apart(const char *a, const char *b)
{
    int32_t n_a, n_b;
    float *x = logits_of(a, &n_a), *y = logits_of(b, &n_b);
    assert_int_equal(n_a, n_b);
    const double error = support_error(x, y, (size_t)(N_IDS * n_a));
    free(x);
    free(y);
    return error;
}

static void families(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof family_cases / sizeof *family_cases; i++) {
        const family_case *c = &family_cases[i];
        char from[512], theirs[512];
        snprintf(from, sizeof from, GOLDEN "/%s", c->name);
        snprintf(theirs, sizeof theirs, GOLDEN "/gguf/%s.gguf", c->name);
        convert(from, file, "f32");
        const opened a = open_file(file), b = open_file(theirs);
        same_keys(c, a.g, b.g);
        same_tensors(c, a.c, b.c);
        speci_checkpoint_close(a.c);
        speci_checkpoint_close(b.c);
        const double error = apart(file, from);
        if (c->same ? error != 0 : !(error < 3e-6)) fail_msg("%s: logits differ by %g", c->name, error);
    }
}

/* The config of a directory with changes, in which 1234 stands for null; the caller frees it. */
static char *changed_config(const char *from, const char *changes)
{
    char *config = support_json_with(from, "config.json", changes), *null = strstr(config, "1234");
    if (null) memcpy(null, "null", 4);
    return config;
}

/* What the golden configs do not have: scalings, older spellings, defaults. The file has the logits of the directory; Llama 3's divisors
 * are rounded to float32. */
static const struct {
    const char *name, *changes;
} variant_cases[] = {
    { "gemma3", "{\"query_pre_attn_scalar\": 16, \"sliding_window\": 7}" }, /* the golden's scalar cannot be said */
    { "gemma3",
      "{\"query_pre_attn_scalar\": 16, \"layer_types\": null, \"sliding_window_pattern\": 3, \"rope_local_base_freq\": 500.0}" },
    { "gemma3", "{\"query_pre_attn_scalar\": 16, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}}" },
    { "gemma2", "{\"attn_logit_softcapping\": 50.0, \"final_logit_softcapping\": 30.0, \"sliding_window\": 7}" },
    { "gemma2", "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}, \"rope_theta\": 500.0}" },
    { "llama2", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}" },
    { "llama2", "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 64}}" },
    { "llama2", "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32, "
                "\"beta_fast\": 16, \"beta_slow\": 2}}" },
    { "llama2", "{\"rope_theta\": null, \"num_key_value_heads\": null, \"max_position_embeddings\": null}" },
    { "internlm3", "{\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 6.0}}" },
    { "mistral", "{\"sliding_window\": null}" },
    { "starcoder2", "{\"sliding_window\": 1234}" },
    { "smollm3", "{\"sliding_window\": 8, \"no_rope_layer_interval\": 4}" }, /* a window that is switched off */
    { "qwen2", "{\"use_sliding_window\": true, \"max_window_layers\": 99}" }, /* of more layers than there are */
    { "gpt_neox", "{\"rotary_emb_base\": 500, \"use_parallel_residual\": false, \"rotary_pct\": 0.5}" },
    { "qwen3", "{\"rope_parameters\": {\"rope_theta\": 777.0, \"rope_type\": \"default\"}}" },
    { "mamba", "{\"time_step_rank\": 3, \"layer_norm_epsilon\": null}" },
    { "cohere", "{\"logit_scale\": 0.25}" },
    { "olmo3", "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32}}" },
    { "olmo3",
      "{\"rope_theta\": null, \"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 300.0, \"rope_type\": \"default\"}, "
      "\"full_attention\": {\"rope_theta\": 700.0, \"rope_type\": \"linear\", \"factor\": 2.0}}}" },
    { "exaone4", "{\"sliding_window\": 1234, \"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"]}" },
    /* none turns */
    { "exaone4", "{\"sliding_window\": 7, \"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"]}" },
    { "exaone4", "{\"layer_types\": null, \"sliding_window_pattern\": \"LG\", \"sliding_window\": 7}" },
    { "exaone4",
      "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 16.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
      "\"original_max_position_embeddings\": 32}}" },
    { "exaone4", "{\"layer_types\": null, \"sliding_window_pattern\": 2, \"rope_theta\": 500.0}" },
    { "glm4", "{\"partial_rotary_factor\": 0.25, \"rope_theta\": 500.0}" },
    { "glm", "{\"rope_theta\": 500.0, \"rms_norm_eps\": 1.5625e-7, \"max_position_embeddings\": 99}" }, /* heads wider than a share */
    { "cohere2", "{\"logit_scale\": 0.25}" }, /* every third layer, which we write down */
    { "cohere2", "{\"layer_types\": [\"full_attention\", \"sliding_attention\", \"sliding_attention\"], \"sliding_window\": 7}" },
    { "olmo3", "{\"layer_types\": null, \"sliding_window\": 7}" },
    { "gemma", "{\"hidden_act\": \"gelu\"}" }, /* which means its tanh form */
    { "falcon", "{\"rope_theta\": 500.0, \"num_kv_heads\": null}" },
    { "exaone", "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2.0}}" },
    { "phi", "{\"partial_rotary_factor\": 1.0, \"rope_theta\": 500.0}" },
};

static void variants(void **state)
{
    (void)state;
    for (int i = 0; i < N_ELEMENTS(variant_cases); i++) {
        const char *name = variant_cases[i].name, *changes = variant_cases[i].changes;
        char from[512], base[64];
        snprintf(from, sizeof from, GOLDEN "/%s", name);
        char *config = changed_config(from, changes);
        const variant_file changed = { "config.json", config };
        support_variant(base, from, &changed, 1);
        convert(base, file, "f32");
        const double error = apart(file, base);
        const bool divided = strstr(changes, "llama3") != NULL;
        if (divided ? !(error < 3e-6) : error != 0) fail_msg("%s with %s: logits differ by %g", name, changes, error);
        free(config);
        support_variant_remove(base);
    }
}

/* --- types --- */

/* A directory with a Llama of 256 dimensions, random; the first embedding is `odd`. */
static void make_directory(const char *path, float odd)
{
    static const struct {
        const char *name;
        int64_t rows, cols; /* cols 0: a vector */
    } of_layer[] = { { "input_layernorm", DIM, 0 }, { "post_attention_layernorm", DIM, 0 }, { "self_attn.q_proj", DIM, DIM },
                     { "self_attn.k_proj", DIM / 2, DIM }, { "self_attn.v_proj", DIM / 2, DIM }, { "self_attn.o_proj", DIM, DIM },
                     { "mlp.gate_proj", DIM, DIM }, { "mlp.up_proj", DIM, DIM }, { "mlp.down_proj", DIM, DIM } };
    char name[128], at[600];
    test_random random = { 7 };
    json_t *header = json_object();
    float *data = malloc((size_t)(N_LAYER * 8 * DIM * DIM + 4 * N_VOCAB * DIM) * sizeof *data);
    size_t n = 0;
    assert_non_null(data);
    for (int i = -2; i < N_LAYER * 9 + 1; i++) {
        const int k = i >= 0 ? i % 9 : 0;
        const bool last = i == N_LAYER * 9, vector = last || (i >= 0 && of_layer[k].cols == 0);
        const int64_t rows = i < 0 ? N_VOCAB : last ? DIM : of_layer[k].rows, cols = vector ? 1 : DIM;
        if (i < 0) snprintf(name, sizeof name, "%s.weight", i == -2 ? "model.embed_tokens" : "lm_head");
        else if (last) snprintf(name, sizeof name, "model.norm.weight");
        else snprintf(name, sizeof name, "model.layers.%d.%s.weight", i / 9, of_layer[k].name);
        json_t *shape = vector ? json_pack("[I]", (json_int_t)rows) : json_pack("[I,I]", (json_int_t)rows, (json_int_t)cols);
        json_object_set_new(header, name, json_pack("{s:s, s:o, s:[I,I]}", "dtype", "F32", "shape", shape, "data_offsets",
                                                    (json_int_t)(n * 4), (json_int_t)((n + (size_t)(rows * cols)) * 4)));
        for (int64_t j = 0; j < rows * cols; j++)
            data[n++] = (float)(vector ? 1 + 0.1 * test_signed(&random) : (test_signed(&random) + test_signed(&random)) / 12);
    }
    data[0] = odd;
    char *text = json_dumps(header, JSON_COMPACT);
    const uint64_t n_text = strlen(text);
    snprintf(at, sizeof at, "mkdir -p '%s'", path);
    assert_int_equal(system(at), 0);
    snprintf(at, sizeof at, "%s/model.safetensors", path);
    FILE *f = fopen(at, "wb");
    assert_non_null(f);
    assert_true(fwrite(&n_text, 8, 1, f) == 1 && fwrite(text, 1, n_text, f) == n_text && fwrite(data, 4, n, f) == n);
    fclose(f);
    snprintf(at, sizeof at, "%s/config.json", path);
    f = fopen(at, "w");
    assert_non_null(f);
    fprintf(f, "{\"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d, "
               "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": %d, \"tie_word_embeddings\": false, "
               "\"eos_token_id\": [3, 5]}", DIM, DIM, N_LAYER, N_VOCAB);
    fclose(f);
    free(text);
    json_decref(header);
    free(data);
}

static const char *type_of(const opened *o, const char *name)
{
    const model_tensor *t = speci_checkpoint_find(o->c, name);
    assert_non_null(t);
    return t->dtype_name;
}

/* Errors are of the kind of the types' steps; the logits of a random model have nothing to average them out. */
static void types(void **state)
{
    (void)state;
    static const struct {
        const char *type, *most, *head;
        double error;
        uint32_t file_type;
    } cases[] = {
        { "f32", "F32", "F32", 0, 0 },           { "f16", "F16", "F16", 3e-3, 1 },       { "bf16", "BF16", "BF16", 2.5e-2, 32 },
        { "q8_0", "Q8_0", "Q8_0", 5e-2, 7 },     { "q6_k", "Q6_K", "Q6_K", 0.15, 18 },   { "q5_k", "Q5_K", "Q5_K", 0.3, 16 },
        { "q5_k_m", "Q5_K", "Q6_K", 0.3, 17 },   { "q4_k", "Q4_K", "Q4_K", 0.6, 14 },    { "q4_k_m", "Q4_K", "Q6_K", 0.6, 15 },
        { "q5_1", "Q5_1", "Q5_1", 0.3, 9 },      { "q5_0", "Q5_0", "Q5_0", 0.3, 8 },    { "q4_1", "Q4_1", "Q4_1", 0.6, 3 },
        { "q4_0", "Q4_0", "Q4_0", 0.6, 2 },
    };
    char from[128], again[140];
    snprintf(from, sizeof from, "%s/random", support_directory);
    snprintf(again, sizeof again, "%s.again", file);
    make_directory(from, 0.1f);
    for (int i = 0; i < N_ELEMENTS(cases); i++) {
        int64_t file_type = -1;
        convert(from, file, cases[i].type);
        const opened o = open_file(file);
        OK(speci_gguf_integer(o.g, "general.file_type", &file_type));
        assert_int_equal(file_type, cases[i].file_type);
        assert_string_equal(type_of(&o, "output_norm.weight"), "F32");
        assert_string_equal(type_of(&o, "blk.2.attn_q.weight"), cases[i].most);
        assert_string_equal(type_of(&o, "blk.2.ffn_down.weight"), cases[i].most);
        assert_string_equal(type_of(&o, "blk.0.ffn_down.weight"), cases[i].head); /* the first eighth */
        assert_string_equal(type_of(&o, "blk.3.attn_v.weight"), cases[i].head);   /* every third */
        assert_string_equal(type_of(&o, "token_embd.weight"), cases[i].most);
        assert_string_equal(type_of(&o, "output.weight"), cases[i].head);
        speci_checkpoint_close(o.c);
        const double error = apart(file, from);
        print_message("  %-7s error / max logit %.2g\n", cases[i].type, error);
        if (!(error <= cases[i].error)) fail_msg("%s: logits differ by %g", cases[i].type, error);
        convert(file, again, cases[i].type); /* what has the type stays as it is */
        assert_true(apart(again, file) == 0);
        remove(again);
    }
}

/* --- tokenizers --- */

static const char *const texts[] = {
    "", " ", "Once upon a time, there was a little girl.", "  two  spaces\n\nand\tlines ", "It's 1234567 o'clock; I'll go. I'LL GO!",
    "na\xc3\xafve caf\xc3\xa9 \xe2\x82\xac 5", "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c",
    "\xf0\x9f\x98\x80\xf0\x9f\x91\x8d end", "for (int i = 0; i < n; i++) { x[i] += 0.5f; }", "e\xcc\x81 combining",
    "<s> </s> <|endoftext|> <|im_start|>user", "\xe2\x96\x81under",
};

static void same_ids(const spec_tokenizer *a, const spec_tokenizer *b, const char *text, uint32_t flags, const char *what)
{
    int32_t x[256], y[256];
    char back[2][1024];
    size_t n_x, n_y, n_back[2];
    OK(spec_tokenizer_encode(a, x, 256, &n_x, text, strlen(text), flags));
    OK(spec_tokenizer_encode(b, y, 256, &n_y, text, strlen(text), flags));
    if (n_x != n_y || memcmp(x, y, n_x * sizeof *x) != 0) fail_msg("%s: \"%s\" has other ids", what, text);
    for (size_t i = 0; i < n_x; i++)
        if (a->spm && x[i] == a->bpe.unk) return; /* how the unknown is shown is not in a GGUF file */
    OK(spec_tokenizer_decode(a, back[0], sizeof back[0], &n_back[0], x, n_x, 0));
    OK(spec_tokenizer_decode(b, back[1], sizeof back[1], &n_back[1], x, n_x, 0));
    if (n_back[0] != n_back[1] || memcmp(back[0], back[1], n_back[0]) != 0) fail_msg("%s: \"%s\" comes back otherwise", what, text);
}

static spec_tokenizer *written(const spec_tokenizer *t)
{
    speci_gguf_head head;
    speci_writer w;
    spec_tokenizer *out = NULL;
    speci_gguf_head_begin(&head, NULL);
    OK(speci_tokenizer_put_gguf(&head, t, t->n_vocab + 3));
    const int32_t first = speci_tokenizer_first(t);
    if (first >= 0) OK(speci_gguf_put_whole(&head, "tokenizer.ggml.bos_token_id", (uint32_t)first));
    OK(speci_writer_open(&w, file, "GGUF", NULL));
    OK(speci_writer_close(&w, speci_gguf_head_write(&head, &w)));
    speci_gguf_head_free(&head);
    OK(spec_tokenizer_open(&out, file, NULL));
    return out;
}

static void tokenizers(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    static const char *const names[] = {
        GOLDEN "/tokenizers/gpt2-style", GOLDEN "/tokenizers/gpt_neox-style", GOLDEN "/tokenizers/llama3-style",
        GOLDEN "/tokenizers/qwen2-style", SPEC_TEST_MODELS "/demo-target", SPEC_TEST_DIR "/tokenizer_spm/bytes.model",
        SPEC_TEST_DIR "/tokenizer_spm/noprefix.model", SPEC_TEST_DIR "/tokenizer_spm/plain.model",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        spec_tokenizer *t = NULL;
        OK(spec_tokenizer_open(&t, names[i], NULL));
        spec_tokenizer *g = written(t);
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            same_ids(t, g, texts[k], 0, names[i]);
            same_ids(t, g, texts[k], SPEC_TOKEN_ADD_SPECIAL | SPEC_TOKEN_PARSE_SPECIAL, names[i]);
        }
        spec_tokenizer_close(g);
        spec_tokenizer_close(t);
    }
}

/* A tokenizer with other splits than those that stand in the folder. */
static void other_splits(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    static const char changes[] =
        "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Punctuation\", \"behavior\": \"Contiguous\"}, "
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true}, {\"type\": \"Split\", \"pattern\": "
        "{\"Regex\": \"[0-9][0-9][0-9]\"}, \"behavior\": \"Isolated\", \"invert\": false}]}}"; /* Falcon's */
    char base[64];
    char *json = support_json_with(GOLDEN "/tokenizers/gpt2-style", "tokenizer.json", changes);
    const variant_file changed = { "tokenizer.json", json };
    support_variant(base, GOLDEN "/tokenizers/gpt2-style", &changed, 1);
    spec_tokenizer *t = NULL;
    OK(spec_tokenizer_open(&t, base, NULL));
    spec_tokenizer *g = written(t);
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) same_ids(t, g, texts[k], 0, "falcon");
    spec_tokenizer_close(g);
    spec_tokenizer_close(t);
    free(json);
    support_variant_remove(base);
}

static void keep_log(void *user_data, spec_log_level level, const char *text)
{
    if (level == SPEC_LOG_WARN) snprintf(user_data, 400, "%s", text);
}

/* What a file does not say of added tokens is told. */
static void flags_of_added_tokens(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    static const char *const flags[] = { "normalized", "lstrip", "rstrip", "single_word" };
    char from[64], told[400];
    spec_backend *be;
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    spec_convert_params p = SPEC_CONVERT_PARAMS_INIT;
    bp.log = keep_log, bp.log_user_data = told;
    OK(spec_backend_open(&be, "cpu:portable", &bp));
    p.type = "f32";
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char changes[200];
        snprintf(changes, sizeof changes,
                 "{\"added_tokens\": [{\"id\": 0, \"content\": \"<|endoftext|>\", \"special\": true, \"%s\": true}]}", flags[i]);
        char *json = support_json_with(DEMO_DRAFTER, "tokenizer.json", changes);
        const variant_file changed = { "tokenizer.json", json };
        support_variant(from, DEMO_DRAFTER, &changed, 1);
        told[0] = '\0';
        OK(spec_model_convert(be, from, file, &p));
        assert_int_equal(strstr(told, "added tokens, \"<|endoftext|>\" among them: they take white space along") != NULL, i > 0);
        free(json);
        support_variant_remove(from);
    }
    spec_backend_close(be);
}

/* Sampling that a model is refused for is left out, and told; a number of 32 bits would be another. */
static void wrong_sampling(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        bool good;
    } cases[] = {
        { "{\"do_sample\": true, \"top_k\": 5, \"temperature\": 0.5}", true },
        { "{\"do_sample\": true, \"top_k\": 4294967301, \"temperature\": 0.5}", false },
        { "{\"do_sample\": true, \"top_k\": -1}", false },
        { "{\"do_sample\": true, \"temperature\": 1e300}", false },
    };
    spec_backend *be;
    spec_backend_params bp = SPEC_BACKEND_PARAMS_INIT;
    spec_convert_params p = SPEC_CONVERT_PARAMS_INIT;
    char told[400], base[64];
    bp.log = keep_log, bp.log_user_data = told, p.type = "f32";
    OK(spec_backend_open(&be, "cpu:portable", &bp));
    for (int i = 0; i < N_ELEMENTS(cases); i++) {
        const variant_file changed = { "generation_config.json", cases[i].config };
        support_variant(base, GOLDEN "/llama2", &changed, 1);
        told[0] = '\0';
        OK(spec_model_convert(be, base, file, &p));
        const opened o = open_file(file);
        assert_int_equal(speci_gguf_find(o.g, "general.sampling.top_k") != NULL, cases[i].good);
        assert_int_equal(speci_gguf_find(o.g, "general.sampling.temp") != NULL, cases[i].good);
        assert_int_equal(strstr(told, "the new file has no defaults of sampling") != NULL, !cases[i].good);
        speci_checkpoint_close(o.c);
        support_variant_remove(base);
    }
    spec_backend_close(be);
}

static void add_sentence(void *user_data, const char *text)
{
    char *all = user_data;
    snprintf(all + strlen(all), 1000 - strlen(all), "%s\n", text);
}

#define ADDED(id, content, flags) "{\"id\": " #id ", \"content\": \"" content "\"" flags "}"
#define NORMALIZED ", \"normalized\": true"
#define BEGIN ADDED(640, "<|begin_of_text|>", SPECIAL) ", "
#define RAW ", \"normalized\": false"
#define SPECIAL ", \"special\": true"
#define SPACE_MARK "\xE2\x96\x81"

/* Added tokens that are pieces of the model, too, or that are looked for behind the normalizer. Where the file gives other ids, it was
 * told; where nothing was told, the ids are the same. */
static void added_tokens_unsaid(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    static const struct {
        const char *from, *tokens;
        const char *text, *told;          /* told NULL: the text has the same ids */
    } cases[] = {
        { "gpt2-style", ADDED(258, "he", ""), "he said the hen", NULL },
        { "llama3-style", BEGIN ADDED(258, "he", ""), "he said the hen", NULL },
        { "llama3-style", BEGIN ADDED(258, "he", SPECIAL), "he said the hen", NULL },
        { "qwen2-style", ADDED(600, "\u00e9", NORMALIZED), "e\xCC\x81", "in normalised text" },
        { "qwen2-style", ADDED(600, "word", NORMALIZED), "word\xCC\x81", "in normalised text" },
        { "qwen2-style", ADDED(600, "|||MAIL|||", NORMALIZED), "a |||MAIL||| b", NULL },
        { "gpt2-style", ADDED(512, "he said", NORMALIZED) ", " ADDED(513, "aid the", RAW), "he said the hen", "behind others" },
        { "gpt2-style", ADDED(512, "he said", NORMALIZED) ", " ADDED(513, "xyz", RAW), "he said xyz", NULL },
        { "gpt2-style", ADDED(512, "aid the", NORMALIZED) ", " ADDED(513, "he said", RAW), "he said the hen", "behind others" },
        { "gpt2-style", ADDED(512, "he said", NORMALIZED) ", " ADDED(513, "sai", RAW), "he said the hen", "behind others" },
        { "gpt2-style", ADDED(512, "sai", NORMALIZED) ", " ADDED(513, "he said", RAW), "he said the hen", "behind others" },
        { "gpt2-style", ADDED(512, "the hen", NORMALIZED) ", " ADDED(513, "the", NORMALIZED) ", " ADDED(514, "a the b", RAW), "the",
          "\"the\"" },
        { "gpt2-style", ADDED(512, "he  said", NORMALIZED) ", " ADDED(513, "the hen", RAW), "he said the hen", NULL },
        { "bytes.model", "\"265\": " ADDED(265, "he", ""), "the", NULL },
        { "bytes.model", "\"265\": " ADDED(265, "he", ""), "he", NULL }, /* nothing is put in front of an added token */
        { "bytes.model", "\"265\": " ADDED(265, "he", SPECIAL), "the hen", "pieces of the model, too" },
        { "bytes.model", "\"267\": " ADDED(267, SPACE_MARK "the", ""), "the hen", "pieces of the model, too" },
        { "bytes.model", "\"5\": " ADDED(5, SPACE_MARK SPACE_MARK, ""), "a  b   c", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char base[64], path[100], source[256], changes[400], all[1000] = "";
        const bool spm = strstr(cases[i].from, ".model") != NULL;
        snprintf(source, sizeof source, spm ? "%s/tokenizer_spm" : "%s/%s", spm ? SPEC_TEST_DIR : GOLDEN "/tokenizers", cases[i].from);
        snprintf(changes, sizeof changes, spm ? "{\"added_tokens_decoder\": {%s}}" : "{\"added_tokens\": [%s]}", cases[i].tokens);
        char *json = spm ? NULL : support_json_with(source, "tokenizer.json", changes);
        const variant_file changed = { spm ? "tokenizer_config.json" : "tokenizer.json", spm ? changes : json };
        support_variant(base, source, &changed, 1);
        snprintf(path, sizeof path, "%s/%s", base, spm ? cases[i].from : "");
        spec_tokenizer *t = NULL;
        OK(spec_tokenizer_open(&t, path, NULL));
        OK(speci_tokenizer_tell_unsaid(t, add_sentence, all));
        spec_tokenizer *g = written(t);
        if (cases[i].told && !strstr(all, cases[i].told)) fail_msg("case %zu: told \"%s\"", i, all);
        if (!cases[i].told && strstr(all, "normalised")) fail_msg("case %zu: told \"%s\"", i, all);
        if (!cases[i].told) same_ids(t, g, cases[i].text, 0, cases[i].tokens);
        if (!cases[i].told) same_ids(t, g, cases[i].text, SPEC_TOKEN_PARSE_SPECIAL, cases[i].tokens);
        assert_int_equal(strstr(all, "gets a space in front") != NULL, spm);
        spec_tokenizer_close(g);
        spec_tokenizer_close(t);
        free(json);
        support_variant_remove(base);
    }
}

/* {ID: {"content": ...}, ...} for added_tokens_decoder, and all of them, the last first, as the special ones. */
static char *many_special_tokens(int32_t n, int32_t first)
{
    enum { BYTES = 96 };
    char *text = malloc((size_t)n * BYTES + BYTES);
    size_t at = (size_t)sprintf(text, "{\"added_tokens_decoder\": {");
    for (int32_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, BYTES, "%s\"%d\": {\"content\": \"[s%05d]\"}", i ? ", " : "", first + i, i);
    at += (size_t)sprintf(text + at, "}, \"additional_special_tokens\": [");
    for (int32_t i = n; i-- > 0;) at += (size_t)snprintf(text + at, BYTES, "\"[s%05d]\"%s", i, i ? ", " : "");
    memcpy(text + at, "]}", 3);
    return text;
}

/* To look for each token among all special ones takes ten seconds. */
static void many_tokens_of_config(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    enum { N = 50000, FIRST = 512, MOST_SECONDS = 4 };
    char base[64], *config = many_special_tokens(N, FIRST), *json = support_json_with(GOLDEN "/tokenizers/gpt2-style", "tokenizer.json",
                                                                                      "{\"added_tokens\": []}");
    const variant_file changed[] = { { "tokenizer.json", json }, { "tokenizer_config.json", config } };
    support_variant(base, GOLDEN "/tokenizers/gpt2-style", changed, 2);
    spec_tokenizer *t = NULL;
    const clock_t start = clock();
    OK(spec_tokenizer_open(&t, base, NULL));
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS);
    assert_int_equal(t->n_vocab, FIRST + N);
    for (int32_t i = 0; i < N; i += N / 7) assert_true(spec_tokenizer_is_special(t, FIRST + i));
    spec_tokenizer_close(t);
    free(json);
    free(config);
    support_variant_remove(base);
}

/* Half of them are looked for in normalised text: to hold each of these against each of the others takes half a minute. */
static void many_added_tokens(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    enum { N = 50000, BYTES = 64, MOST_SECONDS = 6 };
    char base[64], all[1000] = "", *changes = malloc((size_t)N * BYTES);
    size_t n = (size_t)sprintf(changes, "{\"added_tokens\": [");
    for (int32_t i = 0; i < N; i++)
        n += (size_t)snprintf(changes + n, BYTES, "%s{\"id\": %d, \"content\": \"%s%d]\"%s}", i ? ", " : "", 600 + i, i % 2 ? "[n" : "[r",
                              i, i % 2 ? NORMALIZED : "");
    memcpy(changes + n, "]}", 3);
    char *json = support_json_with(GOLDEN "/tokenizers/gpt2-style", "tokenizer.json", changes);
    const variant_file changed = { "tokenizer.json", json };
    support_variant(base, GOLDEN "/tokenizers/gpt2-style", &changed, 1);
    spec_tokenizer *t = NULL;
    OK(spec_tokenizer_open(&t, base, NULL));
    const clock_t start = clock();
    OK(speci_tokenizer_tell_unsaid(t, add_sentence, all));
    spec_tokenizer *g = written(t);
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < MOST_SECONDS);
    assert_string_equal(all, "");
    same_ids(t, g, "a[n77]b[r78]", SPEC_TOKEN_PARSE_SPECIAL, "many");
    spec_tokenizer_close(g);
    spec_tokenizer_close(t);
    free(json);
    free(changes);
    support_variant_remove(base);
}

/* Two tokens that are one string in normalised text would be one token of a file. */
static void added_tokens_alike(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    static const char *const tokens[] = { ADDED(600, "e\\u0301", NORMALIZED) ", " ADDED(601, "\\u00e9", ""),
                                          ADDED(600, "e\\u0301\\u0323", NORMALIZED) ", " ADDED(601, "e\\u0323\\u0301", NORMALIZED) };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        char base[64], changes[400];
        speci_gguf_head head;
        snprintf(changes, sizeof changes, "{\"added_tokens\": [%s]}", tokens[i]);
        char *json = support_json_with(GOLDEN "/tokenizers/qwen2-style", "tokenizer.json", changes);
        const variant_file changed = { "tokenizer.json", json };
        support_variant(base, GOLDEN "/tokenizers/qwen2-style", &changed, 1);
        spec_tokenizer *t = NULL;
        OK(spec_tokenizer_open(&t, base, NULL));
        speci_gguf_head_begin(&head, NULL);
        FAILS(speci_tokenizer_put_gguf(&head, t, 700), SPEC_E_UNSUPPORTED, "in normalised text");
        speci_gguf_head_free(&head);
        spec_tokenizer_close(t);
        free(json);
        support_variant_remove(base);
    }
}

/* A whole model: the text that it goes on with, end tokens, chat template. */
static void model_with_text(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip();
#endif
    convert(DEMO_TARGET, file, "bf16");
    spec_model *m = support_model(backend, file, SPEC_DTYPE_BF16), *twin = support_model(backend, DEMO_TARGET, SPEC_DTYPE_BF16);
    spec_result a = SPEC_RESULT_INIT, b = SPEC_RESULT_INIT;
    spec_request request = SPEC_REQUEST_INIT;
    spec_session *s, *t;
    request.n_predict = 48;
    OK(spec_session_open(&s, m, NULL, NULL));
    OK(spec_session_open(&t, twin, NULL, NULL));
    OK(spec_generate(s, &a, "Once upon a time", 16, &request));
    OK(spec_generate(t, &b, "Once upon a time", 16, &request));
    support_same(&a, &b, "from GGUF");
    spec_result_free(&a);
    spec_result_free(&b);
    spec_session_close(s);
    spec_session_close(t);
    spec_model_close(m);
    spec_model_close(twin);
}

/* --- which tensor gets the better type --- */

/* In llama.cpp's rule: the first and the last eighth of the layers, and every third between. */
static void better_layers(void **state)
{
    (void)state;
    static const struct {
        int32_t n_layer;
        const char *better; /* a digit of 1 for each such layer */
    } cases[] = { { 16, "1100100100100111" }, { 5, "00101" }, { 24, "111001001001001001001111" }, { 1, "1" } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        gguf_stored t[3 * 24] = { { .n_dim = 0 } };
        const int32_t n = cases[k].n_layer;
        size_t n_other = 9;
        for (int32_t i = 0; i < 3 * n; i++) {
            static const char *const parts[] = { "attn_v", "ffn_down", "attn_q" };
            snprintf(t[i].name, sizeof t[i].name, "blk.%d.%s.weight", i / 3, parts[i % 3]);
            t[i].n_dim = 2, t[i].dim[0] = 8, t[i].dim[1] = 512;
        }
        speci_gguf_choose_types(t, (size_t)(3 * n), speci_gguf_mix("q4_k_m"), n, &n_other);
        assert_int_equal(n_other, 0);
        for (int32_t i = 0; i < 3 * n; i++) {
            const char *want = i % 3 < 2 && cases[k].better[i / 3] == '1' ? "Q6_K" : "Q4_K";
            if (strcmp(t[i].type->name, want) != 0) fail_msg("%d layers: %s is %s, expected %s", n, t[i].name, t[i].type->name, want);
        }
        t[0].dim[1] = 100; /* which no block divides */
        speci_gguf_choose_types(t, (size_t)(3 * n), speci_gguf_mix("q4_k_m"), n, &n_other);
        assert_int_equal(n_other, 1);
        assert_string_equal(t[0].type->name, "F16");
    }
}

/* --- files to files, and what is refused --- */

static void from_gguf(void **state)
{
    (void)state;
    convert(GOLDEN "/gguf/bamba.gguf", file, "f32");
    const family_case c = { "bamba", 0, true };
    const opened a = open_file(file), b = open_file(GOLDEN "/gguf/bamba.gguf");
    same_keys(&c, a.g, b.g);
    same_tensors(&c, a.c, b.c);
    assert_int_equal(a.g->n_pair, b.g->n_pair);
    speci_checkpoint_close(a.c);
    speci_checkpoint_close(b.c);
}

/* SPEC_TEST_GGUF_GEMMA (test_gguf_models.c), a Q4_K_M file of llama.cpp's: ours gives each tensor the same type, so that all stay as they
 * are. */
static void same_mix(void **state)
{
    (void)state;
    const char *path = getenv("SPEC_TEST_GGUF_GEMMA");
    if (!path) {
        print_message("  SPEC_TEST_GGUF_GEMMA names no file\n");
        skip();
    }
    convert(path, file, "q4_k_m");
    const opened a = open_file(file), b = open_file(path);
    size_t n;
    const model_tensor *t = speci_checkpoint_tensors(b.c, &n);
    for (size_t i = 0; i < n; i++) assert_string_equal(type_of(&a, t[i].name), t[i].dtype_name);
    speci_checkpoint_close(a.c);
    speci_checkpoint_close(b.c);
}

static int stop(void *user_data, double fraction)
{
    (void)user_data, (void)fraction;
    return 1;
}

/* Fails, and leaves what was there, alone. */
static void refuse(const char *from, const spec_convert_params *p, spec_status code, const char *part)
{
    static const char old[] = "GGUF, as the file was";
    char *text;
    size_t n;
    FILE *f = fopen(file, "w");
    fputs(old, f);
    fclose(f);
    FAILS(spec_model_convert(backend, from, file, p), code, part);
    OK(speci_file_read(&text, &n, file, 100, NULL));
    assert_string_equal(text, old);
    speci_free(NULL, text);
    assert_false(speci_dir_has_ending(support_directory, ".part"));
}

/* A golden model with another config. */
static void refuse_changed_as(spec_status code, const char *name, const char *changes, const char *words)
{
    char from[512], base[64];
    const spec_convert_params p = SPEC_CONVERT_PARAMS_INIT;
    snprintf(from, sizeof from, GOLDEN "/%s", name);
    char *config = changed_config(from, changes);
    const variant_file changed = { "config.json", config };
    support_variant(base, from, &changed, 1);
    refuse(base, &p, code, words);
    free(config);
    support_variant_remove(base);
}

static void refuse_changed(const char *name, const char *changes, const char *words)
{
    refuse_changed_as(SPEC_E_UNSUPPORTED, name, changes, words);
}

/* Of a directory, what opening refuses, too. */
static void refused_as_when_opened(void **state)
{
    (void)state;
    refuse_changed_as(SPEC_E_FORMAT, "llama2", "{\"eos_token_id\": [2, \"5\"]}", "eos_token_id is \"5\", expected an id below 96");
    refuse_changed_as(SPEC_E_FORMAT, "llama2", "{\"bos_token_id\": [1]}", "bos_token_id is an array, expected an id below 96");
    refuse_changed_as(SPEC_E_FORMAT, "llama2", "{\"tie_word_embeddings\": true}",
                      "tensor lm_head.weight differs from model.embed_tokens.weight");
}

static void refusals(void **state)
{
    (void)state;
    char from[128];
    spec_convert_params p = SPEC_CONVERT_PARAMS_INIT;
    snprintf(from, sizeof from, "%s/odd", support_directory);
    refuse(GOLDEN "/gptj", &p, SPEC_E_UNSUPPORTED, "model_type is \"gptj\", which cannot be written to GGUF; these can: llama, mistral, ");
    refuse(GOLDEN "/gemma3", &p, SPEC_E_UNSUPPORTED, "query_pre_attn_scalar is 24, but GGUF files of Gemma 3 with these sizes mean 16");
    refuse_changed("llama2", "{\"hidden_act\": \"gelu\"}", "hidden_act is \"gelu\", for which GGUF files of llama have no key");
    refuse_changed("falcon", "{\"activation\": \"relu\"}", "activation is \"relu\", for which GGUF files of falcon have no key");
    refuse_changed("falcon", "{\"bias\": true}", "bias is true, but GGUF files of Falcon");
    refuse_changed("falcon", "{\"parallel_attn\": false}", "parallel_attn is false, but GGUF files of Falcon");
    refuse_changed("gemma2", "{\"query_pre_attn_scalar\": 24}",
                   "query_pre_attn_scalar is 24, but GGUF files of Gemma 2 with these sizes mean 16");
    refuse_changed("gemma2", "{\"attn_logit_softcapping\": 1234}", "attn_logit_softcapping is null, but GGUF files of Gemma 2");
    refuse_changed("gemma2", "{\"final_logit_softcapping\": 1234}", "final_logit_softcapping is null, but GGUF files of Gemma 2");
    refuse_changed("gemma2", "{\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"]}",
                   "layer_types is no pattern that a GGUF file can say: every second layer attends to all");
    refuse_changed("olmo3",
                   "{\"rope_theta\": 1234, \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 700.0, \"rope_type\": \"default\"}, "
                   "\"sliding_attention\": {\"rope_theta\": 700.0, \"rope_type\": \"linear\", \"factor\": 2.0}}}",
                   "rope_type of sliding_attention is \"linear\", which cannot be written to GGUF");
    refuse_changed("qwen2", "{\"use_sliding_window\": true, \"max_window_layers\": 1}",
                   "use_sliding_window is true, for which GGUF files of qwen2 have no key: they mean null");
    refuse_changed("qwen3", "{\"use_sliding_window\": true, \"max_window_layers\": 0}",
                   "use_sliding_window is true, for which GGUF files of qwen3");
    refuse_changed("llama2",
                   "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"truncate\": false, "
                   "\"original_max_position_embeddings\": 32}}",
                   "rope_scaling.truncate is false, for which GGUF files have no key: they mean true");
    refuse_changed("smollm3", "{\"no_rope_layers\": [0, 1, 1, 1, 1]}",
                   "no_rope_layers is an array, for which GGUF files of smollm3 have no key");
    refuse_changed("mamba2", "{\"time_step_limit\": [0.25, 0.5]}",
                   "time_step_limit[0] is 0.25, for which GGUF files of mamba2 have no key: they mean 0");
    refuse_changed("bamba", "{\"time_step_limit\": [0.0, 0.5]}", "time_step_limit[1] is 0.5, for which GGUF files of granitehybrid");
    refuse_changed("bamba", "{\"mamba_conv_bias\": false}",
                   "mamba_conv_bias is false, for which GGUF files of granitehybrid have no key: they mean true");
    refuse_changed("qwen3", "{\"attention_bias\": true}",
                   "attention_bias is true, for which GGUF files of qwen3 have no key: they mean false");
    refuse_changed("llama2", "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": [2, 2, 2, 2], "
                   "\"original_max_position_embeddings\": 32}}",
                   "original_max_position_embeddings is 32, for which GGUF files of llama have no key: they mean 256");
    refuse(SPEC_TEST_DIR "/golden/heads/eagle2-llama2", &p, SPEC_E_UNSUPPORTED, "is a head on another model's hidden states (eagle2)");
    refuse(SPEC_TEST_DIR "/golden/heads/eagle3-llama2", &p, SPEC_E_UNSUPPORTED, "is a head on another model's hidden states (eagle3)");
    refuse(support_directory, &p, SPEC_E_UNSUPPORTED, "config.json is missing");
    refuse("no/such", &p, SPEC_E_IO, "no such directory");
    p.type = "q3";
    refuse(GOLDEN "/llama2", &p, SPEC_E_INVALID, "type is \"q3\", expected one of f32, f16, ");
    make_directory(from, 1e6f);
    p.type = "f16";
    refuse(from, &p, SPEC_E_UNSUPPORTED, "tensor model.embed_tokens.weight has the value 1e+06, or one near it, which F16 cannot hold");
    make_directory(from, NAN);
    p.type = "q4_0";
    refuse(from, &p, SPEC_E_UNSUPPORTED, "tensor model.embed_tokens.weight has the value nan");
    p.type = "f32", p.progress = stop;
    refuse(GOLDEN "/llama2", &p, SPEC_E_ABORTED, "converting was stopped");
    FAILS(spec_model_convert(backend, GOLDEN "/llama2", NULL, NULL), SPEC_E_INVALID, "a path to write to");
    FAILS(spec_model_convert(backend, GOLDEN "/llama2", "/no/such/place", NULL), SPEC_E_IO, "/no/such/place");
}

/* --- what is no whole model --- */

/* base/model.safetensors into dir with one tensor more, two 64-bit integers; or under another name, `without`. */
static void change_directory(const char *dir, const char *base, const char *without, const char *stray)
{
    char path[600];
    long n;
    uint64_t n_old;
    snprintf(path, sizeof path, "%s/model.safetensors", base);
    uint8_t *old = bytes_of_file(path, &n);
    memcpy(&n_old, old, sizeof n_old);
    const size_t n_data = (size_t)n - 8 - (size_t)n_old;
    json_t *header = json_loadb((const char *)old + 8, (size_t)n_old, 0, NULL);
    json_t *entry = without ? json_incref(json_object_get(header, without))
                            : json_pack("{s:s, s:[i], s:[I, I]}", "dtype", "I64", "shape", 2, "data_offsets", (json_int_t)n_data,
                                        (json_int_t)n_data + 16);
    if (without) json_object_del(header, without);
    json_object_set_new(header, stray, entry);
    char *text = json_dumps(header, JSON_COMPACT);
    const uint64_t n_text = strlen(text);
    const size_t n_new = 8 + (size_t)n_text + n_data + (without ? 0 : 16);
    uint8_t *bytes = calloc(n_new, 1);
    memcpy(bytes, &n_text, 8);
    memcpy(bytes + 8, text, (size_t)n_text);
    memcpy(bytes + 8 + n_text, old + 8 + n_old, n_data);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    support_write(path, bytes, n_new);
    json_decref(header);
    free(text);
    free(bytes);
    free(old);
}

/* A GGUF file of float32 at `to`, without a tensor or with one more, of that type and n_dim dimensions of two: NULL, none. */
static void change_gguf(const char *to, const char *from, const char *without, const char *stray, uint32_t type, int32_t n_dim)
{
    static const uint8_t zeros[64];
    const opened o = open_file(from);
    const int64_t twos[] = { 2, 2, 2 };
    const size_t n_stray = (type == 0 ? 4u : 8u) << n_dim;
    size_t n;
    speci_gguf_head head;
    speci_writer w;
    model_tensor *t = speci_checkpoint_tensors(o.c, &n);
    speci_gguf_head_begin(&head, NULL);
    for (size_t i = 0; i < o.g->n_pair; i++) OK(speci_gguf_put_pair(&head, &o.g->pairs[i]));
    for (size_t i = 0; i < n; i++)
        if (!without || strcmp(t[i].name, without) != 0) OK(speci_gguf_put_tensor(&head, t[i].name, t[i].n_dim, t[i].dim, 0, t[i].bytes));
    if (stray) OK(speci_gguf_put_tensor(&head, stray, n_dim, twos, type, n_stray));
    OK(speci_writer_open(&w, to, "GGUF", NULL));
    OK(speci_gguf_head_write(&head, &w));
    for (size_t i = 0; i < n; i++) {
        if (without && strcmp(t[i].name, without) == 0) continue;
        OK(speci_checkpoint_load(o.c, &t[i]));
        OK(speci_writer_put(&w, t[i].data, t[i].bytes));
        OK(speci_gguf_write_padding(&w, t[i].bytes));
    }
    if (stray) OK(speci_writer_put(&w, zeros, n_stray));
    OK(speci_writer_close(&w, stray ? speci_gguf_write_padding(&w, n_stray) : SPEC_OK));
    speci_gguf_head_free(&head);
    speci_checkpoint_close(o.c);
}

enum { F32 = 0, I64 = 27 }; /* of GGUF */

/* As when it is opened: a tensor that is missing or would count is told, and what is not used is no reason. */
static void not_whole(void **state)
{
    (void)state;
    static const struct {
        bool gguf;
        const char *without, *stray;
        uint32_t type; /* of a GGUF file's */
        spec_status status;
        const char *part;
        bool stays; /* the stray tensor is in the new file, too */
        int32_t n_dim;
    } cases[] = {
        { false, "model.layers.1.mlp.up_proj.weight", "stray", I64, SPEC_E_FORMAT, "tensor model.layers.1.mlp.up_proj.weight is missing",
          false, 1 },
        { false, NULL, "model.layers.1.mlp.counts", I64, SPEC_E_UNSUPPORTED, "tensor model.layers.1.mlp.counts would count", false, 1 },
        { false, NULL, "stray.counts", I64, SPEC_OK, "", false, 1 },
        { true, "blk.1.ffn_up.weight", NULL, F32, SPEC_E_FORMAT, "tensor blk.1.ffn_up.weight is missing", false, 1 },
        { true, NULL, "blk.1.counts", I64, SPEC_E_UNSUPPORTED, "tensor blk.1.counts would count", false, 1 },
        { true, NULL, "stray.counts", I64, SPEC_OK, "", false, 1 },
        { true, NULL, "stray.values", F32, SPEC_OK, "", true, 2 },
        { true, NULL, "stray.cube", F32, SPEC_OK, "", false, 3 },
    };
    spec_convert_params p = SPEC_CONVERT_PARAMS_INIT;
    const variant_file none = { "model.safetensors", NULL };
    p.type = "f32";
    for (int i = 0; i < N_ELEMENTS(cases); i++) {
        const char *base = cases[i].gguf ? GOLDEN "/gguf/llama2.gguf" : GOLDEN "/llama2";
        char from[160], dir[64];
        if (cases[i].gguf) {
            snprintf(from, sizeof from, "%s/changed.gguf", support_directory);
            change_gguf(from, base, cases[i].without, cases[i].stray, cases[i].type, cases[i].n_dim);
        } else {
            support_variant(dir, base, &none, 1);
            snprintf(from, sizeof from, "%s", dir);
            change_directory(from, base, cases[i].without, cases[i].stray);
        }
        if (cases[i].status != SPEC_OK) {
            refuse(from, &p, cases[i].status, cases[i].part);
        } else {
            OK(spec_model_convert(backend, from, file, &p));
            assert_true(apart(file, base) == 0);
            const opened o = open_file(file);
            assert_int_equal(speci_checkpoint_find(o.c, cases[i].stray) != NULL, cases[i].stays);
            speci_checkpoint_close(o.c);
        }
        if (!cases[i].gguf) support_variant_remove(dir);
    }
}

/* --- memory that cannot be had --- */

/* Every allocation in turn; with a tokenizer, which has many, some of them. */
static void memory_fails(void **state)
{
    (void)state;
    static const char *const models[] = { GOLDEN "/llama3", GOLDEN "/gguf/mamba2.gguf", DEMO_TARGET };
#ifdef SPEC_NO_TOKENIZER
    enum { N_MODEL = 2 };
#else
    enum { N_MODEL = 3 };
#endif
    for (int i = 0; i < N_MODEL; i++) {
        spec_status status = SPEC_E_NOMEM;
        long n = 0;
        while (status != SPEC_OK) {
            support_memory f = { 0 };
            const spec_allocator allocator = support_allocator(&f);
            spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
            spec_backend *be = NULL;
            p.allocator = &allocator, p.n_threads = 1;
            OK(spec_backend_open(&be, "cpu", &p));
            f.n_call = 0, f.fail_at = n += i < 2 ? 1 : 1 + n / 16;
            remove(file);
            status = spec_model_convert(be, models[i], file, NULL);
            if (status != SPEC_OK && status != SPEC_E_NOMEM) fail_msg("allocation %ld: %s", n, spec_last_error());
            spec_backend_close(be);
            assert_int_equal(f.n_block, 0);
            assert_true(speci_file_exists(file) == (status == SPEC_OK));
            assert_false(speci_dir_has_ending(support_directory, ".part"));
        }
        print_message("  about %ld allocations\n", n);
        assert_true(n > 20);
    }
}

static int open_backend(void **state)
{
    backend = support_backend();
    const int failed = support_directory_make(state);
    snprintf(file, sizeof file, "%s/m.gguf", support_directory);
    return failed;
}

static int close_backend(void **state)
{
    spec_backend_close(backend);
    return support_directory_remove(state);
}

/* As many threads as one likes pack the same bytes, of every type; each tensor takes several tasks. */
static void threads(void **state)
{
    (void)state;
#ifdef SPEC_NO_TOKENIZER
    skip(); /* the model has one, which goes into the file */
#endif
    static const char *const types[] = { "f32", "bf16", "f16", "q8_0", "q4_0", "q5_1", "q4_k_m", "q6_k" };
    for (int i = 0; i < N_ELEMENTS(types); i++) {
        uint8_t *bytes[2];
        long n[2];
        for (int k = 0; k < 2; k++) {
            spec_backend_params p = SPEC_BACKEND_PARAMS_INIT;
            spec_backend *be = NULL;
            spec_convert_params c = SPEC_CONVERT_PARAMS_INIT;
            p.n_threads = k == 0 ? 1 : 5;
            c.type = types[i];
            OK(spec_backend_open(&be, "cpu", &p));
            OK(spec_model_convert(be, DEMO_TARGET, file, &c));
            spec_backend_close(be);
            bytes[k] = bytes_of_file(file, &n[k]);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(bytes[0], bytes[1], (size_t)n[0]);
        free(bytes[0]), free(bytes[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families), cmocka_unit_test(variants), cmocka_unit_test(types), cmocka_unit_test(threads),
        cmocka_unit_test(tokenizers), cmocka_unit_test(other_splits), cmocka_unit_test(flags_of_added_tokens),
        cmocka_unit_test(added_tokens_unsaid), cmocka_unit_test(many_added_tokens), cmocka_unit_test(many_tokens_of_config),
        cmocka_unit_test(added_tokens_alike), cmocka_unit_test(model_with_text), cmocka_unit_test(from_gguf),
        cmocka_unit_test(same_mix), cmocka_unit_test(better_layers), cmocka_unit_test(refusals), cmocka_unit_test(not_whole),
        cmocka_unit_test(memory_fails), cmocka_unit_test(wrong_sampling),
        cmocka_unit_test(refused_as_when_opened),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
