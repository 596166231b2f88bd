/* test_plan_rows.c - a plan in which products read what attention, a scan (Mamba-1's) or a product in front has made, made ready,
 * leaves every tensor with the bits that its operations leave apart: a backend may keep such rows in a form of its own
 * between the two. */
#include <math.h>
#include <stdio.h>

#include "tests/support_plan.h"

enum { PASSES = 3, MOST_OPS = 4, PAGES = TEST_PAGES * TEST_SEQS, KV_HEADS = 2, STATES = 16 };

typedef struct rows_case {
    const char *name;
    int32_t n_head, head_dim;      /* attention in front; 0: none */
    float cap;                     /* of its scores; 0: none */
    int32_t n_channel;             /* or a scan */
    int32_t n_in, n_mid, glu;      /* norm and product in front; 0: none */
    spec_activation act;
    int32_t n_out, add, apart;     /* the product behind; apart: the one in front writes elsewhere */
    int32_t q8;                    /* with weights of Q8_0 alone */
} rows_case;

static const rows_case cases[] = {
    { .name = "attention", .n_head = 4, .head_dim = 64, .n_out = 72 },
    { .name = "attention_add", .n_head = 8, .head_dim = 128, .n_out = 96, .add = 1 },
    { .name = "attention_capped", .n_head = 4, .head_dim = 128, .cap = 0.5f, .n_out = 72 },
    { .name = "attention_many", .n_head = 2, .head_dim = 64, .n_out = 1500 },
    { .name = "attention_odd", .n_head = 6, .head_dim = 40, .n_out = 72 },
    { .name = "scan", .n_channel = 256, .n_out = 72 },
    { .name = "scan_add", .n_channel = 1536, .n_out = 96, .add = 1 },
    { .name = "scan_odd", .n_channel = 200, .n_out = 40 },
    { .name = "glu", .n_in = 256, .n_mid = 384, .glu = 1, .act = SPEC_ACT_SILU, .n_out = 72 },
    { .name = "glu_add", .n_in = 128, .n_mid = 1408, .glu = 1, .act = SPEC_ACT_SILU, .n_out = 128, .add = 1 },
    { .name = "glu_many", .n_in = 256, .n_mid = 3072, .glu = 1, .act = SPEC_ACT_SILU, .n_out = 520 },
    { .name = "glu_long", .n_in = 10240, .n_mid = 256, .glu = 1, .act = SPEC_ACT_SILU, .n_out = 72, .q8 = 1 },
    { .name = "glu_then_long", .n_in = 128, .n_mid = 41216, .glu = 1, .n_out = 40, .add = 1, .q8 = 1 },
    { .name = "glu_odd", .n_in = 256, .n_mid = 200, .glu = 1, .act = SPEC_ACT_SILU, .n_out = 40 },
    { .name = "up", .n_in = 128, .n_mid = 512, .act = SPEC_ACT_RELU, .n_out = 128, .add = 1 },
    { .name = "up_apart", .n_in = 128, .n_mid = 256, .act = SPEC_ACT_SILU, .n_out = 128, .apart = 1 },
    { .name = "attention_and_glu", .n_head = 2, .head_dim = 64, .n_in = 128, .n_mid = 256, .glu = 1, .n_out = 128 },
};

typedef struct rows_test {
    const test_device *d;
    const rows_case *c;
    char name[96];
    spec_dtype type;
    int32_t width, n_made; /* columns of what is in front, and of what the product in front makes */
    spec_weight *o, *up, *down;
    test_buffer q, k, v, other, bias, norm_weight;
    test_buffer scan_x, scan_bc, dt, z, a, skip, replay;
    plan_pair front, state, cache_dt, cache_b, residual, normed, made, y;
} rows_test;

