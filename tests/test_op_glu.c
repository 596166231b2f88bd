/* test_op_glu.c - y = act(gate) * up; columns between the rows, and what is read, stay as they are. And the bits of a product with glu,
 * of the same weights: files decide which of the two it is. */
#include <math.h>

#include "tests/ref_ops.h"
#include "tests/test.h"

#define F32 SPEC_DTYPE_F32
#define BF16 SPEC_DTYPE_BF16
#define F16 SPEC_DTYPE_F16

typedef struct glu_case {
    const char *name;
    int32_t dim, ld, ld_y, rows, run; /* run: rows with padding */
    spec_activation act;
    spec_dtype y;
} glu_case;

static const glu_case cases[] = {
    { "base", 64, 128, 64, 4, 4, SPEC_ACT_SILU, F32 },        { "one_row", 64, 128, 64, 1, 1, SPEC_ACT_SILU, F32 },
    { "one_column", 1, 1, 1, 4, 4, SPEC_ACT_SILU, F32 },      { "odd", 67, 70, 69, 5, 5, SPEC_ACT_GELU, BF16 },
    { "wide", 4100, 8200, 4104, 3, 3, SPEC_ACT_SILU, BF16 },  { "gelu_tanh", 64, 128, 64, 4, 4, SPEC_ACT_GELU_TANH, F16 },
    { "relu", 64, 128, 64, 4, 4, SPEC_ACT_RELU, F32 },        { "none", 64, 128, 64, 4, 4, SPEC_ACT_NONE, F32 },
    { "padded", 64, 128, 64, 3, 8, SPEC_ACT_SILU, F16 },      { "many_rows", 32, 64, 32, TEST_NODES, TEST_NODES, SPEC_ACT_SILU, BF16 },
};

static spec_step_block *step_of(int32_t rows, int32_t run)
{
    int32_t parent[TEST_NODES], token[TEST_NODES];
    for (int32_t i = 0; i < rows; i++) parent[i] = i - 1, token[i] = 0;
    test_seq s = { .n_node = rows, .parent = parent, .token = token };
    return test_step(run > rows ? SPEC_PHASE_PREFILL : SPEC_PHASE_DECODE, &s, 1, run);
}

static void run_case(const test_device *d, const glu_case *c)
{
    test_random random = { 12 };
    const size_t n = (size_t)(c->run * c->ld), n_y = (size_t)(c->run * c->ld_y);
    double *gate = test_values(&random, n, 3.0), *up = test_values(&random, n, 2.0), *y = test_values(&random, n_y, 3.0);
    test_round_all(gate, n, F32);
    test_round_all(up, n, F32);
    test_round_all(y, n_y, c->y);
    test_buffer bg = test_buffer_from(d, gate, n, F32), bu = test_buffer_from(d, up, n, F32), by = test_buffer_from(d, y, n_y, c->y);
    for (int32_t r = 0; r < c->run; r++)
        for (int32_t i = 0; i < c->dim; i++)
            y[r * c->ld_y + i] = ref_activation(gate[r * c->ld + i], c->act, 1) * up[r * c->ld + i];
    const spec_op op = { .kind = SPEC_OP_GLU,
                         .u.glu = { .dim = c->dim, .act = c->act, .gate = test_view(&bg, c->ld), .up = test_view(&bu, c->ld),
                                    .y = test_view(&by, c->ld_y) } };
    if (test_can(d, c->name, &op)) {
        spec_step_block *step = step_of(c->rows, c->run);
        test_run(d, &op, step, c->run);
        double *got = test_read(&by), *read = test_read(&bg);
        test_compare(d, c->name, "y", got, y, c->run, c->ld_y, test_tolerance(c->y));
        test_compare(d, c->name, "gate", read, gate, c->run, c->ld, 0);
        free(read);
        free(got);
        free(step);
    }
    test_buffer_free(&by);
    test_buffer_free(&bu);
    test_buffer_free(&bg);
    free(y);
    free(up);
    free(gate);
}

/* The product with glu, and two products with this operation behind them. */
static void run_products(const test_device *d, int32_t rows, spec_dtype type, spec_activation act)
{
    enum { N_IN = 96, N = 72 };
    test_random random = { 13 };
    const size_t n_x = (size_t)(rows * N_IN), n_y = (size_t)(rows * N);
    double *x = test_values(&random, n_x, 1.0), *w = test_values(&random, 2 * N * N_IN, 0.5);
    test_buffer bx = test_buffer_from(d, x, n_x, type), both = test_buffer_new(d, 2 * n_y, F32);
    test_buffer y[2] = { test_buffer_new(d, n_y, type), test_buffer_new(d, n_y, type) };
    spec_weight *joint = test_weight(d, w, 2 * N, N_IN, type, type, 1, 2);
    spec_weight *apart[2] = { test_weight(d, w, N, N_IN, type, type, 0, 1), test_weight(d, w + N * N_IN, N, N_IN, type, type, 0, 1) };
    spec_step_block *step = step_of(rows, rows);
    const spec_linear_args product = { .n_in = N_IN, .scale = 1, .x = test_view(&bx, N_IN) };
    const spec_view rows_of_both = test_view(&both, 2 * N);
    spec_op op[4]; /* the product with glu, two products, glu */
    for (int32_t i = 0; i < 3; i++) op[i] = (spec_op){ .kind = SPEC_OP_LINEAR, .u.linear = product };
    op[0].u.linear.w = joint, op[0].u.linear.n_out = 2 * N, op[0].u.linear.glu = 1, op[0].u.linear.act = act;
    op[0].u.linear.y = test_view(&y[0], N);
    for (int32_t i = 0; i < 2; i++) {
        op[1 + i].u.linear.w = apart[i], op[1 + i].u.linear.n_out = N, op[1 + i].u.linear.y = rows_of_both;
        op[1 + i].u.linear.y.data = (float *)rows_of_both.data + i * N;
    }
    op[3] = (spec_op){ .kind = SPEC_OP_GLU, .u.glu = { .dim = N, .act = act, .gate = rows_of_both, .up = rows_of_both,
                                                       .y = test_view(&y[1], N) } };
    op[3].u.glu.up.data = (float *)rows_of_both.data + N;
    if (test_can(d, "products", &op[0]) && test_can(d, "products", &op[3])) {
        for (int32_t i = 0; i < 4; i++) test_run(d, &op[i], step, rows);
        uint8_t *want = test_read_raw(&y[0]), *got = test_read_raw(&y[1]);
        if (memcmp(got, want, n_y * test_type_size(type)) != 0)
            fail_msg("%s: %d rows, activation %d: other bits than of a product with glu", d->name, rows, (int)act);
        free(got);
        free(want);
    }
    free(step);
    for (int32_t i = 0; i < 2; i++) d->ops->weight_close(d->dev, apart[i]), test_buffer_free(&y[i]);
    d->ops->weight_close(d->dev, joint);
    test_buffer_free(&both);
    test_buffer_free(&bx);
    free(w);
    free(x);
}

static void each(test_device *d)
{
    static const int32_t rows[] = { 1, 7, 20, 40 };
    static const spec_dtype types[] = { F32, BF16, F16 };
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i]);
    for (int32_t i = 0; i < N_ELEMENTS(rows) * N_ELEMENTS(types); i++)
        run_products(d, rows[i / N_ELEMENTS(types)], types[i % N_ELEMENTS(types)], i % 2 ? SPEC_ACT_SILU : SPEC_ACT_GELU_TANH);
}

static void test_glu(void **state)
{
    (void)state;
    test_each_device(each);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_glu) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
