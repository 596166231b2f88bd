/* bench_models.c - models by the name of their shape, written as Hugging Face directories with random weights.
 *
 * What such a model writes means nothing; what a step of it costs is what the real one costs. Matrices are small enough
 * for activations to stay of order 1, norms are 1, decays and time steps in the ranges that training starts from. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/bench/bench.h"

enum { MAX_PATH = 4096, STATE1 = 16, STATE2 = 128, HEAD2 = 64, BLOCK = 1000003 };

typedef enum family { MAMBA, MAMBA2, LLAMA, MAMBA_IN_LLAMA, EAGLE2_HEAD, LYANNA_HEAD } family;
enum { INFO_RANK = 64 }; /* of a Lyanna head's token info, about all ids */

/* n_inner: of the MLP; heads, kv, ctx and n_inner are those of the families with attention. */
typedef struct shape {
    const char *name;
    family kind;
    int32_t dim, n_layer, n_vocab, n_inner, heads, kv, ctx;
    double theta;
} shape;

/* Mamba-2 of 7B and 13B, as in Table 1 of the STree paper, which gives sizes only: dimension and layers of Llama-2-7B
 * doubled in depth (6.75e9 parameters), and 5120 x 80 (13.0e9). */
static const shape shapes[] = {
    { "mamba2-130m", MAMBA2, 768, 24, 50288, 0, 0, 0, 0, 0 },
    { "mamba2-370m", MAMBA2, 1024, 48, 50288, 0, 0, 0, 0, 0 },
    { "mamba2-1.3b", MAMBA2, 2048, 48, 50288, 0, 0, 0, 0, 0 },
    { "mamba2-2.7b", MAMBA2, 2560, 64, 50288, 0, 0, 0, 0, 0 },
    { "mamba2-7b", MAMBA2, 4096, 64, 50288, 0, 0, 0, 0, 0 },
    { "mamba2-13b", MAMBA2, 5120, 80, 50288, 0, 0, 0, 0, 0 },
    { "mamba-130m", MAMBA, 768, 24, 50280, 0, 0, 0, 0, 0 },
    { "mamba-2.8b", MAMBA, 2560, 64, 50280, 0, 0, 0, 0, 0 },
    { "llama-68m", LLAMA, 768, 2, 32000, 3072, 12, 12, 2048, 1e4 },
    { "llama-160m", LLAMA, 768, 12, 32000, 3072, 12, 12, 2048, 1e4 },
    { "llama-1.1b", LLAMA, 2048, 22, 32000, 5632, 32, 4, 2048, 1e4 },
    { "llama-2-7b", LLAMA, 4096, 32, 32000, 11008, 32, 32, 4096, 1e4 },
    { "llama-3.2-1b", LLAMA, 2048, 16, 128256, 8192, 32, 8, 8192, 5e5 },
    { "llama-3-8b", LLAMA, 4096, 32, 128256, 14336, 32, 8, 8192, 5e5 },
    /* Heads, for the targets that their names say. */
    { "eagle2-llama-2-7b", EAGLE2_HEAD, 4096, 1, 32000, 11008, 32, 32, 4096, 1e4 },
    { "lyanna-llama-2-7b", LYANNA_HEAD, 4096, 1, 32000, 11008, 32, 32, 4096, 1e4 },
    { "eagle2-llama-3-8b", EAGLE2_HEAD, 4096, 1, 128256, 14336, 32, 8, 8192, 5e5 },
    { "lyanna-llama-3-8b", LYANNA_HEAD, 4096, 1, 128256, 14336, 32, 8, 8192, 5e5 },
    { "lyanna-mamba2-2.7b", LYANNA_HEAD, 2560, 1, 50288, 6912, 40, 40, 4096, 1e4 },
    { "mambainllama-8b", MAMBA_IN_LLAMA, 4096, 32, 128256, 14336, 32, 8, 8192, 5e5 },
    /* Small ones, to try the program with. */
    { "mamba2-tiny", MAMBA2, 128, 2, 512, 0, 0, 0, 0, 0 },
    { "mamba-tiny", MAMBA, 128, 2, 512, 0, 0, 0, 0, 0 },
    { "llama-tiny", LLAMA, 128, 2, 512, 256, 4, 2, 2048, 1e4 },
    { "eagle2-llama-tiny", EAGLE2_HEAD, 128, 1, 512, 256, 4, 2, 2048, 1e4 },
    { "lyanna-llama-tiny", LYANNA_HEAD, 128, 1, 512, 256, 4, 2, 2048, 1e4 },
    { "mambainllama-tiny", MAMBA_IN_LLAMA, 256, 2, 512, 512, 2, 1, 2048, 1e4 },
};
enum { N_SHAPE = sizeof shapes / sizeof shapes[0] };

