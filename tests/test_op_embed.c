/* test_op_embed.c - y[r] = scale * table[token]; rows that are not valid become 0, and so does what the pass will note. */
#include "tests/ref_ops.h"
#include "tests/test.h"

typedef struct embed_case {
    const char *name;
    int32_t n_vocab, dim, rows, run; /* run: rows with padding */
    spec_dtype weight, compute;
    double scale;
} embed_case;

static const embed_case cases[] = {
    { "base", 40, 64, 4, 4, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 1.0 },
    { "one_row", 40, 64, 1, 1, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 1.0 },
    { "odd_sizes", 37, 67, 4, 4, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 1.0 },
    { "scale", 40, 64, 4, 4, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 0.25 },
    { "padded", 40, 64, 3, 8, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 1.0 },
    { "bf16", 40, 64, 4, 4, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 1.0 },
    { "bf16_odd", 33, 31, 4, 4, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 1.0 },
    { "f16", 40, 64, 4, 4, SPEC_DTYPE_F16, SPEC_DTYPE_F16, 1.0 },
    { "f32_table_bf16_compute", 40, 64, 4, 4, SPEC_DTYPE_F32, SPEC_DTYPE_BF16, 1.0 },
    { "q8", 40, 64, 4, 4, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 1.0 },
    { "q4_0", 40, 64, 4, 4, SPEC_DTYPE_Q4_0, SPEC_DTYPE_BF16, 1.0 },
    { "q4_1_f16", 40, 96, 4, 4, SPEC_DTYPE_Q4_1, SPEC_DTYPE_F16, 1.0 },
    { "q5_0", 40, 64, 4, 4, SPEC_DTYPE_Q5_0, SPEC_DTYPE_F32, 0.5 },
    { "q5_1", 40, 576, 4, 4, SPEC_DTYPE_Q5_1, SPEC_DTYPE_BF16, 1.0 },
    { "q4_k", 40, 512, 4, 4, SPEC_DTYPE_Q4_K, SPEC_DTYPE_BF16, 1.0 },
    { "q5_k", 37, 256, 4, 4, SPEC_DTYPE_Q5_K, SPEC_DTYPE_F32, 1.0 },
    { "q6_k", 40, 768, 4, 4, SPEC_DTYPE_Q6_K, SPEC_DTYPE_BF16, 1.0 },
    { "q8_odd_f32", 37, 96, 4, 4, SPEC_DTYPE_Q8_0, SPEC_DTYPE_F32, 0.25 },
    { "bf16_table_f32_compute", 40, 64, 4, 4, SPEC_DTYPE_BF16, SPEC_DTYPE_F32, 1.0 },
};

/* Only prompts have padding: a decode step of more rows than it has is refused; so is one whose sequences stand elsewhere than
 * right behind its head. */
static void expect_refused(const test_device *d, const spec_op *op, spec_step_block *step, int32_t n_node)
{
    spec_queue *q = test_queue(d, op, 1, step, n_node, 1);
    step->phase = SPEC_PHASE_DECODE;
    assert_int_equal(d->ops->step_bind(q, step), SPEC_E_INVALID);
    step->phase = SPEC_PHASE_PREFILL;
    test_ok(d->ops->step_bind(q, step), "step_bind");
    step->off_seq += (int32_t)sizeof(int64_t);
    assert_int_equal(d->ops->step_bind(q, step), SPEC_E_INVALID);
    step->off_seq -= (int32_t)sizeof(int64_t);
    d->ops->queue_close(q);
}

enum { MOST_ROWS = 8 };

static void run_case(const test_device *d, const embed_case *c)
{
    if (!test_keeps(d, c->name, c->weight)) return;
    test_random random = { 1 };
    int32_t parent[MOST_ROWS], token[MOST_ROWS];
    for (int32_t i = 0; i < c->rows; i++) {
        parent[i] = i - 1;
        token[i] = i == 0 ? c->n_vocab - 1 : test_below(&random, c->n_vocab);
    }
    test_seq s = { .n_node = c->rows, .parent = parent, .token = token };
    const int32_t phase = c->run > c->rows ? SPEC_PHASE_PREFILL : SPEC_PHASE_DECODE;
    spec_step_block *step = test_step(phase, &s, 1, c->run);
    double *table = test_values(&random, (size_t)c->n_vocab * (size_t)c->dim, 2.0);
    double *want = calloc((size_t)c->run * (size_t)c->dim, sizeof *want);
    spec_weight *w = test_weight(d, table, c->n_vocab, c->dim, c->weight, c->compute, 0, 1);
    if (c->weight != SPEC_DTYPE_Q8_0 && c->compute != SPEC_DTYPE_F32) /* a row of other blocks is rounded, unlike in products */
        test_round_all(table, (size_t)c->n_vocab * (size_t)c->dim, c->compute);
    for (int32_t r = 0; r < c->rows; r++)
        for (int32_t i = 0; i < c->dim; i++) want[r * c->dim + i] = c->scale * table[token[r] * c->dim + i];
    test_buffer y = test_buffer_new(d, (size_t)c->run * (size_t)c->dim, SPEC_DTYPE_F32);
    spec_op op = { .kind = SPEC_OP_EMBED };
    op.u.embed = (spec_embed_args){ w, c->n_vocab, c->dim, (float)c->scale, test_view(&y, c->dim) };
    if (test_can(d, c->name, &op)) {
        test_run(d, &op, step, c->run);
        double *got = test_read(&y);
        test_compare(d, c->name, "y", got, want, c->run, c->dim, 1e-7);
        free(got);
        if (c->run > c->rows) expect_refused(d, &op, step, c->run);
    }
    test_buffer_free(&y);
    d->ops->weight_close(d->dev, w);
    free(want);
    free(table);
    free(step);
}

static void each(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i]);
}

static void test_embed(void **state)
{
    (void)state;
    test_each_device(each);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_embed) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
