/* test_invariance_ops.c - path invariance of a backend, bit for bit (spec_backend.h, rules).
 *
 * Rows: a row alone against the same row among 1 to 300, at every slot, of products, norms, and plans of both. Threads:
 * 1, 2, 4 and 7 give the same bits. Paths: a hybrid network reads texts in random trees, batched, with replay, as it
 * reads them token by token (mini_model.h). */
#include <fenv.h>
#include <math.h>
#include <stdio.h>

#include "tests/mini_model.h"
#include "tests/support_plan.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ROWS = 64, SLOTS = 300 }; /* slots hold the rows again and again */

/* ------------------------------------------------------------------------------------- rows --- */

typedef struct row_tensor {
    test_buffer b; /* [SLOTS] rows */
    size_t row;    /* bytes */
    uint8_t *all;  /* of an input: those of the ROWS */
} row_tensor;

/* One operation over rows, or a plan of two: x -> y. */
typedef struct rowwise {
    const test_device *d;
    const char *name;
    spec_op ops[2];
    int32_t n_op;
    row_tensor in, out;
} rowwise;

static spec_step_block *chain_step(int32_t n)
{
    int32_t parent[SLOTS];
    for (int32_t i = 0; i < n; i++) parent[i] = i - 1;
    test_seq s = { .n_node = n, .parent = parent };
    return test_step(SPEC_PHASE_DECODE, &s, 1, 0);
}

/* Rows (first + i) % ROWS at slots i < n. */
static void write_rows(const rowwise *t, const row_tensor *in, int32_t first, int32_t n)
{
    const size_t row = in->row;
    uint8_t *x = malloc((size_t)n * row + 1);
    assert_non_null(x);
    for (int32_t i = 0; i < n; i++) memcpy(x + (size_t)i * row, in->all + (size_t)((first + i) % ROWS) * row, row);
    test_ok(t->d->ops->upload(t->d->io, in->b.data, x, (size_t)n * row), "upload");
    test_ok(t->d->ops->sync(t->d->io), "sync");
    free(x);
}

/* What becomes of these rows. */
static uint8_t *run_rows(rowwise *t, int32_t first, int32_t n)
{
    write_rows(t, &t->in, first, n);
    spec_step_block *step = chain_step(n);
    if (t->n_op == 1) test_run(t->d, t->ops, step, SLOTS);
    else support_plan_run(t->d, t->ops, t->n_op, step, SLOTS, 1);
    free(step);
    return realloc(test_read_raw(&t->out.b), (size_t)n * t->out.row + 1);
}

static void check_rows(rowwise *t)
{
    static const int32_t counts[] = { 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 20, 24, 31, 32, 33, 48, 63, 64,
                                      65, 100, 130, SLOTS };
    const size_t row = t->out.row;
    uint8_t *alone[ROWS];
    for (int32_t r = 0; r < ROWS; r++) alone[r] = run_rows(t, r, 1);
    for (int32_t i = 0; i < N_ELEMENTS(counts); i++) {
        int32_t n = counts[i], first = (i * 23) % ROWS;
        uint8_t *got = run_rows(t, first, n);
        for (int32_t slot = 0; slot < n; slot++)
            if (memcmp(got + (size_t)slot * row, alone[(first + slot) % ROWS], row) != 0)
                fail_msg("%s %s: a row at slot %d of %d differs from the row alone", t->d->name, t->name, slot, n);
        free(got);
    }
    for (int32_t r = 0; r < ROWS; r++) free(alone[r]);
}

/* Values in (-size, size). */
static row_tensor input_rows(const test_device *d, int32_t cols, spec_dtype type, double size)
{
    test_random random = { 20 };
    const size_t n = (size_t)SLOTS * (size_t)cols;
    double *v = test_values(&random, n, size);
    row_tensor t = { .b = test_buffer_from(d, v, n, type), .row = (size_t)cols * test_type_size(type) };
    t.all = test_read_raw(&t.b);
    free(v);
    return t;
}

static row_tensor output_rows(const test_device *d, int32_t cols, spec_dtype type)
{
    return (row_tensor){ .b = test_buffer_new(d, (size_t)SLOTS * (size_t)cols, type),
                         .row = (size_t)cols * test_type_size(type) };
}

static void close_rows(rowwise *t)
{
    free(t->in.all);
    test_buffer_free(&t->in.b);
    test_buffer_free(&t->out.b);
}

