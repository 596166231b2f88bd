/* test_plan_scan.c - plans with chunked scans. A plan leaves what they keep, and what others read, with the bits that the
 * operations leave apart, whatever it does together: a convolution, the scan of its rows, the norm of that, and the product
 * that adds to the residual; and the last three alone. Tensors go on from step to
 * step, and each step is run twice: the second time a backend may replay what it captured. */
#include <math.h>
#include <stdio.h>

#include "tests/support_plan.h"

enum { PASSES = 2 };
enum { RECENT = 2 * SPEC_CHUNK + 3 * PLAN_NODES };
enum { WIDTH = 4, MOST_OPS = 4 };
enum { NO_GATE, SCAN_GATE, NORM_GATE };

typedef struct scan_case {
    const char *name;
    int32_t heads, head_dim, states, x_rep, b_rep, c_rep;
    int32_t gate;
    int32_t n_out;
    spec_dtype type;
} scan_case;

static const scan_case scans[] = {
    { "scan_24", 24, 64, 128, 1, 24, 24, SCAN_GATE, 768, SPEC_DTYPE_BF16 },
    { "scan_80", 80, 64, 128, 1, 80, 80, SCAN_GATE, 256, SPEC_DTYPE_BF16 },
    { "scan_groups", 16, 64, 128, 1, 8, 8, SCAN_GATE, 101, SPEC_DTYPE_BF16 },
    { "scan_64_states", 24, 64, 64, 1, 12, 12, SCAN_GATE, 96, SPEC_DTYPE_BF16 },
    { "scan_no_gate", 24, 64, 64, 1, 24, 24, NO_GATE, 96, SPEC_DTYPE_BF16 },
    { "scan_norm_gate", 24, 64, 128, 1, 24, 24, NORM_GATE, 96, SPEC_DTYPE_BF16 },
    { "scan_shared_x", 32, 64, 64, 4, 4, 1, SCAN_GATE, 96, SPEC_DTYPE_BF16 },
    { "scan_one_head", 1, 64, 128, 1, 1, 1, SCAN_GATE, 33, SPEC_DTYPE_BF16 },
    { "scan_other_sizes", 12, 32, 16, 1, 6, 6, SCAN_GATE, 96, SPEC_DTYPE_BF16 },
    { "scan_f32", 8, 64, 128, 1, 8, 8, SCAN_GATE, 96, SPEC_DTYPE_F32 },
};

typedef struct scan_test {
    const test_device *d;
    const scan_case *c;
    int32_t inner, n_x, n_b, n_c, ld_conv, ld_in;
    spec_weight *w;
    test_buffer in, a, skip, dt_bias, norm_weight, filter, bias; /* in: [z | x | B | C | dt] */
    test_buffer rows, replay;                                    /* [x | B | C], where no convolution makes them */
    /* What the next operation alone reads, so that a plan need not write it. */
    plan_pair convolved, replayed, scanned;
    plan_pair window, cache, state, recent_x, recent_b, recent_dt, cache_dt, normed, residual;
} scan_test;

