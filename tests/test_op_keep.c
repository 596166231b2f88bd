/* test_op_keep.c - y = x, rounded to y's type; columns between the rows, and x, stay as they are. */
#include <math.h>

#include "tests/test.h"

typedef struct keep_case {
    const char *name;
    int32_t dim, ld_x, ld_y, rows, run; /* run: rows with padding */
    spec_dtype x, y;
} keep_case;

#define F32 SPEC_DTYPE_F32
#define BF16 SPEC_DTYPE_BF16
#define F16 SPEC_DTYPE_F16
static const keep_case cases[] = {
    { "base", 64, 64, 64, 4, 4, F32, F32 },
    { "one_row", 64, 64, 64, 1, 1, F32, F32 },
    { "one_column", 1, 1, 1, 4, 4, F32, F32 },
    { "odd_dim", 67, 67, 67, 4, 4, F32, F32 },
    { "odd_rows_apart", 64, 67, 69, 4, 4, F32, F32 },
    { "rows_apart", 64, 80, 72, 4, 4, F32, F32 },
    { "many_columns", 4100, 4100, 4104, 3, 3, F32, F32 },
    { "many_rows", 32, 32, 32, TEST_NODES, TEST_NODES, F32, F32 },
    { "padded", 64, 64, 64, 3, 8, F32, F32 },
    { "bf16", 64, 64, 64, 4, 4, BF16, BF16 },
    { "bf16_odd", 35, 37, 35, 4, 4, BF16, BF16 },
    { "f16", 64, 64, 64, 4, 4, F16, F16 },
    { "f32_to_bf16", 67, 67, 70, 4, 4, F32, BF16 },
    { "f32_to_f16", 67, 67, 70, 4, 4, F32, F16 },
    { "bf16_to_f32", 67, 70, 67, 4, 4, BF16, F32 },
    { "f16_to_f32", 67, 70, 67, 4, 4, F16, F32 },
};

enum { MOST_ROWS = TEST_NODES };

static spec_step_block *step_of(const keep_case *c)
{
    int32_t parent[MOST_ROWS], token[MOST_ROWS];
    for (int32_t i = 0; i < c->rows; i++) parent[i] = i - 1, token[i] = 0;
    test_seq s = { .n_node = c->rows, .parent = parent, .token = token };
    return test_step(c->run > c->rows ? SPEC_PHASE_PREFILL : SPEC_PHASE_DECODE, &s, 1, c->run);
}

/* As bytes: a copy in the same type is exact, and so is rounding. */
static void expect_same(const test_device *d, const keep_case *c, const char *tensor, const test_buffer *b, const double *want,
                        int32_t ld)
{
    double *got = test_read(b);
    for (int32_t i = 0; i < c->run * ld; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s %s: row %d, column %d of %s is %.9g, expected %.9g", d->name, c->name, i / ld, i % ld, tensor, got[i],
                     want[i]);
    free(got);
}

static void run_case(const test_device *d, const keep_case *c)
{
    test_random random = { 1 };
    const size_t n_x = (size_t)(c->run * c->ld_x), n_y = (size_t)(c->run * c->ld_y);
    double *x = test_values(&random, n_x, 3.0), *y = test_values(&random, n_y, 3.0);
    test_buffer bx = test_buffer_from(d, x, n_x, c->x), by = test_buffer_from(d, y, n_y, c->y);
    test_round_all(x, n_x, c->x);
    test_round_all(y, n_y, c->y);
    for (int32_t r = 0; r < c->run; r++)
        for (int32_t i = 0; i < c->dim; i++) y[r * c->ld_y + i] = test_round(x[r * c->ld_x + i], c->y);
    const spec_op op = { .kind = SPEC_OP_KEEP,
                         .u.keep = { .dim = c->dim, .x = test_view(&bx, c->ld_x), .y = test_view(&by, c->ld_y) } };
    if (test_can(d, c->name, &op)) {
        spec_step_block *step = step_of(c);
        test_run(d, &op, step, c->run);
        expect_same(d, c, "y", &by, y, c->ld_y);
        expect_same(d, c, "x", &bx, x, c->ld_x);
        free(step);
    }
    test_buffer_free(&bx);
    test_buffer_free(&by);
    free(x);
    free(y);
}

static void each(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i]);
}

static void test_keep(void **state)
{
    (void)state;
    test_each_device(each);
}

static void each_refusal(test_device *d)
{
    float room[8] = { 0 };
    const spec_keep_args right = { .dim = 4, .x = { room, F32, 4 }, .y = { room + 4, F32, 4 } };
    spec_op op = { .kind = SPEC_OP_KEEP, .u.keep = right };
    test_ok(speci_op_supports(d->ops, d->dev, &op), "can");
    op.u.keep.dim = 0;
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_INVALID);
    op.u.keep.dim = 5; /* more than the rows are apart */
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_INVALID);
    op.u.keep = right, op.u.keep.x.dtype = SPEC_DTYPE_I32;
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_UNSUPPORTED);
    op.u.keep = right, op.u.keep.x.dtype = BF16, op.u.keep.y.dtype = F16;
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_UNSUPPORTED);
}

static void test_refusals(void **state)
{
    (void)state;
    test_each_device(each_refusal);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_keep), cmocka_unit_test(test_refusals) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