static rows_test open_rows(const test_device *d, const rows_case *c, plan_types types)
{
    const spec_dtype type = types.compute;
    rows_test t = { .d = d, .c = c, .type = type, .n_made = c->glu ? c->n_mid / 2 : c->n_mid };
    support_plan_name(t.name, sizeof t.name, c->name, types);
    test_random random = { 61 };
    t.width = c->n_channel ? c->n_channel : c->n_head * c->head_dim;
    const size_t rows = PLAN_ROWS, width = (size_t)t.width, mid = (size_t)t.n_made, n_in = (size_t)c->n_in;
    const size_t cached = (size_t)PLAN_SLOTS * 2 * PLAN_NODES;
    const size_t kv = c->n_head ? (size_t)PAGES * KV_HEADS * SPEC_PAGE * (size_t)c->head_dim : 1;
    t.q = support_plan_values(d, rows * width + 1, 2.0, SPEC_DTYPE_F32, &random);
    t.k = support_plan_values(d, kv, 2.0, type, &random);
    t.v = support_plan_values(d, kv, 1.0, type, &random);
    t.other = support_plan_values(d, rows * mid + 1, 1.0, type, &random);
    t.bias = support_plan_values(d, (size_t)c->n_mid + 1, 1.0, SPEC_DTYPE_F32, &random);
    t.norm_weight = support_plan_values(d, n_in + 1, 1.0, SPEC_DTYPE_F32, &random);
    t.front = support_plan_pair(d, rows * width + 1, 1.0, type, &random);
    t.scan_x = support_plan_values(d, rows * width + 1, 1.0, type, &random);
    t.scan_bc = support_plan_values(d, rows * 2 * STATES, 1.0, type, &random);
    t.dt = support_plan_between(d, rows * width + 1, 0.001, 0.5, &random);
    t.z = support_plan_values(d, rows * width + 1, 1.0, SPEC_DTYPE_F32, &random);
    t.a = support_plan_between(d, width * STATES + 1, -2.0, -0.05, &random);
    t.skip = support_plan_values(d, width + 1, 1.0, SPEC_DTYPE_F32, &random);
    t.replay = support_plan_values(d, cached * width + 1, 1.0, type, &random);
    t.state = support_plan_pair(d, PLAN_SLOTS * width * STATES + 1, 1.0, SPEC_DTYPE_F32, &random);
    t.cache_dt = support_plan_pair_between(d, cached * width + 1, 0.001, 0.5, &random);
    t.cache_b = support_plan_pair(d, cached * STATES, 1.0, type, &random);
    t.residual = support_plan_pair(d, rows * (n_in + 1), 1.0, SPEC_DTYPE_F32, &random);
    t.normed = support_plan_pair(d, rows * n_in + 1, 1.0, type, &random);
    t.made = support_plan_pair(d, rows * mid + 1, 1.0, type, &random);
    t.y = support_plan_pair(d, rows * (size_t)c->n_out, 1.0, SPEC_DTYPE_F32, &random);
    if (t.width) t.o = support_plan_weight(d, c->n_mid ? c->n_in : c->n_out, t.width, types, 0, &random);
    if (c->n_mid) t.up = support_plan_weight(d, c->n_mid, c->n_in, types, c->glu, &random);
    if (c->n_mid) t.down = support_plan_weight(d, c->n_out, t.n_made, types, 0, &random);
    return t;
}

static void close_rows(rows_test *t)
{
    plan_pair *pairs[] = { &t->front, &t->state, &t->cache_dt, &t->cache_b, &t->residual, &t->normed, &t->made, &t->y };
    test_buffer *buffers[] = { &t->q, &t->k, &t->v, &t->other, &t->bias, &t->norm_weight, &t->scan_x, &t->scan_bc, &t->dt, &t->z,
                               &t->a, &t->skip, &t->replay };
    spec_weight *weights[] = { t->o, t->up, t->down };
    for (int32_t i = 0; i < N_ELEMENTS(pairs); i++) support_plan_free(pairs[i]);
    for (int32_t i = 0; i < N_ELEMENTS(buffers); i++) test_buffer_free(buffers[i]);
    for (int32_t i = 0; i < N_ELEMENTS(weights); i++)
        if (weights[i]) t->d->ops->weight_close(t->d->dev, weights[i]);
}

static spec_op product(const spec_weight *w, int32_t n_in, int32_t n_out, spec_view x, spec_view y, spec_linear_args extra)
{
    extra.w = w, extra.n_in = n_in, extra.n_out = n_out, extra.x = x, extra.y = y, extra.scale = 0.75f;
    return (spec_op){ .kind = SPEC_OP_LINEAR, .u.linear = extra };
}

static spec_op attention_op(const rows_test *t, spec_view y)
{
    const rows_case *c = t->c;
    return (spec_op){ .kind = SPEC_OP_ATTENTION,
                      .u.attention = { .q = test_view(&t->q, t->width), .n_head = c->n_head, .scale = 0.3f, .cap = c->cap, .y = y,
                                       .kv = { t->k.data, t->v.data, t->type, PAGES, KV_HEADS, c->head_dim } } };
}