static scan_test open_scan(const test_device *d, const scan_case *c)
{
    scan_test t = { .d = d, .c = c, .inner = c->heads * c->head_dim, .n_x = c->heads / c->x_rep * c->head_dim,
                    .n_b = c->heads / c->b_rep * c->states, .n_c = c->heads / c->c_rep * c->states };
    test_random random = { 43 };
    t.ld_conv = t.n_x + t.n_b + t.n_c, t.ld_in = t.inner + t.ld_conv + c->heads;
    const size_t heads = (size_t)c->heads, inner = (size_t)t.inner, n_x = (size_t)t.n_x, n_b = (size_t)t.n_b;
    const size_t channels = (size_t)t.ld_conv, replayed = PLAN_SLOTS * 2 * PLAN_NODES * channels;
    t.w = support_plan_weight(d, c->n_out, t.inner, (plan_types){ c->type, c->type }, 0, &random);
    t.rows = support_plan_values(d, PLAN_ROWS * channels, 1.0, c->type, &random);
    t.in = support_plan_values(d, PLAN_ROWS * (size_t)t.ld_in, 2.0, SPEC_DTYPE_F32, &random);
    t.replay = support_plan_values(d, replayed, 1.0, c->type, &random);
    t.filter = support_plan_values(d, channels * WIDTH, 1.0, SPEC_DTYPE_F32, &random);
    t.bias = support_plan_values(d, channels, 1.0, SPEC_DTYPE_F32, &random);
    t.convolved = support_plan_pair(d, PLAN_ROWS * channels, 1.0, c->type, &random);
    t.replayed = support_plan_pair(d, replayed, 1.0, c->type, &random);
    t.window = support_plan_pair(d, PLAN_SLOTS * 2 * (WIDTH - 1) * channels, 1.0, c->type, &random);
    t.cache = support_plan_pair(d, PLAN_SLOTS * 2 * PLAN_NODES * channels, 1.0, c->type, &random);
    t.a = support_plan_between(d, heads, -2.0, -0.05, &random);
    t.skip = support_plan_values(d, heads, 1.0, SPEC_DTYPE_F32, &random);
    t.dt_bias = support_plan_values(d, heads, 1.0, SPEC_DTYPE_F32, &random);
    t.norm_weight = support_plan_values(d, inner, 1.5, SPEC_DTYPE_F32, &random);
    t.scanned = support_plan_pair(d, PLAN_ROWS * inner, 1.0, SPEC_DTYPE_F32, &random);
    t.state = support_plan_pair(d, PLAN_SLOTS * inner * (size_t)c->states, 1.0, SPEC_DTYPE_F32, &random);
    t.recent_x = support_plan_pair(d, PLAN_SLOTS * RECENT * n_x, 1.0, c->type, &random);
    t.recent_b = support_plan_pair(d, PLAN_SLOTS * RECENT * n_b, 1.0, c->type, &random);
    t.recent_dt = support_plan_pair_between(d, PLAN_SLOTS * RECENT * heads, 0.001, 0.5, &random);
    t.cache_dt = support_plan_pair_between(d, PLAN_SLOTS * 2 * PLAN_NODES * heads, 0.001, 0.5, &random);
    t.normed = support_plan_pair(d, PLAN_ROWS * inner, 1.0, c->type, &random);
    t.residual = support_plan_pair(d, PLAN_ROWS * (size_t)c->n_out, 1.0, SPEC_DTYPE_F32, &random);
    return t;
}

static void close_scan(scan_test *t)
{
    plan_pair *pairs[] = { &t->convolved, &t->replayed, &t->scanned, &t->window, &t->cache, &t->state, &t->recent_x,
                           &t->recent_b, &t->recent_dt, &t->cache_dt, &t->normed, &t->residual };
    test_buffer *buffers[] = { &t->in, &t->a, &t->skip, &t->dt_bias, &t->norm_weight, &t->filter, &t->bias, &t->rows,
                               &t->replay };
    for (int32_t i = 0; i < N_ELEMENTS(pairs); i++) support_plan_free(pairs[i]);
    for (int32_t i = 0; i < N_ELEMENTS(buffers); i++) test_buffer_free(buffers[i]);
    t->d->ops->weight_close(t->d->dev, t->w);
}

static spec_op conv_op(const scan_test *t, int32_t way)
{
    return (spec_op){ .kind = SPEC_OP_CONV,
                      .u.conv = { .u = support_plan_column(&t->in, t->ld_in, t->inner), .n_channel = t->ld_conv, .width = WIDTH,
                                  .weight = t->filter.data, .bias = t->c->gate == NO_GATE ? NULL : t->bias.data,
                                  .dtype = t->c->type, .window = t->window.of[way].data, .cache = t->cache.of[way].data,
                                  .replay_y = t->replayed.of[way].data, .n_node = PLAN_NODES,
                                  .y = test_view(&t->convolved.of[way], t->ld_conv), .act = SPEC_ACT_SILU } };
}

