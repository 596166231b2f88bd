/* test_op_attention.c - attention of tree nodes over prefix and path: each node's keys and values are put in a row and
 * given to plain softmax attention. A prompt that is cut in two passes has the bits of one pass, and a tree's node alone,
 * behind nodes that were fed before, those that it has among all: kernels for few rows and for many must agree. So has
 * the node at the end of its path read token by token: keys of the tree and of the prefix must count alike. */
#include <math.h>

#include "tests/ref_ops.h"
#include "tests/test.h"

#define F32 SPEC_DTYPE_F32
#define BF16 SPEC_DTYPE_BF16
#define F16 SPEC_DTYPE_F16

static const int32_t chain[] = { -1, 0, 1, 2, 3, 4, 5, 6, 7, 8 };
static const int32_t bush[] = { -1, 0, 1, 1, 0, 4, 0, 5, 3, 2 };
static const int32_t star[] = { -1, 0, 0, 0, 0, 0 };

static int32_t prompt_chain[256];

static const test_seq first_token[] = { { .slot = 0, .n_past = 0, .n_node = 1, .parent = chain } };
static const test_seq one[] = { { .slot = 0, .n_past = 20, .n_node = 1, .parent = chain } };
static const test_seq short_chain[] = { { .slot = 0, .n_past = 20, .n_node = 4, .parent = chain } };
static const test_seq tree[] = { { .slot = 1, .parity = 1, .n_past = 20, .n_node = 10, .parent = bush } };
static const test_seq tree_at_0[] = { { .slot = 1, .parity = 1, .n_past = 0, .n_node = 10, .parent = bush } };
static const test_seq tree_over_page[] = { { .slot = 1, .parity = 1, .n_past = 126, .n_node = 10, .parent = bush } };
static const test_seq fed[] = { { .slot = 2, .n_past = 62, .n_node = 10, .n_fed = 4, .parent = bush } };
static const test_seq far[] = { { .slot = 2, .n_past = 400, .n_node = 10, .parent = bush } };
static const test_seq far_one[] = { { .slot = 6, .n_past = 1100, .n_node = 1, .parent = chain } };
static const test_seq far_tree[] = { { .slot = 7, .n_past = 1022, .n_node = 10, .parent = bush } };
static const test_seq several[] = { { .slot = 3, .n_past = 62, .n_node = 10, .parent = bush },
                                    { .slot = 0, .parity = 1, .n_past = 0, .n_node = 1, .parent = chain },
                                    { .slot = 5, .parity = 1, .n_past = 300, .n_node = 6, .n_fed = 2, .parent = star },
                                    { .slot = 4, .n_past = 128, .n_node = 10, .n_fed = 9, .parent = chain } };
static const test_seq prompt[] = { { .slot = 1, .n_past = 0, .n_node = 200, .parent = prompt_chain } };
static const test_seq whole_pages[] = { { .slot = 2, .n_past = 0, .n_node = 256, .parent = prompt_chain } };
static const test_seq second_pass[] = { { .slot = 3, .n_past = 128, .n_node = 200, .parent = prompt_chain } };
static const test_seq inside_page[] = { { .slot = 0, .n_past = 295, .n_node = 100, .parent = prompt_chain } };

typedef struct attention_case {
    const char *name;
    const test_seq *seqs;
    int32_t n_seq, n_head, n_kv_head, dim, window;
    spec_dtype dtype;
    int32_t phase;
    int32_t nan_at; /* K and V of this position are NaN; 0 = of none */
    double cap;     /* of scores, which are of about 1; 0 = none */
} attention_case;