static spec_op scan_op(const rows_test *t, int32_t way, spec_view y)
{
    const int32_t n = t->width;
    spec_op op = { .kind = SPEC_OP_SCAN };
    op.u.scan = (spec_scan_args){
        .n_head = n, .head_dim = 1, .n_state = STATES, .x_rep = 1, .b_rep = n, .c_rep = n, .a = t->a.data, .a_per_state = 1,
        .d = t->skip.data, .dt_max = INFINITY, .x = test_view(&t->scan_x, n), .b = test_view(&t->scan_bc, 2 * STATES),
        .c = support_plan_column(&t->scan_bc, 2 * STATES, STATES), .dt = test_view(&t->dt, n), .z = test_view(&t->z, n),
        .dtype = t->type, .replay_y = t->replay.data, .replay_ld = n, .state = t->state.of[way].data,
        .cache_dt = t->cache_dt.of[way].data, .cache_b = t->cache_b.of[way].data, .n_node = PLAN_NODES, .y = y };
    return op;
}

static int32_t rows_ops(const rows_test *t, int32_t way, spec_op ops[MOST_OPS])
{
    const rows_case *c = t->c;
    const spec_view front = test_view(&t->front.of[way], t->width), residual = test_view(&t->residual.of[way], c->n_in);
    const spec_view normed = test_view(&t->normed.of[way], c->n_in), made = test_view(&t->made.of[way], t->n_made);
    const spec_view y = test_view(&t->y.of[way], c->n_out);
    int32_t n = 0;
    if (t->width) {
        const spec_linear_args extra = { .add = c->n_mid ? 1 : c->add };
        ops[n++] = c->n_channel ? scan_op(t, way, front) : attention_op(t, front);
        ops[n++] = product(t->o, t->width, c->n_mid ? c->n_in : c->n_out, front, c->n_mid ? residual : y, extra);
    }
    if (!c->n_mid) return n;
    if (!t->width)
        ops[n++] = (spec_op){ .kind = SPEC_OP_NORM,
                              .u.norm = { .dim = c->n_in, .n_group = 1, .eps = 1e-5f, .weight = t->norm_weight.data,
                                          .x = residual, .y = normed } };
    ops[n++] = product(t->up, c->n_in, c->n_mid, normed, made,
                       (spec_linear_args){ .glu = c->glu, .act = c->act, .bias = t->bias.data });
    ops[n++] = product(t->down, t->n_made, c->n_out, c->apart ? test_view(&t->other, t->n_made) : made, y,
                       (spec_linear_args){ .add = c->add });
    return n;
}

static void check_rows(void *test, const spec_step_block *step, const char *what)
{
    const rows_test *t = test;
    spec_op ops[2][MOST_OPS];
    int32_t n = 0;
    for (int32_t way = 0; way < 2; way++) n = rows_ops(t, way, ops[way]);
    support_plan_run(t->d, ops[0], n, step, PLAN_NODES, PASSES);
    support_plan_apart(t->d, ops[1], n, step, PLAN_NODES, PASSES);
    const plan_tensor all[] = { { "y of what is in front", &t->front }, { "the state", &t->state },
                                { "cache_dt", &t->cache_dt }, { "cache_b", &t->cache_b }, { "the residual", &t->residual },
                                { "y of the norm", &t->normed }, { "y of the product in front", &t->made },
                                { "y", &t->y } };
    support_plan_same_all(t->d, t->name, what, all, N_ELEMENTS(all));
}

static void each_rows(test_device *d)
{
    static const plan_types types[] = { { SPEC_DTYPE_BF16, SPEC_DTYPE_BF16 }, { SPEC_DTYPE_F16, SPEC_DTYPE_F16 },
                                        { SPEC_DTYPE_F32, SPEC_DTYPE_F32 },   { SPEC_DTYPE_BF16, SPEC_DTYPE_Q8_0 },
                                        { SPEC_DTYPE_F16, SPEC_DTYPE_Q8_0 },  { SPEC_DTYPE_F32, SPEC_DTYPE_Q8_0 } };
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++)
        for (int32_t k = 0; k < N_ELEMENTS(types); k++) {
            if (cases[i].q8 && types[k].weights != SPEC_DTYPE_Q8_0) continue;
            rows_test t = open_rows(d, &cases[i], types[k]);
            spec_op ops[MOST_OPS];
            const int32_t n = rows_ops(&t, 0, ops);
            if (support_plan_can(d, t.name, ops, n)) support_plan_each_step(d, check_rows, &t);
            close_rows(&t);
        }
}

static void test_rows(void **state)
{
    (void)state;
    test_each_device(each_rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
