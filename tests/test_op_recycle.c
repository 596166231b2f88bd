/* test_op_recycle.c - rows that nodes hand down: given ones before a tree's first pass, the parent's behind it; the cache holds a node's
 * own, and nothing else changes. */
#include <math.h>

#include "tests/test.h"

enum { N_NODE = 12, N_SLOT = 3, MOST_ROWS = 2 * N_NODE };

#define F32 SPEC_DTYPE_F32
#define BF16 SPEC_DTYPE_BF16
#define F16 SPEC_DTYPE_F16

/* Two sequences, in slots 2 and 0, of which n_fed nodes were fed before. */
typedef struct recycle_case {
    const char *name;
    int32_t dim, ld_x, ld_y;
    int32_t n_fed[2], n_node[2];
    bool in_place;
    spec_dtype x, y;
} recycle_case;

static const recycle_case cases[] = {
    { "given", 64, 64, 64, { 0, 0 }, { 5, 3 }, false, F32, F32 },
    { "grown", 64, 64, 64, { 3, 1 }, { 9, 4 }, false, F32, F32 },
    { "mixed", 64, 64, 64, { 0, 4 }, { 4, 12 }, false, F32, F32 },
    { "in_place", 64, 64, 64, { 0, 4 }, { 4, 12 }, true, F32, F32 },
    { "one_row", 64, 64, 64, { 6, 0 }, { 7, 0 }, false, F32, F32 },
    { "one_column", 1, 1, 1, { 2, 0 }, { 6, 2 }, false, F32, F32 },
    { "odd", 67, 70, 69, { 2, 0 }, { 6, 2 }, false, F32, F32 },
    { "many_columns", 2050, 2050, 4100, { 2, 0 }, { 6, 2 }, false, F32, F32 },
    { "f32_to_bf16", 66, 66, 132, { 0, 3 }, { 3, 7 }, false, F32, BF16 },
    { "bf16", 66, 66, 132, { 0, 3 }, { 3, 7 }, false, BF16, BF16 },
    { "f16", 66, 66, 132, { 0, 3 }, { 3, 7 }, false, F16, F16 },
    { "f16_to_f32", 66, 66, 66, { 0, 3 }, { 3, 7 }, false, F16, F32 },
};

static const int32_t slots[2] = { 2, 0 };
static const int32_t parents[N_NODE] = { -1, 0, 1, 1, 0, 2, 2, 4, 3, 8, 7, 10 };

static spec_step_block *step_of(const recycle_case *c)
{
    test_seq s[2];
    int32_t n = 0;
    for (int32_t i = 0; i < 2; i++)
        if (c->n_node[i] > 0)
            s[n++] = (test_seq){ .slot = slots[i], .n_past = 3, .n_node = c->n_node[i], .n_fed = c->n_fed[i], .parent = parents };
    return test_step(SPEC_PHASE_DECODE, s, n, 0);
}

/* Calls each row with its sequence and node. */
typedef void (*row_fn)(void *arg, int32_t row, int32_t seq, int32_t node);
static int32_t each_row(const recycle_case *c, row_fn fn, void *arg)
{
    int32_t row = 0;
    for (int32_t i = 0; i < 2; i++)
        for (int32_t k = c->n_fed[i]; k < c->n_node[i]; k++, row++)
            if (fn) fn(arg, row, i, k);
    return row;
}

typedef struct plain {
    const recycle_case *c;
    const double *x;
    double *y, *cache;
} plain;

static size_t place(const recycle_case *c, int32_t seq, int32_t node)
{
    return ((size_t)slots[seq] * N_NODE + (size_t)node) * (size_t)c->dim;
}

static void take(void *arg, int32_t row, int32_t seq, int32_t node)
{
    const plain *p = arg;
    const recycle_case *c = p->c;
    const double *from = c->n_fed[seq] == 0 ? p->x + row * c->ld_x : p->cache + place(c, seq, parents[node]);
    for (int32_t i = 0; i < c->dim; i++) p->y[row * c->ld_y + i] = test_round(from[i], c->y);
}