static const shape *find(const char *name)
{
    for (size_t i = 0; i < N_SHAPE; i++)
        if (strcmp(shapes[i].name, name) == 0) return &shapes[i];
    return NULL;
}

void bench_model_list(FILE *to)
{
    for (size_t i = 0; i < N_SHAPE; i++)
        fprintf(to, "%s%s", i ? (i % 6 ? ", " : ",\n           ") : "", shapes[i].name);
    fputc('\n', to);
}

/* --- tensors --- */

typedef enum fill { FILL_MATRIX, FILL_ONE, FILL_DECAY, FILL_STEP, FILL_IDS /* int32: 0, 1, 2, ... */ } fill;

typedef struct tensor {
    char name[88];
    fill how;
    int64_t dim[3]; /* 0 = no such dimension */
} tensor;

typedef struct tensor_list {
    tensor *t;
    int32_t n;
} tensor_list;

static void add(tensor_list *l, fill how, int64_t d0, int64_t d1, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void add(tensor_list *l, fill how, int64_t d0, int64_t d1, const char *format, ...)
{
    va_list args;
    tensor *t = &l->t[l->n++];
    *t = (tensor){ .how = how, .dim = { d0, d1 } };
    va_start(args, format);
    vsnprintf(t->name, sizeof t->name, format, args);
    va_end(args);
}

static void add_conv(tensor_list *l, int64_t channels, const char *prefix)
{
    add(l, FILL_MATRIX, channels, 1, "%s.conv1d.weight", prefix);
    l->t[l->n - 1].dim[2] = 4;
    add(l, FILL_MATRIX, channels, 0, "%s.conv1d.bias", prefix);
}

/* in_proj = [z | x | B | C | dt]; n_x, n_b, n_c columns of the convolution. */
static void add_mamba2(tensor_list *l, const char *p, int64_t dim, int64_t inner, int64_t heads, int64_t n_x,
                       int64_t n_b, int64_t n_c)
{
    add(l, FILL_MATRIX, inner + n_x + n_b + n_c + heads, dim, "%s.in_proj.weight", p);
    add_conv(l, n_x + n_b + n_c, p);
    add(l, FILL_STEP, heads, 0, "%s.dt_bias", p);
    add(l, FILL_DECAY, heads, 0, "%s.A_log", p);
    add(l, FILL_ONE, heads, 0, "%s.D", p);
    add(l, FILL_ONE, inner, 0, "%s.norm.weight", p);
    add(l, FILL_MATRIX, dim, inner, "%s.out_proj.weight", p);
}

static void add_mamba1(tensor_list *l, const char *p, int64_t dim, int64_t inner)
{
    const int64_t rank = (dim + 15) / 16;
    add(l, FILL_MATRIX, 2 * inner, dim, "%s.in_proj.weight", p);
    add_conv(l, inner, p);
    add(l, FILL_MATRIX, rank + 2 * STATE1, inner, "%s.x_proj.weight", p);
    add(l, FILL_MATRIX, inner, rank, "%s.dt_proj.weight", p);
    add(l, FILL_STEP, inner, 0, "%s.dt_proj.bias", p);
    add(l, FILL_DECAY, inner, STATE1, "%s.A_log", p);
    add(l, FILL_ONE, inner, 0, "%s.D", p);
    add(l, FILL_MATRIX, dim, inner, "%s.out_proj.weight", p);
}

static void add_ssm(tensor_list *l, const shape *s)
{
    const int64_t inner = 2 * (int64_t)s->dim;
    add(l, FILL_MATRIX, s->n_vocab, s->dim, "backbone.embeddings.weight");
    add(l, FILL_ONE, s->dim, 0, "backbone.norm_f.weight");
    for (int32_t i = 0; i < s->n_layer; i++) {
        char p[48];
        snprintf(p, sizeof p, "backbone.layers.%d.mixer", i);
        add(l, FILL_ONE, s->dim, 0, "backbone.layers.%d.norm.weight", i);
        if (s->kind == MAMBA) add_mamba1(l, p, s->dim, inner);
        else add_mamba2(l, p, s->dim, inner, inner / HEAD2, inner, STATE2, STATE2);
    }
}

/* The hybrid's attention stands in every second layer. */
static bool attends(const shape *s, int32_t layer)
{
    return s->kind == LLAMA || layer % 2 == 1;
}

static void add_attention(tensor_list *l, const shape *s, const char *p)
{
    const int64_t kv = (int64_t)s->kv * (s->dim / s->heads);
    add(l, FILL_MATRIX, s->dim, s->dim, "%s.self_attn.q_proj.weight", p);
    add(l, FILL_MATRIX, kv, s->dim, "%s.self_attn.k_proj.weight", p);
    add(l, FILL_MATRIX, kv, s->dim, "%s.self_attn.v_proj.weight", p);
    add(l, FILL_MATRIX, s->dim, s->dim, "%s.self_attn.o_proj.weight", p);
}

static void add_transformer(tensor_list *l, const shape *s)
{
    const int64_t head = s->dim / s->heads, xb = s->kv * head;
    add(l, FILL_MATRIX, s->n_vocab, s->dim, "model.embed_tokens.weight");
    add(l, FILL_ONE, s->dim, 0, "model.norm.weight");
    add(l, FILL_MATRIX, s->n_vocab, s->dim, "lm_head.weight");
    for (int32_t i = 0; i < s->n_layer; i++) {
        char p[48], mixer[56];
        snprintf(p, sizeof p, "model.layers.%d", i);
        snprintf(mixer, sizeof mixer, "%s.mamba", p);
        add(l, FILL_ONE, s->dim, 0, "%s.input_layernorm.weight", p);
        add(l, FILL_ONE, s->dim, 0, "%s.post_attention_layernorm.weight", p);
        if (attends(s, i)) add_attention(l, s, p);
        else add_mamba2(l, mixer, s->dim, s->dim, s->heads, xb, xb, s->dim);
        add(l, FILL_MATRIX, s->n_inner, s->dim, "%s.mlp.gate_proj.weight", p);
        add(l, FILL_MATRIX, s->n_inner, s->dim, "%s.mlp.up_proj.weight", p);
        add(l, FILL_MATRIX, s->dim, s->n_inner, "%s.mlp.down_proj.weight", p);
    }
}

static bool is_head(const shape *s) { return s->kind == EAGLE2_HEAD || s->kind == LYANNA_HEAD; }

static void add_head(tensor_list *l, const shape *s)
{
    add(l, FILL_MATRIX, s->dim, 2 * s->dim, "fc.weight");
    add_attention(l, s, "layers.0");
    add(l, FILL_ONE, s->dim, 0, "layers.0.post_attention_layernorm.weight");
    add(l, FILL_MATRIX, s->n_inner, s->dim, "layers.0.mlp.gate_proj.weight");
    add(l, FILL_MATRIX, s->n_inner, s->dim, "layers.0.mlp.up_proj.weight");
    add(l, FILL_MATRIX, s->dim, s->n_inner, "layers.0.mlp.down_proj.weight");
    if (s->kind != LYANNA_HEAD) return;
    add(l, FILL_MATRIX, INFO_RANK, s->dim, "token_info.w1.weight");
    add(l, FILL_MATRIX, s->n_vocab, INFO_RANK, "token_info.w2.weight");
    add(l, FILL_ONE, s->n_vocab, 0, "token_info.norm.weight");
    add(l, FILL_IDS, s->n_vocab, 0, "token_info.hot_ids");
}

static spec_status list_tensors(tensor_list *l, const shape *s)
{
    *l = (tensor_list){ .t = speci_alloc(NULL, (size_t)s->n_layer * 16 + 4, sizeof *l->t) };
    if (!l->t) return SPEC_E_NOMEM;
    if (is_head(s)) add_head(l, s);
    else if (s->kind == MAMBA || s->kind == MAMBA2) add_ssm(l, s);
    else add_transformer(l, s);
    return SPEC_OK;
}

/* --- weights --- */

static int64_t count(const tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < 3 && t->dim[i]; i++) n *= t->dim[i];
    return n;
}