typedef struct linear_case {
    const char *name;
    int32_t n_in, n_out;
    spec_dtype weight, compute;
    int32_t glu;
} linear_case;

static const linear_case linears[] = {
    { "linear_f32", 300, 72, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 0 },
    { "linear_f32_deep", 2600, 40, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 0 },
    { "linear_bf16", 300, 72, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "linear_bf16_odd", 515, 33, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "linear_bf16_glu", 300, 130, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 1 },
    { "linear_f16", 300, 72, SPEC_DTYPE_F16, SPEC_DTYPE_F16, 0 },
    { "linear_bf16_parts", 2504, 200, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "linear_bf16_wide", 776, 2112, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "linear_bf16_both_wide", 2688, 1500, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "linear_bf16_long", 5120, 2560, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "linear_bf16_long_wide", 2568, 10570, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "linear_f16_both_wide_glu", 2560, 3060, SPEC_DTYPE_F16, SPEC_DTYPE_F16, 1 },
    { "linear_f16_parts_glu", 1000, 330, SPEC_DTYPE_F16, SPEC_DTYPE_F16, 1 },
    { "linear_bf16_f32", 300, 72, SPEC_DTYPE_BF16, SPEC_DTYPE_F32, 0 },
    { "linear_q8", 608, 72, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 0 },
    { "linear_q8_glu", 288, 130, SPEC_DTYPE_Q8_0, SPEC_DTYPE_F16, 1 },
    { "linear_q8_f32", 288, 33, SPEC_DTYPE_Q8_0, SPEC_DTYPE_F32, 0 },
    { "linear_q8_long", 10272, 72, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 0 },
    { "linear_q8_long_glu", 10240, 130, SPEC_DTYPE_Q8_0, SPEC_DTYPE_F16, 1 },
    { "linear_q8_both_long", 5120, 2560, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 0 },
    { "linear_q8_longer", 20512, 72, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 0 },
    { "linear_q8_wide", 1696, 12600, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 0 },
    { "linear_q8_wider_glu", 1280, 16000, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 1 },
    { "linear_q4_0", 608, 72, SPEC_DTYPE_Q4_0, SPEC_DTYPE_BF16, 0 },
    { "linear_q4_1_glu", 576, 130, SPEC_DTYPE_Q4_1, SPEC_DTYPE_BF16, 1 },
    { "linear_q5_0", 288, 72, SPEC_DTYPE_Q5_0, SPEC_DTYPE_F16, 0 },
    { "linear_q5_1_f32", 288, 33, SPEC_DTYPE_Q5_1, SPEC_DTYPE_F32, 0 },
    { "linear_q4_k", 1280, 200, SPEC_DTYPE_Q4_K, SPEC_DTYPE_BF16, 0 },
    { "linear_q5_k_glu", 512, 130, SPEC_DTYPE_Q5_K, SPEC_DTYPE_F16, 1 },
    { "linear_q6_k", 2560, 72, SPEC_DTYPE_Q6_K, SPEC_DTYPE_BF16, 0 },
    { "linear_q6_k_f32", 256, 33, SPEC_DTYPE_Q6_K, SPEC_DTYPE_F32, 0 },
    { "linear_q4_0_long", 5120, 72, SPEC_DTYPE_Q4_0, SPEC_DTYPE_BF16, 0 },
    { "linear_q5_0_glu", 800, 330, SPEC_DTYPE_Q5_0, SPEC_DTYPE_BF16, 1 },
    { "linear_q5_1_wide", 1024, 2112, SPEC_DTYPE_Q5_1, SPEC_DTYPE_BF16, 0 },
    { "linear_q4_k_both_wide_glu", 2560, 3060, SPEC_DTYPE_Q4_K, SPEC_DTYPE_BF16, 1 },
    { "linear_q5_k_long", 5120, 200, SPEC_DTYPE_Q5_K, SPEC_DTYPE_BF16, 0 },
    { "linear_q6_k_wide_glu", 768, 4300, SPEC_DTYPE_Q6_K, SPEC_DTYPE_BF16, 1 },
};

