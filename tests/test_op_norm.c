/* test_op_norm.c - RMS and layer norms, groups, gates before and after, deferred norms. */
#include "tests/ref_ops.h"
#include "tests/test.h"

enum { NONE = 0, BEFORE = 1, AFTER = 2 }; /* where the gate is */
enum { ROWS = 70 };                       /* at most */

typedef struct norm_case {
    const char *name;
    spec_norm_kind kind;
    int32_t rows, dim, groups, gate;
    bool bias;
    spec_dtype y;
    int32_t pad; /* columns between rows */
} norm_case;

static const norm_case cases[] = {
    { "base", SPEC_NORM_RMS, 4, 64, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "one_row", SPEC_NORM_RMS, 1, 64, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "odd_dim", SPEC_NORM_RMS, 4, 67, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "tiny_dim", SPEC_NORM_RMS, 4, 3, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "wide", SPEC_NORM_RMS, 3, 5120, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "strided", SPEC_NORM_RMS, 4, 64, 1, NONE, false, SPEC_DTYPE_F32, 9 },
    { "groups", SPEC_NORM_RMS, 4, 96, 8, NONE, false, SPEC_DTYPE_F32, 0 },
    { "gate", SPEC_NORM_RMS, 4, 64, 1, BEFORE, false, SPEC_DTYPE_F32, 0 },
    { "gate_groups", SPEC_NORM_RMS, 4, 96, 4, BEFORE, false, SPEC_DTYPE_F32, 0 },
    { "gate_after", SPEC_NORM_RMS, 4, 64, 1, AFTER, false, SPEC_DTYPE_F32, 0 },
    { "gate_after_groups_odd", SPEC_NORM_RMS, 5, 99, 3, AFTER, false, SPEC_DTYPE_F32, 2 },
    { "gate_bf16", SPEC_NORM_RMS, 4, 64, 1, BEFORE, false, SPEC_DTYPE_BF16, 0 },
    { "layer", SPEC_NORM_LAYER, 4, 64, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "layer_bias", SPEC_NORM_LAYER, 4, 64, 1, NONE, true, SPEC_DTYPE_F32, 0 },
    { "layer_odd", SPEC_NORM_LAYER, 4, 67, 1, NONE, true, SPEC_DTYPE_F32, 0 },
    { "bf16", SPEC_NORM_RMS, 4, 67, 1, NONE, false, SPEC_DTYPE_BF16, 0 },
    { "f16", SPEC_NORM_RMS, 4, 67, 1, NONE, false, SPEC_DTYPE_F16, 0 },
    { "layer_f16", SPEC_NORM_LAYER, 4, 64, 1, NONE, true, SPEC_DTYPE_F16, 3 },
    { "many_rows", SPEC_NORM_RMS, 64, 256, 1, NONE, false, SPEC_DTYPE_F32, 0 },
};

/* y and the sums of squares; what makes the row's factor of them is a product's. */
static const norm_case deferred[] = {
    { "deferred", SPEC_NORM_RMS, 4, 64, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "deferred_one_sum", SPEC_NORM_RMS, 1, 16, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "deferred_one_sum_bf16", SPEC_NORM_RMS, 33, 16, 1, NONE, false, SPEC_DTYPE_BF16, 0 },
    { "deferred_strided", SPEC_NORM_RMS, 4, 64, 1, NONE, false, SPEC_DTYPE_F32, 9 },
    { "deferred_gate", SPEC_NORM_RMS, 4, 64, 1, BEFORE, false, SPEC_DTYPE_F32, 0 },
    { "deferred_gate_bf16", SPEC_NORM_RMS, 33, 768, 1, BEFORE, false, SPEC_DTYPE_BF16, 0 },
    { "deferred_gate_strided", SPEC_NORM_RMS, 5, 48, 1, BEFORE, false, SPEC_DTYPE_BF16, 3 },
    { "deferred_768", SPEC_NORM_RMS, 70, 768, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "deferred_768_bf16", SPEC_NORM_RMS, 70, 768, 1, NONE, false, SPEC_DTYPE_BF16, 0 },
    { "deferred_2560", SPEC_NORM_RMS, 33, 2560, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "deferred_2560_bf16", SPEC_NORM_RMS, 1, 2560, 1, NONE, false, SPEC_DTYPE_BF16, 0 },
    { "deferred_2560_strided", SPEC_NORM_RMS, 33, 2560, 1, NONE, false, SPEC_DTYPE_BF16, 8 },
    { "deferred_5120", SPEC_NORM_RMS, 4, 5120, 1, NONE, false, SPEC_DTYPE_F32, 4 },
    { "deferred_5120_bf16", SPEC_NORM_RMS, 4, 5120, 1, BEFORE, false, SPEC_DTYPE_BF16, 0 },
    { "deferred_9232", SPEC_NORM_RMS, 1, 9232, 1, BEFORE, false, SPEC_DTYPE_F32, 0 },
    { "deferred_9232_bf16", SPEC_NORM_RMS, 4, 9232, 1, NONE, false, SPEC_DTYPE_BF16, 0 },
};

/* Rows of dim values out of rows that are ld apart. */
static double *packed(const double *v, int32_t rows, int32_t dim, int32_t ld)
{
    double *out = calloc((size_t)rows * (size_t)dim, sizeof *out);
    for (int32_t r = 0; r < rows; r++) memcpy(out + r * dim, v + r * ld, (size_t)dim * sizeof *v);
    return out;
}