static int64_t last_dim(const tensor *t)
{
    return t->dim[2] ? t->dim[2] : t->dim[1] ? t->dim[1] : t->dim[0];
}

/* xorshift64*, the upper bits as a number in [-1, 1) */
static float next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (float)((*state * 0x2545F4914F6CDD1Du) >> 40) * 0x1p-23f - 1;
}

static uint16_t bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Values of a tensor: n of them, repeated as often as it takes. Of the matrix's entries the variance is 1 / columns. */
static void fill_block(uint16_t *block, int64_t n, const tensor *t, uint64_t *state)
{
    const float scale = sqrtf(3.0f / (float)last_dim(t));
    for (int64_t i = 0; i < n; i++) {
        const float u = next(state);
        if (t->how == FILL_ONE) block[i] = bf16(1);
        else if (t->how == FILL_DECAY) block[i] = bf16(1.35f * (1 + u)); /* A in (-15, -1) */
        else if (t->how == FILL_STEP) block[i] = bf16(-4 + 2 * u);      /* dt about 0.002 to 0.13 */
        else block[i] = bf16(scale * u);
    }
}

static bool write_ids(FILE *f, const tensor *t)
{
    bool ok = true;
    for (int32_t i = 0; ok && i < (int32_t)t->dim[0]; i++) ok = fwrite(&i, sizeof i, 1, f) == 1;
    return ok;
}

