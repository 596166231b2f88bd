/* test_op_bias.c - rows of a table added to columns of rows, by their tokens: those of tokens that have one, and nothing else. */
#include <math.h>

#include "tests/test.h"

enum { N_VOCAB = 50, N_NODE = 12 };

#define F32 SPEC_DTYPE_F32
#define BF16 SPEC_DTYPE_BF16
#define F16 SPEC_DTYPE_F16

/* Two sequences; the table's rows are dim of the tokens, and as many columns of y. */
typedef struct bias_case {
    const char *name;
    int32_t dim, ld_table, ld_y;
    int32_t n_fed[2], n_node[2];
    spec_dtype table;
} bias_case;

static const bias_case cases[] = {
    { "base", 20, 20, N_VOCAB, { 0, 0 }, { 5, 3 }, F32 },
    { "all_tokens", N_VOCAB, N_VOCAB, N_VOCAB, { 0, 0 }, { 5, 3 }, F32 },
    { "one_column", 1, 1, N_VOCAB, { 0, 0 }, { 8, 1 }, F32 },
    { "grown", 20, 20, N_VOCAB, { 3, 1 }, { 12, 4 }, F32 },
    { "one_row", 20, 20, N_VOCAB, { 6, 0 }, { 7, 0 }, F32 },
    { "apart", 20, 24, N_VOCAB + 7, { 0, 2 }, { 4, 7 }, F32 },
    { "many_columns", 1030, 1030, 1500, { 0, 2 }, { 4, 7 }, F32 },
    { "bf16", 1030, 1032, 1500, { 0, 2 }, { 4, 7 }, BF16 },
    { "f16", 20, 20, N_VOCAB, { 0, 2 }, { 4, 7 }, F16 },
};

static const int32_t parents[N_NODE] = { -1, 0, 1, 1, 0, 2, 2, 4, 3, 8, 7, 10 };
/* Some twice, some without a row, one that is no token of the model. */
static const int32_t tokens[N_NODE] = { 4, 8, 8, 49, 0, 5, 12, N_VOCAB, 44, 4, 9, 36 };
enum { N_TABLE = N_VOCAB / 4 };

static int32_t table_row(int32_t token) { return token < N_VOCAB && token % 4 == 0 && token / 4 < N_TABLE ? token / 4 : -1; }

static spec_step_block *step_of(const bias_case *c)
{
    test_seq s[2];
    int32_t n = 0;
    for (int32_t i = 0; i < 2; i++)
        if (c->n_node[i] > 0)
            s[n++] = (test_seq){ .slot = 1 - i, .n_past = 3, .n_node = c->n_node[i], .n_fed = c->n_fed[i],
                                 .parent = parents, .token = tokens };
    return test_step(SPEC_PHASE_DECODE, s, n, 0);
}

/* Ascending, with gaps where there are more columns than are named. */
static int32_t column_of(const bias_case *c, int32_t i) { return i + (c->ld_y - c->dim) * i / c->dim; }

static void add_plain(const bias_case *c, double *y, const double *table)
{
    int32_t row = 0;
    for (int32_t i = 0; i < 2; i++)
        for (int32_t k = c->n_fed[i]; k < c->n_node[i]; k++, row++) {
            const int32_t from = table_row(tokens[k]);
            for (int32_t j = 0; from >= 0 && j < c->dim; j++) {
                double *at = &y[row * c->ld_y + column_of(c, j)];
                *at = test_round(*at + table[from * c->ld_table + j], F32);
            }
        }
}

static int32_t *upload_ints(const test_device *d, test_buffer *b, const int32_t *v, int32_t n)
{
    *b = test_buffer_new(d, (size_t)n, F32);
    test_ok(d->ops->upload(d->io, b->data, v, (size_t)n * sizeof *v), "upload");
    test_ok(d->ops->sync(d->io), "sync");
    return b->data;
}

static void run_case(const test_device *d, const bias_case *c)
{
    test_random random = { 9 };
    int32_t row[N_VOCAB], *column = calloc((size_t)c->dim, sizeof *column);
    const size_t n_table = (size_t)(N_TABLE * c->ld_table), n_y = (size_t)(2 * N_NODE * c->ld_y);
    double *table = test_values(&random, n_table, 3.0), *y = test_values(&random, n_y, 3.0);
    test_buffer bt = test_buffer_from(d, table, n_table, c->table), by = test_buffer_from(d, y, n_y, F32), br, bc;
    test_round_all(table, n_table, c->table), test_round_all(y, n_y, F32);
    for (int32_t t = 0; t < N_VOCAB; t++) row[t] = table_row(t);
    for (int32_t i = 0; i < c->dim; i++) column[i] = column_of(c, i);
    const spec_op op = { .kind = SPEC_OP_BIAS,
                         .u.bias = { .n_vocab = N_VOCAB, .dim = c->dim, .table = test_view(&bt, c->ld_table),
                                     .row = upload_ints(d, &br, row, N_VOCAB),
                                     .column = upload_ints(d, &bc, column, c->dim), .y = test_view(&by, c->ld_y) } };
    if (test_can(d, c->name, &op)) {
        spec_step_block *step = step_of(c);
        test_run(d, &op, step, N_NODE);
        add_plain(c, y, table);
        double *got = test_read(&by);
        for (size_t i = 0; i < n_y; i++)
            if (got[i] != y[i]) fail_msg("%s %s: element %zu is %.9g, expected %.9g", d->name, c->name, i, got[i], y[i]);
        free(got);
        free(step);
    }
    test_buffer_free(&bt), test_buffer_free(&by), test_buffer_free(&br), test_buffer_free(&bc);
    free(table), free(y), free(column);
}

static void each(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) run_case(d, &cases[i]);
}

static void test_bias(void **state)
{
    (void)state;
    test_each_device(each);
}

static void each_refusal(test_device *d)
{
    float room[8] = { 0 };
    int32_t ids[4] = { 0 };
    const spec_bias_args right = { .n_vocab = 4, .dim = 2, .table = { room, F32, 2 }, .row = ids, .column = ids,
                                   .y = { room + 4, F32, 4 } };
    spec_op op = { .kind = SPEC_OP_BIAS, .u.bias = right };
    if (!test_can(d, "refusals", &op)) return;
    op.u.bias.dim = 3; /* more than the table's rows are apart */
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_INVALID);
    op.u.bias = right, op.u.bias.n_vocab = 0;
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_INVALID);
    op.u.bias = right, op.u.bias.y.dtype = BF16;
    assert_int_equal(speci_op_supports(d->ops, d->dev, &op), SPEC_E_UNSUPPORTED);
}

static void test_refusals(void **state)
{
    (void)state;
    test_each_device(each_refusal);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_bias), cmocka_unit_test(test_refusals) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