static const linear_case behind_norm[] = {
    { "behind_norm_f32", 304, 72, SPEC_DTYPE_F32, SPEC_DTYPE_F32, 0 },
    { "behind_norm_bf16", 304, 72, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "behind_norm_bf16_glu", 768, 130, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 1 },
    { "behind_norm_bf16_2560", 2560, 200, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "behind_norm_bf16_wide", 784, 2112, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "behind_norm_f16_bf16", 304, 72, SPEC_DTYPE_F16, SPEC_DTYPE_BF16, 0 },
    { "behind_norm_q8_glu", 288, 130, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 1 },
    { "behind_norm_q4_1_glu", 288, 130, SPEC_DTYPE_Q4_1, SPEC_DTYPE_BF16, 1 },
    { "behind_norm_q6_k", 1280, 72, SPEC_DTYPE_Q6_K, SPEC_DTYPE_BF16, 0 },
    { "behind_norm_q8_long", 10272, 72, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 0 },
};

/* Inputs of which half are subnormal: what some instructions take for zero is zero for every number of rows. */
static const linear_case tiny[] = {
    { "tiny_bf16", 288, 72, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16, 0 },
    { "tiny_q8", 608, 72, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 0 },
    { "tiny_q8_one_panel", 96, 33, SPEC_DTYPE_Q8_0, SPEC_DTYPE_BF16, 0 },
    { "tiny_q4_1", 288, 72, SPEC_DTYPE_Q4_1, SPEC_DTYPE_BF16, 0 },
    { "tiny_q6_k", 512, 72, SPEC_DTYPE_Q6_K, SPEC_DTYPE_BF16, 0 },
};

static spec_op norm_op(const test_buffer *weight, spec_norm_kind kind, int32_t dim, const test_buffer *x, const test_buffer *y)
{
    return (spec_op){ .kind = SPEC_OP_NORM,
                      .u.norm = { .kind = kind, .dim = dim, .n_group = 1, .eps = 1e-5f, .weight = weight->data,
                                  .x = test_view(x, dim), .y = test_view(y, dim) } };
}

/* behind: a norm of the rows is what the product reads. */
static void check_linear(const test_device *d, const linear_case *c, bool behind, double size)
{
    if (!test_keeps(d, c->name, c->weight)) return;
    test_random random = { 21 };
    int32_t n_y = c->glu ? c->n_out / 2 : c->n_out;
    double *v = test_values(&random, (size_t)c->n_in * (size_t)c->n_out, 1.0);
    spec_weight *w = test_weight(d, v, c->n_out, c->n_in, c->weight, c->compute, c->glu, 1);
    test_buffer norm_weight = test_floats(d, v, (size_t)c->n_in);
    row_tensor normed = output_rows(d, c->n_in, c->compute);
    rowwise t = { .d = d, .name = c->name, .in = input_rows(d, c->n_in, behind ? SPEC_DTYPE_F32 : c->compute, size),
                  .out = output_rows(d, n_y, SPEC_DTYPE_F32) };
    if (behind) t.ops[t.n_op++] = norm_op(&norm_weight, SPEC_NORM_RMS, c->n_in, &t.in.b, &normed.b);
    t.ops[t.n_op++] = (spec_op){ .kind = SPEC_OP_LINEAR,
                                 .u.linear = { .w = w, .n_in = c->n_in, .n_out = c->n_out, .glu = c->glu,
                                               .act = SPEC_ACT_SILU, .scale = 1.0f,
                                               .x = test_view(behind ? &normed.b : &t.in.b, c->n_in),
                                               .y = test_view(&t.out.b, n_y) } };
    if (test_can(d, c->name, &t.ops[t.n_op - 1])) check_rows(&t);
    close_rows(&t);
    test_buffer_free(&normed.b);
    test_buffer_free(&norm_weight);
    d->ops->weight_close(d->dev, w);
    free(v);
}

static void check_norm(const test_device *d, spec_norm_kind kind, int32_t dim, spec_dtype y)
{
    test_random random = { 22 };
    double *v = test_values(&random, (size_t)dim, 1.0);
    test_buffer weight = test_floats(d, v, (size_t)dim);
    rowwise t = { .d = d, .name = "norm", .n_op = 1, .in = input_rows(d, dim, SPEC_DTYPE_F32, 1.0), .out = output_rows(d, dim, y) };
    t.ops[0] = norm_op(&weight, kind, dim, &t.in.b, &t.out.b);
    if (test_can(d, "norm", &t.ops[0])) check_rows(&t);
    close_rows(&t);
    test_buffer_free(&weight);
    free(v);
}