static int64_t bytes_of(const tensor *t) { return count(t) * (t->how == FILL_IDS ? 4 : 2); }

/* BLOCK is a prime: the repetition falls differently in every row. */
static bool write_tensor(FILE *f, const tensor *t, uint16_t *block, uint64_t *state)
{
    const int64_t n = count(t), n_block = n < BLOCK ? n : BLOCK;
    if (t->how == FILL_IDS) return write_ids(f, t);
    fill_block(block, n_block, t, state);
    for (int64_t done = 0; done < n;) {
        const size_t now = (size_t)(n - done < n_block ? n - done : n_block);
        if (fwrite(block, sizeof *block, now, f) != now) return false;
        done += (int64_t)now;
    }
    return true;
}

static spec_status header(speci_buf *out, const tensor_list *l)
{
    char text[256];
    int64_t at = 0;
    SPEC_TRY(speci_buf_add(out, "{", 1));
    for (int32_t i = 0; i < l->n; i++) {
        const tensor *t = &l->t[i];
        int n = snprintf(text, sizeof text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld", i ? "," : "", t->name,
                         t->how == FILL_IDS ? "I32" : "BF16", (long long)t->dim[0]);
        for (int k = 1; k < 3 && t->dim[k]; k++)
            n += snprintf(text + n, sizeof text - (size_t)n, ",%lld", (long long)t->dim[k]);
        n += snprintf(text + n, sizeof text - (size_t)n, "],\"data_offsets\":[%lld,%lld]}", (long long)at,
                      (long long)(at + bytes_of(t)));
        SPEC_TRY(speci_buf_add(out, text, (size_t)n));
        at += bytes_of(t);
    }
    SPEC_TRY(speci_buf_add(out, "}", 1));
    while (out->n % 8) SPEC_TRY(speci_buf_add(out, " ", 1));
    return SPEC_OK;
}

static bool write_all(FILE *f, const speci_buf *head, const tensor_list *l, uint16_t *block)
{
    uint8_t length[8];
    uint64_t state = 0x9E3779B97F4A7C15u;
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)head->n >> (8 * i));
    bool ok = fwrite(length, 1, 8, f) == 8 && fwrite(head->data, 1, head->n, f) == head->n;
    for (int32_t i = 0; ok && i < l->n; i++) ok = write_tensor(f, &l->t[i], block, &state);
    return ok;
}