static void store(void *arg, int32_t row, int32_t seq, int32_t node)
{
    const plain *p = arg;
    for (int32_t i = 0; i < p->c->dim; i++) p->cache[place(p->c, seq, node) + (size_t)i] = p->x[row * p->c->ld_x + i];
}

static void expect_same(const test_device *d, const recycle_case *c, const char *what, const test_buffer *b, const double *want)
{
    double *got = test_read(b);
    for (size_t i = 0; i < b->n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s %s: element %zu of %s is %.9g, expected %.9g", d->name, c->name, i, what, got[i], want[i]);
    free(got);
}

static void run_case(const test_device *d, const recycle_case *c)
{
    test_random random = { 5 };
    const size_t n_x = (size_t)(MOST_ROWS * c->ld_x), n_y = (size_t)(MOST_ROWS * c->ld_y), n_cache = (size_t)(N_SLOT * N_NODE * c->dim);
    double *x = test_values(&random, n_x, 3.0), *y = test_values(&random, n_y, 3.0), *cache = test_values(&random, n_cache, 3.0);
    test_buffer bx = test_buffer_from(d, x, n_x, c->x), by = test_buffer_from(d, y, n_y, c->y);
    test_buffer bc = test_buffer_from(d, cache, n_cache, F32);
    test_round_all(x, n_x, c->x), test_round_all(y, n_y, c->y), test_round_all(cache, n_cache, F32);
    spec_op op = { .kind = SPEC_OP_RECYCLE,
                   .u.recycle = { .dim = c->dim, .x = test_view(&bx, c->ld_x), .y = test_view(c->in_place ? &bx : &by, c->ld_y),
                                  .cache = bc.data, .n_node = N_NODE } };
    if (test_can(d, c->name, &op)) {
        plain p = { c, x, c->in_place ? x : y, cache };
        spec_step_block *step = step_of(c);
        test_run(d, &op, step, N_NODE);
        (void)each_row(c, take, &p);
        expect_same(d, c, "y", &by, y);
        expect_same(d, c, "x", &bx, x);
        expect_same(d, c, "the cache", &bc, cache);
        op.u.recycle.store = 1, op.u.recycle.y = (spec_view){ 0 };
        test_run(d, &op, step, N_NODE);
        (void)each_row(c, store, &p);
        expect_same(d, c, "the cache, stored", &bc, cache);
        expect_same(d, c, "x, stored", &bx, x);
        free(step);
    }
    test_buffer_free(&bx), test_buffer_free(&by), test_buffer_free(&bc);
    free(x), free(y), free(cache);
}

static void each(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i]);
}

static void test_recycle(void **state)
{
    (void)state;
    test_each_device(each);
}

static void each_refusal(test_device *d)
{
    float room[12] = { 0 };
    const spec_recycle_args right = { .dim = 4, .x = { room, F32, 4 }, .y = { room + 4, F32, 4 }, .cache = room + 8, .n_node = 1 };
    spec_op op = { .kind = SPEC_OP_RECYCLE, .u.recycle = right };
    if (!test_can(d, "refusals", &op)) return;
    op.u.recycle.dim = 5; /* more than the rows are apart */
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_INVALID);
    op.u.recycle = right, op.u.recycle.n_node = 0;
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_INVALID);
    op.u.recycle = right, op.u.recycle.x.dtype = BF16, op.u.recycle.y.dtype = F16;
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_UNSUPPORTED);
    op.u.recycle.store = 1; /* y is not read */
    test_ok(speci_op_supports(d->ops, d->dev, &op), "a store");
}

static void test_refusals(void **state)
{
    (void)state;
    test_each_device(each_refusal);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_recycle), cmocka_unit_test(test_refusals) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