static void each_rows(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(linears); i++) check_linear(d, &linears[i], false, 1.0);
    for (int32_t i = 0; i < N_ELEMENTS(behind_norm); i++) check_linear(d, &behind_norm[i], true, 1.0);
    for (int32_t i = 0; i < N_ELEMENTS(tiny) && strncmp(d->name, "cpu", 3) == 0; i++) check_linear(d, &tiny[i], false, 2e-38);
    check_norm(d, SPEC_NORM_RMS, 67, SPEC_DTYPE_F32);
    check_norm(d, SPEC_NORM_LAYER, 256, SPEC_DTYPE_F32);
    check_norm(d, SPEC_NORM_RMS, 48, SPEC_DTYPE_F32);
    check_norm(d, SPEC_NORM_RMS, 768, SPEC_DTYPE_BF16);
    check_norm(d, SPEC_NORM_RMS, 2560, SPEC_DTYPE_BF16);
    check_norm(d, SPEC_NORM_RMS, 9232, SPEC_DTYPE_BF16);
}

static void test_rows(void **state)
{
    (void)state;
    test_each_device(each_rows);
}

/* ------------------------------------------------------------------------------------- paths --- */

static void check_paths(const test_device *plain, const test_device *d, spec_dtype dtype, int32_t window, int32_t prompt)
{
    if (!mini_can(d, dtype, window)) return;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        int32_t compared, differ = mini_invariance(plain, d, dtype, window, prompt, seed, &compared);
        assert_true(compared > 60);
        if (differ > 0)
            fail_msg("%s %s, window %d, prompt %d, seed %d: %d of %d rows differ from plain decoding", d->name,
                     spec_dtype_name(dtype), window, prompt, (int)seed, differ, compared);
    }
}

static void each_paths(test_device *d)
{
    check_paths(d, d, SPEC_DTYPE_F32, 0, 0);
    check_paths(d, d, SPEC_DTYPE_F32, 0, 21);
    check_paths(d, d, SPEC_DTYPE_F32, 9, 5);
    check_paths(d, d, SPEC_DTYPE_BF16, 0, 21);
    check_paths(d, d, SPEC_DTYPE_F16, 0, 5);
}

static void test_paths(void **state)
{
    (void)state;
    test_each_device(each_paths);
}

/* Plain decoding on one thread, trees on several. */
static void each_threads(test_device *d)
{
    static const int32_t threads[] = { 1, 2, 4, 7 };
    test_device one, many;
    char name[96];
    if (strncmp(d->name, "cpu:", 4) != 0) return;
    snprintf(name, sizeof name, "%s", d->name);
    assert_true(test_open(&one, name, 1));
    for (int32_t i = 0; i < N_ELEMENTS(threads); i++) {
        assert_true(test_open(&many, name, threads[i]));
        check_paths(&one, &many, SPEC_DTYPE_F32, 0, 21);
        check_paths(&one, &many, SPEC_DTYPE_BF16, 0, 21);
        test_close(&many);
    }
    test_close(&one);
}

static void test_threads(void **state)
{
    (void)state;
    test_each_device(each_threads);
}

/* --------------------------------------------------------------------------- the caller's modes --- */

static void caller_modes(bool unusual)
{
    fesetround(unusual ? FE_UPWARD : FE_TONEAREST);
#if defined(__x86_64__)
    unsigned flush = 0x8040; /* flush to zero, subnormal values are zero */
    _mm_setcsr(unusual ? _mm_getcsr() | flush : _mm_getcsr() & ~flush);
#endif
}

/* The caller rounds upward, and flushes subnormal values where the machine can: the library's bits are the same, and the
 * modes are as before afterwards. */
static void each_modes(test_device *d)
{
    static const int32_t parent[] = { -1, 0, 0, 1, 2 }, token[] = { 3, 1, 4, 1, 5 };
    enum { N = 5 };
    float logits[2][N * MINI_VOCAB];
    test_seq s = { .n_node = N, .parent = parent, .token = token };
    if (!mini_can(d, SPEC_DTYPE_F32, 0)) return;
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, &s, 1, 0);
    for (int i = 0; i < 2; i++) {
        mini_model m;
        mini_open(&m, d, SPEC_DTYPE_F32, 0);
        if (i == 1) caller_modes(true);
        mini_run(&m, step, logits[i]);
        int rounding = fegetround();
        caller_modes(false);
        assert_int_equal(rounding, i == 1 ? FE_UPWARD : FE_TONEAREST);
        mini_close(&m);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    free(step);
}

static void test_modes(void **state)
{
    (void)state;
    test_each_device(each_modes);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_paths),
                                        cmocka_unit_test(test_threads), cmocka_unit_test(test_modes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