static spec_status open_file(FILE **f, const char *dir, const char *name)
{
    char path[MAX_PATH];
    SPEC_TRY(speci_path_join(path, sizeof path, dir, name));
    *f = fopen(path, "wb");
    return *f ? SPEC_OK : speci_fail(SPEC_E_IO, "%s: cannot be written: %s", path, strerror(errno));
}

static spec_status close_file(FILE *f, bool ok, const char *dir)
{
    ok = !ferror(f) && ok;
    ok = fclose(f) == 0 && ok;
    return ok ? SPEC_OK : speci_fail(SPEC_E_IO, "%s: the model cannot be written: %s", dir, strerror(errno));
}

static spec_status write_weights(const char *dir, const shape *s)
{
    tensor_list l;
    FILE *f = NULL;
    SPEC_TRY(list_tensors(&l, s));
    speci_buf head = { .a = &speci_malloc };
    uint16_t *block = speci_alloc(NULL, BLOCK, sizeof *block);
    spec_status status = block ? header(&head, &l) : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = open_file(&f, dir, "model.safetensors");
    if (status == SPEC_OK) status = close_file(f, write_all(f, &head, &l, block), dir);
    speci_free(NULL, block);
    speci_buf_free(&head);
    speci_free(NULL, l.t);
    return status;
}

/* --- configurations --- */

static void mamba_config(FILE *f, const shape *s)
{
    fprintf(f, "{\"model_type\": \"mamba\", \"architectures\": [\"MambaForCausalLM\"], \"hidden_size\": %d, "
               "\"num_hidden_layers\": %d, \"state_size\": %d, \"expand\": 2, \"conv_kernel\": 4, "
               "\"time_step_rank\": %d, \"intermediate_size\": %d, \"vocab_size\": %d, \"layer_norm_epsilon\": 1e-5, "
               "\"residual_in_fp32\": true, \"tie_word_embeddings\": true, \"use_bias\": false, "
               "\"use_conv_bias\": true, \"hidden_act\": \"silu\"",
            s->dim, s->n_layer, STATE1, (s->dim + 15) / 16, 2 * s->dim, s->n_vocab);
}

static void mamba2_config(FILE *f, const shape *s)
{
    fprintf(f, "{\"model_type\": \"mamba2\", \"architectures\": [\"Mamba2ForCausalLM\"], \"hidden_size\": %d, "
               "\"num_hidden_layers\": %d, \"num_heads\": %d, \"head_dim\": %d, \"state_size\": %d, \"n_groups\": 1, "
               "\"expand\": 2, \"conv_kernel\": 4, \"vocab_size\": %d, \"layer_norm_epsilon\": 1e-5, "
               "\"rms_norm\": true, \"residual_in_fp32\": true, \"tie_word_embeddings\": true, \"use_bias\": false, "
               "\"use_conv_bias\": true, \"hidden_act\": \"silu\"",
            s->dim, s->n_layer, 2 * s->dim / HEAD2, HEAD2, STATE2, s->n_vocab);
}

static void llama_config(FILE *f, const shape *s)
{
    fprintf(f, "{\"model_type\": \"llama\", \"architectures\": [\"%s\"], \"hidden_size\": %d, "
               "\"intermediate_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
               "\"num_key_value_heads\": %d, \"vocab_size\": %d, \"rms_norm_eps\": 1e-5, \"rope_theta\": %g, "
               "\"max_position_embeddings\": %d, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\", "
               "\"attention_bias\": false, \"mlp_bias\": false",
            s->kind == LYANNA_HEAD ? "LyannaForCausalLM" : "LlamaForCausalLM", s->dim, s->n_inner, s->n_layer, s->heads, s->kv, s->n_vocab,
            s->theta, s->ctx);
    if (is_head(s)) fprintf(f, ", \"bias\": false");
    if (s->kind == LYANNA_HEAD) fprintf(f, ", \"token_info_rank\": %d, \"token_info_hot\": %d", INFO_RANK, s->n_vocab);
}