static spec_op scan_op(const scan_test *t, int32_t way, bool with_conv)
{
    const scan_case *c = t->c;
    const test_buffer *const rows = with_conv ? &t->convolved.of[way] : &t->rows;
    const test_buffer *const replay = with_conv ? &t->replayed.of[way] : &t->replay;
    spec_op op = { .kind = SPEC_OP_SCAN };
    op.u.scan = (spec_scan_args){
        .n_head = c->heads, .head_dim = c->head_dim, .n_state = c->states, .x_rep = c->x_rep, .b_rep = c->b_rep,
        .c_rep = c->c_rep,
        .a = t->a.data, .d = t->skip.data, .dt_bias = t->dt_bias.data, .dt_max = INFINITY,
        .x = test_view(rows, t->ld_conv), .b = support_plan_column(rows, t->ld_conv, t->n_x),
        .c = support_plan_column(rows, t->ld_conv, t->n_x + t->n_b),
        .dt = support_plan_column(&t->in, t->ld_in, t->inner + t->ld_conv),
        .dtype = c->type, .replay_y = replay->data, .replay_ld = t->ld_conv, .replay_b_col = t->n_x, .b_in_conv = 1,
        .state = t->state.of[way].data, .cache_dt = t->cache_dt.of[way].data, .n_node = PLAN_NODES,
        .y = test_view(&t->scanned.of[way], t->inner), .chunk = SPEC_CHUNK, .n_recent_max = RECENT,
        .recent_x = t->recent_x.of[way].data, .recent_b = t->recent_b.of[way].data,
        .recent_dt = t->recent_dt.of[way].data };
    if (c->gate == SCAN_GATE) op.u.scan.z = test_view(&t->in, t->ld_in);
    return op;
}

static int32_t scan_ops(const scan_test *t, int32_t way, bool with_conv, spec_op ops[MOST_OPS])
{
    const spec_view normed = test_view(&t->normed.of[way], t->inner);
    int32_t n = 0;
    if (with_conv) ops[n++] = conv_op(t, way);
    ops[n++] = scan_op(t, way, with_conv);
    spec_op norm = { .kind = SPEC_OP_NORM,
                     .u.norm = { .dim = t->inner, .n_group = 1, .eps = 1e-3f, .weight = t->norm_weight.data,
                                 .x = test_view(&t->scanned.of[way], t->inner), .y = normed } };
    if (t->c->gate == NORM_GATE) norm.u.norm.gate = test_view(&t->in, t->ld_in);
    ops[n++] = norm;
    ops[n++] = (spec_op){ .kind = SPEC_OP_LINEAR,
                          .u.linear = { .w = t->w, .n_in = t->inner, .n_out = t->c->n_out, .scale = 0.75f, .add = 1,
                                        .x = normed, .y = test_view(&t->residual.of[way], t->c->n_out) } };
    return n;
}

static void check_scan(const scan_test *t, const spec_step_block *step, const char *what, bool with_conv)
{
    spec_op ops[2][MOST_OPS];
    char name[64];
    int32_t n = 0;
    for (int32_t way = 0; way < 2; way++) n = scan_ops(t, way, with_conv, ops[way]);
    support_plan_run(t->d, ops[0], n, step, PLAN_NODES, PASSES);
    support_plan_apart(t->d, ops[1], n, step, PLAN_NODES, PASSES);
    const plan_tensor all[] = { { "the window", &t->window }, { "the cache", &t->cache }, { "the state", &t->state },
                                { "recent x", &t->recent_x }, { "recent B", &t->recent_b },
                                { "recent dt", &t->recent_dt }, { "cache_dt", &t->cache_dt },
                                { "y of the norm", &t->normed },
                                { "the residual", &t->residual } };
    snprintf(name, sizeof name, "%s%s", t->c->name, with_conv ? ", convolution" : "");
    support_plan_same_all(t->d, name, what, all, N_ELEMENTS(all));
}

static void check_alone(void *test, const spec_step_block *step, const char *what) { check_scan(test, step, what, false); }
static void check_with_conv(void *test, const spec_step_block *step, const char *what) { check_scan(test, step, what, true); }

static void each_scan(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(scans); i++) {
        scan_test t = open_scan(d, &scans[i]);
        const spec_op op = scan_op(&t, 0, false);
        if (test_can(d, scans[i].name, &op)) {
            support_plan_each_step(d, check_alone, &t);
            support_plan_each_step(d, check_with_conv, &t);
        }
        close_scan(&t);
    }
}

static void test_scans(void **state)
{
    (void)state;
    test_each_device(each_scan);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_scans) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