static const attention_case cases[] = {
    { "base", short_chain, 1, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "first_token", first_token, 1, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "one_row", one, 1, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "tree", tree, 1, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "tree_at_0", tree_at_0, 1, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "tree_over_page", tree_over_page, 1, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "fed", fed, 1, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "far", far, 1, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "several", several, 4, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "grouped", several, 4, 6, 2, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "one_key_head", several, 4, 5, 1, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "odd_dim", several, 4, 3, 3, 13, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "dim_128", several, 4, 4, 2, 128, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "window_1", several, 4, 4, 2, 16, 1, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "window_3", several, 4, 4, 2, 16, 3, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "window_70", several, 4, 4, 2, 16, 70, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "bf16", several, 4, 4, 2, 32, 0, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "bf16_window", several, 4, 4, 2, 32, 70, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "f16", several, 4, 4, 2, 32, 0, F16, SPEC_PHASE_DECODE, 0, 0 },
    { "dim_256", several, 4, 4, 2, 256, 0, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "far_one", far_one, 1, 4, 2, 64, 0, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "far_one_window", far_one, 1, 4, 2, 64, 300, F16, SPEC_PHASE_DECODE, 0, 0 },
    { "far_tree", far_tree, 1, 4, 2, 32, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "far_tree_window", far_tree, 1, 4, 4, 128, 600, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "heads_40", tree, 1, 40, 40, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0 },
    { "heads_40_bf16", tree_over_page, 1, 40, 40, 64, 0, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "heads_40_grouped", tree_over_page, 1, 40, 10, 128, 0, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "heads_40_window", far, 1, 40, 8, 64, 70, F16, SPEC_PHASE_DECODE, 0, 0 },
    { "heads_40_odd", tree_over_page, 1, 40, 40, 13, 0, F16, SPEC_PHASE_DECODE, 0, 0 },
    { "heads_40_dim_256", tree, 1, 40, 4, 256, 0, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "heads_40_far", far_tree, 1, 40, 20, 32, 0, F16, SPEC_PHASE_DECODE, 0, 0 },
    { "heads_40_far_window", far_tree, 1, 40, 10, 64, 700, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "bf16_one", one, 1, 4, 4, 128, 0, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "bf16_tree", tree, 1, 4, 4, 128, 0, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "bf16_tree_at_0", tree_at_0, 1, 4, 4, 64, 0, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "f16_fed", fed, 1, 4, 4, 64, 0, F16, SPEC_PHASE_DECODE, 0, 0 },
    { "f16_grouped", several, 4, 6, 2, 128, 0, F16, SPEC_PHASE_DECODE, 0, 0 },
    { "f16_window_1", several, 4, 4, 2, 64, 1, F16, SPEC_PHASE_DECODE, 0, 0 },
    { "bf16_one_key_head", tree_over_page, 1, 20, 1, 80, 0, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "heads_71_one_key_head", tree, 1, 71, 1, 64, 0, BF16, SPEC_PHASE_DECODE, 0, 0 }, /* Falcon 7B */
    { "f16_dim_40", fed, 1, 11, 1, 40, 0, F16, SPEC_PHASE_DECODE, 0, 0 },
    { "bf16_dim_200", far_tree, 1, 4, 2, 200, 70, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "heads_40_fed", fed, 1, 40, 40, 128, 70, BF16, SPEC_PHASE_DECODE, 0, 0 },
    { "prefill", short_chain, 1, 4, 2, 16, 0, F32, SPEC_PHASE_PREFILL, 0, 0 },
    { "prefill_window", short_chain, 1, 4, 2, 16, 5, F32, SPEC_PHASE_PREFILL, 0, 0 },
    { "prefill_bf16", short_chain, 1, 4, 2, 32, 0, BF16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_f32", prompt, 1, 4, 2, 16, 0, F32, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_f16", prompt, 1, 4, 2, 64, 0, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_bf16", prompt, 1, 2, 2, 128, 0, BF16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_one_row", first_token, 1, 4, 2, 64, 0, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_pages", whole_pages, 1, 3, 1, 16, 0, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_second_pass", second_pass, 1, 2, 1, 64, 0, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_inside_page", inside_page, 1, 3, 1, 128, 0, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_dim_8", prompt, 1, 2, 2, 8, 0, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_dim_13", prompt, 1, 2, 2, 13, 0, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_dim_40", inside_page, 1, 2, 2, 40, 0, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_dim_80", prompt, 1, 2, 1, 80, 0, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_dim_136", prompt, 1, 2, 1, 136, 0, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_window_1", prompt, 1, 4, 2, 32, 1, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_window_64", second_pass, 1, 4, 2, 32, 64, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_window_150", inside_page, 1, 2, 1, 128, 150, F16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_window_bf16", second_pass, 1, 4, 2, 32, 70, BF16, SPEC_PHASE_PREFILL, 0, 0 },
    { "prompt_nan", prompt, 1, 4, 2, 64, 0, F16, SPEC_PHASE_PREFILL, 131, 0 },
    { "prompt_nan_window", second_pass, 1, 2, 1, 128, 70, BF16, SPEC_PHASE_PREFILL, 209, 0 },
    { "cap", tree, 1, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_one_row", one, 1, 4, 4, 16, 0, F32, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_far_from", several, 4, 4, 2, 16, 0, F32, SPEC_PHASE_DECODE, 0, 50 },
    { "cap_several_window", several, 4, 4, 2, 128, 70, F32, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_dim_256", several, 4, 4, 2, 256, 0, F32, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_grouped", several, 4, 6, 2, 16, 3, F32, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_far_tree", far_tree, 1, 4, 2, 32, 0, F32, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_bf16", several, 4, 4, 2, 32, 0, BF16, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_bf16_tree", tree_over_page, 1, 4, 4, 128, 0, BF16, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_bf16_one", one, 1, 8, 4, 256, 0, BF16, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_f16_fed", fed, 1, 4, 2, 64, 0, F16, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_bf16_dim_256", far_tree, 1, 8, 4, 256, 600, BF16, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_f16_odd", tree_over_page, 1, 4, 4, 13, 0, F16, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_far_one", far_one, 1, 4, 2, 64, 0, BF16, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_heads_40", tree_over_page, 1, 40, 10, 128, 70, BF16, SPEC_PHASE_DECODE, 0, 0.5 },
    { "cap_prompt_f32", prompt, 1, 4, 2, 16, 0, F32, SPEC_PHASE_PREFILL, 0, 0.5 },
    { "cap_prompt_f16", prompt, 1, 4, 2, 64, 0, F16, SPEC_PHASE_PREFILL, 0, 0.5 },
    { "cap_prompt_bf16", second_pass, 1, 2, 1, 128, 0, BF16, SPEC_PHASE_PREFILL, 0, 0.5 },
    { "cap_prompt_window", inside_page, 1, 2, 1, 128, 150, F16, SPEC_PHASE_PREFILL, 0, 0.5 },
    { "cap_prompt_dim_256", prompt, 1, 4, 2, 256, 0, BF16, SPEC_PHASE_PREFILL, 0, 0.5 },
    { "cap_prompt_nan", prompt, 1, 4, 2, 64, 0, F16, SPEC_PHASE_PREFILL, 131, 0.5 },
};

static size_t kv_index(const attention_case *c, int32_t seq, int32_t slot, int32_t head)
{
    size_t page = (size_t)test_page(seq, slot / SPEC_PAGE);
    return ((page * (size_t)c->n_kv_head + (size_t)head) * SPEC_PAGE + (size_t)(slot % SPEC_PAGE)) * (size_t)c->dim;
}

/* Only the slots that a sequence has are numbers: reading any other one shows. */
static void fill_cache(const attention_case *c, double *k, double *v, test_random *random)
{
    for (int32_t i = 0; i < c->n_seq; i++) {
        const test_seq *s = &c->seqs[i];
        for (int32_t slot = 0; slot < s->n_past + s->n_node; slot++)
            for (int32_t h = 0; h < c->n_kv_head; h++)
                for (int32_t e = 0; e < c->dim; e++) {
                    size_t at = kv_index(c, s->slot, slot, h) + (size_t)e;
                    k[at] = test_round(2.0 * test_signed(random), c->dtype);
                    v[at] = test_round(test_signed(random), c->dtype);
                    if (c->nan_at > 0 && slot == c->nan_at) k[at] = v[at] = NAN;
                }
    }
}

/* One node and head: its path's keys and values one after the other. */
static void expect_head(const attention_case *c, double *y, const double *q, const double *k, const double *v,
                        const test_seq *s, int32_t node, int32_t head)
{
    int32_t path[N_ELEMENTS(prompt_chain)], n = test_path(s, node, path), kv_head = head / (c->n_head / c->n_kv_head);
    int32_t length = s->n_past + n;
    size_t dim = (size_t)c->dim;
    double *keys = calloc((size_t)length * dim, sizeof *keys), *values = calloc((size_t)length * dim, sizeof *values);
    for (int32_t t = 0; t < length; t++) {
        int32_t slot = t < s->n_past ? t : s->n_past + path[t - s->n_past];
        memcpy(keys + (size_t)t * dim, k + kv_index(c, s->slot, slot, kv_head), dim * sizeof *k);
        memcpy(values + (size_t)t * dim, v + kv_index(c, s->slot, slot, kv_head), dim * sizeof *v);
    }
    ref_attention(y, q, keys, values, length, c->dim, 1.0 / sqrt(c->dim), c->window, c->cap);
    free(values);
    free(keys);
}

static void expect(const attention_case *c, double *y, const double *q, int32_t ld, const double *k, const double *v)
{
    int32_t row = 0;
    for (int32_t i = 0; i < c->n_seq; i++)
        for (int32_t node = c->seqs[i].n_fed; node < c->seqs[i].n_node; node++, row++)
            for (int32_t h = 0; h < c->n_head; h++)
                expect_head(c, y + (row * c->n_head + h) * c->dim, q + row * ld + h * c->dim, k, v, &c->seqs[i], node, h);
}

/* Rows [first, first + n) of a prompt or a tree in a pass of their own, against the bits of all rows in one. */
static void expect_pass(const test_device *d, const attention_case *c, const spec_op *whole, const uint8_t *want,
                        int32_t first, int32_t n)
{
    const test_seq *all = c->seqs;
    const test_seq prompt_rows = { .slot = all->slot, .n_past = all->n_past + first, .n_node = n, .parent = all->parent };
    const test_seq tree_rows = { .slot = all->slot, .n_past = all->n_past, .n_fed = all->n_fed + first,
                                 .n_node = all->n_fed + first + n, .parent = all->parent };
    const test_seq s = c->phase == SPEC_PHASE_PREFILL ? prompt_rows : tree_rows;
    size_t width = (size_t)(c->n_head * c->dim), row = width * test_type_size(c->dtype);
    spec_step_block *step = test_step(c->phase, &s, 1, 0);
    test_buffer y = test_buffer_new(d, (size_t)n * width, c->dtype);
    spec_op op = *whole;
    op.u.attention.q.data = (float *)op.u.attention.q.data + (size_t)first * (size_t)op.u.attention.q.ld;
    op.u.attention.y = test_view(&y, (int32_t)width);
    test_run(d, &op, step, TEST_NODES);
    uint8_t *got = test_read_raw(&y);
    for (int32_t i = 0; i < n; i++)
        if (memcmp(got + (size_t)i * row, want + (size_t)(first + i) * row, row) != 0)
            fail_msg("%s %s: row %d in a pass that begins at %d has other bits", d->name, c->name, first + i, first);
    free(got);
    test_buffer_free(&y);
    free(step);
}

/* The last node, its path's keys and values in the slots of a prefix: the bits of row `row` of the tree. */
static void expect_decoded(const test_device *d, const attention_case *c, const spec_op *tree_op, const uint8_t *want,
                           int32_t row, double *k, double *v, size_t n_kv)
{
    const test_seq *tree_seq = c->seqs;
    int32_t path[N_ELEMENTS(prompt_chain)], n = test_path(tree_seq, tree_seq->n_node - 1, path);
    for (int32_t i = 0; i < n; i++) /* a node's number is not below its depth: no slot is read after it was written */
        for (int32_t h = 0; h < c->n_kv_head; h++) {
            size_t to = kv_index(c, tree_seq->slot, tree_seq->n_past + i, h);
            size_t from = kv_index(c, tree_seq->slot, tree_seq->n_past + path[i], h);
            memmove(k + to, k + from, (size_t)c->dim * sizeof *k);
            memmove(v + to, v + from, (size_t)c->dim * sizeof *v);
        }
    const test_seq s = { .slot = tree_seq->slot, .n_past = tree_seq->n_past + n - 1, .n_node = 1, .parent = chain };
    size_t width = (size_t)(c->n_head * c->dim), bytes = width * test_type_size(c->dtype);
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
    test_buffer y = test_buffer_new(d, width, c->dtype);
    test_buffer bk = test_buffer_from(d, k, n_kv, c->dtype), bv = test_buffer_from(d, v, n_kv, c->dtype);
    spec_op op = *tree_op;
    op.u.attention.q.data = (float *)op.u.attention.q.data + (size_t)row * (size_t)op.u.attention.q.ld;
    op.u.attention.kv.k = bk.data, op.u.attention.kv.v = bv.data;
    op.u.attention.y = test_view(&y, (int32_t)width);
    test_run(d, &op, step, TEST_NODES);
    uint8_t *got = test_read_raw(&y);
    if (memcmp(got, want + (size_t)row * bytes, bytes) != 0)
        fail_msg("%s %s: the last node has other bits where its path is decoded", d->name, c->name);
    free(got);
    test_buffer_free(&bv);
    test_buffer_free(&bk);
    test_buffer_free(&y);
    free(step);
}

static void run_case(const test_device *d, const attention_case *c)
{
    test_random random = { 6 };
    spec_step_block *step = test_step(c->phase, c->seqs, c->n_seq, 0);
    int32_t rows = step->n_row, width = c->n_head * c->dim, ld = (c->n_head + 2 * c->n_kv_head) * c->dim;
    size_t n_kv = (size_t)TEST_PAGES * TEST_SEQS * (size_t)c->n_kv_head * SPEC_PAGE * (size_t)c->dim;
    size_t n = (size_t)rows * (size_t)width, n_q = (size_t)rows * (size_t)ld;
    double *q = test_values(&random, n_q, 1.0), *want = calloc(n, sizeof *want);
    double *k = calloc(n_kv, sizeof *k), *v = calloc(n_kv, sizeof *v);
    for (size_t i = 0; i < n_kv; i++) k[i] = v[i] = NAN;
    fill_cache(c, k, v, &random);
    expect(c, want, q, ld, k, v);
    test_buffer bq = test_buffer_from(d, q, n_q, F32), by = test_buffer_new(d, n, c->dtype);
    test_buffer bk = test_buffer_from(d, k, n_kv, c->dtype), bv = test_buffer_from(d, v, n_kv, c->dtype);
    spec_op op = { .kind = SPEC_OP_ATTENTION };
    op.u.attention = (spec_attention_args){ .q = test_view(&bq, ld), .n_head = c->n_head,
                                            .scale = (float)(1.0 / sqrt(c->dim)), .window = c->window,
                                            .kv = { bk.data, bv.data, c->dtype, TEST_PAGES * TEST_SEQS, c->n_kv_head, c->dim },
                                            .y = test_view(&by, width), .cap = (float)c->cap };
    if (test_can(d, c->name, &op)) {
        test_run(d, &op, step, TEST_NODES);
        double *got = test_read(&by);
        test_compare(d, c->name, "y", got, want, rows, width, test_tolerance(c->dtype));
        free(got);
        if (c->phase == SPEC_PHASE_PREFILL && rows > 1) {
            uint8_t *bits = test_read_raw(&by);
            expect_pass(d, c, &op, bits, 0, rows / 3);
            expect_pass(d, c, &op, bits, rows / 3, rows - rows / 3);
            free(bits);
        }
        if (c->phase == SPEC_PHASE_DECODE && rows > 1 && c->n_seq == 1) {
            uint8_t *bits = test_read_raw(&by);
            for (int32_t i = 0; i < rows; i++) expect_pass(d, c, &op, bits, i, 1);
            expect_decoded(d, c, &op, bits, rows - 1, k, v, n_kv);
            free(bits);
        }
    }
    test_buffer_free(&bv);
    test_buffer_free(&bk);
    test_buffer_free(&by);
    test_buffer_free(&bq);
    free(v);
    free(k);
    free(want);
    free(q);
    free(step);
}

static void each(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i]);
}

static void test_attention(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_ELEMENTS(prompt_chain); i++) prompt_chain[i] = i - 1;
    test_each_device(each);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_attention) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