static void run_case(const test_device *d, const norm_case *c, bool defer)
{
    test_random random = { 2 };
    int32_t parent[ROWS], ld = c->dim + c->pad, n_square = defer ? c->dim / SPEC_SQUARES : 0;
    size_t n = (size_t)c->rows * (size_t)ld, dim = (size_t)c->dim, n_squares = (size_t)(c->rows * n_square);
    for (int32_t i = 0; i < c->rows; i++) parent[i] = i - 1;
    test_seq s = { .n_node = c->rows, .parent = parent };
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
    double *x = test_values(&random, n, 3.0), *gate = test_values(&random, n, 4.0);
    double *weight = test_values(&random, dim, 2.0), *bias = test_values(&random, dim, 1.0);
    double *want = calloc(n, sizeof *want), *want_squares = calloc(n_squares + 1, sizeof *want_squares);
    test_buffer bx = test_buffer_from(d, x, n, SPEC_DTYPE_F32), bg = test_buffer_from(d, gate, n, SPEC_DTYPE_F32);
    test_buffer bw = test_floats(d, weight, dim), bb = test_floats(d, c->bias ? bias : NULL, dim);
    test_buffer y = test_buffer_new(d, n, c->y), squares = test_buffer_new(d, n_squares, SPEC_DTYPE_F32);
    for (int32_t r = 0; r < c->rows; r++) {
        const double *z = c->gate != NONE ? gate + r * ld : NULL;
        if (defer) ref_norm_deferred(want + r * c->dim, want_squares + r * n_square, x + r * ld, z, weight, c->dim);
        else ref_norm(want + r * c->dim, x + r * ld, z, weight, c->bias ? bias : NULL, c->dim, c->groups, 1e-5, c->kind,
                      c->gate == AFTER);
    }
    spec_op op = { .kind = SPEC_OP_NORM };
    op.u.norm = (spec_norm_args){ .kind = c->kind, .dim = c->dim, .n_group = c->groups, .eps = 1e-5f,
                                  .weight = bw.data, .bias = bb.data, .x = test_view(&bx, ld),
                                  .norm_first = c->gate == AFTER, .y = test_view(&y, ld),
                                  .squares = defer ? squares.data : NULL };
    if (c->gate != NONE) op.u.norm.gate = test_view(&bg, ld);
    if (test_can(d, c->name, &op)) {
        test_run(d, &op, step, c->rows);
        double *got = test_read(&y), *rows = packed(got, c->rows, c->dim, ld), *got_squares = test_read(&squares);
        test_compare(d, c->name, "y", rows, want, c->rows, c->dim, test_tolerance(c->y));
        test_compare(d, c->name, "squares", got_squares, want_squares, c->rows, n_square, test_tolerance(SPEC_DTYPE_F32));
        free(got_squares);
        free(rows);
        free(got);
    }
    test_buffer_free(&squares);
    test_buffer_free(&y);
    test_buffer_free(&bb);
    test_buffer_free(&bw);
    test_buffer_free(&bg);
    test_buffer_free(&bx);
    free(want_squares);
    free(want);
    free(bias);
    free(weight);
    free(gate);
    free(x);
    free(step);
}

static void each(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i], false);
    for (int32_t i = 0; i < N_ELEMENTS(deferred); i++) run_case(d, &deferred[i], true);
}

static void test_norm(void **state)
{
    (void)state;
    test_each_device(each);
}

static void expect_refusal(const test_device *d, const char *what, spec_norm_args a)
{
    const spec_op op = { .kind = SPEC_OP_NORM, .u.norm = a };
    if (d->ops->can(d->dev, &op) == SPEC_OK) fail_msg("%s: deferred, with %s: not refused", d->name, what);
}

/* What cannot be deferred is refused, and where the host knows the phase, prefill. */
static void refuse(test_device *d)
{
    enum { DIM = 32 };
    static const int32_t root = -1;
    const test_seq s = { .n_node = 1, .parent = &root };
    test_buffer b = test_buffer_new(d, 4 * DIM, SPEC_DTYPE_F32), squares = test_buffer_new(d, 4, SPEC_DTYPE_F32);
    const spec_norm_args right = { .dim = DIM, .n_group = 1, .eps = 1e-5f, .weight = b.data, .x = test_view(&b, DIM),
                                   .y = { (float *)b.data + DIM, SPEC_DTYPE_F32, DIM }, .squares = squares.data };
    spec_op op = { .kind = SPEC_OP_NORM, .u.norm = right };
    test_ok(d->ops->can(d->dev, &op), "a deferred norm");
    spec_norm_args a = right;
    a.kind = SPEC_NORM_LAYER;
    expect_refusal(d, "a mean", a);
    a = right, a.n_group = 2;
    expect_refusal(d, "two groups", a);
    a = right, a.bias = right.weight;
    expect_refusal(d, "a bias", a);
    a = right, a.gate = right.x, a.norm_first = 1;
    expect_refusal(d, "a gate behind it", a);
    a = right, a.dim = DIM - 8;
    expect_refusal(d, "24 columns", a);
    a = right, a.y.dtype = SPEC_DTYPE_F16;
    expect_refusal(d, "y in f16", a);
    if (strncmp(d->name, "cpu", 3) == 0) {
        spec_step_block *step = test_step(SPEC_PHASE_PREFILL, &s, 1, 0);
        spec_queue *q = test_queue(d, &op, 1, step, 1, 1);
        test_ok(d->ops->step_bind(q, step), "step_bind");
        assert_int_equal(d->ops->norm(q, &right), SPEC_E_INVALID);
        d->ops->queue_close(q);
        free(step);
    }
    test_buffer_free(&squares);
    test_buffer_free(&b);
}

static void test_norm_refuses(void **state)
{
    (void)state;
    test_each_device(refuse);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_norm), cmocka_unit_test(test_norm_refuses) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