/* Half of the layers are Mamba-2, with heads and shared x and B as the replaced attention had them. */
static spec_status hybrid_config(const char *dir, const shape *s)
{
    FILE *f;
    const int32_t head = s->dim / s->heads;
    SPEC_TRY(open_file(&f, dir, "mamba_config.json"));
    fprintf(f, "{\"d_model\": %d, \"n_layer\": %d, \"intermediate_size\": %d, \"vocab_size\": %d, "
               "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, \"d_inner\": %d, \"d_xb\": %d, "
               "\"ssm_cfg\": {\"expand\": 1, \"ngroups\": %d, \"d_state\": %d}, \"attn_layers\": [",
            s->dim, s->n_layer, s->n_inner, s->n_vocab, s->dim, s->kv * head, s->heads, head);
    bool first = true;
    for (int32_t i = 0; i < s->n_layer; i++) {
        if (!attends(s, i)) continue;
        fprintf(f, "%s%d", first ? "" : ", ", i);
        first = false;
    }
    fprintf(f, "]}\n");
    return close_file(f, true, dir);
}

/* No token ends a text: what random weights say would end it anywhere. */
static spec_status write_config(const char *dir, const shape *s)
{
    FILE *f;
    if (s->kind == MAMBA_IN_LLAMA) SPEC_TRY(hybrid_config(dir, s));
    SPEC_TRY(open_file(&f, dir, "config.json"));
    if (s->kind == MAMBA) mamba_config(f, s);
    else if (s->kind == MAMBA2) mamba2_config(f, s);
    else llama_config(f, s);
    fprintf(f, ", \"dtype\": \"bfloat16\"}\n");
    return close_file(f, true, dir);
}

/* --- directories --- */

void bench_model_remove(const char *dir)
{
    static const char *const files[] = { "config.json", "mamba_config.json", "model.safetensors" };
    char path[MAX_PATH];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (speci_path_join(path, sizeof path, dir, files[i]) == SPEC_OK) unlink(path);
    rmdir(dir);
}

static spec_status temporary(char *out, size_t cap)
{
    const char *tmp = getenv("TMPDIR");
    SPEC_TRY(speci_path_join(out, cap, tmp && tmp[0] ? tmp : "/tmp", "spec-bench-XXXXXX"));
    return mkdtemp(out) ? SPEC_OK : speci_fail(SPEC_E_IO, "%s: cannot be made: %s", out, strerror(errno));
}

/* config.json is written last: where it is, the model is whole. */
static spec_status kept(char *out, size_t cap, const char *keep, const char *name, bool *there)
{
    char config[MAX_PATH];
    SPEC_TRY(speci_path_join(out, cap, keep, name));
    SPEC_TRY(speci_path_join(config, sizeof config, out, "config.json"));
    *there = speci_file_exists(config);
    if ((mkdir(keep, 0777) != 0 && errno != EEXIST) || (mkdir(out, 0777) != 0 && errno != EEXIST))
        return speci_fail(SPEC_E_IO, "%s: cannot be made: %s", out, strerror(errno));
    return SPEC_OK;
}

spec_status bench_model_directory(char *out, size_t cap, const char *name, const char *keep, bool *written)
{
    const shape *s = find(name);
    bool there = false;
    *written = false;
    if (!s && !speci_is_directory(name) && !speci_file_exists(name))
        return speci_fail(SPEC_E_INVALID, "\"%s\" is neither a directory nor a file nor the name of a shape (spec-bench --help)",
                          name);
    if (!s) {
        const int n = snprintf(out, cap, "%s", name);
        return n >= 0 && (size_t)n < cap ? SPEC_OK : speci_fail(SPEC_E_INVALID, "%s: too long", name);
    }
    SPEC_TRY(keep ? kept(out, cap, keep, name, &there) : temporary(out, cap));
    if (there) return SPEC_OK;
    spec_status status = write_weights(out, s);
    if (status == SPEC_OK) status = write_config(out, s);
    *written = !keep && status == SPEC_OK;
    if (status != SPEC_OK) bench_model_remove(out);
    return status;
}
