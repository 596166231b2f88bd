/* test_op_norm.c - RMS and layer norms, groups, gates before and after. */
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
    { "add", SPEC_NORM_RMS_ADD, 4, 64, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "add_odd", SPEC_NORM_RMS_ADD, 5, 67, 1, NONE, false, SPEC_DTYPE_F32, 3 },
    { "add_wide", SPEC_NORM_RMS_ADD, 3, 5120, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "none", SPEC_NORM_NONE, 4, 64, 1, NONE, false, SPEC_DTYPE_F32, 0 },
    { "none_bf16", SPEC_NORM_NONE, 4, 67, 1, NONE, false, SPEC_DTYPE_BF16, 5 },
    { "many_rows", SPEC_NORM_RMS, 64, 256, 1, NONE, false, SPEC_DTYPE_F32, 0 },
};

/* Rows of dim values out of rows that are ld apart. */
static double *packed(const double *v, int32_t rows, int32_t dim, int32_t ld)
{
    double *out = calloc((size_t)rows * (size_t)dim, sizeof *out);
    for (int32_t r = 0; r < rows; r++) memcpy(out + r * dim, v + r * ld, (size_t)dim * sizeof *v);
    return out;
}

static void run_case(const test_device *d, const norm_case *c)
{
    test_random random = { 2 };
    int32_t parent[ROWS], ld = c->dim + c->pad;
    size_t n = (size_t)c->rows * (size_t)ld, dim = (size_t)c->dim;
    for (int32_t i = 0; i < c->rows; i++) parent[i] = i - 1;
    test_seq s = { .n_node = c->rows, .parent = parent };
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
    double *x = test_values(&random, n, 3.0), *gate = test_values(&random, n, 4.0);
    double *weight = test_values(&random, dim, 2.0), *bias = test_values(&random, dim, 1.0);
    double *want = calloc(n, sizeof *want);
    test_buffer bx = test_buffer_from(d, x, n, SPEC_DTYPE_F32), bg = test_buffer_from(d, gate, n, SPEC_DTYPE_F32);
    test_buffer bw = test_floats(d, weight, dim), bb = test_floats(d, c->bias ? bias : NULL, dim);
    const bool adds = c->kind == SPEC_NORM_RMS_ADD;
    double *before = test_values(&random, n, 2.0);
    test_buffer y = adds ? test_buffer_from(d, before, n, c->y) : test_buffer_new(d, n, c->y);
    for (int32_t r = 0; r < c->rows; r++) {
        const double *z = c->gate != NONE ? gate + r * ld : NULL;
        ref_norm(want + r * c->dim, x + r * ld, z, weight, c->bias ? bias : NULL, c->dim, c->groups, 1e-5, c->kind,
                 c->gate == AFTER);
        for (int32_t i = 0; adds && i < c->dim; i++) want[r * c->dim + i] += before[r * ld + i];
    }
    spec_op op = { .kind = SPEC_OP_NORM };
    op.u.norm = (spec_norm_args){ .kind = c->kind, .dim = c->dim, .n_group = c->groups, .eps = 1e-5f,
                                  .weight = bw.data, .bias = bb.data, .x = test_view(&bx, ld),
                                  .norm_first = c->gate == AFTER, .y = test_view(&y, ld) };
    if (c->gate != NONE) op.u.norm.gate = test_view(&bg, ld);
    if (test_can(d, c->name, &op)) {
        test_run(d, &op, step, c->rows);
        double *got = test_read(&y), *rows = packed(got, c->rows, c->dim, ld);
        test_compare(d, c->name, "y", rows, want, c->rows, c->dim, test_tolerance(c->y));
        free(rows);
        free(got);
    }
    test_buffer_free(&y);
    test_buffer_free(&bb);
    test_buffer_free(&bw);
    test_buffer_free(&bg);
    test_buffer_free(&bx);
    free(before);
    free(want);
    free(bias);
    free(weight);
    free(gate);
    free(x);
    free(step);
}

static void each(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i]);
}

static void test_norm(void **state)
{
    (void)state;
    test_each_device(each);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_norm) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
